"""The feasible-subset bound: the linear program over sets of operators that may run together.

A set of (operator, option) pairs is feasible if no two are ordered by precedence and their demands
fit the chip. At each instant a schedule runs one such set; let x_S be the seconds spent in S. Each
operator must be completed: the sum of x_S / duration[j, o] over all S that run j in option o is at
least 1. The minimum of sum x_S is a lower bound on the makespan (Mingozzi et al. 1998, with one
option per operator). It dominates critical path, work on every resource and every mix of the two;
it ignores that operators run without interruption, in one option, in an order.

The dual gives each operator a weight in seconds such that no feasible set earns more than one
second per second. The sum of *any* such weights is a valid bound, so numerical errors of the
simplex method cannot make it invalid: an exact search for the best set scales the weights.
"""

from __future__ import annotations

import numpy as np

from atoll.base.arrays import Bools, Floats, Ints
from atoll.base.jit import entry, kernel
from atoll.schedule.bound_kernels import Instance, falling, heads_and_tails, restrict

IMPROVING = 1e-8
"""A set must earn at least this much more than 1 to count as improving."""

PATIENCE = 1000
"""Node limit of the search for sets that start with one operator, after which a bound is used. The
limit grows tenfold each time that no set is found."""

ROUNDING = 1e-12
"""Rounding slack of summed loads: a set that fits may appear to exceed the capacity by this."""


@kernel
def chains(ordered: Bools) -> Ints:
    """Cover the operators greedily by chains of ordered operators; return the chain of each."""
    n = ordered.shape[0]
    chain = np.zeros(n, np.int64)
    for j in range(n):
        chain[j] = -1
    number = 0
    for j in range(n):
        if chain[j] >= 0:
            continue
        last = j
        for i in range(j, n):
            if chain[i] < 0 and (i == j or ordered[last, i]):
                chain[i] = number
                last = i
        number += 1
    return chain


@kernel
def still_to_earn(
    first: int, size: int, candidates: Ints, chain: Ints, top: Floats, density: Floats,
    free: Floats, chosen: Ints,
) -> float:  # fmt: skip
    """Return the most that candidates first:size can add: one per chain at its top value and, on
    each resource, at most the free capacity times their best value per unit."""
    best = 0.0
    for c in range(first, size):
        j = candidates[c]
        # Candidates have descending top values, so the first of a chain has its largest.
        if chosen[chain[j]] == 0:
            chosen[chain[j]] = 1
            best += top[j]
    for c in range(first, size):
        chosen[chain[candidates[c]]] = 0
    for r in range(free.shape[0]):
        dearest = 0.0
        for c in range(first, size):
            dearest = max(dearest, density[candidates[c], r])
        if dearest < np.inf:
            best = min(best, dearest * free[r])
    return best


