"""Collectives on a nested network, at the bandwidth that libraries reach.

The members of a group lie `stride` ranks apart. Inside one level they form a ring; across levels
the library runs one ring (or tree) per member of a node, through all nodes and their members, so
that inner and outer links work at the same time and the slower sets the pace. Ring terms: Thakur,
Rabenseifner, Gropp (IJHPCA 2005). Gathers and scatters are rings, whose n members take n - 1 steps,
those between nodes with the latency between nodes, all others with that inside (NCCL's
src/graph/tuning.cc). Groups with one device per node have a tree too, NCCL's PAT (from 2.23 on;
arXiv:2506.20252), at a part of the bandwidth; all-reduces take the shorter of a ring's and a tree's
number of steps. On a torus a group spans some axes, whole
or in part, and its collective is divided over all of them, so that the links of all work at the
same time (Chan et al., "Collective communication on architectures that support simultaneous
communication over multiple links", PPoPP 2006).

`terms` states a collective as numbers, from which arrays of layouts are priced.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate, permutations
from math import ceil, inf, log2
from operator import mul
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.base.errors import AtollError
from atoll.fabric.network import FabricLevel, Network, reached_share

LONGEST_RING = 8  # members of an all-reduce; more are joined by trees, in fewer steps
TREE_SHARE = 0.75  # of the bandwidth, that PAT reaches in NCCL's own model
PASSES = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}


class Terms(NamedTuple):
    """A collective of b bytes takes min(fixed_s + x, tree_s + x / TREE_SHARE), where x is the max
    over levels of s / share of what is sent in s / steps, and s = s_per_byte b."""

    fixed_s: float
    s_per_byte: tuple[float, ...]
    """At the full bandwidth of each level; 0 for levels that are not crossed."""
    steps: tuple[float, ...]
    """Number of messages per level; their size sets the reached share of the bandwidth."""
    tree_s: float
    """`fixed_s` of the PAT algorithm; infinite where it does not run."""


TermArrays = tuple[NDArray[np.float64], ...]
"""The fields of `Terms` for many collectives; `s_per_byte` and `steps` have one row per level."""


@lru_cache(maxsize=1 << 14)
def terms(network: Network, kind: str, group: int, stride: int = 1) -> Terms:
    """Return the size-independent terms of a collective over `group` devices."""
    fixed_s = start_s = tree_s = 0.0
    slopes, steps = [0.0] * len(network.levels), [1.0] * len(network.levels)
    for number, level, joined, inside in _crossed_levels(network, group, stride):
        units, axes_Bps = ceil(joined / inside), level.bandwidth_Bps
        if kind == "all_reduce":
            hops = min(units - 1, 2 * ceil(log2(units)))
        else:
            hops = ceil(group / inside) - ceil(group / joined)
        trees = kind != "all_reduce" and number > 0 and not level.torus
        tree_s += ceil(log2(units)) * level.latency_s if trees else inf
        if level.torus:
            spans = torus_spans(level, joined, stride)
            axes_Bps *= sum(span.share for span in spans)
            hops = sum(span.hops for span in spans)
        passes = 1.0 if kind == "all_reduce" and level.in_network else PASSES[kind]
        # One ring per member of an inner unit, through all members; each carries its share of the
        # tensor out of the unit.
        reached_Bps = axes_Bps * (1 - level.few / joined)
        if kind == "all_reduce":
            reached_Bps *= level.sums
        slopes[number] = passes * (joined - 1) / joined / inside / reached_Bps
        if level.ring:  # the curve is over message bytes, independent of their rate
            messages = passes * max(hops, min(units - 1, LONGEST_RING - 1))
            steps[number] = messages * level.bandwidth_Bps / reached_Bps
        start_s = max(start_s, level.start_s)
        fixed_s += PASSES[kind] * hops * level.latency_s
    return Terms(start_s + fixed_s, tuple(slopes), tuple(steps), start_s + tree_s)


class Span(NamedTuple):
    """Part of one torus axis that a group uses."""

    members: int
    share: float
    """Share of an axis's bandwidth: half if it is no ring, less if groups are interleaved."""
    hops: int
    """Sequential hops between neighbours to the farthest member."""


