"""The network between devices as nested levels: who is near whom, and how fast.

Level 0 is the innermost (devices of one node); each further level joins whole groups of the one
before. Bandwidth is per device and per direction, as seen by one device that talks only on that
level. A level may be a torus (or a mesh, where an axis is too short to be closed to a ring): its
bandwidth is that of one axis, both of whose links work at the same time.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from math import log, prod

from atoll.base.units import format_bandwidth


@dataclass(frozen=True, slots=True)
class FabricLevel:
    name: str
    devices: int  # devices in one group of this level
    bandwidth_Bps: float
    latency_s: float
    efficiency: tuple[tuple[float, float], ...] = ()
    """(bytes sent by a device, measured share of the bandwidth), ascending; empty: share 1."""
    ring: tuple[tuple[float, float], ...] = ()
    """The same for collectives, by the bytes of one ring step; empty: `efficiency` applies.
    Libraries choose the protocol by the message size of a step, not by the total sent."""
    sums: float = 1.0
    """All-reduce rate divided by the rate of a gather and a scatter."""
    in_network: bool = False
    """Switches reduce: an all-reduce crosses the level once in each direction, not twice."""
    start_s: float = 0.0
    """Fixed time per collective or send: its kernel starts and ends."""
    few: float = 0.0
    """n members reach 1 - few / n of the bandwidth, as few members do not fill the links. Negative
    where members share a link (a PCIe root), so that few members are faster."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """Axis lengths of the torus in every size in which it is cut, ascending; the last is full."""
    wraps: int = 0
    """Length of the shortest axis that is closed to a ring; shorter axes are lines."""
    across: int = 0
    """Devices per pod that the level joins: traffic between pods crosses it in addition to the
    inner levels. 0: it joins whole groups of the level before."""

    @property
    def torus(self) -> tuple[int, ...]:
        """Lengths of the axes; none where devices are switched."""
        return self.shapes[-1] if self.shapes else ()

    @property
    def best_share(self) -> float:
        """Largest share of the bandwidth that any message reaches."""
        return max((share for _, share in (*self.efficiency, *self.ring)), default=1.0)

    def share(self, sent_bytes: float) -> float:
        """Share of the bandwidth reached by a device that sends `sent_bytes`."""
        return reached_share(self.efficiency, sent_bytes)


def reached_share(curve: tuple[tuple[float, float], ...], sent_bytes: float) -> float:
    """Interpolate the reached share of the bandwidth over log(size); constant beyond the curve."""
    if not curve:
        return 1.0
    sizes = [size for size, _ in curve]
    at = bisect_left(sizes, sent_bytes)
    if at == 0:
        return curve[0][1]
    if at == len(sizes):
        return curve[-1][1]
    (low, below), (high, above) = curve[at - 1 : at + 1]
    part = log(sent_bytes / low) / log(high / low)
    return below + part * (above - below)


@dataclass(frozen=True)
class Network:
    name: str
    levels: tuple[FabricLevel, ...]
    left_out: tuple[str, ...] = ()
    """Fields of the start of messages that a user's file does not state; 0 is assumed."""

    @property
    def node(self) -> int:
        """Devices of the innermost level; of a torus, those of its smallest plane."""
        inner = self.levels[0]
        return prod(sorted(inner.torus)[:2]) if inner.torus else inner.devices

    def cut(self, devices: int) -> Network:
        """Return the network cut to the smallest torus that holds `devices`."""
        inner, *outer = self.levels
        holding = [shape for shape in inner.shapes[:-1] if prod(shape) >= devices]
        if not holding:
            return self
        shapes = inner.shapes[: inner.shapes.index(holding[0]) + 1]
        inner = replace(inner, shapes=shapes, devices=prod(holding[0]))
        return replace(self, levels=(inner, *outer))

    def sentence(self, devices: int) -> str:
        """Describe the levels that `devices` reach, with bandwidths per device and per node."""
        words = []
        for inner, level in zip((None, *self.levels), self.levels, strict=False):
            if inner is not None and devices <= inner.devices:
                break
            rate = f"{level.name} {format_bandwidth(level.bandwidth_Bps)} per device"
            if len(self.levels) == 1:
                words.append(f"{rate} among all devices")
            elif inner is None:
                words.append(f"{rate} in nodes of {self.node}")
            else:
                words.append(
                    f"{rate}, {format_bandwidth(level.bandwidth_Bps * self.node)} per node"
                )
        return f"{self.name} ({'; '.join(words)})"

    def faster(self, factor: float, only: int | None = None) -> Network:
        """The network with the bandwidth of all levels, or of one, multiplied by a factor."""
        levels = list(self.levels)
        for i, level in enumerate(levels):
            if only in (None, i):
                levels[i] = replace(level, bandwidth_Bps=level.bandwidth_Bps * factor)
        return replace(self, levels=tuple(levels))
