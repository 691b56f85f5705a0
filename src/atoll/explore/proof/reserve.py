"""Spaces too large for memory: bounded in boxes, brought in best first.

A box (`boxes`) is halved while its bound is among the best that are left. Bounds are the rooflines
of its fastest corner; once its arrays and cores are one choice, also the floors of its operators on
that corner's clock, lanes and buffer. What is left in the end, one chip with all its buffers, comes
into memory; of boxes that never do, the bound is the proof.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from atoll.cost.chips import Chips, chips_of_space, distinct_rows, losses
from atoll.cost.model import MAPPER
from atoll.cost.table import cost_model
from atoll.errors import InfeasibleError
from atoll.explore.pricing.bounds import chip_rates, layer_rooflines, roofline_bounds
from atoll.explore.pricing.energy import operator_repeats
from atoll.explore.pricing.layouts import Setting
from atoll.explore.pricing.limit import step_floors_s
from atoll.explore.pricing.work import OperatorWork, operator_work
from atoll.explore.pricing.workloads import Variants
from atoll.explore.proof.boxes import Boxes, Grid
from atoll.explore.proof.frontier import Frontier
from atoll.explore.proof.tasks import Context, raise_by_floors
from atoll.explore.proof.trial import Rule
from atoll.hardware.product import ProductSpace
from atoll.hardware.space import Space
from atoll.stopping import Stop, go_on

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

PIECE_BOXES = 1024
"""Boxes that are halved at once: bounds the memory of their corners' costs."""
BEAM = 4
"""Boxes that are followed to the end for the first chips in memory."""


def open_frontier(
    space: Space | ProductSpace, variants: Variants, setting: Setting, rule: Rule, stop: Stop
) -> tuple[Frontier, Reserve | None, Context]:
    """Rooflines of every chip of a space; or of the first ones of a large one."""
    go_on(stop)
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
    own = rule.memories(space, setting)
    price = rule.objective.prices(space, chips, own)
    frontier = Frontier(
        chips, chip_ids(chips, len(own)), lower_s, price, np.zeros(len(chips), np.int8)
    )
    return frontier, None, Context(variants, setting, rule, work, layouts, repeats, stop)


