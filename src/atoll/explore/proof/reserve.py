"""All chips in memory, and spaces too large for it: bounded in boxes, loaded best first.

A box (`boxes`) is halved while its bound is among the best that are left. Its bound is the roofline
of its fastest corner; once it has a single choice of arrays and cores, also the floors of its
operators on that corner's clock, lanes and buffer. A box that differs in the buffer only is loaded;
for boxes that never are, the bound is the proof.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import Bools, Floats, Ints
from atoll.base.errors import InfeasibleError
from atoll.base.stopping import Stop, check_stop
from atoll.cost.chips import Chips, chips_of_space, distinct_rows, join_chips, losses
from atoll.cost.model import MAPPER
from atoll.cost.table import cost_model
from atoll.explore.pricing.bounds import chip_rates, layer_rooflines, roofline_bounds
from atoll.explore.pricing.energy import operator_repeats
from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.pricing.limit import step_floors_s
from atoll.explore.pricing.operator_work import OperatorWork, operator_work
from atoll.explore.pricing.workloads import Variants
from atoll.explore.proof.boxes import Boxes, SpaceGrid
from atoll.explore.proof.journal import EvaluatedPlan
from atoll.explore.proof.tasks import SearchContext, raise_by_floors
from atoll.explore.proof.trial import Rule
from atoll.hardware.product_space import ProductSpace, SearchedSpace


@dataclass
class Frontier:
    """Chips with their bounds and evaluated plans."""

    chips: Chips
    ids: Ints  # chip numbers in the complete space, which never change
    lower_s: Floats  # (chips, variants): lower bound on the step time
    price: Floats  # divisor of a chip's throughput; ones without a price
    stage: NDArray[np.int8]
    """Per chip, the strongest bound that was computed: 0 roofline, 1 schedule, 2 placement."""
    plans: dict[int, dict[int, EvaluatedPlan]] = field(default_factory=dict)  # by chip, model

    def subset(self, chips: Ints) -> Frontier:
        """Return these chips, renumbered."""
        position = {int(old): new for new, old in enumerate(chips)}
        plans = {position[chip]: p for chip, p in self.plans.items() if chip in position}
        ids, lower_s, price, stage = (column[chips] for column in self._columns)
        return Frontier(self.chips.subset(chips), ids, lower_s, price, stage, plans)

    def joined(self, more: Frontier) -> Frontier:
        """Return the frontier with more chips appended."""
        both = zip(self._columns, more._columns, strict=True)
        ids, lower_s, price, stage = (np.concatenate(parts) for parts in both)
        chips = join_chips(self.chips, more.chips)
        return Frontier(chips, ids, lower_s, price, stage, self.plans)

    @property
    def _columns(self) -> tuple[NDArray[Any], ...]:
        return self.ids, self.lower_s, self.price, self.stage


PIECE_BOXES = 1024  # boxes that are halved at once, to limit the memory for their corners' costs
BEAM = 4  # boxes that are halved to the end for the first chips in memory


def open_frontier(
    space: SearchedSpace,
    variants: Variants,
    setting: SearchSetting,
    rule: Rule,
    stop: Stop,
) -> tuple[Frontier, Reserve | None, SearchContext]:
    """Return the rooflines of every chip of a space, or of the first chips of a large space."""
    check_stop(stop)
    lost = losses(setting.profile, space.template, space.template.stalls)
    operations = lost.operations or setting.profile.vector_operations
    work = operator_work(variants.passes.keys, setting.network, operations)
    if isinstance(space, ProductSpace):
        reserve = Reserve(space, variants, setting, rule, work, stop)
        return reserve.first_frontier(), reserve, reserve.context
    chips = chips_of_space(space, setting.profile, rule.objective.by_memory)
    memory_bytes = float(chips.hbm_capacity_bytes.max())
    layouts, lower_s = roofline_bounds(chip_rates(chips), memory_bytes, variants, setting, work)
    repeats = operator_repeats(variants)
    lower_s = np.maximum(lower_s, step_floors_s(chips, variants, setting, work, repeats))
    memories = rule.memories(space, setting)
    price = rule.objective.prices(space, chips, memories)
    frontier = Frontier(
        chips, chip_ids(chips, len(memories)), lower_s, price, np.zeros(len(chips), np.int8)
    )
    return frontier, None, SearchContext(variants, setting, rule, work, layouts, repeats, stop)


class Reserve:
    """The boxes of a large space whose chips are not in memory."""

    def __init__(
        self,
        space: ProductSpace,
        variants: Variants,
        setting: SearchSetting,
        rule: Rule,
        work: OperatorWork,
        stop: Stop,
    ) -> None:
        self._space = space
        self.points = len(space)
        self._memories = rule.memories(space, setting)
        self._price = rule.objective.price
        self.grid = SpaceGrid(space, self._memories)
        corners = self.grid.root_boxes(len(variants.variants))
        if len(corners) == 0:
            raise self._empty()
        memory_bytes = float(max(option.capacity_bytes for option in space.hbm_options))
        chips = self.grid.chips(corners, setting.profile, rule.objective.by_memory)
        layouts, lower_s = roofline_bounds(chip_rates(chips), memory_bytes, variants, setting, work)
        repeats = operator_repeats(variants)
        self.context = SearchContext(variants, setting, rule, work, layouts, repeats, stop)
        score = rule.scores(lower_s) / self._least_prices(corners)
        self.root_boxes = replace(corners, lower_s=lower_s, score=score)
        """The space as one box per memory."""
        self._boxes = self.root_boxes
        # In other cost models less of a parameter may be faster.
        self._floors = cost_model(chips, setting.profile) is MAPPER and self.grid.plain
        self._closed_bound = 0.0
        self.ruled_out: Counter[str] = Counter()
        """Pairs of point and memory that were ruled out with their boxes, by rule."""
        pairs = self.points * len(self._memories)
        self.ruled_out["limits"] = pairs - int(self.root_boxes.points.sum())
        self.scheduled: list[Ints] = []
        """Designs that left memory after their schedule bound."""

    def first_frontier(self) -> Frontier:
        """Return the chips of the most promising boxes (beam search) as first designs."""
        while len(self._boxes):
            beam, ends = self._pop_best(BEAM, -1.0), []
            while len(beam):
                check_stop(self.context.stop)
                done = self.grid.differ_in_buffer_only(beam)
                ends.append(beam.subset(done))
                halves = self.halved(beam.subset(~done), -1.0)
                order = np.argsort(-halves.score, kind="stable")
                beam = halves.subset(order[:BEAM])
                self._boxes = self._boxes.joined(halves.subset(order[BEAM:]))
            built = [f for box in ends if (f := self._build_chips(box)) is not None]
            if built:
                first = built[0]
                for later in built[1:]:
                    first = first.joined(later)
                return first
        raise self._empty()

    def _empty(self) -> InfeasibleError:
        return InfeasibleError(
            f"space {self._space.name} is empty: no point of its {self.points:,} satisfies its "
            "constraints; loosen one."
        )

    def bound(self) -> float:
        """Return an upper bound on the score of all chips that are or were outside memory."""
        return max(self.waiting(), self._closed_bound)

    def waiting(self) -> float:
        """Return an upper bound on the score of the open chips outside memory."""
        return float(self._boxes.score.max(initial=0.0))

    def open_points(self, threshold: float) -> int:
        """Return the number of points outside memory that no bound has ruled out."""
        return int(self._boxes.points[self._boxes.score > threshold].sum())

    def admit(
        self, frontier: Frontier, scores: Floats, threshold: float, size: int
    ) -> tuple[Frontier, Ints] | None:
        """Load the chips that may be among the `size` best not yet bounded; drop those ruled out.

        Returns the new frontier and the old chips' positions in it (-1: dropped); None where
        nothing changed.
        """
        lost = (scores <= threshold) & (frontier.stage < 2)
        wanted = self._wanted(frontier, scores, threshold, size)
        if self.waiting() <= wanted and lost.sum() * 2 < len(scores):
            return None
        self.scheduled.append(np.unique(frontier.chips.design[lost & (frontier.stage == 1)]))
        self._closed_bound = max(self._closed_bound, float(scores[lost].max(initial=0.0)))
        remaining = np.flatnonzero(~lost)
        moved = np.full(len(scores), -1, np.int64)
        moved[remaining] = np.arange(len(remaining))
        frontier, scores = frontier.subset(remaining), scores[remaining]
        while not self.context.stop() and (
            self.waiting() > self._wanted(frontier, scores, threshold, size)
        ):
            best_boxes = self._pop_best(PIECE_BOXES, threshold)
            done = self.grid.differ_in_buffer_only(best_boxes)
            self._boxes = self._boxes.joined(self.halved(best_boxes.subset(~done), threshold))
            added = self._build_chips(best_boxes.subset(done))
            if added is not None:
                frontier = frontier.joined(added)
                added_scores = self.context.rule.scores(added.lower_s) / added.price
                scores = np.concatenate([scores, added_scores])
        return frontier, moved

    def _wanted(self, frontier: Frontier, scores: Floats, threshold: float, size: int) -> float:
        """Return the score above which a chip is among the next `size`."""
        waiting = scores[(frontier.stage == 0) & (scores > threshold)]
        if len(waiting) < size:
            return threshold
        return float(np.partition(waiting, len(waiting) - size)[len(waiting) - size])

    def _pop_best(self, count: int, threshold: float) -> Boxes:
        """Remove and return the boxes of the highest bounds; drop those ruled out."""
        boxes = self._boxes
        self._close("roofline", boxes.subset(boxes.score <= threshold))
        boxes = boxes.subset(boxes.score > threshold)
        order = np.argsort(-boxes.score, kind="stable")
        self._boxes = boxes.subset(order[count:])
        return boxes.subset(order[:count])

    def _close(self, rule: str, boxes: Boxes) -> None:
        self._closed_bound = max(self._closed_bound, float(boxes.score.max(initial=0.0)))
        self.ruled_out[rule] += int(boxes.points.sum())

    def halved(self, boxes: Boxes, threshold: float) -> Boxes:
        """Return the halves of boxes with their bounds, where these are above the threshold."""
        if len(boxes) == 0:
            return boxes
        halves = self.grid.halves(boxes)
        self.ruled_out["limits"] += int(boxes.points.sum() - halves.points.sum())
        if len(halves) == 0:
            return halves
        chips = self.grid.chips(halves, self.context.setting.profile, self._by_memory)
        price = self._least_prices(halves)
        rows = halves.lower_s.copy()
        self._raise_by_power(halves, chips, rows)
        self._raise_by_rooflines(chips, rows, self._open(rows, price, threshold))
        scores = self.context.rule.scores(rows) / price
        halves = replace(halves, lower_s=rows, score=scores)
        self._close("roofline", halves.subset(scores <= threshold))
        open_boxes = np.flatnonzero(scores > threshold)
        halves, price = halves.subset(open_boxes), price[open_boxes]
        if not self._floors:
            return halves
        shaped = self.grid.have_single_shape(halves)
        open_ = self._open(halves.lower_s, price, threshold) & shaped[:, None]
        if not open_.any():
            return halves
        raise_by_floors(self.context, chips.subset(open_boxes), halves.lower_s, open_)
        scores = self.context.rule.scores(halves.lower_s) / price
        halves = replace(halves, score=scores)
        self._close("operator floors", halves.subset(scores <= threshold))
        return halves.subset(scores > threshold)

    @property
    def _by_memory(self) -> bool:
        return self.context.rule.objective.by_memory

    def _open(self, rows: Floats, price: Floats, threshold: float) -> Bools:
        """Return which (box, variant) pairs could still be part of a better design."""
        if len(self.context.rule.by_model) > 1:
            return np.isfinite(rows)
        with np.errstate(divide="ignore"):
            scores = self.context.rule.objective.scores(rows.reshape(-1, 1)).reshape(rows.shape)
        return np.asarray(scores / price[:, None] > threshold)

    def _raise_by_rooflines(self, chips: Chips, rows: Floats, open_: Bools) -> None:
        """Raise the open bounds to the rooflines of the corners."""
        context = self.context
        rates, number = distinct_rows(chip_rates(chips))
        box, variant = np.nonzero(open_)
        pass_s = layer_rooflines(
            rates, context.variants, context.setting, context.work, np.unique(variant)
        )
        pairs, place = distinct_rows(np.column_stack([number[box], variant]))
        step_s = context.layouts.step_s_of_pairs(pass_s, *pairs.T)
        rows[box, variant] = np.maximum(rows[box, variant], step_s[place])

    def _raise_by_power(self, boxes: Boxes, chips: Chips, rows: Floats) -> None:
        """Raise bounds by the limit on power: the largest arrays move the fewest bytes, the lowest
        clock has the least voltage, the smallest corner the least idle power, and the largest the
        most area to cool it."""
        if self.context.setting.limit is None:
            return
        least, idle_W = self.grid.designs(boxes.first), np.empty(len(boxes))
        for number, options in enumerate(self._memories):
            members = boxes.memory == number
            powers_W = [least.resting_power_with(hbm)[members] for hbm in options]
            idle_W[members] = np.min(powers_W, axis=0)
        process_nm = np.asarray(least.columns.get("process_nm", chips.process_nm), np.float64)
        frugal = replace(chips, clock_Hz=least.clock_Hz, process_nm=process_nm)
        np.maximum(rows, self._power_floors_s(frugal, idle_W), out=rows)

    def _power_floors_s(self, chips: Chips, idle_W: Floats | None = None) -> Floats:
        c = self.context
        return step_floors_s(chips, c.variants, c.setting, c.work, c.repeats, idle_W)

    def _least_prices(self, boxes: Boxes) -> Floats:
        """Return the least prices of every box: those of the smallest corners with the cheapest
        process, dies and spare cores, as prices grow with every other parameter."""
        price = self._price
        if price is None:
            return np.ones(len(boxes))
        least_prices = np.full(len(boxes), np.inf)
        for within, corners in self.grid.smallest_corners(boxes):
            for number, options in enumerate(self._memories):
                prices = np.min([price.of_designs(corners, hbm) for hbm in options], axis=0)
                members = within & (boxes.memory == number)
                least_prices[members] = np.minimum(least_prices, prices)[members]
        return least_prices

    def _build_chips(self, ends: Boxes) -> Frontier | None:
        """Return the chips of boxes that differ in the buffer only, with the boxes' bounds."""
        points = [self.grid.points(ends.subset(np.array([i]))) for i in range(len(ends))]
        if not points:
            return None
        box = np.repeat(np.arange(len(ends)), [len(flat) for flat in points])
        wanted_ids = np.concatenate(points) * len(self._memories) + ends.memory[box]
        built = self.chips_at(np.unique(np.concatenate(points)))
        if built is None:
            return None
        chips, ids, price = built
        order = np.argsort(wanted_ids)
        nearest = np.minimum(np.searchsorted(wanted_ids[order], ids), len(order) - 1)
        members = np.flatnonzero(wanted_ids[order][nearest] == ids)
        if len(members) == 0:
            return None
        rows = ends.lower_s[box[order[nearest[members]]]]
        stage = np.zeros(len(members), np.int8)
        return Frontier(chips.subset(members), ids[members], rows, price[members], stage)

    def bring(self, frontier: Frontier, ids: list[int]) -> Frontier:
        """Return the frontier with these chips added, of those that the constraints allow."""
        missing = np.setdiff1d(np.array(ids, np.int64), frontier.ids)
        built = self.chips_at(np.unique(missing // len(self._memories)))
        if built is None:
            return frontier
        chips, chip_numbers, price = built
        wanted = np.flatnonzero(np.isin(chip_numbers, missing))
        if len(wanted) == 0:
            return frontier
        chips = chips.subset(wanted)
        context = self.context
        pass_s = layer_rooflines(chip_rates(chips), context.variants, context.setting, context.work)
        lower_s = context.layouts.all_variants_s(pass_s)
        lower_s = np.maximum(lower_s, self._power_floors_s(chips))
        stage = np.zeros(len(wanted), np.int8)
        return frontier.joined(Frontier(chips, chip_numbers[wanted], lower_s, price[wanted], stage))

    def chips_at(self, flat: Ints) -> tuple[Chips, Ints, Floats] | None:
        """Return the chips at these points that satisfy the constraints, their ids and prices."""
        space, places = self._space.designs(flat)
        if len(space) == 0:
            return None
        chips = chips_of_space(space, self.context.setting.profile, self._by_memory)
        price = self.context.rule.objective.prices(space, chips, self._memories)
        chips = replace(chips, design=places[chips.design])
        return chips, chip_ids(chips, len(self._memories)), price


def chip_ids(chips: Chips, memories: int) -> Ints:
    """Return permanent chip numbers, from design and memory."""
    return np.asarray(chips.design * memories + chips.memory)
