"""Pricer interface for existing hardware and template chips.

A pricer returns the time of every operator alone and of a layer's passes. On a GPU, operators run
in sequence and the step adds concurrent collectives. On a template chip, a pass is a schedule of
its operators, including collectives, so it takes less than their sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from atoll.step.parts import Origin
from atoll.workload.graph.layer import Layer
from atoll.workload.graph.operator import Operator


class Cost(NamedTuple):
    """Device time by kind of kernel, and the number of kernels launched."""

    matrix_s: float = 0.0
    attention_s: float = 0.0
    vector_s: float = 0.0
    kernels: int = 0
    timed_s: float = 0.0
    """Part of the total that was measured at the same sizes."""
    between_s: float = 0.0
    """Part of the total that is interpolated between measured sizes."""

    def __add__(self, other: Cost) -> Cost:  # type: ignore[override]
        return total((self, other))

    def times(self, n: float) -> Cost:
        matrix, attention, vector, kernels, timed, between = self
        times_s = matrix * n, attention * n, vector * n
        return Cost(*times_s, round(kernels * n), timed * n, between * n)

    @property
    def total_s(self) -> float:
        return self.matrix_s + self.attention_s + self.vector_s

    @property
    def origins_s(self) -> dict[Origin, float]:
        """Return the total time by origin: measured, interpolated or modelled."""
        rest_s = max(0.0, self.total_s - self.timed_s - self.between_s)
        return {"measured": self.timed_s, "interpolated": self.between_s, "modelled": rest_s}


def total(costs: Iterable[Cost]) -> Cost:
    """Return the sum of costs, without an intermediate object per addition."""
    matrix_s = attention_s = vector_s = timed_s = between_s = 0.0
    kernels = 0
    for cost in costs:
        matrix_s += cost.matrix_s
        attention_s += cost.attention_s
        vector_s += cost.vector_s
        kernels += cost.kernels
        timed_s += cost.timed_s
        between_s += cost.between_s
    return Cost(matrix_s, attention_s, vector_s, kernels, timed_s, between_s)


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Times of one layer on one device for one microbatch."""

    operators: Mapping[str, Cost]
    """Time of each operator alone, by name."""
    forward: Cost
    backward: Cost
    """Full backward pass."""
    data: Cost
    """Backward pass without weight gradients, for schedules that delay them."""
    weight: Cost
    """Weight gradients alone. data + weight >= backward; it is longer where the two would have
    shared the cores of a device."""


class Pricer(Protocol):
    """A device under one software stack, or a chip of the template."""

    @property
    def fusion(self) -> str:
        """Return the fusion level of the graphs to price (`workload.fuse`)."""

    @property
    def schedules_links(self) -> bool:
        """Return whether passes include tensor-parallel collectives; if not, the step adds them."""

    @property
    def operand_share(self) -> float:
        """Return the share of the bytes of a block's activations and their gradients that is kept
        for weight gradients; below 1 if these use a narrower format.
        """

    def layer(self, layer: Layer, ring: int, samples: int) -> LayerTimes:
        """Return the times of a layer. `ring` devices share the sequences of its attention (context
        parallelism); a microbatch has `samples` sequences.
        """

    def kept_bytes(self, layer: Layer, dropped: Set[str] = frozenset()) -> float:
        """Return the bytes that a layer keeps for its backward pass beyond the graph's tensors, if
        the tensors in `dropped` are recomputed.
        """

    def least(self, layer: Layer, operators: Iterable[Operator], ring: int) -> Cost:
        """Return a lower bound on the cost of some operators of a layer per sample, valid for every
        microbatch size, without kernel launches.
        """

    def beyond(
        self, layer: Layer, operators: Iterable[Operator], samples: Sequence[int], ep: int
    ) -> NDArray[np.float64]:
        """Return lower bounds on the seconds of microbatches beyond samples * `least`, shape
        (samples,), without building them. Experts are divided over `ep` devices.
        """

    @property
    def launch_s(self) -> float:
        """Return the minimum time of any kernel."""
