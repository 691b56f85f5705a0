"""The accelerator template: tensor cores, vector cores, a shared on-chip buffer (GLB) and HBM.

A tensor core is a systolic array of `depth` rows (the reduction dimension) by `width` columns (the
output dimension) with its own buffer; a vector core has `vector_width` lanes. One multiply-add per
array cell and clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from atoll.base.arrays import Floats

if TYPE_CHECKING:
    from atoll.hardware.template.parameter import Parameter
    from atoll.hardware.template.stalls import Stalls
    from atoll.hardware.template.template import ChipTemplate

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
# NVIDIA A100 whitepaper (2020): 40 MB of L2 read at 5120 bytes per clock.
GLB_BPC_PER_MIB = 128.0


@dataclass(frozen=True, slots=True)
class GlbBandwidth:
    """Bytes per clock out of the shared buffer: `fixed_Bpc + per_mib_Bpc x MiB`."""

    per_mib_Bpc: float = 0.0
    fixed_Bpc: float = 0.0

    def bytes_per_clock(self, glb_bytes: ArrayLike) -> Floats:
        return np.asarray(self.fixed_Bpc + self.per_mib_Bpc * (np.asarray(glb_bytes) / MIB))


@dataclass(frozen=True, slots=True)
class Hbm:
    """Off-chip memory of one device."""

    capacity_bytes: int
    bandwidth_Bps: float
    area_mm2: float = 0.0  # PHYs and controllers on the device's die; PHAZE counts none
    power_W: float | None = None  # at full bandwidth; None: bandwidth x the energy model's J/byte
    energy: float = 1.0  # of a byte over the energy model's
    edge_mm: float = 0.0  # of the die that its interfaces take
    stacks: int = 0  # 0: not stated
    generation: str = ""  # of its stacks, where area, power, energy and edge are the model's


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device. Counts and sizes only; area, power and time are computed by functions."""

    tensor_cores: int
    vector_cores: int
    width: int
    depth: int
    vector_width: int
    glb_bytes: int
    glb_bandwidth_Bpc: float  # bytes per clock, chip-wide
    clock_Hz: float
    hbm: Hbm
    name: str = ""
    template: ChipTemplate | None = None  # chip template; None: the one described above
    more: tuple[tuple[Parameter, float], ...] = ()  # further parameters of another template
    stated_core_buffer_bytes: int = 0
    stalls: Stalls | None = None  # stalls; None: those of the template
    dies: int = 1  # dies of the package
    spare: float = 1.0  # units on the die over those enabled

    @property
    def core_buffer_bytes(self) -> int:
        """Buffer per tensor core: as stated, or max(1, width x depth / 64) KiB as in PHAZE."""
        return self.stated_core_buffer_bytes or core_buffer_bytes(self.width, self.depth)

    @property
    def peak_flops(self) -> float:
        """Dense matrix FLOP/s, a multiply-add counted as two."""
        return 2.0 * self.tensor_cores * self.width * self.depth * self.clock_Hz

    def describe(self) -> str:
        return (
            f"{self.tensor_cores} TC {self.width}x{self.depth}, "
            f"{self.vector_cores} VC x{self.vector_width}, {self.glb_bytes / MIB:g} MiB GLB, "
            f"{self.hbm.capacity_bytes / GIB:g} GiB HBM"
        ) + "".join(f", {p.label.lower()} {p.shown(value)}" for p, value in self.more)


def core_buffer_bytes(width: int, depth: int) -> int:
    return max(KIB, width * depth // 64 * KIB)
