"""The wafer template: couplings, catalogue, and refusals in one sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from atoll.base.errors import AtollError
from atoll.hardware.area import columns_area_parts
from atoll.hardware.silicon.chip import chip_columns
from atoll.hardware.wafer import D1_AREA_SCALE, DramStack
from atoll.hardware.wafer_files import load_wafer, load_wafers, wafer_names

from .wafer_cases import small_wafer


def test_the_catalogue_builds():
    assert set(wafer_names()) >= {"default", "dojo-tile", "watos-like", "cs-2", "cs-3"}
    for name in wafer_names():
        wafer = load_wafer(name)
        assert wafer.site_mm2 * wafer.dies <= wafer.usable_mm2
        assert 0 < wafer.die_yield < 1
        assert wafer.cost_dollars > 0 and wafer.peak_power_W > 0


def test_reference_points():
    dojo = load_wafer("dojo-tile")
    assert dojo.dies == 25
    assert dojo.core.peak_flops == pytest.approx(362e12, rel=0.01)
    assert dojo.peak_flops == pytest.approx(9e15, rel=0.02)
    watos = load_wafer("watos-like")
    assert watos.core.peak_flops == pytest.approx(708e12, rel=0.01)
    assert watos.memory_bytes == pytest.approx(70e9)
    wse = load_wafer("cs-3")
    assert wse.chip.hbm.capacity_bytes * wse.dies == pytest.approx(44e9, rel=0.01)
    assert wse.chip.hbm.bandwidth_Bps * wse.dies == pytest.approx(21e15 * wse.efficiency, rel=0.01)
    assert wse.peak_flops == pytest.approx(15.8e15, rel=0.01)
    assert load_wafer("cs-2").peak_flops == pytest.approx(7.5e15, rel=0.01)
    assert 0.5 < D1_AREA_SCALE < 1.5


@pytest.mark.parametrize(
    ("name", "published_W"), [("dojo-tile", 15e3), ("cs-2", 23e3), ("cs-3", 23e3)]
)
def test_the_power_of_wafers_that_were_built(name, published_W):
    """By the model of every chip; a CS-2's 23 kW are its system's, the wafer takes 15 to 20."""
    assert load_wafer(name).peak_power_W == pytest.approx(published_W, rel=0.25)


def test_operands_that_few_units_share_cost_power():
    shared = load_wafer("cs-2")
    array = replace(shared, unit_cells=None)
    assert array.power_parts_W["operands"] < 0.2 * shared.power_parts_W["operands"]


def test_dies_shrink_with_their_process_unless_their_area_is_stated():
    wafer = load_wafer("default")
    assert wafer.process == "7nm" and wafer.stated_die_mm2 is None
    fine, coarse = (replace(wafer, process=own, rows=2, columns=2) for own in ("5nm", "12nm"))
    # Logic by 91.2 / 138.2, memories by 0.021 / 0.027.
    assert 0.66 * wafer.die_mm2 < fine.die_mm2 < 0.78 * wafer.die_mm2 < coarse.die_mm2
    parts = columns_area_parts(chip_columns(wafer.core))
    logic = sum(float(parts[name][0]) for name in ("tensor_arrays_mm2", "vector_lanes_mm2"))
    memory = sum(float(mm2[0]) for mm2 in parts.values()) - logic
    assert wafer.die_mm2 == pytest.approx(D1_AREA_SCALE * (logic + memory), rel=1e-12)
    by_hand = D1_AREA_SCALE * (logic * 91.2 / 138.2 + memory * 0.021 / 0.027)
    assert fine.die_mm2 == pytest.approx(by_hand, rel=1e-9)
    stated = load_wafer("cs-3")
    assert replace(stated, process="7nm").die_mm2 == stated.die_mm2 == 540.0


def test_more_stacks_mean_less_area_for_dies_and_slower_links():
    wafer = load_wafer("default")
    fewer = replace(wafer, stacks=2)
    assert fewer.site_mm2 < wafer.site_mm2
    edge = wafer.perimeter_mm - wafer.stacks * wafer.stack.edge_mm
    assert wafer.link_Bps == pytest.approx(edge * wafer.shoreline_Bps_per_mm / 4)
    per_edge = wafer.link_Bps / wafer.perimeter_mm
    assert fewer.link_Bps / fewer.perimeter_mm > per_edge


def test_yield_falls_and_cost_rises_with_the_die():
    small, large = small_wafer(), replace(small_wafer(), stated_die_mm2=500.0)
    assert large.die_yield < small.die_yield
    assert large.cost_dollars > small.cost_dollars
    # (1 + D0 A / 10)^-10 with 0.09 defects per cm2 and 5 cm2.
    assert large.die_yield == pytest.approx((1 + 0.09 * 5 / 10) ** -10)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"rows": 9}, "grid: 9 x 8 dies of 820 mm2"),
        ({"stack": DramStack(2**30, 1e11, 110.0, 40.0)}, "3 stacks take 120 mm of a die's edge"),
        ({"stacks": 0}, "no stacks"),
        ({"process": "2nm"}, "process: allowed are 3nm, 4nm, 5nm, 7nm, 12nm, 16nm, 28nm"),
        ({"max_power_W": 1000.0}, "max_power"),
        ({"bond_yield": 0.0}, "bond_yield"),
        ({"efficiency": 1.5}, "efficiency"),
        ({"rows": 1, "columns": 24, "stated_die_mm2": 1088.0}, "but a wafer is 300 mm across"),
    ],
)
def test_a_wafer_that_cannot_be_built_is_one_sentence(change, words):
    with pytest.raises(AtollError) as caught:
        replace(load_wafer("default"), **change)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_names_and_spaces_without_a_wafer_are_refused(tmp_path):
    with pytest.raises(AtollError, match="did you mean default"):
        load_wafer("defaul")
    path = tmp_path / "w.yaml"
    path.write_text(
        "name: x\nusable_area: 100 mm2\ngrid: [2, 2]\n"
        "die: {tensor_cores: 64, vector_cores: 64, width: 32, depth: 32, sram: 64 MiB,"
        " clock: 1 GHz}\n"
        "dram: {stacks: 1, capacity: 16 GiB, bandwidth: 800 GB/s}\n"
        "link: {bandwidth: 1 TB/s, latency: 50 ns}\nio_bandwidth: 1 TB/s\n"
        "space: {grid: [[2, 2], [3, 3]]}\n"
    )
    with pytest.raises(AtollError, match="no wafer of it can be built"):
        load_wafers(path)
