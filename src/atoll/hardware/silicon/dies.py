"""Several dies per package: what crosses the links between them.

Every die has an equal share of cores, shared buffer and HBM stacks, and its part of the buffer
caches its own stacks, as in MI300X and B200. Addresses are interleaved over dies, so of n dies a
share (n - 1) / n of the bytes that cores take from the shared buffer crosses a link. Links with L
bytes per second in all, both ways, let the buffer serve at most L n / (n - 1). One die has no such
limit, and more dies a lower one. Traffic between HBM and the buffer stays on its die.
"""

from __future__ import annotations

import numpy as np

from atoll.base.arrays import Floats
from atoll.hardware.accelerator import GLB_BPC_PER_MIB, MIB
from atoll.hardware.physical.constants import Physics
from atoll.hardware.physical.power import shared_pJ_per_byte
from atoll.hardware.template.parameter import Columns

_BITS = 8


def buffer_bytes_per_clock(chips: Columns) -> Floats:
    """Return what the banks of all dies serve, 128 bytes per clock and MiB as in the A100's L2."""
    return np.asarray(GLB_BPC_PER_MIB * chips["glb_bytes"] / MIB)


def bytes_per_clock(chips: Columns) -> Floats:
    """Return what the shared buffer serves to the cores of all dies."""
    crossing_Bpc = chips["die_link_Bps"] / chips["clock_Hz"]
    with np.errstate(divide="ignore"):
        most_Bpc = np.where(crossing_share(chips) > 0, crossing_Bpc / crossing_share(chips), np.inf)
    return np.minimum(buffer_bytes_per_clock(chips), most_Bpc)


def crossing_share(chips: Columns) -> Floats:
    """Return the share of the shared buffer's bytes that crosses a link between dies."""
    return 1.0 - 1.0 / np.asarray(chips["dies"], np.float64)


def crossing_energy(physics: Physics, chips: Columns) -> Floats:
    """Return the energy of a byte of the shared buffer over that on one die."""
    link_pJ = physics.die_link_pJ_per_bit * _BITS
    return 1.0 + crossing_share(chips) * link_pJ / shared_pJ_per_byte(chips["process_nm"], physics)
