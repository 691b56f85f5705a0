"""Compiled lower bounds and the data they need: useful options, heads, tails, cuts.

Operators are in topological order and edges are CSR arrays. A range `lo:hi` of operators is a
series part of the graph. Loads are shares of a capacity; work is duration * load, in seconds of a
full resource.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from atoll.base.arrays import Bools, Floats, Ints
from atoll.base.jit import entry, kernel

EPSILON = 1e-9
"""Relative slack of a capacity, because sums of bandwidth shares have rounding errors."""

PATH, WORK, WINDOW, TRADE = 0, 1, 2, 3
"""Kinds of lower bound, as `series_bound` reports them."""

TENSOR, SLOT = 0, 4
MIXES = (0.05, 0.12, 0.3)
"""Weighted means of tensor cores and slots that are used as additional resources (share of slots).

Demands that fit two resources fit every weighted mean of them. If few operators can run at once,
each must use many cores to fill the chip and is less efficient; no single resource shows this.
"""


class Instance(NamedTuple):
    """A scheduling problem with derived data for the kernels, built by `instance`."""

    duration: Floats  # (operators, options)
    demand: Floats  # (operators, options, resources)
    capacity: Floats  # (resources,), including the slack
    options: Ints  # (operators, options): useful options, fastest first
    useful: Ints  # (operators,): number of useful options
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
    """Fill `options[j, :useful[j]]` with the options that fit the chip and that no other option
    dominates in time and all demands, from the fastest to the one with the lowest demand.
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
    """Prepare a problem for the kernels; its edges may be a slice of the edges of many problems."""
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
    """Return the same problem in reversed time."""
    return Instance(p.duration, p.demand, p.capacity, p.options, p.useful, p.fastest, p.load,
                    p.work, p.succ_ptr, p.succ_idx, p.pred_ptr, p.pred_idx)  # fmt: skip


@kernel
def least_makespan(
    ops: Ints, fastest: Floats, work: Floats, begins: Bools, pred_ptr: Ints, pred_idx: Ints,
    finish: Floats, total: Floats,
) -> float:  # fmt: skip
    """Return a lower bound on the makespan: the sum over series parts of the longest path or the
    work on one resource. It is weaker and faster than `series_bound`. `ops` has the operators' rows
    in `fastest` and `work`; `finish` and `total` are scratch arrays.
    """
    longest = 0.0
    makespan = 0.0
    for j in range(ops.shape[0]):
        op = ops[j]
        if begins[j]:
            # All earlier operators have ended; later ones wait for them regardless of edges.
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
    """Return the instance of a problem; entry point for Python."""
    p: Instance = instance(duration, demand, capacity, pred_ptr, pred_idx)
    return p


@kernel
def falling(key: Floats, lo: int, hi: int) -> Ints:
    """Return the indices lo:hi sorted by descending key, equal keys by ascending index.

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
    """Fill the longest path before and after each operator of lo:hi; return the longest path."""
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
    """Remove, in place, options that are too slow for a schedule shorter than `cut`.

    Later bounds hold for such schedules, so min(bound, cut) holds for all. Heads and tails use the
    shortest durations; every operator keeps its fastest option.
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
    """Return (seconds, resource) of the largest h + work + t over the sets {head >= h, tail >= t}:
    a set cannot begin before h, and t seconds follow it."""
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
    """Return share * (longest path) + (1 - share) * (work on r), with the best option per operator.

    Path and work both bound the makespan, so any weighted mean does. Options are chosen for the
    mean instead of for each term, which makes the bound stronger (the Lagrangian dual of the
    discrete time-cost trade-off; cf. Lepère, Trystram and Woeginger 2002).
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
    """Return the best fast lower bound of operators lo:hi as (seconds, kind, resource)."""
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
