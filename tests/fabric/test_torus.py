"""A torus: collectives on all axes at once, meshes where an axis is too short to be a ring."""

from __future__ import annotations

import pytest

from atoll.base.errors import AtollError
from atoll.fabric.nested import all_to_all_s, collective_s, send_s, torus_spans
from atoll.fabric.network import FabricLevel, Network
from atoll.hardware.catalog import load_network, network_names

AXIS_Bps = 100e9
V = 1e9


def torus(*shape: int, wraps: int = 4, latency_s: float = 0.0) -> Network:
    devices = 1
    for length in shape:
        devices *= length
    level = FabricLevel("slice", devices, AXIS_Bps, latency_s, shapes=(shape,), wraps=wraps)
    outer = FabricLevel("between", 64 * devices, 1e9, latency_s)
    return Network("torus", (level, outer))


def gather_s(network: Network, group: int, stride: int = 1) -> float:
    return collective_s(network, "all_gather", V, group, stride)


def test_a_ring_along_one_axis_has_both_links_of_it():
    assert gather_s(torus(8, 8), 8) == pytest.approx(7 / 8 * V / AXIS_Bps)


def test_all_axes_that_a_group_spans_work_at_once():
    assert gather_s(torus(8, 8), 64) == pytest.approx(63 / 64 * V / (2 * AXIS_Bps))
    assert gather_s(torus(8, 8, 8), 512) == pytest.approx(511 / 512 * V / (3 * AXIS_Bps))


def test_an_axis_that_is_no_ring_has_one_link_to_its_ends():
    assert gather_s(torus(8, 8, wraps=16), 8) == pytest.approx(7 / 8 * V / (AXIS_Bps / 2))


def test_half_of_an_axis_is_a_line():
    (span,) = torus_spans(torus(8, 8).levels[0], 4, 1)
    assert (span.members, span.share, span.hops) == (4, 0.5, 3)


def test_a_tensor_group_lies_on_a_whole_axis_and_data_on_the_others():
    level = torus(4, 4, 8).levels[0]
    assert [s.members for s in torus_spans(level, 8, 1)] == [8]
    assert [s.members for s in torus_spans(level, 16, 8)] == [4, 4]
    assert [s.members for s in torus_spans(level, 4, 1)] == [4]
    assert sorted(s.members for s in torus_spans(level, 32, 4)) == [4, 8]


def test_interleaved_groups_share_the_wires_of_an_axis():
    (span,) = torus_spans(torus(16).levels[0], 4, 4)
    assert span.share == pytest.approx(1 / 4)


def test_an_all_to_all_crosses_the_middle_of_its_longest_axis():
    assert all_to_all_s(torus(4, 16), V, 64) == pytest.approx(V * 16 / 4 / AXIS_Bps)


def test_a_message_takes_one_link():
    assert send_s(torus(8, 8), V, 1) == pytest.approx(V / (AXIS_Bps / 2))


def test_latency_counts_hops_to_the_farthest_member():
    network = torus(8, 8, latency_s=1e-6)
    assert collective_s(network, "all_gather", 1e-9, 64) == pytest.approx((4 + 4) * 1e-6, rel=1e-6)


def test_a_run_is_given_the_smallest_torus_that_holds_it():
    v5e = load_network("tpu-v5e")
    assert [v5e.cut(n).levels[0].torus for n in (8, 30, 256, 4096)] == [
        (2, 4), (4, 8), (16, 16), (16, 16),
    ]  # fmt: skip
    assert load_network("tpu-v5p").cut(256).levels[0].torus == (4, 8, 8)
    assert load_network("dgx-h100").cut(8) == load_network("dgx-h100")


def test_small_slices_of_v5e_are_meshes_and_whole_pods_are_tori():
    v5e = load_network("tpu-v5e")
    shares = {n: [s.share for s in torus_spans(v5e.cut(n).levels[0], n, 1)] for n in (64, 128, 256)}
    assert shares == {64: [0.5, 0.5], 128: [1.0, 0.5], 256: [1.0, 1.0]}


@pytest.mark.parametrize("name", [n for n in network_names() if n.startswith("tpu-")])
def test_larger_groups_of_a_catalogue_torus_never_have_fewer_links(name: str):
    level = load_network(name).levels[0]
    shares = [sum(s.share for s in torus_spans(level, 2**n, 1)) for n in range(4, 9)]
    assert shares == sorted(shares)


def test_a_level_has_devices_or_the_axes_of_a_torus(tmp_path):
    path = tmp_path / "net.yaml"
    path.write_text(
        "name: x\nlevels:\n  - {name: a, devices: 4, torus: [[2, 2]], bandwidth: 1 GB/s, "
        "latency: 1 us}\n"
    )
    with pytest.raises(AtollError, match="expected devices, or torus"):
        load_network(path)