@kernel
def price_subsets(
    p: Instance, ordered: Bools, chain: Ints, weight: Floats, patience: int, subsets: Ints,
    subset_size: Ints,
) -> tuple[float, int]:  # fmt: skip
    """Search for feasible sets that earn more than 1 with the given weights.

    For each operator, the best such set that begins with it is written to a row of `subsets` as
    pairs operator, option (`subset_size` 0: none). Return (upper bound on the earnings of every
    set, at least 1; nodes). The bound is exact unless an operator's search exceeds `patience`.
    """
    duration, options, useful, load = p.duration, p.options, p.useful, p.load
    n = duration.shape[0]
    resources = load.shape[2]
    top = np.zeros(n)
    density = np.zeros((n, resources))
    for j in range(n):
        top[j] = weight[j] / p.fastest[j]
        for c in range(useful[j]):
            o = options[j, c]
            for r in range(resources):
                need = duration[j, o] * load[j, o, r]
                density[j, r] = max(density[j, r], weight[j] / need if need > 0.0 else np.inf)
    zero = int(np.int64(0))  # not a literal: numba would compile callees twice
    order = falling(top, zero, n)
    candidates = np.zeros((n + 1, n), np.int64)
    size = np.zeros(n + 1, np.int64)
    at = np.zeros(n + 1, np.int64)  # candidate and option under trial at each depth
    choice = np.zeros(n + 1, np.int64)
    path = np.zeros(2 * n, np.int64)
    earned = np.zeros(n + 1)
    free = np.zeros((n + 1, resources))
    chosen = np.zeros(n, np.int64)
    goal = 1.0 + IMPROVING
    highest = goal
    visited = 0
    for root in range(n):
        subset_size[root] = 0
        nodes = 0
        best = goal
        candidates[0, 0] = order[root]
        size[0] = 1
        at[0] = 0
        choice[0] = 0
        for r in range(resources):
            free[0, r] = 1.0
        depth = 0
        while depth >= 0:
            if at[depth] >= size[depth]:
                depth -= 1
                continue
            j = candidates[depth, at[depth]]
            c = choice[depth]
            if c >= useful[j] or top[j] <= 0.0:
                at[depth] += 1
                choice[depth] = 0
                if depth > 0:
                    rest = still_to_earn(at[depth], size[depth], candidates[depth], chain, top,
                                         density, free[depth], chosen)  # fmt: skip
                    if earned[depth] + rest <= best:
                        at[depth] = size[depth]
                continue
            choice[depth] += 1
            o = options[j, c]
            fits = True
            for r in range(resources):
                if load[j, o, r] > free[depth, r] + ROUNDING:
                    fits = False
                    break
            if not fits:
                continue
            nodes += 1
            total = earned[depth] + weight[j] / duration[j, o]
            path[2 * depth] = j
            path[2 * depth + 1] = o
            if total > best:
                best = total
                subset_size[root] = depth + 1
                for i in range(2 * depth + 2):
                    subsets[root, i] = path[i]
            below = depth + 1
            number = zero
            others = order if depth == 0 else candidates[depth]
            begin = root + 1 if depth == 0 else at[depth] + 1
            end = n if depth == 0 else size[depth]
            for c in range(begin, end):
                if not ordered[j, others[c]]:
                    candidates[below, number] = others[c]
                    number += 1
            if number == 0:
                continue
            for r in range(resources):
                free[below, r] = free[depth, r] - load[j, o, r]
            rest = still_to_earn(zero, number, candidates[below], chain, top, density, free[below],
                                 chosen)  # fmt: skip
            if total + rest <= best:
                continue
            if nodes > patience:
                highest = max(highest, total + rest)
                continue
            size[below] = number
            at[below] = 0
            choice[below] = 0
            earned[below] = total
            depth = below
        highest = max(highest, best)
        visited += nodes
    return highest, visited


@kernel
def running_at(
    p: Instance, ordered: Bools, start: Floats, option: Ints, when: float, pairs: Ints
) -> int:
    """Fill `pairs` with the feasible set that a schedule runs at the time `when`; return its size.

    Operators in an option that is no longer useful are omitted, and so is the later of two ordered
    operators that appear to overlap because of rounding.
    """
    size = 0
    for i in range(start.shape[0]):
        o = option[i]
        slowest = p.options[i, p.useful[i] - 1]
        if not start[i] <= when < start[i] + p.duration[i, o]:
            continue
        fits = p.duration[i, o] <= p.duration[i, slowest]
        for k in range(size):
            fits = fits and not ordered[i, pairs[2 * k]]
        for r in range(p.capacity.shape[0]):
            used = p.demand[i, o, r]
            for k in range(size):
                used += p.demand[pairs[2 * k], pairs[2 * k + 1], r]
            fits = fits and used <= p.capacity[r]
        if fits:
            pairs[2 * size] = i
            pairs[2 * size + 1] = o
            size += 1
    return size


@kernel
def exchange(column: Floats, level: Floats, inverse: Floats) -> int:
    """Do one simplex step that brings `column` into the basis; return the row that leaves (-1 if
    none, which only rounding can cause)."""
    n = level.shape[0]
    leave = -1
    ratio = np.inf
    for b in range(n):
        if column[b] > 1e-11 and level[b] < ratio * column[b]:
            ratio = level[b] / column[b]
            leave = b
    if leave < 0:
        return leave
    for i in range(n):
        inverse[leave, i] /= column[leave]
    level[leave] = ratio
    for b in range(n):
        if b != leave and column[b] != 0.0:
            level[b] = max(0.0, level[b] - ratio * column[b])
            for i in range(n):
                inverse[b, i] -= column[b] * inverse[leave, i]
    return leave


