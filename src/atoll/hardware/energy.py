"""Energy per event and peak power of a device, from published constants for 7 nm.

Dynamic energy is counted where data or operands move: multiply-adds, vector operations, bytes of
the core buffers, of the shared buffer (GLB), of HBM and of links. Static power (leakage, clocks,
idle I/O and memory) grows with the area of `atoll.hardware.area`. On-chip wires are not counted.

Sources
  [TPUv4i] Jouppi et al., "Ten Lessons From Three Generations Shaped Google's TPUv4i", ISCA 2021,
           Table 2, 7 nm: bf16 multiply 0.21 pJ, fp32 multiply 1.31 pJ, fp32 add 0.38 pJ; per 64
           bits: 8 KB SRAM 7.5 pJ, 32 KB 8.5 pJ, 1 MB 14 pJ, HBM2 250 to 450 pJ.
  [TPUv4]  Jouppi et al., "TPU v4", ISCA 2023, Table 4: idle 90 W, then 121 / 170 / 192 W as the
           minimum, mean and maximum over production workloads, for the ASIC with its HBM.
  [FGDRAM] O'Connor et al., "Fine-Grained DRAM", MICRO 2017: HBM2 3.92 pJ/bit with ECC.
  [SerDes] A 112 Gb/s PAM4 transceiver in 5 nm, VLSI Symposium 2022,
           doi:10.1109/VLSITechnologyandCir46769.2022.9830304: 5.6 pJ/bit, analog and DSP.
The arithmetic, TPU v4, HBM2 and SerDes figures were checked against quotations of those papers; the
SRAM rows of [TPUv4i] are as remembered and were not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from atoll.base.arrays import Floats
from atoll.hardware.accelerator import GIB, MIB, Hbm
from atoll.hardware.area import area_mm2
from atoll.hardware.template.parameter import Columns
from atoll.hardware.template.template import ChipTemplate, EnergyModel

_PJ = 1e-12
STACK_BYTES = 16 * GIB
"""Of the stack that draws a whole stack's watts (`EnergyModel.hbm_W_per_byte`)."""

# [TPUv4] chip in PHAZE's template: 8 tensor cores 128x128, 2 vector cores of 128, 128 MiB.
TPU_V4_IDLE_W = 90.0
TPU_V4_MAX_W = 192.0
_TPU_V4_MODELLED_MM2 = float(area_mm2(8, 2, 128, 128, 128, 128 * MIB))

# Bytes between a tensor core and its buffer, per clock: a bf16 operand for each row, an fp32 result
# from each column (weights stay in the array).
_OPERAND_BYTES = 2
_RESULT_BYTES = 4


DEFAULT_ENERGY = EnergyModel(
    mac_J=(0.21 + 0.38) * _PJ,  # [TPUv4i] bf16 multiply, fp32 accumulate
    vector_op_J=(1.31 + 0.38) * _PJ,  # [TPUv4i] fp32 multiply and add
    # [TPUv4i] 256 KiB, the buffer of a 128x128 core: three fifths of the way (in log size) from
    # 32 KB to 1 MB
    core_buffer_J_per_byte=8.5 * (14 / 8.5) ** 0.6 / 8 * _PJ,
    glb_J_per_byte=14 / 8 * _PJ,  # [TPUv4i] banks of 1 MB
    hbm_J_per_byte=3.92 * 8 * _PJ,  # [FGDRAM]; the low end of [TPUv4i]'s 3.9 to 7.0 pJ/bit
    link_J_per_byte=5.6 * 8 * _PJ,  # [SerDes] transmitter at one end, receiver at the other
    static_W_per_mm2=TPU_V4_IDLE_W / _TPU_V4_MODELLED_MM2,  # [TPUv4], over the modelled area
)


def template_energy(template: ChipTemplate) -> EnergyModel:
    """Return the energy model of a template."""
    return template.energy or DEFAULT_ENERGY


def energy_at(template: ChipTemplate, process_nm: ArrayLike) -> EnergyModel:
    """Return the energy model at these processes, as columns where a template has several."""
    return template_energy(template) if template.energies is None else template.energies(process_nm)


def core_buffer_bytes_per_mac(width: ArrayLike, depth: ArrayLike) -> Floats:
    """Bytes between a tensor core and its buffer for each multiply-add of a full array."""
    rows, columns = np.asarray(depth, np.float64), np.asarray(width, np.float64)
    return np.asarray((_OPERAND_BYTES * rows + _RESULT_BYTES * columns) / (rows * columns))


def die_power_W(chips: Columns, model: EnergyModel = DEFAULT_ENERGY) -> Floats:
    """Watts of the cores and buffers of many designs, all units busy in every clock."""
    tensor = np.asarray(chips["tensor_cores"], dtype=np.float64)
    rows, columns = chips["depth"], chips["width"]
    lanes = np.asarray(chips["vector_cores"], dtype=np.float64) * chips["vector_width"]
    macs = tensor * rows * columns
    buffer_bytes = macs * core_buffer_bytes_per_mac(columns, rows)
    joules_per_clock = (
        macs * model.mac_J
        + lanes * model.vector_op_J
        + buffer_bytes * model.core_buffer_J_per_byte
        + chips["glb_bandwidth_Bpc"] * model.glb_J_per_byte
    )
    return np.asarray(joules_per_clock * chips["clock_Hz"])


def hbm_power_W(hbm: Hbm, model: EnergyModel = DEFAULT_ENERGY) -> float:
    """Watts of the HBM at full bandwidth: as stated, or by the model's energy per byte."""
    return hbm.bandwidth_Bps * model.hbm_J_per_byte if hbm.power_W is None else hbm.power_W


def hbm_idle_W(hbm: Hbm, model: EnergyModel = DEFAULT_ENERGY) -> float:
    """Watts of the HBM without traffic: by its stacks, or by its capacity where none are stated."""
    return model.hbm_W_per_byte * (hbm.stacks * STACK_BYTES or hbm.capacity_bytes)
