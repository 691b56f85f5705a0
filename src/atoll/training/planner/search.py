"""Branch and bound over the layouts of a run.

Bounds on all layouts come first (`floor`). Those that may be among the fastest are bounded more
closely, a variant at a time, as if they kept least and ran nothing again (`batch.LEAST`); those
that still may be are estimated under every recomputation policy (choices by operator take longer to
price than all else), and the fastest are written out in full. Always the lowest bound goes first.
Parts of the space can be searched again: what was priced and estimated is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.errors import AtollError
from atoll.step.layout import Layout
from atoll.training.batch import LEAST, Floats, batch_estimates
from atoll.training.estimate import Estimate, Estimator
from atoll.training.operators.layers import choices_of
from atoll.training.planner.floor import Floor
from atoll.training.planner.space import Axes, Block, Bools, Ints, block_of, families
from atoll.training.run import Run

Usable = Callable[[Layout], str | None]
"""Why a layout cannot be used, or nothing if it can."""
ROUNDING = 1e-9  # of times and bytes: compiled sums in another order than the estimate's
SINGLE = 1e-6  # the same of bounds, which are kept in single precision
SAME = 1e-12  # of a step: "optimal" recomputation that takes as long as a named policy is that
AHEAD = 0.1  # rows of a variant with bounds so much above its lowest are looked at together
MOST_REFUSED = 1000  # of the fastest layouts: if none of so many can be used, none is sought
MOST_TRIED = 20  # layouts looked at for the one that needs least memory
OPTIMAL = "optimal"


class UnusableError(AtollError):
    """Layouts fit, but what they are asked for can use none of them."""


@dataclass(frozen=True, slots=True)
class Found:
    """The fastest layouts of a space or of a part of it, and what was done for them."""

    best: tuple[Estimate, ...]
    too_large: int
    """They need more memory than there is."""
    too_slow: int
    """No faster than the slowest of `best`."""
    refused: int
    """Fast enough, but not usable."""
    estimated: int
    """Written out in full."""
    bound_s: float
    """No layout that was not written out is faster than this."""
    refusal: str
    """Why the first of those refused was."""


class Space:
    """All layouts of a run, a row for each but for its recomputation, with bounds on step time and
    bytes; rows that were estimated have figures for every recomputation policy.
    """

    def __init__(
        self,
        run: Run,
        axes: Axes,
        *,
        usable: Usable | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self.run = run
        self.axes = axes
        self.names = axes.recompute
        self.estimator = Estimator(run)
        self.blocks: list[Block] = []
        bounds: list[tuple[Floats, Floats]] = []
        floor = Floor(self.estimator)
        begin = time.perf_counter()
        for family in families(run, axes):
            block = block_of(run, axes, family)
            if not len(block):
                continue
            if progress is not None:
                progress(f"pricing {family}")
            self.blocks.append(block)
            bounds.append(floor.bounds(block))
        if not self.blocks:
            raise AtollError(
                f"{run.model.name} on {run.devices} devices with a global batch of "
                f"{run.global_batch}: no layout divides devices, heads, layers and batch; change "
                "the number of devices or the batch, or allow more values"
            )
        self.starts = np.cumsum([0, *map(len, self.blocks)])
        self.least_s, self.least_bytes = (
            np.concatenate([(x * (1 - SINGLE)).astype(np.float32) for x in found])
            for found in zip(*bounds, strict=True)
        )
        self.bounded_per_s = len(self) / max(time.perf_counter() - begin, 1e-9)
        self.may_fit = self.least_bytes <= run.gpu.hbm_bytes * (1 + SINGLE)
        """Rows that are not too large by their bounds."""
        self.slot = np.full(self.starts[-1], -1, dtype=np.int32)
        """Of every row, where its figures are."""
        self.rows = np.empty(0, dtype=np.int64)
        self.variant = np.empty((0, 2), dtype=np.int64)
        """Of every slot its row, and the row's family and microbatch."""
        self.time_s = np.empty((0, len(self.names)))
        """(slots, names): infinite where it does not fit."""
        self.loose = np.empty(0, dtype=np.bool_)
        """Slots whose times are bounds."""
        self._usable = usable
        self._reasons: dict[tuple[int, int], str | None] = {}
        self._estimates: dict[tuple[int, int], Estimate] = {}

    def __len__(self) -> int:
        return int(self.starts[-1]) * len(self.names)

    @property
    def variants(self) -> int:
        return sum(len(np.unique(block.microbatch)) for block in self.blocks)

    def column(self, axis: str) -> NDArray[np.int32]:
        """Of every row the value on an axis."""
        return np.concatenate([getattr(block, axis) for block in self.blocks])

    def layout(self, row: int, name: int) -> Layout:
        (found,) = self._layouts(np.array([row]), self.names[name])
        return found

    def _layouts(self, rows: Ints, name: str) -> list[Layout]:
        """Of rows of one family."""
        owner = int(np.searchsorted(self.starts, rows[0], side="right")) - 1
        return self.blocks[owner].layouts(rows - self.starts[owner], name)

    def estimate(self, row: int, name: int) -> Estimate:
        at = row, name
        if at not in self._estimates:
            self._estimates[at] = self.estimator.estimate(self.layout(row, name))
        return self._estimates[at]

    def smallest(self, rows: Bools | None = None, names: Bools | None = None) -> Estimate:
        """Of all or of some rows and policies, the layout that needs least memory, as far as bounds
        tell.
        """
        listed = np.arange(len(self.slot)) if rows is None else np.flatnonzero(rows)
        order = listed[np.argsort(self.least_bytes[listed], kind="stable")][:MOST_TRIED]
        named = range(len(self.names)) if names is None else np.flatnonzero(names).tolist()
        tried = (self.estimate(int(row), name) for row in order for name in named)
        return min(tried, key=lambda estimate: estimate.worst.needed)

    def search(self, count: int, rows: Bools | None = None, names: Bools | None = None) -> Found:
        """The fastest `count` layouts that fit, of all or of some rows and policies."""
        among = np.ones(len(self.slot), dtype=np.bool_) if rows is None else rows
        named = np.ones(len(self.names), dtype=np.bool_) if names is None else names
        wanted = count
        while True:
            limit_s = self._estimate_all(wanted, among, named)
            best, refusals, estimated, bound_s = self._written(count, among, named)
            if len(best) == count or limit_s == np.inf:
                break
            wanted += count - len(best)  # some missed the memory by a rounding
        left = int(among.sum()) * int(named.sum()) - len(refusals)
        fitting = int((among & self.may_fit & (self.slot < 0)).sum()) * int(named.sum())
        fitting += int(np.isfinite(self._times_s(among, named)).sum()) - len(refusals)
        return Found(
            best=best,
            too_large=left - fitting,
            too_slow=fitting - estimated,
            refused=len(refusals),
            estimated=estimated,
            bound_s=min(bound_s, limit_s),
            refusal=next(iter(refusals), ""),
        )

    def _written(
        self, count: int, among: Bools, named: Bools
    ) -> tuple[tuple[Estimate, ...], list[str], int, float]:
        """The fastest in full, what was refused among them, how many were written out, and a time
        that none of the others is below.
        """
        best: list[Estimate] = []
        refusals: list[str] = []
        estimated = 0
        for row, name, time_s in self._ranked(among, named):
            if len(best) == count and time_s >= best[-1].step.time_s:
                return tuple(best), refusals, estimated, time_s
            refusal = self._refusal(row, name)
            if refusal is not None:
                refusals.append(refusal)
                continue
            estimated += 1
            estimate = self.estimate(row, name)
            if estimate.fits:
                best = sorted([*best, estimate], key=_order)[:count]
        return tuple(best), refusals, estimated, float("inf")

    def _estimate_all(self, count: int, among: Bools, named: Bools) -> float:
        """Bound and estimate, the lowest bound first, until no other row can be among the fastest
        `count`; a time that none is below, and the last of these not above.
        """
        rest = np.flatnonzero(among & self.may_fit & (self.slot < 0))
        limit_s = self._limit_s(count, among, named)
        while True:
            rest = rest[(self.slot[rest] < 0) & (self.least_s[rest] < limit_s)]
            first_s = float(self.least_s[rest].min(initial=np.inf))
            loose_s = np.where(self.loose & among[self.rows], self.time_s[:, 0], np.inf)
            lowest_s = float(loose_s.min(initial=np.inf))
            # Without a limit something is estimated soon, whatever may lie below it.
            if lowest_s < limit_s and (lowest_s <= first_s or limit_s == np.inf):
                self._price(loose_s, min(limit_s, (1 + AHEAD) * lowest_s))
                limit_s = self._limit_s(count, among, named)
            elif rest.size:
                self._add(rest, limit_s if limit_s < np.inf else (1 + AHEAD) * first_s)
            else:
                return limit_s

    def _limit_s(self, count: int, among: Bools, named: Bools) -> float:
        """No less than the time of the last of the fastest `count` layouts that are known."""
        left = count
        refused = 0
        for row, name, time_s in self._ranked(among, named, exact=True):
            refusal = self._refusal(row, name)
            if refusal is None:
                left -= 1
                if not left:
                    return time_s * (1 + 3 * ROUNDING)
                continue
            refused += 1
            if refused == MOST_REFUSED and left == count:
                raise UnusableError(f"{refusal} (so it is with all {refused:,} layouts tried)")
        return float("inf")

    def _times_s(self, among: Bools, named: Bools) -> Floats:
        return np.where(among[self.rows][:, None] & named, self.time_s, np.inf)

    def _ranked(
        self, among: Bools, named: Bools, exact: bool = False
    ) -> Iterator[tuple[int, int, float]]:
        """(row, name, time) of what is bounded, or estimated, and fits; the fastest first."""
        times_s = self._times_s(among, named)
        if exact:
            times_s[self.loose] = np.inf
        time_s = times_s.reshape(-1)
        length = done = 0
        while done < time_s.size:
            length = min(4 * max(16, length), time_s.size)
            some = np.argpartition(time_s, length - 1)[:length]
            for at in some[np.lexsort((some, time_s[some]))][done:]:
                if time_s[at] == np.inf:
                    return
                slot, name = divmod(int(at), len(self.names))
                yield int(self.rows[slot]), name, float(time_s[at])
            done = length

    def _add(self, rows: Ints, limit_s: float) -> None:
        """Bound the rows of one variant, that of the row with the lowest bound: more closely, by
        its own costs.
        """
        first = int(rows[self.least_s[rows].argmin()])
        family = int(np.searchsorted(self.starts, first, side="right")) - 1
        start, end = self.starts[family : family + 2]
        sizes = self.blocks[family].microbatch
        mine = rows[slice(*np.searchsorted(rows, (start, end)))]
        mine = mine[self.least_s[mine] < limit_s]
        mine = mine[sizes[mine - start] == sizes[first - start]]
        step_s, _ = self._estimates_of(mine, (LEAST,))
        self.slot[mine] = np.arange(len(self.rows), len(self.rows) + len(mine))
        variant = np.array([[family, sizes[first - start]]])
        self.rows = np.concatenate([self.rows, mine])
        self.variant = np.concatenate([self.variant, np.repeat(variant, len(mine), axis=0)])
        self.time_s = np.concatenate([self.time_s, np.repeat(step_s, len(self.names), axis=1)])
        self.loose = np.concatenate([self.loose, np.isfinite(step_s[:, 0])])

    def _price(self, loose_s: Floats, limit_s: float) -> None:
        """Estimate the slots of one variant, that of the lowest bound."""
        first = int(loose_s.argmin())
        mine = np.flatnonzero((self.variant == self.variant[first]).all(axis=1))
        mine = mine[loose_s[mine] < limit_s]
        choices: tuple[str, ...] = self.names
        if OPTIMAL in self.names:
            layout = self.layout(int(self.rows[first]), self.names.index(OPTIMAL))
            choices = choices_of(self.estimator.costs(layout), OPTIMAL)
        step_s, by_stage_s = self._estimates_of(self.rows[mine], choices)
        for at, name in enumerate(self.names):
            self.time_s[mine, at] = (
                by_stage_s if name == OPTIMAL else step_s[:, choices.index(name)]
            )
        if OPTIMAL in self.names:
            at = self.names.index(OPTIMAL)
            others_s = np.delete(self.time_s[mine], at, axis=1).min(axis=1, initial=np.inf)
            self.time_s[mine[others_s <= by_stage_s * (1 + SAME)], at] = np.inf
        self.loose[mine] = False

    def _estimates_of(self, rows: Ints, choices: Sequence[str]) -> tuple[Floats, Floats]:
        """Seconds of rows of one variant under each choice of recomputation, and under the best of
        them stage by stage; rounded down, infinite where they do not fit.
        """
        layouts = self._layouts(rows, self.names[0])
        step_s, bytes_ = batch_estimates(self.estimator, layouts, choices)
        step_s[bytes_ * (1 - ROUNDING) > self.run.gpu.hbm_bytes] = np.inf
        step_s *= 1 - ROUNDING
        return step_s[:, :-1], step_s[:, -1]

    def _refusal(self, row: int, name: int) -> str | None:
        if self._usable is None:
            return None
        if (row, name) not in self._reasons:
            self._reasons[row, name] = self._usable(self.layout(row, name))
        return self._reasons[row, name]


def _order(estimate: Estimate) -> tuple[float, str]:
    return estimate.step.time_s, str(estimate.layout)