@entry
def subset_bound(
    p: Instance, ordered: Bools, start: Floats, option: Ints, cut: float, budget: int,
    weight: Floats,
) -> tuple[float, bool]:  # fmt: skip
    """Solve the linear program by column generation (revised simplex method), for schedules shorter
    than `cut`; options of p that are too slow for such schedules are removed.

    The first pool has the sets of a feasible schedule (`start`, `option`). Fill `weight` with valid
    weights. Return (sum of the weights, which bounds all schedules shorter than `cut`; whether it
    is the optimum). Stop early when the bound reaches `cut` or the search for sets has used
    `budget` nodes.
    """
    duration, fastest = p.duration, p.fastest
    n = fastest.shape[0]
    head = np.zeros(n)
    tail = np.zeros(n)
    zero = int(np.int64(0))
    heads_and_tails(zero, n, fastest, p.pred_ptr, p.pred_idx, head, tail)
    restrict(zero, n, p, cut, head, tail)
    capacity = 40 * n + 100
    pool = np.zeros((capacity, 2 * n), np.int64)
    pool_size = np.zeros(capacity, np.int64)
    subsets = np.zeros((n, 2 * n), np.int64)
    subset_size = np.zeros(n, np.int64)
    pooled = 2 * n
    # Rows are scaled by the shortest durations, so the first basis (single operators) is identity.
    inverse = np.zeros((n, n))
    level = np.zeros(n)  # values of the basic variables
    basis = np.zeros(n, np.int64)  # column in the pool; below 0: the surplus of row -1 - basis
    for j in range(n):
        pool[j, 0] = j
        pool[j, 1] = p.options[j, 0]
        pool_size[j] = 1
        pool_size[n + j] = running_at(p, ordered, start, option, start[j], pool[n + j])
        inverse[j, j] = 1.0
        level[j] = fastest[j]
        basis[j] = j
    dual = np.zeros(n)
    column = np.zeros(n)
    trial = np.zeros(n)
    chain = chains(ordered)
    patience = PATIENCE + zero
    best = 0.0
    optimal = False
    for _ in range(100 * n):
        objective = 0.0
        for j in range(n):
            dual[j] = 0.0
        for b in range(n):
            if basis[b] >= 0:
                objective += level[b]
                for j in range(n):
                    dual[j] += inverse[b, j]
        gain = IMPROVING
        enter = capacity
        for c in range(pooled):
            earned = -1.0
            for k in range(pool_size[c]):
                j = pool[c, 2 * k]
                earned += dual[j] * fastest[j] / duration[j, pool[c, 2 * k + 1]]
            if earned > gain:
                gain = earned
                enter = c
        for j in range(n):
            if -dual[j] > gain:
                gain = -dual[j]
                enter = -1 - j
        if enter == capacity:
            total = 0.0
            for j in range(n):
                trial[j] = max(dual[j], 0.0) * fastest[j]
                total += trial[j]
            highest, nodes = price_subsets(p, ordered, chain, trial, patience, subsets, subset_size)
            budget -= nodes
            if total > best * highest:
                best = total / highest
                for j in range(n):
                    weight[j] = trial[j] / highest
            added = 0
            for root in range(n):
                if subset_size[root] > 0 and pooled < capacity:
                    pool_size[pooled] = subset_size[root]
                    for k in range(2 * subset_size[root]):
                        pool[pooled, k] = subsets[root, k]
                    pooled += 1
                    added += 1
            optimal = best >= objective * (1.0 - 1e-6)
            if optimal or best >= cut or budget < 0 or pooled == capacity:
                break
            if added == 0:
                patience *= 10
            continue
        for b in range(n):
            column[b] = -inverse[b, -1 - enter] if enter < 0 else 0.0
        if enter >= 0:
            for k in range(pool_size[enter]):
                j = pool[enter, 2 * k]
                part = fastest[j] / duration[j, pool[enter, 2 * k + 1]]
                for b in range(n):
                    column[b] += inverse[b, j] * part
        leave = exchange(column, level, inverse)
        if leave < 0:
            break
        basis[leave] = enter
    return best, optimal
