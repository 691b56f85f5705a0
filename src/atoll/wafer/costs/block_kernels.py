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

from atoll.fabric.mesh_kernels import exchange_s, of_one_thread, pass_s
from atoll.jit import entry, kernel

WHOLE, BATCH, SEQUENCE, COLUMNS, EXPERTS, PARTIAL, SUMMED = range(7)

CHUNKS = 4.0  # pieces in which a streamed collective runs beside its operator
SHARE = 0.5  # part of an operator's time that may hide its input, and as much for its output


@kernel
def stored_role(have, want):
    """A digit's role where a tensor waits between its reduction and its gather."""
    if want != WHOLE:
        return want
    return SUMMED if have == PARTIAL else have


@kernel
def transition(total, source, via, target, wires, scatter_algorithm, gather_algorithm):
    """Seconds of scatter, exchange and gather, and the share of `total` bytes that a die holds in
    between, after the reduction and before the gather: what is worth keeping.

    The tensor comes from where it waits between `source` and `via`; it is where it was written if
    they are the same. The operator that wrote it reduces it, the one that reads it gathers it, each
    by its own algorithm.
    """
    scatter = np.int64(0)
    exchange = np.int64(0)
    gather = np.int64(0)
    total_sum = np.int64(0)
    summed = np.int64(0)
    held = total
    scattered = 1.0
    gathered = 1.0
    radix = wires.radix
    for d in range(radix.shape[0]):
        have = stored_role(source[d], via[d])
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
    scatter_s = 0.0
    exchange_seconds = 0.0
    gather_s = 0.0
    if scatter:
        scatter_s = pass_s(scatter, held, wires, scatter_algorithm)
        held /= scattered
    if exchange:
        exchange_seconds = exchange_s(exchange, held, wires)
    if total_sum:
        one = pass_s(total_sum, held, wires, scatter_algorithm)
        scatter_s += one
        if gather_algorithm != scatter_algorithm:
            one = pass_s(total_sum, held, wires, gather_algorithm)
        gather_s += one
    if summed:
        gather_s += pass_s(summed, held, wires, gather_algorithm)
    if gather:
        gather_s += pass_s(gather, held * gathered, wires, gather_algorithm)
    return scatter_s, exchange_seconds, gather_s, held


@kernel
def exposed_s(link_s, compute_s, streams):
    """What a transfer adds to its operator: all of it, or what streaming cannot hide."""
    if not streams:
        return link_s
    hidden = max(0.0, (link_s - SHARE * compute_s)) * (CHUNKS - 1.0) / CHUNKS
    return link_s / CHUNKS + hidden


@entry
def transition_one(total, source, target, wires, algorithm):
    """The four figures of one transition, for callers in Python."""
    return transition(total, source, source, target, of_one_thread(wires), algorithm, algorithm)


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
