"""Chips as the physical model sees them: counts, sizes and rates, one value for each design."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from atoll.base.arrays import Floats

USUAL_YEAR = 2024.0


@dataclass(frozen=True, slots=True)
class PhysicalChip:
    """One package. Counts are what is enabled; `spare` says how much more is on the die."""

    process_nm: float
    clock_Hz: float
    bf16_cells: float  # multiply-adds per clock; of narrower types below, 0 where there are none
    fp8_cells: float = 0.0
    fp4_cells: float = 0.0
    unit_cells: float = 1.0
    """Multiply-adds of one unit that shares its operands: an array, a tensor core, a SIMD."""
    unit_aspect: float = 1.0  # columns of such a unit over its rows
    matrix_units: bool = True  # False: vector lanes do the products, and cells take no extra area
    cores: float = 1.0  # arrays or vector units, whichever are more: one of each share a sequencer
    lanes: float = 0.0  # lanes of the vector units, 32 bits each
    threaded: bool = False
    """Lanes of multiprocessors behind a coherent cache, against statically scheduled ones."""
    spare: float = 1.0  # units on the die over those enabled
    spare_cores: float = 0.0  # arrays with their buffers on all dies beyond those enabled
    core_bytes: float = 0.0  # buffer of one array, part of the scratchpads
    scratchpad_bytes: float = 0.0
    cache_bytes: float = 0.0
    shared_Bpc: float = 0.0
    """Bytes per clock out of the memory that cores share; 0: not published, and its wires are
    within the network's share of the area."""
    shared_energy: float = 1.0  # energy of such a byte over that out of single-port banks of 1 MiB
    stacks: float = 0.0  # HBM stacks
    stack_mm2: float = 0.0  # interface and controller on the die
    channels: float = 0.0  # 64 bits each, of DRAM that is not stacked
    dram_Bps: float = 0.0
    dram_energy: float = 1.0  # energy per bit relative to HBM2
    link_Bps: float = 0.0  # one way, all links
    on_wafer: bool = False
    """Links go to the next die of the same wafer; host and DRAM are elsewhere."""
    dies: float = 1.0
    die_link_Bps: float = 0.0
    """Between the dies of a package, both ways, all links; 0: not published, and their area is
    within the uncore of further dies."""
    year: float = USUAL_YEAR  # sets the power at which a module could be cooled


Columns = dict[str, Floats]


def columns(chips: Sequence[PhysicalChip]) -> Columns:
    """Return one array per field."""
    return {
        entry.name: np.array([float(getattr(chip, entry.name)) for chip in chips])
        for entry in fields(PhysicalChip)
    }
