"""Branch and bound forward in time, guided by the weights of the feasible-subset bound.

A node is a partial schedule: the started operators, the time `now` of the last start, and the
running operators with their ends. A child starts one more operator in one option, at the earliest
time (now or when an operator ends) at which it is ready and fits. This is sufficient, because any
later start could be shifted there. The makespan of a node is at least

    now + weights of operators not started + remaining weights of running operators,

because no set of operators earns more than one second per second. The bound grows by the time that
a poor set wastes, and the small waste that an incumbent allows leaves few nodes.

All nodes of a level have started the same number of operators. A node is dominated, and removed, if
another has started the same operators, has no later `now`, and everything it still runs also runs
in the first node, no shorter and with no lower demand. A level keeps the `width` most promising
nodes; the bounds of the others enter the returned lower bound. The result is therefore a proof for
any width, and the optimum if no node was left out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import Bools, Floats, Ints
from atoll.base.jit import entry, kernel
from atoll.schedule.bound_kernels import Instance, heads_and_tails

BINS = 2048
"""Number of bins by which nodes of a level are ranked by their bounds."""

MOST_RUNNING = 16
"""Most concurrent operators in a node; nodes with more count as left out."""


Numbers = NDArray[np.int32]
"""Indices of nodes, operators and options, as 32-bit integers to save memory."""


class Level(NamedTuple):
    """Nodes that have started the same number of operators."""

    started: Bools  # (width, operators)
    now: Floats
    latest: Floats  # latest end of any started operator
    running: Ints  # number of running operators
    operator: Numbers  # (width, most running), by end
    option: Numbers
    end: Floats


class Children(NamedTuple):
    """Candidates for the next level: parent, operator, option, start time and bound."""

    parent: Numbers
    operator: Numbers
    option: Numbers
    start: Floats
    bound: Floats
    following: Numbers  # next candidate in the same bin


class VisitedNodes(NamedTuple):
    """Hash table of the nodes of a level by their started operators."""

    code: Ints
    following: Numbers  # next node in the same bucket; -1 after the last


@kernel
def empty_level(width: int, operators: int, most: int) -> Level:
    return Level(
        np.zeros((width, operators), np.bool_), np.zeros(width), np.zeros(width),
        np.zeros(width, np.int64), np.zeros((width, most), np.int32),
        np.zeros((width, most), np.int32), np.zeros((width, most)),
    )  # fmt: skip


@kernel
def expand(
    v: int, p: Instance, weight: Floats, tail: Floats, cut: float, level: Level,
    children: Children, number: int, busy: Bools, tried: Bools, free: Floats,
) -> tuple[int, float]:  # fmt: skip
    """Append the children of node v whose bound is below `cut`.

    Return (new number of children, lowest bound of the children that did not fit in the array).
    """
    duration, demand, options, useful = p.duration, p.demand, p.options, p.useful
    pred_ptr, pred_idx = p.pred_ptr, p.pred_idx
    n = duration.shape[0]
    resources = free.shape[0]
    capacity = children.parent.shape[0]
    started, running = level.started[v], level.running[v]
    operator, option, end = level.operator[v], level.option[v], level.end[v]
    lost = np.inf
    waiting = 0.0  # total weight, and longest path, of operators not started
    path = 0.0
    for j in range(n):
        if not started[j]:
            waiting += weight[j]
            path = max(path, p.fastest[j] + tail[j])
            for c in range(useful[j]):
                tried[j, c] = False
    for r in range(resources):
        free[r] = p.capacity[r]
    ends = level.latest[v]
    for x in range(running):
        j = operator[x]
        busy[j] = True
        ends = max(ends, end[x] + tail[j])
        for r in range(resources):
            free[r] -= demand[j, option[x], r]
    ended = 0
    now = level.now[v]
    while True:
        bound = now + waiting
        for x in range(ended, running):
            j = operator[x]
            bound += weight[j] * (end[x] - now) / duration[j, option[x]]
        bound = max(bound, max(ends, now + path))
        if bound >= cut:
            break
        for j in range(n):
            if started[j]:
                continue
            ready = True
            for e in range(pred_ptr[j], pred_ptr[j + 1]):
                i = pred_idx[e]
                if busy[i] or not started[i]:
                    ready = False
                    break
            if not ready:
                continue
            for c in range(useful[j]):
                if tried[j, c]:
                    continue
                o = options[j, c]
                fits = True
                for r in range(resources):
                    if demand[j, o, r] > free[r]:
                        fits = False
                        break
                if not fits:
                    continue
                tried[j, c] = True
                value = max(bound, now + duration[j, o] + tail[j])
                if value >= cut:
                    continue
                if number >= capacity or running - ended >= end.shape[0]:
                    lost = min(lost, value)
                    continue
                children.parent[number] = v
                children.operator[number] = j
                children.option[number] = o
                children.start[number] = now
                children.bound[number] = value
                number += 1
        if ended >= running:
            break
        now = end[ended]
        while ended < running and end[ended] <= now:
            j = operator[ended]
            busy[j] = False
            for r in range(resources):
                free[r] += demand[j, option[ended], r]
            ended += 1
    for x in range(running):
        busy[operator[x]] = False
    return number, lost


@kernel
def start_child(c: int, p: Instance, children: Children, level: Level, m: int, below: Level) -> int:
    """Write child c as node m of the next level; return a hash of started and running sets."""
    v = children.parent[c]
    j = children.operator[c]
    o = children.option[c]
    now = children.start[c]
    end = now + p.duration[j, o]
    code = 0
    for i in range(level.started.shape[1]):
        below.started[m, i] = level.started[v, i]
    below.started[m, j] = True
    size = 0
    placed = False
    for x in range(level.running[v]):
        if level.end[v, x] <= now:
            continue
        if not placed and end < level.end[v, x]:
            below.operator[m, size], below.option[m, size], below.end[m, size] = j, o, end
            placed = True
            size += 1
        below.operator[m, size] = level.operator[v, x]
        below.option[m, size] = level.option[v, x]
        below.end[m, size] = level.end[v, x]
        size += 1
    if not placed:
        below.operator[m, size], below.option[m, size], below.end[m, size] = j, o, end
        size += 1
    below.running[m] = size
    below.now[m] = now
    below.latest[m] = max(level.latest[v], end)
    # Any function of the two sets that is independent of order works.
    for i in range(level.started.shape[1]):
        if below.started[m, i]:
            code += (i + 1) * 2654435761 + ((i + 3) * (i + 3) * 40503 << 13)
    code ^= code >> 17
    return code & 0x7FFFFFFFFFFFFFFF


@kernel
def dominated(
    m: int, code: int, first: int, visited: VisitedNodes, level: Level, demand: Floats,
    until: Floats, chosen: Ints,
) -> bool:  # fmt: skip
    """Return whether a node in the chain from `first` dominates node m: it has started the same
    operators, and everything it still runs at m's `now` also runs in m, no shorter and with no
    lower demand.

    `until` and `chosen` are scratch arrays (ends and options of m's operators), zero before and
    after the call.
    """
    # One call per chain, with local array names: each call counts references to all arrays.
    nows, latests, runnings, started = level.now, level.latest, level.running, level.started
    operators, options, ends = level.operator, level.option, level.end
    codes, chain = visited.code, visited.following
    now, latest, size = nows[m], latests[m], runnings[m]
    for x in range(size):
        until[operators[m, x]] = ends[m, x]
        chosen[operators[m, x]] = options[m, x]
    is_dominated = False
    node = first
    while node >= 0 and not is_dominated:
        is_dominated = codes[node] == code and nows[node] <= now and latests[node] <= latest
        z = runnings[node] - 1
        while is_dominated and z >= 0 and ends[node, z] > now:
            j = operators[node, z]
            o = options[node, z]
            is_dominated = ends[node, z] <= until[j]
            if is_dominated and o != chosen[j]:
                for r in range(demand.shape[2]):
                    is_dominated = is_dominated and demand[j, o, r] <= demand[j, chosen[j], r]
            z -= 1
        if is_dominated:
            for i in range(started.shape[1]):
                is_dominated = is_dominated and started[m, i] == started[node, i]
        node = chain[node]
    for x in range(size):
        until[operators[m, x]] = 0.0
    return is_dominated


@entry
def branch(
    p: Instance, weight: Floats, cut: float, width: int, start: Floats, option: Ints, halt: Bools
) -> tuple[float, float, int]:
    """Search for the shortest schedule below `cut`, and fill `start` and `option` with it.

    `weight` has valid operator weights for such schedules (`subset_kernels`). Return (lower bound
    on the makespan of every schedule, makespan of the new schedule or infinity, nodes kept). If
    another thread sets `halt[0]`, the search returns soon and proves nothing.
    """
    n = p.duration.shape[0]
    most = min(n, MOST_RUNNING)
    lower = 0.0
    for j in range(n):
        lower += weight[j]
    head = np.zeros(n)
    tail = np.zeros(n)
    zero = int(np.int64(0))  # not a literal: numba would compile callees twice
    heads_and_tails(zero, n, p.fastest, p.pred_ptr, p.pred_idx, head, tail)
    level = empty_level(width, n, most)
    below = empty_level(width, n, most)
    capacity = 16 * width + 4096
    children = Children(
        np.zeros(capacity, np.int32), np.zeros(capacity, np.int32), np.zeros(capacity, np.int32),
        np.zeros(capacity), np.zeros(capacity), np.zeros(capacity, np.int32),
    )  # fmt: skip
    past = np.zeros((n, width, 3), np.int32)  # parent, operator, option of each kept node
    past_start = np.zeros((n, width))
    buckets = 1
    while buckets < 2 * width:
        buckets *= 2
    table = np.zeros(buckets, np.int64)
    visited = VisitedNodes(np.zeros(width, np.int64), np.zeros(width, np.int32))
    bins = np.zeros(BINS, np.int64)
    busy = np.zeros(n, np.bool_)
    tried = np.zeros((n, p.options.shape[1]), np.bool_)
    free = np.zeros(p.capacity.shape[0])
    until = np.zeros(n)
    chosen = np.zeros(n, np.int64)
    lost = np.inf
    kept = zero + 1
    nodes = 0
    for depth in range(n):
        number = zero
        for v in range(kept):
            if halt[0]:
                return 0.0, np.inf, nodes
            number, missed = expand(v, p, weight, tail, cut, level, children, number, busy, tried,
                                    free)  # fmt: skip
            lost = min(lost, missed)
        for b in range(BINS):
            bins[b] = -1
        for b in range(buckets):
            table[b] = -1
        scale = BINS / max(cut - lower, 1e-12 * cut)
        for c in range(number - 1, -1, -1):
            b = min(max(int((children.bound[c] - lower) * scale), 0), BINS - 1)
            children.following[c] = bins[b]
            bins[b] = c
        kept = zero
        for b in range(BINS):
            if halt[0]:
                return 0.0, np.inf, nodes
            c = bins[b]
            while c >= 0:
                if kept >= width:
                    lost = min(lost, children.bound[c])
                    c = children.following[c]
                    continue
                code = start_child(c, p, children, level, kept, below)
                bucket = code & (buckets - 1)
                if not dominated(
                    kept, code, table[bucket], visited, below, p.demand, until, chosen
                ):
                    visited.following[kept] = table[bucket]
                    visited.code[kept] = code
                    table[bucket] = kept
                    past[depth, kept, 0] = children.parent[c]
                    past[depth, kept, 1] = children.operator[c]
                    past[depth, kept, 2] = children.option[c]
                    past_start[depth, kept] = children.start[c]
                    kept += 1
                c = children.following[c]
        nodes += kept
        level, below = below, level
        if kept == 0:
            break
    best = np.inf
    leaf = -1
    for v in range(kept):
        if level.latest[v] < best:
            best = level.latest[v]
            leaf = v
    if leaf >= 0:
        for depth in range(n - 1, -1, -1):
            j = past[depth, leaf, 1]
            start[j] = past_start[depth, leaf]
            option[j] = past[depth, leaf, 2]
            leaf = past[depth, leaf, 0]
    return min(min(cut, lost), best), best, nodes
