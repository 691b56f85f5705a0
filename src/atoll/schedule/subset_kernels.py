"""The feasible-subset bound: the linear programme over sets of operators that may run together.

A set of (operator, option) pairs is feasible if no two are ordered by precedence and their demands
fit the chip. Every schedule is, at each instant, in one such set; let x_S be the seconds spent in
S. Each operator must be done: the sum over S that run j in option o of x_S / duration[j, o] is at
least 1. The least sum of x_S bounds the makespan from below (Mingozzi et al. 1998, there with one
option per operator). It dominates critical path, work on every resource and every mix of the two;
what it leaves out is that operators run without interruption, in one option, in an order.

Its dual gives each operator a weight, in seconds, such that no feasible set earns more than one
second per second. *Any* such weights add up to a valid bound, so numerical errors of the simplex
method cannot make a bound invalid: the weights are scaled by an exact search for the best set.
"""

from __future__ import annotations

import numpy as np

from atoll.schedule.bound_kernels import Bools, Floats, Instance, Ints, falling
from atoll.schedule.jit import entry, kernel

IMPROVING = 1e-8
"""A set must earn this much more than 1 to count as improving."""

ROUNDING = 1e-12
"""Loads are sums of quotients: what fits may seem to miss by this much, never the other way."""


@kernel
def chains(lo: int, hi: int, ordered: Bools) -> Ints:
    """Cover lo:hi by chains of ordered operators, greedily; returns the chain of each."""
    chain = np.zeros(hi, np.int64)
    for j in range(lo, hi):
        chain[j] = -1
    number = 0
    for j in range(lo, hi):
        if chain[j] >= 0:
            continue
        last = j
        for i in range(j, hi):
            if chain[i] < 0 and (i == j or ordered[last, i]):
                chain[i] = number
                last = i
        number += 1
    return chain


@kernel
def still_to_earn(first: int, size: int, candidates: Ints, chain: Ints, top: Floats,
                  density: Floats, free: Floats, taken: Ints) -> float:  # fmt: skip
    """Most that candidates first:size can add: one per chain at its top value and, on each
    resource, no more than their best value per unit of what is free."""
    best = 0.0
    for c in range(first, size):
        j = candidates[c]
        # Candidates come with falling top value: the first of a chain has its largest.
        if taken[chain[j]] == 0:
            taken[chain[j]] = 1
            best += top[j]
    for c in range(first, size):
        taken[chain[candidates[c]]] = 0
    for r in range(free.shape[0]):
        dearest = 0.0
        for c in range(first, size):
            dearest = max(dearest, density[candidates[c], r])
        best = min(best, dearest * free[r])
    return best


@kernel
def price_subsets(lo: int, hi: int, p: Instance, ordered: Bools, chain: Ints, weight: Floats,
                  limit: int, found: Ints, found_size: Ints) -> float:  # fmt: skip
    """Search the feasible sets for those that earn more than 1 under `weight`.

    For each operator, the best such set in which it comes first goes to a row of `found` as pairs
    operator, option (found_size 0: none). Returns an upper bound on the earnings of every set, at
    least 1; it is exact unless some operator's search passes `limit` nodes.
    """
    m = hi - lo
    duration, options, count, load = p.duration, p.options, p.count, p.load
    resources = load.shape[2]
    top = np.zeros(hi)
    density = np.zeros((hi, resources))
    for j in range(lo, hi):
        top[j] = weight[j] / p.fastest[j]
        for c in range(count[j]):
            o = options[j, c]
            for r in range(resources):
                need = duration[j, o] * load[j, o, r]
                density[j, r] = max(density[j, r], weight[j] / need if need > 0.0 else np.inf)
    order = falling(top, lo, hi)
    candidates = np.zeros((m + 1, m), np.int64)
    size = np.zeros(m + 1, np.int64)
    at = np.zeros(m + 1, np.int64)  # candidate and option under trial at each depth
    choice = np.zeros(m + 1, np.int64)
    path = np.zeros(2 * m, np.int64)
    earned = np.zeros(m + 1)
    free = np.zeros((m + 1, resources))
    taken = np.zeros(m, np.int64)
    goal = 1.0 + IMPROVING
    highest = goal
    zero = np.int64(0)
    for root in range(m):
        found_size[root] = 0
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
            if c >= count[j] or top[j] <= 0.0:
                at[depth] += 1
                choice[depth] = 0
                if depth > 0:
                    rest = still_to_earn(at[depth], size[depth], candidates[depth], chain, top,
                                         density, free[depth], taken)  # fmt: skip
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
                found_size[root] = depth + 1
                for i in range(2 * depth + 2):
                    found[root, i] = path[i]
            below = depth + 1
            number = zero
            others = order if depth == 0 else candidates[depth]
            begin = root + 1 if depth == 0 else at[depth] + 1
            end = m if depth == 0 else size[depth]
            for c in range(begin, end):
                if not ordered[j, others[c]]:
                    candidates[below, number] = others[c]
                    number += 1
            if number == 0:
                continue
            for r in range(resources):
                free[below, r] = free[depth, r] - load[j, o, r]
            rest = still_to_earn(zero, number, candidates[below], chain, top, density, free[below],
                                 taken)  # fmt: skip
            if total + rest <= best:
                continue
            if nodes > limit:
                highest = max(highest, total + rest)
                continue
            size[below] = number
            at[below] = 0
            choice[below] = 0
            earned[below] = total
            depth = below
        highest = max(highest, best)
    return highest


