"""The area model is PHAZE's on its own sizes, and grows smoothly elsewhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.hardware.accelerator import KIB, MIB
from atoll.hardware.area import area_mm2, core_buffer_area_mm2, glb_area_mm2
from atoll.hardware.catalog import load_accelerator
from atoll.hardware.silicon.chip import accelerator_area_mm2, area_parts

REFERENCE = load_accelerator("phaze-tpuv4")


def test_reference_chip_has_the_seeds_area() -> None:
    """278826676.31216 um2 in the PHAZE release (Accelergy + CACTI 7)."""
    assert accelerator_area_mm2(REFERENCE) == pytest.approx(278.82667631216, rel=1e-9)


@pytest.mark.parametrize(
    ("tc", "vc", "width", "depth", "glb_mib", "area"),
    [
        # from the formula of the release, worked by hand from its tables
        (1, 1, 2, 2, 2, 3.33822 + (4 * 760.041386 + 2 * 759.823853 + 2 * 6133.98) / 1e6),
        (2, 16, 256, 256, 64, 194.81),  # printed by a run of the release
        (1, 256, 256, 256, 16, 128.21),
        (2, 2, 256, 256, 128, 278.73),
    ],
)
def test_other_chips_of_the_seed(
    tc: int, vc: int, width: int, depth: int, glb_mib: int, area: float
) -> None:
    digits = 1e-6 if area != round(area, 2) else 0.005 / area
    assert float(area_mm2(tc, vc, width, depth, width, glb_mib * MIB)) == pytest.approx(
        area, rel=digits
    )


def test_table_sizes_are_exact() -> None:
    assert core_buffer_area_mm2(256 * KIB) == 446565e-6
    assert glb_area_mm2(32 * MIB) == 46.7509


def test_between_table_sizes_the_area_follows_a_power_law() -> None:
    middle = float(glb_area_mm2(2**0.5 * 32 * MIB))
    assert middle == pytest.approx((46.7509 * 88.6057) ** 0.5)


def test_beyond_the_table_the_area_is_proportional_above_and_flatter_below() -> None:
    assert float(glb_area_mm2(512 * MIB)) == pytest.approx(4 * 175.423)
    assert 3.33822 / 2 < float(glb_area_mm2(MIB)) < 3.33822


def test_parts_add_up_and_hbm_phys_count_when_stated() -> None:
    parts = area_parts(REFERENCE)
    assert sum(parts.values()) == pytest.approx(accelerator_area_mm2(REFERENCE), rel=1e-12)
    assert parts["hbm_mm2"] == 0
    with_phy = replace(REFERENCE, hbm=replace(REFERENCE.hbm, area_mm2=30.0))
    assert area_parts(with_phy)["hbm_mm2"] == 30.0
    assert accelerator_area_mm2(with_phy) == pytest.approx(278.82667631216 + 30)


def test_a_buffer_of_no_size_is_a_programming_error() -> None:
    with pytest.raises(ValueError, match="must be positive"):
        glb_area_mm2([MIB, 0])


chips = st.tuples(
    st.integers(1, 5000),
    st.integers(1, 5000),
    st.integers(1, 600),
    st.integers(1, 600),
    st.integers(1, 5000),
    st.integers(KIB, 2**31),
)


@given(chips, st.integers(0, 5), st.integers(1, 1000))
def test_area_grows_with_every_parameter(chip: tuple[int, ...], parameter: int, more: int) -> None:
    larger = list(chip)
    larger[parameter] += more
    assert area_mm2(*larger) > area_mm2(*chip)


@given(st.lists(chips, min_size=1, max_size=20))
def test_array_and_scalar_forms_agree_to_the_last_bit(many: list[tuple[int, ...]]) -> None:
    together = area_mm2(*np.array(many).T)
    assert [float(a) for a in together] == [float(area_mm2(*one)) for one in many]
