"""Branch and bound on options and relations: a proof whatever the number of nodes, and a better one
than a search forward in time where many small operators lie between a few large ones."""

from __future__ import annotations

import numpy as np
import pytest
from brute_force import optimum_s, tiny_problems
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.base.stopping import never
from atoll.schedule.bound_kernels import prepare
from atoll.schedule.bounds import solve_subsets
from atoll.schedule.problem import Goal, Schedule, ScheduleProblem
from atoll.schedule.relations import Relations
from atoll.schedule.series import ordered
from atoll.schedule.solve import solve
from oracles.schedule_check import check
from oracles.synthetic import backward_pass


def search(problem: ScheduleProblem, nodes: int, tolerance: float = 0.0) -> Schedule:
    """From the quick schedule, with the weights of the feasible-subset bound."""
    first = solve(problem, effort="quick")
    arrays = problem.arrays()
    p, both = prepare(*arrays), ordered(*arrays[3:])
    start, option = np.array(first.start_s), np.array(first.option, np.int64)
    weight = solve_subsets(p, both, start, option, first.makespan_s).weight_s
    return Relations(problem, weight).search(first, Goal(tolerance), nodes, never)


@settings(max_examples=60, deadline=None)
@given(tiny_problems(), st.sampled_from([1, 5, 500]), st.sampled_from([0.0, 0.1]))
def test_bound_and_schedule_enclose_the_optimum(
    problem: ScheduleProblem, nodes: int, tolerance: float
) -> None:
    schedule = search(problem, nodes, tolerance)
    check(problem, schedule)
    optimum = optimum_s(problem)
    assert schedule.lower_bound_s <= optimum * (1 + 1e-9)
    assert schedule.makespan_s >= optimum * (1 - 1e-9)


@settings(max_examples=60, deadline=None)
@given(tiny_problems(operators=2))
def test_of_two_operators_the_optimum_is_found_and_proven(problem: ScheduleProblem) -> None:
    """Options and the relation of the pair are then all that there is to decide."""
    schedule = search(problem, 500)
    check(problem, schedule)
    assert schedule.makespan_s == pytest.approx(optimum_s(problem), rel=1e-9)
    assert schedule.lower_bound_s == pytest.approx(schedule.makespan_s, rel=1e-5)


def test_more_nodes_never_weaken_the_proof() -> None:
    problem = backward_pass(np.random.default_rng([2, 8, 0]), 20, 8)
    few, many = search(problem, 10), search(problem, 300)
    check(problem, many)
    assert many.lower_bound_s >= few.lower_bound_s
    assert many.makespan_s <= few.makespan_s
    assert many.gap < 0.02
