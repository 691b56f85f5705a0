"""Compiled: shortest paths, and labels of one with two resources that no other label beats."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.base.jit import entry, kernel, quick_kernel


class StepArrays(NamedTuple):
    """One step (`paths.PathStep`): arrays (states before, states after); options have arrays
    (options, states before or 1, states after).
    """

    time_s: Floats
    saved_bytes: Floats
    recompute_s: Floats
    offload_s: Floats
    option_s: Floats
    state_bytes: Floats
    fates: int
    """How many of keep, recompute and offload the tensor may have; 1 if it is not saved."""


@entry
def mark_undominated(state, local, offload, keep):
    """Mark labels, sorted by state and then seconds, that no earlier label of their state beats in
    both resources.

    `front` holds the labels of a state that are undominated in the resources alone: any label that
    is dominated at all is dominated by one of them.
    """
    front = np.zeros(len(state), np.int64)
    size = 0
    for i in range(len(state)):
        if i == 0 or state[i] != state[i - 1]:
            size = 0
        beaten = False
        for j in range(size):
            rival = front[j]
            if local[rival] <= local[i] and offload[rival] <= offload[i]:
                beaten = True
                break
        keep[i] = not beaten
        if beaten:
            continue
        left = 0
        for j in range(size):
            rival = front[j]
            if not (local[i] <= local[rival] and offload[i] <= offload[rival]):
                front[left] = rival
                left += 1
        front[left] = i
        size = left + 1


class PathLabels(NamedTuple):
    """Partial paths: their cost so far and the state they end in."""

    time_s: Floats
    local_bytes: Floats
    offload_bytes: Floats
    state: Ints


class CompletionBounds(NamedTuple):
    """Lower bounds on what follows each state after a step, and the limits a path must meet.

    `remaining_cost` is the least seconds + price x bytes; paths of `cap_s` or more are dropped.
    """

    states: Ints
    remaining_s: Floats
    remaining_bytes: Floats
    remaining_cost: Floats
    limit_bytes: float
    offload_limit_bytes: float
    price: float
    offload_price: float
    cap_s: float


@kernel
def _longer(column, size):
    """Copy a column into an array of twice its capacity."""
    doubled = np.empty(2 * size, column.dtype)
    doubled[: len(column)] = column
    return doubled


@entry
def extend_labels(labels, bounds, step, saved_copies, state_copies):
    """Extend labels by a step into `bounds.states`; drop those that cannot become the best path.

    Returns the new labels' columns, then their parent label, option, and fate. A kept tensor counts
    `saved_copies` times locally, an offloaded one as often in the other stage's memory.
    """
    size, count = 0, len(bounds.states)
    capacity = max(256, 2 * count)
    time_s, local, offload = np.empty(capacity), np.empty(capacity), np.empty(capacity)
    state, parent = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
    options, fates = np.empty(capacity, np.int64), np.empty(capacity, np.int64)
    for option in range(step.option_s.shape[0]):
        for fate in range(step.fates):
            local_copies = 0.0
            if step.fates > 1:
                local_copies = saved_copies if fate == 0 else 1.0
            offload_copies = saved_copies if fate == 2 else 0.0
            for i in range(len(labels.state)):
                if size + count > capacity:
                    time_s, local = _longer(time_s, capacity), _longer(local, capacity)
                    offload, state = _longer(offload, capacity), _longer(state, capacity)
                    parent, options = _longer(parent, capacity), _longer(options, capacity)
                    fates = _longer(fates, capacity)
                    capacity *= 2
                before = labels.state[i]
                row = before if step.option_s.shape[1] > 1 else 0
                for j in range(count):
                    after = bounds.states[j]
                    t = step.time_s[before, after] + step.option_s[option, row, after]
                    if fate == 1:
                        t = t + step.recompute_s[before, after]
                    elif fate == 2:
                        t = t + step.offload_s[before, after]
                    t = labels.time_s[i] + t
                    saved = step.saved_bytes[before, after]
                    m = local_copies * saved + state_copies * step.state_bytes[option, row, after]
                    m = labels.local_bytes[i] + m
                    a = labels.offload_bytes[i] + offload_copies * saved
                    too_slow = t + bounds.remaining_s[j] >= bounds.cap_s
                    if too_slow or m + bounds.remaining_bytes[j] > bounds.limit_bytes:
                        continue
                    dual = t + bounds.price * (m - bounds.limit_bytes)
                    dual = dual + bounds.offload_price * (a - bounds.offload_limit_bytes)
                    dual = dual + bounds.remaining_cost[j]
                    if a <= bounds.offload_limit_bytes and dual < bounds.cap_s:
                        time_s[size], local[size], offload[size] = t, m, a
                        state[size], parent[size] = after, i
                        options[size], fates[size] = option, fate
                        size += 1
    return (
        time_s[:size], local[:size], offload[:size], state[:size], parent[:size],
        options[:size], fates[:size],
    )  # fmt: skip


@entry
def least_completions(later, step, prices, saved_copies, state_copies, only_state):
    """Least seconds, fewest local bytes and least seconds + price x bytes from each state before a
    step to the end. `later` are those after the step, which may only lead to `only_state` unless
    that is negative. Prices as in `priced_rows`.
    """
    rows, columns = step.time_s.shape
    least = np.full((3, rows), np.inf)
    first, end = (0, columns) if only_state < 0 else (only_state, only_state + 1)
    several = step.option_s.shape[1] > 1
    node = np.empty((3, columns))
    for i in range(rows):
        row = i if several else 0
        if several or i == 0:
            node[:] = np.inf
            for option in range(step.option_s.shape[0]):
                for j in range(first, end):
                    seconds, state = step.option_s[option, row, j], step.state_bytes[option, row, j]
                    node[0, j] = min(node[0, j], seconds)
                    node[1, j] = min(node[1, j], state)
                    node[2, j] = min(node[2, j], seconds + prices[0] * state)
        for j in range(first, end):
            seconds = fewest = priced = 0.0
            if step.fates > 1:
                saved, recompute = step.saved_bytes[i, j], step.recompute_s[i, j]
                seconds = min(0.0, recompute)
                priced = min(prices[1] * saved, recompute + prices[2] * saved)
                if step.fates > 2:
                    seconds = min(seconds, step.offload_s[i, j])
                    priced = min(priced, step.offload_s[i, j] + prices[3] * saved)
                single = step.fates > 2 or np.isfinite(recompute)
                fewest = saved if single else saved_copies * saved
            value = ((step.time_s[i, j] + seconds) + node[0, j]) + later[0, j]
            least[0, i] = min(least[0, i], value)
            least[1, i] = min(least[1, i], (fewest + state_copies * node[1, j]) + later[1, j])
            value = ((step.time_s[i, j] + priced) + node[2, j]) + later[2, j]
            least[2, i] = min(least[2, i], value)
    return least


@quick_kernel
def priced_edge(step, prices, i, j):
    """Return seconds + price x bytes of a pair of states without its option (`priced_rows`)."""
    edge = step.time_s[i, j]
    if step.fates > 1:
        saved = step.saved_bytes[i, j]
        least = min(prices[1] * saved, step.recompute_s[i, j] + prices[2] * saved)
        if step.fates > 2:
            least = min(least, step.offload_s[i, j] + prices[3] * saved)
        edge += least
    return edge


@quick_kernel
def priced_rows(step, prices, rows, weights):
    """Fill `weights` with the least seconds + price x bytes from each state in `rows` to each next
    state: its best option and the cheapest fate of the tensor. `prices` are those of a byte of
    state and of a byte of the tensor if it is kept, recomputed or offloaded.
    """
    several, columns = step.option_s.shape[1] > 1, step.time_s.shape[1]
    node = np.empty(columns)
    for row in range(len(rows)):
        i = rows[row]
        before = i if several else 0
        if several or row == 0:
            node[:] = np.inf
            for option in range(step.option_s.shape[0]):
                for j in range(columns):
                    state = step.state_bytes[option, before, j]
                    node[j] = min(node[j], step.option_s[option, before, j] + prices[0] * state)
        for j in range(columns):
            weights[row, j] = priced_edge(step, prices, i, j) + node[j]


@entry
def priced_pairs(step, prices, weights):
    """Apply `priced_rows` to all pairs of states."""
    priced_rows(step, prices, np.arange(step.time_s.shape[0]), weights)


@kernel
def cheapest_choice(step, prices, before, state):
    """Return the option and the fate that `priced_rows` takes at a pair of states."""
    row = before if step.option_s.shape[1] > 1 else 0
    option, least = 0, np.inf
    for k in range(step.option_s.shape[0]):
        value = step.option_s[k, row, state] + prices[0] * step.state_bytes[k, row, state]
        if value < least:
            option, least = k, value
    fate = 0
    if step.fates > 1:
        saved = step.saved_bytes[before, state]
        least = prices[1] * saved
        if step.recompute_s[before, state] + prices[2] * saved < least:
            fate, least = 1, step.recompute_s[before, state] + prices[2] * saved
        if step.fates > 2 and step.offload_s[before, state] + prices[3] * saved < least:
            fate = 2
    return option, fate


@quick_kernel
def least_sums(left, right, product):
    """Compute product[i, j] = min over k of left[i, k] + right[k, j], in blocks of 4 x 4."""
    rows, columns = product.shape
    terms = left.shape[1]
    blocked_rows, blocked_terms = rows - rows % 4, terms - terms % 4
    for i in range(rows):
        for j in range(columns):
            product[i, j] = np.inf
    for i in range(0, blocked_rows, 4):
        p, q, r = i + 1, i + 2, i + 3
        for k in range(0, blocked_terms, 4):
            a0, a1, a2, a3 = left[i, k], left[i, k + 1], left[i, k + 2], left[i, k + 3]
            b0, b1, b2, b3 = left[p, k], left[p, k + 1], left[p, k + 2], left[p, k + 3]
            c0, c1, c2, c3 = left[q, k], left[q, k + 1], left[q, k + 2], left[q, k + 3]
            d0, d1, d2, d3 = left[r, k], left[r, k + 1], left[r, k + 2], left[r, k + 3]
            for j in range(columns):
                w0, w1, w2, w3 = right[k, j], right[k + 1, j], right[k + 2, j], right[k + 3, j]
                a = min(min(a0 + w0, a1 + w1), min(a2 + w2, a3 + w3))
                b = min(min(b0 + w0, b1 + w1), min(b2 + w2, b3 + w3))
                c = min(min(c0 + w0, c1 + w1), min(c2 + w2, c3 + w3))
                d = min(min(d0 + w0, d1 + w1), min(d2 + w2, d3 + w3))
                product[i, j] = min(product[i, j], a)
                product[p, j] = min(product[p, j], b)
                product[q, j] = min(product[q, j], c)
                product[r, j] = min(product[r, j], d)
    for i in range(blocked_rows, rows):
        for k in range(0, blocked_terms, 4):
            a0, a1, a2, a3 = left[i, k], left[i, k + 1], left[i, k + 2], left[i, k + 3]
            for j in range(columns):
                w0, w1, w2, w3 = right[k, j], right[k + 1, j], right[k + 2, j], right[k + 3, j]
                a = min(min(a0 + w0, a1 + w1), min(a2 + w2, a3 + w3))
                product[i, j] = min(product[i, j], a)
    for i in range(rows):
        for k in range(blocked_terms, terms):
            head = left[i, k]
            for j in range(columns):
                product[i, j] = min(product[i, j], head + right[k, j])


@entry
def min_plus(left, right, product):
    """Call `least_sums` from Python."""
    least_sums(left, right, product)
