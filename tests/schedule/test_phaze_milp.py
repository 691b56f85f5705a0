"""PHAZE's formulation and ours are two views of the same problem: the optima agree.

The examples are fixed: HiGHS fails on rare ones, which is not what these tests are about.
"""

from __future__ import annotations

import brute_force
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.schedule.problem import Schedule
from atoll.schedule.solve import solve
from oracles.phaze_milp import PhazeInstance, phaze_problem, solve_phaze
from oracles.schedule_check import check


@st.composite
def instances(draw: st.DrawFn, operators: int = 7) -> PhazeInstance:
    n = draw(st.integers(1, operators))
    one = [draw(st.integers(4, 40)) * 1e-4 for _ in range(n)]
    return PhazeInstance(
        one_core_s=tuple(one),
        all_cores_s=tuple(t * draw(st.sampled_from([0.3, 0.45, 0.7, 1.0])) for t in one),
        core=tuple(draw(st.sampled_from(["tensor", "vector", "pair"])) for _ in range(n)),
        predecessors=tuple(
            tuple(i for i in range(j) if draw(st.integers(0, 3)) == 0) for j in range(n)
        ),
        tensor_cores=draw(st.integers(1, 3)),
        vector_cores=draw(st.integers(1, 2)),
    )


def random_instance(seed: int) -> PhazeInstance:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, 7))
    one = rng.integers(4, 40, n) * 1e-4
    return PhazeInstance(
        one_core_s=tuple(one.tolist()),
        all_cores_s=tuple((one * rng.choice([0.3, 0.45, 0.7, 1.0], n)).tolist()),
        core=tuple(rng.choice(["tensor", "vector", "pair"], n).tolist()),
        predecessors=tuple(tuple(i for i in range(j) if rng.random() < 0.25) for j in range(n)),
        tensor_cores=int(rng.integers(1, 4)),
        vector_cores=int(rng.integers(1, 3)),
    )


@pytest.mark.parametrize("seed", range(20))
def test_the_optima_agree(seed: int) -> None:
    instance = random_instance(seed)
    theirs = solve_phaze(instance)
    ours = solve(phaze_problem(instance), effort="exact", tolerance=0.0)
    assert theirs.makespan_s == pytest.approx(ours.makespan_s, rel=1e-5)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(instances())
def test_ours_is_feasible_and_never_the_longer(instance: PhazeInstance) -> None:
    """HiGHS now and then calls a longer schedule of these programmes optimal; ours must not be."""
    problem = phaze_problem(instance)
    ours = solve(problem, effort="exact", tolerance=0.0)
    check(problem, ours)
    assert ours.makespan_s <= solve_phaze(instance).makespan_s * (1 + 1e-5)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(instances())
def test_the_replayed_schedule_is_feasible_in_our_terms(instance: PhazeInstance) -> None:
    found = solve_phaze(instance)
    option = tuple(int(spread) for spread in found.on_all_cores)
    check(
        phaze_problem(instance),
        Schedule(found.start_s, option, found.makespan_s, 0.0, "milp", ""),
    )


@settings(max_examples=10, deadline=None, derandomize=True)
@given(instances(operators=5))
def test_cores_of_equal_number_for_fused_operators_can_only_cost_time(
    instance: PhazeInstance,
) -> None:
    free = solve_phaze(instance)
    matched = solve_phaze(instance, matched_pairs=True)
    assert matched.makespan_s >= free.makespan_s * (1 - 1e-6)


@pytest.mark.parametrize(
    ("instance", "optimum_s"),
    [
        (  # with the constant H, HiGHS stops with a solve error
            PhazeInstance(
                (0.0025, 0.0004, 0.0016, 0.0004, 0.0014),
                (0.001125, 0.00012, 0.00072, 0.0004, 0.00042),
                ("tensor", "tensor", "tensor", "tensor", "tensor"),
                ((), (), (0,), (0, 2), (1,)),
                1,
                1,
            ),
            0.002785,
        ),
        (  # with the constant H, HiGHS calls 6.35 ms optimal
            PhazeInstance(
                (0.003, 0.0037, 0.0009, 0.0038, 0.0039, 0.0022),
                (0.003, 0.00111, 0.00027, 0.00266, 0.00117, 0.0022),
                ("tensor", "tensor", "vector", "vector", "tensor", "vector"),
                ((), (), (), (1,), (2,), ()),
                1,
                2,
            ),
            0.00608,
        ),
    ],
)
def test_graphs_on_which_the_library_failed(instance: PhazeInstance, optimum_s: float) -> None:
    assert brute_force.optimum_s(phaze_problem(instance)) == pytest.approx(optimum_s)
    assert solve_phaze(instance).makespan_s == pytest.approx(optimum_s, rel=1e-5)
    ours = solve(phaze_problem(instance), effort="exact", tolerance=0.0)
    assert ours.makespan_s == pytest.approx(optimum_s, rel=1e-9)


def test_core_constraints_are_added_only_when_needed() -> None:
    """Two independent operators on two cores need none; on one core they do."""
    roomy = PhazeInstance((1.0, 1.0), (0.9, 0.9), ("tensor", "tensor"), ((), ()), 2, 1)
    assert solve_phaze(roomy).core_constraints == ()
    assert solve_phaze(roomy).makespan_s == pytest.approx(1.0)
    tight = PhazeInstance((1.0, 1.0), (0.9, 0.9), ("tensor", "tensor"), ((), ()), 1, 1)
    assert solve_phaze(tight).core_constraints == ("tensor",)
    assert solve_phaze(tight).makespan_s == pytest.approx(1.8)


def test_an_operator_on_all_cores_excludes_the_other_kind_too() -> None:
    problem = phaze_problem(
        PhazeInstance((2.0, 2.0), (1.0, 2.0), ("tensor", "vector"), ((), ()), 4, 4)
    )
    assert np.array_equal(problem.demand[0, 1, :2], [4.0, 4.0])
    schedule = solve(problem, tolerance=0.0)
    assert schedule.makespan_s == pytest.approx(2.0)  # side by side on one core each
