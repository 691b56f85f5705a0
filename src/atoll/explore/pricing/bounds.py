"""Lower bounds without schedules, from peak rates and the layouts that fit in memory.

Chips with equal rates have the same roofline, so each distinct row of rates (matrix products,
vector operations, HBM, stalls) is bounded once.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import Floats, Ints
from atoll.cost.chips import FIRST_OPTION, Chips, distinct_rows
from atoll.executors.threads import over_ranges
from atoll.explore.pricing.bound_kernels import layout_bounds, roofline
from atoll.explore.pricing.layouts import Layouts, SearchSetting, list_layouts
from atoll.explore.pricing.operator_work import OperatorWork
from atoll.explore.pricing.workloads import Variants

HBM = 2  # column of `chip_rates` with the HBM bandwidth
_CLOCK_STEP_HZ = 10e6
"""Rooflines take clocks rounded up to whole steps, so that fewer rates are distinct."""


def chip_rates(chips: Chips) -> Floats:
    """Return the rates that determine the bounds of each chip, shape (chips, 6): multiply-adds,
    vector operations and HBM bytes per second, fill seconds per output, start seconds per operator,
    and the share of concurrent work that does not overlap. Rates of clocks are upper bounds."""
    clock_Hz = np.ceil(chips.clock_Hz / _CLOCK_STEP_HZ) * _CLOCK_STEP_HZ
    stalls, configs = chips.stalls, chips.tensor_configs
    tensor, vector = (c[:, FIRST_OPTION] for c in (chips.tensor_config, chips.vector_config))
    lanes = chips.vector_configs.lanes[vector]
    rows = np.maximum(1, configs.core_buffer_bytes // (4.0 * (configs.depth + configs.width)))
    round_outputs = chips.tensor_cores * (rows * configs.width)[tensor]
    macs = np.round(chips.peak_flops / chips.clock_Hz) * clock_Hz / 2.0 * stalls.array
    vector_ops, fill_s = chips.vector_cores * lanes * clock_Hz, stalls.fill_s / round_outputs
    start_s, exposed = (np.full(len(chips), value) for value in (stalls.start_s, stalls.exposed))
    return np.column_stack([macs, vector_ops, chips.stream_Bps, fill_s, start_s, exposed])


def layer_rooflines(
    rates: Floats,
    variants: Variants,
    setting: SearchSetting,
    work: OperatorWork,
    chosen: Ints | None = None,
) -> Floats:
    """Return lower bounds on the seconds of every pass, shape (rates, layers, 2), where the last
    axis is forward and backward. If `chosen` is given, other variants have zeros."""
    bounds = np.zeros((len(rates), 2 * len(variants.passes.layers)))
    wanted = np.full(bounds.shape[1], chosen is None)
    for v in () if chosen is None else chosen:
        wanted[2 * variants.layer_ranges[v] : 2 * variants.layer_ranges[v + 1]] = True
    passes, profile = variants.passes, setting.profile
    graphs = passes.arrays, passes.alike, wanted
    works = work.macs, work.vector_ops, work.bytes, work.link_s, work.outputs, work.starts
    columns = (np.ascontiguousarray(column) for column in rates.T)
    flags = profile.vector_memory, not profile.link_on_vector
    arguments = (*graphs, *works, *columns, *flags, bounds)
    over_ranges(lambda a, b: roofline(a, b, *arguments), len(rates))
    return bounds.reshape(len(rates), -1, 2)


@dataclass(frozen=True, eq=False)
class VariantLayoutBounds:
    """Lower bounds on the step time over all layouts of each variant."""

    variants: Variants
    layouts: Layouts

    def step_s(self, pass_s: Floats, variant: Ints) -> Floats:
        """Return lower bounds on the step time, shape (nodes,), from lower bounds on the passes,
        `pass_s` of shape (nodes, layers, 2)."""
        at_zero = np.zeros(len(self.variants.variants), np.int64)
        return self._step_s(pass_s, np.arange(len(pass_s)), variant, at_zero)

    def _step_s(self, pass_s: Floats, row: Ints, variant: Ints, offset: Ints) -> Floats:
        result = np.full(len(row), np.inf)
        arguments = (pass_s, row, variant, offset, *self._layers, *self.layouts, result)
        over_ranges(lambda a, b: layout_bounds(a, b, *arguments), len(row))
        return result

    @cached_property
    def _layers(self) -> tuple[NDArray[Any], ...]:
        """Return, per variant, the layer range and the number of distinct layers; per priced layer,
        its repeats in the model (0 for halves of a backward pass) and whether it is a block."""
        variants, ranges = self.variants.variants, self.variants.layer_ranges
        repeats, block = np.zeros(ranges[-1], np.int64), np.zeros(ranges[-1], np.bool_)
        for v in variants:
            repeats[v.first_layer : v.first_layer + v.layers] = v.facts.repeats
            block[[v.first_layer + kind.layer for kind in v.facts.blocks]] = True
        return ranges, np.array([v.layers for v in variants], np.int64), repeats, block

    def step_s_of_pairs(self, pass_s: Floats, row: Ints, variant: Ints) -> Floats:
        """Return lower bounds on the step time, shape (pairs,), for pairs of a row of `pass_s`,
        shape (rows, all layers, 2), and a variant."""
        return self._step_s(pass_s, row, variant, self.variants.layer_ranges[:-1])

    def all_variants_s(self, pass_s: Floats) -> Floats:
        """Return lower bounds on the step time of every variant, shape (rows, variants), from
        `pass_s` of shape (rows, all layers, 2)."""
        count = len(self.variants.variants)
        row, variant = np.divmod(np.arange(len(pass_s) * count), count)
        return self.step_s_of_pairs(pass_s, row, variant).reshape(len(pass_s), count)


def roofline_bounds(
    rates: Floats,
    memory_bytes: float,
    variants: Variants,
    setting: SearchSetting,
    work: OperatorWork,
) -> tuple[VariantLayoutBounds, Floats]:
    """Return the layouts for chips with these rates and at most `memory_bytes`, and lower bounds on
    the step time, shape (chips, variants)."""
    distinct, number = distinct_rows(rates)
    pass_s = layer_rooflines(distinct, variants, setting, work)
    both_s = pass_s[..., 0] + pass_s[..., 1]  # faster than a sum over an axis of two
    least = np.split(both_s.min(axis=0), variants.layer_ranges[1:-1])
    hbm_Bps = float(rates[:, HBM].max())
    listed_layouts = list_layouts(variants.variants, setting, memory_bytes, hbm_Bps, least)
    layouts = VariantLayoutBounds(variants, listed_layouts)
    return layouts, layouts.all_variants_s(pass_s)[number]
