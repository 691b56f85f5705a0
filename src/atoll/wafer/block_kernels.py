"""Compiled: transitions between layouts on a mesh, and whole blocks in batches.

A layout gives every digit a role for one tensor: WHOLE (replicated), one of its dimensions (BATCH,
SEQUENCE, COLUMNS, EXPERTS), or PARTIAL (sums that are not complete). Moving a tensor from one layout
to another is decided digit by digit:

    PARTIAL -> dimension      reduce-scatter        dimension -> WHOLE   all-gather
    PARTIAL -> WHOLE          both (all-reduce)     dimension -> other   all-to-all
    WHOLE   -> dimension      nothing: keep a slice

in the order reduce-scatter, all-to-all, all-gather. `docs/wafer.md` has the formulas.
"""

from __future__ import annotations

import numpy as np

from atoll.jit import entry, kernel

WHOLE, BATCH, SEQUENCE, COLUMNS, EXPERTS, PARTIAL = range(6)

AUTO, LINE, RING, TWO_D = range(4)

# What `transition` returns by position.
SCATTER, EXCHANGE, GATHER, STORED = range(4)

CHUNKS = 4.0  # pieces in which a streamed collective runs beside its operator
SHARE = 0.5  # part of an operator's time that may hide its input, and as much for its output


@kernel
def pass_s(member, volume, radix, axis, stride, bandwidth, latency, algorithm):
    """Seconds of an all-gather (or reduce-scatter) over the member digits.

    `volume` is the gathered (or partial) bytes of one die. Member digits that follow each other on
    an axis are one line; a line whose neighbours lie `stride` apart shares its wires with as many
    others, so that every link carries that many times the load.
    """
    lengths = np.empty(8, np.int64)
    strides = np.empty(8, np.int64)
    axes = np.empty(8, np.int64)
    runs = 0
    open_run = False
    for d in range(radix.shape[0]):
        if member[d]:
            if open_run and axes[runs - 1] == axis[d]:
                lengths[runs - 1] *= radix[d]
                strides[runs - 1] = stride[d]
            else:
                lengths[runs] = radix[d]
                strides[runs] = stride[d]
                axes[runs] = axis[d]
                runs += 1
            open_run = True
        else:
            open_run = False
    if runs == 0 or volume <= 0.0:
        return 0.0
    # Lines one after the other, the widest strides while there is least data.
    for i in range(1, runs):
        j = i
        while j > 0 and strides[j] > strides[j - 1]:
            strides[j], strides[j - 1] = strides[j - 1], strides[j]
            lengths[j], lengths[j - 1] = lengths[j - 1], lengths[j]
            axes[j], axes[j - 1] = axes[j - 1], axes[j]
            j -= 1
    later = volume
    best = 0.0
    for i in range(runs - 1, -1, -1):
        hops = float((lengths[i] - 1) * strides[i])
        best += hops * (later / lengths[i] / bandwidth + latency)
        later /= lengths[i]
    if runs != 2 or axes[0] == axes[1] or algorithm == LINE:
        return best
    a = float(lengths[0])
    b = float(lengths[1])
    if algorithm != TWO_D and strides[0] == 1 and strides[1] == 1:
        if lengths[0] % 2 == 0 or lengths[1] % 2 == 0:
            dies = a * b
            best = min(best, (dies - 1.0) * (volume / (2.0 * dies) / bandwidth + latency))
    if algorithm == RING:
        return best
    half = 0.5 * volume / bandwidth
    hop_a = (a - 1.0) * strides[0]
    hop_b = (b - 1.0) * strides[1]
    first = max(hop_a * (half / (a * b) + latency), hop_b * (half / (a * b) + latency))
    second = max(hop_a * (half / a + latency), hop_b * (half / b + latency))
    return min(best, first + second)


