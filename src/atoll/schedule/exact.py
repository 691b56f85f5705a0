"""CP-SAT for schedules that branch and bound leaves open.

The model relaxes the problem: durations and demands are rounded down to an integer grid, capacities
up. Its lower bound thus holds for the problem itself, and so the bound loses at most one grid unit
per operator on a path. The schedules found give order and options; placing these operators with
their true durations and demands, one by one as early as possible, gives feasible schedules.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, floor
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from atoll.schedule.bound_kernels import EPSILON, Bools, Floats, Instance, prepare
from atoll.schedule.problem import Schedule, ScheduleProblem
from atoll.stopping import Asked, never, watched

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, IntVar, LinearExpr

DEMAND_GRID = 10_000
"""Units of a fractional capacity."""


def solve_exact(
    problem: ScheduleProblem,
    known: Schedule,
    weight_s: Floats,
    tolerance: float,
    time_limit_s: float,
    stop: Asked = never,
) -> Schedule:
    """Improve a schedule and its bound until the tolerance or the limit is met.

    `weight_s` are valid weights of operators (`subset_kernels`): what follows or precedes an
    operator takes at least its weights. The limit is in CP-SAT's deterministic seconds.
    """
    # Imported here: it takes about a second, which the other efforts need not pay.
    from ortools.sat.python import cp_model

    p, ordered, _ = prepare(*problem.arrays())
    before: Bools = np.tril(ordered)
    units = ceil(4 * problem.operators / max(tolerance, 1e-6))
    unit_s = known.makespan_s / units
    model = cp_model.CpModel()
    start, chosen, span = _variables(model, p, known, unit_s, units)
    length = {
        j: sum(floor(p.duration[j, o] / unit_s) * x for o, x in chosen[j].items()) for j in chosen
    }
    for j in chosen:
        for e in range(p.pred_ptr[j], p.pred_ptr[j + 1]):
            i = int(p.pred_idx[e])
            model.add(start[j] >= start[i] + length[i])
        model.add(span >= start[j] + length[j])
        model.add(span >= start[j] + length[j] + _floor_sum(weight_s[before[:, j]], unit_s))
        model.add(start[j] >= _floor_sum(weight_s[before[j]], unit_s))
    _add_resources(model, p, start, chosen, length, span, unit_s)
    model.minimize(span)

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.interleave_search = True  # the whole portfolio, still deterministic
    solver.parameters.max_deterministic_time = time_limit_s
    solver.parameters.relative_gap_limit = 0.5 * tolerance
    solver.parameters.catch_sigint_signal = False  # Ctrl-C is for whoever is asked
    status = watched(lambda: solver.solve(model), solver.stop_search, stop)
    bound = solver.best_objective_bound * unit_s
    if bound > known.lower_bound_s:
        known = replace(known, lower_bound_s=min(bound, known.makespan_s), bound="cp-sat")
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        option = np.array(
            [next(o for o, x in chosen[j].items() if solver.boolean_value(x)) for j in chosen]
        )
        begun = np.array([solver.value(start[j]) for j in chosen])
        order = np.argsort(begun, kind="stable")  # equal starts in topological order
        begin = place(problem, order, option)
        end = begin + problem.duration_s[np.arange(option.size), option]
        if end.max() < known.makespan_s:
            known = replace(
                known,
                start_s=tuple(begin.tolist()),
                option=tuple(option.tolist()),
                makespan_s=float(end.max()),
                lower_bound_s=min(known.lower_bound_s, float(end.max())),
                method="cp-sat",
            )
    return known


def place(problem: ScheduleProblem, order: NDArray[np.int64], option: NDArray[np.int64]) -> Floats:
    """Starts of operators placed in `order`, each as early as precedence and resources allow."""
    start = np.zeros(order.size)
    end = np.zeros(order.size)
    placed: list[int] = []
    for j in order.tolist():
        d = problem.duration_s[j, option[j]]
        ready = max((end[i] for i in problem.predecessors[j]), default=0.0)
        # The earliest start is when it is ready, or when something ends after that.
        for t in sorted({ready, *(end[i] for i in placed if end[i] > ready)}):
            inside = [i for i in placed if start[i] < t + d and end[i] > t]
            peaks = {t, *(start[i] for i in inside if start[i] > t)}
            if all(_fits(problem, [j, *inside], option, start, end, when, j) for when in peaks):
                break
        start[j], end[j] = t, t + d
        placed.append(j)
    return start


def _fits(
    problem: ScheduleProblem,
    operators: list[int],
    option: NDArray[np.int64],
    start: Floats,
    end: Floats,
    when: float,
    new: int,
) -> bool:
    """Whether the operators running at a time, and the new one, fit the chip."""
    used = sum(
        problem.demand[i, option[i]] for i in operators if i == new or start[i] <= when < end[i]
    )
    return bool(np.all(used <= problem.capacity * (1.0 + EPSILON)))


def _floor_sum(weight_s: Floats, unit_s: float) -> int:
    return floor(float(weight_s.sum()) * (1.0 - 1e-12) / unit_s)


def _variables(
    model: CpModel, p: Instance, known: Schedule, unit_s: float, units: int
) -> tuple[dict[int, IntVar], dict[int, dict[int, IntVar]], IntVar]:
    """Starts, one literal per option, and the makespan, with the schedule known as a hint."""
    n = p.duration.shape[0]
    start = {j: model.new_int_var(0, units, f"start{j}") for j in range(n)}
    chosen: dict[int, dict[int, IntVar]] = {}
    for j in range(n):
        chosen[j] = {
            int(o): model.new_bool_var(f"option{j}.{o}") for o in p.options[j, : p.useful[j]]
        }
        model.add_exactly_one(chosen[j].values())
        model.add_hint(start[j], floor(known.start_s[j] / unit_s))
        for o, x in chosen[j].items():
            model.add_hint(x, int(o == known.option[j]))
    span = model.new_int_var(floor(known.lower_bound_s / unit_s), units, "makespan")
    return start, chosen, span


def _add_resources(
    model: CpModel,
    p: Instance,
    start: dict[int, IntVar],
    chosen: dict[int, dict[int, IntVar]],
    length: dict[int, LinearExpr],
    span: IntVar,
    unit_s: float,
) -> None:
    """One cumulative constraint per resource, and the work that it implies as a linear row."""
    interval = {}
    for j, options in chosen.items():
        for o, x in options.items():
            d = floor(p.duration[j, o] / unit_s)
            interval[j, o] = model.new_optional_fixed_size_interval_var(
                start[j], d, x, f"interval{j}.{o}"
            )
    for r in range(p.load.shape[2]):
        rows = [(j, o) for (j, o) in interval if p.load[j, o, r] > 0.0]
        if not rows:
            continue
        work = [(floor(p.duration[j, o] * p.load[j, o, r] / unit_s), chosen[j][o]) for j, o in rows]
        model.add(sum(w * x for w, x in work) <= span)
        if r >= p.capacity.size:  # a blend of resources: only its work is worth a row
            continue
        whole = np.all(p.demand[:, :, r] == np.floor(p.demand[:, :, r]))
        grid = 1 if whole else DEMAND_GRID / p.capacity[r]
        model.add_cumulative(
            [interval[key] for key in rows],
            [floor(p.demand[j, o, r] * grid) for j, o in rows],
            floor(p.capacity[r]) if whole else ceil(p.capacity[r] * grid),
        )
