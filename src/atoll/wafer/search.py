"""Search for the best mapping on one wafer, with a bound on all mappings.

Candidates are (microbatch, shape of a stage's rectangle, number of stages), with bounds
(`bounds.StepBound.equal_s`) that are sharpened when a candidate reaches the front of the queue:
peak rates first, then operators, then the exact solver's fastest layer on its shape. The best
candidate of every number of stages is solved first, then those with the best bounds. A candidate
whose bound is no better than the best mapping is never solved. The bound on all mappings, with any
tiling of the wafer, is `StepBound.lowest`. Expensive computations are pieces (`pieces.py`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from typing import Any

from atoll.base.errors import InfeasibleError
from atoll.base.stopping import StopCheck, StoppedError, never
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
from atoll.wafer.pieces import Call, WaferPieces, mapping_record, plan_call
from atoll.wafer.staging.faults import Faults
from atoll.wafer.staging.planner import INFINITY, MANY_CODES, MICROBATCHES, WaferOptions
from atoll.wafer.staging.tiling import pack

QUICK_CODES = 100  # instead of MANY_CODES when many wafers are compared
MOST_SOLVED = 20  # candidates solved on one wafer; the bound covers the others
QUICK_SOLVED = 10  # the same when many wafers are compared
LEAST_GAIN = 1e-3  # share of a step: candidates whose bounds promise less are not solved
SMALL = 8  # dies of a small stage
MOST_POLISHED = 3  # of the best mappings, solved again with every variable free
POLISH_GAIN = 0.03  # share of a step that polishing may gain
MOST_SMALL = 10  # candidates of small stages tried with every variable free
UPCOMING = 3  # candidates prefetched for other cores

Attempt = tuple[int, tuple[Rectangle, ...]]  # planner, rectangles of the stages


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
        arguments = wafer, model, batch, sequence
        self.pieces = WaferPieces(*arguments, options or WaferOptions(), most_codes, stop)
        self.pieces.kinds["search"] = self._search_piece
        self.planners, self.fine = self.pieces.rough, self.pieces.fine
        self.planner = self.planners[0]
        self.quick = most_codes <= QUICK_CODES or self.fine.options.volume_only
        """Whether to try less: many wafers are compared, or bounds on time are loose."""
        self.microbatches = tuple(b for b in microbatches if b <= batch)
        self.progress = progress
        self.bounds = StepBound((self.fine,), self.microbatches, partial(self.pieces.size, True))
        """Bounds with every variable free; `_rough_bounds`: with those that compare candidates."""
        rough_size = partial(self.pieces.size, False)
        self._rough_bounds = StepBound(self.planners, self.microbatches, rough_size)
        self._overall_s: float | None = None
        """Lower bound on every mapping's step; None before the first mapping."""
        self._pool: list[MappingCost] = []
        """Mappings that fit: seeds and solved ones."""
        self._total = 0
        """Candidates at the start."""
        self._solved = 0
        self._compared = 0
        """Candidates solved with few variables free, at most `MOST_SOLVED`."""
        self._free_costs: list[MappingCost] = []
        """Mappings solved with every variable free."""
        self._closed: set[PipelineShape] = set()
        """Solved candidates, with bound 0."""

    # -- candidates ----------------------------------------------------------------------------

    def candidates(self, bounds: StepBound | None = None) -> list[PipelineShape]:
        """Return all that may fit, with lower bounds at peak rates."""
        step_bound = bounds or self._rough_bounds
        candidates = []
        rows, columns = self.wafer.rows, self.wafer.columns
        for microbatch in self.microbatches:
            layers = make_block(self.model, microbatch, self.sequence).layers
            bound_s = cache(partial(step_bound.equal_s, microbatch, cap_s=INFINITY))
            for width in range(1, columns + 1):
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
        """Search from `seeds`, mappings of the same space such as baselines; their microbatches are
        searched too, so that the bound covers them.
        """
        seeded = {seed.mapping.microbatch for seed in seeds if seed.fits}
        self.microbatches = (*self.microbatches, *sorted(seeded - {*self.microbatches}))
        self.bounds.microbatches = self._rough_bounds.microbatches = self.microbatches
        self._pool = [seed for seed in seeds if seed.fits]
        stopped = False
        try:
            bound_s = self._solve_and_bound()
        except StoppedError:
            if not self._pool:
                raise
            stopped = True
            bound_s = min(self._limit_s(0.0), self._overall_s or self.ideal_step_s())
        best, *slower = sorted(self._pool, key=_step_s)
        return SearchOutcome(best, bound_s, self._solved, tuple(slower[:3]), stopped)

    @property
    def _best(self) -> MappingCost | None:
        return min(self._pool, key=_step_s, default=None)

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
        self._report("mappings", len(queue))
        self._solve_small_stages()
        counts = dict.fromkeys(candidate.stages for candidate in queue)
        queues = [[c for c in queue if c.stages == n and self._is_open(c)] for n in counts]
        for number, stage_queue in enumerate(queues, 1):
            self._solve_next(stage_queue, queues[number : number + UPCOMING])
        solvable = [candidate for candidate in queue if self._is_open(candidate)]
        while self._solve_next(solvable, [solvable] * UPCOMING):
            pass
        self._solve_mixed_shapes()
        self._report("refining", len(solvable))
        self._polish()
        best = self._best
        if best is None:
            raise InfeasibleError(
                f"model {self.model}: no mapping fits wafer {self.wafer.name} with batch "
                f"{self.batch} and sequence {self.sequence}, even with everything recomputed; use "
                "more memory a die, a shorter sequence or a smaller model."
            )
        best, lowest = self._try_unequal_stages(*self._bound_best(best))
        self._overall_s = min(best.step_s, lowest.bound_s + self.wafer.step_s)
        self._report("proven", 0)
        return self._overall_s

    def _solve_small_stages(self) -> None:
        """Solve pipelines of small stages with every variable free: quick, and limits others."""
        small = [c for c in self.candidates(self.bounds) if c.width * c.height <= SMALL]
        queue, fine = [c for c in small if c.stages > 1], len(self.planners)
        for _ in range(1 if self.quick else MOST_SMALL):
            candidate = self._pop_best(queue, self._limit_s(POLISH_GAIN), self.bounds, (fine,))
            if candidate is None:
                break
            self._closed.add(replace(candidate, bound_s=0.0))
            limit = self._limit_s()
            self.pieces.prefetch(self._plan_calls(candidate, limit, (fine,)))
            # After prefetching: the first bound on all mappings takes as long as a candidate.
            self._report("mappings", len(queue))
            cost = self._solve(candidate, limit, fine)
            if cost is not None:
                self._free_costs.append(cost)
        self._report("mappings", len(queue))

    def _is_open(self, candidate: PipelineShape) -> bool:
        return replace(candidate, bound_s=0.0) not in self._closed

    def _solve_next(self, queue: list[PipelineShape], later: Sequence[list[PipelineShape]]) -> bool:
        """Solve the candidate of the queue (a heap) with the best fully sharpened bound; return
        whether it promised more than the best mapping so far. `later`: the next queues.
        """
        heapq.heapify(queue)
        limit = self._limit_s()
        most = QUICK_SOLVED if self.quick else MOST_SOLVED
        candidate = self._pop_best(queue, limit, self._rough_bounds)
        if candidate is None or self._compared >= most:
            return False
        self._compared += 1
        self._closed.add(replace(candidate, bound_s=0.0))
        promising = self._promising(candidate, limit)
        with closing(self._upcoming(later[: most - self._compared], limit)) as upcoming:
            following = (self._plan_calls(c, limit, self._promising(c, limit)) for c in upcoming)
            calls = self._plan_calls(candidate, limit, promising)
            # Lazily: bounds of the next candidates take long and only idle workers need them.
            self.pieces.prefetch(
                chain(calls, chain.from_iterable(following), self._polish_calls()[:1])
            )
        for planner, fastest_s in promising.items():
            if fastest_s < limit:
                cost = self._solve(candidate, limit, planner)
                limit = limit if cost is None else min(limit, cost.step_s)
        self._report("mappings", len(queue))
        return True

    def _promising(self, candidate: PipelineShape, limit: float) -> dict[int, float]:
        """Return planners that may solve below the limit, fastest first, with bounds on steps."""
        numbers = range(len(self.planners))
        fastest = [(self._fastest_s(p, candidate, self._rough_bounds), p) for p in numbers]
        return {p: least_s for least_s, p in sorted(fastest) if least_s < limit}

    def _upcoming(
        self, queues: Sequence[list[PipelineShape]], limit: float
    ) -> Generator[PipelineShape, None, None]:
        """Yield the next candidate of each queue at this limit, without removing it."""
        popped = []
        try:
            for queue in queues:
                heapq.heapify(queue)
                candidate = self._pop_best(queue, limit, self._rough_bounds)
                if candidate is not None:
                    popped.append((queue, candidate))
                    yield candidate
        finally:
            for queue, candidate in popped:
                heapq.heappush(queue, candidate)

    def _pop_best(
        self, queue: list[PipelineShape], limit: float, bounds: StepBound,
        planners: Sequence[int] | None = None,
    ) -> PipelineShape | None:  # fmt: skip
        """Pop the candidate of the queue (a heap) with the best bound, fully sharpened with these
        planners (default: those that compare candidates); None if none is below the limit.
        """
        planners = range(len(self.planners)) if planners is None else planners
        while queue and queue[0].bound_s < limit:
            candidate = heapq.heappop(queue)
            sharper = self._sharper(candidate, limit, bounds, planners)
            if sharper.bound_s <= candidate.bound_s * (1.0 + 1e-9):
                return candidate
            heapq.heappush(queue, sharper)
        return None

    def _plan_calls(
        self, candidate: PipelineShape, limit: float, planners: Iterable[int]
    ) -> list[Call]:
        """Return the pieces in which these planners solve a candidate."""
        rectangles = self._rectangles(candidate)
        if rectangles is None:
            return []
        return [plan_call(planner, rectangles, candidate.microbatch, limit) for planner in planners]

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

    def _polish(self) -> None:
        """Solve the best again with every variable free: gradient codes, collectives, helpers."""
        self.pieces.prefetch(self._polish_calls())
        for start in self._worth_polishing():
            limit_s = self._limit_s(0.0)
            if start.step_s > limit_s * (1.0 + POLISH_GAIN):
                break
            shape = _stage_rectangles(start), start.mapping.microbatch
            self._keep_if_faster(self.pieces.plan(len(self.planners), *shape, limit_s))

    def _keep_if_faster(self, cost: MappingCost | None) -> None:
        if cost is not None and cost.step_s < self._limit_s(0.0):
            self._pool.append(cost)

    def _worth_polishing(self) -> list[MappingCost]:
        """Return the best mappings that polishing may make faster than the first."""
        fastest = sorted(self._pool, key=_step_s)[:MOST_POLISHED]
        near = [cost for cost in fastest if cost.step_s <= fastest[0].step_s * (1.0 + POLISH_GAIN)]
        return [cost for cost in near if not any(cost is free for free in self._free_costs)]

    def _polish_calls(self) -> list[Call]:
        """Return the pieces that polish the best mappings, as long as the first stays the best."""
        fine, limit = len(self.planners), self._limit_s(0.0)
        return [
            plan_call(fine, _stage_rectangles(cost), cost.mapping.microbatch, limit)
            for cost in self._worth_polishing()
        ]

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
        solvable = self.fine.codes(*shape) <= MAX_CODES and not self.quick
        return solvable and not self.fine.complete(*shape)

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
            calls = [plan_call(*attempt, lowest.microbatch, best.step_s) for attempt in attempts]
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

    def _unequal_layouts(self, sizes: Sequence[int]) -> list[Attempt]:
        """Return planners and rectangles of unequal stages that fit the grid, also by size."""
        orders = dict.fromkeys((tuple(sizes), *_by_size(sizes)) if len(set(sizes)) > 1 else ())
        packed = (pack(self.wafer.rows, self.wafer.columns, order) for order in orders)
        layouts = [rectangles for rectangles in packed if rectangles is not None]
        return [(p, rectangles) for rectangles in layouts for p in range(len(self.planners))]

    def _fastest_attempt(
        self, attempts: Sequence[Attempt], microbatch: int, best: MappingCost
    ) -> MappingCost | None:
        """Return the fastest of these that is faster than `best`."""
        better = None
        for planner, rectangles in attempts:
            cost = self.pieces.plan(planner, rectangles, microbatch, best.step_s)
            if cost is not None and cost.step_s < best.step_s:
                best, better = cost, cost
        return better

    def _sharper(
        self, candidate: PipelineShape, limit: float, bounds: StepBound, planners: Sequence[int]
    ) -> PipelineShape:
        """Sharpen a bound by the times of more operators, or by the shape's fastest layer."""
        stage_size = candidate.microbatch, candidate.width * candidate.height
        bound = bounds.equal_s(*stage_size, candidate.stages, limit)
        while bound <= candidate.bound_s * (1.0 + 1e-9):
            if not bounds.layers.sharpen(*stage_size, COUNTS):
                bound = min(self._fastest_s(p, candidate, bounds) for p in planners)
                break
            bound = bounds.equal_s(*stage_size, candidate.stages, limit)
        return replace(candidate, bound_s=max(candidate.bound_s, bound))

    def _fastest_s(self, planner: int, candidate: PipelineShape, bounds: StepBound) -> float:
        """Lower bound on the steps that this planner finds for the candidate."""
        shape = candidate.width, candidate.height
        layer_s = self.pieces.ask("fastest", planner, *shape, candidate.microbatch)
        pipeline = candidate.microbatch, shape[0] * shape[1], candidate.stages
        return bounds.equal_s(*pipeline, INFINITY, layer_s)

    def _solve_mixed_shapes(self) -> None:
        """Solve stages of different shapes if equal ones leave dies idle or do not fit."""
        best = self._best
        full = best is not None and len(set(best.mapping.dies)) == self.wafer.dies
        if not full and self.accept is None:
            few = [b for b in self.microbatches if b <= 2]
            self._keep_if_faster(self.pieces.around(Faults(), few))

    def _check_memory(self) -> None:
        block = make_block(self.model, 1, self.sequence)
        needed = self.planner.options.states.bytes_per_parameter * block.parameters
        wafer_bytes = self.wafer.memory_bytes * self.wafer.dies
        if needed > wafer_bytes and "external" not in self.planner.options.homes:
            raise InfeasibleError(
                f"model {self.model}: weights, gradients and optimizer take "
                f"{format_bytes(needed)}, but wafer {self.wafer.name} has "
                f"{format_bytes(wafer_bytes)}; even with full recomputation it does not fit: use a "
                "smaller model or more DRAM a die."
            )

    def _search_piece(self) -> Any:
        try:
            outcome = self.run()
        except InfeasibleError as error:
            return str(error)
        mappings = [mapping_record(cost) for cost in (outcome.best, *outcome.runners_up)]
        return {"mappings": mappings, "bound_s": outcome.bound_s, "solved": outcome.solved}

    def run_as_piece(self) -> SearchOutcome:
        """Compute `run` as one piece."""
        record = self.pieces.ask("search")
        if isinstance(record, str):
            raise InfeasibleError(record)
        best, *runners_up = (evaluate(self.wafer, from_dict(m)) for m in record["mappings"])
        return SearchOutcome(best, record["bound_s"], record["solved"], tuple(runners_up))

    def _rectangles(self, candidate: PipelineShape) -> tuple[Rectangle, ...] | None:
        shape = candidate.width, candidate.height
        return snake(self.wafer.rows, self.wafer.columns, *shape, candidate.stages)

    def _solve(self, candidate: PipelineShape, limit: float, planner: int) -> MappingCost | None:
        """Add the best mapping of a candidate by a planner to the pool."""
        self._solved += 1
        rectangles = self._rectangles(candidate)
        if rectangles is None:
            return None
        cost = self.pieces.plan(planner, rectangles, candidate.microbatch, limit)
        self._pool += [] if cost is None else [cost]
        return cost


def _step_s(cost: MappingCost) -> float:
    return cost.step_s


def _stage_rectangles(cost: MappingCost) -> list[Rectangle]:
    return [stage.rectangle for stage in cost.mapping.stages]


def _by_size(sizes: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the sizes in falling and in rising order."""
    rising = tuple(sorted(sizes))
    return rising[::-1], rising
