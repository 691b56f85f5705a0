"""Branch and bound over chips and layouts: the best design, and the proof.

Every chip carries, per model, a lower bound on its step time. Bounds are tightened only where they
leave the chip a chance against the best design found so far:

1. roofline: peak rates alone, all chips at once;
2. schedule: the mapper's operator costs and quick bounds on the layers' makespans;
3. placement: the exact placement with those makespans (memory, recomputation, stages);
4. linear programmes and exact schedules for the last few.

A chip is discarded when its bound cannot beat the incumbent by more than the tolerance. When none
is left the incumbent is optimal within the tolerance; what is left at a limit is the stated gap.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from atoll.cost.chips import Chips, chips_of_space
from atoll.explore.bound_kernels import layout_bounds, roofline
from atoll.explore.energy import StepEnergy, step_energy
from atoll.explore.evaluate import Plan, Priced
from atoll.explore.layouts import Layouts, Setting, list_layouts
from atoll.explore.objective import Objective
from atoll.explore.work import operator_work
from atoll.explore.workloads import Variant, Variants
from atoll.hardware.space import Space
from atoll.jit import over_ranges
from atoll.schedule.solve import Effort

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

FIRST_BATCH = 64
LARGEST_BATCH = 4096


@dataclass(frozen=True)
class Found:
    """The best plan known of one model on one chip."""

    step_time_s: float
    variant: int
    pass_s: FloatArray
    plan: Plan
    energy: StepEnergy
    effort: Effort = "quick"


@dataclass
class Frontier:
    """All chips with their bounds: what branch and bound has proven so far."""

    chips: Chips
    lower_s: FloatArray  # (chips, variants): no plan of the node is faster
    found: dict[int, dict[int, Found]] = field(default_factory=dict)  # chip -> model -> plan
    stage: NDArray[np.int8] = field(default_factory=lambda: np.zeros(0, np.int8))
    """Per chip, the strongest bound that was computed: 0 roofline, 1 schedule, 2 placement."""


@dataclass(frozen=True)
class Outcome:
    """The incumbent with its proof."""

    frontier: Frontier
    best: int | None
    """Index of the best chip in `frontier.chips`."""
    score: float
    bound: float
    """No chip scores higher."""
    tightened: int
    """Nodes whose schedules were solved with more effort."""
    ruled_out: NDArray[np.bool_]
    """Per chip: its bound cannot beat the incumbent by more than the tolerance."""

    @property
    def gap(self) -> float:
        return max(0.0, 1.0 - self.score / self.bound) if self.bound > 0 else 0.0


Progress = Callable[[str, int, int, float, float], None]
"""Called with (phase, chips left, chips in all, best score, bound)."""


class Search:
    """One branch and bound over a space."""

    def __init__(
        self,
        space: Space,
        variants: Variants,
        setting: Setting,
        objective: Objective,
        tolerance: float,
        time_limit_s: float = np.inf,
        progress: Progress | None = None,
    ) -> None:
        self.space = space
        self.variants = variants
        self.setting = setting
        self.objective = objective
        self.tolerance = tolerance
        self.progress = progress
        self.deadline = time.monotonic() + time_limit_s
        self.by_model = [np.array(variants.of(i)) for i in range(len(variants.workloads))]
        chips = chips_of_space(space, setting.profile)
        self.work = operator_work(variants.passes.keys, setting.network, setting.profile.name)
        self.layouts, lower_s = self._roofline(chips)
        self.frontier = Frontier(chips, lower_s, stage=np.zeros(len(chips), np.int8))
        self.best: int | None = None
        self.score = 0.0
        self.sparing = False
        """Evaluate every chip for its own sake: nothing becomes the incumbent."""
        self.tightened = 0

    def run(self) -> Outcome:
        size = FIRST_BATCH
        while True:
            scores = self.upper_scores()
            fresh = np.flatnonzero((self.frontier.stage == 0) & (scores > self._threshold()))
            if len(fresh) == 0 or time.monotonic() > self.deadline:
                break
            order = fresh[np.argsort(-scores[fresh], kind="stable")][:size]
            self._report("bounding", len(fresh), float(scores.max()))
            self._batch(order)
            size = min(4 * size, LARGEST_BATCH)
        self._tighten()
        return self.outcome()

    def outcome(self) -> Outcome:
        """What is known now."""
        scores = self.upper_scores()
        bound = max(float(scores.max(initial=0.0)), self.score)
        ruled_out = scores <= self._threshold()
        return Outcome(self.frontier, self.best, self.score, bound, self.tightened, ruled_out)

    def evaluate_all(self, order: IntArray) -> FloatArray:
        """Scores of these chips, each with its own best layouts, whatever the incumbent is.

        Only what exists is computed; bounds stay those of the schedules.
        """
        incumbent = self.best, self.score
        self.best, self.score, self.sparing = None, 0.0, True
        self._batch(order)
        (self.best, self.score), self.sparing = incumbent, False
        return np.array([self.found_score(int(chip)) for chip in order])

    def forget(self, chips: IntArray) -> None:
        """Drop what was found for chips that a strategy did not visit in the end."""
        self.frontier.stage[chips] = 0
        for chip in chips:
            self.frontier.found.pop(int(chip), None)

    def accept(self, chip: int, score: float) -> None:
        """Take a chip for the incumbent if it scores higher."""
        if score > self.score:
            self.best, self.score = chip, score

    def found_score(self, chip: int) -> float:
        """Score of the plans found for a chip; -1 where some model has none."""
        found = self.frontier.found.get(chip, {})
        if len(found) < len(self.by_model):
            return -1.0
        times = np.array([[found[i].step_time_s for i in range(len(self.by_model))]])
        return float(self.objective.scores(times)[0])

    # --- Bounds ---------------------------------------------------------------------------------

    def upper_scores(self) -> FloatArray:
        """No plan of a chip scores higher than this; the incumbent's own score is a bound too."""
        lower = self.frontier.lower_s
        times = np.column_stack([lower[:, own].min(axis=1) for own in self.by_model])
        return self.objective.scores(times)

    def _threshold(self) -> float:
        return self.score * (1.0 + self.tolerance)

    def _roofline(self, chips: Chips) -> tuple[Layouts, FloatArray]:
        variants, setting = self.variants, self.setting
        profile = setting.profile
        work = self.work
        lanes = chips.vector_configs.lanes[chips.vector_config[:, 0]]
        bounds = np.zeros((len(chips), 2 * len(variants.passes.layers)))
        arguments = (
            variants.passes.arrays,
            work.macs,
            work.vector_ops,
            work.bytes,
            work.link_s,
            chips.peak_flops / 2.0,
            chips.vector_cores * lanes * chips.clock_Hz,
            chips.hbm_Bps,
            profile.vector_memory,
            not profile.link_on_vector,
            bounds,
        )
        over_ranges(lambda a, b: roofline(a, b, *arguments), len(chips))
        layer_s = bounds[:, 0::2] + bounds[:, 1::2]
        ranges = variants.layer_ranges
        count = len(variants.variants)
        least = [layer_s[:, ranges[v] : ranges[v + 1]].min(axis=0) for v in range(count)]
        layouts = list_layouts(
            variants.variants,
            setting,
            float(chips.hbm_capacity_bytes.max()),
            float(chips.hbm_Bps.max()),
            least,
        )
        most = max(variant.layers for variant in variants.variants)
        rows = np.zeros((len(chips), count, most))
        for v in range(count):
            rows[:, v, : ranges[v + 1] - ranges[v]] = layer_s[:, ranges[v] : ranges[v + 1]]
        nodes = np.tile(np.arange(count), len(chips))
        lower = self._layout_bounds(layouts, rows.reshape(-1, most), nodes)
        return layouts, lower.reshape(len(chips), count)

    def _layout_bounds(
        self, layouts: Layouts, layer_s: FloatArray, variant: IntArray
    ) -> FloatArray:
        variants = self.variants
        repeats = np.array(
            [repeat for v in variants.variants for _, repeat in v.model.layers], np.int64
        )
        result = np.full(len(layer_s), np.inf)
        arguments = (
            layer_s,
            variant,
            variants.layer_ranges,
            repeats,
            np.array([v.facts.block_kind for v in variants.variants], np.int64),
            layouts.ptr,
            layouts.stages,
            layouts.loads,
            layouts.passes,
            layouts.transfer_s,
            layouts.fixed_s,
            result,
        )
        over_ranges(lambda a, b: layout_bounds(a, b, *arguments), len(layer_s))
        return result

    # --- Batches --------------------------------------------------------------------------------

    def _batch(self, order: IntArray) -> None:
        """Schedule bounds for these chips, then placements where they leave a chance."""
        frontier = self.frontier
        frontier.stage[order] = 1
        priced = self._priced(order)
        # Contiguous, as everywhere: another layout would compile the kernels a second time.
        chip, variant = (np.ascontiguousarray(axis) for axis in np.nonzero(self._open(order)))
        lower, upper = priced.schedule_bounds(chip, variant)
        bounds = self._layout_bounds(self.layouts, lower.sum(axis=2), variant)
        rows = order[chip]
        frontier.lower_s[rows, variant] = np.maximum(frontier.lower_s[rows, variant], bounds)
        position = {(int(c), int(v)): i for i, (c, v) in enumerate(zip(chip, variant, strict=True))}
        scores = self.upper_scores()[order]
        for local in np.argsort(-scores, kind="stable"):
            if self.upper_scores_of(order[local]) <= self._threshold():
                continue
            self._place_chip(priced, int(local), int(order[local]), position, lower, upper)
            if time.monotonic() > self.deadline:
                return

    def _open(self, order: IntArray) -> NDArray[np.bool_]:
        """Which (chip, variant) pairs could still be part of a better design."""
        lower = self.frontier.lower_s[order]
        if len(self.by_model) == 1:
            return lower < self._cutoff()
        return np.isfinite(lower)

    def _cutoff(self) -> float:
        """With one model: a step time that would not improve the incumbent enough."""
        if self.best is None or len(self.by_model) > 1:
            return np.inf
        return self.frontier.found[self.best][0].step_time_s / (1.0 + self.tolerance)

    def upper_scores_of(self, chip: int) -> float:
        lower = self.frontier.lower_s[chip]
        times = np.array([[lower[own].min() for own in self.by_model]])
        return float(self.objective.scores(times)[0])

    def _place_chip(
        self,
        priced: Priced,
        local: int,
        chip: int,
        position: dict[tuple[int, int], int],
        lower: FloatArray,
        upper: FloatArray,
    ) -> None:
        frontier = self.frontier
        frontier.stage[chip] = 2
        found = frontier.found.setdefault(chip, {})
        for model, own in enumerate(self.by_model):
            for v in own[np.argsort(frontier.lower_s[chip, own], kind="stable")]:
                limit = self._cutoff()
                if model in found:
                    limit = min(limit, found[model].step_time_s / (1.0 + self.tolerance))
                if frontier.lower_s[chip, v] >= limit:
                    break
                node = position[(local, int(v))]
                variant = self.variants.variants[v]
                if not self.sparing:
                    least = priced.place(local, variant, lower[node], limit)
                    frontier.lower_s[chip, v] = max(
                        frontier.lower_s[chip, v], limit if least is None else least[0]
                    )
                    if least is None:
                        continue
                most = priced.place(local, variant, upper[node], limit)
                if most is not None and (
                    model not in found or most[0] < found[model].step_time_s
                ):
                    found[model] = _found(priced, local, variant, int(v), upper[node], most)
                    self._offer(chip)
            if self.upper_scores_of(chip) <= self._threshold():
                return

    def _offer(self, chip: int) -> None:
        """Make the chip the incumbent if it is better."""
        if not self.sparing:
            self.accept(chip, self.found_score(chip))

    def _priced(self, order: IntArray) -> Priced:
        chips = self.frontier.chips.subset(order)
        return Priced.of(chips, self.variants, self.setting, self.work)

    # --- More effort where the proof needs it ---------------------------------------------------

    def _tighten(self) -> None:
        """Solve the schedules that keep the bound away from the incumbent."""
        done: set[tuple[int, int, Effort]] = set()
        frontier = self.frontier
        while self.best is not None and time.monotonic() < self.deadline:
            scores = self.upper_scores()
            chip = int(np.argmax(scores))
            if scores[chip] <= self._threshold():
                return
            self._report("tightening", int((scores > self._threshold()).sum()), scores[chip])
            target = self._loosest(chip, done)
            if target is None:
                return
            model, v, effort = target
            done.add((chip, v, effort))
            self._solve_node(chip, model, v, effort)
            frontier.stage[chip] = 2

    def _loosest(
        self, chip: int, done: set[tuple[int, int, Effort]]
    ) -> tuple[int, int, Effort] | None:
        """The chip's model and variant whose bound is the lowest and can still be improved."""
        lower = self.frontier.lower_s[chip]
        for model, own in enumerate(self.by_model):
            v = int(own[np.argmin(lower[own])])
            known = self.frontier.found.get(chip, {}).get(model)
            if known is not None and lower[v] >= known.step_time_s / (1.0 + self.tolerance):
                continue
            efforts: tuple[Effort, ...] = ("bounded", "exact")
            for effort in efforts:
                if (chip, v, effort) not in done:
                    return model, v, effort
        return None

    def _solve_node(self, chip: int, model: int, v: int, effort: Effort) -> None:
        self.tightened += 1
        alone = self.variants.only(v)
        variant = alone.variants[0]
        priced = Priced.of(self.frontier.chips.subset(np.array([chip])), alone, self.setting)
        solved = priced.schedules(0, variant, effort, self.tolerance / 4.0, 10.0)
        lower = np.array([[s.lower_bound_s for s in pair] for pair in solved])
        upper = np.array([[s.makespan_s for s in pair] for pair in solved])
        frontier = self.frontier
        least = priced.place(0, variant, lower)
        frontier.lower_s[chip, v] = max(
            frontier.lower_s[chip, v], np.inf if least is None else least[0]
        )
        most = priced.place(0, variant, upper)
        found = frontier.found.setdefault(chip, {})
        if most is not None and (model not in found or most[0] < found[model].step_time_s):
            found[model] = _found(priced, 0, variant, v, upper, most, effort)
            self._offer(chip)

    def _report(self, phase: str, left: int, bound: float) -> None:
        if self.progress is not None:
            self.progress(phase, left, len(self.frontier.chips), self.score, bound)


def _found(
    priced: Priced,
    chip: int,
    variant: Variant,
    v: int,
    pass_s: FloatArray,
    placed: tuple[float, Plan],
    effort: Effort = "quick",
) -> Found:
    energy = step_energy(
        priced, chip, variant, step_time_s=placed[0], devices=priced.setting.devices
    )
    return Found(placed[0], v, pass_s, placed[1], energy, effort)
