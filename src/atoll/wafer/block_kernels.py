"""Compiled: collectives, and transitions between layouts on a mesh.

A layout gives every digit a role for one tensor: WHOLE (replicated), one of its dimensions (BATCH,
SEQUENCE, COLUMNS, EXPERTS), or PARTIAL (sums that are not complete). Moving a tensor from one
layout to another is decided digit by digit:

    PARTIAL -> dimension      reduce-scatter        dimension -> WHOLE   all-gather
    PARTIAL -> WHOLE          both (all-reduce)     dimension -> other   all-to-all
    WHOLE   -> dimension      nothing: keep a slice

in the order reduce-scatter, all-to-all, all-gather. A tensor is stored between the reduction and
the gather; digits of an all-reduce are then SUMMED: whole, and gathered once more if they are
wanted whole again. `docs/wafer.md` has the formulas.
"""

from __future__ import annotations

import numpy as np

from atoll.jit import entry, kernel

WHOLE, BATCH, SEQUENCE, COLUMNS, EXPERTS, PARTIAL, SUMMED = range(7)

AUTO, LINE, RING, TWO_D = range(4)

# What `transition` returns by position.
SCATTER, EXCHANGE, GATHER, STORED = range(4)

CHUNKS = 4.0  # pieces in which a streamed collective runs beside its operator
SHARE = 0.5  # part of an operator's time that may hide its input, and as much for its output


@kernel
def pass_s(member, volume, radix, axis, stride, bandwidth, latency, algorithm, runs_of):
    """Seconds of an all-gather (or reduce-scatter) over the member digits (bits of `member`).

    `volume` is the gathered (or partial) bytes of one die. Member digits that follow each other on
    an axis are one line; a line whose neighbours lie `stride` apart shares its wires with as many
    others, so that every link carries that many times the load. `runs_of` (3, 8) is scratch.
    """
    if member == 0 or volume <= 0.0:
        return 0.0
    lengths = runs_of[0]
    strides = runs_of[1]
    axes = runs_of[2]
    runs = 0
    open_run = False
    for d in range(radix.shape[0]):
        if member >> d & 1:
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
        later /= lengths[i]
        best += hops * (later / bandwidth + latency)
    if runs != 2 or axes[0] == axes[1] or algorithm == LINE:
        return best
    a = float(lengths[0])
    b = float(lengths[1])
    even = lengths[0] % 2 == 0 or lengths[1] % 2 == 0
    if even and algorithm != TWO_D and strides[0] == 1 and strides[1] == 1:
        dies = a * b
        best = min(best, (dies - 1.0) * (volume / (2.0 * dies) / bandwidth + latency))
    if algorithm == RING:
        return best
    half = 0.5 * volume / bandwidth
    hop_a = (a - 1.0) * strides[0]
    hop_b = (b - 1.0) * strides[1]
    first = max(hop_a, hop_b) * (half / (a * b) + latency)
    second = max(hop_a * (half / a + latency), hop_b * (half / b + latency))
    return min(best, first + second)


