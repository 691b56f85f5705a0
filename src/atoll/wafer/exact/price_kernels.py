"""Compiled: the price of memory at which a block just fits, for every stream layout at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from atoll.arrays import FloatArray, IntArray
from atoll.jit import entry, kernel, numbers_at, quick_kernel
from atoll.wafer.exact.path_kernels import cheapest_choice_at, least_sums, priced_edge, priced_rows

_ROUNDS = 40  # halvings of the Lagrangian multiplier
_TRIED = 4  # of the best stream layouts at a price: their ways are looked at
HOPELESS = 1e6  # times the fastest: where the price of memory ends the search for one that fits


class PackedSteps(NamedTuple):
    """Of all chains, one after another."""

    arrays: IntArray
    """(steps, 6): where the arrays of `paths.Step.choices` lie, which the steps hold."""
    shapes: IntArray
    """(steps, 4): states before and after, options, and states before that these differ in."""
    fates: IntArray
    """How many there are of a step's tensor: 1 where it is not dropped."""
    ends: IntArray
    """After the last step of every chain."""


class StreamLayouts(NamedTuple):
    """What stream layouts cost beside the chains: seconds, bytes of a microbatch, of buffers, and
    of a stage whatever its chains.
    """

    seconds: FloatArray
    kept: FloatArray
    buffers: FloatArray
    fixed: FloatArray


class StageLimits(NamedTuple):
    """How often a layer's bytes count, and how many there may be here and elsewhere."""

    layers: float
    in_flight: float
    per_kept: float
    per_state: float
    limit: float
    away_limit: float
    fastest_s: float


class BisectionState(NamedTuple):
    """What is known of a stage: raised and written by `bisected`."""

    bounds: FloatArray
    """By stream layout, with the prices of bytes here and elsewhere that they come from."""
    own: FloatArray
    away: FloatArray
    least: FloatArray
    """Seconds of the best mapping, or those that one has to beat."""
    way: IntArray
    """Its stream layout (-1: none), and the state, option and fate of every step."""


@quick_kernel
def _node(options, state, price, before, j):
    """The best option of a state, at the price of a byte of state."""
    least = np.inf
    for option in range(options.shape[0]):
        least = min(least, options[option, before, j] + price * state[option, before, j])
    return least


@kernel
def _step(steps, s):
    shape, where = steps.shapes[s], steps.arrays[s]
    pairs, each = (shape[0], shape[1]), (shape[2], shape[3], shape[1])
    return (
        numbers_at(where[0], pairs), numbers_at(where[1], pairs), numbers_at(where[2], pairs),
        numbers_at(where[3], pairs), numbers_at(where[4], each), numbers_at(where[5], each),
        steps.fates[s],
    )  # fmt: skip


@kernel
def _reached(reaches, offsets, s, count, states):
    """Least values of so many stream layouts before a step."""
    return reaches[offsets[s] : offsets[s] + count * states].reshape(count, states)


@kernel
def _valued(steps, prices, streams, offsets, reaches, weights, values):
    """Add what chains take at least at these prices to the values of stream layouts."""
    count, first = len(streams), 0
    node, least = np.empty(count), np.empty(count)
    for end in steps.ends:
        time, kept, again, away, options, state, fates = _step(steps, first)
        if end == first + 1:
            for row in range(count):
                at = streams[row]
                before = at if options.shape[1] > 1 else 0
                edge = priced_edge(time, kept, again, away, fates, prices, at, at)
                values[row] += edge + _node(options, state, prices[0], before, at)
            first = end
            continue
        reach = _reached(reaches, offsets, first + 1, count, time.shape[1])
        priced_rows(time, kept, again, away, options, state, fates, prices, streams, reach)
        for s in range(first + 1, end - 1):
            time, kept, again, away, options, state, fates = _step(steps, s)
            before, after = time.shape
            weight = weights[: before * after].reshape(before, after)
            every = np.arange(before)
            priced_rows(time, kept, again, away, options, state, fates, prices, every, weight)
            further = _reached(reaches, offsets, s + 1, count, after)
            least_sums(reach, weight, further)
            reach = further
        # A chain ends in the stream layout that it began with.
        time, kept, again, away, options, state, fates = _step(steps, end - 1)
        least[:] = np.inf
        several = options.shape[1] > 1
        for k in range(time.shape[0]):
            if several or k == 0:
                for row in range(count):
                    node[row] = _node(options, state, prices[0], k, streams[row])
            for row in range(count):
                edge = priced_edge(time, kept, again, away, fates, prices, k, streams[row])
                least[row] = min(least[row], reach[row, k] + (edge + node[row]))
        for row in range(count):
            values[row] += least[row]
        first = end


