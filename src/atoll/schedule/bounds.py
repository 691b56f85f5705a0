"""Lower bounds by linear programs: the feasible-subset bound and the allotment bound.

The first is solved in `subset_kernels`. The allotment bound chooses options fractionally: operator
j runs a fraction f[j, o] in option o. Its duration is the mean over its options, starts s[j] follow
the precedence with these durations, and on every resource the work of all operators, or of the
descendants (ancestors) of one operator, fits in the time that is left:

    min T   s.t.  sum_o f[j, o] = 1
                  s[j] >= s[i] + sum_o duration[i, o] f[i, o]         i before j
                  T    >= s[j] + sum_o duration[j, o] f[j, o]
                  T - end[i] >= work on r of the descendants of i     windows; all: T >= work
                  s[j]       >= work on r of the ancestors of j

Any schedule with its options satisfies all rows, so T bounds the makespan (the relaxation behind
the allotment phase of Jansen and Zhang 2006, with windows added). It ignores that options cannot be
mixed and which operators fit together; `subset_kernels` models the latter.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.base.arrays import Bools, Floats, Ints
from atoll.schedule.bound_kernels import Instance
from atoll.schedule.subset_kernels import subset_bound

SUBSET_NODES = 200_000
"""Node limit of the feasible-subset bound; graphs with little concurrency need few nodes."""


@dataclass(frozen=True)
class SubsetBound:
    """The feasible-subset bound with the weights that prove it."""

    lower_bound_s: float
    optimal: bool
    weight_s: Floats  # (operators,): no feasible set of operators earns more than 1 per second


def solve_subsets(
    p: Instance,
    ordered: Bools,
    start_s: Floats,
    option: Ints,
    cut_s: float,
    *,
    nodes: int = SUBSET_NODES,
) -> SubsetBound:
    """Return the feasible-subset bound on schedules shorter than `cut_s`; see `subset_bound`."""
    weight = np.zeros(start_s.size)
    value, optimal = subset_bound(p, ordered, start_s, option, cut_s, nodes, weight)
    return SubsetBound(float(value), bool(optimal), weight)


@dataclass(frozen=True)
class AllotmentBound:
    """The allotment bound with the weights that prove it."""

    lower_bound_s: float
    binding: str  # "critical path", "<resource> work", "<resource> work in a window"
    weight_s: Floats  # (operators,): no feasible set of operators earns more than 1 per second


class _Rows:
    """Inequalities sum(value * variable) <= right, collected entry by entry."""

    def __init__(self) -> None:
        self.row: list[int] = []
        self.column: list[int] = []
        self.value: list[float] = []
        self.name: list[str] = []

    def add(self, name: str, entries: list[tuple[int, float]]) -> None:
        for column, value in entries:
            self.row.append(len(self.name))
            self.column.append(column)
            self.value.append(value)
        self.name.append(name)


def allotment_bound(
    p: Instance, before: Bools, *, names: tuple[str, ...], windows: bool = True
) -> AllotmentBound:
    """Solve the linear program for an instance; `before[j, i]` is true if i precedes j."""
    # Few searches need scipy, and its solvers take as long to import as numba.
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    n, width = p.duration.shape
    resources = p.capacity.shape[0]
    scale = float(p.fastest.max())
    index = np.full((n, width), -1, dtype=np.int64)
    fractions = 0
    for j in range(n):
        for o in p.options[j, : p.useful[j]]:
            index[j, o] = fractions
            fractions += 1
    start = fractions + np.arange(n)
    span = fractions + n

    def length(j: int) -> list[tuple[int, float]]:
        chosen = p.options[j, : p.useful[j]]
        return [(int(index[j, o]), float(p.duration[j, o]) / scale) for o in chosen]

    def work(members: Ints, r: int) -> list[tuple[int, float]]:
        return [
            (int(index[j, o]), float(p.duration[j, o] * p.load[j, o, r]) / scale)
            for j in members
            for o in p.options[j, : p.useful[j]]
            if p.load[j, o, r] > 0.0
        ]

    rows = _Rows()
    everything = np.arange(n)
    for j in range(n):
        for e in range(p.pred_ptr[j], p.pred_ptr[j + 1]):
            i = int(p.pred_idx[e])
            rows.add("critical path", [*length(i), (start[i], 1.0), (start[j], -1.0)])
        rows.add("critical path", [*length(j), (start[j], 1.0), (span, -1.0)])
    used = [r for r in range(resources) if p.work[:, r].sum() > 0.0]
    for r in used:
        rows.add(f"{names[r]} work", [*work(everything, r), (span, -1.0)])
    for j in range(n if windows else 0):
        after = np.flatnonzero(before[:, j])
        earlier = np.flatnonzero(before[j])
        for r in used:
            name = f"{names[r]} work in a window"
            if after.size > 1:
                rows.add(name, [*length(j), *work(after, r), (start[j], 1.0), (span, -1.0)])
            if earlier.size > 1:
                rows.add(name, [*work(earlier, r), (start[j], -1.0)])
    cost = np.zeros(span + 1)
    cost[span] = 1.0
    owner = np.repeat(everything, p.useful)
    equal = coo_array((np.ones(fractions), (owner, np.arange(fractions))), shape=(n, span + 1))
    matrix = coo_array((rows.value, (rows.row, rows.column)), shape=(len(rows.name), span + 1))
    # scipy's type stubs do not allow sparse matrices for linprog.
    upper: Any = matrix.tocsr()
    exactly: Any = equal.tocsr()
    zeros, ones = np.zeros(len(rows.name)), np.ones(n)
    result = linprog(cost, A_ub=upper, b_ub=zeros, A_eq=exactly, b_eq=ones, method="highs")
    if result.status != 0:
        raise ArithmeticError(f"the allotment programme was not solved: {result.message}")
    dual = np.maximum(0.0, -np.asarray(result.ineqlin.marginals))
    chosen = np.asarray(result.eqlin.marginals)
    # The dual value minus the possible gain of infeasible reduced costs is a bound for any solver
    # tolerance (Neumaier and Shcherbina 2004): fractions are at most 1, times at most the sum of
    # all shortest durations.
    reduced = cost + matrix.T @ dual - equal.T @ chosen
    largest = np.append(np.ones(fractions), np.full(n + 1, p.fastest.sum() / scale))
    value = float(chosen.sum() + np.minimum(0.0, reduced) @ largest) * scale
    share: dict[str, float] = {}
    for name, amount in zip(rows.name, dual, strict=True):
        share[name] = share.get(name, 0.0) + float(amount)
    binding = max(share, key=lambda name: share[name])
    return AllotmentBound(value, binding, _weights(p, rows, dual, names))


def _weights(p: Instance, rows: _Rows, dual: Floats, names: tuple[str, ...]) -> Floats:
    """Return valid operator weights from the dual variables of precedence and work, (operators,).

    The duals of the precedence rows are a flow along the edges. Concurrent operators are on
    different paths, so the flow through them is at most the total flow; their load on a resource
    earns at most its price. With flow and prices scaled to a sum of 1, operator j earns its flow
    plus its priced loads per second; its weight is the minimum over its options.
    """
    n = p.duration.shape[0]
    pairs = list(zip(rows.name, dual, strict=True))
    priced = names[: p.capacity.shape[0]]
    price = np.array([sum(v for row, v in pairs if row == f"{name} work") for name in priced])
    inflow, outflow = np.zeros(n), np.zeros(n)
    at = 0
    for j in range(n):
        for e in range(p.pred_ptr[j], p.pred_ptr[j + 1]):
            outflow[p.pred_idx[e]] += dual[at]
            inflow[j] += dual[at]
            at += 1
        outflow[j] += dual[at]
        at += 1
    through = np.maximum(inflow, outflow)  # they differ by flow that starts here and rounding
    flow_s = float((through - inflow).sum())
    total = max(1.0, flow_s + float(price.sum()))
    weight = np.zeros(n)
    for j in range(n):
        o = p.options[j, : p.useful[j]]
        rate = (through[j] + p.load[j, o, : price.size] @ price) / total
        weight[j] = (p.duration[j, o] * rate).min()
    return weight
