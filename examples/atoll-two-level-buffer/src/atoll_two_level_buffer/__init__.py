"""A chip template: a second, larger and slower buffer between the shared one and HBM.

The second buffer is embedded DRAM. Its density is that of Hamzaoglu et al., "A 1 Gb 2 GHz 128 GB/s
Bandwidth Embedded DRAM in 22 nm Tri-Gate CMOS Technology", JSSC 50(1), 2015: 128 MiB on a die of
77 mm2, a little under half of what the GLB's SRAM takes for the same bytes in 22 nm. Bandwidth and
energy are assumptions: an eighth of the GLB's bytes a clock and MiB, and 8 pJ a byte, between the
GLB's 1.75 pJ and HBM's 31 pJ.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from atoll.plugins import (
    GLB_BPC_PER_MIB,
    MIB,
    SYSTOLIC,
    BufferLevels,
    ChipTemplate,
    Columns,
    CostModel,
    EnergyModel,
    Parameter,
)
from atoll_two_level_buffer.nested import products

FloatArray = NDArray[np.float64]

MM2_PER_MIB = 77.0 / 128.0
BPC_PER_MIB = GLB_BPC_PER_MIB / 8.0
J_PER_BYTE = 8e-12

L2 = Parameter(
    "l2_bytes",
    "Second buffer",
    tuple(size * MIB for size in (32, 64, 128)),
    kind="bytes",
    key="l2",
    unit="MiB",
    per=MIB,
)
OWN_VALUES = {
    "tensor_cores": (2, 4, 8, 16),
    "vector_cores": (2, 4, 8),
    "width": (64, 128),
    "depth": (64, 128),
    "glb_bytes": tuple(size * MIB for size in (4, 8, 16, 32)),
}


def area_mm2(chips: Columns) -> FloatArray:
    return SYSTOLIC.area_mm2(chips) + _second_mm2(chips)


def area_parts(chips: Columns) -> dict[str, FloatArray]:
    return {**SYSTOLIC.area_parts(chips), "second_buffer_mm2": _second_mm2(chips)}


def _second_mm2(chips: Columns) -> FloatArray:
    return np.asarray(MM2_PER_MIB * chips["l2_bytes"] / MIB)


def power_W(chips: Columns, energy: EnergyModel) -> FloatArray:
    _, bytes_per_clock = second_buffer(chips)
    return SYSTOLIC.power_W(chips, energy) + bytes_per_clock[:, 0] * J_PER_BYTE * chips["clock_Hz"]


def second_buffer(chips: Columns) -> tuple[FloatArray, FloatArray]:
    """Bytes, and bytes a clock."""
    size = np.asarray(chips["l2_bytes"], np.float64)[:, None]
    return size, BPC_PER_MIB * size / MIB


_PARAMETERS = tuple(
    replace(parameter, values=OWN_VALUES.get(parameter.name, parameter.values))
    for parameter in SYSTOLIC.parameters
)

TEMPLATE = ChipTemplate(
    name="two-level-buffer",
    about="The systolic template with a second buffer of embedded DRAM before HBM.",
    parameters=(*_PARAMETERS[:-1], L2, _PARAMETERS[-1]),
    area_mm2=area_mm2,
    area_parts=area_parts,
    power_W=power_W,
    levels=BufferLevels(("second buffer",), second_buffer, (J_PER_BYTE,)),
    cost_model=CostModel("two-level-buffer", products),
)
