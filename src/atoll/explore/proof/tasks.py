"""The pure pieces of a search, which any process may run: bounds, placements, schedules.

A task takes the search's context, which every worker holds, and plain arrays. Its result depends
on nothing else, so that it does not matter who runs it, when, or how often.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from atoll.cost.chips import Chips
from atoll.cost.table import cost_model
from atoll.explore.pricing.bounds import LayoutBounds
from atoll.explore.pricing.energy import operator_repeats, variant_traffic
from atoll.explore.pricing.evaluate import Priced, times_of
from atoll.explore.pricing.layouts import Setting
from atoll.explore.pricing.work import OperatorWork
from atoll.explore.pricing.workloads import Variants
from atoll.explore.proof.order import check_layers
from atoll.explore.proof.trial import Answers, Rule, Trial, try_chip
from atoll.placement.chain import Division
from atoll.schedule.problem import Schedule
from atoll.schedule.solve import Effort
from atoll.stopping import Stop

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Context:
    """What every task of one search needs."""

    variants: Variants
    setting: Setting
    rule: Rule
    work: OperatorWork
    layouts: LayoutBounds
    repeats: FloatArray
    """(variants, operators): how often a microbatch runs each distinct operator."""
    stop: Stop


@dataclass(frozen=True, eq=False)
class ChipNodes:
    """One chip with those variants that could still be part of a better design."""

    memory_bytes: float
    hbm_Bps: float
    variant: IntArray
    lower_s: FloatArray  # (nodes, layers, forward and backward): no schedule is faster
    upper_s: FloatArray  # the same: a schedule that exists
    forward_s: FloatArray  # (nodes, operators of the blocks' forward passes)
    hbm_bytes: FloatArray  # (nodes,): of a microbatch on one device
    glb_bytes: FloatArray

    def position(self, variant: int) -> int:
        return int(np.flatnonzero(self.variant == variant)[0])


@dataclass(frozen=True, eq=False)
class Bounded:
    """Chips after the schedule bound."""

    rows: FloatArray
    """(chips, variants): no plan of the node is faster."""
    nodes: dict[int, ChipNodes]
    """By position: the chips that a placement could still make the best."""


def raise_by_floors(
    context: Context, chips: Chips, rows: FloatArray, open_: NDArray[np.bool_]
) -> None:
    """Raise the open nodes' bounds to the floors of their operators: what the cost model knows
    without search. No chip with the same cores and arrays, and no more lanes, clocks, buffer or
    bandwidth, has lower ones.
    """
    chip, variant = (np.ascontiguousarray(axis) for axis in np.nonzero(open_))
    # What a limit on power leaves is not least on the fastest chip.
    context = replace(context, setting=replace(context.setting, limit=None))
    least_s = _Nodes.of(context, chips, chip, variant, floors=True).floors()
    step_s = context.layouts.step_s(least_s, variant)
    rows[chip, variant] = np.maximum(rows[chip, variant], step_s)


def bound_chips(
    context: Context,
    chips: Chips,
    rows: FloatArray,
    open_: NDArray[np.bool_],
    threshold: FloatArray,
    cutoff_s: FloatArray,
) -> Bounded:
    """Operator costs and schedule bounds for the open nodes of these chips, from cheap to dear:
    each only of nodes that those before leave a chance. Each chip has to score above its threshold
    (before its price); with one model, a step of its `cutoff_s` leaves none.
    """
    # Contiguous, as everywhere: another layout would compile the kernels a second time.
    chip, variant = (np.ascontiguousarray(axis) for axis in np.nonzero(open_))
    rows = rows.copy()

    def hopeful(least_s: FloatArray) -> NDArray[np.bool_]:
        """Raise the bounds to layers that take no less; which nodes still have a chance."""
        step_s = context.layouts.step_s(least_s, variant)
        rows[chip, variant] = np.maximum(rows[chip, variant], step_s)
        found: NDArray[np.bool_] = (context.rule.scores(rows) > threshold)[chip]
        return found & (rows[chip, variant] < cutoff_s[chip])

    if cost_model(chips, context.setting.profile).floors is not None:
        kept = hopeful(_Nodes.of(context, chips, chip, variant, floors=True).floors())
        chip, variant = chip[kept], variant[kept]
    if len(chip) == 0:
        return Bounded(rows, {})
    nodes = _Nodes.of(context, chips, chip, variant)
    kept = hopeful(nodes.floors())
    chip, variant, nodes = chip[kept], variant[kept], nodes.some(kept)
    priced = nodes.priced
    lower, upper = priced.schedule_bounds(nodes.chip, nodes.variant)
    check_layers(priced, nodes.chip, nodes.variant, upper)
    kept = hopeful(lower)
    chip, variant, nodes = chip[kept], variant[kept], nodes.some(kept)
    lower, upper = lower[kept], upper[kept]
    forward = priced.forward_s(nodes.chip, nodes.variant)
    hbm, glb = variant_traffic(priced, nodes.repeats)
    hbm, glb = (bytes_[nodes.chip, nodes.variant] for bytes_ in (hbm, glb))
    found = {}
    for position in np.unique(chip):
        its = slice(*np.searchsorted(chip, [position, position + 1]))
        found[int(position)] = ChipNodes(
            float(chips.hbm_capacity_bytes[position]),
            float(chips.stream_Bps[position]),
            variant[its],
            lower[its],
            upper[its],
            forward[its],
            hbm[its],
            glb[its],
        )
    return Bounded(rows, found)


@dataclass(frozen=True, eq=False)
class _Nodes:
    """Pairs of a chip and a variant, in the numbers of what was priced for them alone."""

    priced: Priced
    repeats: FloatArray
    chip: IntArray
    variant: IntArray

    @staticmethod
    def of(
        context: Context, chips: Chips, chip: IntArray, variant: IntArray, *, floors: bool = False
    ) -> _Nodes:
        # Most variants are ruled out on all these chips: operators of theirs alone go unpriced.
        (used, chip), (part, variant) = (
            np.unique(axis, return_inverse=True) for axis in (chip, variant)
        )
        variants, repeats = _part(context.variants, tuple(part.tolist()))
        priced = Priced.of(chips.subset(used), variants, context.setting, floors=floors)
        return _Nodes(priced, repeats, chip, variant)

    def some(self, kept: NDArray[np.bool_]) -> _Nodes:
        return replace(self, chip=self.chip[kept], variant=self.variant[kept])

    def floors(self) -> FloatArray:
        return self.priced.floors(self.chip, self.variant)


@dataclass(frozen=True, eq=False)
class ChipTask:
    """One chip to place, with what was known when the task was sent."""

    nodes: ChipNodes
    trial: Trial


def place_chips(context: Context, tasks: Sequence[ChipTask]) -> list[Answers]:
    """The placements that a trial of each chip asks for; see `trial.try_chip`."""
    return [_asked(context, task) for task in tasks]


def _asked(context: Context, task: ChipTask) -> Answers:
    asked: Answers = {}

    def record(kind: str, variant: int, limit: float) -> Division | None:
        found = place_node(context, task.nodes, kind, variant, limit)
        asked[(kind, variant)] = (limit, found)
        return found

    try_chip(context.rule, task.trial, record)
    return asked


def place_node(
    context: Context, nodes: ChipNodes, kind: str, variant: int, limit: float
) -> Division | None:
    """The fastest placement below the limit, with the node's lower or upper times."""
    position = nodes.position(variant)
    own = context.variants.variants[variant]
    pass_s = (nodes.lower_s if kind == "lower" else nodes.upper_s)[position]
    times = times_of(own, pass_s, nodes.forward_s[position, : own.facts.operator_count])
    problem = context.setting.problem(own, nodes.memory_bytes, nodes.hbm_Bps)
    return context.setting.place(problem, times, limit)


