"""Branch and bound over the layouts of a run.

Every layout of every variant is bounded at once (arrays); those that cannot fit or cannot beat what
is known are never estimated; the others are, in the order of their bounds, until the next bound is
no better than the last of the estimates to return. Parts of the space can be searched again: what
was priced and estimated is kept.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from atoll.errors import AtollError
from atoll.step.layout import Layout
from atoll.training.bounds import Figures, Table, figures, memory_bounds_bytes, time_bounds_s
from atoll.training.estimate import Estimate, Estimator
from atoll.training.run import Run
from atoll.training.space import Axes, Block, block_of, variants

Bools = NDArray[np.bool_]
Usable = Callable[[Layout], str | None]
"""Why a layout cannot be used, or nothing if it can."""


@dataclass(frozen=True, slots=True)
class Found:
    """The fastest layouts of a space or of a part of it, and what was done for them."""

    best: tuple[Estimate, ...]
    too_large: int
    """Ruled out by the bound on memory."""
    too_slow: int
    """Ruled out by the bound on time."""
    refused: int
    """Bounded as fast enough, but not usable."""
    estimated: int
    bound_s: float
    """No layout that was not estimated is faster than this."""
    refusal: str
    """Why the first of those refused was."""


class Space:
    """All layouts of a run, bounded."""

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
        known: list[Figures] = []
        bounding_s = 0.0
        for variant in variants(run, axes):
            block = block_of(run, axes, variant)
            if not len(block):
                continue
            if progress is not None:
                progress(f"pricing {variant}")
            self.blocks.append(block)
            costs = self.estimator.costs(variant.layout())
            begin = time.perf_counter()
            known.append(figures(run, block, costs))
            bounding_s += time.perf_counter() - begin
        if not self.blocks:
            raise AtollError(
                f"{run.model.name} on {run.devices} devices with a global batch of "
                f"{run.global_batch}: no layout divides devices, heads, layers and batch; change "
                "the number of devices or the batch, or allow more values"
            )
        begin = time.perf_counter()
        self.table = Table(self.blocks, known)
        self.time_s = time_bounds_s(run, self.table)
        self.needed = memory_bounds_bytes(self.table)
        bounding_s += time.perf_counter() - begin
        self.bounded_per_s = len(self.table) / max(bounding_s, 1e-9)
        self.loose = np.array([name == "optimal" for name in self.table.names])[
            self.table.recompute
        ]
        self._usable = usable
        self._reasons: dict[int, str | None] = {}
        self._estimates: dict[int, Estimate] = {}

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
        heap = self._heap(np.flatnonzero(among & self.may_fit))
        best: dict[tuple[Layout, float], Estimate] = {}
        refusals: dict[int, str] = {}
        estimated = 0
        bound_s = float("inf")
        while heap:
            bound, at = heap[0]
            if len(best) == count and bound >= max(time_s for _, time_s in best):
                bound_s = bound
                break
            heapq.heappop(heap)
            refusal = self._refusal(at)
            if refusal is not None:
                refusals[at] = refusal
                continue
            if self.loose[at]:
                heap = self._tightened(at, heap)
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

    def _heap(self, rows: NDArray[np.int64]) -> list[tuple[float, int]]:
        heap = list(zip(self.time_s[rows].tolist(), rows.tolist(), strict=True))
        heapq.heapify(heap)
        return heap

    def _tightened(self, at: int, heap: list[tuple[float, int]]) -> list[tuple[float, int]]:
        """The heap, after the choices of recomputation of one variant were priced."""
        owner = self.table.owner[at]
        rows = np.flatnonzero((self.table.owner == owner) & self.loose)
        block = self.blocks[owner]
        part = block.part(self.loose[self.table.owner == owner])
        costs = self.estimator.costs(block.variant.layout(recompute="optimal"))
        table = Table([part], [figures(self.run, part, costs)])
        self.time_s[rows] = time_bounds_s(self.run, table)
        self.needed[rows] = memory_bounds_bytes(table)
        self.loose[rows] = False
        left = np.array([at, *(row for _, row in heap)], dtype=np.int64)
        return self._heap(left[self.may_fit[left]])

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
