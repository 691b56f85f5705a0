"""Collectives on nested networks: textbook formulas where they hold, and the order of things."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.base.errors import AtollError
from atoll.fabric.nested import (
    all_to_all_s,
    collective_s,
    collective_times_s,
    crossed_level,
    neighbours_s,
    send_s,
    terms,
)
from atoll.fabric.network import FabricLevel, Network, reached_share
from atoll.hardware.catalog import load_network, network_names

GB = 1e9


def network(name: str = "dgx-h100") -> Network:
    return load_network(name)


def flat(bandwidth_Bps: float = 10 * GB, latency_s: float = 0.0, devices: int = 4096) -> Network:
    """One level for all, at its full bandwidth."""
    return Network("flat", (FabricLevel("only", devices, bandwidth_Bps, latency_s),))


DGX = network()
KINDS = ("all_reduce", "all_gather", "reduce_scatter")
sizes = st.floats(1e3, 1e11)
groups = st.sampled_from([2, 4, 8, 16, 64, 256])
names = st.sampled_from(network_names())


@given(sizes, st.integers(2, 64))
def test_on_a_flat_network_all_are_rings(size: float, group: int) -> None:
    """(n - 1) / n of the tensor through every link: once, or twice for an all-reduce."""
    once_s = (group - 1) / group * size / (10 * GB)
    assert collective_s(flat(), "all_gather", size, group) == pytest.approx(once_s)
    assert collective_s(flat(), "reduce_scatter", size, group) == pytest.approx(once_s)
    assert collective_s(flat(), "all_reduce", size, group) == pytest.approx(2 * once_s)
    assert all_to_all_s(flat(), size, group) == pytest.approx(once_s)
    assert send_s(flat(), size, 1) == pytest.approx(size / (10 * GB))


def test_a_row_for_several_members_is_sent_once_to_their_unit() -> None:
    """Eight experts of sixteen ranks on two nodes: other nodes get a row once and not four times.
    With a limit on the nodes that a row meets it leaves for no more than these.
    """
    size, (inner, outer) = 1e9, DGX.levels
    apart_s = all_to_all_s(DGX, size, 16)
    once_s = all_to_all_s(DGX, size, 16, chosen=8)
    assert apart_s / once_s == pytest.approx(4, rel=0.01)
    assert all_to_all_s(DGX, size, 16, chosen=1) == apart_s
    wide_s = all_to_all_s(DGX, size, 64, chosen=8)
    limited_s = all_to_all_s(DGX, size, 64, chosen=8, limit=(8, 4))
    assert limited_s < wide_s
    latency_s = inner.start_s + inner.latency_s + outer.latency_s
    met = 8 * (1 - (7 / 8) ** 8)
    assert (wide_s - latency_s) / (limited_s - latency_s) == pytest.approx(met / 4)


@pytest.mark.parametrize(("group", "steps"), [(2, 1), (4, 3), (8, 6), (64, 12), (1024, 20)])
def test_all_reduces_take_the_steps_of_a_ring_or_of_a_tree(group: int, steps: int) -> None:
    slow = flat(latency_s=1.0, bandwidth_Bps=1e18)
    assert collective_s(slow, "all_reduce", 1.0, group) == pytest.approx(2 * steps)


@pytest.mark.parametrize("kind", KINDS[1:])
@pytest.mark.parametrize("group", [2, 8, 64, 1024])
def test_gathers_and_scatters_take_the_steps_of_a_ring(kind: str, group: int) -> None:
    slow = flat(latency_s=1.0, bandwidth_Bps=1e18)
    assert collective_s(slow, kind, 1.0, group) == pytest.approx(group - 1)


@pytest.mark.parametrize(
    ("group", "stride", "inside", "between"),
    [(8, 1, 7, 0), (1024, 1, 896, 127), (512, 2, 384, 127), (128, 8, 0, 127), (12, 1, 10, 1)],
)
def test_a_ring_goes_through_all_members_of_all_nodes(
    group: int, stride: int, inside: int, between: int
) -> None:
    """As NCCL's own model counts them (src/graph/tuning.cc): nodes - 1 steps over the network."""
    net = Network("two", (FabricLevel("in", 8, 1e18, 1.0), FabricLevel("out", 4096, 1e18, 1000.0)))
    for kind in KINDS[1:]:
        fixed_s = terms(net, kind, group, stride).fixed_s
        assert fixed_s == pytest.approx(inside + 1000 * between)
        if inside:
            assert collective_s(net, kind, 1.0, group, stride) == pytest.approx(fixed_s)


