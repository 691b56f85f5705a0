"""Solve a layer's schedule: a feasible schedule and a valid lower bound, at four levels of effort.

quick    cheap bounds and a portfolio of list schedules, compiled (about 0.1 ms);
linear   + the feasible-subset bound, and a narrow branch and bound with its weights (milliseconds);
bounded  + a wider branch and bound;
exact    + a wider one still.

The graph is cut where every earlier operator precedes every later one, because makespans add up
there. Each part stops as soon as its gap is within the tolerance or its lower bound reaches the
goal. All levels are deterministic: a solve that is stopped early raises instead of returning.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Literal

import numpy as np

from atoll.base.arrays import Bools, Floats
from atoll.base.errors import InfeasibleError
from atoll.base.stopping import StopCheck, check_stop, never, watched
from atoll.schedule.bound_kernels import PATH, TRADE, WINDOW, WORK, Instance, prepare
from atoll.schedule.bounds import allotment_bound, solve_subsets
from atoll.schedule.branch_kernels import branch
from atoll.schedule.list_kernels import Problems, Quick, quick_bounds
from atoll.schedule.problem import RESOURCES, Arrays, Goal, Schedule, ScheduleProblem
from atoll.schedule.series import ordered, part_begins

Effort = Literal["quick", "linear", "bounded", "exact"]

WIDTHS: dict[Effort, tuple[int, ...]] = {
    "quick": (),
    "linear": (100,),
    "bounded": (100, 6_000),
    "exact": (100, 6_000, 30_000),
}
"""Successive searches while a gap remains: nodes per level of the branch and bound over time."""

LONG_WIDTH = 10_000
"""Smallest width of searches that take seconds and therefore check `stop` while they run."""


def solve(
    problem: ScheduleProblem,
    *,
    effort: Effort = "bounded",
    tolerance: float = 1e-3,
    enough_s: float = np.inf,
    stop: StopCheck = never,
) -> Schedule:
    """Return a schedule whose gap is at most `tolerance` or whose lower bound is at least
    `enough_s`, if the effort allows it. Raise `StoppedError` when `stop` requests it.
    """
    _validate(problem)
    if problem.operators == 0:
        return Schedule((), (), 0.0, 0.0, "list", "critical path")
    first, goal = quick(problem), Goal(tolerance, enough_s)
    if effort == "quick" or goal.met(first):
        return first
    begins = np.flatnonzero(part_begins(*problem.arrays()[3:]))
    if begins.size == 1:
        return _solve_part(problem, first, effort, goal, stop)
    cuts = pairwise([*begins.tolist(), problem.operators])
    parts = [_part(problem, lo, hi) for lo, hi in cuts]
    schedules = [quick(part) for part in parts]
    for i, part in enumerate(parts):
        others_s = sum(schedule.lower_bound_s for schedule in (*schedules[:i], *schedules[i + 1 :]))
        part_goal = Goal(tolerance, enough_s - others_s)
        if not part_goal.met(schedules[i]):
            schedules[i] = _solve_part(part, schedules[i], effort, part_goal, stop)
    return _in_series(schedules)


def quick(problem: ScheduleProblem) -> Schedule:
    """Return the best list schedule of the portfolio, with a cheap lower bound."""
    fast = quick_of(problem.arrays())
    lower, upper = (float(seconds[0]) for seconds in (fast.lower_s, fast.upper_s))
    kind, resource = (int(number[0]) for number in (fast.kind, fast.resource))
    if not np.isfinite(upper):
        fits = np.isfinite(problem.duration_s) & np.all(problem.demand <= problem.capacity, axis=2)
        stuck = int(np.flatnonzero(~fits.any(axis=1))[0])
        raise InfeasibleError(f"operator {stuck} of the schedule has no option that fits the chip")
    mixed = "tensor and slot"
    name = _resource_names(problem)[resource] if resource < problem.capacity.size else mixed
    bound = {
        PATH: "critical path",
        WORK: f"{name} work",
        WINDOW: f"{name} work in a window",
        TRADE: f"critical path and {name} work",
    }[kind]
    start_s, option = tuple(fast.start_s.tolist()), tuple(fast.option.tolist())
    return Schedule(start_s, option, upper, min(lower, upper), "list", bound)


def empty_quick(problems: int, operators: int) -> Quick:
    """Return empty result arrays for `problems` problems with `operators` operators in total."""
    lower_s, upper_s, start_s = np.zeros(problems), np.zeros(problems), np.zeros(operators)
    kind, resource = np.zeros(problems, np.int64), np.zeros(problems, np.int64)
    return Quick(lower_s, upper_s, kind, resource, start_s, np.zeros(operators, np.int64))


def quick_of(arrays: Arrays) -> Quick:
    """Return the fast bounds and schedule of a problem's `ScheduleProblem.arrays`."""
    duration, demand, capacity, pred_ptr, pred_idx = arrays
    begins = part_begins(pred_ptr, pred_idx)
    first, ptr = np.zeros(1, np.int64), np.array([0, len(duration)], np.int64)
    problems = Problems(ptr, duration, demand, capacity[None], first, pred_ptr, pred_idx, begins)
    fast = empty_quick(1, len(duration))
    quick_bounds(0, 1, problems, fast)
    return fast


