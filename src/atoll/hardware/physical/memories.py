"""Generations of HBM: bandwidth and interface of a stack, energy of a bit.

Interfaces are those of the A100's die photograph (LLMCompass: 58 mm2 of PHYs and 32 of controllers
for 6 sites); later ones are assumed to fit the same edge of about 6 mm, known within a factor of 2.
Energies relative to HBM2 (O'Connor et al., MICRO 2017: 3.9 pJ/bit; vendors' 3.4 for HBM3e).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dram:
    """One stack of a generation, or one 64-bit channel of DRAM that is not stacked."""

    stacked: bool
    bandwidth_Bps: float  # as shipped in products
    GiB: int = 0  # capacity per stack, as shipped in products
    phy_mm2: float = 0.0
    controller_mm2: float = 0.0
    edge_mm: float = 0.0
    energy: float = 1.0  # energy per bit relative to HBM2


_GB = 1e9
HBM = {
    "hbm": Dram(True, 175 * _GB, 4, 9.67, 5.33, 6.0),
    "hbm2": Dram(True, 300 * _GB, 8, 9.67, 5.33, 6.0),
    "hbm2e": Dram(True, 410 * _GB, 16, 9.67, 5.33, 6.0),
    "hbm3": Dram(True, 700 * _GB, 16, 9.67, 5.33, 6.5, 0.90),
    "hbm3e": Dram(True, 900 * _GB, 24, 9.67, 5.33, 6.5, 0.88),
    "hbm4": Dram(True, 2048 * _GB, 36, 12.0, 6.0, 8.0, 0.75),
}
CHANNELS = {
    "lpddr": Dram(False, 51 * _GB),
    "gddr": Dram(False, 64 * _GB),
    "ddr5": Dram(False, 44 * _GB),
    "ddr": Dram(False, 19 * _GB),
}


def parse_dram(words: str) -> Dram | None:
    """Parse a memory such as "HBM2e" or "DDR4 x6 ch"; None if there is none."""
    word = words.strip().lower().split(" ")[0]
    if word in HBM:
        return HBM[word]
    return next((dram for name, dram in CHANNELS.items() if word.startswith(name)), None)
