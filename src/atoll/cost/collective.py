"""Collectives on a nested network: bandwidth and latency terms, the best algorithm chosen.

A group of devices that lie `stride` apart occupies some members of each level. The hierarchical
algorithm runs a ring per level on what is left of the data; the flat ring crosses the slowest
level with everything. (Ring terms: Thakur, Rabenseifner, Gropp, IJHPCA 2005.)
"""

from __future__ import annotations

from atoll.errors import AtollError
from atoll.hardware.network import Level, Network
from atoll.workload.operator import CollectiveKind


def collective_s(
    network: Network, kind: CollectiveKind, bytes_: float, group: int, stride: int = 1
) -> float:
    """Seconds of one collective over `group` devices; `bytes_` is the whole tensor."""
    if group <= 1 or bytes_ <= 0:
        return 0.0
    passes = 2.0 if kind is CollectiveKind.ALL_REDUCE else 1.0
    return passes * min(
        fixed_s + s_per_byte * bytes_ for fixed_s, s_per_byte in pass_terms(network, group, stride)
    )


def pass_terms(
    network: Network, group: int, stride: int = 1
) -> tuple[tuple[float, float], tuple[float, float]]:
    """(fixed seconds, seconds per byte) of one pass, hierarchical and flat.

    A pass is a reduce-scatter or an all-gather; an all-reduce takes two.
    """
    return _hierarchical_terms(network, group, stride), _flat_terms(network, group, stride)


def point_to_point_terms(network: Network, stride: int) -> tuple[float, float]:
    """(fixed seconds, seconds per byte) of a send to the device `stride` ranks away."""
    level = _level_of(network, stride + 1)
    return level.latency_s, 1.0 / level.bandwidth_Bps


def _hierarchical_terms(network: Network, group: int, stride: int) -> tuple[float, float]:
    """Level by level, each on the share of the data that the level below left.

    Where the members do not fill the last of the inner groups, the few in it carry as much to the
    outside as the many elsewhere.
    """
    fixed_s = 0.0
    s_per_byte = 0.0
    inside = 1
    for level in network.levels:
        holds_all = _span(group, stride) <= level.devices
        here = group if holds_all else max(1, level.devices // stride)
        if here > inside:
            fewest = here % inside or inside
            s_per_byte += (here - fewest) / here / fewest / level.bandwidth_Bps
            fixed_s += (-(-here // inside) - 1) * level.latency_s
            inside = here
    if inside < group:
        raise _too_large(network, _span(group, stride))
    return fixed_s, s_per_byte


def _flat_terms(network: Network, group: int, stride: int) -> tuple[float, float]:
    """One ring, at the pace of the slowest level that it crosses."""
    outermost = _level_of(network, _span(group, stride))
    inner = [level for level in network.levels if stride < level.devices < outermost.devices]
    bandwidth_Bps = min(level.bandwidth_Bps for level in (*inner, outermost))
    latency_s = max(level.latency_s for level in (*inner, outermost))
    return (group - 1) * latency_s, (group - 1) / group / bandwidth_Bps


def _span(group: int, stride: int) -> int:
    """Neighbouring devices from the first member of a group to its last."""
    return (group - 1) * stride + 1


def _level_of(network: Network, devices: int) -> Level:
    """The innermost level that holds this many neighbouring devices."""
    for level in network.levels:
        if level.devices >= devices:
            return level
    raise _too_large(network, devices)


def _too_large(network: Network, devices: int) -> AtollError:
    return AtollError(
        f"network {network.name}: {devices} devices do not fit its outermost level of "
        f"{network.levels[-1].devices}; choose fewer devices or a larger network."
    )