@kernel
def exchange_s(member, volume, radix, axis, stride, bandwidth, latency):
    """Seconds of an all-to-all of `volume` bytes a die: the bisection of its widest axis."""
    load_x = 0.0
    load_y = 0.0
    hops = 0.0
    length = np.int64(1)
    for d in range(radix.shape[0]):
        if member >> d & 1:
            length *= radix[d]
            last = d + 1 == radix.shape[0] or not member >> (d + 1) & 1 or axis[d + 1] != axis[d]
            if last:
                across = float((length // 2) * (length - length // 2)) / float(length) * stride[d]
                if axis[d] == 0:
                    load_x += across
                else:
                    load_y += across
                hops += float((length - 1) * stride[d])
                length = np.int64(1)
    return max(load_x, load_y) * volume / bandwidth + hops * latency


@kernel
def transition(
    total, source, target, radix, axis, stride, bandwidth, latency, scatter_algorithm,
    gather_algorithm, out, runs_of,
):
    """Fill `out` with seconds of scatter, exchange and gather, and the share of `total` bytes that
    a die holds in between, after the reduction and before the gather: what is worth keeping.

    The operator that wrote the tensor reduces it, the one that reads it gathers it, each by its own
    algorithm.
    """
    scatter = np.int64(0)
    exchange = np.int64(0)
    gather = np.int64(0)
    total_sum = np.int64(0)
    summed = np.int64(0)
    held = total
    scattered = 1.0
    gathered = 1.0
    for d in range(radix.shape[0]):
        have = source[d]
        want = target[d]
        bit = np.int64(1) << d
        if have == PARTIAL:
            if want == WHOLE:
                total_sum |= bit
            else:
                scatter |= bit
                scattered *= radix[d]
        elif have in (WHOLE, SUMMED):
            # A slice of what is already whole costs nothing.
            if want != WHOLE:
                held /= radix[d]
            elif have == SUMMED:
                summed |= bit
        else:
            held /= radix[d]
            if want == WHOLE:
                gather |= bit
                gathered *= radix[d]
            elif want != have:
                exchange |= bit
    out[SCATTER] = 0.0
    out[EXCHANGE] = 0.0
    out[GATHER] = 0.0
    if scatter:
        out[SCATTER] = pass_s(
            scatter, held, radix, axis, stride, bandwidth, latency, scatter_algorithm, runs_of)
        held /= scattered
    if exchange:
        out[EXCHANGE] = exchange_s(exchange, held, radix, axis, stride, bandwidth, latency)
    if total_sum:
        one = pass_s(
            total_sum, held, radix, axis, stride, bandwidth, latency, scatter_algorithm, runs_of)
        out[SCATTER] += one
        if gather_algorithm != scatter_algorithm:
            one = pass_s(
                total_sum, held, radix, axis, stride, bandwidth, latency, gather_algorithm, runs_of)
        out[GATHER] += one
    if summed:
        out[GATHER] += pass_s(
            summed, held, radix, axis, stride, bandwidth, latency, gather_algorithm, runs_of)
    out[STORED] = held
    if gather:
        out[GATHER] += pass_s(
            gather, held * gathered, radix, axis, stride, bandwidth, latency, gather_algorithm,
            runs_of)


@kernel
def stored_layout(source, target, stored):
    """The layout in which a tensor waits between its reduction and its gather."""
    for d in range(source.shape[0]):
        have = source[d]
        want = target[d]
        if have == PARTIAL and want == WHOLE:
            stored[d] = SUMMED
        elif want == WHOLE and have != WHOLE:
            stored[d] = have
        else:
            stored[d] = want


@kernel
def exposed_s(link_s, compute_s, streams):
    """What a transfer adds to its operator: all of it, or what streaming cannot hide."""
    if not streams:
        return link_s
    hidden = max(0.0, (link_s - SHARE * compute_s)) * (CHUNKS - 1.0) / CHUNKS
    return link_s / CHUNKS + hidden


@kernel
def _bits(member):
    bits = np.int64(0)
    for d in range(member.shape[0]):
        if member[d]:
            bits |= np.int64(1) << d
    return bits


@entry
def transition_one(total, source, target, radix, axis, stride, bandwidth, latency, algorithm):
    """The four figures of one transition, for callers in Python."""
    out = np.zeros(4)
    runs_of = np.zeros((3, 8), np.int64)
    transition(
        total, source, target, radix, axis, stride, bandwidth, latency, algorithm, algorithm, out,
        runs_of)
    return out


@entry
def pass_one(member, volume, radix, axis, stride, bandwidth, latency, algorithm):
    """`pass_s` for callers in Python, with one flag a digit."""
    runs_of = np.zeros((3, 8), np.int64)
    bits = _bits(member)
    return pass_s(bits, volume, radix, axis, stride, bandwidth, latency, algorithm, runs_of)


@entry
def exchange_one(member, volume, radix, axis, stride, bandwidth, latency):
    """`exchange_s` for callers in Python, with one flag a digit."""
    return exchange_s(_bits(member), volume, radix, axis, stride, bandwidth, latency)


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
