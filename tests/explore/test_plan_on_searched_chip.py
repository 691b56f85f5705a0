"""A plan on a searched chip is never faster than the search's proof allows."""

from __future__ import annotations

from pathlib import Path

import pytest
from plan_draws import compare

MORE = [pytest.param(seed, marks=pytest.mark.campaign) for seed in (1, *range(3, 12))]


@pytest.mark.parametrize("seed", [0, 2, *MORE])
def test_no_plan_on_a_searched_chip_is_below_the_bound_on_its_layouts(
    seed: int, tmp_path: Path
) -> None:
    """`benchmarks/search_and_plan.py` draws a hundred."""
    for drawn in compare(seed, tmp_path):
        assert drawn.step_s >= drawn.bound_s * (1 - 1e-9), drawn
        assert drawn.bound_s > 0, drawn
