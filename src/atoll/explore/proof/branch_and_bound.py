"""Branch and bound over chips and layouts: the best design, and the proof.

Every chip has, per model, a lower bound on its step time. Bounds are tightened only where the chip
could still beat the best design so far (the incumbent):

1. roofline: peak rates alone, all chips at once;
2. schedule: the mapper's operator costs and quick bounds on the layers' makespans;
3. placement: the exact placement with those makespans (memory, recomputation, stages);
4. linear programmes and exact schedules for the last few.

A chip is discarded when its bound cannot beat the incumbent by more than the tolerance. When none
is left the incumbent is optimal within the tolerance; what is left at a limit is the stated gap.

The work is done by a crew (`atoll.executors`), speculatively where there are several workers;
results are used in the order of a single process, so that the answer is the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import numpy as np

from atoll.base.arrays import Bools, Floats, Ints
from atoll.base.stopping import Stop
from atoll.driver import Progress
from atoll.executors import Crew, InProcess, TaskCall
from atoll.explore.pricing.energy import energy_of_chip, energy_of_work, variant_work
from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.pricing.workloads import Variants
from atoll.explore.proof.batches import Pacer, Speculation
from atoll.explore.proof.bound_checks import ROUNDING, chip_name
from atoll.explore.proof.journal import ChipEvaluation, EvaluatedPlan, EvaluationKey, Journal
from atoll.explore.proof.objective import Objective
from atoll.explore.proof.reserve import Frontier, open_frontier
from atoll.explore.proof.tasks import ChipNodes, ChipTask, bound_chips, linear_pass_s, place_node
from atoll.explore.proof.trial import Rule, Trial, replayed, try_chip
from atoll.hardware.accelerator import Hbm
from atoll.hardware.product_space import SearchedSpace
from atoll.placement.chain import Division
from atoll.schedule.problem import Schedule
from atoll.schedule.solve import Effort
from atoll.step.certificate import relative_gap


@dataclass(frozen=True)
class SearchOutcome:
    """The incumbent with its proof."""

    frontier: Frontier
    best: int | None  # index of the best chip in `frontier.chips`
    score: float
    bound: float  # upper bound on the score of every chip
    tightened: int  # nodes whose schedules were solved with more effort
    ruled_out: Bools
    """Per chip: its bound cannot beat the incumbent by more than the tolerance."""
    stopped: str = ""
    """Why the search ended before its proof: "time limit", "interrupted" or nothing."""

    @property
    def gap(self) -> float:
        return relative_gap(self.score, self.bound)


_SHOWN = {"front": "front", "rivals": "front", "near": "plateau"}
_TINY = 1e-300


class Rivals(Protocol):
    """The designs that chips compete with instead of the incumbent."""

    def to_beat(self, chips: Ints) -> Floats:
        """Return the score that each chip has to beat."""

    def add(self, chip: int, score: float) -> None:
        """Make an evaluated chip a rival of others."""


@dataclass(frozen=True)
class _SameScore:
    """One score to beat for all chips."""

    score: float

    def to_beat(self, chips: Ints) -> Floats:
        return np.full(len(chips), self.score)

    def add(self, chip: int, score: float) -> None: ...


def _equal_power(options: Sequence[Hbm]) -> bool:
    """Return whether memories of one bandwidth take the same power and area."""
    figures = {(hbm.bandwidth_Bps, hbm.power_W, hbm.area_mm2) for hbm in options}
    return len(figures) == len({hbm.bandwidth_Bps for hbm in options})


@dataclass
class _BatchMode:
    """What chips compete with: the incumbent or rivals."""

    phase: str = "place"
    plans_only: bool = False
    rivals: Rivals | None = None
    own_tolerance: float | None = None  # see `Trial.tolerance`
    waiting: Ints | None = None  # chips left in this phase, including those of the batch


class Search:
    """A branch and bound over a space."""

    def __init__(
        self,
        space: SearchedSpace,
        variants: Variants,
        setting: SearchSetting,
        objective: Objective,
        tolerance: float,
        progress: Progress | None = None,
        *,
        stop: Stop | None = None,
        crew: Crew | None = None,
        journal: Journal | None = None,
    ) -> None:
        # Idle memory takes part of a limit on passes; clocks follow from the power of the memory.
        if setting.limit is not None or not _equal_power(space.hbm_options):
            objective = replace(objective, every_memory=True)
        self.space = space
        self.variants = variants
        self.setting = setting
        self.objective = objective
        self.tolerance = tolerance
        self.progress = progress
        self.stop = stop or Stop()
        self.journal = journal or Journal()
        self.rule = Rule.of(variants, objective, tolerance)
        self.memories = self.rule.memories(space, setting)
        self.by_model = self.rule.by_model
        self.frontier, self.reserve, self.context = open_frontier(
            space, variants, setting, self.rule, self.stop
        )
        self.crew = crew or Crew(InProcess())
        self.crew.stop = self.stop
        self.crew.executor.start(self.context)
        self.pacer = Pacer(self.crew)
        self.scores = self.rule.scores(self.frontier.lower_s) / self.frontier.price
        """Upper bound on the score of every chip in memory."""
        self.best: int | None = None
        self.score = 0.0
        """Score of the best chip, or of a design of another search that chips have to beat."""
        self.mode = _BatchMode()
        self.batches = 0
        self.solved: set[EvaluationKey] = set()
        """Nodes whose schedules were solved, by effort."""
        self.schedules: dict[EvaluationKey, tuple[list[Schedule], float]] = {}
        """Schedules of the nodes solved here, and the step limit they were solved against."""

    def outcome(self) -> SearchOutcome:
        """Return the incumbent and the bounds now."""
        ruled_out = self.scores <= self.threshold()
        proven = self.bound() <= max(self.threshold(), self.score)
        reason = "" if proven else self.stop.reason
        return SearchOutcome(
            self.frontier, self.best, self.score, self.bound(), len(self.solved), ruled_out, reason
        )

    def bound(self) -> float:
        """Return an upper bound on the score of every chip of the space."""
        waiting = 0.0 if self.reserve is None else self.reserve.bound()
        return max(float(self.scores.max(initial=0.0)), waiting, self.score)

    def best_waiting(self) -> float:
        """Return an upper bound on the score of chips without a schedule bound."""
        waiting = 0.0 if self.reserve is None else self.reserve.waiting()
        return max(float(self.scores[self.frontier.stage == 0].max(initial=0.0)), waiting)

    def evaluate_all(self, order: Ints, waiting: Ints | None = None) -> Floats:
        """Return the scores of these chips with their best layouts, whatever the incumbent is.

        Only plans are computed; bounds stay those of the schedules. `waiting` are all chips to be
        evaluated, for the progress report.
        """
        waiting = order if waiting is None else waiting
        with self._mode(_BatchMode("front", True, _SameScore(0.0), waiting=waiting)):
            self.batch(order)
        return np.array([self.evaluated_score(int(chip)) for chip in order])

    def evaluate_near(self, order: Ints, least: float, plans_only: bool = True) -> None:
        """Evaluate the chips whose bounds allow a score above `least`. Unless plans only, lower the
        bounds of those that score less; one that scores more may become the incumbent."""
        with self._mode(_BatchMode("near", plans_only, _SameScore(least), waiting=order)):
            self.batch(order)

    @contextmanager
    def against(self, rivals: Rivals, own_tolerance: float, waiting: Ints) -> Iterator[None]:
        """Let chips compete with rivals instead of the incumbent, which stays. `waiting` are all
        chips to be evaluated, for the progress report."""
        with self._mode(_BatchMode("rivals", False, rivals, own_tolerance, waiting)):
            yield

    @contextmanager
    def _mode(self, mode: _BatchMode) -> Iterator[None]:
        self.mode = mode
        try:
            yield
        finally:
            self.mode = _BatchMode()

    def adopt(self, chip: int, plans: Mapping[int, EvaluatedPlan]) -> None:
        """Adopt better plans of another search for a chip; on record after a resumed search."""
        key = EvaluationKey("baseline", int(self.frontier.ids[chip]))
        stored = self.journal.evaluation(key)
        if stored is not None:
            self.apply(chip, stored)
        elif self._score_of_plans(chip, plans) > self.evaluated_score(chip):
            self.finish(chip, key, ChipEvaluation(self.frontier.lower_s[chip], plans))

    def inherit(self, source: Search, position: Ints) -> None:
        """Copy bounds and plans of a search with the same variants, whose chip i is chip
        `position[i]` of this search, with the same memory, or absent (-1)."""
        for chip in np.flatnonzero((source.frontier.stage > 0) & (position >= 0)).tolist():
            target = int(position[chip])
            self._set_row(target, source.frontier.lower_s[chip], int(source.frontier.stage[chip]))
            if chip in source.frontier.plans:
                self.frontier.plans[target] = dict(source.frontier.plans[chip])

    def bring(self, ids: list[int]) -> dict[int, int]:
        """Load chips into the frontier; return their positions by id, of those that exist."""
        if self.reserve is not None:
            self.frontier = self.reserve.bring(self.frontier, ids)
            count = len(self.scores)
            added = self.rule.scores(self.frontier.lower_s[count:]) / self.frontier.price[count:]
            self.scores = np.concatenate([self.scores, added])
        order = np.argsort(self.frontier.ids, kind="stable")
        ordered = self.frontier.ids[order]
        nearest = np.minimum(np.searchsorted(ordered, ids), len(ordered) - 1).tolist()
        return {i: int(order[k]) for i, k in zip(ids, nearest, strict=True) if ordered[k] == i}

    def forget(self, chips: Ints) -> None:
        """Drop the plans of chips that a strategy did not visit in the end."""
        self.frontier.stage[chips] = 0
        for chip in chips:
            self.frontier.plans.pop(int(chip), None)

    def accept(self, chip: int, score: float) -> None:
        """Make a chip the incumbent if it scores higher."""
        if score > self.score:
            self.best, self.score = chip, score

    def evaluated_score(self, chip: int) -> float:
        """Return the score of a chip's plans; -1 where a model has none."""
        return self._score_of_plans(chip, self.frontier.plans.get(chip, {}))

    def _score_of_plans(self, chip: int, plans: Mapping[int, EvaluatedPlan]) -> float:
        if len(plans) < len(self.by_model):
            return -1.0
        times = np.array([[plans[i].step_time_s for i in range(len(self.by_model))]])
        return float(self.objective.scores(times)[0] / self.frontier.price[chip])

    def threshold(self) -> float:
        return self.score * (1.0 + self.tolerance)

    def to_beat(self, chips: Ints) -> Floats:
        """Return the score that each chip has to beat: of its rivals, or the incumbent's."""
        if self.mode.rivals is not None:
            return self.mode.rivals.to_beat(chips)
        return np.full(len(chips), self.threshold())

    def promise(self, chips: Ints) -> Floats:
        """Return bounds relative to the scores to beat."""
        return np.asarray(self.scores[chips] / np.maximum(self.to_beat(chips), _TINY))

    def cutoff_s(self, chips: Ints) -> Floats:
        """Return, for a single model, step times that would not improve the incumbent enough."""
        price = self.frontier.price
        least: float | Floats = np.inf
        if len(self.by_model) == 1 and self.mode.rivals is not None:
            with np.errstate(divide="ignore"):
                least = self.objective.batches[0] / self.to_beat(chips)
        elif len(self.by_model) == 1 and self.best is not None:
            step_s = self.frontier.plans[self.best][0].step_time_s
            least = step_s * price[self.best] / (1.0 + self.tolerance)
        elif len(self.by_model) == 1 and self.score:
            least = self.objective.batches[0] / self.threshold()
        return np.asarray(least / price[chips])

    def admit(self, size: int) -> None:
        """Load the chips that may be among the next `size`; drop those that are ruled out."""
        if self.reserve is None:
            return
        changed = self.reserve.admit(self.frontier, self.scores, self.threshold(), size)
        if changed is not None:
            self.frontier, moved = changed
            self.best = None if self.best is None else int(moved[self.best])
            self.scores = self.rule.scores(self.frontier.lower_s) / self.frontier.price

    # --- Batches --------------------------------------------------------------------------------

    def batch(self, order: Ints) -> None:
        """Compute schedule bounds of chips, then placements where these allow a better score."""
        number = self.batches
        self.batches += 1
        nodes: dict[int, ChipNodes] = {}
        recorded = self.journal.bounds(number)
        ids = self.frontier.ids[order]
        fresh = np.array([int(i) not in recorded for i in ids], np.bool_)
        open_ = self._open(order)
        for chip, chip_id in zip(order[~fresh], ids[~fresh], strict=True):
            self._set_row(int(chip), recorded[int(chip_id)], stage=1)
        self._bound(order[fresh], open_[fresh], nodes, record=number)
        if not self.stop():
            self._place_chips(order[np.argsort(-self.promise(order), kind="stable")], nodes)

    def _open(self, order: Ints) -> Bools:
        """Return which (chip, variant) pairs could still be part of a better design."""
        lower = self.frontier.lower_s[order]
        cutoff_s = self.cutoff_s(order)[:, None]
        return lower < cutoff_s if len(self.by_model) == 1 else np.isfinite(lower)

    def _bound(
        self, order: Ints, open_: Bools, nodes: dict[int, ChipNodes], record: int | None
    ) -> None:
        """Compute schedule bounds in pieces; record them under the batch number, if any."""
        frontier = self.frontier
        position = {int(chip): i for i, chip in enumerate(order)}

        def call(piece: Ints) -> TaskCall:
            local_rows = [position[int(chip)] for chip in piece]
            chips = frontier.chips.subset(piece)
            rows = frontier.lower_s[piece]
            threshold = self.to_beat(piece) * frontier.price[piece]
            limits = threshold, self.cutoff_s(piece) * (1.0 + ROUNDING)
            keep_prices = self.mode.own_tolerance is not None
            arguments = chips, rows, open_[local_rows], *limits, keep_prices
            return TaskCall(bound_chips, arguments, tag=piece)

        pieces = self.pacer.pieces(frontier.chips.tensor_config, order)
        for done, (lower_s, chip_nodes) in self.crew.results(call(piece) for piece in pieces):
            piece = done.tag
            self.pacer.finished(done)
            for chip, row in zip(piece, lower_s, strict=True):
                self._set_row(int(chip), row, stage=1)
            nodes.update({int(piece[local]): chip for local, chip in chip_nodes.items()})
            if record is not None:
                self.journal.put_bounds(record, frontier.ids[piece], lower_s, self.scores[piece])

    def _place_chips(self, ranked: Ints, nodes: dict[int, ChipNodes]) -> None:
        """Place chips one after another, always against the current incumbent."""
        in_advance = Speculation(self.crew, self._worth_placing, lambda c: self._task(c, nodes))
        design, waiting = self.frontier.chips.design, self.mode.waiting
        left = Counter([] if waiting is None else design[waiting].tolist())
        complete = False
        for chip in ranked.tolist():
            if waiting is not None:
                self.report(_SHOWN[self.mode.phase], len(left))
                left[design[chip]] -= 1
                if not left[design[chip]]:
                    del left[design[chip]]
            if not self._may_win(chip):
                continue
            key = EvaluationKey(self.mode.phase, int(self.frontier.ids[chip]))
            stored = self.journal.evaluation(key)
            if stored is not None:
                self.apply(chip, stored)
                continue
            if not complete:
                # Bounds that were on record lack the times that a placement needs, also of the
                # chips that are sent ahead.
                again = [c for c in ranked.tolist() if c not in nodes and self._worth_placing(c)]
                missing, complete = np.array(again, np.int64), True
                self._bound(missing, self._open(missing), nodes, record=None)
            if self.stop():
                return
            placements = in_advance.result(chip, ranked)
            if placements is None:
                return
            place = partial(place_node, self.context, nodes[chip])
            _, trial = self._task(chip, nodes)
            lower_s, divisions = try_chip(self.rule, trial, replayed(placements, place))
            plans = self._placed(chip, nodes[chip], divisions)
            self.finish(chip, key, ChipEvaluation(lower_s, plans))

    def _worth_placing(self, chip: int) -> bool:
        key = EvaluationKey(self.mode.phase, int(self.frontier.ids[chip]))
        return self._may_win(chip) and self.journal.evaluation(key) is None

    def _may_win(self, chip: int) -> bool:
        return bool(self.scores[chip] > self.to_beat(np.array([chip]))[0])

    def _task(self, chip: int, nodes: dict[int, ChipNodes]) -> ChipTask:
        plans = self.frontier.plans.get(chip, {})
        score, own_tolerance = self.score, self.mode.own_tolerance
        if self.mode.rivals is not None:
            slack = 1.0 + (self.tolerance if own_tolerance is None else own_tolerance)
            score = float(self.to_beat(np.array([chip]))[0]) / slack
        name, lower_s = chip_name(self.frontier.chips, chip), self.frontier.lower_s[chip]
        best_step_s = {model: plan.step_time_s for model, plan in plans.items()}
        to_beat = score * float(self.frontier.price[chip])
        cutoff_s, plans_only = float(self.cutoff_s(np.array([chip]))[0]), self.mode.plans_only
        trial = Trial(name, lower_s, best_step_s, to_beat, cutoff_s, plans_only, own_tolerance)
        return nodes[chip], trial

    def _placed(
        self, chip: int, nodes: ChipNodes, divisions: Mapping[int, tuple[int, Division]]
    ) -> dict[int, EvaluatedPlan]:
        plans = dict(self.frontier.plans.get(chip, {}))
        effort: Effort
        for model, (v, division) in divisions.items():
            node = nodes.position(v)
            traffic = float(nodes.hbm_bytes[node]), float(nodes.glb_bytes[node])
            pass_s, effort = nodes.upper_s[node], "quick"
            if self.mode.own_tolerance is not None:
                pass_s, effort = linear_pass_s(self.context, nodes, v)[1], "linear"
            plans[model] = self.evaluated_plan(chip, v, division, pass_s, traffic, effort)
        return plans

    def evaluated_plan(
        self,
        chip: int,
        v: int,
        division: Division,
        pass_s: Floats,
        traffic: tuple[float, float],
        effort: Effort,
        limit_s: float | None = None,
    ) -> EvaluatedPlan:
        variant, chips = self.variants.variants[v], self.frontier.chips
        step_time_s, pp, dp = division.step_time_s, division.pipeline, division.data
        repeats = self.context.repeats[v]
        energy = energy_of_work(
            variant_work(self.context.work, repeats, traffic, chips, chip),
            variant,
            area_mm2=float(chips.area_mm2[chip]),
            step_time_s=step_time_s,
            devices=pp * variant.width * dp,
            recompute_share=division.recompute_share,
            energy=energy_of_chip(chips, chip),
        )
        return EvaluatedPlan(step_time_s, v, pass_s, pp, dp, energy, effort, limit_s)

    def finish(self, chip: int, key: EvaluationKey, evaluation: ChipEvaluation) -> None:
        self.apply(chip, evaluation)
        score = self.evaluated_score(chip)
        self.journal.put_evaluation(key, evaluation, score, self.frontier.chips, chip)

    def apply(self, chip: int, evaluation: ChipEvaluation) -> None:
        """Apply an evaluation, new or on record."""
        self._set_row(chip, evaluation.lower_s, stage=2)
        self.frontier.plans[chip] = dict(evaluation.plans)
        if self.mode.phase == "rivals" and self.mode.rivals is not None:
            self.mode.rivals.add(chip, self.evaluated_score(chip))
        elif not self.mode.plans_only:
            self.accept(chip, self.evaluated_score(chip))

    def _set_row(self, chip: int, row: Floats, stage: int) -> None:
        self.frontier.lower_s[chip] = row
        self.frontier.stage[chip] = max(stage, self.frontier.stage[chip])
        self.scores[chip] = self.rule.scores(row[None, :])[0] / self.frontier.price[chip]

    def designs_of(self, chips: Ints | Bools) -> int:
        """Count the designs of chips; a chip is a design with a memory."""
        return len(np.unique(self.frontier.chips.design[chips]))

    def report(self, phase: str, left: int) -> None:
        """Report how many designs are left, of all that the certificate counts."""
        total, bound = len(self.space), self.bound()
        best = None if self.best is None else int(self.frontier.ids[self.best])
        self.journal.progress(phase, left, total, best, self.score, bound)
        if self.progress is not None:
            self.progress(phase, left, total, self.score, bound)