def _solve_part(
    problem: ScheduleProblem, schedule: Schedule, effort: Effort, goal: Goal, stop: StopCheck
) -> Schedule:
    """Reduce the gap of a part that cannot be cut in series."""
    mirror = _reversed(problem)
    arrays = problem.arrays()
    forward, backward = prepare(*arrays), prepare(*mirror.arrays())
    before = ordered(*arrays[3:])
    weight = np.zeros(problem.operators)
    weighted_for = np.inf
    for width in WIDTHS[effort]:
        if goal.met(schedule):
            break
        check_stop(stop)
        if schedule.makespan_s < weighted_for:
            # A shorter schedule rules out more options, which may give stronger weights.
            weighted_for = schedule.makespan_s
            schedule, weight = _weigh(problem, forward, before, schedule, goal)
        # Neither direction of time is better on all graphs; each benefits from the other.
        if not goal.met(schedule):
            schedule = _branch(forward, schedule, weight, goal, width, stop)
        if not goal.met(schedule):
            mirrored = _mirrored(schedule, problem)
            mirrored = _branch(backward, mirrored, weight[::-1].copy(), goal, width, stop)
            schedule = _mirrored(mirrored, mirror)
    return schedule


def _weigh(
    problem: ScheduleProblem, p: Instance, before: Bools, schedule: Schedule, goal: Goal
) -> tuple[Schedule, Floats]:
    """Improve the lower bound by linear programs; return also the weights that prove it."""
    start, option = np.array(schedule.start_s), np.array(schedule.option, dtype=np.int64)
    # Options too slow for a schedule shorter than `cut_s` are removed from p, so the bounds hold
    # for schedules shorter than `cut_s`.
    cut_s = min(schedule.makespan_s, goal.enough_s)
    subsets = solve_subsets(p, before, start, option, cut_s)
    weight = subsets.weight_s
    schedule = _improved(schedule, min(subsets.lower_bound_s, cut_s), "feasible subsets")
    if not subsets.optimal and not goal.met(schedule):
        # Many concurrent operators: too many subsets to enumerate, so use the allotment bound.
        allotment = allotment_bound(p, np.tril(before), names=_resource_names(problem))
        least_s = min(allotment.lower_bound_s, cut_s)
        schedule = _improved(schedule, least_s, f"allotment, {allotment.binding}")
        if allotment.weight_s.sum() > subsets.lower_bound_s:
            weight = allotment.weight_s
    return schedule, weight


def _reversed(problem: ScheduleProblem) -> ScheduleProblem:
    """Return the problem in reversed time, with its operators in reversed order."""
    n = problem.operators
    after: list[list[int]] = [[] for _ in range(n)]
    for j, before in enumerate(problem.predecessors):
        for i in before:
            after[n - 1 - i].append(n - 1 - j)
    return ScheduleProblem(
        duration_s=problem.duration_s[::-1],
        demand=problem.demand[::-1],
        capacity=problem.capacity,
        predecessors=tuple(tuple(sorted(later)) for later in after),
    )


