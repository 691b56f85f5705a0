"""Spaces: PHAZE's to the last design, and any other from lists and constraints."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.base.errors import AtollError, InfeasibleError
from atoll.hardware.accelerator import GIB, MIB, GlbBandwidth, Hbm
from atoll.hardware.catalog import load_accelerator
from atoll.hardware.product_space import ProductSpace, phaze_space
from atoll.hardware.silicon.chip import accelerator_area_mm2, peak_power_W
from atoll.hardware.space import DesignAxes, DesignLimits, DesignSpace
from designs import position_of

PHAZE = phaze_space()


def distinct(space: DesignSpace, *names: str) -> int:
    return len(np.unique(np.stack([getattr(space, name) for name in names]), axis=1).T)


def test_the_seeds_space_has_the_seeds_counts() -> None:
    assert len(PHAZE) == 29_360
    assert distinct(PHAZE, "tensor_cores", "width", "depth", "glb_bytes") == 4_186
    assert distinct(PHAZE, "vector_cores", "width", "glb_bytes") == 697
    single = (PHAZE.tensor_cores == 1) | (PHAZE.vector_cores == 1)
    assert single.sum() == 9_308
    budget = PHAZE.area_mm2.max()
    assert (PHAZE.area_mm2 < 0.3 * budget).sum() == 5_780
    assert single[PHAZE.area_mm2 < 0.3 * budget].all()


def test_the_seeds_space_has_the_seeds_range_of_areas() -> None:
    assert PHAZE.area_mm2.min() == pytest.approx(3.355, abs=0.001)
    assert PHAZE.area_mm2.max() == pytest.approx(278.826676, rel=1e-6)


def test_the_reference_chip_is_in_it() -> None:
    index = position_of(
        PHAZE, tensor_cores=8, vector_cores=2, width=128, depth=128, glb_bytes=128 * MIB
    )
    chip = PHAZE.accelerator(index)
    reference = load_accelerator("phaze-tpuv4")
    assert chip.describe() == reference.describe()
    assert chip.glb_bandwidth_Bpc == reference.glb_bandwidth_Bpc == 128 * 128
    assert chip.hbm == reference.hbm
    assert accelerator_area_mm2(chip) == PHAZE.area_mm2[index]


def test_bandwidths_may_be_fixed() -> None:
    fixed = phaze_space(268.8e9, 512.0)
    assert np.array_equal(fixed.area_mm2, PHAZE.area_mm2)
    assert set(fixed.glb_bandwidth_Bpc) == {512.0}
    assert {hbm.bandwidth_Bps for hbm in fixed.hbm_options} == {268.8e9}
    assert [hbm.capacity_bytes // GIB for hbm in fixed.hbm_options] == [32, 64, 80]


def test_a_subset_keeps_order_and_cannot_be_written() -> None:
    part = PHAZE.subset([5, 3])
    assert list(part.area_mm2) == [PHAZE.area_mm2[5], PHAZE.area_mm2[3]]
    assert len(PHAZE.subset([])) == 0
    assert len(PHAZE.subset(PHAZE.tensor_cores == 8)) == (PHAZE.tensor_cores == 8).sum()
    with pytest.raises(ValueError, match="read-only"):
        part.area_mm2[0] = 0


AXES = DesignAxes.with_defaults(
    tensor_cores=(1, 4),
    vector_cores=(2,),
    width=(64, 128),
    depth=(64,),
    glb_bytes=(MIB, 8 * MIB),
    vector_width=(32, 256),
    clock_Hz=(1e9, 1.5e9),
)
SMALL, LARGE = Hbm(16 * GIB, 0.4e12, area_mm2=10.0), Hbm(64 * GIB, 1.6e12, area_mm2=40.0)
RULE = GlbBandwidth(per_mib_Bpc=128)


def test_without_limits_a_space_is_the_product_of_its_lists() -> None:
    space = ProductSpace("all", AXES, (SMALL, LARGE), RULE).build()
    assert len(space) == AXES.points == 32
    names = ("tensor_cores", "width", "vector_width", "glb_bytes", "clock_Hz")
    assert distinct(space, *names) == 32
    assert space.hbm_allowed.all()


def test_a_chip_may_fit_with_one_hbm_and_not_with_another() -> None:
    everything = ProductSpace("all", AXES, (SMALL, LARGE), RULE).build()
    limit = float(np.median(everything.area_mm2)) + LARGE.area_mm2
    space = ProductSpace(
        "cut", AXES, (SMALL, LARGE), RULE, DesignLimits(max_area_mm2=limit)
    ).build()
    assert np.array_equal(space.hbm_allowed[:, 0], space.area_mm2 + 10 <= limit)
    assert np.array_equal(space.hbm_allowed[:, 1], space.area_mm2 + 40 <= limit)
    assert 0 < space.hbm_allowed[:, 1].sum() < len(space)


def test_limits_are_those_of_the_single_chip() -> None:
    limits = DesignLimits(max_power_W=60, min_peak_flops=1e13)
    kept = ProductSpace("cut", AXES, (SMALL, LARGE), RULE, limits).build()
    everything = ProductSpace("all", AXES, (SMALL, LARGE), RULE).build()
    good = [
        (chip.tensor_cores, chip.width, chip.vector_width, chip.glb_bytes, chip.clock_Hz)
        for chip in (everything.accelerator(i, SMALL) for i in range(len(everything)))
        if peak_power_W(chip) <= 60 and chip.peak_flops >= 1e13
    ]
    found = zip(
        kept.tensor_cores, kept.width, kept.vector_width, kept.glb_bytes, kept.clock_Hz, strict=True
    )
    assert list(found) == good
    assert 0 < len(good) < 32


def test_hbm_options_that_no_chip_may_take_are_dropped() -> None:
    limits = DesignLimits(min_hbm_capacity_bytes=32 * GIB)
    space = ProductSpace("big memory", AXES, (SMALL, LARGE), RULE, limits).build()
    assert space.hbm_options == (LARGE,)
    assert space.accelerator(0).hbm == LARGE


def test_an_empty_space_says_what_emptied_it_and_what_there_is() -> None:
    with pytest.raises(InfeasibleError) as error:
        ProductSpace(
            "dust", AXES, (SMALL, LARGE), RULE, DesignLimits(max_area_mm2=5, min_area_mm2=1)
        ).build()
    assert str(error.value).startswith("space dust is empty: max_area 5 mm2 alone removes 64 of")
    smallest = ProductSpace("all", AXES, (SMALL, LARGE), RULE).build().area_with(SMALL).min()
    assert f"the smallest chip in it has {smallest:.2f} mm2" in str(error.value)


def test_a_space_too_large_to_enumerate_is_refused_at_once() -> None:
    many = tuple(range(1, 4001))
    axes = DesignAxes.with_defaults(
        tensor_cores=many, vector_cores=many, width=(8, 16), depth=(8,), glb_bytes=(MIB,)
    )
    with pytest.raises(AtollError, match=r"32,000,000 points .* at most 20,000,000"):
        ProductSpace("huge", axes, (SMALL,), RULE).build()


def test_chunks_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ProductSpace("s", AXES, (SMALL, LARGE), RULE, DesignLimits(max_area_mm2=60)).build()
    monkeypatch.setattr("atoll.hardware.product_space._CHUNK_POINTS", 7)
    pieces = ProductSpace("s", AXES, (SMALL, LARGE), RULE, DesignLimits(max_area_mm2=60)).build()
    assert np.array_equal(whole.area_mm2, pieces.area_mm2)
    assert np.array_equal(whole.hbm_allowed, pieces.hbm_allowed)
