"""Watts of a chip at its peak rate by part, and the clock that a limit leaves.

    cells     multiply-adds, all in every clock
    operands  bytes to and from a unit for each: 2 for an operand, 4 for a result, over the side of
              the unit: a systolic array of 128 x 128 moves little, a SIMD of 4 moves most
    lanes     of vector units: issue, addresses, epilogues
    dram      what stacks are rated at, and the traffic that products at peak have
    links     traffic that training at peak has
    static    leakage and clocks, with the area

A rating is at most what a module of its year could be cooled at: MI300X is sold at 750 W and
reaches half of its peak there, the same silicon at 1,000 W three fifths. Each design closes its
timing at the nominal voltage of its node, so clocks of different chips say nothing of voltage; one
chip that runs slower than its clock runs at a lower one (`clock_share`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from atoll.base.arrays import Floats
from atoll.hardware.physical.area import area_mm2, total
from atoll.hardware.physical.constants import PUBLISHED, Physics
from atoll.hardware.physical.nodes import nodes
from atoll.hardware.physical.physical_chip import Columns

_PJ = 1e-12
_BYTES_PER_EDGE_CELL = 2 + 4
"""An operand in and a result out of each row and column, in bf16 and fp32."""
PARTS = ("cells", "operands", "lanes", "dram", "links", "static")


def power_parts_W(chips: Columns, physics: Physics = PUBLISHED) -> dict[str, Floats]:
    """Power by part at peak, without a limit, in the order of `PARTS`."""
    dynamic = chips["clock_Hz"] * nodes(chips["process_nm"]).energy * _PJ
    wide, narrow = chips["bf16_cells"], chips["fp8_cells"]
    macs = np.maximum(wide, narrow * physics.fp8_mac)
    moved = np.maximum(wide, narrow / 2) * _BYTES_PER_EDGE_CELL / np.sqrt(chips["unit_cells"])
    lane = np.where(chips["threaded"], physics.threaded_lane_pJ, physics.static_lane_pJ)
    stacked = chips["stacks"] > 0
    bit = physics.dram_pJ_per_bit * np.where(stacked, chips["dram_energy"], physics.other_dram)
    link = physics.link_pJ_per_bit * np.where(chips["on_wafer"], physics.on_wafer_link, 1.0)
    traffic = physics.dram_share * chips["dram_Bps"] * 8 * bit * _PJ
    return {
        "cells": macs * physics.mac_pJ * dynamic,
        "operands": moved * physics.operand_pJ_per_byte * dynamic,
        "lanes": chips["lanes"] * lane * dynamic,
        "dram": chips["stacks"] * physics.hbm_stack_W + traffic,
        "links": physics.link_share * 2 * chips["link_Bps"] * 8 * link * _PJ,
        "static": physics.static_W_per_mm2 * area_mm2(chips, physics),
    }


def module_W(chips: Columns, physics: Physics = PUBLISHED) -> Floats:
    """Power at which a module of its year could be cooled; infinite for dies of a wafer."""
    limit = physics.module_W_2016 * np.exp(physics.module_growth * (chips["year"] - 2016))
    return np.where(chips["on_wafer"], np.inf, limit)


def rating_W(chips: Columns, physics: Physics = PUBLISHED) -> Floats:
    """Thermal design power: peak power, at most the module's cooling limit."""
    drawn = total(power_parts_W(chips, physics).values())
    return np.asarray(np.minimum(drawn, module_W(chips, physics)))


def clock_share(
    fixed_W: ArrayLike, dynamic_W: ArrayLike, limit_W: ArrayLike, physics: Physics = PUBLISHED
) -> Floats:
    """The largest share f of the clock that a limit leaves.

    Voltage follows the clock, V = t + (1 - t) f of the nominal one, so power is fixed + dynamic f
    V^2: the root in f of a cubic that grows with f, found by bisection on all designs at once. At
    least a tenth: below that a chip waits.
    """
    fixed, dynamic, limit = np.broadcast_arrays(
        *(np.asarray(value, np.float64) for value in (fixed_W, dynamic_W, limit_W))
    )
    low, high = np.full(fixed.shape, 0.1), np.ones(fixed.shape)
    t = physics.threshold
    for _ in range(40):
        middle = (low + high) / 2
        fits = fixed + dynamic * middle * (t + (1 - t) * middle) ** 2 <= limit
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.where(fixed + dynamic <= limit, 1.0, low)