class Reserve:
    """The boxes of a space that are not in memory."""

    def __init__(
        self,
        space: ProductSpace,
        variants: Variants,
        setting: Setting,
        rule: Rule,
        work: OperatorWork,
        stop: Stop,
    ) -> None:
        self._space = space
        self.points = len(space)
        self._memories = rule.memories(space, setting)
        self._price = rule.objective.price
        self.grid = Grid(space, self._memories)
        corners = self.grid.whole(len(variants.variants))
        if len(corners) == 0:
            raise self._empty()
        memory_bytes = float(max(option.capacity_bytes for option in space.hbm_options))
        chips = self.grid.chips(corners, setting.profile, rule.objective.by_memory)
        layouts, lower_s = roofline_bounds(chip_rates(chips), memory_bytes, variants, setting, work)
        repeats = operator_repeats(variants)
        self.context = Context(variants, setting, rule, work, layouts, repeats, stop)
        score = rule.scores(lower_s) / self._least_prices(corners)
        self.whole = replace(corners, lower_s=lower_s, score=score)
        """The space as one box for each memory."""
        self._boxes = self.whole
        # Other cost models may be faster with less of something.
        self._floors = cost_model(chips, setting.profile) is MAPPER and self.grid.plain
        self._closed = 0.0
        self.ruled_out: Counter[str] = Counter()
        """Pairs of a point and a memory that left with their boxes, by the rule that did it."""
        pairs = self.points * len(self._memories)
        self.ruled_out["limits"] = pairs - int(self.whole.points.sum())
        self.scheduled: list[IntArray] = []
        """Designs that left memory after their schedule bound."""

    def first_frontier(self) -> Frontier:
        """Chips at the end of the most promising boxes, a few at a time: designs to begin with."""
        while len(self._boxes):
            beam, ends = self._taken(BEAM, -1.0), []
            while len(beam):
                go_on(self.context.stop)
                done = self.grid.whole_buffers(beam)
                ends.append(beam.some(done))
                found = self.halved(beam.some(~done), -1.0)
                order = np.argsort(-found.score, kind="stable")
                beam = found.some(order[:BEAM])
                self._boxes = self._boxes.joined(found.some(order[BEAM:]))
            built = [f for box in ends if (f := self._built(box)) is not None]
            if built:
                first = built[0]
                for more in built[1:]:
                    first = first.joined(more)
                return first
        raise self._empty()

    def _empty(self) -> InfeasibleError:
        return InfeasibleError(
            f"space {self._space.name} is empty: no point of its {self.points:,} satisfies its "
            "constraints; loosen one."
        )

    def bound(self) -> float:
        """No chip that is or was outside memory scores higher."""
        return max(self.waiting(), self._closed)

    def waiting(self) -> float:
        """No chip outside memory that is not ruled out scores higher."""
        return float(self._boxes.score.max(initial=0.0))

    def open_points(self, threshold: float) -> int:
        """Points outside memory that no bound has ruled out, at most."""
        return int(self._boxes.points[self._boxes.score > threshold].sum())

    def admit(
        self, frontier: Frontier, scores: FloatArray, threshold: float, size: int
    ) -> tuple[Frontier, IntArray] | None:
        """Bring in whatever may be among the `size` best chips that are not yet bounded.

        Chips that can no longer win leave. The new frontier, and where each old chip is in it (-1:
        nowhere); None where nothing changed.
        """
        lost = (scores <= threshold) & (frontier.stage < 2)
        wanted = self._wanted(frontier, scores, threshold, size)
        if self.waiting() <= wanted and lost.sum() * 2 < len(scores):
            return None
        self.scheduled.append(np.unique(frontier.chips.design[lost & (frontier.stage == 1)]))
        self._closed = max(self._closed, float(scores[lost].max(initial=0.0)))
        kept = np.flatnonzero(~lost)
        moved = np.full(len(scores), -1, np.int64)
        moved[kept] = np.arange(len(kept))
        frontier, scores = frontier.kept(kept), scores[kept]
        while not self.context.stop() and (
            self.waiting() > self._wanted(frontier, scores, threshold, size)
        ):
            taken = self._taken(PIECE_BOXES, threshold)
            done = self.grid.whole_buffers(taken)
            self._boxes = self._boxes.joined(self.halved(taken.some(~done), threshold))
            more = self._built(taken.some(done))
            if more is not None:
                frontier = frontier.joined(more)
                found = self.context.rule.scores(more.lower_s) / more.price
                scores = np.concatenate([scores, found])
        return frontier, moved

    def _wanted(self, frontier: Frontier, scores: FloatArray, threshold: float, size: int) -> float:
        """A chip has to score higher to be among the next `size`."""
        waiting = scores[(frontier.stage == 0) & (scores > threshold)]
        if len(waiting) < size:
            return threshold
        return float(np.partition(waiting, len(waiting) - size)[len(waiting) - size])

    def _taken(self, count: int, threshold: float) -> Boxes:
        """The boxes of the highest bounds, which leave; with them all that are ruled out."""
        boxes = self._boxes
        self._close("roofline", boxes.some(boxes.score <= threshold))
        boxes = boxes.some(boxes.score > threshold)
        order = np.argsort(-boxes.score, kind="stable")
        self._boxes = boxes.some(order[count:])
        return boxes.some(order[:count])

    def _close(self, rule: str, boxes: Boxes) -> None:
        self._closed = max(self._closed, float(boxes.score.max(initial=0.0)))
        self.ruled_out[rule] += int(boxes.points.sum())

    def halved(self, boxes: Boxes, threshold: float) -> Boxes:
        """Both halves of each, with their bounds, where these are above the threshold."""
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
        self._close("roofline", halves.some(scores <= threshold))
        kept = np.flatnonzero(scores > threshold)
        halves, price = halves.some(kept), price[kept]
        if not self._floors:
            return halves
        shaped = self.grid.shaped(halves)
        open_ = self._open(halves.lower_s, price, threshold) & shaped[:, None]
        if not open_.any():
            return halves
        raise_by_floors(self.context, chips.subset(kept), halves.lower_s, open_)
        scores = self.context.rule.scores(halves.lower_s) / price
        halves = replace(halves, score=scores)
        self._close("operator floors", halves.some(scores <= threshold))
        return halves.some(scores > threshold)

    @property
    def _by_memory(self) -> bool:
        return self.context.rule.objective.by_memory

    def _open(self, rows: FloatArray, price: FloatArray, threshold: float) -> NDArray[np.bool_]:
        """Which (box, variant) pairs could still be part of a better design."""
        if len(self.context.rule.by_model) > 1:
            return np.isfinite(rows)
        with np.errstate(divide="ignore"):
            scores = self.context.rule.objective.scores(rows.reshape(-1, 1)).reshape(rows.shape)
        return np.asarray(scores / price[:, None] > threshold)

    def _raise_by_rooflines(self, chips: Chips, rows: FloatArray, open_: NDArray[np.bool_]) -> None:
        """Raise the open rows to the rooflines of the corners."""
        context = self.context
        rates, number = distinct_rows(chip_rates(chips))
        box, variant = np.nonzero(open_)
        pass_s = layer_rooflines(
            rates, context.variants, context.setting, context.work, np.unique(variant)
        )
        pairs, place = distinct_rows(np.column_stack([number[box], variant]))
        step_s = context.layouts.some_variants_s(pass_s, pairs[:, 0], pairs[:, 1])
        rows[box, variant] = np.maximum(rows[box, variant], step_s[place])

    def _raise_by_power(self, boxes: Boxes, chips: Chips, rows: FloatArray) -> None:
        """Raise rows to what a limit on power leaves: the largest arrays move the fewest bytes, the
        lowest clock takes the least voltage and the smallest corner rests at the least power; the
        largest one has the area to cool it.
        """
        if self.context.setting.limit is None:
            return
        least, rest_W = self.grid.designs(boxes.first), np.empty(len(boxes))
        for number, own in enumerate(self._memories):
            its = boxes.memory == number
            rest_W[its] = np.min([least.resting_power_with(hbm)[its] for hbm in own], axis=0)
        process_nm = np.asarray(least.columns.get("process_nm", chips.process_nm), np.float64)
        frugal = replace(chips, clock_Hz=least.clock_Hz, process_nm=process_nm)
        least_s = self._power_floors_s(frugal, rest_W)
        np.maximum(rows, least_s, out=rows)

    def _power_floors_s(self, chips: Chips, rest_W: FloatArray | None = None) -> FloatArray:
        c = self.context
        return step_floors_s(chips, c.variants, c.setting, c.work, c.repeats, rest_W)

    def _least_prices(self, boxes: Boxes) -> FloatArray:
        """Prices grow with every parameter but the process, as finer wafers are dearer: those of
        the smallest corners, in the cheapest process of each box.
        """
        price = self._price
        if price is None:
            return np.ones(len(boxes))
        found = np.full(len(boxes), np.inf)
        for within, corners in self.grid.smallest(boxes):
            for number, own in enumerate(self._memories):
                prices = np.min([price.of_designs(corners, hbm) for hbm in own], axis=0)
                its = within & (boxes.memory == number)
                found[its] = np.minimum(found, prices)[its]
        return found

    def _built(self, ends: Boxes) -> Frontier | None:
        """The chips of boxes that have one value of all but the buffer, with the boxes' bounds:
        they differ in nothing that a roofline knows.
        """
        points = [self.grid.points(ends.some(np.array([i]))) for i in range(len(ends))]
        if not points:
            return None
        own = np.repeat(np.arange(len(ends)), [len(flat) for flat in points])
        asked = np.concatenate(points) * len(self._memories) + ends.memory[own]
        found = self.chips_at(np.unique(np.concatenate(points)))
        if found is None:
            return None
        chips, ids, price = found
        order = np.argsort(asked)
        at = np.minimum(np.searchsorted(asked[order], ids), len(order) - 1)
        kept = np.flatnonzero(asked[order][at] == ids)
        if len(kept) == 0:
            return None
        rows = ends.lower_s[own[order[at[kept]]]]
        stage = np.zeros(len(kept), np.int8)
        return Frontier(chips.subset(kept), ids[kept], rows, price[kept], stage)

    def bring(self, frontier: Frontier, ids: list[int]) -> Frontier:
        """The frontier with these chips in it, as far as the constraints allow them."""
        missing = np.setdiff1d(np.array(ids, np.int64), frontier.ids)
        found = self.chips_at(np.unique(missing // len(self._memories)))
        if found is None:
            return frontier
        chips, own, price = found
        kept = np.flatnonzero(np.isin(own, missing))
        if len(kept) == 0:
            return frontier
        chips = chips.subset(kept)
        context = self.context
        pass_s = layer_rooflines(chip_rates(chips), context.variants, context.setting, context.work)
        lower_s = context.layouts.all_variants_s(pass_s)
        lower_s = np.maximum(lower_s, self._power_floors_s(chips))
        stage = np.zeros(len(kept), np.int8)
        return frontier.joined(Frontier(chips, own[kept], lower_s, price[kept], stage))

    def chips_at(self, flat: IntArray) -> tuple[Chips, IntArray, FloatArray] | None:
        """The chips at these points that satisfy the constraints, their numbers and prices."""
        space, places = self._space.designs(flat)
        if len(space) == 0:
            return None
        chips = chips_of_space(space, self.context.setting.profile, self._by_memory)
        price = self.context.rule.objective.prices(space, chips, self._memories)
        chips = replace(chips, design=places[chips.design])
        return chips, chip_ids(chips, len(self._memories)), price


def chip_ids(chips: Chips, memories: int) -> IntArray:
    """A number for each chip that it keeps whatever else is in memory: design and memory."""
    return np.asarray(chips.design * memories + chips.memory)