Schedules = list[tuple[Schedule, Schedule]]
"""Forward and backward, of every layer."""


@dataclass(frozen=True, eq=False)
class Solved:
    """One node whose schedules were solved with more effort."""

    least_s: float
    """No plan of the node is faster; infinite where nothing fits."""
    division: Division | None
    schedules: Schedules
    pass_s: FloatArray
    hbm_bytes: float
    glb_bytes: float


def solve_node(
    context: Context, chip: Chips, variant: int, effort: Effort, limit_s: float
) -> Solved:
    """Schedules of one chip's variant with more effort, and the placements that follow; no more
    than shows that the node's steps are not below the limit."""
    alone, repeats = _part(context.variants, (variant,))
    priced = Priced.of(chip, alone, context.setting)
    own = alone.variants[0]
    solved = priced.schedules(0, own, effort, context.rule.tolerance / 4.0, limit_s, context.stop)
    lower, upper = priced.pass_bounds(0, own, [one for pair in solved for one in pair])
    least, most = priced.place(0, own, lower), priced.place(0, own, upper)
    hbm, glb = variant_traffic(priced, repeats)
    return Solved(
        least_s=np.inf if least is None else least.step_time_s,
        division=most,
        schedules=solved,
        pass_s=upper,
        hbm_bytes=float(hbm[0, 0]),
        glb_bytes=float(glb[0, 0]),
    )


@lru_cache(maxsize=256)
def _part(variants: Variants, numbers: tuple[int, ...]) -> tuple[Variants, FloatArray]:
    """Some of the variants, and how often each of their operators runs; kept for the next chip."""
    found = variants.part(numbers)
    return found, operator_repeats(found)
