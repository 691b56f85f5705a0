"""The pure tasks of a search, which any process may run: bounds, placements, schedules.

The result of a task depends only on the search's context, which every worker has, and on its
arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np

from atoll.base.arrays import Bools, Floats, Ints
from atoll.base.stopping import Stop
from atoll.cost.chips import Chips
from atoll.cost.table import cost_model
from atoll.explore.pricing.bounds import VariantLayoutBounds
from atoll.explore.pricing.energy import variant_traffic
from atoll.explore.pricing.evaluate import PricedChips, times_of
from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.pricing.operator_work import OperatorWork
from atoll.explore.pricing.workloads import Variants
from atoll.explore.proof.bound_checks import check_layers
from atoll.explore.proof.trial import Rule, SolvedPlacements, Trial, try_chip
from atoll.placement.chain import Division
from atoll.schedule.problem import Schedule
from atoll.schedule.solve import Effort


@dataclass(frozen=True, eq=False)
class SearchContext:
    """The arguments common to all tasks of a search."""

    variants: Variants
    setting: SearchSetting
    rule: Rule
    work: OperatorWork
    layouts: VariantLayoutBounds
    repeats: Floats  # (variants, operators): runs of every distinct operator per microbatch
    stop: Stop


@dataclass(eq=False)
class PricedNodes:
    """A chip with its variants that are still open, to solve their schedules with more effort."""

    chips: Chips
    chip: int  # the chip's position in `chips`
    variants: Ints
    priced: PricedChips | None = None
    """Prices of all the chips; None in another process than the one that computed them."""
    pass_s: dict[int, tuple[Floats, Floats]] = field(default_factory=dict)
    """By variant, bounds on its passes from schedules solved with linear effort."""

    def __getstate__(self) -> dict[str, object]:
        single = self.chips.subset(np.array([self.chip]))
        return {"chips": single, "chip": 0, "variants": self.variants, "priced": None, "pass_s": {}}


@dataclass(frozen=True, eq=False)
class ChipNodes:
    """A chip with the variants that could still be part of a better design."""

    memory_bytes: float
    hbm_Bps: float
    variant: Ints
    lower_s: Floats  # (nodes, layers, forward and backward): lower bound
    upper_s: Floats  # the same: time of a schedule
    forward_s: Floats  # (nodes, operators of the blocks' forward passes)
    hbm_bytes: Floats  # (nodes,): per microbatch on a device
    glb_bytes: Floats
    priced: PricedNodes | None = None  # where schedules may be solved with more effort

    def position(self, variant: int) -> int:
        return int(np.flatnonzero(self.variant == variant)[0])


def raise_by_floors(context: SearchContext, chips: Chips, rows: Floats, open_: Bools) -> None:
    """Raise the open nodes' bounds to the floors of their operators, which the cost model computes
    without a mapping search. They also hold for chips with the same cores and arrays and no more
    lanes, clock, buffer or bandwidth."""
    chip, variant = (np.ascontiguousarray(axis) for axis in np.nonzero(open_))
    # Floors under a limit on power are not lowest on the fastest chip.
    context = replace(context, setting=replace(context.setting, limit=None))
    least_s = _Nodes.of(context, chips, chip, variant, floors=True).floors()
    rows[chip, variant] = np.maximum(rows[chip, variant], context.layouts.step_s(least_s, variant))


def bound_chips(
    context: SearchContext,
    chips: Chips,
    rows: Floats,
    open_: Bools,
    threshold: Floats,
    cutoff_s: Floats,
    keep_prices: bool = False,
) -> tuple[Floats, dict[int, ChipNodes]]:
    """Compute operator costs and schedule bounds of the open nodes, cheap ones first, each only for
    nodes still open. A chip must score above its threshold (before its price); with one model its
    step must be below `cutoff_s`.

    Return the lower bounds on step times (chips, variants), and by position the chips that could
    still become the best.
    """
    # Contiguous: another memory layout would compile the kernels a second time.
    chip, variant = (np.ascontiguousarray(axis) for axis in np.nonzero(open_))
    rows = rows.copy()

    def hopeful(least_s: Floats) -> Bools:
        """Raise the bounds by these layer times; return which nodes are still open."""
        step_s = context.layouts.step_s(least_s, variant)
        rows[chip, variant] = np.maximum(rows[chip, variant], step_s)
        beats: Bools = (context.rule.scores(rows) > threshold)[chip]
        return beats & (rows[chip, variant] < cutoff_s[chip])

    if cost_model(chips, context.setting.profile).floors is not None:
        open_nodes = hopeful(_Nodes.of(context, chips, chip, variant, floors=True).floors())
        chip, variant = chip[open_nodes], variant[open_nodes]
    if len(chip) == 0:
        return rows, {}
    nodes = _Nodes.of(context, chips, chip, variant)
    open_nodes = hopeful(nodes.floors())
    chip, variant, nodes = chip[open_nodes], variant[open_nodes], nodes.subset(open_nodes)
    priced = nodes.priced
    lower, upper = priced.schedule_bounds(nodes.chip, nodes.variant)
    check_layers(priced, nodes.chip, nodes.variant, upper)
    open_nodes = hopeful(lower)
    chip, variant, nodes = chip[open_nodes], variant[open_nodes], nodes.subset(open_nodes)
    lower, upper = lower[open_nodes], upper[open_nodes]
    forward = priced.forward_s(nodes.chip, nodes.variant)
    hbm, glb = variant_traffic(priced, nodes.repeats)
    hbm, glb = (bytes_[nodes.chip, nodes.variant] for bytes_ in (hbm, glb))
    nodes_by_chip = {}
    for position in np.unique(chip):
        span = slice(*np.searchsorted(chip, [position, position + 1]))
        memory = float(chips.hbm_capacity_bytes[position]), float(chips.stream_Bps[position])
        columns: list[Any] = [part[span] for part in (variant, lower, upper, forward, hbm, glb)]
        if keep_prices:
            single = int(nodes.chip[span.start])
            columns.append(PricedNodes(priced.chips, single, nodes.numbers, priced))
        nodes_by_chip[int(position)] = ChipNodes(*memory, *columns)
    return rows, nodes_by_chip


@dataclass(frozen=True, eq=False)
class _Nodes:
    """Pairs of a chip and a variant, numbered within `priced`."""

    priced: PricedChips
    repeats: Floats
    chip: Ints
    variant: Ints
    numbers: Ints  # numbers of the priced variants among all

    @staticmethod
    def of(
        context: SearchContext, chips: Chips, chip: Ints, variant: Ints, *,
        floors: bool = False,
    ) -> _Nodes:  # fmt: skip
        # Most variants are ruled out on all these chips: their operators are not priced.
        (used, chip), (part, variant) = (
            np.unique(axis, return_inverse=True) for axis in (chip, variant)
        )
        variants, work, repeats = _subset(context, tuple(part.tolist()))
        priced = PricedChips.of(
            chips.subset(used), variants, context.setting, work, floors=floors,
            nodes=(chip, variant),
        )  # fmt: skip
        return _Nodes(priced, repeats, chip, variant, part)

    def subset(self, chosen: Bools) -> _Nodes:
        return replace(self, chip=self.chip[chosen], variant=self.variant[chosen])

    def floors(self) -> Floats:
        return self.priced.floors(self.chip, self.variant)


ChipTask = tuple[ChipNodes, Trial]  # A chip to place, with the incumbent when the task was sent


def place_chips(context: SearchContext, tasks: Sequence[ChipTask]) -> list[SolvedPlacements]:
    """Return the placements that the trial of every chip needs; see `trial.try_chip`."""
    return [_placements_of_trial(context, nodes, trial) for nodes, trial in tasks]


def _placements_of_trial(
    context: SearchContext, nodes: ChipNodes, trial: Trial
) -> SolvedPlacements:
    placements: SolvedPlacements = {}

    def record(kind: str, variant: int, limit: float) -> Division | None:
        division = place_node(context, nodes, kind, variant, limit)
        placements[(kind, variant)] = (limit, division)
        return division

    try_chip(context.rule, trial, record)
    return placements


def place_node(
    context: SearchContext, nodes: ChipNodes, kind: str, variant: int, limit: float
) -> Division | None:
    """Return the fastest placement below the limit, with the node's lower or upper times."""
    position = nodes.position(variant)
    chosen = context.variants.variants[variant]
    if kind.startswith("linear"):
        lower_s, upper_s = linear_pass_s(context, nodes, variant)
    else:
        lower_s, upper_s = nodes.lower_s[position], nodes.upper_s[position]
    pass_s, most_s = (lower_s, upper_s) if kind.endswith("lower") else (upper_s, None)
    forward_s = nodes.forward_s[position, : chosen.facts.operator_count]
    times = times_of(chosen, pass_s, forward_s, most_s)
    problem = context.setting.problem(chosen, nodes.memory_bytes, nodes.hbm_Bps)
    return context.setting.place(problem, times, limit)


