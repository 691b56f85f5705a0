"""Placement of a model's chain of layers on devices: the problem, its times and its result."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import FloatArray
from atoll.fabric.network import Network
from atoll.placement.facts import ChainFacts
from atoll.placement.plan import Placement
from atoll.step.layout import Layout
from atoll.step.stages import even_sizes
from atoll.step.states import States

_NONE = np.zeros((0, 2))
FORWARD, BACKWARD = 0, 1  # columns of `VariantTimes.pass_s`
DATA, WEIGHT = 0, 1  # columns of `VariantTimes.halves_s`


class VariantTimes(NamedTuple):
    """Seconds of one microbatch."""

    pass_s: FloatArray  # (kinds of layers, forward and backward)
    forward_s: FloatArray  # of the blocks' forward operators, which may run again
    halves_s: FloatArray = _NONE
    """(kinds, 2): the backward pass without weight gradients, and these by themselves; none where
    nobody asks."""


class PricedLayouts(Protocol):
    """Layouts of a model that are priced one by one."""

    def fastest(
        self,
        problem: PlacementProblem,
        times: VariantTimes,
        cutoff_s: float,
        even_stages: int | None = None,
    ) -> Division | None:
        """Return the fastest that fits below the cutoff, or None; with `even_stages`, of 1F1B
        pipelines with so many even stages under ZeRO 0 or 1.
        """

    def describe(
        self, problem: PlacementProblem, times: VariantTimes, division: Division
    ) -> Placement:
        """One of them in full."""

    def floors(self, problem: PlacementProblem) -> StepFloors:
        """What their steps are made of, from below."""


class StepFloors(NamedTuple):
    """Layouts as a bound sees them, an entry each. A step pays so often the largest load and so
    often a whole pass, of which transfers are a part, and what no chip changes; and no less than
    any path through the passes of its pipeline (`training.planner.bounds.floor`). The last stage
    and the model's last chunk are so many blocks, the shortest there are, and what stands behind.
    """

    stages: NDArray[np.int64]
    copies: NDArray[np.int64]
    """Times that a pipeline holds the model: a stage has a part of each."""
    loads: FloatArray
    passes: FloatArray
    transfer_s: FloatArray
    fixed_s: FloatArray
    through: FloatArray
    """A whole pass, and so often the end of the model:"""
    through_ends: FloatArray
    end_blocks: FloatArray
    stage_ends: FloatArray
    """So often the last stage, and blocks of the stages before it."""
    stage_blocks: FloatArray
    head_blocks: FloatArray
    apart: FloatArray
    """Where weight gradients run apart: all forward passes and data gradients, and blocks of these
    and of weight gradients."""
    apart_blocks: FloatArray
    apart_weights: FloatArray
    forward_blocks: FloatArray
    data_blocks: FloatArray
    weight_blocks: FloatArray
    """As if all stages were as the least of them, in two ways."""
    second_forward_blocks: FloatArray
    second_data_blocks: FloatArray
    second_weight_blocks: FloatArray

    def of(self, rows: NDArray[np.bool_]) -> StepFloors:
        """Some of them."""
        return StepFloors._make(column[rows] for column in self)


@dataclass(frozen=True, slots=True)
class PlacementProblem:
    """One model at one microbatch and tensor width, and the devices that it is placed on."""

    network: Network
    states: States
    facts: ChainFacts
    devices: int
    tp: int
    microbatches: int
    memory_bytes: float
    hbm_Bps: float
    recompute: str = "optimal"
    planned: PricedLayouts | None = None
    """The planner's layouts; none under PHAZE's profile, which has its own placement."""

    def most_replicas(self, stages: int) -> int:
        """Copies of so many stages that there are devices and microbatches for."""
        return min(self.devices // (self.tp * stages), self.microbatches)


@dataclass(frozen=True)
class Division:
    """How a model is divided over devices, and how long its step takes."""

    step_time_s: float
    pipeline: int
    data: int
    starts: tuple[int, ...] = ()
    """First layer of each stage of PHAZE's placement."""
    recompute_share: float = 0.0
    """Seconds of recomputation, over all stages, for each second of other computation."""
    zero: int = 0
    layout: Layout | None = None
    """The planner's layout, if it is one."""
    choices: tuple[int, ...] = ()
    """Number of the recomputation choice of each of its stages."""


def even_starts(block: NDArray[np.int64], pipeline: int) -> tuple[int, ...] | None:
    """First layer of each stage with the blocks spread evenly; None with fewer blocks than stages.

    Layers between blocks stay with the block before them.
    """
    if pipeline == 1:
        return (0,)
    blocks = np.flatnonzero(block >= 0)
    if not 1 <= pipeline <= len(blocks):
        return None
    before = accumulate(even_sizes(len(blocks), pipeline)[:-1])
    return (0, *(int(blocks[count]) for count in before))


def layer_names(facts: ChainFacts, first: int, last: int) -> tuple[str, ...]:
    names = []
    for kind, (layer, _) in enumerate(facts.layers):
        count = int((facts.kind[first:last] == kind).sum())
        if count:
            names.append(layer.name if count == 1 else f"{layer.name} x{count}")
    return tuple(names)
