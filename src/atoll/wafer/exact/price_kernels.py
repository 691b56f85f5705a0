"""Compiled: the price of memory at which a block just fits, for every stream layout at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.base.jit import entry, kernel, numbers_at, quick_kernel
from atoll.wafer.exact.path_kernels import (
    StepArrays,
    cheapest_choice,
    least_sums,
    priced_edge,
    priced_rows,
)

_ROUNDS = 40  # halvings of the Lagrangian multiplier
_TRIED = 4  # stream layouts per price, the best ones, whose paths are traced
HOPELESS = 1e6  # price of the memory limit / fastest_s above which no mapping is assumed to fit


class PackedSteps(NamedTuple):
    """Steps of all chains, one chain after another."""

    addresses: Ints
    """(steps, 6): addresses of the arrays of `PathStep.kernel_arrays`, which the steps own."""
    shapes: Ints
    """(steps, 4): states before, states after, options, and states before per option (or 1)."""
    fate_counts: Ints
    """Possible fates of a step's tensor: 1 if it is not saved."""
    chain_ends: Ints
    """Index after the last step of every chain."""


class StreamLayouts(NamedTuple):
    """Costs of stream layouts outside the chains; `fixed_bytes` are those of the stage."""

    time_s: Floats
    saved_bytes: Floats
    buffer_bytes: Floats
    fixed_bytes: Floats


class StageLimits(NamedTuple):
    """Copies of a layer's bytes in a stage, and its limits of local and offloaded bytes."""

    layers: float
    in_flight: float
    saved_copies: float
    state_copies: float
    local_bytes: float
    offload_bytes: float
    fastest_s: float


class BisectionState(NamedTuple):
    """Bounds and best mapping of a stage, which `bisect_price` improves in place."""

    bounds_s: Floats
    """Per stream layout; the next two are the prices of bytes that they come from."""
    local_prices: Floats
    offload_prices: Floats
    best_s: Floats
    """Seconds of the best mapping, or the seconds to beat."""
    best_path: Ints
    """Its stream layout (-1: none), then the state, option and fate of every step."""


@quick_kernel
def _least_option(step, price, row, state):
    """Return the least seconds + price x state bytes over the options of a state."""
    least = np.inf
    for option in range(step.option_s.shape[0]):
        state_bytes = step.state_bytes[option, row, state]
        least = min(least, step.option_s[option, row, state] + price * state_bytes)
    return least


@kernel
def _step_arrays(steps, s):
    shape, address = steps.shapes[s], steps.addresses[s]
    pairs, options = (shape[0], shape[1]), (shape[2], shape[3], shape[1])
    return StepArrays(
        numbers_at(address[0], pairs), numbers_at(address[1], pairs), numbers_at(address[2], pairs),
        numbers_at(address[3], pairs), numbers_at(address[4], options),
        numbers_at(address[5], options), steps.fate_counts[s],
    )  # fmt: skip


@kernel
def _values_before(reaches, offsets, s, count, states):
    """Return the view (stream layouts, states) of the least values before a step."""
    return reaches[offsets[s] : offsets[s] + count * states].reshape(count, states)