def _mirrored(schedule: Schedule, problem: ScheduleProblem) -> Schedule:
    """Return the schedule of the reversed problem that mirrors a schedule of `problem`."""
    option = np.array(schedule.option)
    end = np.array(schedule.start_s) + problem.duration_s[np.arange(option.size), option]
    start = np.maximum(0.0, schedule.makespan_s - end)
    starts, options = tuple(start[::-1].tolist()), tuple(option[::-1].tolist())
    return replace(schedule, start_s=starts, option=options)


def _branch(
    p: Instance, schedule: Schedule, weight: Floats, goal: Goal, width: int, stop: StopCheck
) -> Schedule:
    """Improve the schedule or its lower bound by one branch and bound of the given width."""
    start, option = np.array(schedule.start_s), np.array(schedule.option, dtype=np.int64)
    halt = np.zeros(1, np.bool_)
    lower, upper, _ = watched(
        lambda: branch(p, weight, goal.to_beat_s(schedule), width, start, option, halt),
        lambda: halt.fill(True),
        stop if width >= LONG_WIDTH else never,
    )
    if upper < schedule.makespan_s:
        starts, options = tuple(start.tolist()), tuple(option.tolist())
        bound, method = schedule.lower_bound_s, "branch and bound"
        schedule = Schedule(starts, options, float(upper), bound, method, schedule.bound)
    return _improved(schedule, float(lower), "branch and bound")


def _improved(schedule: Schedule, lower_bound_s: float, bound: str) -> Schedule:
    if lower_bound_s <= schedule.lower_bound_s:
        return schedule
    return replace(schedule, lower_bound_s=min(lower_bound_s, schedule.makespan_s), bound=bound)


def _resource_names(problem: ScheduleProblem) -> tuple[str, ...]:
    more = range(len(RESOURCES), problem.capacity.size)
    return (*RESOURCES, *(f"resource {r}" for r in more))


def _part(problem: ScheduleProblem, lo: int, hi: int) -> ScheduleProblem:
    """Return operators lo:hi as a separate problem."""
    return ScheduleProblem(
        duration_s=problem.duration_s[lo:hi],
        demand=problem.demand[lo:hi],
        capacity=problem.capacity,
        predecessors=tuple(
            tuple(i - lo for i in before if i >= lo) for before in problem.predecessors[lo:hi]
        ),
    )


def _in_series(parts: list[Schedule]) -> Schedule:
    """Concatenate schedules in time; method and bound are those of the longest part."""
    start: list[float] = []
    option: list[int] = []
    makespan = lower = 0.0
    for part in parts:
        start.extend(makespan + s for s in part.start_s)
        option.extend(part.option)
        makespan += part.makespan_s
        lower += part.lower_bound_s
    longest = max(parts, key=lambda part: part.makespan_s)
    return Schedule(
        tuple(start), tuple(option), makespan, min(lower, makespan), longest.method, longest.bound
    )


def _validate(problem: ScheduleProblem) -> None:
    n, options = problem.duration_s.shape
    if problem.demand.shape != (n, options, problem.capacity.size):
        raise ValueError(
            f"demand has shape {problem.demand.shape}, not (operators, options, resources) = "
            f"{(n, options, problem.capacity.size)}"
        )
    if len(problem.predecessors) != n:
        count = len(problem.predecessors)
        raise ValueError(f"there are predecessors of {count} operators, not {n}")
    for j, before in enumerate(problem.predecessors):
        if any(not 0 <= i < j for i in before):
            raise ValueError(f"the predecessors {before} of operator {j} are not all before it")
    for j in np.flatnonzero(~(problem.duration_s > 0.0).all(axis=1)).tolist():
        raise ValueError(f"operator {j} has an option whose duration is not above 0 s")
