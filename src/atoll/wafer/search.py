"""The search for the best mapping on one wafer, with a bound on everything it did not try.

Candidates are (microbatch, shape of a stage's rectangle, number of stages), with bounds
(`bounds.StepBound.equal_s`) that grow sharper when a candidate comes to the front: peak rates at
first, then operators, then the exact part's fastest layer on its shape. The best of every number of
stages is solved first, so that no kind of mapping is left out; then those with the best bounds. A
candidate whose bound is no better than the best mapping known is never solved. The bound on all
mappings, whatever their tiling of the wafer, is `StepBound.lowest`.

What takes long is asked for in pieces (`pieces.py`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from atoll.driver import Progress
from atoll.errors import InfeasibleError
from atoll.fabric.mesh import Rectangle, snake
from atoll.hardware.wafer import Wafer
from atoll.step.certificate import relative_gap
from atoll.stopping import Asked, StoppedError, never
from atoll.units import format_bytes
from atoll.wafer.bounds.layer_bounds import COUNTS, OPERATORS, WHOLE_CODES
from atoll.wafer.bounds.step_bounds import Lowest, StepBound
from atoll.wafer.encoding.block import make_block
from atoll.wafer.encoding.mapping import from_dict
from atoll.wafer.evaluate import Evaluation, evaluate
from atoll.wafer.pieces import Call, Pieces, plan_call, told
from atoll.wafer.staging.faults import Faults
from atoll.wafer.staging.stages import INFINITY, MANY_CODES, MICROBATCHES, Options
from atoll.wafer.staging.tiling import pack

QUICK_CODES = 100  # instead of MANY_CODES when many wafers are compared
MOST_SOLVED = 20  # candidates solved on one wafer; the bound covers the others
QUICK_SOLVED = 10  # the same when many wafers are compared
CLOSE = 1e-3  # of a step: candidates whose bounds promise no more are not solved
SMALL = 8  # dies of a stage
MOST_POLISHED = 3  # of the best mappings, solved again with every variable free
POLISHED = 0.03  # of a step: what that may bring
MOST_HELPED = 4  # candidates tried with stages that help each other
MOST_FREED = 10  # candidates of small stages tried with every variable free
SOON = 3  # candidates that are looked at before their turn: another core may solve them


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
    stopped: bool = False
    """Whether the search had to end before it was done."""

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
        stop: Asked = never,
    ) -> None:  # fmt: skip
        self.accept = accept
        self.wafer, self.model, self.batch, self.sequence = wafer, model, batch, sequence
        asked = wafer, model, batch, sequence
        self.pieces = Pieces(*asked, options or Options(), most_codes, stop)
        self.pieces.kinds["search"] = self._search_piece
        self.planners, self.fine = self.pieces.rough, self.pieces.fine
        self.planner = self.planners[0]
        self.quick = most_codes <= QUICK_CODES or self.fine.options.volume_only
        """Whether less is tried: many wafers are compared, or bounds on seconds say little."""
        self.microbatches = tuple(b for b in microbatches if b <= batch)
        self.progress = progress
        self.bounds = StepBound((self.fine,), self.microbatches, partial(self.pieces.size, True))
        """On everything; `_reach` is on what candidates are compared with."""
        self._reach = StepBound(self.planners, self.microbatches, partial(self.pieces.size, False))
        self._overall_s: float | None = None
        """No mapping has a shorter step, as far as is known; None before the first mapping."""
        self._solved = 0
        self._compared = 0
        """Candidates solved with few variables free: `MOST_SOLVED` at most."""
        self._free: list[Evaluation] = []
        """Mappings found with every variable free."""
        self._closed: set[Candidate] = set()
        """Candidates that were solved, without their bounds."""

    # -- candidates ----------------------------------------------------------------------------

    def candidates(self, bounds: StepBound | None = None) -> list[Candidate]:
        """All that may fit, with what they take at peak rates at least."""
        known = bounds or self._reach
        found = []
        rows, columns = self.wafer.rows, self.wafer.columns
        for microbatch in self.microbatches:
            layers = make_block(self.model, microbatch, self.sequence).layers
            bound_s = cache(partial(known.equal_s, microbatch, cap_s=INFINITY))
            for width in range(1, columns + 1):
                for height in range(1, rows + 1):
                    most = min(layers, (columns // width) * (rows // height))
                    for stages in range(1, most + 1):
                        bound = bound_s(width * height, stages)
                        found.append(Candidate(bound, microbatch, width, height, stages))
        return sorted(
            c for c in found if c.bound_s < INFINITY and (self.accept is None or self.accept(c))
        )

    # -- the search ----------------------------------------------------------------------------

    def ideal_step_s(self) -> float:
        """All work over all dies at peak rates: a bound that needs no solving."""
        return min(self.planner.rounds(b) * self.bounds.work_s(b) for b in self.microbatches)

    def run(self, seeds: Sequence[Evaluation] = ()) -> Found:
        """`seeds` are mappings known already (baselines are points of the same space); microbatches
        that only they have are looked at too, so that the bound is one on them.
        """
        more = {seed.mapping.microbatch for seed in seeds if seed.fits} - {*self.microbatches}
        self.microbatches = (*self.microbatches, *sorted(more))
        self.bounds.microbatches = self._reach.microbatches = self.microbatches
        with self.pieces.beside():
            return self._found(seeds)

    def _found(self, seeds: Sequence[Evaluation] = ()) -> Found:
        kept = [seed for seed in seeds if seed.fits]
        stopped = False
        try:
            best, bound_s = self._run(kept)
        except StoppedError:
            if not kept:
                raise
            best, stopped = min(kept, key=_step_s), True
            bound_s = min(best.step_s, self._overall_s or self.ideal_step_s())
        kept.sort(key=_step_s)
        others = tuple(e for e in kept if e is not best)
        return Found(best, bound_s, self._solved, others[:3], stopped)

    def _run(self, kept: list[Evaluation]) -> tuple[Evaluation, float]:
        """The best mapping and the bound; what is found on the way is added to `kept`."""
        if not kept:
            self._check_memory()
        queue = self.candidates()
        total = len(queue)
        self._report("mappings", total, total, min(kept, key=_step_s, default=None))
        self._freed(kept, total)
        counts = dict.fromkeys(c.stages for c in queue)
        alike = [[c for c in queue if c.stages == n and self._is_open(c)] for n in counts]
        for number, same in enumerate(alike, 1):
            self._solve_next(same, kept, total, alike[number : number + SOON])
        solvable = [c for c in queue if self._is_open(c)]
        while self._solve_next(solvable, kept, total, [solvable] * SOON):
            pass
        best = min(kept, key=_step_s, default=None)
        mixed = self._mixed(best)
        if mixed is not None:
            kept.append(mixed)
            best = mixed
        self._report("refining", len(solvable), total, best)
        if self.fine.options.offload:
            self._helped(kept, total)
        best = self._polished(kept)
        if best is None:
            raise InfeasibleError(
                f"model {self.model}: no mapping fits wafer {self.wafer.name} with batch "
                f"{self.batch} and sequence {self.sequence}, even with everything recomputed; use "
                "more memory a die, a shorter sequence or a smaller model."
            )
        best, lowest = self._suggested(*self._bounded(best, kept), kept)
        self._overall_s = min(best.step_s, lowest.bound_s + self.wafer.step_s)
        self._report("proven", 0, total, best)
        return best, self._overall_s

    def _freed(self, kept: list[Evaluation], total: int) -> None:
        """Pipelines of small stages, with every variable free: they are solved in no time, and what
        they take limits the search of others.
        """
        small = [c for c in self.candidates(self.bounds) if c.width * c.height <= SMALL]
        queue, fine = [c for c in small if c.stages > 1], len(self.planners)
        for _ in range(1 if self.quick else MOST_FREED):
            best = min(kept, key=_step_s, default=None)
            known_s = INFINITY if best is None else best.step_s
            candidate = self._next(queue, known_s * (1.0 - POLISHED), self.bounds, (fine,))
            if candidate is None:
                break
            self._closed.add(replace(candidate, bound_s=0.0))
            limit = known_s * (1.0 - CLOSE)
            self.pieces.ahead(self._plans(candidate, limit, (fine,)))
            # Only now: the first bound on all mappings takes as long as a candidate.
            self._report("mappings", len(queue), total, best)
            self._solved += 1
            found = self._solve(candidate, limit, fine)
            if found is not None:
                kept.append(found)
                self._free.append(found)
        self._report("mappings", len(queue), total, min(kept, key=_step_s, default=None))

    def _is_open(self, candidate: Candidate) -> bool:
        return replace(candidate, bound_s=0.0) not in self._closed

    def _solve_next(
        self, queue: list[Candidate], kept: list[Evaluation], total: int,
        later: Sequence[list[Candidate]],
    ) -> bool:  # fmt: skip
        """Solve the candidate of the queue (a heap) whose bound, as sharp as it gets, is the best;
        whether there was one that promised more than the best mapping of `kept`. `later`: the
        queues of the next ones.
        """
        heapq.heapify(queue)
        best = min(kept, key=_step_s, default=None)
        limit = INFINITY if best is None else best.step_s * (1.0 - CLOSE)
        most = QUICK_SOLVED if self.quick else MOST_SOLVED
        candidate = self._next(queue, limit, self._reach)
        if candidate is None or self._compared >= most:
            return False
        self._compared += 1
        self._closed.add(replace(candidate, bound_s=0.0))
        promising = self._promising(candidate, limit)
        soon = self._plans(candidate, limit, promising)
        self.pieces.ahead(soon)
        for next_one in self._soon(later[: most - self._compared], limit, self._reach):
            soon += self._plans(next_one, limit, self._promising(next_one, limit))
            self.pieces.ahead(soon)
        self.pieces.ahead([*soon, *self._polishing(kept)[:1]])
        for planner, fastest_s in promising.items():
            if fastest_s < limit:
                self._solved += 1
                found = self._solve(candidate, limit, planner)
                if found is not None:
                    kept.append(found)
                    limit = min(limit, found.step_s)
        self._report("mappings", len(queue), total, min(kept, key=_step_s, default=None))
        return True

    def _promising(self, candidate: Candidate, limit: float) -> dict[int, float]:
        """Planners that may solve a candidate below the limit, the fastest first, with the least
        that they take.
        """
        numbers = range(len(self.planners))
        fastest = [(self._fastest_s(p, candidate, self._reach), p) for p in numbers]
        return {p: least_s for least_s, p in sorted(fastest) if least_s < limit}

    def _soon(
        self, queues: Sequence[list[Candidate]], limit: float, bounds: StepBound
    ) -> Iterator[Candidate]:
        """The next ones of some queues, which stay in them, should the limit stay as it is."""
        found = []
        for queue in queues:
            heapq.heapify(queue)
            candidate = self._next(queue, limit, bounds)
            if candidate is not None:
                found.append((queue, candidate))
                yield candidate
        for queue, candidate in found:
            heapq.heappush(queue, candidate)

    def _next(
        self, queue: list[Candidate], limit: float, bounds: StepBound,
        planners: Sequence[int] | None = None,
    ) -> Candidate | None:  # fmt: skip
        """Take the candidate of the queue (a heap) whose bound, as sharp as it gets with these
        planners (those that compare candidates, where none are named), is the best; None if none is
        below the limit.
        """
        planners = range(len(self.planners)) if planners is None else planners
        while queue and queue[0].bound_s < limit:
            candidate = heapq.heappop(queue)
            sharper = self._sharper(candidate, limit, bounds, planners)
            if sharper.bound_s <= candidate.bound_s * (1.0 + 1e-9):
                return candidate
            heapq.heappush(queue, sharper)
        return None

    def _helped(self, kept: list[Evaluation], total: int) -> None:
        """Pipelines whose stages leave saved tensors with each other: those that time alone would
        put first.
        """
        queue = [c for c in self.candidates(self.bounds) if c.stages > 1]
        helping = len(self.planners) + 1
        for left in reversed(range(MOST_HELPED)):
            best = min(kept, key=_step_s, default=None)
            limit = INFINITY if best is None else best.step_s * (1.0 - CLOSE)
            candidate = self._next(queue, limit, self.bounds)
            if candidate is None:
                break
            soon = self._plans(candidate, limit, (helping,))
            self.pieces.ahead(soon)
            for next_one in self._soon([queue] * min(left, SOON), limit, self.bounds):
                soon += self._plans(next_one, limit, (helping,))
            self.pieces.ahead([*soon, *self._polishing(kept)[:1]])
            found = self._solve(candidate, limit, helping)
            if found is not None:
                kept.append(found)
            self._report("refining", len(queue), total, min(kept, key=_step_s, default=None))

    def _plans(self, candidate: Candidate, limit: float, planners: Iterable[int]) -> list[Call]:
        """How these planners are asked to solve a candidate."""
        laid = self._laid(candidate)
        if laid is None:
            return []
        return [plan_call(p, laid, candidate.microbatch, limit) for p in planners]

    def _report(self, phase: str, left: int, total: int, best: Evaluation | None) -> None:
        """How far the search is, under the bound on all mappings: that of the certificate.

        It is worked out with or without a listener, so that nobody's answer depends on one.
        """
        if best is None:
            return
        if self._overall_s is None:
            self._overall_s = self.bounds.lowest(best.step_s, OPERATORS).bound_s
        if self.progress is not None:
            bound = self.batch / min(self._overall_s, best.step_s)
            self.progress(phase, left, total, best.samples_per_s, bound)

    def _polished(self, kept: list[Evaluation]) -> Evaluation | None:
        """The best with every gene free: gradient codes, ways of collectives, helpers."""
        best = min(kept, key=_step_s, default=None)
        self.pieces.ahead(self._polishing(kept))
        for start in self._near(kept):
            assert best is not None
            if start.step_s > best.step_s * (1.0 + POLISHED):
                break
            found = self.pieces.plan(
                len(self.planners), _laid_on(start), start.mapping.microbatch, best.step_s
            )
            if found is not None and found.step_s < best.step_s:
                kept.append(found)
                best = found
        return best

    def _near(self, kept: Sequence[Evaluation]) -> list[Evaluation]:
        """Of the best mappings those that free variables may make better than the first."""
        found = sorted(kept, key=_step_s)[:MOST_POLISHED]
        near = [e for e in found if e.step_s <= found[0].step_s * (1.0 + POLISHED)]
        return [e for e in near if not any(e is free for free in self._free)]

    def _polishing(self, kept: Sequence[Evaluation]) -> list[Call]:
        """How the best are asked for with every gene free, as long as the first stays the best."""
        fine, limit = len(self.planners), min((e.step_s for e in kept), default=INFINITY)
        near = self._near(kept)
        return [plan_call(fine, _laid_on(e), e.mapping.microbatch, limit) for e in near]

    def _bounded(self, best: Evaluation, kept: list[Evaluation]) -> tuple[Evaluation, Lowest]:
        """The best, over all codes where it is one group of all dies, and the bound."""
        asked = best.mapping.microbatch, best.step_s
        parted = len(best.mapping.stages) == 1 and self._parted(best.mapping.microbatch)
        self.pieces.ahead([("whole", *asked)] if parted else [])
        lowest = self.bounds.lowest(best.step_s)
        found = self.pieces.whole(*asked) if parted else None
        if found is None or found.step_s >= best.step_s:
            return best, lowest
        kept.append(found)
        return found, self.bounds.lowest(found.step_s)

    def _parted(self, microbatch: int) -> bool:
        """Whether all dies as one group were solved over parts of their codes, but need not be."""
        where = self.wafer.columns, self.wafer.rows, microbatch
        few = self.fine.codes(*where) <= WHOLE_CODES and not self.quick
        return few and not self.fine.complete(*where)

    def _suggested(
        self, best: Evaluation, overall: Lowest, kept: list[Evaluation]
    ) -> tuple[Evaluation, Lowest]:
        """The bound; pipelines of unequal stages that attain that of a microbatch are tried, lowest
        first, until no other microbatch may be faster than the best mapping.
        """
        lowest, left, before = overall, list(self.microbatches), best
        tried: set[tuple[int, ...]] = set()
        while lowest.stages and self.accept is None:
            sizes = [dies for dies, _ in reversed(lowest.stages)]
            asked = lowest.microbatch, *sizes
            tries = [] if asked in tried else self._unequal(sizes)
            tried.add(asked)
            self.pieces.ahead([plan_call(*t, lowest.microbatch, best.step_s) for t in tries])
            others = [b for b in left if b != lowest.microbatch]
            # Before these are solved, which seldom brings more: another core may do it meanwhile.
            next_one = None
            if not self.quick:
                next_one = self.bounds.lowest(best.step_s, among=others, small=SMALL)
            better = self._better(tries, lowest.microbatch, best)
            if better is not None:
                kept.append(better)
                best = better
                lowest = self.bounds.lowest(best.step_s, among=left, small=SMALL)
            elif next_one is None:
                break
            else:
                left, lowest = others, next_one
        return best, overall if best is before else self.bounds.lowest(best.step_s)

    def _unequal(self, sizes: Sequence[int]) -> list[tuple[int, tuple[Rectangle, ...]]]:
        """Planners and rectangles of stages of unequal sizes, where they can be laid on the grid:
        in this order, which for the bound is one of many, and by size.
        """
        orders = dict.fromkeys((tuple(sizes), *_by_size(sizes)) if len(set(sizes)) > 1 else ())
        laid = [pack(self.wafer.rows, self.wafer.columns, order) for order in orders]
        return [(p, r) for r in laid if r is not None for p in range(len(self.planners))]

    def _better(
        self, tries: Sequence[tuple[int, tuple[Rectangle, ...]]], microbatch: int, best: Evaluation
    ) -> Evaluation | None:
        """The best of these that is faster than the best known."""
        better = None
        for planner, rectangles in tries:
            found = self.pieces.plan(planner, rectangles, microbatch, best.step_s)
            if found is not None and found.step_s < best.step_s:
                best, better = found, found
        return better

    def _sharper(
        self, candidate: Candidate, limit: float, bounds: StepBound, planners: Sequence[int]
    ) -> Candidate:
        """The candidate under more of what its operators take; or, if that is known already, under
        the fastest layer of its shape.
        """
        where = candidate.microbatch, candidate.width * candidate.height
        bound = bounds.equal_s(*where, candidate.stages, limit)
        while bound <= candidate.bound_s * (1.0 + 1e-9):
            if not bounds.layers.sharpen(*where, COUNTS):
                bound = min(self._fastest_s(p, candidate, bounds) for p in planners)
                break
            bound = bounds.equal_s(*where, candidate.stages, limit)
        return replace(candidate, bound_s=max(candidate.bound_s, bound))

    def _fastest_s(self, planner: int, candidate: Candidate, bounds: StepBound) -> float:
        """No step is shorter that this planner finds for the candidate."""
        shape = candidate.width, candidate.height
        layer_s = self.pieces.ask("fastest", planner, *shape, candidate.microbatch)
        where = candidate.microbatch, shape[0] * shape[1], candidate.stages
        return bounds.equal_s(*where, INFINITY, layer_s)

    def _mixed(self, best: Evaluation | None) -> Evaluation | None:
        """Stages of different shapes, where equal ones leave dies idle or do not fit at all."""
        full = best is not None and len(set(best.mapping.dies)) == self.wafer.dies
        if full or self.accept is not None:
            return None
        found = self.pieces.around(Faults(), [b for b in self.microbatches if b <= 2])
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

    def _search_piece(self) -> Any:
        try:
            found = self._found()
        except InfeasibleError as error:
            return str(error)
        shown = [told(e) for e in (found.best, *found.runners_up)]
        return {"mappings": shown, "bound_s": found.bound_s, "solved": found.solved}

    def whole(self) -> Found:
        """`run` as one piece."""
        known = self.pieces.ask("search")
        if isinstance(known, str):
            raise InfeasibleError(known)
        best, *others = (evaluate(self.wafer, from_dict(m)) for m in known["mappings"])
        return Found(best, known["bound_s"], known["solved"], tuple(others))

    def _laid(self, candidate: Candidate) -> tuple[Rectangle, ...] | None:
        shape = candidate.width, candidate.height
        return snake(self.wafer.rows, self.wafer.columns, *shape, candidate.stages)

    def _solve(self, candidate: Candidate, limit: float, planner: int = 0) -> Evaluation | None:
        laid = self._laid(candidate)
        if laid is None:
            return None
        return self.pieces.plan(planner, laid, candidate.microbatch, limit)


def _step_s(found: Evaluation) -> float:
    return found.step_s


def _laid_on(found: Evaluation) -> list[Rectangle]:
    return [stage.rectangle for stage in found.mapping.stages]


def _by_size(sizes: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """From the largest, and from the smallest on."""
    rising = tuple(sorted(sizes))
    return rising[::-1], rising
