"""The search for the best mapping on one wafer, with a bound on everything it did not try.

Candidates are (microbatch, shape of a stage's rectangle, number of stages), best bound first
(`bounds.StepBound.equal_s`: peak rates at first, operators when a candidate comes to the front, the
exact part's fastest layer before it is solved). A candidate whose bound is no better than the best
mapping known is never solved. The bound on all mappings, whatever their tiling of the wafer, is
`StepBound.lowest`.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from atoll.errors import InfeasibleError
from atoll.fabric.mesh import Rectangle, snake
from atoll.hardware.wafer import Wafer
from atoll.step.certificate import relative_gap
from atoll.units import format_bytes
from atoll.wafer.bounds.step_bounds import Lowest, StepBound
from atoll.wafer.encoding.block import make_block
from atoll.wafer.encoding.genes import ONE_F_ONE_B, SCHEDULES
from atoll.wafer.evaluate import Evaluation, evaluate
from atoll.wafer.faults import Faults, map_around
from atoll.wafer.stages import INFINITY, MANY_CODES, Options, Planner
from atoll.wafer.tiling import pack

MICROBATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
QUICK_CODES = 100  # instead of MANY_CODES when many wafers are compared
MOST_SOLVED = 10  # candidates solved on one wafer; the bound covers the others
QUICK_SOLVED = 6  # the same, of those that fit, when many wafers are compared
QUICK_TRIED = 10  # the same, of all
MOST_HELPED = 4  # candidates tried with helpers where nothing fits without
MOST_SUGGESTED = 3  # pipelines of unequal stages that the bound suggests

Progress = Callable[[str, int, int, float, float], None]


@dataclass(frozen=True, order=True)
class Candidate:
    bound_s: float
    microbatch: int
    width: int
    height: int
    stages: int


@dataclass(frozen=True)
class Found:
    """The best mapping on a wafer and how good it is."""

    best: Evaluation
    bound_s: float
    """No mapping of the encoding on this wafer has a shorter step."""
    solved: int
    runners_up: tuple[Evaluation, ...] = ()

    @property
    def gap(self) -> float:
        # Throughput is the inverse of the step.
        return relative_gap(self.bound_s, self.best.step_s)


class WaferSearch:
    """One model on one wafer."""

    def __init__(
        self, wafer: Wafer, model: str, batch: int, sequence: int, options: Options | None = None,
        microbatches: Sequence[int] = MICROBATCHES, progress: Progress | None = None,
        most_codes: int = MANY_CODES, accept: Callable[[Candidate], bool] | None = None,
    ) -> None:  # fmt: skip
        self.accept = accept
        self.most_codes = most_codes
        self.wafer, self.model, self.batch, self.sequence = wafer, model, batch, sequence
        chosen = options or Options()
        self.fine = Planner(wafer, model, batch, sequence, chosen, most_codes)
        # Candidates are compared with the genes that matter most; the best are solved with all.
        rough = replace(chosen, each_way=False, passes=False, offload=False)
        modes = (rough, replace(rough, streaming=False)) if chosen.streaming else (rough,)
        self.planners = tuple(
            Planner(wafer, model, batch, sequence, mode, most_codes) for mode in modes
        )
        self.planner = self.planners[0]
        self.microbatches = tuple(b for b in microbatches if b <= batch)
        self.progress = progress
        self.bounds = StepBound((self.fine,), self.microbatches)
        """On everything; `_reach` is on what candidates are compared with."""
        self._reach = StepBound(self.planners, self.microbatches)
        self._overall_s: float | None = None
        """No mapping has a shorter step, as far as is known; None before the first mapping."""

    # -- candidates ----------------------------------------------------------------------------

    def candidates(self, bounds: StepBound | None = None) -> list[Candidate]:
        """All that may fit, with what they take at peak rates at least."""
        known = bounds or self._reach
        found = []
        rows, columns = self.wafer.rows, self.wafer.columns
        for microbatch in self.microbatches:
            layers = make_block(self.model, microbatch, self.sequence).layers
            for width in range(1, columns + 1):
                for height in range(1, rows + 1):
                    most = min(layers, (columns // width) * (rows // height))
                    for stages in range(1, most + 1):
                        bound = known.equal_s(microbatch, width * height, stages, INFINITY)
                        found.append(Candidate(bound, microbatch, width, height, stages))
        return sorted(
            c for c in found if c.bound_s < INFINITY and (self.accept is None or self.accept(c))
        )

    # -- the search ----------------------------------------------------------------------------

    def ideal_step_s(self) -> float:
        """All work over all dies at peak rates: a bound that needs no solving."""
        return min(self.planner.rounds(b) * self.bounds.work_s(b) for b in self.microbatches)

    def run(self, seeds: Sequence[Evaluation] = ()) -> Found:
        """`seeds` are mappings known already (baselines are points of the same space)."""
        if not any(seed.fits for seed in seeds):
            self._check_memory()
        queue = self.candidates()
        total = len(queue)
        kept = [seed for seed in (*seeds, self._seed(queue)) if seed is not None and seed.fits]
        best = min(kept, key=lambda e: e.step_s) if kept else None
        solved = 0
        self._report("mappings", len(queue), total, best)
        while queue:
            candidate = heapq.heappop(queue)
            limit = INFINITY if best is None else best.step_s
            if candidate.bound_s >= limit:
                break
            sharper = self._sharper(candidate, limit)
            if sharper is not candidate:
                if sharper.bound_s < limit:
                    heapq.heappush(queue, sharper)
                continue
            # Bytes moved bound no time: mappings chosen by them alone are not pruned by bounds.
            loose = self.most_codes <= QUICK_CODES or self.planner.options.volume_only
            quick = loose and (len(kept) > QUICK_SOLVED or solved >= QUICK_TRIED)
            if solved >= MOST_SOLVED or quick:
                break
            for planner in sorted(self.planners, key=lambda p: self._fastest_s(p, candidate)):
                limit = INFINITY if best is None else best.step_s
                if self._fastest_s(planner, candidate) >= limit:
                    continue
                solved += 1
                found = self._solve(candidate, limit, planner)
                if found is not None:
                    kept.append(found)
                    if best is None or found.step_s < best.step_s:
                        best = found
            self._report("mappings", len(queue), total, best)
        mixed = self._mixed(best)
        if mixed is not None:
            kept.append(mixed)
            best = mixed
        self._report("refining", len(queue), total, best)
        best = self._polished(kept, self.candidates(self.bounds) if best is None else ())
        if best is None:
            raise InfeasibleError(
                f"model {self.model}: no mapping fits wafer {self.wafer.name} with batch "
                f"{self.batch} and sequence {self.sequence}, even with everything recomputed; use "
                "more memory a die, a shorter sequence or a smaller model."
            )
        best, lowest = self._suggested(best, kept)
        self._overall_s = lowest.bound_s
        self._report("proven", 0, total, best)
        kept.sort(key=lambda e: e.step_s)
        others = tuple(e for e in kept if e is not best)
        return Found(best, lowest.bound_s, solved, others[:3])

    def _report(self, phase: str, left: int, total: int, best: Evaluation | None) -> None:
        """How far the search is, under the bound on all mappings: that of the certificate.

        It is worked out with or without a listener, so that nobody's answer depends on one.
        """
        if best is None:
            return
        if self._overall_s is None:
            self._overall_s = self.bounds.lowest(best.step_s, solve=False).bound_s
        if self.progress is not None:
            bound = self.batch / min(self._overall_s, best.step_s)
            self.progress(phase, left, total, best.samples_per_s, bound)

    def _polished(
        self, kept: list[Evaluation], candidates: Sequence[Candidate]
    ) -> Evaluation | None:
        """The best with every gene free: gradient codes, ways of collectives, helpers.

        Where nothing fits so far, `candidates` are tried: stages that help each other may fit.
        """
        for candidate in [c for c in candidates if c.stages > 1][:MOST_HELPED]:
            found = self._solve(candidate, INFINITY, self.fine)
            if found is not None:
                kept.append(found)
        if not kept:
            return None
        best = min(kept, key=lambda e: e.step_s)
        rectangles = [stage.rectangle for stage in best.mapping.stages]
        found = best_plan(self.fine, rectangles, best.mapping.microbatch, best.step_s)
        if found is None or found.step_s >= best.step_s:
            return best
        kept.append(found)
        return found

    def _suggested(
        self, best: Evaluation, kept: list[Evaluation]
    ) -> tuple[Evaluation, Lowest]:
        """The bound; the pipeline that attains it is tried if its sizes can be laid on the grid."""
        for _ in range(MOST_SUGGESTED):
            lowest = self.bounds.lowest(best.step_s)
            sizes = [dies for dies, _ in reversed(lowest.stages)]
            if self.accept is not None or len(set(sizes)) < 2:
                break
            rectangles = pack(self.wafer.rows, self.wafer.columns, sizes)
            found = [
                best_plan(planner, rectangles, lowest.microbatch, best.step_s)
                for planner in self.planners
                if rectangles is not None
            ]
            better = [e for e in found if e is not None and e.step_s < best.step_s]
            if not better:
                break
            kept += better
            best = min(better, key=lambda e: e.step_s)
        return best, self.bounds.lowest(best.step_s)

    def _sharper(self, candidate: Candidate, limit: float) -> Candidate:
        """The candidate under what its operators take; itself if that is known already."""
        dies = candidate.width * candidate.height
        self._reach.layers.sharpen(candidate.microbatch, dies, solve=False)
        bound = self._reach.equal_s(candidate.microbatch, dies, candidate.stages, limit)
        if bound <= candidate.bound_s * (1 + 1e-9):
            return candidate
        return replace(candidate, bound_s=bound)

    def _fastest_s(self, planner: Planner, candidate: Candidate) -> float:
        """No step is shorter that this planner finds for the candidate."""
        layers = make_block(self.model, candidate.microbatch, self.sequence).layers
        layer = planner.fastest_s(candidate.width, candidate.height, candidate.microbatch)
        rounds, share = planner.rounds(candidate.microbatch), -(-layers // candidate.stages)
        fill = 0.0 if planner.options.zero_bubble else (layers - share) * layer
        return rounds * share * layer + fill

    def _mixed(self, best: Evaluation | None) -> Evaluation | None:
        """Stages of different shapes, where equal ones leave dies idle or do not fit at all."""
        full = best is not None and len(set(best.mapping.dies)) == self.wafer.dies
        if full or self.accept is not None:
            return None
        found = map_around(self.planner, Faults(), [b for b in self.microbatches if b <= 2])
        better = found is not None and (best is None or found.step_s < best.step_s)
        return found if better else None

    def _check_memory(self) -> None:
        block = make_block(self.model, 1, self.sequence)
        needed = self.planner.options.states.held * block.parameters
        wafer_bytes = self.wafer.memory_bytes * self.wafer.dies
        if needed > wafer_bytes and "external" not in self.planner.options.homes:
            raise InfeasibleError(
                f"model {self.model}: weights, gradients and optimizer take "
                f"{format_bytes(needed)}, but wafer {self.wafer.name} has "
                f"{format_bytes(wafer_bytes)}; even with full recomputation it does not fit: use a "
                "smaller model or more DRAM a die."
            )

    def _seed(self, queue: Sequence[Candidate]) -> Evaluation | None:
        """A first mapping from a plain candidate, so that bounds prune from the start."""
        tried = 0
        for candidate in queue:
            dies = candidate.width * candidate.height
            small = dies <= 8 and candidate.microbatch == 1
            if small and candidate.stages * dies >= self.wafer.dies - 8:
                tried += 1
                found = self._solve(candidate, INFINITY)
                if found is not None or tried >= 6:
                    return found
        return None

    def _solve(
        self, candidate: Candidate, limit: float, planner: Planner | None = None
    ) -> Evaluation | None:
        rectangles = snake(
            self.wafer.rows, self.wafer.columns, candidate.width, candidate.height,
            candidate.stages,
        )  # fmt: skip
        if rectangles is None:
            return None
        return best_plan(planner or self.planner, rectangles, candidate.microbatch, limit)


def best_plan(
    planner: Planner, rectangles: Sequence[Rectangle], microbatch: int, limit: float = INFINITY
) -> Evaluation | None:
    """The best that fits, run under either schedule; solved for the memory of both as well where
    every gene is free.
    """
    several = len(rectangles) > 1 and planner.options.zero_bubble
    schedules = SCHEDULES if several else (ONE_F_ONE_B,)
    best: Evaluation | None = None
    for solved_for in schedules if planner.options.each_way else (ONE_F_ONE_B,):
        mapping = planner.plan(rectangles, microbatch, stop_s=limit, schedule=solved_for)
        if mapping is None:
            continue
        for schedule in schedules:
            found = evaluate(planner.wafer, replace(mapping, schedule=schedule))
            if found.fits and (best is None or found.step_s < best.step_s):
                best = found
    return best
