"""Compiled: tensors between operators, and whole blocks in batches.

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

from atoll.jit import entry, kernel
from atoll.wafer.block_kernels import (
    EXCHANGE,
    GATHER,
    SCATTER,
    STORED,
    exposed_s,
    stored_layout,
    transition,
)

# Layouts of an operator's tensors under a code.
READS, WRITES, GRADIENT_READS, GRADIENT_WRITES, WEIGHTS = range(5)

# Figures of an operator under a code: seconds of its passes; an optimizer step; copies of the
# weight; parameters of a die; seconds to bring the weight in from outside the wafer.
FORWARD, DATA, WEIGHT, STEP, COPIES, HELD, PORT = range(7)

REPLICATED, _, GRADIENTS, WEIGHTS_HOME, EXTERNAL = range(5)

# What `forward_edge` and `backward_edge` return by position.
SECONDS, BYTES, AGAIN_S, LINK_IN, LINK_OUT = range(5)

# Columns of a priced mapping.
TIME, STATE, KEPT, REBUILT, AWAY, COMPUTE_S, LINKS_S, HOMES_S, RERUN_S, AWAY_S = range(10)


@kernel
def forward_edge(
    totals, source, target, produce_s, consume_s, produce_streams, consume_streams, radix, axis,
    stride, bandwidth, latency, produce_algorithm, consume_algorithm, out, scratch, runs_of,
):
    """Tensors that travel together from one operator to the next: seconds, bytes a die to keep,
    seconds that running the producer again adds for its reduction, and the gather's seconds.

    `totals` (tensors,) are bytes of the whole tensors; layouts are (tensors, digits).
    """
    scatter = 0.0
    gather = 0.0
    exchange = 0.0
    stored = 0.0
    for t in range(totals.shape[0]):
        if totals[t] <= 0.0:
            continue
        transition(totals[t], source[t], target[t], radix, axis, stride, bandwidth, latency,
                   produce_algorithm, consume_algorithm, scratch, runs_of)
        scatter += scratch[SCATTER]
        exchange += scratch[EXCHANGE]
        gather += scratch[GATHER]
        stored += scratch[STORED]
    again = exchange + exposed_s(scatter, produce_s, produce_streams)
    out[SECONDS] = again + exposed_s(gather, consume_s, consume_streams)
    out[BYTES] = stored
    out[AGAIN_S] = again
    out[LINK_IN] = gather


@kernel
def backward_edge(
    totals, source, target, consume_s, produce_s, consume_streams, produce_streams, radix, axis,
    stride, bandwidth, latency, consume_algorithm, produce_algorithm, out, scratch, runs_of,
):
    """The gradient on the way back: the consumer reduces it, the producer gathers it."""
    scatter = 0.0
    gather = 0.0
    exchange = 0.0
    for t in range(totals.shape[0]):
        if totals[t] <= 0.0:
            continue
        transition(totals[t], source[t], target[t], radix, axis, stride, bandwidth, latency,
                   consume_algorithm, produce_algorithm, scratch, runs_of)
        scatter += scratch[SCATTER]
        exchange += scratch[EXCHANGE]
        gather += scratch[GATHER]
    out[SECONDS] = exchange + exposed_s(scatter, consume_s, consume_streams)
    out[SECONDS] += exposed_s(gather, produce_s, produce_streams)
    out[LINK_OUT] = scatter


@kernel
def moved(totals, source, target, radix, axis, stride, bandwidth, latency, algorithm, out, scratch,
          runs_of):
    """Seconds of exchanges and gathers of tensors without partial sums."""
    out[0] = 0.0
    out[1] = 0.0
    for t in range(totals.shape[0]):
        if totals[t] > 0.0:
            transition(totals[t], source[t], target[t], radix, axis, stride, bandwidth, latency,
                       algorithm, algorithm, scratch, runs_of)
            out[0] += scratch[EXCHANGE]
            out[1] += scratch[GATHER]


@kernel
def stored_moved(totals, source, target, wanted, radix, axis, stride, bandwidth, latency, algorithm,
                 out, scratch, runs_of, stored):
    """`moved` from where tensors on their way from `source` to `target` are stored."""
    for t in range(totals.shape[0]):
        stored_layout(source[t], target[t], stored[t])
    moved(totals, stored, wanted, radix, axis, stride, bandwidth, latency, algorithm, out, scratch,
          runs_of)


@kernel
def away_s(journey_s, gather_s, scatter_s, forward_s, data_s, streams):
    """What a journey out and back adds beside a forward pass's gather and a data pass's scatter."""
    out = exposed_s(gather_s + journey_s, forward_s, streams) - exposed_s(
        gather_s, forward_s, streams)
    back = exposed_s(scatter_s + journey_s, data_s, streams) - exposed_s(
        scatter_s, data_s, streams)
    return out + back


@kernel
def home_cost(
    home, forward, data, weight, gathered, summed, exchange, gather, to_home, streams, rounds, held,
    out,
):
    """Seconds a microbatch and bytes a die of a weight with this home (`homes.home_cost`).

    `forward`, `data` and `weight` are the operator's figures under the codes of its passes;
    `gathered` is the second half of a gradient's sum over the forward's copies, `summed` the first
    over the weight pass's; `held` (whole or divided, parts) are bytes a parameter.
    """
    w = forward[HELD]
    g = weight[HELD]
    out[1] = (held[0, 0] + held[0, 2]) * w + (held[1, 0] + held[1, 2]) * w / forward[COPIES]
    out[1] += held[0, 1] * g + held[1, 1] * g / weight[COPIES]
    if home == EXTERNAL:
        out[0] = max(0.0, forward[PORT] - forward[FORWARD])
        out[0] += max(0.0, data[PORT] - data[DATA] - weight[WEIGHT])
        return
    out[0] = forward[STEP] if home == REPLICATED else forward[STEP] / forward[COPIES]
    out[0] += to_home / rounds + exchange
    if home in (GRADIENTS, WEIGHTS_HOME):
        out[0] += exposed_s(summed, weight[WEIGHT], streams)
    else:
        out[0] += summed / rounds
    if home == WEIGHTS_HOME:
        out[0] += exposed_s(gathered, forward[FORWARD], streams)
        gather += gathered
    else:
        out[0] += gathered / rounds
    out[0] += exposed_s(gather, data[DATA], streams)


@entry
def edge_matrix(
    totals, source, target, grad_source, grad_target, produce_s, consume_s, produce_back_s,
    consume_back_s, produce_streams, consume_streams, radix, axis, stride, bandwidth, latency,
    algorithm, forward, back, kept, again, gather, back_scatter,
):
    """Both directions for every pair of a producer's code (row) and a consumer's code (column).

    Layouts are (codes, tensors, digits), times and flags (codes,).
    """
    scratch = np.zeros(4)
    out = np.zeros(5)
    runs_of = np.zeros((3, 8), np.int64)
    for i in range(source.shape[0]):
        for j in range(target.shape[0]):
            forward_edge(
                totals, source[i], target[j], produce_s[i], consume_s[j], produce_streams[i],
                consume_streams[j], radix, axis, stride, bandwidth, latency, algorithm, algorithm,
                out, scratch, runs_of)
            forward[i, j] = out[SECONDS]
            kept[i, j] = out[BYTES]
            again[i, j] = out[AGAIN_S]
            gather[i, j] = out[LINK_IN]
            backward_edge(
                totals, grad_source[j], grad_target[i], consume_back_s[j], produce_back_s[i],
                consume_streams[j], produce_streams[i], radix, axis, stride, bandwidth, latency,
                algorithm, algorithm, out, scratch, runs_of)
            back[i, j] = out[SECONDS]
            back_scatter[i, j] = out[LINK_OUT]


@entry
def evaluate_range(
    start, stop, stream, codes, data, weight, algorithms, homes, keep, ends, droppable, totals,
    weighted, saves_output, layouts, streams, figures, sums, sizes, held, rounds, entry_s,
    stream_s, stream_kept, radix, axis, stride, bandwidth, latency, away_Bps, away_latency,
    stream_algorithm, result,
):
    """Price mappings start..stop-1 of a block.

    Node 0 is the stream, the others are the operators; `ends` (edges, 2) says which nodes an edge
    joins. `sizes` (nodes, 2) are bytes of a gradient as it is summed and of a weight, `sums`
    (nodes, 2, algorithms, codes) the seconds of either over the copies. Nothing is looked up
    between two operators: every transition is worked out.
    """
    out = np.zeros(5)
    pair = np.zeros(2)
    home = np.zeros(2)
    scratch = np.zeros(4)
    runs_of = np.zeros((3, 8), np.int64)
    stored = np.zeros((totals.shape[1], radix.shape[0]), np.int64)
    for row in range(start, stop):
        s = stream[row]
        compute = stream_s[s]
        links = 0.0
        home_time = 0.0
        state = 0.0
        for u in range(codes.shape[1]):
            f = codes[row, u]
            d = data[row, u]
            w = weight[row, u]
            node = u + 1
            compute += figures[node, f, FORWARD] + figures[node, d, DATA]
            compute += figures[node, w, WEIGHT]
            if not weighted[node]:
                continue
            algorithm = algorithms[row, u]
            exchange = 0.0
            gather = 0.0
            to_home = 0.0
            if d != f and homes[row, u] != EXTERNAL:
                moved(sizes[node, 1:], layouts[node, f, WEIGHTS], layouts[node, d, WEIGHTS],
                      radix, axis, stride, bandwidth, latency, algorithm, pair, scratch, runs_of)
                exchange = pair[0]
                gather = pair[1]
            if w != f:
                moved(sizes[node, :1], layouts[node, w, WEIGHTS], layouts[node, f, WEIGHTS],
                      radix, axis, stride, bandwidth, latency, algorithm, pair, scratch, runs_of)
                to_home = pair[0] + pair[1]
            home_cost(
                homes[row, u], figures[node, f], figures[node, d], figures[node, w],
                sums[node, 0 if homes[row, u] == REPLICATED else 1, algorithm, f],
                sums[node, 0, algorithm, w], exchange, gather, to_home, streams[node, f], rounds,
                held[homes[row, u]], home)
            home_time += home[0]
            state += home[1]
        saved = 0
        kept = stream_kept[s]
        rebuilt = 0.0
        gone = 0.0
        rerun = 0.0
        travel = 0.0
        for e in range(ends.shape[0]):
            a = ends[e, 0]
            b = ends[e, 1]
            f_a = s if a == 0 else codes[row, a - 1]
            d_a = s if a == 0 else data[row, a - 1]
            f_b = s if b == 0 else codes[row, b - 1]
            d_b = s if b == 0 else data[row, b - 1]
            w_b = s if b == 0 else weight[row, b - 1]
            alg_a = stream_algorithm if a == 0 else algorithms[row, a - 1]
            alg_b = stream_algorithm if b == 0 else algorithms[row, b - 1]
            forward_edge(
                totals[e], layouts[a, f_a, WRITES], layouts[b, f_b, READS],
                figures[a, f_a, FORWARD], figures[b, f_b, FORWARD], streams[a, f_a],
                streams[b, f_b], radix, axis, stride, bandwidth, latency, alg_a, alg_b, out,
                scratch, runs_of)
            links += out[SECONDS]
            size = out[BYTES]
            again = out[AGAIN_S]
            gather = out[LINK_IN]
            backward_edge(
                totals[e], layouts[b, d_b, GRADIENT_WRITES], layouts[a, d_a, GRADIENT_READS],
                figures[b, d_b, DATA], figures[a, d_a, DATA], streams[b, f_b], streams[a, f_a],
                radix, axis, stride, bandwidth, latency, alg_b, alg_a, out, scratch, runs_of)
            links += out[SECONDS]
            scatter = out[LINK_OUT]
            fetch = gather
            if w_b != f_b:
                stored_moved(
                    totals[e], layouts[a, f_a, WRITES], layouts[b, f_b, READS],
                    layouts[b, w_b, READS], radix, axis, stride, bandwidth, latency, alg_b, pair,
                    scratch, runs_of, stored)
                links += pair[0]
                fetch = pair[1]
            have = d_b if weighted[b] else f_b
            want = w_b if weighted[b] else d_b
            if have != want and saves_output[b]:
                moved(totals[e + 1], layouts[b, have, GRADIENT_READS],
                      layouts[b, want, GRADIENT_READS], radix, axis, stride, bandwidth, latency,
                      alg_b, pair, scratch, runs_of)
                links += pair[0]
                fetch += pair[1]
            links += exposed_s(fetch, figures[b, w_b, WEIGHT], streams[b, f_b])
            if droppable[e]:
                fate = keep[row, saved]
                if fate == 1:
                    kept += size
                else:
                    rebuilt += size
                    if fate == 0:
                        rerun += again + (entry_s[e, s] if a == 0 else figures[a, f_a, FORWARD])
                    else:
                        gone += size
                        travel += away_s(
                            size / away_Bps + away_latency, gather, scatter,
                            figures[b, f_b, FORWARD], figures[b, d_b, DATA], streams[b, f_b])
                saved += 1
        result[row, TIME] = compute + links + home_time + rerun + travel
        result[row, STATE] = state
        result[row, KEPT] = kept
        result[row, REBUILT] = rebuilt
        result[row, AWAY] = gone
        result[row, COMPUTE_S] = compute
        result[row, LINKS_S] = links
        result[row, HOMES_S] = home_time
        result[row, RERUN_S] = rerun
        result[row, AWAY_S] = travel


@entry
def moved_matrix(totals, source, target, radix, axis, stride, bandwidth, latency, algorithm,
                 exchange, gather):
    """Seconds to re-shard tensors without partial sums between every pair of layouts."""
    pair = np.zeros(2)
    scratch = np.zeros(4)
    runs_of = np.zeros((3, 8), np.int64)
    for i in range(source.shape[0]):
        for j in range(target.shape[0]):
            moved(totals, source[i], target[j], radix, axis, stride, bandwidth, latency, algorithm,
                  pair, scratch, runs_of)
            exchange[i, j] = pair[0]
            gather[i, j] = pair[1]


@entry
def stored_cube(totals, source, target, wanted, radix, axis, stride, bandwidth, latency, algorithm,
                exchange, gather):
    """Seconds to fetch tensors, stored on their way from every source to every target, in every
    layout wanted.
    """
    pair = np.zeros(2)
    scratch = np.zeros(4)
    runs_of = np.zeros((3, 8), np.int64)
    stored = np.zeros((totals.shape[0], radix.shape[0]), np.int64)
    for i in range(source.shape[0]):
        for j in range(target.shape[0]):
            for w in range(wanted.shape[0]):
                stored_moved(totals, source[i], target[j], wanted[w], radix, axis, stride,
                             bandwidth, latency, algorithm, pair, scratch, runs_of, stored)
                exchange[i, j, w] = pair[0]
                gather[i, j, w] = pair[1]
