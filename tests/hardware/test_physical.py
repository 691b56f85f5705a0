"""The physical model: parts add up, more is never less, smaller nodes never take more logic."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.hardware.physical.area import PARTS, area_mm2, area_parts_mm2
from atoll.hardware.physical.constants import FITTED_AREA, FITTED_POWER, constants
from atoll.hardware.physical.die import die_usd, die_yield, dies_per_wafer
from atoll.hardware.physical.memories import HBM, parse_dram
from atoll.hardware.physical.nodes import LARGEST_NM, SMALLEST_NM, nodes
from atoll.hardware.physical.physical_chip import PhysicalChip, columns
from atoll.hardware.physical.power import (
    clock_share,
    module_W,
    power_parts_W,
    rating_W,
)

MIB = 2**20
counts = st.floats(0, 1e6)
chips = st.builds(
    PhysicalChip,
    process_nm=st.floats(SMALLEST_NM, LARGEST_NM),
    clock_Hz=st.floats(5e8, 3e9),
    bf16_cells=counts,
    fp8_cells=counts,
    fp4_cells=counts,
    unit_cells=st.floats(1, 1e5),
    cores=st.floats(1, 1e4),
    lanes=st.floats(0, 1e5),
    threaded=st.booleans(),
    spare=st.floats(1, 1.3),
    scratchpad_bytes=st.floats(0, 500 * MIB),
    cache_bytes=st.floats(0, 100 * MIB),
    stacks=st.integers(0, 8).map(float),
    stack_mm2=st.just(15.0),
    channels=st.integers(0, 8).map(float),
    dram_Bps=st.floats(0, 8e12),
    link_Bps=st.floats(0, 1e12),
    on_wafer=st.booleans(),
    dies=st.integers(1, 12).map(float),
    year=st.floats(2015, 2026),
)
GROWING = (
    "bf16_cells", "fp8_cells", "fp4_cells", "lanes", "cores", "spare", "scratchpad_bytes",
    "cache_bytes", "stacks", "channels", "link_Bps", "dies",
)  # fmt: skip


def test_every_constant_lies_in_its_range_and_has_a_source() -> None:
    known = {one.name: one for one in constants()}
    for one in known.values():
        assert 0 < one.low <= one.value <= one.high, one.name
        assert len(one.source) > 10, one.name
    for name in (*FITTED_AREA, *FITTED_POWER):
        assert "fitted" in known[name].source


@given(chips)
def test_parts_add_up_and_none_is_negative(chip: PhysicalChip) -> None:
    column = columns([chip])
    area, power = area_parts_mm2(column), power_parts_W(column)
    assert tuple(area) == PARTS
    assert all(part[0] >= 0 for part in (*area.values(), *power.values()))
    assert sum(part[0] for part in area.values()) == pytest.approx(area_mm2(column)[0])
    drawn = sum(part[0] for part in power.values())
    assert rating_W(column)[0] == pytest.approx(min(drawn, module_W(column)[0]))


@given(chips, st.sampled_from(GROWING), st.floats(1, 3))
def test_more_of_anything_never_takes_less_area_or_power(
    chip: PhysicalChip, name: str, factor: float
) -> None:
    value = getattr(chip, name)
    more = replace(chip, **{name: value + 1 if name in ("stacks", "channels") else value * factor})
    column = columns([chip, more])
    for area in (area_mm2(column), rating_W(column)):
        assert area[1] >= area[0] * (1 - 1e-12)


@given(chips, st.floats(SMALLEST_NM, LARGEST_NM))
def test_a_smaller_node_never_takes_more_logic_or_energy(chip: PhysicalChip, node: float) -> None:
    small, large = sorted((chip.process_nm, node))
    column = columns([replace(chip, process_nm=small), replace(chip, process_nm=large)])
    area, power = area_parts_mm2(column), power_parts_W(column)
    for part in (area["cells"], area["lanes"], area["control"], power["cells"], power["lanes"]):
        assert part[0] <= part[1] * (1 + 1e-12)


@given(st.lists(chips, min_size=2, max_size=5))
def test_columns_are_the_chips_one_by_one(many: list[PhysicalChip]) -> None:
    together = area_mm2(columns(many))
    alone = [area_mm2(columns([chip]))[0] for chip in many]
    np.testing.assert_allclose(together, alone, rtol=1e-12)


def test_nodes_have_their_own_values_and_lie_between_elsewhere() -> None:
    five, six, seven = (nodes(nm) for nm in (5.0, 5.5, 7.0))
    assert seven.logic == pytest.approx(1.0)
    assert five.logic == pytest.approx(91.2 / 138.2)
    assert five.macro_bytes_per_mm2 == pytest.approx(31.8e6 / 8)
    assert five.logic < six.logic < seven.logic
    assert five.voltage_V <= seven.voltage_V


def test_memories_are_known_by_the_words_of_data_sheets() -> None:
    assert parse_dram("HBM2e") is HBM["hbm2e"]
    ddr, lpddr = parse_dram("DDR4 x6 ch"), parse_dram("LPDDR5X")
    assert ddr is not None and lpddr is not None and not ddr.stacked
    assert ddr.bandwidth_Bps < lpddr.bandwidth_Bps
    assert parse_dram("") is None


@given(st.floats(0, 300), st.floats(1, 1500), st.floats(310, 1000))
def test_the_clock_under_a_limit_draws_the_limit(
    fixed: float, dynamic: float, limit: float
) -> None:
    share = float(clock_share(fixed, dynamic, limit))
    drawn = fixed + dynamic * share * (0.4 + 0.6 * share) ** 2
    if share == 1.0:
        assert drawn <= limit * (1 + 1e-9)
    elif share > 0.1:  # below that it waits
        assert fixed + dynamic > limit
        assert drawn == pytest.approx(limit, rel=1e-6)


def test_a_third_more_power_is_worth_less_than_a_third_of_speed() -> None:
    """MI325X, the silicon of MI300X at 1,000 W instead of 750, gained 17 % in products."""
    slow, fast = (float(clock_share(250, 1250, limit)) for limit in (750, 1000))
    assert 1.1 < fast / slow < 1.3


def test_yield_and_price_of_a_reticle_sized_die() -> None:
    """(1 + 8.14 x 0.11 / 10)^-10 = 0.43 at 5 nm, 63 whole dies a wafer or so."""
    assert die_yield(814, 5) == pytest.approx((1 + 8.14 * 0.11 / 10) ** -10)
    assert 60 <= dies_per_wafer(814) <= 66
    assert 400 < die_usd(814, 5) < 700