def test_one_device_per_node_has_a_tree_at_three_quarters_of_the_bandwidth() -> None:
    """NCCL's PAT, where that is shorter than the ring: 7 steps instead of 127."""
    outer = DGX.levels[1]
    full_Bps = 0.9 * outer.bandwidth_Bps
    ring_s, tree_s = 127 * outer.latency_s, 7 * outer.latency_s
    for size in (1e3, 1e6, 1e7, 1e8, 1e9, 1e10):
        sent_s = 127 / 128 * size / full_Bps
        expected_s = min(ring_s + sent_s, tree_s + sent_s / 0.75)
        assert collective_s(DGX, "all_gather", size, 128, stride=8) == pytest.approx(expected_s)


def test_a_gather_over_1024_h100_takes_as_long_as_nccl_says() -> None:
    """Beyond its bandwidth: between 2.2 ms, NCCL's own latency with the LL128 protocol, less a
    quarter, and 4.8 ms, that of Simple (896 and 127 steps; a tree would take 0.14 ms).
    """
    waits_s = collective_s(DGX, "all_gather", 1.0, 1024)
    assert 0.75 * (896 * 1.9e-6 + 127 * 4.0e-6) < waits_s < 896 * 3.4e-6 + 127 * 14e-6


@given(names, sizes, groups, st.sampled_from([1, 2, 8]))
def test_an_all_reduce_is_a_scatter_and_a_gather(
    name: str, size: float, group: int, stride: int
) -> None:
    """Or less: it starts once, sends messages of twice the size, switches may add up, and of more
    than two members it may be a tree. Where gathers have one too, with one device per node, its own
    is taken to have twice the steps.
    """
    net = network(name)
    if group * stride > net.levels[-1].devices or terms(net, KINDS[1], group, stride).tree_s < inf:
        return
    parts_s = sum(collective_s(net, kind, size, group, stride) for kind in KINDS[1:])
    whole_s = collective_s(net, "all_reduce", size, group, stride)
    if group == 2 and not any(
        x.in_network or x.start_s or len(x.efficiency) > 1 for x in net.levels
    ):
        assert whole_s == pytest.approx(parts_s)
    assert whole_s <= parts_s * (1 + 1e-12)


@given(sizes, st.floats(1, 10), groups, st.sampled_from(KINDS), names)
def test_more_bytes_take_longer(
    size: float, factor: float, group: int, kind: str, name: str
) -> None:
    net = network(name)
    assert collective_s(net, kind, size, group) <= collective_s(net, kind, size * factor, group) * (
        1 + 1e-12
    )
    assert all_to_all_s(net, size, group) <= all_to_all_s(net, size * factor, group) * (1 + 1e-12)
    assert send_s(net, size, group) <= send_s(net, size * factor, group) * (1 + 1e-12)


@given(sizes, st.sampled_from(KINDS), st.sampled_from([1, 2, 4, 8]))
def test_larger_groups_take_longer(size: float, kind: str, stride: int) -> None:
    times = [collective_s(DGX, kind, size, 1 << i, stride) for i in range(12)]
    assert times == sorted(times)
    assert times[0] == 0


def test_leaving_the_node_is_slower() -> None:
    inside = collective_s(DGX, "all_reduce", 1 * GB, 8)
    across = collective_s(DGX, "all_reduce", 1 * GB, 8, stride=8)
    assert across > 5 * inside
    assert all_to_all_s(DGX, GB, 8, 8) > 5 * all_to_all_s(DGX, GB, 8)
    assert send_s(DGX, GB, 8) > 5 * send_s(DGX, GB, 1)


def test_members_of_a_node_share_the_way_out() -> None:
    """Sixteen members on two nodes, eight rings through all of them: on each an eighth of the
    tensor leaves a node, less what ends there.
    """
    net = Network("two", (FabricLevel("in", 8, 1e18, 0.0), FabricLevel("out", 64, 10 * GB, 0.0)))
    assert collective_s(net, "all_gather", 8 * GB, 16) == pytest.approx(15 / 16 * 1 / 10)
    assert collective_s(net, "all_gather", 8 * GB, 2, stride=8) == pytest.approx(0.5 * 8 / 10)


