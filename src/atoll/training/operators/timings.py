"""Ratios of measured to modelled operator times of a device, at timed sizes and between them.

The operator model accounts for the difference between a kernel timed alone and one in a training
step (clock, operands in memory); the ratio transfers a measurement to the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Self

import numpy as np

from atoll.base.arrays import Floats, Ints

BETWEEN, TIMED = 1, 2
Origins = Ints
"""Per size: `TIMED`, `BETWEEN` timed sizes, or 0 for neither."""
THIN = 1 / 3  # least share of timed points for a value of an axis to be used


@dataclass(frozen=True, eq=False)
class RatioGrid:
    """Ratios at points of a grid of sizes."""

    axes: tuple[Floats, ...]
    logs: Floats
    """Logarithms of the ratios; NaN where nothing was timed."""

    @classmethod
    def from_sizes(cls, sizes: Floats, ratios: Floats) -> Self:
        """Build the grid from a row of sizes per ratio; several for one point give their median."""
        points, point = np.unique(sizes, axis=0, return_inverse=True)
        order = np.argsort(point.reshape(-1), kind="stable")
        starts = np.searchsorted(point.reshape(-1)[order], np.arange(1, len(points)))
        medians = [np.median(part) for part in np.split(np.log(ratios)[order], starts)]
        columns = [np.unique(column, return_inverse=True) for column in points.T]
        logs = np.full([len(axis) for axis, _ in columns], np.nan)
        logs[tuple(place for _, place in columns)] = medians
        axes = [axis for axis, _ in columns]
        for i in range(len(axes)):
            remaining = tuple(j for j in range(len(axes)) if j != i)
            full = np.isfinite(logs).mean(axis=remaining) >= THIN
            axes[i], logs = axes[i][full], np.compress(full, logs, axis=i)
        return cls(tuple(axes), logs)

    @cached_property
    def least(self) -> float:
        """Lower bound on all ratios, at points, between and beyond them."""
        return min(1.0, float(np.exp(np.nanmin(self.logs))))

    def at(self, sizes: Floats) -> tuple[Floats, Origins]:
        """Interpolate the ratios' logarithms; 1 outside of the grid or at a missing point."""
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
            corner_logs = self.logs[tuple(place for place, _ in chosen)]
            logs += np.where(weight > 0, weight * corner_logs, 0.0)
        covered = inside & np.isfinite(logs)
        timed = covered & (np.max(parts, axis=0) == 0.0)
        return np.exp(np.where(covered, logs, 0.0)), covered.astype(np.int64) + timed


@dataclass(frozen=True, eq=False)
class Timings:
    """Measured over modelled times of one device."""

    products: Mapping[str, RatioGrid]
    """By format; axes: rows, columns, depth of a forward product."""
    attention: Mapping[tuple[float, float], RatioGrid]
    """By query heads per key head and columns per head; axes: heads of all sequences, tokens; under
    a causal mask."""

    def product(
        self, dtype: str, kind: str, m: Floats, n: Floats, k: Floats, batch: Floats
    ) -> tuple[Floats, Origins]:
        """Return the ratios of products of a kind of operator. Gradients, which were not timed,
        have the ratio of their forward product; batches of products have ratio 1.
        """
        forward = {"linear": (m, n, k), "linear_dgrad": (m, k, n), "linear_wgrad": (k, m, n)}
        if dtype not in self.products or kind not in forward:
            return np.ones(len(m)), np.zeros(len(m), dtype=np.int64)
        ratios, origin = self.products[dtype].at(np.stack(forward[kind], axis=1).astype(float))
        alone = np.asarray(batch) == 1
        most = TIMED if kind == "linear" else BETWEEN
        return np.where(alone, ratios, 1.0), np.where(alone, np.minimum(origin, most), 0)

    def heads(self, heads: float, kv_heads: float, tokens: int, head: int) -> tuple[float, int]:
        """Return the ratio of attention, and its origin."""
        grid = self.attention.get((heads / kv_heads, head))
        if grid is None:
            return 1.0, 0
        ratios, origin = grid.at(np.array([[heads, tokens]], dtype=np.float64))
        return float(ratios[0]), int(origin[0])

    @cached_property
    def least(self) -> float:
        """Lower bound on all ratios."""
        grids = (*self.products.values(), *self.attention.values())
        return min((grid.least for grid in grids), default=1.0)
