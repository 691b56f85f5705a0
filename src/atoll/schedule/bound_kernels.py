"""Compiled lower bounds and the structure they rest on: options worth having, heads, tails, cuts.

Operators are in topological order and edges come as CSR arrays. A range `lo:hi` of operators
stands for a series part of the graph. Loads are shares of a capacity, and work is in seconds of a
whole resource: duration x load.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.base.jit import entry, kernel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

EPSILON = 1e-9
"""Relative slack of a capacity: shares of a bandwidth are fractions that add up inexactly."""

PATH, WORK, WINDOW, TRADE = 0, 1, 2, 3
"""Kinds of lower bound, as `series_bound` reports them."""

TENSOR, SLOT = 0, 4
MIXES = (0.05, 0.12, 0.3)
"""Blends of tensor cores and slots, by the share of slots, that count as resources of their own.

What fits two resources fits every weighted mean of them. Where few operators may run at once, one
must be wide to fill the chip, at the cost of some efficiency: neither resource alone shows that.
"""


class Instance(NamedTuple):
    """A schedule problem with what every kernel needs of it, built by `instance`."""

    duration: Floats  # (operators, options)
    demand: Floats  # (operators, options, resources)
    capacity: Floats  # (resources,), the slack included
    options: Ints  # (operators, options): the useful ones, the fastest first
    useful: Ints  # (operators,): how many of those
    fastest: Floats  # (operators,): shortest duration
    load: Floats  # (operators, options, resources and mixes)
    work: Floats  # (operators, resources and mixes): least work over the options
    pred_ptr: Ints
    pred_idx: Ints
    succ_ptr: Ints
    succ_idx: Ints


@kernel
def useful_options(
    duration: Floats, demand: Floats, capacity: Floats, options: Ints, useful: Ints
) -> None:
    """Options that fit the chip and that no other one beats in time and in every demand.

    Fills `options[j, :useful[j]]` from the fastest to the leanest.
    """
    resources = capacity.shape[0]
    for j in range(duration.shape[0]):
        count = 0
        for o in range(duration.shape[1]):
            d = duration[j, o]
            fits = d < np.inf
            for r in range(resources):
                fits = fits and demand[j, o, r] <= capacity[r]
            if not fits:
                continue
            at = count
            while at > 0 and duration[j, options[j, at - 1]] > d:
                options[j, at] = options[j, at - 1]
                at -= 1
            options[j, at] = o
            count += 1
        kept = 0
        for k in range(count):
            o = options[j, k]
            beaten = False
            for m in range(kept):
                option = options[j, m]
                beaten = True
                for r in range(resources):
                    if demand[j, option, r] > demand[j, o, r]:
                        beaten = False
                        break
                if beaten:
                    break
            if not beaten:
                options[j, kept] = o
                kept += 1
        useful[j] = kept


@kernel
def instance(
    duration: Floats, demand: Floats, capacity: Floats, pred_ptr: Ints, pred_idx: Ints
) -> Instance:
    """Prepare a problem for the kernels. The edges may be a part of those of many problems."""
    n, width = duration.shape
    resources = capacity.shape[0]
    mixes = len(MIXES) if resources > SLOT else 0
    slack = np.zeros(resources)
    for r in range(resources):
        slack[r] = capacity[r] * (1.0 + EPSILON)
    options = np.zeros((n, width), np.int64)
    useful = np.zeros(n, np.int64)
    useful_options(duration, demand, slack, options, useful)
    fastest = np.zeros(n)
    load = np.zeros((n, width, resources + mixes))
    work = np.zeros((n, resources + mixes))
    for j in range(n):
        fastest[j] = duration[j, options[j, 0]] if useful[j] > 0 else np.inf
        for k in range(useful[j]):
            o = options[j, k]
            for r in range(resources):
                if demand[j, o, r] > 0.0:
                    load[j, o, r] = demand[j, o, r] / slack[r]
            for m in range(mixes):
                part = MIXES[m]
                load[j, o, resources + m] = (1.0 - part) * load[j, o, TENSOR] + part * load[
                    j, o, SLOT
                ]
            for r in range(resources + mixes):
                least = duration[j, o] * load[j, o, r]
                work[j, r] = least if k == 0 else min(work[j, r], least)
    succ_ptr = np.zeros(n + 1, np.int64)
    for e in range(pred_ptr[0], pred_ptr[n]):
        succ_ptr[pred_idx[e] + 1] += 1
    for i in range(n):
        succ_ptr[i + 1] += succ_ptr[i]
    filled = np.zeros(n, np.int64)
    succ_idx = np.zeros(pred_ptr[n] - pred_ptr[0], np.int64)
    for j in range(n):
        for e in range(pred_ptr[j], pred_ptr[j + 1]):
            i = pred_idx[e]
            succ_idx[succ_ptr[i] + filled[i]] = j
            filled[i] += 1
    return Instance(duration, demand, slack, options, useful, fastest, load, work, pred_ptr,
                    pred_idx, succ_ptr, succ_idx)  # fmt: skip


@kernel
def mirrored(p: Instance) -> Instance:
    """The same problem in reversed time."""
    return Instance(p.duration, p.demand, p.capacity, p.options, p.useful, p.fastest, p.load,
                    p.work, p.succ_ptr, p.succ_idx, p.pred_ptr, p.pred_idx)  # fmt: skip


@kernel
def least_makespan(
    ops: Ints, fastest: Floats, work: Floats, begins: Bools, pred_ptr: Ints, pred_idx: Ints,
    finish: Floats, total: Floats,
) -> float:  # fmt: skip
    """No more than `series_bound` of all series parts, at a fraction of its cost: of each part the
    longest path and the work on every resource. `ops` are the operators' rows in `fastest` and
    `work`; the last two arrays are room to work in.
    """
    longest = 0.0
    makespan = 0.0
    for j in range(ops.shape[0]):
        op = ops[j]
        if begins[j]:
            # Everything before has ended: later operators wait for it, whatever their edges.
            makespan += longest
            longest = 0.0
            for r in range(total.shape[0]):
                total[r] = 0.0
        ready = makespan
        for e in range(pred_ptr[j], pred_ptr[j + 1]):
            ready = max(ready, finish[pred_idx[e]])
        finish[j] = ready + fastest[op]
        longest = max(longest, finish[j] - makespan)
        for r in range(total.shape[0]):
            total[r] += work[op, r]
            longest = max(longest, total[r])
    return makespan + longest


@entry
def prepare(
    duration: Floats, demand: Floats, capacity: Floats, pred_ptr: Ints, pred_idx: Ints
) -> Instance:
    """A problem as the kernels take it."""
    p: Instance = instance(duration, demand, capacity, pred_ptr, pred_idx)
    return p


@kernel
def falling(key: Floats, lo: int, hi: int) -> Ints:
    """Indices lo:hi from the largest key to the smallest, equal ones in order of index.

    Insertion sort: the arrays are short, and numba's own sort takes seconds to compile.
    """
    order = np.zeros(hi - lo, np.int64)
    for j in range(lo, hi):
        at = j - lo
        while at > 0 and key[order[at - 1]] < key[j]:
            order[at] = order[at - 1]
            at -= 1
        order[at] = j
    return order


@kernel
def heads_and_tails(
    lo: int, hi: int, length: Floats, pred_ptr: Ints, pred_idx: Ints, head: Floats, tail: Floats
) -> float:
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
def restrict(lo: int, hi: int, p: Instance, cut: float, head: Floats, tail: Floats) -> None:
    """Drop, in place, options too slow for a schedule shorter than `cut`.

    Bounds that follow hold for such schedules, so their minimum with `cut` holds for all. Heads and
    tails are those of the shortest durations; every operator keeps its fastest option.
    """
    duration, options, useful, work = p.duration, p.options, p.useful, p.work
    for j in range(lo, hi):
        around = head[j] + tail[j]
        while useful[j] > 1 and around + duration[j, options[j, useful[j] - 1]] >= cut:
            useful[j] -= 1
        for r in range(work.shape[1]):
            work[j, r] = np.inf
            for k in range(useful[j]):
                o = options[j, k]
                work[j, r] = min(work[j, r], duration[j, o] * p.load[j, o, r])


@kernel
def window_bound(lo: int, hi: int, head: Floats, tail: Floats, work: Floats) -> tuple[float, int]:
    """Largest head + work + tail over the sets {head >= h, tail >= t}: one resource serves a set
    that cannot begin before h and is followed by t. Returns (seconds, resource)."""
    by_tail = falling(tail, lo, hi)
    best = 0.0
    resource = 0
    total = np.zeros(work.shape[1])
    for a in range(lo, hi):
        h = head[a]
        for r in range(work.shape[1]):
            total[r] = 0.0
        for at in range(hi - lo):
            j = by_tail[at]
            if head[j] < h:
                continue
            for r in range(work.shape[1]):
                total[r] += work[j, r]
                value = h + total[r] + tail[j]
                if value > best:
                    best = value
                    resource = r
    return best, resource


@kernel
def trade_bound(lo: int, hi: int, r: int, share: float, p: Instance, finish: Floats) -> float:
    """share x (a path) + (1 - share) x (work on r), each operator choosing its best option.

    Both the path and the work bound the makespan, hence so does any mean of the two; choosing
    options for the mean, instead of for each alone, is what makes it stronger (the Lagrangian
    dual of the discrete time-cost trade-off; cf. Lepère, Trystram and Woeginger 2002).
    """
    pred_ptr = p.pred_ptr
    longest = 0.0
    total = 0.0
    for j in range(lo, hi):
        rest = (1.0 - share) * p.work[j, r]
        total += rest
        mean = np.inf
        for k in range(p.useful[j]):
            o = p.options[j, k]
            mean = min(mean, p.duration[j, o] * (share + (1.0 - share) * p.load[j, o, r]))
        ready = 0.0
        for e in range(pred_ptr[j], pred_ptr[j + 1]):
            i = p.pred_idx[e]
            if i >= lo:
                ready = max(ready, finish[i])
        finish[j] = ready + mean - rest
        longest = max(longest, finish[j])
    return longest + total


@kernel
def series_bound(
    lo: int, hi: int, p: Instance, head: Floats, tail: Floats
) -> tuple[float, int, int]:
    """Best cheap lower bound of operators lo:hi: (seconds, kind, resource)."""
    best = heads_and_tails(lo, hi, p.fastest, p.pred_ptr, p.pred_idx, head, tail)
    kind = PATH
    resource = 0
    if hi - lo == 1:
        return best, kind, resource
    value, r = window_bound(lo, hi, head, tail, p.work)
    if value > best * (1.0 + 1e-12):
        best, kind, resource = value, WINDOW, r
    finish = np.zeros(hi)
    for r in range(p.work.shape[1]):
        total = 0.0
        for j in range(lo, hi):
            total += p.work[j, r]
        if total >= best * (1.0 - 1e-12):
            best, kind, resource = total, WORK, r
        if total < 0.5 * best:
            continue
        for step in range(1, 4):
            value = trade_bound(lo, hi, r, step / 4.0, p, finish)
            if value > best * (1.0 + 1e-12):
                best, kind, resource = value, TRADE, r
    return best, kind, resource
