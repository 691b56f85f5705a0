"""Tiny problems, and their optimum by trying every choice of options in every order.

Placing operators one by one at the earliest feasible time reaches every active schedule, and some
active schedule is optimal, so trying all orders and options is exhaustive.
"""

from __future__ import annotations

from itertools import permutations, product

import numpy as np
from hypothesis import strategies as st

from atoll.schedule.problem import RESOURCES, ScheduleProblem


def optimum_s(problem: ScheduleProblem) -> float:
    """Least makespan."""
    n = problem.operators
    options = [
        [
            o
            for o in range(problem.duration_s.shape[1])
            if np.isfinite(problem.duration_s[j, o])
            and np.all(problem.demand[j, o] <= problem.capacity)
        ]
        for j in range(n)
    ]
    orders = [
        order
        for order in permutations(range(n))
        if all(order.index(i) < order.index(j) for j in range(n) for i in problem.predecessors[j])
    ]
    best = np.inf
    for choice in product(*options):
        duration = [float(problem.duration_s[j, choice[j]]) for j in range(n)]
        demand = [problem.demand[j, choice[j]].tolist() for j in range(n)]
        for order in orders:
            best = min(best, _makespan(problem, order, duration, demand, best))
    return best


def _makespan(
    problem: ScheduleProblem,
    order: tuple[int, ...],
    duration: list[float],
    demand: list[list[float]],
    best: float,
) -> float:
    capacity = [c * (1.0 + 1e-9) for c in problem.capacity.tolist()]
    placed: list[tuple[float, float, list[float]]] = []
    ends: dict[int, float] = {}
    for j in order:
        ready = max((ends[i] for i in problem.predecessors[j]), default=0.0)
        for t in sorted({ready, *(e for _, e, _ in placed if e > ready)}):
            instants = {t, *(s for s, _, _ in placed if t < s < t + duration[j])}
            if all(
                demand[j][r] + sum(d[r] for s, e, d in placed if s <= when < e) <= capacity[r]
                for when in instants
                for r in range(len(capacity))
            ):
                break
        ends[j] = t + duration[j]
        if ends[j] >= best:
            return np.inf
        placed.append((t, ends[j], demand[j]))
    return max(ends.values())


@st.composite
def tiny_problems(draw: st.DrawFn, operators: int = 4, options: int = 3) -> ScheduleProblem:
    """Few operators on a few cores, with every resource in play now and then."""
    n = draw(st.integers(1, operators))
    cores = draw(st.sampled_from([1, 2, 3, 4, 8]))
    vector_cores = draw(st.sampled_from([1, 2]))
    slots = draw(st.sampled_from([1, 2, 4]))
    capacity = np.array([cores, vector_cores, 1.0, 1.0, slots, 1.0])
    duration = np.full((n, options), np.inf)
    demand = np.zeros((n, options, len(RESOURCES)))
    predecessors = []
    for j in range(n):
        predecessors.append(tuple(i for i in range(j) if draw(st.integers(0, 3)) == 0))
        base = draw(st.integers(1, 12))
        vector = draw(st.integers(0, 4)) == 0
        for o in range(draw(st.integers(1, options))):
            width = min(2**o, vector_cores if vector else cores)
            loss = draw(st.integers(0, 2))
            duration[j, o] = (base * 4 / width + loss) * 1e-5
            demand[j, o, 1 if vector else 0] = width
            demand[j, o, 2] = draw(st.sampled_from([0.0, 0.2, 1 / 3, 0.5, 0.9]))
            demand[j, o, 4] = 0.0 if vector else 1.0
    return ScheduleProblem(duration, demand, capacity, tuple(predecessors))
