"""Compiled: many mappings of a block at once, every transition worked out anew."""

from __future__ import annotations

from atoll.base.jit import entry, kernel
from atoll.fabric.mesh_kernels import with_scratch
from atoll.wafer.costs.block_kernels import exposed_s, reshard_s, transition

# Layouts of an operator's tensors under a code.
READS, WRITES, GRADIENT_READS, GRADIENT_WRITES, WEIGHTS = range(5)

# Figures of an operator under a code: seconds of its passes; an optimizer step; copies of the
# weight; parameters of a die; seconds to bring the weight in from outside the wafer.
FORWARD, DATA, WEIGHT, STEP, COPIES, HELD, PORT = range(7)

REPLICATED, _, GRADIENTS, WEIGHTS_HOME, EXTERNAL = range(5)

# Columns of a priced mapping.
TIME, STATE, KEPT, REBUILT, AWAY, COMPUTE_S, LINKS_S, HOMES_S, RERUN_S, AWAY_S = range(10)


@kernel
def edge(
    totals,
    source,
    target,
    writer_s,
    reader_s,
    writer_streams,
    reader_streams,
    wires,
    writer_algorithm,
    reader_algorithm,
):
    """Tensors that travel together, forward or as gradients: the operator that wrote them reduces
    them, the one that reads them gathers them. Seconds; bytes a die to keep; seconds that running
    the writer again adds for its reduction; seconds of gather and scatter before any is hidden.

    `totals` (tensors,) are bytes of the whole tensors; layouts are (tensors, digits).
    """
    scatter = 0.0
    exchange = 0.0
    gather = 0.0
    stored = 0.0
    for t in range(totals.shape[0]):
        if totals[t] > 0.0:
            found = transition(
                totals[t],
                source[t],
                source[t],
                target[t],
                wires,
                writer_algorithm,
                reader_algorithm,
            )
            scatter += found[0]
            exchange += found[1]
            gather += found[2]
            stored += found[3]
    again = exchange + exposed_s(scatter, writer_s, writer_streams)
    seconds = again + exposed_s(gather, reader_s, reader_streams)
    return seconds, stored, again, gather, scatter


@kernel
def away_s(journey_s, gather_s, scatter_s, forward_s, data_s, streams):
    """What a journey out and back adds beside a forward pass's gather and a data pass's scatter."""
    out = exposed_s(gather_s + journey_s, forward_s, streams) - exposed_s(
        gather_s, forward_s, streams
    )
    back = exposed_s(scatter_s + journey_s, data_s, streams) - exposed_s(scatter_s, data_s, streams)
    return out + back


@kernel
def home_cost(
    home,
    forward,
    data,
    weight,
    gathered,
    summed,
    exchange,
    gather,
    to_home,
    streams,
    rounds,
    held,
):
    """Seconds a microbatch and bytes a die of a weight with this home (`homes.home_cost`).

    `forward`, `data` and `weight` are the operator's figures under the codes of its passes;
    `gathered` is the second half of a gradient's sum over the forward's copies, `summed` the first
    over the weight pass's; `held` (whole or divided, parts) are bytes a parameter.
    """
    w = forward[HELD]
    g = weight[HELD]
    bytes_ = (held[0, 0] + held[0, 2]) * w + (held[1, 0] + held[1, 2]) * w / forward[COPIES]
    bytes_ += held[0, 1] * g + held[1, 1] * g / weight[COPIES]
    if home == EXTERNAL:
        seconds = max(0.0, forward[PORT] - forward[FORWARD])
        seconds += max(0.0, data[PORT] - data[DATA] - weight[WEIGHT])
        return seconds, bytes_
    seconds = forward[STEP] if home == REPLICATED else forward[STEP] / forward[COPIES]
    seconds += to_home / rounds + exchange
    if home in (GRADIENTS, WEIGHTS_HOME):
        seconds += exposed_s(summed, weight[WEIGHT], streams)
    else:
        seconds += summed / rounds
    if home == WEIGHTS_HOME:
        seconds += exposed_s(gathered, forward[FORWARD], streams)
        gather += gathered
    else:
        seconds += gathered / rounds
    seconds += exposed_s(gather, data[DATA], streams)
    return seconds, bytes_


