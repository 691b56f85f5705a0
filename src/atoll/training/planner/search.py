"""Branch and bound over the layouts of a run.

1. Bound all layouts at once (`bounds.family_bounds`).
2. Bound the layouts that could be among the fastest again, one variant at a time, by their actual
   costs: pipelines by paths through their passes (`batch.path_bounds`), "optimal" recomputation as
   if it kept the fewest bytes and recomputed nothing (`LEAST_CHOICE`).
3. Estimate the layouts that still could be, pipelines by replay; the fastest in full.

The lowest bound is processed first. Results are cached, so parts of the space can be searched
again.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain, islice, pairwise

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import Bools, Floats, Ints
from atoll.base.errors import AtollError, UnusableError
from atoll.base.stopping import Stop, StoppedError, check_stop
from atoll.driver import Progress
from atoll.step.layout import Layout
from atoll.training.estimate import Estimate
from atoll.training.planner.bounds.family_bounds import OPTIMAL
from atoll.training.planner.pieces import (
    ROUNDING,
    SINGLE,
    PieceCall,
    PlanPieces,
    Singles,
    bounds_call,
    least_call,
    times_call,
)
from atoll.training.planner.space import Axes, LayoutColumns, families
from atoll.training.run import Run

LayoutRefusal = Callable[[Layout], str | None]
"""Function that returns why a layout cannot be used, or None if it can."""
BOUND_TOGETHER = 0.07  # rows of a variant this close to the limit (relative) are bounded together
NEAR = 0.01  # rows within this relative distance of the lowest bound are estimated together
MOST_REFUSED = 5000  # the search fails if this many of the fastest layouts are all refused
REPORT_S = 0.2  # seconds between progress reports
MOST_TRIED = 20  # layouts estimated to find the one that needs the least memory


@dataclass(frozen=True, slots=True)
class FastestLayouts:
    """The fastest layouts of a space or a part of it, with counts of all other layouts."""

    best: tuple[Estimate, ...]
    too_large: int
    """Layouts that do not fit in memory."""
    too_slow: int
    """Layouts that are provably no faster than the slowest of `best`."""
    refused: int
    """Layouts that are fast enough, but that the export target cannot run."""
    estimated: int
    """Layouts that were estimated in full."""
    bound_s: float
    """Lower bound on the step time of all other layouts."""
    refusal: str
    """Reason for the first refusal."""
    not_evaluated: int = 0
    """Layouts left unexplored when the search stopped; one of them could be faster."""
    stopped: bool = False
    """Whether the search had to stop early."""


class LayoutSpace:
    """All layouts of a run. A row is a layout without its recomputation policy and has lower bounds
    on step time and bytes. A slot holds the times of one row for every policy.
    """

    def __init__(
        self,
        run: Run,
        axes: Axes,
        *,
        refusal_of: LayoutRefusal | None = None,
        progress: Progress | None = None,
        pieces: PlanPieces | None = None,
        stop: Stop | None = None,
    ) -> None:
        self.run = run
        self.axes = axes
        self.names = axes.recompute
        self.pieces = pieces or PlanPieces(run, axes)
        self.estimator = self.pieces.estimator
        self.stop, self.progress = stop or Stop(), progress
        every = (self.pieces.block(family) for family in families(run, axes))
        self.blocks: list[LayoutColumns] = [block for block in every if len(block)]
        if not self.blocks:
            raise AtollError(
                f"{run.model.name} on {run.devices} devices with a global batch of "
                f"{run.global_batch}: no layout divides devices, heads, layers and batch; change "
                "the number of devices or the batch, or allow more values"
            )
        self.starts = np.cumsum([0, *map(len, self.blocks)])
        begin = time.perf_counter()
        self.least_s: Singles
        self.bound_without_optimal_s: Singles
        self.least_s, self.least_bytes, self.bound_without_optimal_s = self._bounds()
        """Lower bounds, each of shape (rows,): seconds, bytes, and seconds without "optimal"."""
        self.bounded_per_s = len(self) / max(time.perf_counter() - begin, 1e-9)
        self.may_fit = self.least_bytes <= run.capacity_bytes * (1 + SINGLE)
        """Whether the lower bound on bytes fits in memory, shape (rows,)."""
        self.slot = np.full(self.starts[-1], -1, dtype=np.int32)
        """Slot of each row, or -1, shape (rows,)."""
        self.rows = np.empty(0, dtype=np.int64)
        self.variant = np.empty((0, 2), dtype=np.int64)
        """`rows`: row of each slot; `variant`: its family and microbatch, shape (slots, 2)."""
        self.time_s = np.empty((0, len(self.names)))
        """Step seconds, shape (slots, policies); infinite where a layout does not fit."""
        self.optimal = np.array([name == OPTIMAL for name in self.names])
        self.is_lower_bound = np.empty((0, len(self.names)), dtype=np.bool_)
        """Whether `time_s` is only a lower bound, shape (slots, policies)."""
        self._usable = refusal_of
        self._next_report_s = 0.0
        self._reasons: dict[tuple[int, int], str | None] = {}
        self._estimates: dict[tuple[int, int], Estimate] = {}

    def _bounds(self) -> Singles:
        """Return lower bounds of shape (3, rows): seconds, bytes, seconds without "optimal"."""
        bounds = np.zeros((3, int(self.starts[-1])), dtype=np.float32)
        for number, (start, end) in enumerate(pairwise(self.starts)):
            check_stop(self.stop)
            if self.progress is not None:
                left = int(self.starts[-1] - start) * len(self.names)
                self.progress("bounds", left, len(self), 0.0, 0.0)
            if self.pieces.announce is not None:
                self.pieces.announce(bounds_call(x.family) for x in self.blocks[number:])
            bounds[:, start:end] = self.pieces.bounds(self.blocks[number].family)
        return bounds

    def __len__(self) -> int:
        return int(self.starts[-1]) * len(self.names)

    @property
    def variants(self) -> int:
        return sum(int((np.bincount(block.microbatch) > 0).sum()) for block in self.blocks)

    def column(self, axis: str) -> NDArray[np.int32]:
        """Return the value of an axis for each row, shape (rows,)."""
        return np.concatenate([getattr(block, axis) for block in self.blocks])

    def layout(self, row: int, name: int) -> Layout:
        layouts = self._family_rows(np.array([row])).layouts(np.zeros(1, np.intp), self.names[name])
        return layouts[0]

    def _family_number(self, row: int) -> int:
        """Return the index of a row's family in `blocks`."""
        return int(np.searchsorted(self.starts, row, side="right")) - 1

    def _family_rows(self, rows: Ints) -> LayoutColumns:
        """Return the layouts of some rows, all of one family."""
        owner = self._family_number(rows[0])
        return self.blocks[owner].part(rows - self.starts[owner])

    def estimate(self, row: int, name: int) -> Estimate:
        at = row, name
        if at not in self._estimates:
            self._estimates[at] = self.estimator.estimate(self.layout(row, name))
        return self._estimates[at]

    def smallest(self, rows: Bools | None = None, names: Bools | None = None) -> Estimate:
        """Return the layout that needs the least memory among the `MOST_TRIED` rows with the lowest
        bounds on bytes, of all or of the given rows and policies.
        """
        listed = np.arange(len(self.slot)) if rows is None else np.flatnonzero(rows)
        order = listed[np.argsort(self.least_bytes[listed], kind="stable")][:MOST_TRIED]
        named = range(len(self.names)) if names is None else np.flatnonzero(names).tolist()
        tried = (self.estimate(int(row), name) for row in order for name in named)
        return min(tried, key=lambda estimate: estimate.worst.needed)

    def search(self, count: int) -> FastestLayouts:
        """Return the fastest `count` layouts that fit."""
        rows, named = self._all_rows_and_policies()
        best, refusals, estimated, bound_s, stopped = self._fastest(count, rows, named, report=True)
        if stopped and not best:
            raise StoppedError
        names = len(self.names)
        fitting = int((self.may_fit & (self.slot < 0)).sum()) * names
        fitting += int(np.isfinite(self.time_s).sum()) - len(refusals)
        unseen = 0
        if stopped:
            best_s = best[0].step.time_s
            unseen = int((self._rest_s(rows, named) < best_s).sum()) * names
            unseen += int((self._loose_s(rows, named) < best_s).sum())
        return FastestLayouts(
            best=best,
            too_large=len(self) - len(refusals) - fitting,
            too_slow=fitting - estimated - unseen,
            refused=len(refusals),
            estimated=estimated,
            bound_s=bound_s,
            refusal=next(iter(refusals), ""),
            not_evaluated=unseen,
            stopped=stopped,
        )

    def nearest(self, rows: Bools, names: Bools, limit_s: float = np.inf) -> Estimate | None:
        """Return the fastest layout that fits, of the given rows and policies; None if there is
        none that takes less than `limit_s`, or the export target can use none of them.
        """
        try:
            best, *_, stopped = self._fastest(1, rows, names, False, limit_s)
        except UnusableError:
            return None
        if stopped:
            raise StoppedError
        return best[0] if best else None

    def _fastest(
        self, count: int, rows: Bools, named: Bools, report: bool, below_s: float = np.inf
    ) -> tuple[tuple[Estimate, ...], list[str], int, float, bool]:
        """Return the fastest `count` layouts that fit and take less than `below_s`, the refusals
        among them, the number estimated in full, a lower bound on the time of all others, and
        whether the search stopped.
        """
        wanted, stopped = count, False
        below_s = min(below_s, self.pieces.below_s)
        while True:
            try:
                steps = self._estimation(wanted, rows, named, report, below_s=below_s)
                *_, (limit_s, _certain_s) = steps
            except StoppedError:
                unseen_s = self._rest_s(rows, named), self._loose_s(rows, named)
                limit_s = min(float(x.min(initial=np.inf)) for x in unseen_s)
                stopped = True
            ranked = self._ranked(rows, named, stopped, np.inf if stopped else limit_s)
            best, refusals, estimated, bound_s = self._estimated_in_full(count, ranked)
            if len(best) == count or limit_s >= below_s or stopped:
                return best, refusals, estimated, min(bound_s, limit_s), stopped
            wanted += count - len(best)  # some do not fit because of rounding

    def _all_rows_and_policies(self) -> tuple[Bools, Bools]:
        """Return masks that select all rows, shape (rows,), and all policies, (policies,)."""
        return np.ones(len(self.slot), dtype=np.bool_), np.ones(len(self.names), dtype=np.bool_)

    def within(self, limit_s: float) -> Iterator[tuple[int, int]]:
        """Yield row and policy of all usable layouts that fit and take at most `limit_s`, fastest
        first, and estimate no more than this takes. If the search stops early, yield only those
        estimated so far.
        """
        every = self._all_rows_and_policies()
        steps = self._estimation(1, *every, True, limit_s, self.pieces.below_s)
        certain_s, ranked = 0.0, 0
        while certain_s <= limit_s:
            try:
                _, certain_s = next(steps)
            except (StopIteration, StoppedError):
                certain_s = np.inf
            for row, name, time_s in islice(self._ranked(*every, True, limit_s), ranked, None):
                if time_s >= certain_s:
                    break
                ranked += 1
                if self._refusal(row, name) is None:
                    yield row, name

    def estimated_layouts(self) -> Iterator[tuple[Layout, float]]:
        """Yield the estimated layouts that fit, with their step seconds, fastest first."""
        every = self._all_rows_and_policies()
        for row, name, time_s in self._ranked(*every, True, np.inf):
            yield self.layout(row, name), time_s

    def _estimated_in_full(
        self, count: int, ranked: Iterator[tuple[int, int, float]]
    ) -> tuple[tuple[Estimate, ...], list[str], int, float]:
        """Return full estimates of the fastest `count` layouts, the refusals among them, the number
        estimated in full, and a lower bound on the time of all others.
        """
        best: list[Estimate] = []
        refusals: list[str] = []
        estimated = 0
        for row, name, time_s in ranked:
            if len(best) == count and time_s >= best[-1].step.time_s:
                return tuple(best), refusals, estimated, time_s
            if refusal := self._refusal(row, name):
                refusals.append(refusal)
                continue
            estimated += 1
            estimate = self.estimate(row, name)
            if estimate.fits:
                best = sorted([*best, estimate], key=_order)[:count]
        return tuple(best), refusals, estimated, float("inf")

    def _estimation(
        self, count: int, wanted_rows: Bools, named: Bools, report: bool,
        within_s: float = 0.0, below_s: float = np.inf,
    ) -> Iterator[tuple[float, float]]:  # fmt: skip
        """Bound and estimate rows, lowest bound first, until no other row can be among the fastest
        `count` and below `below_s`, or take less than `within_s`. Yield before every step the
        limit, in the end the seconds above which the `count` fastest are not and below which no
        other row is; and the seconds below which every row is estimated.
        """
        least_s = self._least_s(named)
        limit_s, best_s = self._limit_s(count, wanted_rows, named)
        limit_s = max(min(limit_s, below_s), within_s)
        rest = np.flatnonzero(wanted_rows & self.may_fit & (self.slot < 0) & (least_s < limit_s))
        while True:
            rest = rest[(self.slot[rest] < 0) & (least_s[rest] < limit_s)]
            loose_s = self._loose_s(wanted_rows, named)
            yield limit_s, min(least_s[rest].min(initial=limit_s), loose_s.min(initial=limit_s))
            soon = self._next_rows(least_s, rest, loose_s.copy(), limit_s, best_s)
            pair = list(islice(soon, 2))
            if not pair:
                return
            check_stop(self.stop)
            if self.pieces.announce is not None and limit_s < np.inf:
                self.pieces.announce(self._call(*of) for of in chain(pair, soon))
            if report and self.progress is not None and time.monotonic() > self._next_report_s:
                self._report(self.progress, rest, loose_s[loose_s < limit_s])
            for limit, rows in pair:
                self._store_times(limit, rows)
            limit_s, best_s = self._limit_s(count, wanted_rows, named, limit_s)
            limit_s = max(min(limit_s, below_s), within_s)

    def _report(self, progress: Progress, rest: Ints, loose_s: Floats) -> None:
        """Report the progress of the search over the whole space."""
        every = self._all_rows_and_policies()
        best_s, _ = self._limit_s(1, *every)
        least_s = min(self.least_s[rest].min(initial=best_s), loose_s.min(initial=best_s))
        left = (rest.size + loose_s.size) * len(self.names)
        batch = self.run.global_batch
        progress("search", left, len(self), batch / best_s, batch / float(least_s))
        self._next_report_s = time.monotonic() + REPORT_S

    def _least_s(self, named: Bools) -> Singles:
        """Return the lower bounds on seconds for the given policies, shape (rows,)."""
        return self.least_s if (self.optimal & named).any() else self.bound_without_optimal_s

    def _next_rows(
        self, least_s: Singles, rest: Ints, loose_s: Floats, limit_s: float, best_s: float
    ) -> Iterator[tuple[float | None, Ints]]:
        """Yield the rows to process next, assuming that no faster layout appears: rows of the
        variant with the lowest bound. They are bounded if the first item is None; else they are
        estimated, and it is the limit above which a bound is sufficient.
        """
        free = self.slot < 0
        while True:
            first_s = float(least_s[rest].min(initial=np.inf))
            lowest_s = float(loose_s.min(initial=np.inf))
            if lowest_s < limit_s and lowest_s <= max(first_s, best_s):
                slots = np.flatnonzero((self.variant == self.variant[loose_s.argmin()]).all(axis=1))
                slots = slots[loose_s[slots] < min(limit_s, (1 + NEAR) * lowest_s)]
                loose_s[slots] = np.inf
                near_s = (1 + BOUND_TOGETHER) * lowest_s
                yield self._rounded_s(min(limit_s, near_s)), self.rows[slots]
            elif rest.size:
                rows = self._rows_of_variant(
                    free, least_s, int(rest[least_s[rest].argmin()]), limit_s
                )
                free[rows] = False
                rest = rest[free[rest]]
                yield None, rows
            else:
                return

    def _rows_of_variant(self, free: Bools, least_s: Singles, first: int, limit_s: float) -> Ints:
        """Return the free rows to bound together with row `first`, all of its variant. They include
        rows that a later search of another part of the space may need.
        """
        owner = self._family_number(first)
        start, end = self.starts[owner : owner + 2]
        sizes = self.blocks[owner].microbatch
        most_s = (1 + BOUND_TOGETHER) * min(limit_s, (1 + BOUND_TOGETHER) * float(least_s[first]))
        joined = free[start:end] & (least_s[start:end] < most_s)
        joined &= self.may_fit[start:end] & (sizes == sizes[first - start])
        return np.asarray(start + np.flatnonzero(joined))

    def _rounded_s(self, limit_s: float) -> float:
        """Round up to a power of (1 + NEAR), so that workers can start before the exact limit."""
        return float((1 + NEAR) ** np.ceil(np.log(limit_s) / np.log(1 + NEAR)))

    def _call(self, limit_s: float | None, rows: Ints) -> PieceCall:
        """Return the call that computes the times of `_store_times` in a worker."""
        family_rows = self._family_rows(rows)
        if limit_s is None:
            return least_call(family_rows, self.names)
        return times_call(family_rows, self.names, limit_s)

    def _loose_s(self, rows: Bools, named: Bools) -> Floats:
        """Return the lowest bound of each slot; infinite where all of its times are estimates."""
        loose = self.is_lower_bound & named & rows[self.rows, None]
        return np.asarray(np.where(loose, self.time_s, np.inf).min(axis=1))

    def _rest_s(self, rows: Bools, named: Bools) -> Singles:
        """Return the lower bounds of the rows that have no slot yet."""
        rest: Singles = self._least_s(named)[rows & self.may_fit & (self.slot < 0)]
        return rest

    def _limit_s(
        self, count: int, rows: Bools, named: Bools, below_s: float = np.inf
    ) -> tuple[float, float]:
        """Return an upper bound on the time of the `count`-th fastest estimated layout, and the
        time of the fastest. Layouts above `below_s` are skipped.
        """
        left, refused, best_s = count, 0, np.inf
        for row, name, time_s in self._ranked(rows, named, True, below_s):
            if refusal := self._refusal(row, name):
                refused += 1
                if refused == MOST_REFUSED and left == count:
                    raise UnusableError(f"{refusal}; the tool runs none of {refused:,} layouts")
                continue
            left -= 1
            best_s = min(best_s, time_s)
            if not left:
                return time_s * (1 + 3 * ROUNDING), best_s
        return np.inf, best_s

    def _ranked(
        self, rows: Bools, named: Bools, exact: bool, below_s: float
    ) -> Iterator[tuple[int, int, float]]:
        """Yield (row, policy, seconds) of the layouts that fit and take at most `below_s`, fastest
        first; with `exact`, only those that are estimated.
        """
        every_s = self.time_s.reshape(-1)
        listed = np.flatnonzero(every_s <= min(below_s, sys.float_info.max))
        slots, names = np.divmod(listed, len(self.names))
        wanted = rows[self.rows[slots]] & named[names]
        if exact:
            wanted &= ~self.is_lower_bound[slots, names]
        listed = listed[wanted]
        time_s = every_s[listed]
        length = done = 0
        while done < time_s.size:
            length = min(4 * max(16, length), time_s.size)
            fastest = np.argpartition(time_s, length - 1)[:length]
            for at in fastest[np.lexsort((fastest, time_s[fastest]))][done:]:
                slot, name = divmod(int(listed[at]), len(self.names))
                yield int(self.rows[slot]), name, float(time_s[at])
            done = length

    def _store_times(self, limit_s: float | None, rows: Ints) -> None:
        """Store the times of rows of a variant: lower bounds if `limit_s` is None."""
        family_rows = self._family_rows(rows)
        if limit_s is not None:
            times_s = self.pieces.times_s(family_rows, self.names, limit_s)
            self.time_s[self.slot[rows]] = np.abs(times_s)
            self.is_lower_bound[self.slot[rows]] = times_s < 0
            return
        times_s = self.pieces.least_s(family_rows, self.names)
        # The bound of "optimal" assumes no recomputation; the family bound includes the necessary
        # recomputation and may be higher.
        times_s = np.maximum(times_s, np.where(self.optimal, self.least_s[rows, None], 0.0))
        variant = np.array([(self._family_number(rows[0]), family_rows.microbatch[0])])
        self.slot[rows] = np.arange(len(self.rows), len(self.rows) + len(rows))
        self.rows = np.concatenate([self.rows, rows])
        self.variant = np.concatenate([self.variant, np.repeat(variant, len(rows), axis=0)])
        self.time_s = np.concatenate([self.time_s, times_s])
        loose = self.optimal | (family_rows.pp[:, None] > 1)
        loose = np.isfinite(times_s) & (loose | (not self.pieces.exact_without_pipeline))
        self.is_lower_bound = np.concatenate([self.is_lower_bound, loose])

    def _refusal(self, row: int, name: int) -> str | None:
        if self._usable is None:
            return None
        if (row, name) not in self._reasons:
            self._reasons[row, name] = self._usable(self.layout(row, name))
        return self._reasons[row, name]


def _order(estimate: Estimate) -> tuple[float, str]:
    return estimate.step.time_s, str(estimate.layout)
