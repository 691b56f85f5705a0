"""Kernels: parts of the code that calls them, and compiled ahead as a search asks for them."""

from __future__ import annotations

import numpy as np

from atoll import warm
from atoll.cost.gemm_kernels import map_range
from atoll.explore.pricing.bound_kernels import fastest_s, layer_floors, schedule_bounds
from atoll.jit import entry, kernel
from atoll.schedule.bound_kernels import prepare
from atoll.schedule.branch_kernels import branch
from atoll.schedule.solve import solve
from atoll.schedule.subset_kernels import subset_bound
from atoll.schedule.synthetic import backward_pass


@kernel
def scaled(values: np.ndarray, factor: float) -> np.ndarray:
    result = np.zeros(values.shape[0])
    for i in range(values.shape[0]):
        result[i] = factor * values[i]
    return result


@kernel
def scaled_sum(values: np.ndarray, factor: float) -> float:
    total = 0.0
    for value in scaled(values, factor):
        total += value
    return total


@entry
def twice(values: np.ndarray) -> float:
    return scaled_sum(values, 2.0)


@entry
def half(values: np.ndarray) -> float:
    return scaled_sum(values, 0.5) + scaled(values, 0.0)[0]


def test_entries_share_kernels_that_call_kernels() -> None:
    assert [twice(np.arange(4.0)), half(np.arange(4.0))] == [12.0, 3.0]


def test_kernels_are_compiled_ahead_for_the_types_that_a_search_has() -> None:
    ahead = (
        map_range, layer_floors, schedule_bounds, fastest_s, prepare, subset_bound, branch,
    )  # fmt: skip
    warm.bounds()
    warm.schedules()
    known = [set(one.signatures) for one in ahead]
    assert all(known)
    solve(backward_pass(np.random.default_rng(0), 8, 8), effort="bounded", tolerance=1e-3)
    assert [set(one.signatures) for one in ahead] == known
