"""Branch and bound over the layouts of a run.

All layouts of a variant are estimated at once (`batch`); only the fastest that fit are written out
in full, in the order of their times, until the next is no faster than the last of those to return.
Recomputation by operator ("optimal") comes to one of several choices. These take longer to price
than all else: until a variant may have one of the fastest it is bounded as if it kept least and ran
nothing again. Parts of the space can be searched again: what was priced and estimated is kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from atoll.errors import AtollError
from atoll.step.layout import Layout
from atoll.training.batch import LEAST, Floats, batch_estimates
from atoll.training.estimate import Estimate, Estimator
from atoll.training.layers import choices_of
from atoll.training.run import Run
from atoll.training.space import Axes, Block, Ints, Table, block_of, variants

Bools = NDArray[np.bool_]
Usable = Callable[[Layout], str | None]
"""Why a layout cannot be used, or nothing if it can."""
ROUNDING = 1e-9  # of times and bytes: compiled sums in another order than the estimate's


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
    """All layouts of a run, each with its step time and the bytes that it needs, or with bounds on
    them where recomputation by operator is not yet priced.
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
        self.estimator = Estimator(run)
        self.blocks: list[Block] = []
        known: list[tuple[Floats, Floats]] = []
        spent_s = 0.0
        for variant in variants(run, axes):
            block = block_of(run, axes, variant)
            if not len(block):
                continue
            if progress is not None:
                progress(f"pricing {variant}")
            self.blocks.append(block)
            self.estimator.costs(variant.layout())
            begin = time.perf_counter()
            known.append(self._figures(block, priced=False))
            spent_s += time.perf_counter() - begin
        if not self.blocks:
            raise AtollError(
                f"{run.model.name} on {run.devices} devices with a global batch of "
                f"{run.global_batch}: no layout divides devices, heads, layers and batch; change "
                "the number of devices or the batch, or allow more values"
            )
        self.table = Table(self.blocks)
        self.time_s = np.concatenate([time_s for time_s, _ in known])
        self.needed = np.concatenate([needed for _, needed in known])
        self.bounded_per_s = len(self.table) / max(spent_s, 1e-9)
        self.loose = np.array([name == "optimal" for name in self.table.names])[
            self.table.recompute
        ]
        self._usable = usable
        self._reasons: dict[int, str | None] = {}
        self._estimates: dict[int, Estimate] = {}

    def _figures(self, block: Block, *, priced: bool) -> tuple[Floats, Floats]:
        """Of every layout of a block, seconds (infinite where it does not fit) and bytes, both
        rounded down; where choices by operator are not to be priced, bounds on theirs.
        """
        costs = self.estimator.costs(block.variant.layout(recompute="optimal" if priced else ""))
        policies = [
            (LEAST,) if name == "optimal" and not priced else choices_of(costs, name)
            for name in block.names
        ]
        choices = tuple(dict.fromkeys(chain.from_iterable(policies)))
        first, which = block.bases()
        layouts = [block.layout(int(i)) for i in first]
        step_s, bytes_ = batch_estimates(self.estimator, layouts, choices)
        bytes_ *= 1 - ROUNDING
        step_s[bytes_ > self.run.gpu.hbm_bytes] = np.inf
        time_s, needed = np.empty(len(block)), np.empty(len(block))
        for policy, mine in enumerate(policies):
            rows = np.flatnonzero(block.recompute == policy)
            columns = [choices.index(choice) for choice in mine]
            time_s[rows] = step_s[:, columns].min(axis=1)[which[rows]]
            needed[rows] = bytes_[:, columns].min(axis=1)[which[rows]]
        return time_s * (1 - ROUNDING), needed

    def __len__(self) -> int:
        return len(self.table)

    @property
    def may_fit(self) -> Bools:
        return np.asarray(self.needed <= self.run.gpu.hbm_bytes)

    def layout(self, at: int) -> Layout:
        block: Block = self.blocks[self.table.owner[at]]
        return block.layout(int(self.table.inside[at]))

    def estimate(self, at: int) -> Estimate:
        if at not in self._estimates:
            self._estimates[at] = self.estimator.estimate(self.layout(at))
        return self._estimates[at]

    def search(
        self,
        count: int,
        rows: Bools | None = None,
        wanted: Callable[[Estimate], bool] | None = None,
    ) -> Found:
        """The fastest `count` layouts that fit (and are wanted), of all or of some rows."""
        among = np.ones(len(self), dtype=np.bool_) if rows is None else rows.copy()
        order = self._order(np.flatnonzero(among))
        best: dict[tuple[Layout, float], Estimate] = {}
        refusals: dict[int, str] = {}
        estimated = done = 0
        bound_s = float("inf")
        while done < len(order):
            at = int(order[done])
            if len(best) == count and self.time_s[at] >= max(time_s for _, time_s in best):
                bound_s = float(self.time_s[at])
                break
            refusal = self._refusal(at)
            if refusal is None and self.loose[at]:
                self._price(at)
                order, done = self._order(order[done:]), 0
                continue
            done += 1
            if refusal is not None:
                refusals[at] = refusal
                continue
            estimated += 1
            estimate = self.estimate(at)
            if estimate.fits and (wanted is None or wanted(estimate)):
                _add(best, estimate, count)
        among[list(refusals)] = False
        left, fitting = int(among.sum()), int((among & self.may_fit).sum())
        return Found(
            best=tuple(sorted(best.values(), key=_order)),
            too_large=left - fitting,
            too_slow=fitting - estimated,
            refused=len(refusals),
            estimated=estimated,
            bound_s=bound_s,
            refusal=next(iter(refusals.values()), ""),
        )

    def _order(self, rows: Ints) -> Ints:
        """Those that may fit, the fastest first."""
        rows = rows[self.may_fit[rows]]
        return rows[np.argsort(self.time_s[rows], kind="stable")]

    def _price(self, at: int) -> None:
        """Price the choices of recomputation of a layout's variant."""
        mine = self.table.owner == self.table.owner[at]
        block = self.blocks[self.table.owner[at]].part(self.loose[mine])
        rows = np.flatnonzero(mine & self.loose)
        self.time_s[rows], self.needed[rows] = self._figures(block, priced=True)
        self.loose[rows] = False

    def _refusal(self, at: int) -> str | None:
        if self._usable is None:
            return None
        if at not in self._reasons:
            self._reasons[at] = self._usable(self.layout(at))
        return self._reasons[at]


def _order(estimate: Estimate) -> tuple[float, str]:
    return estimate.step.time_s, str(estimate.layout)


def _base(layout: Layout) -> Layout:
    return replace(layout, recompute="none")


def _add(best: dict[tuple[Layout, float], Estimate], estimate: Estimate, count: int) -> None:
    """Keep the fastest so many. "optimal" recomputation that comes to a named policy is that."""
    key = _base(estimate.layout), estimate.step.time_s
    if key not in best or best[key].layout.recompute == "optimal":
        best[key] = estimate
    if len(best) > count:
        last = max(best, key=lambda k: _order(best[k]))
        del best[last]
