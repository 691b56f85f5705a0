"""Branch and bound without help: exact when nothing is left out, a proof in any case."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from brute_force import optimum_s, tiny_problems
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.schedule.bound_kernels import prepare
from atoll.schedule.bounds import solve_subsets
from atoll.schedule.branch_kernels import branch
from atoll.schedule.problem import Schedule, ScheduleProblem
from atoll.schedule.series import ordered
from oracles.schedule_check import check


def search(
    problem: ScheduleProblem, width: int, weighted: bool, tolerance: float = 0.0
) -> Schedule:
    """Branch and bound from the schedule that runs one operator after the other."""
    arrays = problem.arrays()
    p = prepare(*arrays)
    option = p.options[:, 0].copy()
    start = np.concatenate(([0.0], np.cumsum(p.fastest)[:-1]))
    upper = float(p.fastest.sum())
    cut = upper * (1.0 - tolerance)
    weight = np.zeros(problem.operators)
    if weighted:
        weight = solve_subsets(p, ordered(*arrays[3:]), start, option, cut).weight_s
    lower, found, _ = branch(p, weight, cut, width, start, option, np.zeros(1, np.bool_))
    return Schedule(tuple(start.tolist()), tuple(option.tolist()), min(upper, found), lower, "", "")


@settings(max_examples=60, deadline=None)
@given(tiny_problems(), st.booleans())
def test_it_finds_and_proves_the_optimum(problem: ScheduleProblem, weighted: bool) -> None:
    """With the weights of the feasible-subset bound, and with none at all."""
    schedule = search(problem, 20_000, weighted)
    check(problem, schedule)
    assert schedule.makespan_s == pytest.approx(optimum_s(problem), rel=1e-9)
    assert schedule.lower_bound_s == pytest.approx(schedule.makespan_s, rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(tiny_problems(), st.integers(1, 8), st.sampled_from([0.0, 0.1]))
def test_what_a_narrow_search_leaves_out_counts_in_its_bound(
    problem: ScheduleProblem, width: int, tolerance: float
) -> None:
    schedule = search(problem, width, True, tolerance)
    check(problem, schedule)
    optimum = optimum_s(problem)
    assert schedule.lower_bound_s <= optimum * (1 + 1e-9)
    assert schedule.makespan_s >= optimum * (1 - 1e-9)


@settings(max_examples=30, deadline=None)
@given(tiny_problems(operators=5, options=2))
def test_operators_without_precedence_are_packed(problem: ScheduleProblem) -> None:
    free = replace(problem, predecessors=((),) * problem.operators)
    schedule = search(free, 20_000, True)
    assert schedule.makespan_s == pytest.approx(optimum_s(free), rel=1e-9)
