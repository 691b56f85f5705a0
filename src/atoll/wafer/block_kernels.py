"""Compiled: transitions between layouts on a mesh, and what streaming hides of them.

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

from atoll.fabric.mesh_kernels import exchange_s, pass_s
from atoll.jit import entry, kernel

WHOLE, BATCH, SEQUENCE, COLUMNS, EXPERTS, PARTIAL, SUMMED = range(7)

# What `transition` returns by position.
SCATTER, EXCHANGE, GATHER, STORED = range(4)

CHUNKS = 4.0  # pieces in which a streamed collective runs beside its operator
SHARE = 0.5  # part of an operator's time that may hide its input, and as much for its output


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
