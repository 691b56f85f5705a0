"""Compiled: transitions between layouts on a mesh, and whole blocks in batches.

A layout gives every digit a role for one tensor: WHOLE (replicated), one of its dimensions (BATCH,
SEQUENCE, COLUMNS, EXPERTS), or PARTIAL (sums that are not complete). Moving a tensor from one
layout to another is decided digit by digit:

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
    total, source, target, radix, axis, stride, bandwidth, latency, algorithm, out, runs_of
):
    """Fill `out` with seconds of scatter, exchange and gather, and the share of `total` bytes that
    a die holds in between, after the reduction and before the gather: what is worth keeping.
    """
    scatter = np.int64(0)
    exchange = np.int64(0)
    gather = np.int64(0)
    total_sum = np.int64(0)
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
        elif have == WHOLE:
            # A slice of what is already whole costs nothing.
            if want != WHOLE:
                held /= radix[d]
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
            scatter, held, radix, axis, stride, bandwidth, latency, algorithm, runs_of)
        held /= scattered
    if exchange:
        out[EXCHANGE] = exchange_s(exchange, held, radix, axis, stride, bandwidth, latency)
    if total_sum:
        one = pass_s(total_sum, held, radix, axis, stride, bandwidth, latency, algorithm, runs_of)
        out[SCATTER] += one
        out[GATHER] += one
    out[STORED] = held
    if gather:
        out[GATHER] += pass_s(
            gather, held * gathered, radix, axis, stride, bandwidth, latency, algorithm, runs_of)


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
        total, source, target, radix, axis, stride, bandwidth, latency, algorithm, out, runs_of)
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


@kernel
def edge_cost(
    totals, source, target, grad_source, grad_target, produce_s, consume_s, produce_back_s,
    consume_back_s, regather_s, streams, radix, axis, stride, bandwidth, latency, algorithm, out,
    scratch, runs_of,
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
                   algorithm, scratch, runs_of)
        scatter += scratch[SCATTER]
        gather += scratch[GATHER]
        out[0] += scratch[EXCHANGE]
        out[1] += scratch[STORED]
        out[2] += scratch[EXCHANGE]
        transition(totals[t], grad_source[t], grad_target[t], radix, axis, stride, bandwidth,
                   latency, algorithm, scratch, runs_of)
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
    runs_of = np.zeros((3, 8), np.int64)
    for i in range(source.shape[0]):
        for j in range(target.shape[0]):
            edge_cost(
                totals, source[i], target[j], grad_source[j], grad_target[i], produce_s[i],
                consume_s[j], produce_back_s[i], consume_back_s[j], regather_s[j], streams, radix,
                axis, stride, bandwidth, latency, algorithm, out, scratch, runs_of)
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


@entry
def evaluate_range(
    start, stop, stream, codes, homes, keep, ends, droppable, totals, reads, writes,
    gradient_reads, gradient_writes, forward_s, data_s, weight_s, home_s, state, entry_s, stream_s,
    stream_kept, streams, radix, axis, stride, bandwidth, latency, algorithm, result,
):
    """Price mappings start..stop-1 of a block: seconds, state, kept and rebuilt bytes.

    Node 0 is the stream, the others are the operators; `ends` (edges, 2) says which nodes an edge
    joins. Nothing is looked up between two operators: every transition is worked out.
    """
    out = np.zeros(3)
    scratch = np.zeros(4)
    runs_of = np.zeros((3, 8), np.int64)
    edges = ends.shape[0]
    units = codes.shape[1]
    for row in range(start, stop):
        s = stream[row]
        time = stream_s[s]
        kept = stream_kept[s]
        held = 0.0
        rebuilt = 0.0
        for u in range(units):
            c = codes[row, u]
            h = homes[row, u]
            time += forward_s[u + 1, c] + data_s[u + 1, c] + weight_s[u + 1, c]
            time += home_s[u + 1, h, c]
            held += state[u + 1, h, c]
        saved = 0
        for e in range(edges):
            a = ends[e, 0]
            b = ends[e, 1]
            i = s if a == 0 else codes[row, a - 1]
            j = s if b == 0 else codes[row, b - 1]
            edge_cost(
                totals[e], writes[a, i], reads[b, j], gradient_writes[b, j], gradient_reads[a, i],
                forward_s[a, i], forward_s[b, j], data_s[a, i], data_s[b, j], weight_s[b, j],
                streams, radix, axis, stride, bandwidth, latency, algorithm, out, scratch, runs_of)
            time += out[0]
            if droppable[e]:
                if keep[row, saved]:
                    kept += out[1]
                else:
                    rebuilt += out[1]
                    time += out[2] + (entry_s[e, s] if a == 0 else forward_s[a, i])
                saved += 1
        result[row, 0] = time
        result[row, 1] = held
        result[row, 2] = kept
        result[row, 3] = rebuilt
