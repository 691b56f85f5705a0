"""Solving a schedule: exact on everything small, feasible and honest about the gap everywhere."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from brute_force import optimum_s, tiny_problems
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.base.errors import InfeasibleError
from atoll.schedule.problem import Schedule, ScheduleProblem
from atoll.schedule.solve import solve
from oracles.schedule_check import check
from oracles.synthetic import backward_pass


def chain_of(durations: list[list[float]], cores: list[int], capacity: int) -> ScheduleProblem:
    """Operators one after the other, whose o-th option takes cores[o] tensor cores."""
    duration = np.array(durations)
    demand = np.zeros((*duration.shape, 6))
    demand[:, :, 0] = cores
    before = tuple((j - 1,) if j else () for j in range(len(durations)))
    return ScheduleProblem(duration, demand, np.array([capacity, 1, 1, 1, 8, 1.0]), before)


def in_parallel(problem: ScheduleProblem) -> ScheduleProblem:
    return replace(problem, predecessors=((),) * problem.operators)


@settings(max_examples=60, deadline=None)
@given(tiny_problems())
def test_exact_effort_finds_the_optimum_of_tiny_problems(problem: ScheduleProblem) -> None:
    schedule = solve(problem, effort="exact", tolerance=0.0)
    check(problem, schedule)
    assert schedule.makespan_s == pytest.approx(optimum_s(problem), rel=1e-9)
    assert schedule.gap <= 1e-9


@settings(max_examples=15, deadline=None)
@given(tiny_problems(operators=5, options=2))
def test_exact_effort_finds_the_optimum_of_five_operators(problem: ScheduleProblem) -> None:
    schedule = solve(problem, effort="exact", tolerance=0.0)
    assert schedule.makespan_s == pytest.approx(optimum_s(problem), rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(
    tiny_problems(),
    st.sampled_from(["quick", "linear", "bounded", "exact"]),
    st.sampled_from([0.0, 0.05]),
)
def test_every_effort_is_feasible_and_its_bound_holds(
    problem: ScheduleProblem, effort: str, tolerance: float
) -> None:
    schedule = solve(problem, effort=effort, tolerance=tolerance)  # type: ignore[arg-type]
    check(problem, schedule)
    assert schedule.lower_bound_s <= optimum_s(problem) * (1 + 1e-9)
    if effort in ("bounded", "exact"):
        assert schedule.gap <= tolerance + 1e-9


@settings(max_examples=60, deadline=None)
@given(tiny_problems(), st.sampled_from(["linear", "bounded", "exact"]), st.floats(0.5, 1.5))
def test_a_bound_as_high_as_asked_for_is_enough(
    problem: ScheduleProblem, effort: str, share: float
) -> None:
    """Where something is shorter it is found instead, as far as the effort goes."""
    optimum = optimum_s(problem)
    asked = {"effort": effort, "tolerance": 0.0, "enough_s": share * optimum}
    schedule = solve(problem, **asked)  # type: ignore[arg-type]
    check(problem, schedule)
    assert schedule.lower_bound_s <= optimum * (1 + 1e-9)
    if effort == "exact":
        assert schedule.lower_bound_s >= min(share, 1.0) * optimum * (1 - 1e-9)


@settings(max_examples=40, deadline=None)
@given(tiny_problems(), st.integers(0, 5))
def test_more_capacity_never_hurts(problem: ScheduleProblem, resource: int) -> None:
    more = problem.capacity.copy()
    more[resource] += 1.0
    before = solve(problem, effort="exact", tolerance=0.0)
    after = solve(replace(problem, capacity=more), effort="exact", tolerance=0.0)
    assert after.makespan_s <= before.makespan_s * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(tiny_problems())
def test_time_may_be_reversed(problem: ScheduleProblem) -> None:
    n = problem.operators
    after: list[list[int]] = [[] for _ in range(n)]
    for j, before in enumerate(problem.predecessors):
        for i in before:
            after[n - 1 - i].append(n - 1 - j)
    reverse = ScheduleProblem(
        problem.duration_s[::-1], problem.demand[::-1], problem.capacity,
        tuple(tuple(sorted(a)) for a in after),
    )  # fmt: skip
    forward = solve(problem, effort="exact", tolerance=0.0)
    back = solve(reverse, effort="exact", tolerance=0.0)
    assert forward.makespan_s == pytest.approx(back.makespan_s, rel=1e-9)


def test_a_chain_runs_every_operator_as_fast_as_it_can() -> None:
    problem = chain_of([[4.0, 2.5], [6.0, 3.5]], [1, 2], 2)
    schedule = solve(problem, effort="quick")
    assert schedule.option == (1, 1)
    assert schedule.makespan_s == 6.0
    assert schedule.gap == 0.0
    assert schedule.bound == "critical path"


def test_two_operators_side_by_side_beat_two_wide_ones() -> None:
    """Width costs efficiency: 4 s on one core each beats 2.5 s + 2.5 s on both."""
    problem = in_parallel(chain_of([[4.0, 2.5], [4.0, 2.5]], [1, 2], 2))
    schedule = solve(problem)
    assert schedule.makespan_s == 4.0
    assert schedule.option == (0, 0)


def test_slots_limit_how_many_tensor_operators_run_at_once() -> None:
    problem = in_parallel(chain_of([[4.0], [4.0], [4.0]], [1], 3))
    problem.demand[:, :, 4] = 1.0
    assert solve(problem).makespan_s == 4.0
    limited = replace(problem, capacity=np.array([3, 1, 1, 1, 2, 1.0]))
    assert solve(limited).makespan_s == 8.0


def test_shares_of_bandwidth_that_add_up_to_one_fit_together() -> None:
    """Ten tenths are not exactly one in floating point."""
    problem = in_parallel(chain_of([[1.0]] * 10, [1], 16))
    problem.demand[:, :, 2] = 0.1
    assert solve(problem).makespan_s == 1.0


def test_makespans_add_up_where_everything_earlier_precedes_everything_later() -> None:
    """Two diamonds in series take as long as both together."""
    rng = np.random.default_rng(3)
    one = backward_pass(rng, 4, 8)
    n = one.operators
    everything = tuple(range(n))
    later = tuple(tuple(i + n for i in before) or everything for before in one.predecessors)
    twice = ScheduleProblem(
        np.vstack([one.duration_s, one.duration_s]),
        np.vstack([one.demand, one.demand]),
        one.capacity,
        one.predecessors + later,
    )
    alone = solve(one, tolerance=0.0, effort="exact")
    both = solve(twice, tolerance=0.0, effort="exact")
    check(twice, both)
    assert both.makespan_s == pytest.approx(2.0 * alone.makespan_s, rel=1e-9)


def test_the_same_problem_gets_the_same_schedule() -> None:
    problem = backward_pass(np.random.default_rng(11), 12, 8)
    assert solve(problem) == solve(problem)


def test_an_empty_problem_takes_no_time() -> None:
    problem = ScheduleProblem(np.zeros((0, 1)), np.zeros((0, 1, 6)), np.ones(6), ())
    assert solve(problem).makespan_s == 0.0


def test_an_operator_that_fits_nowhere_is_named() -> None:
    problem = chain_of([[1.0], [1.0]], [4], 2)
    with pytest.raises(InfeasibleError, match="operator 0 of the schedule has no option"):
        solve(problem)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"start_s": (0.0, 1.0)}, "before its predecessor 0 ends"),
        ({"start_s": (-1.0, 4.0)}, "operator 0 starts before time 0"),
        ({"option": (0, 2)}, "option is outside 0..1"),
        ({"makespan_s": 9.0}, "operator 1 ends at 10 s, after the makespan of 9 s"),
        ({"lower_bound_s": 11.0}, "exceeds the makespan"),
        ({"start_s": (0.0,)}, "the schedule has 1 operators, the problem 2"),
    ],
)
def test_check_says_what_is_wrong(change: dict[str, object], sentence: str) -> None:
    problem = chain_of([[4.0, 2.5], [6.0, 3.5]], [1, 2], 2)
    good = Schedule((0.0, 4.0), (0, 0), 10.0, 6.0, "list", "critical path")
    check(problem, good)
    with pytest.raises(ValueError, match=sentence):
        check(problem, replace(good, **change))  # type: ignore[arg-type]


def test_check_finds_overused_resources() -> None:
    problem = in_parallel(chain_of([[4.0], [6.0]], [2], 2))
    with pytest.raises(ValueError, match="use 4 of resource 0, of which there is 2"):
        check(problem, Schedule((0.0, 1.0), (0, 0), 7.0, 6.0, "list", "critical path"))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"predecessors": ((1,), ())}, "predecessors .* of operator 0 are not all before it"),
        ({"duration_s": np.array([[0.0, 1.0], [1.0, 1.0]])}, "operator 0 has an option"),
        ({"capacity": np.ones(5)}, "demand has shape"),
    ],
)
def test_a_problem_that_makes_no_sense_is_refused(change: dict[str, object], sentence: str) -> None:
    problem = chain_of([[4.0, 2.5], [6.0, 3.5]], [1, 2], 2)
    with pytest.raises(ValueError, match=sentence):
        solve(replace(problem, **change))  # type: ignore[arg-type]
