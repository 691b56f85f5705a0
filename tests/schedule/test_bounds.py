"""Lower bounds: valid, ordered by strength, and with weights that prove them."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from brute_force import optimum_s, tiny_problems
from hypothesis import given, settings

from atoll.schedule.bound_kernels import Instance, prepare
from atoll.schedule.bounds import AllotmentBound, allotment_bound, solve_subsets
from atoll.schedule.problem import RESOURCES, ScheduleProblem
from atoll.schedule.series import ordered
from atoll.schedule.solve import quick_of, solve
from oracles.synthetic import backward_pass

NODES = 1_000_000


def subsets(problem: ScheduleProblem) -> tuple[float, bool, np.ndarray]:
    arrays = problem.arrays()
    first = solve(problem, effort="quick")
    start, option = np.array(first.start_s), np.array(first.option)
    found = solve_subsets(
        prepare(*arrays), ordered(*arrays[3:]), start, option, np.inf, nodes=NODES
    )
    return found.lower_bound_s, found.optimal, found.weight_s


def allotment(problem: ScheduleProblem, windows: bool = True) -> AllotmentBound:
    arrays = problem.arrays()
    before = np.tril(ordered(*arrays[3:]))
    return allotment_bound(prepare(*arrays), before, names=RESOURCES, windows=windows)


def critical_path_s(p: Instance) -> float:
    end = np.zeros(p.fastest.size)
    for j in range(end.size):
        before = p.pred_idx[p.pred_ptr[j] : p.pred_ptr[j + 1]]
        end[j] = p.fastest[j] + max(end[before], default=0.0)
    return float(end.max())


def most_earned(problem: ScheduleProblem, weight: np.ndarray) -> float:
    """Largest sum of weight / duration over sets of operators that can run together, by trying
    all of them."""
    both = ordered(*problem.arrays()[3:])
    best = 0.0
    for choice in product(range(-1, problem.duration_s.shape[1]), repeat=problem.operators):
        chosen = [(j, o) for j, o in enumerate(choice) if o >= 0]
        if any(not np.isfinite(problem.duration_s[j, o]) for j, o in chosen):
            continue
        if any(both[i, j] for i, _ in chosen for j, _ in chosen):
            continue
        used = sum((problem.demand[j, o] for j, o in chosen), np.zeros(len(RESOURCES)))
        if np.all(used <= problem.capacity * (1 + 1e-9)):
            best = max(best, sum(weight[j] / problem.duration_s[j, o] for j, o in chosen))
    return best


@settings(max_examples=60, deadline=None)
@given(tiny_problems())
def test_no_bound_exceeds_the_optimum(problem: ScheduleProblem) -> None:
    optimum = optimum_s(problem) * (1 + 1e-9)
    assert quick_of(problem.arrays()).lower_s <= optimum
    assert subsets(problem)[0] <= optimum
    assert allotment(problem).lower_bound_s <= optimum


@settings(max_examples=40, deadline=None)
@given(tiny_problems())
def test_both_programmes_dominate_path_and_work(problem: ScheduleProblem) -> None:
    p = prepare(*problem.arrays())
    simple = max(critical_path_s(p), float(p.work.sum(axis=0)[: len(RESOURCES)].max()))
    assert allotment(problem).lower_bound_s >= simple * (1 - 1e-6)
    bound, optimal, _ = subsets(problem)
    assert optimal
    assert bound >= simple * (1 - 1e-5)


@settings(max_examples=40, deadline=None)
@given(tiny_problems())
def test_windows_only_strengthen_and_subsets_dominate_the_rest(problem: ScheduleProblem) -> None:
    plain = allotment(problem, windows=False)
    assert allotment(problem).lower_bound_s >= plain.lower_bound_s * (1 - 1e-6)
    assert subsets(problem)[0] >= plain.lower_bound_s * (1 - 1e-5)


@settings(max_examples=40, deadline=None)
@given(tiny_problems())
def test_weights_earn_at_most_one_second_per_second(problem: ScheduleProblem) -> None:
    """This alone makes the sum of the weights, of any part of the operators, a bound."""
    bound, _, weight = subsets(problem)
    assert weight.sum() == pytest.approx(bound)
    assert most_earned(problem, weight) <= 1 + 1e-9
    assert most_earned(problem, allotment(problem).weight_s) <= 1 + 1e-9


@pytest.mark.parametrize("cores", [1, 2, 8, 64])
def test_weights_of_the_allotment_programme_attain_it(cores: int) -> None:
    problem = backward_pass(np.random.default_rng(cores), 10, cores)
    result = allotment(problem, windows=False)
    assert result.weight_s.sum() == pytest.approx(result.lower_bound_s, rel=1e-6)


def test_the_allotment_programme_says_what_binds() -> None:
    """One core: the work on it. A chain on a chip with cores to spare: the path."""
    busy = backward_pass(np.random.default_rng(0), 10, 1)
    assert allotment(busy).binding.startswith("tensor work")
    chain = tuple((j - 1,) if j else () for j in range(busy.operators))
    spare = replace(busy, capacity=2.0 * busy.capacity, predecessors=chain)
    assert allotment(spare).binding == "critical path"


def test_operators_that_cannot_run_together_need_the_sum_of_their_times() -> None:
    """Three operators of 0.6 of the bandwidth each: work says 1.8 s, in truth they take 3 s."""
    demand = np.zeros((3, 1, 6))
    demand[:, 0, 2] = 0.6
    problem = ScheduleProblem(np.ones((3, 1)), demand, np.array([8, 8, 1, 1, 8, 1.0]), ((),) * 3)
    assert allotment(problem).lower_bound_s == pytest.approx(1.8)
    assert subsets(problem)[0] == pytest.approx(3.0)