@kernel
def _recovered(steps, prices, stream, row, count, offsets, reaches, way):
    """The way that gives a stream layout its value: state, option and fate of every step."""
    first = 0
    for end in steps.ends:
        here = stream
        for s in range(end - 1, first - 1, -1):
            time, kept, again, away, options, state, fates = _step(steps, s)
            way[s, 0] = here
            before = stream
            if s > first:
                reach = _reached(reaches, offsets, s, count, time.shape[0])
                several, least = options.shape[1] > 1, np.inf
                node = _node(options, state, prices[0], 0, here)
                before = 0
                for k in range(time.shape[0]):
                    if several:
                        node = _node(options, state, prices[0], k, here)
                    edge = priced_edge(time, kept, again, away, fates, prices, k, here)
                    value = reach[row, k] + (edge + node)
                    if value < least:
                        before, least = k, value
            option, fate = cheapest_choice_at(kept, again, away, options, state, fates, prices, before, here)
            way[s, 1], way[s, 2] = option if s < end - 1 else 0, fate
            here = before
        first = end


@kernel
def _cost(steps, layouts, stream, way):
    """Seconds, bytes of state, kept, rebuilt and left elsewhere of a way."""
    seconds, held, kept_bytes = layouts.seconds[stream], 0.0, layouts.kept[stream]
    rebuilt, elsewhere = 0.0, 0.0
    first = 0
    for end in steps.ends:
        before = stream
        for s in range(first, end):
            time, kept, again, away, options, state, fates = _step(steps, s)
            here, option, fate = way[s, 0], way[s, 1], way[s, 2]
            at = before if options.shape[1] > 1 else 0
            seconds += time[before, here]
            seconds += options[option, at, here]
            held += state[option, at, here]
            if fates > 1:
                bytes_ = kept[before, here]
                if fate == 0:
                    kept_bytes += bytes_
                else:
                    rebuilt += bytes_
                    if fate == 1:
                        seconds += again[before, here]
                    else:
                        elsewhere += bytes_
                        seconds += away[before, here]
            before = here
        first = end
    return seconds, held, kept_bytes, rebuilt, elsewhere


@kernel
def _open(streams, outcome):
    """Stream layouts that may still have the fastest mapping."""
    found = np.empty(len(streams), np.int64)
    count = 0
    for stream in streams:
        if outcome.bounds[stream] < outcome.least[0]:
            found[count] = stream
            count += 1
    return found[:count]


@kernel
def _fits_at(steps, layouts, stage, streams, own, away, outcome, offsets, reaches, weights):
    """Whether one of the best mappings at this price fits here, and whether all of those fit
    elsewhere; raises the bounds.
    """
    count = len(streams)
    prices = (own * stage.per_state, own * stage.per_kept, own, own + away * stage.per_kept)
    values = np.zeros(count)
    _valued(steps, prices, streams, offsets, reaches, weights, values)
    for row in range(count):
        stream = streams[row]
        values[row] = (layouts.seconds[stream] + values[row]) + own * layouts.fixed[stream]
        dual = values[row] - own * stage.limit - away * stage.away_limit
        if dual > outcome.bounds[stream]:
            outcome.bounds[stream] = dual
            outcome.own[stream], outcome.away[stream] = own, away
    own_fits, away_fits = False, True
    way = np.empty((len(outcome.way) - 1, 3), np.int64)
    tried = np.zeros(count, np.bool_)
    for _ in range(min(_TRIED, count)):
        best = -1
        for row in range(count):
            if not tried[row] and (best < 0 or values[row] < values[best]):
                best = row
        tried[best] = True
        stream = streams[best]
        _recovered(steps, prices, stream, best, count, offsets, reaches, way)
        seconds, state, kept, rebuilt, elsewhere = _cost(steps, layouts, stream, way)
        needed = stage.layers * (state + stage.in_flight * kept) + rebuilt
        if needed + layouts.buffers[stream] > stage.limit:
            continue
        own_fits = True
        if stage.per_kept * elsewhere > stage.away_limit:
            away_fits = False
        elif seconds < outcome.least[0]:
            outcome.least[0] = seconds
            outcome.way[0, 0] = stream
            outcome.way[1:] = way
    return own_fits, away_fits


@entry
def bisect_price(steps, layouts, stage, streams, ratio, outcome):
    """Search the price of bytes here, those elsewhere at a ratio of it; whether too many went
    elsewhere on the way.
    """
    # Where the values before each step lie, for as many stream layouts as there are.
    offsets = np.zeros(len(steps.fates) + 1, np.int64)
    most = 0
    for s in range(len(steps.fates)):
        before, after = steps.shapes[s, 0], steps.shapes[s, 1]
        offsets[s + 1] = offsets[s] + len(streams) * before
        most = max(most, before * after)
    reaches, weights = np.empty(offsets[-1]), np.empty(most)
    low, high, price = 0.0, np.inf, 1e-3 / stage.limit
    overflow = False
    for _ in range(_ROUNDS):
        left = _open(streams, outcome)
        if not len(left):
            break
        own_fits, away_fits = _fits_at(
            steps, layouts, stage, left, price, ratio * price, outcome, offsets, reaches, weights
        )
        overflow = overflow or (own_fits and not away_fits)
        if own_fits:
            high = price
            price = 0.5 * (low + price)
        else:
            low = price
            price = price * 4.0 if high == np.inf else 0.5 * (price + high)
        if high < np.inf and high - low < 1e-3 * high:
            break
        if high == np.inf and price * stage.limit > HOPELESS * stage.fastest_s:
            break
    return overflow
