"""Search for the best mapping on one wafer, with a bound on all mappings.

Candidates are (microbatch, shape of a stage's rectangle, number of stages), with bounds
(`bounds.StepBound.equal_s`) that are sharpened when a candidate reaches the front of the queue:
peak rates first, then operators, then the exact solver's fastest layer on its shape. Those with the
best bounds are solved first, then the best of every number of stages, then others, each with every
variable free. A candidate whose bound is no better than the best mapping is never solved. The
bound on all mappings, with any tiling of the wafer, is `StepBound.lowest`. Expensive computations
are pieces (`pieces.py`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from operator import attrgetter
from typing import Any

from atoll.base.errors import InfeasibleError
from atoll.base.stopping import StopCheck, StoppedError, check_stop, never
from atoll.base.units import format_bytes
from atoll.driver import Progress
from atoll.fabric.mesh import Rectangle, snake
from atoll.hardware.wafer import Wafer
from atoll.step.certificate import relative_gap
from atoll.wafer.bounds.layer_bounds import COUNTS, MAX_CODES, OPERATORS
from atoll.wafer.bounds.step_bounds import LowestBound, StepBound
from atoll.wafer.encoding.block import make_block
from atoll.wafer.encoding.mapping import from_dict
from atoll.wafer.evaluate import MappingCost, evaluate
from atoll.wafer.pieces import WaferPieces, plain_data, plan_call
from atoll.wafer.staging.faults import Faults
from atoll.wafer.staging.planner import INFINITY, MANY_CODES, MICROBATCHES, WaferOptions
from atoll.wafer.staging.tiling import pack

QUICK_CODES = 100  # instead of MANY_CODES when many wafers are compared
MOST_SOLVED = 30  # candidates solved on one wafer; the bound covers the others
QUICK_SOLVED = 11  # the same when many wafers are compared
FIRST_SOLVED, QUICK_FIRST = 10, 1  # of these, the candidates with the best bounds come first
LEAST_GAIN = 1e-3  # share of a step: candidates whose bounds promise less are not solved
SMALL = 8  # dies of a small stage
LARGE = 128  # dies: on larger wafers a mapping of small stages is solved first
UPCOMING = 3  # candidates prefetched for other cores
_STEP_S = attrgetter("step_s")


@dataclass(frozen=True, order=True)
class PipelineShape:
    """Candidate: pipelines of equal stages, with a lower bound on their step."""

    bound_s: float
    microbatch: int
    width: int
    height: int
    stages: int


@dataclass(frozen=True)
class SearchOutcome:
    """The best mapping on a wafer and its bound."""

    best: MappingCost
    bound_s: float
    """Lower bound on the step of every mapping on this wafer."""
    solved: int
    runners_up: tuple[MappingCost, ...] = ()
    stopped: bool = False
    """Whether the search ended early."""

    @property
    def gap(self) -> float:
        # Throughput is the inverse of the step.
        return relative_gap(self.bound_s, self.best.step_s)


class WaferSearch:
    """One model on one wafer."""

    def __init__(
        self, wafer: Wafer, model: str, batch: int, sequence: int,
        options: WaferOptions | None = None, microbatches: Sequence[int] = MICROBATCHES,
        progress: Progress | None = None, most_codes: int = MANY_CODES,
        accept: Callable[[PipelineShape], bool] | None = None, stop: StopCheck = never,
    ) -> None:  # fmt: skip
        self.accept = accept
        self.wafer, self.model, self.batch, self.sequence = wafer, model, batch, sequence
        problem = wafer, model, batch, sequence, options or WaferOptions()
        self.pieces = WaferPieces(*problem, most_codes, stop)
        self.pieces.kinds["search"] = self._search_piece
        self.planner = self.pieces.planner
        self.quick = most_codes <= QUICK_CODES or self.planner.options.volume_only
        """Whether to try less: many wafers are compared, or bounds on time are loose."""
        self.microbatches = tuple(b for b in microbatches if b <= batch)
        self.progress = progress
        self.bounds = StepBound(self.planner, self.microbatches, self.pieces.size)
        self._overall_s: float | None = None
        """Lower bound on every mapping's step; None before the first mapping."""
        self._pool: list[MappingCost] = []
        """Mappings that fit: seeds and solved ones."""
        self._total = 0
        """Candidates at the start."""
        self._solved = 0
        """Candidates solved, at most `MOST_SOLVED`."""

    # -- candidates ----------------------------------------------------------------------------

    def candidates(self) -> list[PipelineShape]:
        """Return all that may fit, with lower bounds at peak rates."""
        candidates = []
        rows, columns = self.wafer.rows, self.wafer.columns
        for microbatch in self.microbatches:
            layers = make_block(self.model, microbatch, self.sequence).layers
            bound_s = cache(partial(self.bounds.equal_s, microbatch, cap_s=INFINITY))
            for width in range(1, columns + 1):
                check_stop(self.planner.stop)
                for height in range(1, rows + 1):
                    most_stages = min(layers, (columns // width) * (rows // height))
                    for stages in range(1, most_stages + 1):
                        bound = bound_s(width * height, stages)
                        candidates.append(PipelineShape(bound, microbatch, width, height, stages))
        accept = self.accept or (lambda candidate: True)
        return sorted(c for c in candidates if c.bound_s < INFINITY and accept(c))

    # -- the search ----------------------------------------------------------------------------

    def ideal_step_s(self) -> float:
        """Return the time of all work on all dies at peak rates: a bound without solving."""
        return min(self.planner.rounds(b) * self.bounds.work_s(b) for b in self.microbatches)

    def run(self, seeds: Sequence[MappingCost] = ()) -> SearchOutcome:
        """Search from `seeds` such as baselines, whose microbatches the bound then covers too."""
        seeded = {seed.mapping.microbatch for seed in seeds if seed.fits}
        self.microbatches = (*self.microbatches, *sorted(seeded - {*self.microbatches}))
        self.bounds.microbatches = self.microbatches
        self._pool = [seed for seed in seeds if seed.fits]
        stopped = False
        try:
            bound_s = self._solve_and_bound()
        except StoppedError:
            if not self._pool:
                raise
            stopped = True
            bound_s = min(self._limit_s(0.0), self._overall_s or self.ideal_step_s())
        best, *slower = sorted(self._pool, key=_STEP_S)
        return SearchOutcome(best, bound_s, self._solved, tuple(slower[:3]), stopped)

    def _solve(self, shape: PipelineShape, limit_s: float) -> None:
        """Add the best mapping below the limit to the pool, if there is one."""
        cost = self.pieces.plan(self._rectangles(shape), shape.microbatch, limit_s)
        self._pool += [] if cost is None else [cost]

    @property
    def _best(self) -> MappingCost | None:
        return min(self._pool, key=_STEP_S, default=None)

    def _limit_s(self, gain: float = LEAST_GAIN) -> float:
        """Return the step of the best mapping less this share of it."""
        best = self._best
        return INFINITY if best is None else best.step_s * (1.0 - gain)

    def _solve_and_bound(self) -> float:
        """Add every solved mapping to the pool; return the bound."""
        if not self._pool:
            self._check_memory()
        queue = self.candidates()
        self._total = len(queue)
        if not self._pool and self.wafer.dies > LARGE:
            self._solve_small_stages(queue)
        self._report("mappings", len(queue))
        first = QUICK_FIRST if self.quick else FIRST_SOLVED
        while self._solved < first and self._solve_next(queue, [queue] * UPCOMING):
            pass
        counts = dict.fromkeys(candidate.stages for candidate in sorted(queue))
        queues = [[c for c in queue if c.stages == n] for n in counts]
        for number, stage_queue in enumerate(queues, 1):
            self._solve_next(stage_queue, queues[number : number + UPCOMING])
        unsolved = [candidate for stage_queue in queues for candidate in stage_queue]
        while self._solve_next(unsolved, [unsolved] * UPCOMING):
            pass
        self._solve_mixed_shapes()
        self._report("refining", len(unsolved))
        best = self._best
        if best is None:
            raise InfeasibleError(
                f"model {self.model}: no mapping fits wafer {self.wafer.name} with batch "
                f"{self.batch} and sequence {self.sequence}, even with everything recomputed; use "
                "more memory per die, a shorter sequence or a smaller model."
            )
        best, lowest = self._try_unequal_stages(*self._bound_best(best))
        self._overall_s = min(best.step_s, lowest.bound_s + self.wafer.step_s)
        self._report("proven", 0)
        return self._overall_s

    def _solve_small_stages(self, queue: Sequence[PipelineShape]) -> None:
        """Solve the best candidate of those with small stages, or with the smallest that fit: an
        answer for searches that end while the bounds of large stages are computed.
        """
        for most in (SMALL << power for power in range(self.wafer.dies.bit_length())):
            shapes = [c for c in queue if most // 2 < c.width * c.height <= most]
            if shapes and not self._pool:
                best = min(shapes, key=lambda c: (c.bound_s, abs(c.width - c.height)))
                self._solve(best, INFINITY)

    def _solve_next(self, queue: list[PipelineShape], later: Sequence[list[PipelineShape]]) -> bool:
        """Solve the candidate of the queue (a heap) with the best fully sharpened bound; return
        whether it promised more than the best mapping so far. `later`: the next queues.
        """
        heapq.heapify(queue)
        limit = self._limit_s()
        most = QUICK_SOLVED if self.quick else MOST_SOLVED
        candidate = self._pop_best(queue, limit)
        if candidate is None or self._solved >= most:
            return False
        self._solved += 1
        with closing(self._upcoming(later[: most - self._solved], limit)) as upcoming:
            # Lazily: bounds of the next candidates take long and only idle workers need them.
            self.pieces.prefetch(
                plan_call(self._rectangles(shape), shape.microbatch, limit)
                for shape in chain([candidate], upcoming)
            )
        self._solve(candidate, limit)
        self._report("mappings", len(queue))
        return True

    def _upcoming(
        self, queues: Sequence[list[PipelineShape]], limit: float
    ) -> Generator[PipelineShape, None, None]:
        """Yield the next candidate of each queue at this limit, without removing it."""
        popped = []
        try:
            for queue in queues:
                heapq.heapify(queue)
                candidate = self._pop_best(queue, limit)
                if candidate is not None:
                    popped.append((queue, candidate))
                    yield candidate
        finally:
            for queue, candidate in popped:
                heapq.heappush(queue, candidate)

    def _pop_best(self, queue: list[PipelineShape], limit: float) -> PipelineShape | None:
        """Pop the candidate of the heap with the best bound, fully sharpened, below the limit."""
        while queue and queue[0].bound_s < limit:
            check_stop(self.planner.stop)
            candidate = heapq.heappop(queue)
            sharper = self._sharper(candidate, limit)
            if sharper.bound_s <= candidate.bound_s * (1.0 + 1e-9):
                return candidate
            heapq.heappush(queue, sharper)
        return None

    def _report(self, phase: str, left: int) -> None:
        """Report progress with the certificate's bound (computed even without a listener)."""
        best = self._best
        if best is None:
            return
        if self._overall_s is None:
            self._overall_s = self.bounds.lowest(best.step_s, OPERATORS).bound_s
        if self.progress is not None:
            bound = self.batch / min(self._overall_s, best.step_s)
            self.progress(phase, left, self._total, best.samples_per_s, bound)

    def _bound_best(self, best: MappingCost) -> tuple[MappingCost, LowestBound]:
        """Return the best, solved over all codes if it is one group of all dies, and the bound."""
        microbatch, limit_s = best.mapping.microbatch, best.step_s
        solve_all = len(best.mapping.stages) == 1 and self._needs_all_codes(microbatch)
        self.pieces.prefetch([("whole", microbatch, limit_s)] if solve_all else [])
        lowest = self.bounds.lowest(best.step_s)
        cost = self.pieces.single_group(microbatch, limit_s) if solve_all else None
        if cost is None or cost.step_s >= best.step_s:
            return best, lowest
        self._pool.append(cost)
        return cost, self.bounds.lowest(cost.step_s)

    def _needs_all_codes(self, microbatch: int) -> bool:
        """Whether all dies as one group were solved over part of the codes, but could use all."""
        shape = self.wafer.columns, self.wafer.rows, microbatch
        solvable = self.planner.codes(*shape) <= MAX_CODES and not self.quick
        return solvable and not self.planner.complete(*shape)

    def _try_unequal_stages(
        self, best: MappingCost, overall: LowestBound
    ) -> tuple[MappingCost, LowestBound]:
        """Try the pipelines of unequal stages that attain a microbatch's bound, lowest first, until
        no microbatch may be faster than the best mapping; return the best and the bound.
        """
        lowest, microbatches, start = overall, list(self.microbatches), best
        tried: set[tuple[int, ...]] = set()
        while lowest.stages and self.accept is None:
            sizes = [dies for dies, _ in reversed(lowest.stages)]
            pipeline = lowest.microbatch, *sizes
            attempts = [] if pipeline in tried else self._unequal_layouts(sizes)
            tried.add(pipeline)
            calls = [plan_call(laid, lowest.microbatch, best.step_s) for laid in attempts]
            self.pieces.prefetch(calls)
            remaining = [b for b in microbatches if b != lowest.microbatch]
            # Bound first: meanwhile another core may solve the attempts, which seldom gain.
            next_bound = None
            if not self.quick:
                next_bound = self.bounds.lowest(best.step_s, microbatches=remaining, small=SMALL)
            better = self._fastest_attempt(attempts, lowest.microbatch, best)
            if better is not None:
                self._pool.append(better)
                best = better
                lowest = self.bounds.lowest(best.step_s, microbatches=microbatches, small=SMALL)
            elif next_bound is None:
                break
            else:
                microbatches, lowest = remaining, next_bound
        return best, overall if best is start else self.bounds.lowest(best.step_s)

    def _unequal_layouts(self, sizes: Sequence[int]) -> list[tuple[Rectangle, ...]]:
        """Return rectangles of unequal stages that fit the grid, also ordered by size."""
        rising = tuple(sorted(sizes))
        orders = (tuple(sizes), rising[::-1], rising) if len(set(sizes)) > 1 else ()
        grid = self.wafer.rows, self.wafer.columns
        packed = (pack(*grid, order) for order in dict.fromkeys(orders))
        return [rectangles for rectangles in packed if rectangles is not None]

    def _fastest_attempt(
        self, attempts: Sequence[Sequence[Rectangle]], microbatch: int, best: MappingCost
    ) -> MappingCost | None:
        """Return the fastest of these that is faster than `best`."""
        better = None
        for rectangles in attempts:
            cost = self.pieces.plan(rectangles, microbatch, best.step_s)
            if cost is not None and cost.step_s < best.step_s:
                best, better = cost, cost
        return better

    def _sharper(self, candidate: PipelineShape, limit: float) -> PipelineShape:
        """Sharpen a bound by the times of more operators, or by the shape's fastest layer."""
        bounds, stage_size = self.bounds, (candidate.microbatch, candidate.width * candidate.height)
        bound = bounds.equal_s(*stage_size, candidate.stages, limit)
        while bound <= candidate.bound_s * (1.0 + 1e-9):
            if not bounds.layers.sharpen(*stage_size, COUNTS):
                shape = candidate.width, candidate.height, candidate.microbatch
                layer_s = self.pieces.ask("fastest", *shape)
                bound = bounds.equal_s(*stage_size, candidate.stages, INFINITY, layer_s)
                break
            bound = bounds.equal_s(*stage_size, candidate.stages, limit)
        return replace(candidate, bound_s=max(candidate.bound_s, bound))

    def _solve_mixed_shapes(self) -> None:
        """Solve stages of different shapes if equal ones leave dies idle or do not fit."""
        best = self._best
        full = best is not None and len(set(best.mapping.dies)) == self.wafer.dies
        if not full and self.accept is None:
            few = [b for b in self.microbatches if b <= 2]
            cost = self.pieces.around(Faults(), few)
            if cost is not None and cost.step_s < self._limit_s(0.0):
                self._pool.append(cost)

    def _check_memory(self) -> None:
        block = make_block(self.model, 1, self.sequence)
        needed = self.planner.options.states.bytes_per_parameter * block.parameters
        wafer_bytes = self.wafer.memory_bytes * self.wafer.dies
        if needed > wafer_bytes and "external" not in self.planner.options.homes:
            raise InfeasibleError(
                f"model {self.model}: weights, gradients and optimizer take "
                f"{format_bytes(needed)}, but wafer {self.wafer.name} has "
                f"{format_bytes(wafer_bytes)}; even with full recomputation it does not fit: use a "
                "smaller model or more DRAM per die."
            )

    def _search_piece(self) -> Any:
        try:
            outcome = self.run()
        except InfeasibleError as error:
            return str(error)
        mappings = [plain_data(cost) for cost in (outcome.best, *outcome.runners_up)]
        return {"mappings": mappings, "bound_s": outcome.bound_s, "solved": outcome.solved}

    def run_as_piece(self) -> SearchOutcome:
        """Compute `run` as one piece."""
        record = self.pieces.ask("search")
        if isinstance(record, str):
            raise InfeasibleError(record)
        best, *runners_up = (evaluate(self.wafer, from_dict(m)) for m in record["mappings"])
        return SearchOutcome(best, record["bound_s"], record["solved"], tuple(runners_up))

    def _rectangles(self, candidate: PipelineShape) -> tuple[Rectangle, ...]:
        shape = candidate.width, candidate.height
        rectangles = snake(self.wafer.rows, self.wafer.columns, *shape, candidate.stages)
        assert rectangles is not None  # a candidate has no more stages than fit
        return rectangles
