"""Watts of a chip at its peak rate by part, and the clock that a limit leaves.

    cells     multiply-adds, all in every clock
    operands  bytes to and from a unit for each: 2 of an operand for each row, 4 of a result for
              each column: a systolic array of 128 x 128 moves little, a SIMD of 4 moves most
    lanes     of vector units: issue, addresses, epilogues
    shared    bytes out of the memory that cores share, at a share of its bandwidth
    links     traffic that training at peak has
    dram      what stacks are rated at, and the traffic that products at peak have
    static    leakage and clocks, with the area

Voltage follows the clock, relative to the clock that a process has at its nominal voltage, down to
the least voltage of products (`voltage`). A rating is at most what a module of its year could be
cooled at: MI300X is sold at 750 W and reaches half of its peak there, the same silicon at 1,000 W
three fifths. With random data products draw `sustained` times what ratings leave for them (`load`),
so that a chip at its rated clock may exceed its rating, and lowers its clock (`clock_share`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from atoll.base.arrays import Floats
from atoll.hardware.physical.area import area_mm2, total
from atoll.hardware.physical.constants import PUBLISHED, Physics
from atoll.hardware.physical.nodes import nodes
from atoll.hardware.physical.physical_chip import Columns

_PJ, _BITS = 1e-12, 8
_OPERAND_BYTES, _RESULT_BYTES = 2, 4  # in bf16 and fp32
PARTS = ("cells", "operands", "lanes", "shared", "links", "dram", "static")


def voltage(clock_Hz: ArrayLike, process_nm: ArrayLike, physics: Physics = PUBLISHED) -> Floats:
    """Voltage relative to nominal, t + (1 - t) f with f the clock over the clock of the process at
    nominal voltage, and at least what products keep."""
    share = np.asarray(clock_Hz) / (physics.nominal_Hz * nodes(process_nm).speed)
    return np.maximum(physics.least_voltage, physics.threshold + (1.0 - physics.threshold) * share)


def shared_pJ_per_byte(process_nm: ArrayLike, physics: Physics = PUBLISHED) -> Floats:
    """Energy of a byte from a bank of the shared memory to a core; wires do not shrink."""
    wire = physics.wire_pJ_per_bit_mm * physics.wire_mm * _BITS
    return physics.sram_pJ_per_byte * nodes(process_nm).energy + wire


def dynamic_parts_W(
    chips: Columns, physics: Physics = PUBLISHED, load: float = 1.0
) -> dict[str, Floats]:
    """Power by part of what the clock drives, and of links; `load` times the rating's energy of
    products and lanes."""
    process_nm = chips["process_nm"]
    clock = chips["clock_Hz"] * voltage(chips["clock_Hz"], process_nm, physics) ** 2 * _PJ
    busy = load * clock * nodes(process_nm).energy
    wide, narrow = chips["bf16_cells"], chips["fp8_cells"]
    macs = np.maximum(wide, narrow * physics.fp8_mac)
    columns = np.sqrt(chips["unit_cells"] * chips["unit_aspect"])
    rows = np.sqrt(chips["unit_cells"] / chips["unit_aspect"])
    moved = np.maximum(wide, narrow / 2) * (_OPERAND_BYTES / columns + _RESULT_BYTES / rows)
    lane = np.where(chips["threaded"], physics.threaded_lane_pJ, physics.static_lane_pJ)
    byte = shared_pJ_per_byte(process_nm, physics) * chips["shared_energy"]
    link = physics.link_pJ_per_bit * np.where(chips["on_wafer"], physics.on_wafer_link, 1.0)
    return {
        "cells": macs * physics.mac_pJ * busy,
        "operands": moved * physics.operand_pJ_per_byte * busy,
        "lanes": chips["lanes"] * lane * busy,
        "shared": physics.buffer_share * chips["shared_Bpc"] * byte * clock,
        "links": physics.link_share * 2 * chips["link_Bps"] * _BITS * link * _PJ,
    }


def power_parts_W(chips: Columns, physics: Physics = PUBLISHED) -> dict[str, Floats]:
    """Power by part at the load of a rating, without a limit, in the order of `PARTS`."""
    relative = np.where(chips["stacks"] > 0, chips["dram_energy"], physics.other_dram)
    bit = physics.dram_pJ_per_bit * relative
    traffic = physics.dram_share * chips["dram_Bps"] * _BITS * bit * _PJ
    return dynamic_parts_W(chips, physics) | {
        "dram": chips["stacks"] * physics.hbm_stack_W + traffic,
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
