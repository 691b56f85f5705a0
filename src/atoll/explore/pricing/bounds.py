"""Bounds that need no schedule: peak rates, and the layouts that fit in memory.

Chips with the same peaks have the same roofline, whatever makes the peaks up: each distinct triple
of rates (products, vector work, HBM) is bounded once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.cost.chips import Chips, distinct_rows
from atoll.explore.pricing.bound_kernels import layout_bounds, roofline
from atoll.explore.pricing.layouts import Layouts, Setting, list_layouts
from atoll.explore.pricing.work import OperatorWork
from atoll.explore.pricing.workloads import Variant, Variants
from atoll.jit import over_ranges

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def chip_rates(chips: Chips) -> FloatArray:
    """Multiply-adds, vector operations and HBM bytes a second of each chip: (chips, 3)."""
    lanes = chips.vector_configs.lanes[chips.vector_config[:, 0]]
    return np.column_stack(
        [chips.peak_flops / 2.0, chips.vector_cores * lanes * chips.clock_Hz, chips.hbm_Bps]
    )


def layer_rooflines(
    rates: FloatArray, variants: Variants, setting: Setting, work: OperatorWork
) -> FloatArray:
    """Forward plus backward of every layer at these rates, from below: (rates, layers)."""
    bounds = np.zeros((len(rates), 2 * len(variants.passes.layers)))
    columns = (np.ascontiguousarray(column) for column in rates.T)
    arguments = (
        variants.passes.arrays,
        work.macs,
        work.vector_ops,
        work.bytes,
        work.link_s,
        *columns,
        setting.profile.vector_memory,
        not setting.profile.link_on_vector,
        bounds,
    )
    over_ranges(lambda a, b: roofline(a, b, *arguments), len(rates))
    return np.asarray(bounds[:, 0::2] + bounds[:, 1::2])


@dataclass(frozen=True, eq=False)
class LayoutBounds:
    """The layouts of every variant, and the least step time over them."""

    variants: Variants
    layouts: Layouts

    def step_s(self, layer_s: FloatArray, variant: IntArray) -> FloatArray:
        """Least step time of nodes whose layers take no less than `layer_s` (nodes, layers)."""
        variants = self.variants
        repeats = np.array([n for v in variants.variants for n in _repeats(v)], np.int64)
        result = np.full(len(layer_s), np.inf)
        arguments = (
            layer_s,
            variant,
            variants.layer_ranges,
            repeats,
            np.array([v.facts.block_kind for v in variants.variants], np.int64),
            *self.layouts,
            result,
        )
        over_ranges(lambda a, b: layout_bounds(a, b, *arguments), len(layer_s))
        return result

    def all_variants_s(self, layer_s: FloatArray) -> FloatArray:
        """The same for every variant at once: `layer_s` (rows, all layers) to (rows, variants)."""
        ranges = self.variants.layer_ranges
        count = len(self.variants.variants)
        most = int(np.diff(ranges).max())
        rows = np.zeros((len(layer_s), count, most))
        for v in range(count):
            own = layer_s[:, ranges[v] : ranges[v + 1]]
            rows[:, v, : own.shape[1]] = own
        nodes = np.tile(np.arange(count), len(layer_s))
        return self.step_s(rows.reshape(-1, most), nodes).reshape(len(layer_s), count)


def roofline_bounds(
    rates: FloatArray,
    memory_bytes: float,
    variants: Variants,
    setting: Setting,
    work: OperatorWork,
) -> tuple[LayoutBounds, FloatArray]:
    """Layouts for chips with these rates and at most so much memory, and the step time that no
    plan beats: (chips, variants)."""
    distinct, number = distinct_rows(rates)
    layer_s = layer_rooflines(distinct, variants, setting, work)
    least = np.split(layer_s.min(axis=0), variants.layer_ranges[1:-1])
    hbm_Bps = float(rates[:, 2].max())
    found = list_layouts(variants.variants, setting, memory_bytes, hbm_Bps, least)
    layouts = LayoutBounds(variants, found)
    return layouts, layouts.all_variants_s(layer_s)[number]


def _repeats(variant: Variant) -> list[int]:
    """How often each of its priced layers stands in the model; halves of a backward pass stand
    nowhere."""
    own = [repeat for _, repeat in variant.model.layers]
    return own + [0] * (len(variant.passes) - len(own))
