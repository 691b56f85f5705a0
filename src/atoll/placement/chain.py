"""Placement of a model's chain of layers on devices: problem, times and result."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, Protocol

import numpy as np

from atoll.answers.design import PlacementAnswer
from atoll.base.arrays import Bools, Floats, Ints
from atoll.fabric.network import Network
from atoll.placement.facts import ChainFacts
from atoll.step.layout import Layout
from atoll.step.stages import even_sizes
from atoll.step.states import States

_NONE = np.zeros((0, 2))
FORWARD, BACKWARD = 0, 1  # columns of `VariantTimes.pass_s`
DATA, WEIGHT = 0, 1  # columns of `VariantTimes.halves_s`


class VariantTimes(NamedTuple):
    """Seconds of the passes and operators of one microbatch."""

    pass_s: Floats  # shape (distinct layers, 2): forward and backward
    forward_s: Floats  # forward operators of the blocks, which may be recomputed
    halves_s: Floats = _NONE
    """Backward pass without weight gradients, and weight pass, shape (distinct layers, 2); empty if
    no schedule needs them."""
    most: VariantTimes | None = None
    """Upper bounds where the seconds are lower bounds, for a lower bound on the step."""


class PricedLayouts(Protocol):
    """Layouts of a model with their step times: the planner's, or those of a profile's placer."""

    def fastest(
        self,
        problem: PlacementProblem,
        times: VariantTimes,
        cutoff_s: float,
        even_stages: int | None = None,
    ) -> Division | None:
        """Return the fastest layout that fits and is below the cutoff, or None. With `even_stages`,
        consider only what a human expert writes: 1f1b pipelines with that many even stages and
        zero <= 1.
        """

    def describe(
        self, problem: PlacementProblem, times: VariantTimes, division: Division
    ) -> PlacementAnswer:
        """Return the full placement of a division: stages, memory by part, time by cause."""

    def floors(self, problem: PlacementProblem, least_s: float) -> StepFloors:
        """Return the terms of lower bounds on the step times of the layouts that may fit; on no
        chip does a microbatch pass all layers in less than `least_s`.
        """


class Placer(PricedLayouts, Protocol):
    """Placement by the rules of a profile instead of the planner's."""

    def state_bytes(self, states: States) -> float:
        """Return the bytes per parameter of weight, gradient and optimizer state."""


class StepFloors(NamedTuple):
    """Terms of lower bounds on step times, each of shape (layouts,). `floor_of` in
    `explore.pricing.bound_kernels` returns the maximum of loads * (largest stage load)
    and of the paths below (`training.planner.bounds.family_bounds`), plus `fixed_s` and exposed
    gradient collectives. Block counts are multiplied by the shortest block.
    """

    stages: Ints
    copies: Ints
    """Copies of the model per pipeline; each stage has a part of every copy."""
    loads: Floats
    transfer_s: Floats
    fixed_s: Floats
    through: Floats
    """Path: through * (full pass) + through_ends * (end_blocks + layers after the blocks)."""
    through_ends: Floats
    end_blocks: Floats
    stage_ends: Floats
    """Path: stage_ends * (stage_blocks + layers after the blocks) + head_blocks."""
    stage_blocks: Floats
    head_blocks: Floats
    apart: Floats
    """Path with separate weight passes: apart * (all forward and data passes) + apart_blocks
    (forward and data passes of a block) + apart_weights (weight passes of a block)."""
    apart_blocks: Floats
    apart_weights: Floats
    last_s: Floats
    """Gradient collectives after the last backward pass; `before_s`: after each earlier one."""
    before_s: Floats
    shown: Floats
    """Share of these collectives that never overlaps with a backward pass."""
    forward_blocks: Floats
    data_blocks: Floats
    weight_blocks: Floats
    """Two bounds as if every stage had the fewest blocks: block counts per kind of pass."""
    second_forward_blocks: Floats
    second_data_blocks: Floats
    second_weight_blocks: Floats

    def of(self, rows: Bools) -> StepFloors:
        """Return the terms of the layouts selected by a mask."""
        return StepFloors._make(column[rows] for column in self)


@dataclass(frozen=True, slots=True)
class PlacementProblem:
    """One model with one microbatch size and tp, and the devices to place it on."""

    network: Network
    states: States
    facts: ChainFacts
    devices: int
    tp: int
    microbatches: int
    memory_bytes: float
    hbm_Bps: float
    recompute: str = "optimal"
    layouts: PricedLayouts | None = None
    """Layouts to choose from; None: no layout divides the devices and the batch."""

    def fastest(
        self, times: VariantTimes, cutoff_s: float = np.inf, even_stages: int | None = None
    ) -> Division | None:
        """Return the fastest placement (`PricedLayouts.fastest`), or None."""
        if self.layouts is None:
            return None
        return self.layouts.fastest(self, times, cutoff_s, even_stages)

    def most_replicas(self, stages: int) -> int:
        """Return the largest number of replicas of `stages` stages."""
        return min(self.devices // (self.tp * stages), self.microbatches)


@dataclass(frozen=True)
class Division:
    """Division of a model over devices, with its step time."""

    step_time_s: float
    pipeline: int
    data: int
    starts: tuple[int, ...] = ()
    """First layer of each stage, for PHAZE's placement."""
    recompute_share: float = 0.0
    """Seconds of recomputation per second of other computation, over all stages."""
    zero: int = 0
    layout: Layout | None = None
    """The planner's layout; None for PHAZE's placement."""
    choices: tuple[int, ...] = ()
    """Index of the recomputation choice of each stage."""


def even_starts(block: Ints, pipeline: int) -> tuple[int, ...] | None:
    """Return the first layer of each stage with the blocks divided evenly; None if there are fewer
    blocks than stages. Layers between blocks belong to the stage of the block before them.
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
