"""Compiled lower bounds and the structure they rest on: options worth having, heads, tails, cuts.

Operators are in topological order and edges come as CSR arrays. A range `lo:hi` of operators
stands for a series part of the graph. Work is always counted in seconds of a whole resource:
duration x demand / capacity.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.schedule.jit import kernel

EPSILON = 1e-9
"""Relative slack of a capacity: shares of a bandwidth are fractions that add up inexactly."""

PATH, WORK, WINDOW, TRADE = 0, 1, 2, 3
"""Kinds of lower bound, as `series_bound` reports them."""


class Instance(NamedTuple):
    """A schedule problem with what every kernel needs of it, built by `instance`."""

    duration: NDArray[np.float64]  # (operators, options)
    demand: NDArray[np.float64]  # (operators, options, resources)
    capacity: NDArray[np.float64]  # (resources,), the slack included
    options: NDArray[np.int64]  # (operators, options): the useful ones, the fastest first
    count: NDArray[np.int64]  # (operators,): how many of those
    fastest: NDArray[np.float64]  # (operators,): shortest duration
    work: NDArray[np.float64]  # (operators, resources): least work over the options
    pred_ptr: NDArray[np.int64]
    pred_idx: NDArray[np.int64]
    succ_ptr: NDArray[np.int64]
    succ_idx: NDArray[np.int64]


@kernel
def useful_options(duration, demand, capacity):
    """Options that fit the chip and that no other one beats in time and in every demand.

    Returns (options, count): `options[j, :count[j]]` from the fastest to the leanest.
    """
    n, width = duration.shape
    resources = capacity.shape[0]
    options = np.zeros((n, width), np.int64)
    count = np.zeros(n, np.int64)
    for j in range(n):
        found = 0
        for o in range(width):
            d = duration[j, o]
            fits = d < np.inf
            for r in range(resources):
                fits = fits and demand[j, o, r] <= capacity[r]
            if not fits:
                continue
            at = found
            while at > 0 and duration[j, options[j, at - 1]] > d:
                options[j, at] = options[j, at - 1]
                at -= 1
            options[j, at] = o
            found += 1
        kept = 0
        for k in range(found):
            o = options[j, k]
            beaten = False
            for m in range(kept):
                other = options[j, m]
                beaten = True
                for r in range(resources):
                    if demand[j, other, r] > demand[j, o, r]:
                        beaten = False
                        break
                if beaten:
                    break
            if not beaten:
                options[j, kept] = o
                kept += 1
        count[j] = kept
    return options, count


@kernel
def instance(duration, demand, capacity, pred_ptr, pred_idx):
    """Prepare a problem for the kernels."""
    n = duration.shape[0]
    resources = capacity.shape[0]
    slack = np.empty(resources)
    for r in range(resources):
        slack[r] = capacity[r] * (1.0 + EPSILON)
    options, count = useful_options(duration, demand, slack)
    fastest = np.empty(n)
    work = np.zeros((n, resources))
    for j in range(n):
        fastest[j] = duration[j, options[j, 0]] if count[j] > 0 else np.inf
        for r in range(resources):
            least = np.inf
            for k in range(count[j]):
                o = options[j, k]
                least = min(least, duration[j, o] * demand[j, o, r])
            if 0.0 < least < np.inf:
                work[j, r] = least / slack[r]
    succ_ptr = np.zeros(n + 1, np.int64)
    for e in range(pred_ptr[n]):
        succ_ptr[pred_idx[e] + 1] += 1
    for i in range(n):
        succ_ptr[i + 1] += succ_ptr[i]
    filled = np.zeros(n, np.int64)
    succ_idx = np.zeros(pred_ptr[n], np.int64)
    for j in range(n):
        for e in range(pred_ptr[j], pred_ptr[j + 1]):
            i = pred_idx[e]
            succ_idx[succ_ptr[i] + filled[i]] = j
            filled[i] += 1
    return Instance(duration, demand, slack, options, count, fastest, work, pred_ptr, pred_idx,
                    succ_ptr, succ_idx)  # fmt: skip


@kernel
def mirrored(p):
    """The same problem in reversed time."""
    return Instance(p.duration, p.demand, p.capacity, p.options, p.count, p.fastest, p.work,
                    p.succ_ptr, p.succ_idx, p.pred_ptr, p.pred_idx)  # fmt: skip


@kernel
def ancestors(n, pred_ptr, pred_idx):
    """before[j, i]: operator i must finish before j starts."""
    before = np.zeros((n, n), np.bool_)
    for j in range(n):
        for e in range(pred_ptr[j], pred_ptr[j + 1]):
            i = pred_idx[e]
            before[j, i] = True
            for k in range(i):
                before[j, k] |= before[i, k]
    return before


@kernel
def series_cuts(before):
    """Positions where everything earlier precedes everything later: the makespans there add up.

    A part of the graph that is wholly before the rest is a prefix of every topological order, so
    that it is enough to look at the prefixes of the given one. 0 and n are included.
    """
    n = before.shape[0]
    lowest = np.zeros(n + 1, np.int64)  # operators 0 .. lowest[k]-1 precede all of k, k+1, ...
    lowest[n] = n
    for j in range(n - 1, -1, -1):
        reach = 0
        while reach < j and before[j, reach]:
            reach += 1
        lowest[j] = min(reach, lowest[j + 1])
    cuts = np.zeros(n + 1, np.int64)
    found = 1
    for k in range(1, n + 1):
        if lowest[k] >= k:
            cuts[found] = k
            found += 1
    return cuts[:found]


@kernel
def heads_and_tails(lo, hi, length, pred_ptr, pred_idx, head, tail):
    """Longest path before and after each operator of lo:hi. Returns the longest path of all."""
    longest = 0.0
    for j in range(lo, hi):
        head[j] = 0.0
        tail[j] = 0.0
    for j in range(lo, hi):
        for e in range(pred_ptr[j], pred_ptr[j + 1]):
            i = pred_idx[e]
            if i >= lo:
                head[j] = max(head[j], head[i] + length[i])
        longest = max(longest, head[j] + length[j])
    for j in range(hi - 1, lo - 1, -1):
        for e in range(pred_ptr[j], pred_ptr[j + 1]):
            i = pred_idx[e]
            if i >= lo:
                tail[i] = max(tail[i], tail[j] + length[j])
    return longest


@kernel
def falling(key, lo, hi):
    """Indices lo:hi from the largest key to the smallest, equal ones in order of index.

    Insertion sort: the arrays are short, and numba's own sort takes seconds to compile.
    """
    order = np.empty(hi - lo, np.int64)
    for j in range(lo, hi):
        at = j - lo
        while at > 0 and key[order[at - 1]] < key[j]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = j
    return order


@kernel
def window_bound(lo, hi, head, tail, work):
    """Largest head + work + tail over the sets {head >= h, tail >= t}: one resource serves a set
    that cannot begin before h and is followed by t. Returns (seconds, resource)."""
    resources = work.shape[1]
    by_tail = falling(tail, lo, hi)
    best = 0.0
    resource = 0
    total = np.zeros(resources)
    for a in range(lo, hi):
        h = head[a]
        for r in range(resources):
            total[r] = 0.0
        for at in range(hi - lo):
            j = by_tail[at]
            if head[j] < h:
                continue
            for r in range(resources):
                total[r] += work[j, r]
                value = h + total[r] + tail[j]
                if value > best:
                    best = value
                    resource = r
    return best, resource


@kernel
def trade_bound(lo, hi, r, share, p, finish):
    """share x (a path) + (1 - share) x (work on r), each operator choosing its best option.

    Both the path and the work bound the makespan, hence so does any mean of the two; choosing
    options for the mean, instead of for each alone, is what makes it stronger (the Lagrangian
    dual of the discrete time-cost trade-off; cf. Lepère, Trystram and Woeginger 2002).
    """
    duration = p.duration
    demand = p.demand
    capacity = p.capacity
    options = p.options
    count = p.count
    work = p.work
    pred_ptr = p.pred_ptr
    pred_idx = p.pred_idx
    longest = 0.0
    total = 0.0
    for j in range(lo, hi):
        rest = (1.0 - share) * work[j, r]
        total += rest
        mean = np.inf
        for k in range(count[j]):
            o = options[j, k]
            used = demand[j, o, r] / capacity[r]
            mean = min(mean, duration[j, o] * (share + (1.0 - share) * used))
        ready = 0.0
        for e in range(pred_ptr[j], pred_ptr[j + 1]):
            i = pred_idx[e]
            if i >= lo:
                ready = max(ready, finish[i])
        finish[j] = ready + mean - rest
        longest = max(longest, finish[j])
    return longest + total


@kernel
def series_bound(lo, hi, p, head, tail):
    """Best cheap lower bound of operators lo:hi: (seconds, kind, resource)."""
    capacity = p.capacity
    fastest = p.fastest
    work = p.work
    pred_ptr = p.pred_ptr
    pred_idx = p.pred_idx
    best = heads_and_tails(lo, hi, fastest, pred_ptr, pred_idx, head, tail)
    kind = PATH
    resource = 0
    if hi - lo == 1:
        return best, kind, resource
    value, r = window_bound(lo, hi, head, tail, work)
    if value > best * (1.0 + 1e-12):
        best, kind, resource = value, WINDOW, r
    finish = np.empty(hi)
    for r in range(capacity.shape[0]):
        total = 0.0
        for j in range(lo, hi):
            total += work[j, r]
        if total >= best * (1.0 - 1e-12):
            best, kind, resource = total, WORK, r
        if total < 0.25 * best:
            continue
        for step in range(1, 8):
            value = trade_bound(lo, hi, r, step / 8.0, p, finish)
            if value > best * (1.0 + 1e-12):
                best, kind, resource = value, TRADE, r
    return best, kind, resource
