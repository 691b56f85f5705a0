"""A plan on a searched chip is never faster than the search's proof allows."""

from __future__ import annotations

from pathlib import Path

import pytest
from plan_draws import compare

SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_plan_on_a_searched_chip_is_below_the_bound(seed: int, tmp_path: Path) -> None:
    """`benchmarks/search_and_plan.py` draws a hundred."""
    drawn = compare(seed, tmp_path)
    if drawn is not None:
        step_s, bound_s, words = drawn
        assert step_s >= bound_s * (1 - 1e-9), words


@pytest.mark.parametrize("seed", SEEDS)
def test_no_layout_at_all_is_below_the_bound_on_all_layouts(seed: int, tmp_path: Path) -> None:
    drawn = compare(seed, tmp_path, every_layout=True)
    if drawn is not None:
        step_s, bound_s, words = drawn
        assert step_s >= bound_s * (1 - 1e-9), words
        assert bound_s > 0, words
