"""Compiled: transitions between layouts on a mesh, what streaming hides of them, and tensors
between operators.

A layout gives every digit a role for one tensor: WHOLE (replicated), one of its dimensions (BATCH,
SEQUENCE, COLUMNS, EXPERTS), or PARTIAL (sums that are not complete). Moving a tensor from one
layout to another is decided digit by digit:

    PARTIAL -> dimension      reduce-scatter        dimension -> WHOLE   all-gather
    PARTIAL -> WHOLE          both (all-reduce)     dimension -> other   all-to-all
    WHOLE   -> dimension      nothing: keep a slice

in the order reduce-scatter, all-to-all, all-gather. A tensor is stored between the reduction and
the gather; digits of an all-reduce are then SUMMED: whole, and gathered once more if they are
wanted whole again. `docs/wafer.md` has the formulas.

An operator has a code for each of its passes. Along an edge from a to b:

    forward    a's forward layout to b's; kept between a's reduction and b's gather
    backward   the gradient, from b's data pass to a's
    fetch      what b's weight gradient wants in its own layout: the input from where it was stored,
               the gradient of the output from b's data pass. Operators without weights fetch the
               input for their data pass (attention its output too).
    away       a stored tensor's journey to another stage's memory, beside b's forward pass, and
               back, beside b's data pass
"""

from __future__ import annotations

import numpy as np

from atoll.fabric.mesh_kernels import exchange_s, of_one_thread, pass_s
from atoll.jit import entry, kernel
from atoll.wafer.encoding.role_kernels import PARTIAL, SUMMED, WHOLE

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
def transition_one(total, source, via, target, wires, scatter_algorithm, gather_algorithm):
    """The four figures of one transition, for callers in Python."""
    return transition(
        total, source, via, target, of_one_thread(wires), scatter_algorithm, gather_algorithm
    )


@kernel
def moved(totals, source, via, target, wires, algorithm):
    """Seconds of exchanges and gathers of tensors without partial sums, from where they wait on
    their way from `source` to `via`.
    """
    exchange = 0.0
    gather = 0.0
    for t in range(totals.shape[0]):
        if totals[t] > 0.0:
            found = transition(totals[t], source[t], via[t], target[t], wires, algorithm, algorithm)
            exchange += found[1]
            gather += found[2]
    return exchange, gather


@entry
def parts_matrix(totals, source, target, wires, algorithm, scatter, exchange, gather, stored):
    """Seconds of each part of the way of tensors that travel together, and bytes a die to keep, for
    every pair of a layout that was written (row) and one that is read (column).

    `totals` (tensors,) are bytes of the whole tensors; layouts are (codes, tensors, digits).
    """
    wires = of_one_thread(wires)
    for i in range(source.shape[0]):
        for j in range(target.shape[0]):
            for t in range(totals.shape[0]):
                if totals[t] > 0.0:
                    found = transition(
                        totals[t],
                        source[i, t],
                        source[i, t],
                        target[j, t],
                        wires,
                        algorithm,
                        algorithm,
                    )
                    scatter[i, j] += found[0]
                    exchange[i, j] += found[1]
                    gather[i, j] += found[2]
                    stored[i, j] += found[3]


@entry
def ahead_matrix(parts, rows, columns, source_s, source_streams, target_s, target_streams, found):
    """What a tensor's way takes between all entries of two operators, beside their forward passes
    of so many seconds: `parts` are those of `parts_matrix` between layouts that differ, of which
    every entry has one. Fills (forward, reduction with exchange, gather, bytes to keep).
    """
    for i in range(len(rows)):
        for j in range(len(columns)):
            a, b = rows[i], columns[j]
            made = parts[1, a, b] + exposed_s(parts[0, a, b], source_s[i], source_streams[i])
            late = exposed_s(parts[2, a, b], target_s[j], target_streams[j])
            found[0, i, j] = made + late
            found[1, i, j] = made
            found[2, i, j] = parts[2, a, b]
            found[3, i, j] = parts[3, a, b]


@entry
def back_matrix(parts, rows, columns, source_s, source_streams, target_s, target_streams, found):
    """The same of gradients, which the second operator writes and the first one reads, beside their
    data passes. Fills (the way back, its reduction).
    """
    for i in range(len(columns)):
        for j in range(len(rows)):
            a, b = rows[j], columns[i]
            back = parts[1, a, b] + exposed_s(parts[0, a, b], target_s[j], target_streams[j])
            found[0, i, j] = back + exposed_s(parts[2, a, b], source_s[i], source_streams[i])
            found[1, i, j] = parts[0, a, b]


@entry
def moved_matrix(totals, source, target, wires, algorithm, exchange, gather):
    """Seconds to re-shard tensors without partial sums between every pair of layouts."""
    wires = of_one_thread(wires)
    for i in range(source.shape[0]):
        for j in range(target.shape[0]):
            exchange[i, j], gather[i, j] = moved(
                totals, source[i], source[i], target[j], wires, algorithm
            )


@entry
def stored_cube(totals, source, target, wanted, wires, algorithm, exchange, gather):
    """Seconds to fetch tensors, stored on their way from every source to every target, in every
    layout wanted.
    """
    wires = of_one_thread(wires)
    for i in range(source.shape[0]):
        for j in range(target.shape[0]):
            for w in range(wanted.shape[0]):
                exchange[i, j, w], gather[i, j, w] = moved(
                    totals, source[i], target[j], wanted[w], wires, algorithm
                )