def test_groups_need_not_fill_their_last_node() -> None:
    twelve = collective_s(DGX, "all_reduce", GB, 12)
    assert collective_s(DGX, "all_reduce", GB, 8) < twelve < float("inf")
    assert collective_s(DGX, "all_reduce", GB, 6, stride=2) > 0
    assert all_to_all_s(DGX, GB, 12) > 0


def test_a_ring_across_nodes_turns_at_the_pace_of_its_slowest_link() -> None:
    assert neighbours_s(DGX, GB, 2, stride=4) == send_s(DGX, GB, 4)  # both in one node
    assert neighbours_s(DGX, GB, 4, stride=4) == send_s(DGX, GB, 8)
    assert neighbours_s(DGX, GB, 1, stride=4) == 0


def test_switches_that_add_up_halve_an_all_reduce() -> None:
    level = FabricLevel("sharp", 64, 10 * GB, 0.0, in_network=True)
    plain = collective_s(Network("a", (replace(level, in_network=False),)), KINDS[0], GB, 8)
    assert collective_s(Network("a", (level,)), KINDS[0], GB, 8) == pytest.approx(plain / 2)


def test_efficiency_between_measured_sizes_is_logarithmic() -> None:
    level = FabricLevel("l", 8, 1.0, 0.0, ((1e6, 0.2), (1e8, 0.8)))
    assert level.share(1e3) == 0.2
    assert level.share(1e6) == 0.2
    assert level.share(1e7) == pytest.approx(0.5)
    assert level.share(1e8) == pytest.approx(0.8)
    assert level.share(1e12) == 0.8
    assert FabricLevel("l", 8, 1.0, 0.0).share(5.0) == 1.0


def test_few_members_fill_less_of_the_links_and_every_collective_starts_once() -> None:
    level = FabricLevel("l", 8, 10 * GB, 1e-6, start_s=5e-6, few=0.5)
    two, eight = (collective_s(Network("a", (level,)), "all_gather", GB, n) for n in (2, 8))
    assert two == pytest.approx(5e-6 + 1e-6 + 0.5 / 10 / 0.75)
    assert eight == pytest.approx(5e-6 + 7e-6 + 0.875 / 10 / (1 - 0.5 / 8))
    assert send_s(Network("a", (level,)), GB, 1) == pytest.approx(5e-6 + 1e-6 + 0.1)


@pytest.mark.parametrize(("ranks", "reached_GBps"), [(2, 31), (4, 24), (8, 22)])
def test_devices_that_share_a_root_of_pcie_are_slower_the_more_they_are(
    ranks: int, reached_GBps: float
) -> None:
    """NCCL's bus bandwidth of gathers of 64 to 512 MiB on RTX PRO 6000 (arXiv:2601.06288)."""
    sent = (ranks - 1) / ranks * 2**28
    seconds = collective_s(load_network("rtx-pro-6000"), "all_gather", 2**28, ranks)
    assert sent / seconds / 1e9 == pytest.approx(reached_GBps, rel=0.1)


@pytest.mark.parametrize(
    ("ranks", "bytes_", "seconds"),
    [(8, 2**20, 17.1e-6), (8, 2**24, 68.9e-6), (8, 2**27, 392.8e-6), (2, 2**27, 292.5e-6)],
)
def test_gathers_take_what_nccl_takes_on_eight_h100(
    ranks: int, bytes_: int, seconds: float
) -> None:
    """NCCL 2.29.2 (aiconfigurator-core 0.12.0, Apache-2.0, arXiv:2601.06288)."""
    assert collective_s(DGX, "all_gather", bytes_, ranks) == pytest.approx(seconds, rel=0.1)


@pytest.mark.parametrize(
    ("kind", "ranks", "bytes_", "seconds"),
    [
        ("all_reduce", 4, 2**22, 36.5e-6),
        ("all_reduce", 4, 2**23, 87.9e-6),
        ("all_reduce", 4, 2**29, 1282e-6),
        ("all_gather", 4, 2**21, 18.1e-6),
        ("all_gather", 4, 2**23, 51.4e-6),
        ("reduce_scatter", 2, 2**26, 97.3e-6),
    ],
)
def test_the_message_of_a_step_decides_on_the_protocol(
    kind: str, ranks: int, bytes_: int, seconds: float
) -> None:
    """NCCL 2.29.2 on GB200 and GB300 (aiconfigurator-core 0.12.0, arXiv:2601.06288): twice the
    bytes take more than twice as long where messages of a step exceed 1.4 MiB.
    """
    network = load_network("gb200-nvl72")
    assert collective_s(network, kind, bytes_, ranks) == pytest.approx(seconds, rel=0.1)
    times_s = collective_times_s(network, kind, ranks, np.array([float(bytes_)]))
    assert times_s[0] == pytest.approx(collective_s(network, kind, bytes_, ranks))