@kernel
def _add_chain_costs(steps, prices, streams, offsets, reaches, weights, values):
    """Add the least cost of all chains at these prices to the values of stream layouts."""
    count, first = len(streams), 0
    node, least = np.empty(count), np.empty(count)
    for end in steps.chain_ends:
        step = _step_arrays(steps, first)
        if end == first + 1:
            for row in range(count):
                at = streams[row]
                before = at if step.option_s.shape[1] > 1 else 0
                edge = priced_edge(step, prices, at, at)
                values[row] += edge + _least_option(step, prices[0], before, at)
            first = end
            continue
        reach = _values_before(reaches, offsets, first + 1, count, step.time_s.shape[1])
        priced_rows(step, prices, streams, reach)
        for s in range(first + 1, end - 1):
            step = _step_arrays(steps, s)
            before, after = step.time_s.shape
            weight = weights[: before * after].reshape(before, after)
            priced_rows(step, prices, np.arange(before), weight)
            further = _values_before(reaches, offsets, s + 1, count, after)
            least_sums(reach, weight, further)
            reach = further
        # A chain ends in the stream layout it begins with.
        step = _step_arrays(steps, end - 1)
        least[:] = np.inf
        several = step.option_s.shape[1] > 1
        for k in range(step.time_s.shape[0]):
            if several or k == 0:
                for row in range(count):
                    node[row] = _least_option(step, prices[0], k, streams[row])
            for row in range(count):
                edge = priced_edge(step, prices, k, streams[row])
                least[row] = min(least[row], reach[row, k] + (edge + node[row]))
        for row in range(count):
            values[row] += least[row]
        first = end


@kernel
def _trace_path(steps, prices, stream, row, count, offsets, reaches, path):
    """Fill `path` with state, option and fate of every step of a stream layout's best path."""
    first = 0
    for end in steps.chain_ends:
        state = stream
        for s in range(end - 1, first - 1, -1):
            step = _step_arrays(steps, s)
            path[s, 0] = state
            before = stream
            if s > first:
                states = step.time_s.shape[0]
                reach = _values_before(reaches, offsets, s, count, states)
                several, least = step.option_s.shape[1] > 1, np.inf
                node = _least_option(step, prices[0], 0, state)
                before = 0
                for k in range(states):
                    if several:
                        node = _least_option(step, prices[0], k, state)
                    value = reach[row, k] + (priced_edge(step, prices, k, state) + node)
                    if value < least:
                        before, least = k, value
            option, fate = cheapest_choice(step, prices, before, state)
            path[s, 1], path[s, 2] = option if s < end - 1 else 0, fate
            state = before
        first = end


@kernel
def _path_cost(steps, stream_s, stream_saved_bytes, stream, path):
    """Return seconds and bytes of state, kept, rebuilt and offloaded tensors of a path."""
    seconds, state_bytes, kept_bytes = stream_s[stream], 0.0, stream_saved_bytes[stream]
    rebuilt_bytes, offload_bytes = 0.0, 0.0
    first = 0
    for end in steps.chain_ends:
        before = stream
        for s in range(first, end):
            step = _step_arrays(steps, s)
            state, option, fate = path[s, 0], path[s, 1], path[s, 2]
            row = before if step.option_s.shape[1] > 1 else 0
            seconds += step.time_s[before, state]
            seconds += step.option_s[option, row, state]
            state_bytes += step.state_bytes[option, row, state]
            if step.fates > 1:
                saved_bytes = step.saved_bytes[before, state]
                if fate == 0:
                    kept_bytes += saved_bytes
                else:
                    rebuilt_bytes += saved_bytes
                    if fate == 1:
                        seconds += step.recompute_s[before, state]
                    else:
                        offload_bytes += saved_bytes
                        seconds += step.offload_s[before, state]
            before = state
        first = end
    return seconds, state_bytes, kept_bytes, rebuilt_bytes, offload_bytes


@kernel
def _scratch(steps, count):
    """Return the offset of the values before each step, and arrays for these values of `count`
    stream layouts and for the costs of a step.
    """
    offsets = np.zeros(len(steps.fate_counts) + 1, np.int64)
    largest = 0
    for s in range(len(steps.fate_counts)):
        before, after = steps.shapes[s, 0], steps.shapes[s, 1]
        offsets[s + 1] = offsets[s] + count * before
        largest = max(largest, before * after)
    return offsets, np.empty(offsets[-1]), np.empty(largest)


@entry
def trace_priced_path(steps, prices, stream, path):
    """Fill `path` with the path of a stream layout of least seconds + price x bytes."""
    offsets, reaches, weights = _scratch(steps, 1)
    streams, values = np.full(1, stream), np.zeros(1)
    _add_chain_costs(steps, prices, streams, offsets, reaches, weights, values)
    _trace_path(steps, prices, stream, 0, 1, offsets, reaches, path)


