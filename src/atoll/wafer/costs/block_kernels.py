"""Compiled: transitions between layouts on a mesh, their overlap with operators, and tensors
between operators.

A layout gives every digit a role for one tensor: REPLICATED, one of its dimensions (BATCH,
SEQUENCE, COLUMNS, EXPERTS), or PARTIAL (sums that are not complete). A transition from one layout
to another is decided digit by digit:

    PARTIAL -> dimension       reduce-scatter       dimension -> REPLICATED   all-gather
    PARTIAL -> REPLICATED      both (all-reduce)    dimension -> dimension    all-to-all
    REPLICATED -> dimension    nothing: keep a slice

in the order reduce-scatter, all-to-all, all-gather. A tensor is stored between the reduction and
the gather; digits of an all-reduce are then SUMMED: replicated, and gathered again if they are
read replicated. `docs/wafer.md` has the formulas.

An operator has a code for each of its passes. Along an edge from a to b:

    forward    a's forward layout to b's; kept between a's reduction and b's gather
    backward   the gradient, from b's data pass to a's
    fetch      what b's weight gradient reads in its own layout: the stored input, and the gradient
               of the output from b's data pass. Operators without weights fetch the input for
               their data pass (attention its output too).
    offload    a stored tensor's transfer to another stage's memory, which overlaps b's forward
               pass, and back, which overlaps b's data pass
"""

from __future__ import annotations

import numpy as np

from atoll.base.jit import entry, kernel
from atoll.fabric.mesh_kernels import exchange_s, pass_s, with_scratch
from atoll.wafer.encoding.role_kernels import PARTIAL, REPLICATED, SUMMED

CHUNKS = 4.0  # pieces in which a streamed collective overlaps its operator
SHARE = 0.5  # of an operator's time that may hide its input; the same for its output


@kernel
def stored_role(have, want):
    """Return a digit's role in the layout between a tensor's reduction and its gather."""
    if want != REPLICATED:
        return want
    return SUMMED if have == PARTIAL else have


@kernel
def transition(total, source, via, target, wires, scatter_algorithm, gather_algorithm):
    """Return seconds of scatter, exchange and gather, and the bytes per die of a tensor of `total`
    bytes between its reduction and its gather, where it is stored.

    The tensor starts in the layout stored between `source` and `via`, or as written if they are the
    same. The operator that wrote it reduces it, the reading operator gathers it, each by its own
    algorithm.
    """
    scatter = np.int64(0)
    exchange = np.int64(0)
    gather = np.int64(0)
    total_sum = np.int64(0)
    regather = np.int64(0)
    die_bytes = total
    scattered = 1.0
    gathered = 1.0
    radix = wires.radix
    for d in range(radix.shape[0]):
        have = stored_role(source[d], via[d])
        want = target[d]
        bit = np.int64(1) << d
        if have == PARTIAL:
            if want == REPLICATED:
                total_sum |= bit
            else:
                scatter |= bit
                scattered *= radix[d]
        elif have in (REPLICATED, SUMMED):
            # A slice of a replicated tensor costs nothing.
            if want != REPLICATED:
                die_bytes /= radix[d]
            elif have == SUMMED:
                regather |= bit
        else:
            die_bytes /= radix[d]
            if want == REPLICATED:
                gather |= bit
                gathered *= radix[d]
            elif want != have:
                exchange |= bit
    scatter_s = 0.0
    exchange_seconds = 0.0
    gather_s = 0.0
    if scatter:
        scatter_s = pass_s(scatter, die_bytes, wires, scatter_algorithm)
        die_bytes /= scattered
    if exchange:
        exchange_seconds = exchange_s(exchange, die_bytes, wires)
    if total_sum:
        sum_pass_s = pass_s(total_sum, die_bytes, wires, scatter_algorithm)
        scatter_s += sum_pass_s
        if gather_algorithm != scatter_algorithm:
            sum_pass_s = pass_s(total_sum, die_bytes, wires, gather_algorithm)
        gather_s += sum_pass_s
    if regather:
        gather_s += pass_s(regather, die_bytes, wires, gather_algorithm)
    if gather:
        gather_s += pass_s(gather, die_bytes * gathered, wires, gather_algorithm)
    return scatter_s, exchange_seconds, gather_s, die_bytes