def test_steps_of_a_ring_reach_what_their_messages_do() -> None:
    level = FabricLevel("l", 64, 10 * GB, 0.0, ring=((1e6, 0.5), (1e7, 1.0)), sums=1.25)
    network = Network("a", (level,))
    assert collective_s(network, "all_gather", 4e6, 4) == pytest.approx(3e6 / 10e9 / 0.5)
    assert collective_s(network, "all_gather", 4e7, 4) == pytest.approx(3e7 / 10e9)
    assert collective_s(network, "all_reduce", 4e7, 4) == pytest.approx(6e7 / 10e9 / 1.25)
    assert send_s(network, 4e6, 1) == pytest.approx(4e6 / 10e9)


@pytest.mark.parametrize("name", network_names())
def test_measured_curves_never_make_more_bytes_faster(name: str) -> None:
    for level in network(name).levels:
        for curve in (level.efficiency, level.ring):
            times = [
                size / reached_share(curve, size)
                for size in (2.0 ** (i / 4) for i in range(32, 160))
            ]
            assert times == sorted(times)


def test_a_group_larger_than_the_network_is_refused() -> None:
    with pytest.raises(AtollError, match="8192 devices do not fit its outermost level of 4096"):
        collective_s(flat(), "all_reduce", GB, 8192)
    with pytest.raises(AtollError, match="choose fewer devices or a larger network"):
        all_to_all_s(flat(), GB, 4096, stride=2)
    with pytest.raises(AtollError, match="4096 devices do not fit"):
        crossed_level(flat(), 4096)


@st.composite
def nested(draw: st.DrawFn) -> tuple[Network, int, int]:
    """Up to three levels in any order of speed, and the size and stride of a group that fits."""
    levels, devices = [], 1
    for name in ("node", "rack", "cluster")[: draw(st.integers(1, 3))]:
        devices *= draw(st.sampled_from([2, 4, 8, 16]))
        bandwidth_Bps, latency_s = draw(st.floats(1e9, 1e12)), draw(st.floats(0.0, 1e-5))
        levels.append(FabricLevel(name, devices, bandwidth_Bps, latency_s))
    stride = draw(st.integers(1, devices))
    return Network("random", tuple(levels)), draw(st.integers(1, devices // stride)), stride


@given(nested(), st.sampled_from(KINDS), sizes)
def test_never_faster_than_what_a_device_must_receive_over_all_its_links(
    case: tuple[Network, int, int], kind: str, size: float
) -> None:
    network, group, stride = case
    passes = 2 if kind == "all_reduce" else 1
    all_Bps = sum(level.bandwidth_Bps for level in network.levels)
    least_s = passes * (group - 1) / group * size / all_Bps
    assert collective_s(network, kind, size, group, stride) >= least_s * (1 - 1e-9)


@given(nested(), st.sampled_from(KINDS), sizes, st.integers(0, 2), st.floats(1.0, 10.0))
def test_a_faster_level_never_hurts(
    case: tuple[Network, int, int], kind: str, size: float, level: int, factor: float
) -> None:
    network, group, stride = case
    levels = list(network.levels)
    index = level % len(levels)
    old = levels[index]
    levels[index] = replace(
        old, bandwidth_Bps=old.bandwidth_Bps * factor, latency_s=old.latency_s / factor
    )
    faster = replace(network, levels=tuple(levels))
    before_s = collective_s(network, kind, size, group, stride)
    assert collective_s(faster, kind, size, group, stride) <= before_s * (1 + 1e-12)


def test_a_group_fits_if_its_last_member_does() -> None:
    """Members 0, 3 and 6 of a node of eight."""
    node = Network("node", (FabricLevel("node", 8, 300e9, 0.0),))
    assert collective_s(node, "all_gather", 3e9, 3, stride=3) == pytest.approx(2e9 / 300e9)
