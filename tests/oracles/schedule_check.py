"""An independent check of a schedule against its problem; it shares nothing with the solvers."""

from __future__ import annotations

import numpy as np

from atoll.schedule.problem import Schedule, ScheduleProblem

TIME = 1e-9
"""Times are compared to this part of the makespan."""

SHARE = 2e-9
"""Demands are compared to this part of a capacity."""


def check(problem: ScheduleProblem, schedule: Schedule) -> None:
    """Raise a ValueError, in one sentence, where the schedule breaks the problem or its claims."""
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
    slack = TIME * schedule.makespan_s
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
        running = (start <= start[j] + slack) & (end > start[j] + slack)
        used = demand[running].sum(axis=0)
        over = used > problem.capacity * (1.0 + SHARE)
        if over.any():
            r = int(np.flatnonzero(over)[0])
            raise ValueError(
                f"at {start[j]:.9g} s the running operators use {used[r]:.9g} of resource {r}, of "
                f"which there is {problem.capacity[r]:.9g}"
            )
    if schedule.lower_bound_s > schedule.makespan_s * (1.0 + TIME):
        raise ValueError(
            f"the lower bound of {schedule.lower_bound_s:.9g} s exceeds the makespan of "
            f"{schedule.makespan_s:.9g} s"
        )