@entry
def evaluate_range(
    start,
    stop,
    stream,
    codes,
    data,
    weight,
    algorithms,
    homes,
    keep,
    ends,
    droppable,
    totals,
    weighted,
    saves_output,
    layouts,
    streams,
    figures,
    sums,
    sizes,
    held,
    rounds,
    entry_s,
    stream_s,
    stream_kept,
    wires,
    away_Bps,
    away_latency,
    stream_algorithm,
    result,
):
    """Price mappings start..stop-1 of a block; `result` is zero before.

    Node 0 is the stream, the others are the operators; `ends` (edges, 2) says which nodes an edge
    joins. `sizes` (nodes, 2) are bytes of a gradient as it is summed and of a weight, `sums`
    (nodes, 2, algorithms, codes) the seconds of either over the copies. Nothing is looked up
    between two operators: every transition is worked out.
    """
    wires = with_scratch(wires)
    for row in range(start, stop):
        s = stream[row]
        out = result[row]
        out[COMPUTE_S] = stream_s[s]
        out[KEPT] = stream_kept[s]
        for u in range(codes.shape[1]):
            f = codes[row, u]
            d = data[row, u]
            w = weight[row, u]
            node = u + 1
            out[COMPUTE_S] += figures[node, f, FORWARD] + figures[node, d, DATA]
            out[COMPUTE_S] += figures[node, w, WEIGHT]
            if not weighted[node]:
                continue
            algorithm = algorithms[row, u]
            home = homes[row, u]
            exchange = 0.0
            gather = 0.0
            to_home = 0.0
            own = layouts[node, f, WEIGHTS]
            if d != f and home != EXTERNAL:
                exchange, gather = reshard_s(
                    sizes[node, 1:], own, own, layouts[node, d, WEIGHTS], wires, algorithm
                )
            if w != f:
                summed = layouts[node, w, WEIGHTS]
                to_home = sum(reshard_s(sizes[node, :1], summed, summed, own, wires, algorithm))
            seconds, bytes_ = home_cost(
                home,
                figures[node, f],
                figures[node, d],
                figures[node, w],
                sums[node, 0 if home == REPLICATED else 1, algorithm, f],
                sums[node, 0, algorithm, w],
                exchange,
                gather,
                to_home,
                streams[node, f],
                rounds,
                held[home],
            )
            out[HOMES_S] += seconds
            out[STATE] += bytes_
        saved = 0
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
            forth, size, again, gather, _ = edge(
                totals[e],
                layouts[a, f_a, WRITES],
                layouts[b, f_b, READS],
                figures[a, f_a, FORWARD],
                figures[b, f_b, FORWARD],
                streams[a, f_a],
                streams[b, f_b],
                wires,
                alg_a,
                alg_b,
            )
            back, _, _, _, scatter = edge(
                totals[e],
                layouts[b, d_b, GRADIENT_WRITES],
                layouts[a, d_a, GRADIENT_READS],
                figures[b, d_b, DATA],
                figures[a, d_a, DATA],
                streams[b, f_b],
                streams[a, f_a],
                wires,
                alg_b,
                alg_a,
            )
            out[LINKS_S] += forth
            out[LINKS_S] += back
            fetch = gather
            if w_b != f_b:
                exchange, fetch = reshard_s(
                    totals[e],
                    layouts[a, f_a, WRITES],
                    layouts[b, f_b, READS],
                    layouts[b, w_b, READS],
                    wires,
                    alg_b,
                )
                out[LINKS_S] += exchange
            have = layouts[b, d_b if weighted[b] else f_b, GRADIENT_READS]
            want = layouts[b, w_b if weighted[b] else d_b, GRADIENT_READS]
            if saves_output[b] and (w_b != d_b if weighted[b] else d_b != f_b):
                exchange, more = reshard_s(totals[e + 1], have, have, want, wires, alg_b)
                out[LINKS_S] += exchange
                fetch += more
            out[LINKS_S] += exposed_s(fetch, figures[b, w_b, WEIGHT], streams[b, f_b])
            if not droppable[e]:
                continue
            fate = keep[row, saved]
            saved += 1
            if fate == 1:
                out[KEPT] += size
                continue
            out[REBUILT] += size
            if fate == 0:
                out[RERUN_S] += again + (entry_s[e, s] if a == 0 else figures[a, f_a, FORWARD])
            else:
                out[AWAY] += size
                out[AWAY_S] += away_s(
                    size / away_Bps + away_latency,
                    gather,
                    scatter,
                    figures[b, f_b, FORWARD],
                    figures[b, d_b, DATA],
                    streams[b, f_b],
                )
        out[TIME] = out[COMPUTE_S] + out[LINKS_S] + out[HOMES_S] + out[RERUN_S] + out[AWAY_S]
