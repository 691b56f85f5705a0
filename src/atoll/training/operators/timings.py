"""Measured over modelled times of a device's operators, at sizes that were timed and between them.

The operator model says what differs between a kernel timed by itself and one inside of a training
step (clock, operands in memory); a ratio of the two carries a measurement from one to the other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Self

import numpy as np
from numpy.typing import NDArray

from atoll.cost.gpu_gemm import Floats

BETWEEN, TIMED = 1, 2
Known = NDArray[np.int64]
"""Of each size: timed, between sizes that were, or (0) neither."""
THIN = 1 / 3  # of the points of an axis' value: fewer leave holes between others


@dataclass(frozen=True, eq=False)
class Grid:
    """Ratios at points of a grid of sizes."""

    axes: tuple[Floats, ...]
    logs: Floats
    """Of the ratios; NaN where nothing was timed."""

    @classmethod
    def of(cls, sizes: Floats, ratios: Floats) -> Self:
        """From one row of sizes for each ratio; of several for one point the median counts."""
        points, of = np.unique(sizes, axis=0, return_inverse=True)
        order = np.argsort(of.reshape(-1), kind="stable")
        starts = np.searchsorted(of.reshape(-1)[order], np.arange(1, len(points)))
        medians = [np.median(part) for part in np.split(np.log(ratios)[order], starts)]
        found = [np.unique(column, return_inverse=True) for column in points.T]
        logs = np.full([len(axis) for axis, _ in found], np.nan)
        logs[tuple(place for _, place in found)] = medians
        axes = [axis for axis, _ in found]
        for i in range(len(axes)):
            others = tuple(j for j in range(len(axes)) if j != i)
            full = np.isfinite(logs).mean(axis=others) >= THIN
            axes[i], logs = axes[i][full], np.compress(full, logs, axis=i)
        return cls(tuple(axes), logs)

    @cached_property
    def least(self) -> float:
        """No ratio is below, between points or beyond them."""
        return min(1.0, float(np.exp(np.nanmin(self.logs))))

    def at(self, sizes: Floats) -> tuple[Floats, Known]:
        """Ratios at some sizes: between points linear in the logarithms of all, 1 where a point is
        missing or none lies beyond.
        """
        lows, highs, parts = [], [], []
        inside = np.ones(len(sizes), dtype=bool)
        for axis, size in zip(self.axes, sizes.T, strict=True):
            inside &= (axis[0] <= size) & (size <= axis[-1])
            low = np.clip(np.searchsorted(axis, size, side="right") - 1, 0, len(axis) - 1)
            high = np.minimum(low + 1, len(axis) - 1)
            apart = np.where(high > low, np.log(axis[high] / axis[low]), 1.0)
            lows.append(low)
            highs.append(high)
            parts.append(np.clip(np.log(size / axis[low]) / apart, 0.0, 1.0))
        logs = np.zeros(len(sizes))
        for corner in product((False, True), repeat=len(self.axes)):
            ends = zip(corner, lows, highs, parts, strict=True)
            chosen = [(h, p) if up else (at, 1 - p) for up, at, h, p in ends]
            weight = np.prod([p for _, p in chosen], axis=0)
            there = self.logs[tuple(place for place, _ in chosen)]
            logs += np.where(weight > 0, weight * there, 0.0)
        known = inside & np.isfinite(logs)
        timed = known & (np.max(parts, axis=0) == 0.0)
        return np.exp(np.where(known, logs, 0.0)), known.astype(np.int64) + timed


@dataclass(frozen=True, eq=False)
class Timings:
    """Of one device."""

    products: Mapping[str, Grid]
    """By format: rows, columns, depth of a forward product."""
    attention: Mapping[tuple[float, float], Grid]
    """By query heads for a key head and columns of a head: heads of all sequences, tokens; under a
    causal mask."""

    def product(
        self, dtype: str, kind: str, m: Floats, n: Floats, k: Floats, batch: Floats
    ) -> tuple[Floats, Known]:
        """Of products of a kind of operator. Gradients, which nobody timed, are off from the model
        as the product of the forward pass is; products side by side are the model's.
        """
        forward = {"linear": (m, n, k), "linear_dgrad": (m, k, n), "linear_wgrad": (k, m, n)}
        if dtype not in self.products or kind not in forward:
            return np.ones(len(m)), np.zeros(len(m), dtype=np.int64)
        ratios, known = self.products[dtype].at(np.stack(forward[kind], axis=1).astype(float))
        alone = np.asarray(batch) == 1
        most = TIMED if kind == "linear" else BETWEEN
        return np.where(alone, ratios, 1.0), np.where(alone, np.minimum(known, most), 0)

    def heads(self, heads: float, kv_heads: float, tokens: int, head: int) -> tuple[float, int]:
        """Of attention."""
        grid = self.attention.get((heads / kv_heads, head))
        if grid is None:
            return 1.0, 0
        ratios, known = grid.at(np.array([[heads, tokens]], dtype=np.float64))
        return float(ratios[0]), int(known[0])

    @cached_property
    def least(self) -> float:
        """No ratio is below."""
        grids = (*self.products.values(), *self.attention.values())
        return min((grid.least for grid in grids), default=1.0)