@kernel
def exposed_s(link_s, compute_s, streams):
    """Return the seconds a transfer adds to its operator: all, or what streaming cannot hide."""
    if not streams:
        return link_s
    unhidden_s = max(0.0, (link_s - SHARE * compute_s)) * (CHUNKS - 1.0) / CHUNKS
    return link_s / CHUNKS + unhidden_s


@entry
def single_transition(total, source, via, target, wires, scatter_algorithm, gather_algorithm):
    """Call `transition` from Python."""
    return transition(
        total, source, via, target, with_scratch(wires), scatter_algorithm, gather_algorithm
    )


@kernel
def reshard_s(totals, source, via, target, wires, algorithm):
    """Return seconds of exchanges and gathers of tensors stored between `source` and `via`."""
    exchange = 0.0
    gather = 0.0
    for t in range(totals.shape[0]):
        if totals[t] > 0.0:
            times = transition(totals[t], source[t], via[t], target[t], wires, algorithm, algorithm)
            exchange += times[1]
            gather += times[2]
    return exchange, gather


@entry
def transition_matrix(totals, source, target, wires, algorithm, scatter, exchange, gather, stored):
    """Add seconds of each part of the transition of tensors, and bytes per die to store, for every
    pair of a written layout (row) and a read layout (column).

    `totals` (tensors,) are bytes of the undivided tensors; layouts are (codes, tensors, digits).
    """
    wires = with_scratch(wires)
    for i in range(source.shape[0]):
        for j in range(target.shape[0]):
            for t in range(totals.shape[0]):
                total, have, want = totals[t], source[i, t], target[j, t]
                if total > 0.0:
                    times = transition(total, have, have, want, wires, algorithm, algorithm)
                    scatter[i, j] += times[0]
                    exchange[i, j] += times[1]
                    gather[i, j] += times[2]
                    stored[i, j] += times[3]


@entry
def forward_matrix(parts, rows, columns, source_s, source_streams, target_s, target_streams, out):
    """Fill (forward, reduction and exchange, gather, bytes to store) between all entries of two
    operators, overlapped with their forward passes. `parts` come from `transition_matrix` between
    distinct layouts; `rows` and `columns` are the layouts of the entries.
    """
    for i in range(len(rows)):
        for j in range(len(columns)):
            a, b = rows[i], columns[j]
            written_s = parts[1, a, b] + exposed_s(parts[0, a, b], source_s[i], source_streams[i])
            gather_s = exposed_s(parts[2, a, b], target_s[j], target_streams[j])
            out[0, i, j] = written_s + gather_s
            out[1, i, j] = written_s
            out[2, i, j] = parts[2, a, b]
            out[3, i, j] = parts[3, a, b]


@entry
def backward_matrix(parts, rows, columns, source_s, source_streams, target_s, target_streams, out):
    """Fill (backward, its reduction) for gradients, overlapped with the data passes."""
    for i in range(len(columns)):
        for j in range(len(rows)):
            a, b = rows[j], columns[i]
            backward_s = parts[1, a, b] + exposed_s(parts[0, a, b], target_s[j], target_streams[j])
            out[0, i, j] = backward_s + exposed_s(parts[2, a, b], source_s[i], source_streams[i])
            out[1, i, j] = parts[0, a, b]


@entry
def reshard_matrix(totals, source, target, wires, algorithm, exchange, gather):
    """Fill seconds to re-shard tensors without partial sums between every pair of layouts."""
    wires = with_scratch(wires)
    for i in range(source.shape[0]):
        for j in range(target.shape[0]):
            exchange[i, j], gather[i, j] = reshard_s(
                totals, source[i], source[i], target[j], wires, algorithm
            )


@entry
def fetch_cube(totals, source, target, wanted, wires, algorithm, exchange, gather):
    """Fill seconds to fetch tensors, stored between source and target, in every wanted layout."""
    wires = with_scratch(wires)
    for i in range(source.shape[0]):
        for j in range(target.shape[0]):
            for w in range(wanted.shape[0]):
                exchange[i, j, w], gather[i, j, w] = reshard_s(
                    totals, source[i], target[j], wanted[w], wires, algorithm
                )
