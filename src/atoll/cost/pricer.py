"""What prices operators: one interface for existing hardware and for chips of a template.

A device gives the time of every operator alone and of a layer's passes. On a GPU operators run one
after another and collectives beside them are priced by the step; on a chip of the template a pass
is a schedule of its operators, collectives among them, so that a pass takes less than their sum.
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
    """Time on the device by kind of kernel, and the kernels launched."""

    matrix_s: float = 0.0
    attention_s: float = 0.0
    vector_s: float = 0.0
    kernels: int = 0
    timed_s: float = 0.0
    """Of the whole, what was measured at the same sizes."""
    between_s: float = 0.0
    """Of the whole, what follows from measurements at sizes around it."""

    def __add__(self, other: Cost) -> Cost:  # type: ignore[override]
        return Cost(
            self.matrix_s + other.matrix_s,
            self.attention_s + other.attention_s,
            self.vector_s + other.vector_s,
            self.kernels + other.kernels,
            self.timed_s + other.timed_s,
            self.between_s + other.between_s,
        )

    def times(self, n: float) -> Cost:
        return Cost(
            self.matrix_s * n,
            self.attention_s * n,
            self.vector_s * n,
            round(self.kernels * n),
            self.timed_s * n,
            self.between_s * n,
        )

    @property
    def total_s(self) -> float:
        return self.matrix_s + self.attention_s + self.vector_s

    @property
    def origins_s(self) -> dict[Origin, float]:
        """The whole, by how it is known."""
        rest_s = max(0.0, self.total_s - self.timed_s - self.between_s)
        return {"measured": self.timed_s, "interpolated": self.between_s, "modelled": rest_s}


def total(costs: Iterable[Cost]) -> Cost:
    """All of them, without a new one for each addition."""
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
    """One layer on one device for one microbatch."""

    operators: Mapping[str, Cost]
    """Each operator alone, by name."""
    forward: Cost
    backward: Cost
    """The whole backward pass at once."""
    data: Cost
    """The backward pass without weight gradients, for orders that put these off."""
    weight: Cost
    """Weight gradients by themselves. Run apart the two take as long as together, or longer where
    they would have shared a device's cores."""


class Pricer(Protocol):
    """A device under one software stack, or a chip of the template."""

    @property
    def fusion(self) -> str:
        """The fusion level of the graphs that it prices (`workload.fuse`)."""

    @property
    def schedules_links(self) -> bool:
        """Whether passes hold tensor parallelism's collectives; otherwise the step adds them."""

    @property
    def operand_share(self) -> float:
        """Of the bytes of a block's activations and their gradients, what is kept of them for
        weight gradients: fewer where these are taken in a narrower format.
        """

    def layer(self, layer: Layer, ring: int, samples: int) -> LayerTimes:
        """A layer of the given fusion. `ring` devices share the sequences of its attention (context
        parallelism), of which a microbatch has so many `samples`.
        """

    def kept_bytes(self, layer: Layer, dropped: Set[str] = frozenset()) -> float:
        """Bytes that a layer keeps for its backward pass beyond the graph's tensors, where some of
        these are dropped.
        """

    def least(self, layer: Layer, operators: Iterable[Operator], ring: int) -> Cost:
        """Of some operators of a layer for one sample, what no microbatch takes less of for each of
        its samples, launches of kernels apart.
        """

    def beyond(
        self, layer: Layer, operators: Iterable[Operator], samples: Sequence[int], ep: int
    ) -> NDArray[np.float64]:
        """What microbatches of so many samples take beyond that, as far as it is known without
        building them; experts are spread over `ep` devices.
        """

    @property
    def launch_s(self) -> float:
        """What any kernel takes however little it does."""
