"""CP-SAT on its own: from a poor start to the optimum, with a bound that survives rounding."""

from __future__ import annotations

import numpy as np
import pytest
from brute_force import optimum_s, tiny_problems
from hypothesis import given, settings

from atoll.schedule.exact import place, solve_exact
from atoll.schedule.problem import ScheduleProblem
from atoll.schedule.solve import solve
from atoll.schedule.synthetic import backward_pass
from oracles.schedule_check import check


@settings(max_examples=25, deadline=None)
@given(tiny_problems())
def test_the_optimum_is_found_and_proven_up_to_the_grid(problem: ScheduleProblem) -> None:
    first = solve(problem, effort="quick")
    nothing = np.zeros(problem.operators)
    schedule = solve_exact(problem, first, nothing, tolerance=1e-4, time_limit_s=5.0)
    check(problem, schedule)
    optimum = optimum_s(problem)
    assert schedule.makespan_s == pytest.approx(optimum, rel=1e-4)
    assert optimum * (1 - 1e-3) <= schedule.lower_bound_s <= optimum * (1 + 1e-9)


def test_it_agrees_with_branch_and_bound_on_a_backward_pass() -> None:
    problem = backward_pass(np.random.default_rng(5), 5, 8)
    proven = solve(problem, effort="exact", tolerance=1e-6)
    first = solve(problem, effort="quick")
    nothing = np.zeros(problem.operators)
    schedule = solve_exact(problem, first, nothing, tolerance=1e-3, time_limit_s=10.0)
    check(problem, schedule)
    assert schedule.lower_bound_s <= proven.makespan_s * (1 + 1e-9)
    assert schedule.makespan_s >= proven.lower_bound_s * (1 - 1e-9)


@settings(max_examples=40, deadline=None)
@given(tiny_problems())
def test_placing_a_schedule_again_in_its_own_order_keeps_it(problem: ScheduleProblem) -> None:
    schedule = solve(problem, effort="exact", tolerance=0.0)
    option = np.array(schedule.option)
    start = place(problem, np.argsort(schedule.start_s, kind="stable"), option)
    end = start + problem.duration_s[np.arange(option.size), option]
    assert end.max() <= schedule.makespan_s * (1 + 1e-9)