@entry
def path_cost(steps, stream_s, stream_saved_bytes, stream, path):
    """Call `_path_cost` from Python."""
    return _path_cost(steps, stream_s, stream_saved_bytes, stream, path)


@kernel
def _open_streams(streams, bisection):
    """Return the stream layouts that may still have the fastest mapping."""
    open_streams = np.empty(len(streams), np.int64)
    count = 0
    for stream in streams:
        if bisection.bounds_s[stream] < bisection.best_s[0]:
            open_streams[count] = stream
            count += 1
    return open_streams[:count]


@kernel
def _fits_at(steps, layouts, stage, streams, local, offload, bisection, offsets, reaches, weights):
    """Raise the bounds at this price; return whether one of the best mappings fits locally, and
    whether all of those that do also fit the limit of offloaded bytes.
    """
    count = len(streams)
    saved, state = stage.saved_copies, stage.state_copies
    prices = (local * state, local * saved, local, local + offload * saved)
    values = np.zeros(count)
    _add_chain_costs(steps, prices, streams, offsets, reaches, weights, values)
    for row in range(count):
        stream = streams[row]
        values[row] = layouts.time_s[stream] + values[row]
        values[row] = values[row] + local * layouts.fixed_bytes[stream]
        dual = values[row] - local * stage.local_bytes - offload * stage.offload_bytes
        if dual > bisection.bounds_s[stream]:
            bisection.bounds_s[stream] = dual
            bisection.local_prices[stream] = local
            bisection.offload_prices[stream] = offload
    local_fits, offload_fits = False, True
    path = np.empty((len(bisection.best_path) - 1, 3), np.int64)
    tried = np.zeros(count, np.bool_)
    for _ in range(min(_TRIED, count)):
        best = -1
        for row in range(count):
            if not tried[row] and (best < 0 or values[row] < values[best]):
                best = row
        tried[best] = True
        stream = streams[best]
        _trace_path(steps, prices, stream, best, count, offsets, reaches, path)
        seconds, states, kept, rebuilt, offloaded = _path_cost(
            steps, layouts.time_s, layouts.saved_bytes, stream, path
        )
        needed_bytes = stage.layers * (states + stage.in_flight * kept) + rebuilt
        if needed_bytes + layouts.buffer_bytes[stream] > stage.local_bytes:
            continue
        local_fits = True
        if stage.saved_copies * offloaded > stage.offload_bytes:
            offload_fits = False
        elif seconds < bisection.best_s[0]:
            bisection.best_s[0] = seconds
            bisection.best_path[0, 0] = stream
            bisection.best_path[1:] = path
    return local_fits, offload_fits


@entry
def bisect_price(steps, layouts, stage, streams, ratio, bisection):
    """Bisect the price of local bytes, with offloaded bytes at `ratio` times it; return whether
    some mapping fitted locally but offloaded too many bytes.
    """
    offsets, reaches, weights = _scratch(steps, len(streams))
    low, high, price = 0.0, np.inf, 1e-3 / stage.local_bytes
    overflow = False
    for _ in range(_ROUNDS):
        open_streams = _open_streams(streams, bisection)
        if not len(open_streams):
            break
        local_fits, offload_fits = _fits_at(
            steps, layouts, stage, open_streams, price, ratio * price, bisection, offsets, reaches,
            weights,
        )  # fmt: skip
        overflow = overflow or (local_fits and not offload_fits)
        if local_fits:
            high = price
            price = 0.5 * (low + price)
        else:
            low = price
            price = price * 4.0 if high == np.inf else 0.5 * (price + high)
        if high < np.inf and high - low < 1e-3 * high:
            break
        if high == np.inf and price * stage.local_bytes > HOPELESS * stage.fastest_s:
            break
    return overflow
