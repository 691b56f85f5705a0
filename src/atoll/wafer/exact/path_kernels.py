"""Compiled: shortest paths, and labels of one with two resources that no other label beats."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from atoll.arrays import FloatArray, IntArray
from atoll.jit import entry, kernel, quick_kernel


@entry
def mark_undominated(at, own, away, keep):
    """Mark labels, sorted by state and then seconds, that no earlier one of their state beats in
    both resources.

    `front` holds the labels of a state that no other beats in the resources alone: whatever beats
    a later label, one of the front does too.
    """
    front = np.zeros(len(at), np.int64)
    size = 0
    for i in range(len(at)):
        if i == 0 or at[i] != at[i - 1]:
            size = 0
        beaten = False
        for j in range(size):
            f = front[j]
            if own[f] <= own[i] and away[f] <= away[i]:
                beaten = True
                break
        keep[i] = not beaten
        if beaten:
            continue
        left = 0
        for j in range(size):
            f = front[j]
            if not (own[i] <= own[f] and away[i] <= away[f]):
                front[left] = f
                left += 1
        front[left] = i
        size = left + 1


class PathLabels(NamedTuple):
    """Seconds, bytes here and bytes elsewhere on the way to a state."""

    time: FloatArray
    own: FloatArray
    away: FloatArray
    at: IntArray


class CompletionBounds(NamedTuple):
    """What labels must keep to, by states after a step: the least seconds, the fewest bytes and the
    least seconds + price x bytes that must follow; the limits and prices of both kinds of bytes,
    and seconds that no way may take.
    """

    only: IntArray
    seconds: FloatArray
    bytes: FloatArray
    both: FloatArray
    limit: float
    away_limit: float
    price: float
    away_price: float
    cap_s: float


@kernel
def _longer(column, size):
    """The same with room for twice as many."""
    found = np.empty(2 * size, column.dtype)
    found[: len(column)] = column
    return found


@entry
def extend_labels(labels, ahead, time, kept, again, away, options, state, fates, per_kept, per_state):
    """Labels after a step into the states `ahead.only` that may still lead to the best way, with
    the label that each comes from, its option, and the place of its tensor's fate among the first
    `fates`. Arrays as in `priced_rows`; bytes of the tensor count `per_kept` times where it is
    kept, and so often elsewhere where it is left there.
    """
    room = max(256, 2 * len(ahead.only))
    found_time, found_own, found_away = np.empty(room), np.empty(room), np.empty(room)
    at, parent = np.empty(room, np.int64), np.empty(room, np.int64)
    chosen_option, chosen_fate = np.empty(room, np.int64), np.empty(room, np.int64)
    size = 0
    for option in range(options.shape[0]):
        for fate in range(fates):
            here_each = 0.0
            if fates > 1:
                here_each = per_kept if fate == 0 else 1.0
            there_each = per_kept if fate == 2 else 0.0
            for i in range(len(labels.at)):
                if size + len(ahead.only) > room:
                    found_time, found_own = _longer(found_time, room), _longer(found_own, room)
                    found_away, at = _longer(found_away, room), _longer(at, room)
                    parent = _longer(parent, room)
                    chosen_option = _longer(chosen_option, room)
                    chosen_fate = _longer(chosen_fate, room)
                    room *= 2
                source = labels.at[i]
                before = source if options.shape[1] > 1 else 0
                for j in range(len(ahead.only)):
                    here = ahead.only[j]
                    t = time[source, here] + options[option, before, here]
                    if fate == 1:
                        t = t + again[source, here]
                    elif fate == 2:
                        t = t + away[source, here]
                    t = labels.time[i] + t
                    held = kept[source, here]
                    m = labels.own[i] + (here_each * held + per_state * state[option, before, here])
                    a = labels.away[i] + there_each * held
                    if t + ahead.seconds[j] >= ahead.cap_s or m + ahead.bytes[j] > ahead.limit:
                        continue
                    dual = t + ahead.price * (m - ahead.limit)
                    dual = dual + ahead.away_price * (a - ahead.away_limit)
                    if a <= ahead.away_limit and dual + ahead.both[j] < ahead.cap_s:
                        found_time[size], found_own[size], found_away[size] = t, m, a
                        at[size], parent[size] = here, i
                        chosen_option[size], chosen_fate[size] = option, fate
                        size += 1
    return (
        found_time[:size], found_own[:size], found_away[:size], at[:size], parent[:size],
        chosen_option[:size], chosen_fate[:size],
    )  # fmt: skip


@entry
def least_completions(
    later, time, kept, again, away, options, state, fates, prices, per_kept, per_state, only
):
    """Before a step, for each state: the least seconds, the fewest bytes here and the least
    seconds + price x bytes that must follow, where `later` are those after it and a step to one
    state alone if `only` names it. Arrays and prices as in `priced_rows`.
    """
    found = np.full((3, time.shape[0]), np.inf)
    columns = time.shape[1]
    first, end = (0, columns) if only < 0 else (only, only + 1)
    several = options.shape[1] > 1
    node = np.empty((3, columns))
    for i in range(time.shape[0]):
        before = i if several else 0
        if several or i == 0:
            node[:] = np.inf
            for option in range(options.shape[0]):
                for j in range(first, end):
                    seconds, held = options[option, before, j], state[option, before, j]
                    node[0, j] = min(node[0, j], seconds)
                    node[1, j] = min(node[1, j], held)
                    node[2, j] = min(node[2, j], seconds + prices[0] * held)
        for j in range(first, end):
            seconds = bytes_ = both = 0.0
            if fates > 1:
                held, anew = kept[i, j], again[i, j]
                seconds = min(0.0, anew)
                both = min(prices[1] * held, anew + prices[2] * held)
                if fates > 2:
                    seconds = min(seconds, away[i, j])
                    both = min(both, away[i, j] + prices[3] * held)
                once = fates > 2 or np.isfinite(anew)
                bytes_ = held if once else per_kept * held
            value = ((time[i, j] + seconds) + node[0, j]) + later[0, j]
            found[0, i] = min(found[0, i], value)
            found[1, i] = min(found[1, i], (bytes_ + per_state * node[1, j]) + later[1, j])
            value = ((time[i, j] + both) + node[2, j]) + later[2, j]
            found[2, i] = min(found[2, i], value)
    return found


@quick_kernel
def priced_edge(time, kept, again, away, fates, prices, i, j):
    """Least seconds + price x bytes of a pair of states without its option, as in `priced_rows`."""
    edge = time[i, j]
    if fates > 1:
        least = min(prices[1] * kept[i, j], again[i, j] + prices[2] * kept[i, j])
        if fates > 2:
            least = min(least, away[i, j] + prices[3] * kept[i, j])
        edge += least
    return edge


@quick_kernel
def priced_rows(time, kept, again, away, options, state, fates, prices, rows, weights):
    """Least seconds + price x bytes of pairs of states, the first ones `rows`: the best option of
    the second one (options, states before or one, states), and the cheapest of the tensor's first
    `fates` fates: to be kept, made again, or left elsewhere. `prices`: of a byte of state, and of a
    byte of the tensor under each of these.
    """
    several = options.shape[1] > 1
    node = np.empty(time.shape[1])
    for row in range(len(rows)):
        i = rows[row]
        before = i if several else 0
        if several or row == 0:
            node[:] = np.inf
            for option in range(options.shape[0]):
                for j in range(time.shape[1]):
                    value = options[option, before, j] + prices[0] * state[option, before, j]
                    node[j] = min(node[j], value)
        for j in range(time.shape[1]):
            edge = priced_edge(time, kept, again, away, fates, prices, i, j)
            weights[row, j] = edge + node[j]


@entry
def priced_pairs(time, kept, again, away, options, state, fates, prices, weights):
    """`priced_rows` of all pairs."""
    rows = np.arange(time.shape[0])
    priced_rows(time, kept, again, away, options, state, fates, prices, rows, weights)


@entry
def fewest_bytes_pairs(kept, again, away, options, state, fates, per_kept, per_state, found):
    """The fewest bytes here of every pair of states: the tensor's of one microbatch where it can be
    made again or wait elsewhere. Arrays as in `priced_rows`.
    """
    for i in range(found.shape[0]):
        before = i if state.shape[1] > 1 else 0
        for j in range(found.shape[1]):
            least = np.inf
            for option in range(state.shape[0]):
                least = min(least, state[option, before, j])
            held = 0.0
            if fates > 1:
                once = fates > 2 or np.isfinite(again[i, j])
                held = kept[i, j] if once else per_kept * kept[i, j]
            found[i, j] = held + per_state * least


@kernel
def cheapest_choice_at(kept, again, away, options, state, fates, prices, before, here):
    """The option and the fate that `priced_rows` takes at a pair of states."""
    at = before if options.shape[1] > 1 else 0
    option, least = 0, np.inf
    for some in range(options.shape[0]):
        value = options[some, at, here] + prices[0] * state[some, at, here]
        if value < least:
            option, least = some, value
    fate = 0
    if fates > 1:
        held = kept[before, here]
        least = prices[1] * held
        if again[before, here] + prices[2] * held < least:
            fate, least = 1, again[before, here] + prices[2] * held
        if fates > 2 and away[before, here] + prices[3] * held < least:
            fate = 2
    return option, fate


@entry
def cheapest_choice(kept, again, away, options, state, fates, prices, before, here):
    """`choice_at`."""
    return cheapest_choice_at(kept, again, away, options, state, fates, prices, before, here)


@quick_kernel
def least_sums(left, right, product):
    """product[i, j] = min over k of left[i, k] + right[k, j].

    Four rows and four terms at a time, so that what is read and written serves several of them.
    """
    rows, columns = product.shape
    terms = left.shape[1]
    some_rows, some_terms = rows - rows % 4, terms - terms % 4
    for i in range(rows):
        for j in range(columns):
            product[i, j] = np.inf
    for i in range(0, some_rows, 4):
        for k in range(0, some_terms, 4):
            a0, a1, a2, a3 = left[i, k], left[i, k + 1], left[i, k + 2], left[i, k + 3]
            b0, b1, b2, b3 = (
                left[i + 1, k],
                left[i + 1, k + 1],
                left[i + 1, k + 2],
                left[i + 1, k + 3],
            )
            c0, c1, c2, c3 = (
                left[i + 2, k],
                left[i + 2, k + 1],
                left[i + 2, k + 2],
                left[i + 2, k + 3],
            )
            d0, d1, d2, d3 = (
                left[i + 3, k],
                left[i + 3, k + 1],
                left[i + 3, k + 2],
                left[i + 3, k + 3],
            )
            for j in range(columns):
                w0, w1, w2, w3 = right[k, j], right[k + 1, j], right[k + 2, j], right[k + 3, j]
                a = min(min(a0 + w0, a1 + w1), min(a2 + w2, a3 + w3))
                b = min(min(b0 + w0, b1 + w1), min(b2 + w2, b3 + w3))
                c = min(min(c0 + w0, c1 + w1), min(c2 + w2, c3 + w3))
                d = min(min(d0 + w0, d1 + w1), min(d2 + w2, d3 + w3))
                product[i, j] = min(product[i, j], a)
                product[i + 1, j] = min(product[i + 1, j], b)
                product[i + 2, j] = min(product[i + 2, j], c)
                product[i + 3, j] = min(product[i + 3, j], d)
    for i in range(some_rows, rows):
        for k in range(0, some_terms, 4):
            a0, a1, a2, a3 = left[i, k], left[i, k + 1], left[i, k + 2], left[i, k + 3]
            for j in range(columns):
                w0, w1, w2, w3 = right[k, j], right[k + 1, j], right[k + 2, j], right[k + 3, j]
                a = min(min(a0 + w0, a1 + w1), min(a2 + w2, a3 + w3))
                product[i, j] = min(product[i, j], a)
    for i in range(rows):
        for k in range(some_terms, terms):
            head = left[i, k]
            for j in range(columns):
                product[i, j] = min(product[i, j], head + right[k, j])


@entry
def min_plus(left, right, product):
    """`least_sums`."""
    least_sums(left, right, product)
