"""The default space beyond its own budget."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.hardware.product_space import RETICLE_MM2, phaze_space, round_numbers, widened_space
from atoll.hardware.space import DesignSpace

LARGEST_MM2 = float(phaze_space().area_mm2.max())


def rows(space: DesignSpace) -> set[tuple[float, ...]]:
    return set(
        zip(*(getattr(space, name).tolist() for name in (*space.columns, "area_mm2")), strict=True)
    )


@pytest.mark.parametrize("budget_mm2", [1.0, 200.0, LARGEST_MM2])
def test_a_budget_within_the_default_space_leaves_it_as_it_is(budget_mm2: float) -> None:
    assert rows(widened_space(budget_mm2)) == rows(phaze_space())


def test_a_larger_budget_only_adds_designs_and_spends_what_it_has() -> None:
    known = rows(phaze_space())
    for budget_mm2 in (280.0, 320.0, 397.5):
        wider = widened_space(budget_mm2)
        assert known < rows(wider)
        known = rows(wider)
        assert len(known) == len(wider)
        assert 0.99 * budget_mm2 < wider.area_mm2.max() <= budget_mm2


def test_any_number_of_tensor_cores_up_to_sixteen_is_in_it() -> None:
    wider = widened_space(400.0)
    large = wider.area_mm2 > LARGEST_MM2
    assert set(range(1, 17)) <= set(wider.tensor_cores[large].tolist())
    assert {6, 12, 24} & set((wider.glb_bytes[large] >> 20).tolist()) == {24}


def test_no_die_is_larger_than_a_reticle() -> None:
    wider = widened_space(5000.0)
    assert wider.area_mm2.max() <= RETICLE_MM2
    assert "858 mm2" in wider.name


def test_round_numbers_have_few_significant_digits() -> None:
    assert round_numbers(20, 1) == (1, 2, 4, 8, 16)
    assert round_numbers(20, 3) == (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20)
    assert np.all(np.diff(round_numbers(4096, 4)) > 0)