@kernel
def running_at(lo: int, hi: int, p: Instance, ordered: Bools, start: Floats, option: Ints,
               when: float, pairs: Ints) -> int:  # fmt: skip
    """The feasible set that a schedule runs at a time; returns its size.

    Rounded times may show two operators together that only touch: the later one is left out.
    """
    resources = p.capacity.shape[0]
    size = 0
    for i in range(lo, hi):
        if not start[i] <= when < start[i] + p.duration[i, option[i]]:
            continue
        fits = True
        for k in range(size):
            fits = fits and not ordered[i, pairs[2 * k]]
        for r in range(resources):
            used = p.demand[i, option[i], r]
            for k in range(size):
                used += p.demand[pairs[2 * k], pairs[2 * k + 1], r]
            fits = fits and used <= p.capacity[r]
        if fits:
            pairs[2 * size] = i
            pairs[2 * size + 1] = option[i]
            size += 1
    return size


@entry
def subset_bound(lo: int, hi: int, p: Instance, ordered: Bools, start: Floats, option: Ints,
                 enough: float, limit: int, weight: Floats) -> float:  # fmt: skip
    """Solve the linear programme for operators lo:hi by column generation (revised simplex method).

    `start` and `option` are a feasible schedule, whose sets make a good first pool. Fills `weight`
    with valid weights of operators and returns their sum, the bound; stops early at `enough`.
    """
    m = hi - lo
    room = 40 * m + 100
    pool = np.zeros((room, 2 * m), np.int64)
    pool_size = np.zeros(room, np.int64)
    found = np.zeros((m, 2 * m), np.int64)
    found_size = np.zeros(m, np.int64)
    pooled = 0
    for j in range(lo, hi):
        pool[pooled, 0] = j
        pool[pooled, 1] = p.options[j, 0]
        pool_size[pooled] = 1
        pooled += 1
    for j in range(lo, hi):
        pool_size[pooled] = running_at(lo, hi, p, ordered, start, option, start[j], pool[pooled])
        pooled += 1
    # Rows are scaled by the shortest durations: the first basis, every operator alone, is unity.
    inverse = np.zeros((m, m))
    level = np.zeros(m)  # values of the basic variables
    basis = np.zeros(m, np.int64)  # column in the pool; below 0: the surplus of row -1 - basis
    for i in range(m):
        inverse[i, i] = 1.0
        level[i] = p.fastest[lo + i]
        basis[i] = i
    dual = np.zeros(m)
    column = np.zeros(m)
    trial = np.zeros(hi)
    chain = chains(lo, hi, ordered)
    best = 0.0
    for _ in range(60 * m):
        objective = 0.0
        for i in range(m):
            dual[i] = 0.0
        for b in range(m):
            if basis[b] >= 0:
                objective += level[b]
                for i in range(m):
                    dual[i] += inverse[b, i]
        if best >= objective * (1.0 - 1e-6):
            break
        gain = IMPROVING
        enter = room
        for c in range(pooled):
            earned = -1.0
            for k in range(pool_size[c]):
                j = pool[c, 2 * k]
                earned += dual[j - lo] * p.fastest[j] / p.duration[j, pool[c, 2 * k + 1]]
            if earned > gain:
                gain = earned
                enter = c
        for i in range(m):
            if -dual[i] > gain:
                gain = -dual[i]
                enter = -1 - i
        if enter == room:
            total = 0.0
            for i in range(m):
                trial[lo + i] = max(dual[i], 0.0) * p.fastest[lo + i]
                total += trial[lo + i]
            highest = price_subsets(lo, hi, p, ordered, chain, trial, limit, found, found_size)
            if total / highest > best:
                best = total / highest
                for j in range(lo, hi):
                    weight[j] = trial[j] / highest
            added = 0
            for root in range(m):
                if found_size[root] > 0 and pooled < room:
                    pool_size[pooled] = found_size[root]
                    for k in range(2 * found_size[root]):
                        pool[pooled, k] = found[root, k]
                    pooled += 1
                    added += 1
            if added == 0 or best >= enough:
                break
            continue
        for b in range(m):
            column[b] = 0.0
        if enter < 0:
            for b in range(m):
                column[b] = -inverse[b, -1 - enter]
        else:
            for k in range(pool_size[enter]):
                j = pool[enter, 2 * k]
                entry = p.fastest[j] / p.duration[j, pool[enter, 2 * k + 1]]
                for b in range(m):
                    column[b] += inverse[b, j - lo] * entry
        leave = -1
        ratio = np.inf
        for b in range(m):
            if column[b] > 1e-11 and level[b] < ratio * column[b]:
                ratio = level[b] / column[b]
                leave = b
        if leave < 0:
            break
        pivot = column[leave]
        for i in range(m):
            inverse[leave, i] /= pivot
        level[leave] = ratio
        basis[leave] = enter
        for b in range(m):
            if b != leave and column[b] != 0.0:
                level[b] = max(0.0, level[b] - ratio * column[b])
                for i in range(m):
                    inverse[b, i] -= column[b] * inverse[leave, i]
    return best
