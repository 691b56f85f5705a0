"""Collectives against the ring formulas by hand, and what holds on any network."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.cost.collective import collective_s, pass_terms, point_to_point_terms
from atoll.errors import AtollError
from atoll.hardware.catalog import load_network
from atoll.hardware.network import Level, Network
from atoll.workload.operator import CollectiveKind

ALL_REDUCE = CollectiveKind.ALL_REDUCE
ALL_GATHER = CollectiveKind.ALL_GATHER
REDUCE_SCATTER = CollectiveKind.REDUCE_SCATTER

ONE_LEVEL = Network("ring", (Level("only", 64, 100e9, 2e-6),))
NODES = Network("nodes", (Level("node", 8, 300e9, 3e-6), Level("cluster", 4096, 25e9, 10e-6)))
GIGABYTE = 1e9


@st.composite
def networks(draw: st.DrawFn) -> Network:
    """Up to three levels, each of whole groups of the one before, in any order of speed."""
    levels, devices = [], 1
    for name in ("node", "rack", "cluster")[: draw(st.integers(1, 3))]:
        devices *= draw(st.sampled_from([2, 4, 8, 16]))
        bandwidth_Bps, latency_s = draw(st.floats(1e9, 1e12)), draw(st.floats(0.0, 1e-5))
        levels.append(Level(name, devices, bandwidth_Bps, latency_s))
    return Network("random", tuple(levels))


@st.composite
def groups(draw: st.DrawFn) -> tuple[Network, int, int]:
    """A network, and the size and stride of a group that fits it."""
    network = draw(networks())
    devices = network.levels[-1].devices
    stride = draw(st.integers(1, devices))
    return network, draw(st.integers(1, devices // stride)), stride


kinds = st.sampled_from(list(CollectiveKind))
sizes = st.floats(1.0, 1e11)


# --- By hand -------------------------------------------------------------------------------------


@pytest.mark.parametrize("group", [2, 3, 8, 64])
def test_a_ring_on_one_level(group: int) -> None:
    """p - 1 steps of a p-th of the data each; an all-reduce goes round twice."""
    once_s = (group - 1) * (GIGABYTE / group / 100e9 + 2e-6)
    assert collective_s(ONE_LEVEL, ALL_GATHER, GIGABYTE, group) == pytest.approx(once_s)
    assert collective_s(ONE_LEVEL, REDUCE_SCATTER, GIGABYTE, group) == pytest.approx(once_s)
    assert collective_s(ONE_LEVEL, ALL_REDUCE, GIGABYTE, group) == pytest.approx(2 * once_s)


def test_two_nodes_reduce_inside_first() -> None:
    """Inside, 7 steps of an eighth; then between the nodes one step of half of that eighth."""
    once_s = 7 * (GIGABYTE / 8 / 300e9 + 3e-6) + (GIGABYTE / 16 / 25e9 + 10e-6)
    assert collective_s(NODES, REDUCE_SCATTER, GIGABYTE, 16) == pytest.approx(once_s)


def test_one_device_a_node_uses_the_outer_network_alone() -> None:
    once_s = 3 * (GIGABYTE / 4 / 25e9 + 10e-6)
    assert collective_s(NODES, ALL_GATHER, GIGABYTE, 4, stride=8) == pytest.approx(once_s)


def test_a_device_alone_in_its_node_gets_everything_through_its_own_port() -> None:
    """Nine devices on nodes of eight: the ninth must receive eight ninths of the data."""
    nine_s = collective_s(NODES, ALL_GATHER, GIGABYTE, 9)
    assert nine_s >= 8 / 9 * GIGABYTE / 25e9
    assert nine_s > collective_s(NODES, ALL_GATHER, GIGABYTE, 16)


def test_four_devices_in_the_last_node_carry_its_part_outside() -> None:
    """Twelve on nodes of eight: the four send and receive two thirds of the data, a quarter each.

    Rings inside need seven eighths of the data, at twelve times the speed.
    """
    _, s_per_byte = pass_terms(NODES, 12)[0]
    assert s_per_byte == pytest.approx(7 / 8 / 300e9 + 2 / 3 / 4 / 25e9)


def test_the_seed_all_reduce_on_its_flat_network() -> None:
    """2 (t - 1) / t x bytes / bandwidth, in seconds; its release adds these to milliseconds."""
    flat = load_network("flat-4gib")
    for t in (2, 4, 8):
        bytes_ = 512 * 1024 * 2.0
        seed_s = 2 * (t - 1) / t * bytes_ / (4 * 2**30)
        assert collective_s(flat, ALL_REDUCE, bytes_, t) == pytest.approx(seed_s, rel=1e-12)


def test_a_send_takes_the_innermost_level_that_holds_both_ends() -> None:
    assert point_to_point_terms(NODES, 7) == (3e-6, 1 / 300e9)
    assert point_to_point_terms(NODES, 8) == (10e-6, 1 / 25e9)


def test_small_messages_take_the_algorithm_with_fewer_steps() -> None:
    """Without bytes, 16 devices are 7 + 1 steps level by level, and 15 at the outer latency."""
    assert collective_s(NODES, ALL_GATHER, 1e-6, 16) == pytest.approx(7 * 3e-6 + 10e-6)


# --- On any network --------------------------------------------------------------------------


@given(case=groups(), kind=kinds, bytes_=sizes)
def test_never_slower_than_one_ring_at_the_slowest_pace(
    case: tuple[Network, int, int], kind: CollectiveKind, bytes_: float
) -> None:
    network, group, stride = case
    passes = 2 if kind is ALL_REDUCE else 1
    slowest_Bps = min(level.bandwidth_Bps for level in network.levels)
    latest_s = max(level.latency_s for level in network.levels)
    ring_s = passes * (group - 1) * (bytes_ / group / slowest_Bps + latest_s)
    assert collective_s(network, kind, bytes_, group, stride) <= ring_s * (1 + 1e-12)


@given(case=groups(), kind=kinds, bytes_=sizes)
def test_never_faster_than_what_a_device_must_receive(
    case: tuple[Network, int, int], kind: CollectiveKind, bytes_: float
) -> None:
    network, group, stride = case
    passes = 2 if kind is ALL_REDUCE else 1
    fastest_Bps = max(level.bandwidth_Bps for level in network.levels)
    least_s = passes * (group - 1) / group * bytes_ / fastest_Bps
    assert collective_s(network, kind, bytes_, group, stride) >= least_s * (1 - 1e-12)


@given(
    case=groups(),
    kind=kinds,
    bytes_=sizes,
    level=st.integers(0, 2),
    bandwidth=st.floats(1.0, 10.0),
    latency=st.floats(0.0, 1.0),
)
def test_a_faster_level_never_hurts(
    case: tuple[Network, int, int],
    kind: CollectiveKind,
    bytes_: float,
    level: int,
    bandwidth: float,
    latency: float,
) -> None:
    network, group, stride = case
    levels = list(network.levels)
    index = level % len(levels)
    levels[index] = replace(
        levels[index],
        bandwidth_Bps=levels[index].bandwidth_Bps * bandwidth,
        latency_s=levels[index].latency_s * latency,
    )
    faster = replace(network, levels=tuple(levels))
    before_s = collective_s(network, kind, bytes_, group, stride)
    assert collective_s(faster, kind, bytes_, group, stride) <= before_s * (1 + 1e-12)


@given(network=networks(), kind=kinds, bytes_=sizes)
def test_a_group_of_one_and_an_empty_tensor_are_free(
    network: Network, kind: CollectiveKind, bytes_: float
) -> None:
    assert collective_s(network, kind, bytes_, 1) == 0.0
    assert collective_s(network, kind, 0.0, network.levels[-1].devices) == 0.0


@given(case=groups(), kind=kinds, bytes_=sizes, factor=st.floats(1.0, 100.0))
def test_more_bytes_never_take_less(
    case: tuple[Network, int, int], kind: CollectiveKind, bytes_: float, factor: float
) -> None:
    network, group, stride = case
    less_s = collective_s(network, kind, bytes_, group, stride)
    assert less_s <= collective_s(network, kind, bytes_ * factor, group, stride) * (1 + 1e-12)


def test_a_group_that_does_not_fit_is_one_sentence() -> None:
    sentence = r"network ring: 65 devices do not fit its outermost level of 64; choose fewer"
    with pytest.raises(AtollError, match=sentence):
        collective_s(ONE_LEVEL, ALL_REDUCE, 1.0, 65)
    with pytest.raises(AtollError, match=sentence):
        collective_s(ONE_LEVEL, ALL_REDUCE, 1.0, 5, stride=16)
    with pytest.raises(AtollError, match=sentence):
        point_to_point_terms(ONE_LEVEL, 64)


def test_a_group_fits_if_its_last_member_does() -> None:
    """Members 0, 3 and 6 of a node of eight."""
    node = Network("node", (Level("node", 8, 300e9, 0.0),))
    assert collective_s(node, ALL_GATHER, 3e9, 3, stride=3) == pytest.approx(2e9 / 300e9)
