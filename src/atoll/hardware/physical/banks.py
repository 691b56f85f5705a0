"""A shared buffer in banks: what it serves in a clock, and what banks and ports take.

Every clock each core asks for as many words as its rows or lanes take up; the words lie in any of
the banks. With R words asked for and B banks of one port, B (1 - (1 - 1/B)^R) are served and the
others wait: the classic bandwidth of interleaved memories (Strecker, PhD thesis, CMU 1970; Ravi,
IEEE Trans. Computers 1972; Bhandarkar, 1975: within 8 % of the exact queue). A second port serves
the second word of a bank as well: B (P(X >= 1) + P(X >= 2)), X binomial over R words. More banks,
ports or words asked for never serve less, and the share that a core gets of what it asks for never
grows with more cores beside it.

Area: cells, and periphery (decoders, sense amplifiers, checks, the port's way to the network) that
has the side of a bank; buffers of the other templates are banks of 1 MiB. A second port makes cells
and periphery larger. Energy: a byte's way over the bank, by a power of the bank's area.
"""

from __future__ import annotations

import numpy as np

from atoll.base.arrays import Floats
from atoll.hardware.accelerator import MIB
from atoll.hardware.physical.constants import PUBLISHED, Physics
from atoll.hardware.template.parameter import Columns

WORD_BYTES = 128
"""Bytes per port and clock: with banks of 1 MiB, the A100's 128 bytes per clock and MiB of L2."""
OPERAND_BYTES = 2
MOST_PORTS = 2


def requested_words(chips: Columns) -> Floats:
    """Words that all cores request per clock: one operand per array row and per lane."""
    rows, lanes = (
        np.ceil(np.asarray(chips[name], np.float64) * OPERAND_BYTES / WORD_BYTES)
        for name in ("depth", "vector_width")
    )
    return np.asarray(chips["tensor_cores"] * rows + chips["vector_cores"] * lanes)


def words_served(requested: Floats, banks: Floats, ports: Floats) -> Floats:
    """Expected words served per clock when `requested` words fall into random banks."""
    chance = 1.0 / np.asarray(banks, np.float64)
    idle = (1.0 - chance) ** requested
    single = requested * chance * (1.0 - chance) ** (requested - 1.0)
    second = np.where(np.asarray(ports) > 1, 1.0 - idle - single, 0.0)
    return np.asarray((1.0 - idle + second) / chance)


def bytes_per_clock(chips: Columns) -> Floats:
    """Bytes that the buffer serves per clock."""
    return WORD_BYTES * words_served(requested_words(chips), chips["banks"], chips["ports"])


def port_bytes_per_clock(chips: Columns) -> Floats:
    """Bytes per clock that all ports could serve together, which sizes the wires."""
    return np.asarray(chips["banks"] * chips["ports"], np.float64) * WORD_BYTES


def single_port_bytes(chips: Columns, physics: Physics = PUBLISHED) -> Floats:
    """Bytes of a buffer with single-port 1 MiB banks of the same area."""
    size = np.asarray(chips["glb_bytes"], np.float64)
    side = np.sqrt(np.asarray(chips["banks"], np.float64) * MIB / size)
    return size * (1.0 + physics.bank_periphery * (side - 1.0)) * _port_area_factor(chips, physics)


def energy(chips: Columns, physics: Physics = PUBLISHED) -> Floats:
    """Energy per byte relative to a single-port bank of 1 MiB."""
    size = np.asarray(chips["glb_bytes"], np.float64) / chips["banks"] / MIB
    return np.asarray((size * _port_area_factor(chips, physics)) ** physics.bank_energy)


def _port_area_factor(chips: Columns, physics: Physics) -> Floats:
    """Area relative to a single-port bank."""
    return 1.0 + (np.asarray(chips["ports"], np.float64) - 1.0) * (physics.second_port - 1.0)
