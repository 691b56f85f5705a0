"""Spaces too large for memory: bounded in groups, brought in best first.

A group is every point with the same first few parameters (tensor cores, vector cores, width, ...).
The fastest corner of a group, whatever its area, bounds all its chips. Groups come into memory when
their bound is among the best that are left; of those that never do, the bound is the proof.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from atoll.cost.chips import Chips, chips_of_space, distinct_rows, losses
from atoll.errors import InfeasibleError
from atoll.explore.pricing.bounds import LayoutBounds, chip_rates, layer_rooflines, roofline_bounds
from atoll.explore.pricing.layouts import Setting
from atoll.explore.pricing.work import OperatorWork, operator_work
from atoll.explore.pricing.workloads import Variants
from atoll.explore.proof.frontier import Frontier
from atoll.explore.proof.trial import Rule
from atoll.hardware.product import ProductSpace
from atoll.hardware.space import Limits, Space, allowed_options
from atoll.stopping import Stop, go_on

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

MOST_GROUPS = 1 << 17
PIECE_POINTS = 1 << 17
"""Points that are built at once: bounds the memory of those that do not come in."""


def open_frontier(
    space: Space | ProductSpace, variants: Variants, setting: Setting, rule: Rule, stop: Stop
) -> tuple[Frontier, Reserve | None, LayoutBounds, OperatorWork]:
    """Rooflines of every chip of a space; or of the groups of a large one."""
    go_on(stop)
    lost = losses(setting.profile, space.template, space.template.stalls)
    operations = lost.operations or setting.profile.vector_operations
    work = operator_work(variants.passes.keys, setting.network, operations)
    if isinstance(space, ProductSpace):
        reserve = Reserve(space, variants, setting, rule, work)
        return reserve.first_frontier(stop), reserve, reserve.layouts, work
    chips = chips_of_space(space, setting.profile, rule.objective.by_memory)
    memory_bytes = float(chips.hbm_capacity_bytes.max())
    layouts, lower_s = roofline_bounds(chip_rates(chips), memory_bytes, variants, setting, work)
    own = rule.memories(space, setting)
    price = rule.objective.prices(space, chips, own)
    frontier = Frontier(
        chips, chip_ids(chips, len(own)), lower_s, price, np.zeros(len(chips), np.int8)
    )
    return frontier, None, layouts, work


class Reserve:
    """The groups of a space that are not in memory, the most promising first."""

    def __init__(
        self,
        space: ProductSpace,
        variants: Variants,
        setting: Setting,
        rule: Rule,
        work: OperatorWork,
    ) -> None:
        self._space, self._variants, self._setting = space, variants, setting
        self._rule, self._work = rule, work
        self.points = len(space)
        self._memories = rule.memories(space, setting)
        group, rates, price = self._corners()
        memory_bytes = float(max(option.capacity_bytes for option in space.hbm_options))
        self.layouts, lower_s = roofline_bounds(rates, memory_bytes, variants, setting, work)
        scores = rule.scores(lower_s) / price
        order = np.argsort(-scores, kind="stable")
        self._group, self._score = group[order], scores[order]
        self._next = 0
        self.scheduled: list[IntArray] = []
        """Designs that left memory after their schedule bound."""

    def _corners(self) -> tuple[IntArray, FloatArray, FloatArray]:
        """Groups that may hold a design, the peak rates that none of their chips exceeds, and the
        price that none is below.
        """
        axes = self._space.axes
        lists = [np.asarray(values) for values in axes.lists()]
        sizes = [len(values) for values in lists]
        depth = max(k for k in range(len(sizes) + 1) if np.prod(sizes[:k]) <= MOST_GROUPS)
        self._group_points = int(np.prod(sizes[depth:], dtype=np.int64))
        count = int(np.prod(sizes[:depth], dtype=np.int64))
        prefix = np.unravel_index(np.arange(count), sizes[:depth]) if depth else ()
        # Rates, area and power grow with every parameter: where the smallest corner takes too much
        # with any memory, all do.
        most, least = (
            axes.columns(
                values[prefix[i]] if i < depth else np.full(count, pick(values))
                for i, values in enumerate(lists)
            )
            for pick in (np.max, np.min)
        )
        clock_Hz = most["clock_Hz"].astype(np.float64)
        profile = self._setting.profile
        lost = losses(profile, axes.template, axes.template.stalls)
        fastest_Bps = max(profile.hbm_Bps(hbm.bandwidth_Bps) for hbm in self._space.hbm_options)
        rates = np.column_stack(
            [
                most["tensor_cores"] * most["width"] * most["depth"] * clock_Hz * lost.array,
                most["vector_cores"] * most["vector_width"] * clock_Hz,
                np.full(count, fastest_Bps * lost.hbm),
                np.zeros(count),  # a core's buffer, and so its round, does not grow with its depth
                np.full(count, lost.start_s),
                np.full(count, lost.exposed),
            ]
        )
        limits, corners = self._space.limits, self._space.of_columns(least)
        most_of = Limits(max_area_mm2=limits.max_area_mm2, max_power_W=limits.max_power_W)
        kept = np.flatnonzero(allowed_options(corners, most_of).any(axis=1))
        if len(kept) == 0:
            raise self._empty()
        return kept, rates[kept], self._least_prices(corners)[kept]

    def _least_prices(self, corners: Space) -> FloatArray:
        """Prices grow with every parameter: those of the smallest corners with any memory."""
        price = self._rule.objective.price
        if price is None:
            return np.ones(len(corners))
        prices = [price.of_designs(corners, hbm) for hbm in corners.hbm_options]
        return np.asarray(np.min(prices, axis=0))

    def first_frontier(self, stop: Stop) -> Frontier:
        """The best group that has a design at all."""
        while self._next < len(self._group):
            go_on(stop)
            frontier = self._built(1, threshold=-1.0)
            if frontier is not None:
                return frontier
        raise self._empty()

    def _empty(self) -> InfeasibleError:
        return InfeasibleError(
            f"space {self._space.name} is empty: no point of its {self.points:,} satisfies its "
            "constraints; loosen one."
        )

    def bound(self) -> float:
        """No chip outside memory scores higher."""
        return float(self._score[self._next]) if self._next < len(self._score) else 0.0

    def open_points(self, threshold: float) -> int:
        """Points outside memory that no bound has ruled out."""
        return int((self._score[self._next :] > threshold).sum()) * self._group_points

    def admit(
        self, frontier: Frontier, scores: FloatArray, threshold: float, size: int, stop: Stop
    ) -> tuple[Frontier, IntArray] | None:
        """Bring in whatever may be among the `size` best chips that are not yet bounded.

        Chips that can no longer win leave. The new frontier, and where each old chip is in it (-1:
        nowhere); None where nothing changed.
        """
        lost = (scores <= threshold) & (frontier.stage < 2)
        wanted = self._wanted(frontier, scores, threshold, size)
        if self.bound() <= wanted and lost.sum() * 2 < len(scores):
            return None
        self.scheduled.append(np.unique(frontier.chips.design[lost & (frontier.stage == 1)]))
        kept = np.flatnonzero(~lost)
        moved = np.full(len(scores), -1, np.int64)
        moved[kept] = np.arange(len(kept))
        frontier, scores = frontier.kept(kept), scores[kept]
        while self.bound() > self._wanted(frontier, scores, threshold, size) and not stop():
            groups = max(1, PIECE_POINTS // self._group_points)
            more = self._built(groups, threshold)
            if more is not None:
                frontier = frontier.joined(more)
                found = self._rule.scores(more.lower_s) / more.price
                scores = np.concatenate([scores, found])
        return frontier, moved

    def _wanted(self, frontier: Frontier, scores: FloatArray, threshold: float, size: int) -> float:
        """A chip has to score higher to be among the next `size`."""
        waiting = scores[(frontier.stage == 0) & (scores > threshold)]
        if len(waiting) < size:
            return threshold
        return float(np.partition(waiting, len(waiting) - size)[len(waiting) - size])

    def _built(self, groups: int, threshold: float) -> Frontier | None:
        """The chips of the next groups that score above the threshold; None if there are none."""
        chosen = self._group[self._next : self._next + groups]
        chosen = chosen[self._score[self._next : self._next + groups] > threshold]
        self._next += max(1, len(chosen))
        within = np.arange(self._group_points)
        flat = np.sort((chosen[:, None] * self._group_points + within).ravel())
        return self._bounded(flat, threshold)

    def bring(self, frontier: Frontier, ids: list[int]) -> Frontier:
        """The frontier with these chips in it, as far as the constraints allow them."""
        missing = np.setdiff1d(np.array(ids, np.int64), frontier.ids)
        more = self._bounded(np.unique(missing // len(self._memories)), threshold=-1.0)
        if more is None:
            return frontier
        more = more.kept(np.flatnonzero(np.isin(more.ids, missing)))
        return frontier.joined(more)

    def _bounded(self, flat: IntArray, threshold: float) -> Frontier | None:
        """The chips at these points whose roofline is above the threshold, if there are any."""
        space, places = self._space.designs(flat)
        if len(space) == 0:
            return None
        chips = chips_of_space(space, self._setting.profile, self._rule.objective.by_memory)
        price = self._rule.objective.prices(space, chips, self._memories)
        rates, number = distinct_rows(chip_rates(chips))
        pass_s = layer_rooflines(rates, self._variants, self._setting, self._work)
        lower_s = self.layouts.all_variants_s(pass_s)
        kept = np.flatnonzero(self._rule.scores(lower_s)[number] / price > threshold)
        if len(kept) == 0:
            return None
        design = places[chips.design[kept]]
        chips = replace(chips.subset(kept), design=design)
        ids = chip_ids(chips, len(self._memories))
        stage = np.zeros(len(kept), np.int8)
        return Frontier(chips, ids, lower_s[number[kept]], price[kept], stage)


def chip_ids(chips: Chips, memories: int) -> IntArray:
    """A number for each chip that it keeps whatever else is in memory: design and memory."""
    return np.asarray(chips.design * memories + chips.memory)