def linear_pass_s(context: SearchContext, nodes: ChipNodes, variant: int) -> tuple[Floats, Floats]:
    """Return bounds on a node's passes from schedules solved with linear effort."""
    of = nodes.priced
    assert of is not None
    if of.priced is None:
        variants, work, _ = _subset(context, tuple(of.variants.tolist()))
        of.priced = PricedChips.of(of.chips, variants, context.setting, work)
    if variant not in of.pass_s:
        node = of.priced.variants.variants[int(np.searchsorted(of.variants, variant))]
        schedules = of.priced.schedules(of.chip, node, "linear", context.rule.tolerance / 4.0)
        of.pass_s[variant] = of.priced.pass_bounds(of.chip, node, schedules)
    return of.pass_s[variant]


@dataclass(frozen=True, eq=False)
class SolvedNode:
    """A node whose schedules were solved with more effort."""

    least_s: float  # lower bound on its step time; infinite where nothing fits
    division: Division | None
    schedules: list[Schedule]  # forward and backward schedules of every layer
    pass_s: Floats
    hbm_bytes: float
    glb_bytes: float


def solve_node(
    context: SearchContext, chip: Chips, variant: int, effort: Effort, limit_s: float
) -> SolvedNode:
    """Solve a node's schedules with more effort, up to the step limit, then its placements."""
    single, work, repeats = _subset(context, (variant,))
    priced = PricedChips.of(chip, single, context.setting, work)
    node, tolerance = single.variants[0], context.rule.tolerance / 4.0
    schedules = priced.schedules(0, node, effort, tolerance, limit_s, context.stop)
    lower, upper = priced.pass_bounds(0, node, schedules)
    least = priced.place(0, node, lower, most_s=upper)
    hbm, glb = variant_traffic(priced, repeats)
    return SolvedNode(
        least_s=np.inf if least is None else least.step_time_s,
        division=priced.place(0, node, upper),
        schedules=schedules,
        pass_s=upper,
        hbm_bytes=float(hbm[0, 0]),
        glb_bytes=float(glb[0, 0]),
    )


def _subset(
    context: SearchContext, numbers: tuple[int, ...]
) -> tuple[Variants, OperatorWork, Floats]:
    """Return some of the variants, and the work and repeats of their operators."""
    part = _part(context.variants, numbers)
    rows = part.passes.rows
    return part, context.work.subset(rows), context.repeats[list(numbers)].take(rows, axis=1)


@lru_cache(maxsize=256)
def _part(variants: Variants, numbers: tuple[int, ...]) -> Variants:
    """Return some of the variants, cached for the next chip."""
    return variants.part(numbers)
