"""Process nodes of 28 to 3 nm: what of a chip shrinks with them, and what a wafer of them costs.

Logic is peak density of the library and SRAM the high-density cell (WikiChip; TSMC at IEDM 2014 to
2022; Angstronomics for 5 nm), macros as dense as 5 nm's 31.8 Mb/mm2 relative to their cells. Energy
is per operation at the same speed over that of 7 nm, and speed the clock at the same power over
that of 7 nm, both as foundries claim them (TSMC: N16 to N7 +38 %, N7 to N5 +15 %, N5 to N4 +5 %,
N5 to N3 +13 %, 28HPM to 16FF+ at least +50 %). Wafer prices and defects follow CSET 2020 as used by
Feng and Ma, DAC 2022; 3 nm is TSMC's mean price of 2024. Between nodes, values lie on a power law.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from atoll.base.arrays import Floats

_NODES = np.array([
    # nm, MTr/mm2, bit cell um2, energy and speed over 7 nm, V, $/wafer, defects/cm2
    (28.0, 15.3, 0.127, 4.50, 0.48, 0.90, 2891.0, 0.07),
    (22.0, 16.5, 0.110, 3.60, 0.55, 0.80, 3400.0, 0.07),
    (16.0, 28.9, 0.074, 2.50, 0.73, 0.80, 3984.0, 0.08),
    (14.0, 32.0, 0.064, 2.40, 0.73, 0.80, 3984.0, 0.08),
    (12.0, 33.8, 0.070, 2.30, 0.80, 0.80, 3984.0, 0.08),
    (10.0, 52.5, 0.042, 1.60, 0.84, 0.75, 5992.0, 0.08),
    (7.0, 91.2, 0.027, 1.00, 1.00, 0.75, 9346.0, 0.09),
    (6.0, 114.2, 0.027, 0.95, 1.00, 0.75, 9346.0, 0.09),
    (5.0, 138.2, 0.021, 0.70, 1.15, 0.75, 16000.0, 0.11),
    (4.0, 146.0, 0.021, 0.65, 1.21, 0.75, 16000.0, 0.11),
    (3.0, 197.0, 0.021, 0.48, 1.30, 0.75, 19865.0, 0.20),
])[::-1]  # fmt: skip
RETICLE_MM2 = 26.0 * 33.0  # area of a lithography exposure: the largest possible die
SMALLEST_NM, LARGEST_NM = float(_NODES[0, 0]), float(_NODES[-1, 0])
# Figures of a node are known within a factor of 1.15; prices and defects within 1.5.
_MACRO_N5_MB_PER_MM2, _CELL_N5_UM2 = 31.8, 0.021
_REFERENCE_NM = 7.0
_LOG_NM, *_LOG_COLUMNS = np.log(_NODES.T)
_FIGURES = (
    "logic_MTr_per_mm2", "bit_cell_um2", "energy", "speed", "voltage_V", "wafer_usd",
    "defects_per_cm2",
)  # fmt: skip
_LOG_FIGURES = dict(zip(_FIGURES, _LOG_COLUMNS, strict=True))
_REFERENCE_MTR_PER_MM2 = float(_NODES[_NODES[:, 0] == _REFERENCE_NM, 1][0])


@dataclass(frozen=True, slots=True)
class ProcessNodes:
    """Properties of process nodes, one array entry per design, interpolated when asked for.

    Attributes are those of `_FIGURES`: energy of an operation and clock at the same power relative
    to 7 nm, and others; and what follows from them.
    """

    log_nm: Floats

    def __getattr__(self, name: str) -> Floats:
        if name not in _LOG_FIGURES:
            raise AttributeError(name)
        return np.asarray(np.exp(np.interp(self.log_nm, _LOG_NM, _LOG_FIGURES[name])))

    @property
    def logic(self) -> Floats:
        """Logic area relative to 7 nm."""
        return np.asarray(_REFERENCE_MTR_PER_MM2 / self.logic_MTr_per_mm2)

    @property
    def macro_bytes_per_mm2(self) -> Floats:
        macro_Mb = _MACRO_N5_MB_PER_MM2 * _CELL_N5_UM2 / self.bit_cell_um2
        return np.asarray(macro_Mb * 1e6 / 8)

    @property
    def defects_per_mm2(self) -> Floats:
        return np.asarray(self.defects_per_cm2 / 100)


def nodes(process_nm: ArrayLike) -> ProcessNodes:
    """Return the properties of each node; outside 3 to 28 nm the nearest node counts."""
    clipped_nm = np.clip(np.asarray(process_nm, np.float64), SMALLEST_NM, LARGEST_NM)
    return ProcessNodes(np.log(clipped_nm))
