"""PHAZE's formulation of a layer's schedule, as an independent cross-check on small graphs.

PHAZE (Wang et al., ICML 2024) avoids a time index: ordering variables x[i, j] (i finishes before j
starts) with a big constant, y[i] (i is spread over all cores and then excludes everything else),
and core constraints that are added only when a replay of the order needs too many cores:

    min T    T >= t_i + p_i,  p_i = y_i I_i + (1 - y_i) L_i
    i before j:          t_i + p_i <= t_j
    i, j incomparable:   t_i + p_i - H (1 - x_ij) <= t_j,  x_ij + x_ji <= 1
                         x_ij + x_ji >= y_i
    when needed:         sum_c z_ic + y_i = 1,  x_ij + x_ji >= z_ic + z_jc - 1

in the reduced form: x only for incomparable pairs, no transitivity (the times imply it).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp

from atoll.schedule.problem import RESOURCES, ScheduleProblem

Core = Literal["tensor", "vector", "pair"]

BIG = (2.0, 4.0, 8.0)
"""The big constant in units of H, tried in turn until HiGHS copes: the optimum is the same.

PHAZE takes H itself, which is valid; but then HiGHS (in scipy 1.17) stops with "solve error" on
about one small graph in a hundred, presolved or not, and now and then calls a schedule optimal that
is not (trying everything finds a shorter one). With 2 H, errors are several times rarer, and no
wrong optimum showed up on some thousands of graphs.
"""


@dataclass(frozen=True)
class PhazeInstance:
    """Operators in topological order, each on one core (or core pair) or on all cores."""

    one_core_s: tuple[float, ...]
    all_cores_s: tuple[float, ...]
    core: tuple[Core, ...]
    predecessors: tuple[tuple[int, ...], ...]
    tensor_cores: int
    vector_cores: int

    def users(self, kind: str) -> list[int]:
        """Operators that take a core of this kind."""
        return [j for j, core in enumerate(self.core) if core in (kind, "pair")]

    def supply(self, kind: str) -> int:
        return self.tensor_cores if kind == "tensor" else self.vector_cores


@dataclass(frozen=True)
class PhazeSolution:
    makespan_s: float
    start_s: tuple[float, ...]
    on_all_cores: tuple[bool, ...]
    core_constraints: tuple[str, ...]  # the kinds of core that the replay called for


def phaze_problem(instance: PhazeInstance) -> ScheduleProblem:
    """The same instance as a schedule problem: on all cores means all of both kinds."""
    n = len(instance.core)
    demand = np.zeros((n, 2, len(RESOURCES)))
    for r, kind in enumerate(("tensor", "vector")):
        demand[instance.users(kind), 0, r] = 1.0
        demand[:, 1, r] = instance.supply(kind)
    return ScheduleProblem(
        duration_s=np.column_stack((instance.one_core_s, instance.all_cores_s)),
        demand=demand,
        capacity=np.array([instance.tensor_cores, instance.vector_cores, 1.0, 1.0, 1.0, 1.0]),
        predecessors=instance.predecessors,
    )


def solve_phaze(instance: PhazeInstance, *, matched_pairs: bool = False) -> PhazeSolution:
    """Optimum by HiGHS, with the core constraints of a kind added when a replay exceeds them.

    `matched_pairs` adds PHAZE's rule that a fused operator takes a tensor and a vector core of the
    same number; without it, any two.
    """
    added: tuple[str, ...] = ()
    while True:
        order, spread = _solve_somehow(instance, added, matched_pairs)
        start, makespan = _replay(instance, order, spread)
        missing = [
            kind
            for kind in ("tensor", "vector")
            if kind not in added and _peak(instance, kind, start, spread) > instance.supply(kind)
        ]
        if not missing:
            return PhazeSolution(makespan, tuple(start), tuple(spread), added)
        added = (*added, *missing)


def _solve_somehow(
    instance: PhazeInstance, added: tuple[str, ...], matched_pairs: bool
) -> tuple[set[tuple[int, int]], list[bool]]:
    """Solve the programme with the first constant that HiGHS copes with."""
    for big in BIG[:-1]:
        try:
            return _solve(instance, added, matched_pairs, big)
        except ArithmeticError:
            continue
    return _solve(instance, added, matched_pairs, BIG[-1])


def _solve(
    instance: PhazeInstance, added: tuple[str, ...], matched_pairs: bool, big: float
) -> tuple[set[tuple[int, int]], list[bool]]:
    """Build and solve the programme; returns the ordered pairs and who is on all cores."""
    n = len(instance.core)
    before = _ancestors(instance)
    free = [(i, j) for i, j in combinations(range(n), 2) if not before[j, i]]
    horizon = min(sum(instance.one_core_s), sum(instance.all_cores_s))
    one = np.array(instance.one_core_s) / horizon
    every = np.array(instance.all_cores_s) / horizon
    names: list[tuple[object, ...]] = [("T",)]
    names += [("t", j) for j in range(n)] + [("y", j) for j in range(n)]
    names += [("x", *pair) for i, j in free for pair in ((i, j), (j, i))]
    for kind in added:
        names += [
            ("z", kind, j, c) for j in instance.users(kind) for c in range(instance.supply(kind))
        ]
    column = {name: k for k, name in enumerate(names)}
    matrix: list[NDArray[np.float64]] = []
    least: list[float] = []

    def at_least(value: float) -> NDArray[np.float64]:
        """A new row sum(row x variables) >= value, to be filled in."""
        matrix.append(np.zeros(len(names)))
        least.append(value)
        return matrix[-1]

    def follows(later: tuple[object, ...], i: int, slack: float) -> NDArray[np.float64]:
        """later >= t_i + p_i - slack, with p_i = one + (every - one) y_i."""
        row = at_least(float(one[i]) - slack)
        row[column[later]] += 1.0
        row[column["t", i]] -= 1.0
        row[column["y", i]] -= every[i] - one[i]
        return row

    for i in range(n):
        follows(("T",), i, 0.0)
    for j, ahead in enumerate(instance.predecessors):
        for i in ahead:
            follows(("t", j), i, 0.0)
    for i, j in free:
        for a, b in ((i, j), (j, i)):
            follows(("t", b), a, big)[column["x", a, b]] -= big
            row = at_least(0.0)
            row[column["x", i, j]] = row[column["x", j, i]] = 1.0
            row[column["y", a]] = -1.0
        row = at_least(-1.0)
        row[column["x", i, j]] = row[column["x", j, i]] = -1.0
    for kind in added:
        for j in instance.users(kind):
            for sign in (1.0, -1.0):
                row = at_least(sign)
                row[column["y", j]] = sign
                for c in range(instance.supply(kind)):
                    row[column["z", kind, j, c]] = sign
        for i, j in free:
            if i in instance.users(kind) and j in instance.users(kind):
                for c in range(instance.supply(kind)):
                    row = at_least(-1.0)
                    row[column["x", i, j]] = row[column["x", j, i]] = 1.0
                    row[column["z", kind, i, c]] = row[column["z", kind, j, c]] = -1.0
    if matched_pairs and len(added) == 2:
        for j in (j for j, core in enumerate(instance.core) if core == "pair"):
            for c in range(max(instance.tensor_cores, instance.vector_cores)):
                row = at_least(0.0)
                back = at_least(0.0)
                for kind, sign in (("tensor", 1.0), ("vector", -1.0)):
                    if c < instance.supply(kind):
                        row[column["z", kind, j, c]] = sign
                        back[column["z", kind, j, c]] = -sign
    cost = np.zeros(len(names))
    cost[0] = 1.0
    whole = np.array([0 if name[0] in ("T", "t") else 1 for name in names])
    result = milp(
        cost,
        constraints=LinearConstraint(np.array(matrix), np.array(least), np.inf),
        integrality=whole,
        bounds=Bounds(0.0, np.where(whole == 1, 1.0, 2.0)),
        options={"mip_rel_gap": 0.0},
    )
    if result.status != 0:
        raise ArithmeticError(f"the PHAZE programme was not solved: {result.message}")
    chosen = {name for name, value in zip(names, result.x, strict=True) if value > 0.5}
    order = {(i, j) for i in range(n) for j in range(n) if ("x", i, j) in chosen}
    return order, [("y", j) in chosen for j in range(n)]


def _ancestors(instance: PhazeInstance) -> NDArray[np.bool_]:
    """before[j, i]: i precedes j."""
    n = len(instance.core)
    before = np.zeros((n, n), dtype=np.bool_)
    for j, ahead in enumerate(instance.predecessors):
        for i in ahead:
            before[j] |= before[i]
            before[j, i] = True
    return before


def _replay(
    instance: PhazeInstance, order: set[tuple[int, int]], spread: list[bool]
) -> tuple[list[float], float]:
    """Earliest starts under the precedence and the chosen order; their makespan."""
    n = len(instance.core)
    duration = [instance.all_cores_s[j] if spread[j] else instance.one_core_s[j] for j in range(n)]
    edges = order | {(i, j) for j, ahead in enumerate(instance.predecessors) for i in ahead}
    start = [0.0] * n
    for _ in range(n):  # longest paths: as many rounds as a path can have edges
        for i, j in edges:
            start[j] = max(start[j], start[i] + duration[i])
    return start, max((start[j] + duration[j] for j in range(n)), default=0.0)


def _peak(instance: PhazeInstance, kind: str, start: list[float], spread: list[bool]) -> int:
    """Most cores of a kind in use at once by operators that are not on all cores."""
    users = [j for j in instance.users(kind) if not spread[j]]
    end = {j: start[j] + instance.one_core_s[j] for j in users}
    return max((sum(start[i] <= start[j] < end[i] for i in users) for j in users), default=0)