@lru_cache(maxsize=4096)
def torus_spans(level: FabricLevel, group: int, stride: int) -> tuple[Span, ...]:
    """The axes that a group inside of one torus spans, its members `stride` ranks apart.

    Ranks go through one axis after the other. The axes come in the order in which the innermost
    group (the ranks inside of a stride, or else the group) is made of whole axes, if there is one:
    so are meshes of devices laid over a torus.
    """
    inner = stride if stride > 1 else group
    orders = sorted(permutations(level.torus), reverse=True)
    order = next((o for o in orders if inner in accumulate(o, mul)), orders[0])
    spans, low, high, before = [], stride, stride * group, 1
    for length in order:
        after = before * length
        members = ceil(min(high, after) / max(low, before))
        if members > 1:
            apart = max(1, low // before)
            ring = high >= after and length >= level.wraps
            hops = members // 2 if ring else members - 1
            spans.append(Span(members, (1.0 if ring else 0.5) / apart, hops * apart))
        before = after
    return tuple(spans)


@lru_cache(maxsize=64)
def curves(network: Network) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Message durations at full bandwidth and the share of it that collectives reach, one row per
    level; shorter curves are extended with their last share."""
    level_curves = [level.ring or level.efficiency or ((1.0, 1.0),) for level in network.levels]
    points = max(len(curve) for curve in level_curves)
    rows = []
    for curve in level_curves:
        largest, share = curve[-1]
        more = ((largest * 2.0**i, share) for i in range(1, points - len(curve) + 1))
        rows.append([*curve, *more])
    table = np.array(rows)
    full_Bps = np.array([[level.bandwidth_Bps] for level in network.levels])
    bytes_per_s, shares = np.moveaxis(table, -1, 0)
    return bytes_per_s / full_Bps, shares.copy()


def collective_s(network: Network, kind: str, bytes_: float, group: int, stride: int = 1) -> float:
    """Seconds of a collective over `group` devices; `bytes_` is the whole (gathered) tensor."""
    if group <= 1 or bytes_ <= 0:
        return 0.0
    fixed_s, slopes, steps, tree_s = terms(network, kind, group, stride)
    wires = zip(slopes, steps, network.levels, strict=True)
    sent_s = max(_sent_s(level, slope * bytes_, n) for slope, n, level in wires)
    return min(fixed_s + sent_s, tree_s + sent_s / TREE_SHARE)


def collective_times_s(
    network: Network, kind: str, group: int, bytes_: NDArray[np.float64]
) -> NDArray[np.float64]:
    """`collective_s` over neighbouring devices for an array of positive sizes."""
    if group <= 1:
        return np.zeros(len(bytes_))
    return sized_s(terms(network, kind, group), bytes_, *curves(network))


def sized_s(
    terms: Terms | TermArrays,
    bytes_: NDArray[np.float64],
    durations_s: NDArray[np.float64],
    shares: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Seconds of collectives of these sizes, with one `curves` row per level."""
    fixed_s, slopes, steps, tree_s = terms
    longest_s = np.zeros(len(bytes_))
    for slope, n, at_s, level_shares in zip(slopes, steps, durations_s, shares, strict=True):
        full_s = slope * bytes_
        share = np.interp(np.log(np.maximum(full_s, 1e-300) / n), np.log(at_s), level_shares)
        longest_s = np.maximum(longest_s, full_s / share)
    both_s = np.minimum(fixed_s + longest_s, tree_s + longest_s / TREE_SHARE)
    return np.where(bytes_ > 0, both_s, 0.0)


def _sent_s(level: FabricLevel, full_s: float, steps: float = 0.0) -> float:
    """Seconds of a transfer that takes `full_s` at full bandwidth, in ring steps or at once."""
    if steps and level.ring:
        return full_s / reached_share(level.ring, full_s / steps * level.bandwidth_Bps)
    return full_s / level.share(full_s * level.bandwidth_Bps)


def all_to_all_s(
    network: Network,
    bytes_: float,
    group: int,
    stride: int = 1,
    chosen: int = 1,
    limit: tuple[int, int] = (0, 0),
) -> float:
    """Seconds in which every member sends `bytes_`, spread evenly over the group. If each row goes
    to several `chosen` members, it is sent once per unit and copied there: k draws from n units
    hit n (1 - (1 - 1 / n)^k) of them. `limit` = (parts, most parts that a row may reach).
    """
    if group <= 1 or bytes_ <= 0:
        return 0.0
    slowest_s = start_s = latency_s = 0.0
    for _, level, joined, inside in _crossed_levels(network, group, stride):
        leaving = bytes_ * (joined - inside) / group
        if chosen > 1:
            units = group / inside
            met = units * (1 - (1 - 1 / units) ** chosen)
            parts, most_parts = limit
            if 1 < units <= parts:
                met = min(met, most_parts)
            leaving = bytes_ / chosen * met * (joined - inside) / joined
        if level.torus:
            # Half of an axis sends to its other half, over both links of a cut through a ring.
            spans = torus_spans(level, joined, stride)
            leaving = bytes_ * max(span.members / 4 / span.share for span in spans)
        reached_Bps = level.bandwidth_Bps * (1 - level.few / joined)
        slowest_s = max(slowest_s, _sent_s(level, leaving / reached_Bps))
        start_s = max(start_s, level.start_s)
        latency_s += level.latency_s
    return slowest_s + start_s + latency_s


def send_s(network: Network, bytes_: float, stride: int) -> float:
    """Seconds of one message to the device `stride` ranks away."""
    level = network.levels[crossed_level(network, stride)]
    links = 2 if level.torus else 1  # an axis has one to either side, of which a message takes one
    sent_s = _sent_s(level, links * bytes_ / level.bandwidth_Bps)
    return level.start_s + level.latency_s + sent_s


def neighbours_s(network: Network, bytes_: float, group: int, stride: int) -> float:
    """Seconds in which members of a ring or chain send to the next, over its slowest link."""
    if group <= 1:
        return 0.0
    return max(send_s(network, bytes_, stride), send_s(network, bytes_, stride * (group - 1)))


def crossed_level(network: Network, stride: int) -> int:
    """Index of the level crossed by a message from a unit's first device over `stride` ranks."""
    for number, level in enumerate(network.levels):
        if stride < level.devices:
            return number
    raise _too_large(network, stride)


def members(level: FabricLevel, group: int, stride: int) -> int:
    """Members of a group in one unit of this level, counted from its first device."""
    return min(group, ceil(level.devices / stride))


def _crossed_levels(
    network: Network, group: int, stride: int
) -> Iterator[tuple[int, FabricLevel, int, int]]:
    """Yield the number of each level that a group crosses, the level, the members that it joins,
    and those that reach each other without it: by inner levels, or within one pod.
    """
    inside = 1
    for number, level in enumerate(network.levels):
        joined = members(level, group, stride)
        if level.across:
            inside = min(group, ceil(level.across / stride))
        if joined > inside:
            yield number, level, joined, inside
            inside = joined
    if inside < group:
        raise _too_large(network, group * stride)


def _too_large(network: Network, devices: int) -> AtollError:
    return AtollError(
        f"network {network.name}: {devices} devices do not fit its outermost level of "
        f"{network.levels[-1].devices}; choose fewer devices or a larger network."
    )
