"""A plan on a searched chip is never faster than the search's proof allows."""

from __future__ import annotations

from pathlib import Path

import pytest
from plan_draws import compare


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))]
)
def test_no_plan_on_a_searched_chip_is_below_the_bound_on_its_layouts(
    seed: int, tmp_path: Path
) -> None:
    """`benchmarks/search_and_plan.py` draws a hundred."""
    for drawn in compare(seed, tmp_path):
        assert drawn.step_s >= drawn.bound_s * (1 - 1e-9), drawn
        assert drawn.bound_s > 0, drawn
