"""The network between devices as nested levels: who is near whom, and how fast.

Level 0 is the innermost (devices of one node); each further level joins whole groups of the one
before. Bandwidth is per device and per direction, as seen by one device that talks only on that
level.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Level:
    name: str
    devices: int  # devices in one group of this level
    bandwidth_Bps: float
    latency_s: float


@dataclass(frozen=True)
class Network:
    name: str
    levels: tuple[Level, ...]
