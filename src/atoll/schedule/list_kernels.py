"""Compiled list schedules: two schedule-generation schemes and a portfolio over their settings.

The parallel scheme advances in time and starts the operators that fit, adapting their options. The
serial scheme places operators one by one in a given order and given options, at the earliest time
that the resource profile allows (Kolisch 1996).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from atoll.base.arrays import Bools, Floats, Ints
from atoll.base.jit import entry, kernel
from atoll.schedule.bound_kernels import (
    Instance,
    falling,
    heads_and_tails,
    instance,
    mirrored,
    restrict,
    series_bound,
)

WAIT, SHARE = 0.0, 1.0
"""Rules by which the parallel scheme chooses an option; see `list_schedule`."""

PORTFOLIO = (
    (4.0, 1.0, 0.0, WAIT),
    (16.0, 0.51, 1.0, SHARE),
    (0.0, 1.0, 1.0, WAIT),
    (32.0, 1.0, 0.0, SHARE),
    (0.0, 1.0, 0.0, SHARE),
    (64.0, 1.0, 1.0, SHARE),
    (64.0, 1.0, 0.0, WAIT),
    (16.0, 1.0, 1.0, WAIT),
)
"""Settings of the portfolio: price of work, largest share of the chip, reversed time, rule.

Chosen greedily from 216 combinations on 392 generated backward passes, best addition first. The
other combinations improve the mean makespan by less than 0.1 %.
"""

HOPELESS = 1.03
"""List schedules longer than this factor times the best are not justified."""

MET = 1e-7
"""Relative distance to the lower bound at which a makespan counts as optimal."""


@kernel
def earliest_fit(
    j: int, o: int, p: Instance, free: Floats, running: Ints, active: int, option: Ints,
    finish: Floats, now: float,
) -> float:  # fmt: skip
    """Return the earliest time at which option o of j fits if nothing else starts before it."""
    demand = p.demand
    when = now
    while True:
        fits = True
        for r in range(free.shape[0]):
            have = free[r]
            for a in range(active):
                i = running[a]
                if finish[i] <= when:
                    have += demand[i, option[i], r]
            if demand[j, o, r] > have:
                fits = False
                break
        if fits:
            return when
        later = np.inf
        for a in range(active):
            end = finish[running[a]]
            if when < end < later:
                later = end
        if later == np.inf:
            return later
        when = later


@kernel
def list_schedule(
    lo: int,
    hi: int,
    p: Instance,
    first: Ints,
    order: Ints,
    rule: float,
    start: Floats,
    option: Ints,
) -> float:
    """Schedule lo:hi by the parallel scheme, in the priority `order`; fill `start` and `option` and
    return the makespan.

    `first[j]` is the fastest option (position in `options[j]`) that the allotment grants. Each rule
    takes the fastest granted option that fits now. WAIT takes none if waiting for `first[j]` ends
    sooner; SHARE grants all options to an operator that is alone on the chip.
    """
    duration, demand, capacity, options, pred_ptr, succ_ptr = (
        p.duration,
        p.demand,
        p.capacity,
        p.options,
        p.pred_ptr,
        p.succ_ptr,
    )
    resources = capacity.shape[0]
    pending = np.zeros(hi, np.int64)
    started = np.zeros(hi, np.int64)
    finish = np.zeros(hi)
    running = np.zeros(hi, np.int64)
    free = np.zeros(resources)
    for r in range(resources):
        free[r] = capacity[r]
    active = int(np.int64(0))  # not a literal: numba would compile callees twice
    ready = 0
    for j in range(lo, hi):
        for e in range(pred_ptr[j], pred_ptr[j + 1]):
            if lo <= p.pred_idx[e] < hi:
                pending[j] += 1
        if pending[j] == 0:
            ready += 1
    now = 0.0
    left = hi - lo
    while left > 0:
        for at in range(hi - lo):
            if ready == 0:
                break
            j = order[at]
            if started[j] > 0 or pending[j] > 0:
                continue
            begin = first[j]
            if rule == SHARE and active == 0 and ready == 1:
                begin = 0
            pick = -1
            for k in range(begin, p.useful[j]):
                fits = True
                for r in range(resources):
                    if demand[j, options[j, k], r] > free[r]:
                        fits = False
                        break
                if fits:
                    pick = k
                    break
            if pick < 0:
                continue
            o = options[j, pick]
            if rule == WAIT and pick > begin:
                granted = options[j, begin]
                when = earliest_fit(j, granted, p, free, running, active, option, finish, now)
                if when + duration[j, granted] < now + duration[j, o]:
                    continue
            started[j] = 1
            ready -= 1
            start[j] = now
            option[j] = o
            finish[j] = now + duration[j, o]
            running[active] = j
            active += 1
            for r in range(resources):
                free[r] -= demand[j, o, r]
        now = np.inf
        for a in range(active):
            now = min(now, finish[running[a]])
        still = 0
        for a in range(active):
            j = running[a]
            if finish[j] > now:
                running[still] = j
                still += 1
                continue
            left -= 1
            for r in range(resources):
                free[r] += demand[j, option[j], r]
            for e in range(succ_ptr[j], succ_ptr[j + 1]):
                i = p.succ_idx[e]
                if lo <= i < hi:
                    pending[i] -= 1
                    if pending[i] == 0:
                        ready += 1
        active = still
    return now


@kernel
def split_profile(times: Floats, use: Floats, points: int, at: int, t: float) -> int:
    """Insert the time t as point `at` of the profile; return the new number of points."""
    for m in range(points, at - 1, -1):
        times[m + 1] = times[m]
        for r in range(use.shape[1]):
            use[m, r] = use[m - 1, r]
    times[at] = t
    return points + 1


@kernel
def serial_schedule(
    lo: int, hi: int, p: Instance, order: Ints, option: Ints, start: Floats, times: Floats,
    use: Floats,
) -> float:  # fmt: skip
    """Schedule lo:hi by the serial scheme in a precedence-feasible `order` and the given options;
    fill `start` and return the makespan.

    `times` and `use` are scratch arrays for the profile with 2 (hi - lo) + 3 rows: `use[k]` applies
    from `times[k]` to `times[k + 1]`, and the last interval is always empty.
    """
    duration, demand, capacity, pred_ptr = p.duration, p.demand, p.capacity, p.pred_ptr
    resources = capacity.shape[0]
    points = int(np.int64(1))  # not a literal, as above
    times[0] = 0.0
    times[1] = np.inf
    for r in range(resources):
        use[0, r] = 0.0
    makespan = 0.0
    for at in range(hi - lo):
        j = order[at]
        o = option[j]
        d = duration[j, o]
        t = 0.0
        for e in range(pred_ptr[j], pred_ptr[j + 1]):
            i = p.pred_idx[e]
            if lo <= i < hi:
                t = max(t, start[i] + duration[i, option[i]])
        k = points - 1
        while times[k] > t:
            k -= 1
        begin = k
        while k < points and times[k] < t + d:
            for r in range(resources):
                if use[k, r] + demand[j, o, r] > capacity[r]:
                    begin = k + 1
                    t = times[begin]
                    break
            k += 1
        end = t + d
        start[j] = t
        makespan = max(makespan, end)
        if times[begin] < t:
            begin += 1
            points = split_profile(times, use, points, begin, t)
        k = begin
        while times[k] < end:
            k += 1
        if times[k] > end:
            points = split_profile(times, use, points, k, end)
        for m in range(begin, k):
            for r in range(resources):
                use[m, r] += demand[j, o, r]
    return makespan


@kernel
def justify(lo: int, hi: int, p: Instance, start: Floats, option: Ints) -> float:
    """Shift all operators as late, then as early as possible, in the same options (double
    justification, Valls et al. 2005): never longer, often shorter. Return the makespan."""
    m = hi - lo
    times = np.zeros(2 * m + 3)
    use = np.zeros((2 * m + 3, p.capacity.shape[0]))
    late = np.zeros(hi)
    key = np.zeros(hi)
    # In reversed time the last end comes first; equal ends (zero durations) by descending index.
    for j in range(lo, hi):
        key[hi - 1 - j + lo] = start[j] + p.duration[j, option[j]]
    order = falling(key, lo, hi)
    for at in range(m):
        order[at] = hi - 1 - order[at] + lo
    serial_schedule(lo, hi, mirrored(p), order, option, late, times, use)
    for j in range(lo, hi):
        key[j] = late[j] + p.duration[j, option[j]]
    makespan: float = serial_schedule(lo, hi, p, falling(key, lo, hi), option, start, times, use)
    return makespan


@kernel
def grant_options(lo: int, hi: int, p: Instance, theta: float, widest: float, first: Ints) -> None:
    """Fill `first` with the option that minimizes duration + theta * work among those that use at
    most the share `widest` of each resource (the one with the lowest demand if none does)."""
    for j in range(lo, hi):
        best = np.inf
        first[j] = p.useful[j] - 1
        for k in range(p.useful[j]):
            o = p.options[j, k]
            share = 0.0
            for r in range(p.load.shape[2]):
                share = max(share, p.load[j, o, r])
            value = p.duration[j, o] * (1.0 + theta * share)
            if share <= widest and value < best:
                best = value
                first[j] = k


@kernel
def portfolio(
    lo: int, hi: int, p: Instance, lower: float, best_start: Floats, best_option: Ints
) -> float:
    """Fill the best of a fixed set of list schedules of lo:hi; return its makespan. Stop as soon as
    the makespan reaches `lower`."""
    first = np.zeros(hi, np.int64)
    length = np.zeros(hi)
    head = np.zeros(hi)
    tail = np.zeros(hi)
    start = np.zeros(hi)
    option = np.zeros(hi, np.int64)
    best = np.inf
    for member in range(len(PORTFOLIO)):
        theta, widest, backward, rule = PORTFOLIO[member]
        q = mirrored(p) if backward > 0.0 else p
        grant_options(lo, hi, p, theta, widest, first)
        for j in range(lo, hi):
            length[j] = p.duration[j, p.options[j, first[j]]]
        heads_and_tails(lo, hi, length, p.pred_ptr, p.pred_idx, head, tail)
        for j in range(lo, hi):
            length[j] += head[j] if backward > 0.0 else tail[j]
        value = list_schedule(lo, hi, q, first, falling(length, lo, hi), rule, start, option)
        if value > HOPELESS * best:
            continue
        if backward > 0.0:
            for j in range(lo, hi):
                start[j] = value - start[j] - p.duration[j, option[j]]
        value = justify(lo, hi, p, start, option)
        if value < best:
            best = value
            for j in range(lo, hi):
                best_start[j] = start[j]
                best_option[j] = option[j]
            if best <= lower * (1.0 + MET):
                break
    return best


class Problems(NamedTuple):
    """Concatenated scheduling problems; see `ScheduleProblem`."""

    ptr: Ints  # (problems + 1,): operators of problem i are ptr[i] .. ptr[i + 1] - 1
    duration: Floats  # (operators, options)
    demand: Floats  # (operators, options, resources)
    capacity: Floats  # (problems, resources)
    first: Ints  # (problems,): index of a problem's first operator in the graphs
    pred_ptr: Ints  # edges in CSR form, numbered within a problem; problems may share a graph
    pred_idx: Ints
    begins: Bools  # whether an operator of the graphs begins a series part


class Quick(NamedTuple):
    """Results of `quick_bounds`."""

    lower_s: Floats  # (problems,)
    upper_s: Floats  # (problems,): the makespan
    kind: Ints  # (problems,): kind of bound of the longest part
    resource: Ints  # (problems,): resource of that bound
    start_s: Floats  # (operators,)
    option: Ints  # (operators,)


@entry
def quick_bounds(first: int, last: int, problems: Problems, quick: Quick) -> None:
    """Fill the fast lower bound and the portfolio schedule of problems first..last-1, computed per
    series part. Both times are infinite if an operator has no option that fits the chip.
    """
    for i in range(first, last):
        first_operator = problems.ptr[i]
        n = problems.ptr[i + 1] - first_operator
        graph = problems.first[i]
        p = instance(
            problems.duration[first_operator : first_operator + n],
            problems.demand[first_operator : first_operator + n],
            problems.capacity[i],
            problems.pred_ptr[graph : graph + n + 1],
            problems.pred_idx,
        )
        start = quick.start_s[first_operator : first_operator + n]
        option = quick.option[first_operator : first_operator + n]
        head = np.zeros(n)
        tail = np.zeros(n)
        lower = 0.0
        upper = 0.0
        longest = -1.0
        kind = 0
        resource = 0
        for j in range(n):
            if p.useful[j] == 0:
                upper = np.inf
        hi = n if upper == np.inf else 0
        while hi < n:
            lo = hi
            hi += 1
            while hi < n and not problems.begins[graph + hi]:
                hi += 1
            bound, what, r = series_bound(lo, hi, p, head, tail)
            if bound > longest:
                longest, kind, resource = bound, what, r
            if hi - lo == 1:
                option[lo] = p.options[lo, 0]
                value = bound
            else:
                value = portfolio(lo, hi, p, bound, start, option)
                if value > bound * (1.0 + MET):
                    restrict(lo, hi, p, value, head, tail)
                    again, what, r = series_bound(lo, hi, p, head, tail)
                    if again > bound:
                        bound = again
                        if longest <= bound:
                            longest, kind, resource = bound, what, r
            for j in range(lo, hi):
                start[j] += upper
            lower += min(bound, value)
            upper += value
        quick.lower_s[i] = np.inf if upper == np.inf else lower
        quick.upper_s[i] = upper
        quick.kind[i] = kind
        quick.resource[i] = resource