@kernel
def exchange_s(member, volume, radix, axis, stride, bandwidth, latency):
    """Seconds of an all-to-all of `volume` bytes a die: the bisection of its widest axis."""
    loads = np.zeros(2)
    hops = 0.0
    length = np.int64(1)
    for d in range(radix.shape[0]):
        if member[d]:
            length *= radix[d]
        last = d + 1 == radix.shape[0] or not member[d + 1] or axis[d + 1] != axis[d]
        if member[d] and last:
            across = float((length // 2) * (length - length // 2)) / float(length)
            loads[axis[d]] += across * stride[d]
            hops += float((length - 1) * stride[d])
            length = np.int64(1)
    return max(loads[0], loads[1]) * volume / bandwidth + hops * latency


@kernel
def transition(total, source, target, radix, axis, stride, bandwidth, latency, algorithm, out):
    """Fill `out` with seconds of scatter, exchange and gather, and the share of `total` bytes that
    a die holds in between, after the reduction and before the gather: what is worth keeping.
    """
    digits = radix.shape[0]
    member = np.zeros(digits, np.bool_)
    held = total
    for d in range(digits):
        if source[d] != WHOLE and source[d] != PARTIAL:
            held /= radix[d]
    # Slices of what is already whole cost nothing.
    for d in range(digits):
        if source[d] == WHOLE and target[d] != WHOLE:
            held /= radix[d]
    any_scatter = False
    any_exchange = False
    any_gather = False
    any_sum = False
    for d in range(digits):
        member[d] = source[d] == PARTIAL and target[d] != WHOLE
        any_scatter |= member[d]
        any_exchange |= source[d] != target[d] and source[d] != WHOLE and source[d] != PARTIAL \
            and target[d] != WHOLE
        any_gather |= source[d] != WHOLE and source[d] != PARTIAL and target[d] == WHOLE
        any_sum |= source[d] == PARTIAL and target[d] == WHOLE
    out[SCATTER] = 0.0
    out[EXCHANGE] = 0.0
    out[GATHER] = 0.0
    if any_scatter:
        out[SCATTER] = pass_s(member, held, radix, axis, stride, bandwidth, latency, algorithm)
        for d in range(digits):
            if member[d]:
                held /= radix[d]
    if any_exchange:
        for d in range(digits):
            member[d] = source[d] != target[d] and source[d] != WHOLE and source[d] != PARTIAL \
                and target[d] != WHOLE
        out[EXCHANGE] = exchange_s(member, held, radix, axis, stride, bandwidth, latency)
    if any_sum:
        for d in range(digits):
            member[d] = source[d] == PARTIAL and target[d] == WHOLE
        one = pass_s(member, held, radix, axis, stride, bandwidth, latency, algorithm)
        out[SCATTER] += one
        out[GATHER] += one
    out[STORED] = held
    if any_gather:
        for d in range(digits):
            member[d] = source[d] != WHOLE and source[d] != PARTIAL and target[d] == WHOLE
            if member[d]:
                held *= radix[d]
        out[GATHER] += pass_s(member, held, radix, axis, stride, bandwidth, latency, algorithm)


@kernel
def exposed_s(link_s, compute_s, streams):
    """What a transfer adds to its operator: all of it, or what streaming cannot hide."""
    if not streams:
        return link_s
    hidden = max(0.0, (link_s - SHARE * compute_s)) * (CHUNKS - 1.0) / CHUNKS
    return link_s / CHUNKS + hidden


@entry
def transition_one(total, source, target, radix, axis, stride, bandwidth, latency, algorithm):
    """The four figures of one transition, for callers in Python."""
    out = np.zeros(4)
    transition(total, source, target, radix, axis, stride, bandwidth, latency, algorithm, out)
    return out


@entry
def pass_one(member, volume, radix, axis, stride, bandwidth, latency, algorithm):
    """`pass_s` for callers in Python."""
    return pass_s(member, volume, radix, axis, stride, bandwidth, latency, algorithm)


@entry
def exchange_one(member, volume, radix, axis, stride, bandwidth, latency):
    """`exchange_s` for callers in Python."""
    return exchange_s(member, volume, radix, axis, stride, bandwidth, latency)


@kernel
def edge_cost(
    totals, source, target, grad_source, grad_target, produce_s, consume_s, produce_back_s,
    consume_back_s, regather_s, streams, radix, axis, stride, bandwidth, latency, algorithm, out,
    scratch,
):
    """One tensor (or several that travel together) between two operators, there and back.

    Fills out[0] seconds a microbatch, out[1] bytes a die to keep, out[2] seconds that running the
    producer again adds for its reduction. `totals` (tensors,) are bytes of the whole tensors;
    layouts are (tensors, digits).
    """
    out[0] = 0.0
    out[1] = 0.0
    out[2] = 0.0
    scatter = 0.0
    gather = 0.0
    back_scatter = 0.0
    back_gather = 0.0
    for t in range(totals.shape[0]):
        if totals[t] <= 0.0:
            continue
        transition(totals[t], source[t], target[t], radix, axis, stride, bandwidth, latency,
                   algorithm, scratch)
        scatter += scratch[SCATTER]
        gather += scratch[GATHER]
        out[0] += scratch[EXCHANGE]
        out[1] += scratch[STORED]
        out[2] += scratch[EXCHANGE]
        transition(totals[t], grad_source[t], grad_target[t], radix, axis, stride, bandwidth,
                   latency, algorithm, scratch)
        back_scatter += scratch[SCATTER]
        back_gather += scratch[GATHER]
        out[0] += scratch[EXCHANGE]
    again = exposed_s(scatter, produce_s, streams)
    out[0] += again + exposed_s(gather, consume_s, streams)
    out[2] += again
    out[0] += exposed_s(back_scatter, consume_back_s, streams)
    out[0] += exposed_s(back_gather, produce_back_s, streams)
    # The weight gradient needs the gathered input once more.
    out[0] += exposed_s(gather, regather_s, streams)


@entry
def edge_matrix(
    totals, source, target, grad_source, grad_target, produce_s, consume_s, produce_back_s,
    consume_back_s, regather_s, streams, radix, axis, stride, bandwidth, latency, algorithm,
    time, kept, again,
):
    """`edge_cost` for every pair of a producer's code (row) and a consumer's code (column).

    Layouts are (codes, tensors, digits), times (codes,).
    """
    scratch = np.zeros(4)
    out = np.zeros(3)
    for i in range(source.shape[0]):
        for j in range(target.shape[0]):
            edge_cost(
                totals, source[i], target[j], grad_source[j], grad_target[i], produce_s[i],
                consume_s[j], produce_back_s[i], consume_back_s[j], regather_s[j], streams, radix,
                axis, stride, bandwidth, latency, algorithm, out, scratch)
            time[i, j] = out[0]
            kept[i, j] = out[1]
            again[i, j] = out[2]


@entry
def min_plus(left, right, product, choice):
    """product[i, j] = min over k of left[i, k] + right[k, j], and which k."""
    for i in range(left.shape[0]):
        for j in range(right.shape[1]):
            product[i, j] = np.inf
            choice[i, j] = 0
        for k in range(left.shape[1]):
            head = left[i, k]
            if head == np.inf:
                continue
            for j in range(right.shape[1]):
                value = head + right[k, j]
                if value < product[i, j]:
                    product[i, j] = value
                    choice[i, j] = k


@entry
def exposed_one(link_s, compute_s, streams):
    """`exposed_s` for callers in Python."""
    return exposed_s(link_s, compute_s, streams)
