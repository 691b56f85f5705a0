"""Cost of one layer of a mapping, edge by edge; transitions as collectives for link models.

`edge_transfers` serves the fast model here and the replay on links that are queues (`detailed.py`),
which differ in the seconds of a transition (`Move`) and in how much of it an operator hides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from math import prod
from typing import NamedTuple

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.fabric.digits import Digits
from atoll.fabric.mesh import ALGORITHMS
from atoll.wafer.costs import block_kernels as kernels
from atoll.wafer.costs.die_pricer import die_pricer
from atoll.wafer.costs.tables import BlockTables, CostSetting, NodeTable, exposed
from atoll.wafer.costs.weight_placement import home_bytes, home_cost
from atoll.wafer.encoding import role_kernels as roles
from atoll.wafer.encoding.block_parts import (
    KEEP,
    RECOMPUTE,
    BlockCost,
    BlockMapping,
    HelperPath,
    WaferBlock,
)


class TransitionCost(NamedTuple):
    """Seconds of a transition's parts, and the bytes a die holds between reduction and gather."""

    scatter_s: float
    exchange_s: float
    gather_s: float
    stored_bytes: float


NO_COST = TransitionCost(0.0, 0.0, 0.0, 0.0)

Move = Callable[[float, Ints, Ints, Ints, str, str], TransitionCost]
"""Arguments: bytes of a tensor; its source layout, the layout on the way to which it is stored, its
target layout; the algorithms of its reduction and of its gather."""


class MappedOperator(NamedTuple):
    """An operator (or the stream) of a chain: its entries for the three passes, its algorithm."""

    node: NodeTable
    forward: int
    data: int
    weight: int
    algorithm: str

    @property
    def streams(self) -> bool:
        return bool(self.node.streams[self.forward])

    @property
    def passes_s(self) -> tuple[float, float, float]:
        node = self.node
        figures = node.forward_s[self.forward], node.data_s[self.data], node.weight_s[self.weight]
        return float(figures[0]), float(figures[1]), float(figures[2])


class EdgeTransfer(NamedTuple):
    """Tensors from one operator of a chain to the next, and what happens to them."""

    writer: MappedOperator
    reader: MappedOperator
    forward: TransitionCost
    backward: TransitionCost
    fetch: TransitionCost
    """For the reader's weight gradient (or data pass): its input, and its output's gradient."""
    fate: int | None
    """None: the backward pass reads no such tensor."""
    recompute_s: float
    """The writer's forward pass; on the stream, the norm."""


def mapped_operators(tables: BlockTables, genes: BlockMapping) -> list[MappedOperator]:
    """Return the operators of a block with the entries a mapping chooses, in order."""
    setting = tables.setting
    collectives = genes.collectives or ((setting.streaming, setting.algorithm),) * len(genes.codes)
    units = chain.from_iterable(tables.nodes)
    operators = []
    for nodes, codes, (streams, algorithm) in zip(units, genes.passes, collectives, strict=True):
        forward, data, weight = (nodes.entry(code, streams) for code in codes)
        operators.append(MappedOperator(nodes, forward, data, weight, algorithm))
    return operators


def _summed(first: TransitionCost, second: TransitionCost) -> TransitionCost:
    return TransitionCost(*(a + b for a, b in zip(first, second, strict=True)))


def edge_transfers(
    tables: BlockTables, genes: BlockMapping, move: Move
) -> list[list[EdgeTransfer]]:
    """Return the transfers along every edge of every chain."""
    entry = tables.stream.index[genes.stream]
    stream = MappedOperator(tables.stream, entry, entry, entry, tables.setting.algorithm)
    operators, fates = iter(mapped_operators(tables, genes)), iter(genes.keep)

    def moved(
        totals: tuple[float, ...], source: Ints, via: Ints, target: Ints,
        *algorithms: str,
    ) -> TransitionCost:  # fmt: skip
        cost = NO_COST
        for tensor in zip(totals, source, via, target, strict=False):
            if tensor[0] > 0.0:
                cost = _summed(cost, move(*tensor, algorithms[0], algorithms[-1]))
        return cost

    transfers: list[list[EdgeTransfer]] = []
    for index, described in enumerate(tables.block.chains):
        path = [stream, *(next(operators) for _ in described.units), stream]
        transfers.append([])
        for position, edge in enumerate(described.edges):
            writer, reader = path[position], path[position + 1]
            written, reads = writer.node.writes[writer.forward], reader.node.reads
            layouts = written, written, reads[reader.forward]
            forward = moved(edge.totals, *layouts, writer.algorithm, reader.algorithm)
            written_gradient = reader.node.gradient_writes[reader.data]
            read_gradient = writer.node.gradient_reads[writer.data]
            layouts = written_gradient, written_gradient, read_gradient
            backward = moved(edge.totals, *layouts, reader.algorithm, writer.algorithm)
            fetch = TransitionCost(0.0, 0.0, forward.gather_s, 0.0)
            if reader.weight != reader.forward:
                layouts = written, reads[reader.forward], reads[reader.weight]
                fetch = moved(edge.totals, *layouts, reader.algorithm)
            weighted = bool(reader.node.parameters.any())
            have, want = (reader.data, reader.weight) if weighted else (reader.forward, reader.data)
            saves = reader.node.unit is not None and (weighted or reader.node.unit.on_chip)
            if saves and have != want:
                gradients, totals = reader.node.gradient_reads, described.edges[position + 1].totals
                layouts = gradients[have], gradients[have], gradients[want]
                fetch = _summed(fetch, moved(totals, *layouts, reader.algorithm))
            first = position == 0
            remake_s = tables.entry_s(index, genes.stream) if first else writer.passes_s[0]
            fate = next(fates) if edge.kept_name else None
            transfer = EdgeTransfer(writer, reader, forward, backward, fetch, fate, remake_s)
            transfers[-1].append(transfer)
    return transfers


@dataclass(frozen=True)
class MappedLayerCost:
    """Cost of one layer of a stage."""

    cost: BlockCost
    parts_s: Mapping[str, float]
    forward_s: float
    weight_s: float
    delayed_bytes: float
    """Bytes that a delayed weight pass holds: every tensor between operators once."""
    buffer_bytes: float
    states: tuple[float, ...]
    """Bytes of weights, gradients and optimizer."""


@lru_cache(maxsize=4096)
def block_cost(
    block: WaferBlock,
    digits: Digits,
    setting: CostSetting,
    genes: BlockMapping,
    away: HelperPath | None = None,
) -> MappedLayerCost:
    """Return the cost of one layer, with its seconds by cause and by pass."""
    tables = mapping_tables(block, digits, setting, genes)
    wires = tables.mesh[0]

    def move(
        total: float, source: Ints, via: Ints, target: Ints, scatter: str, gather: str
    ) -> TransitionCost:
        algorithms = ALGORITHMS.index(scatter), ALGORITHMS.index(gather)
        return TransitionCost(
            *kernels.single_transition(total, source, via, target, wires, *algorithms)
        )

    operators = mapped_operators(tables, genes)
    stream_s = tables.stream_s(genes.stream)
    passes = [operator.passes_s for operator in operators]
    homes_s, states = 0.0, np.zeros(3)
    for operator, home in zip(operators, genes.homes, strict=True):
        if operator.node.parameters.any():
            seconds, home_states = _home(operator, home, setting, move)
            homes_s += seconds
            states += home_states
    kept_bytes = tables.stream_share(genes.stream) * setting.stream_saved_bytes(block)
    link_s = recompute_s = offload_s = delayed_bytes = rebuilt_bytes = offload_bytes = 0.0
    for crossing in chain.from_iterable(edge_transfers(tables, genes, move)):
        remake_s, exposed_s, journey_s = _crossing_s(crossing, away)
        tensor_bytes, fate = crossing.forward.stored_bytes, crossing.fate
        link_s += exposed_s
        delayed_bytes += tensor_bytes
        if fate == KEEP:
            kept_bytes += tensor_bytes
        elif fate is not None:
            rebuilt_bytes += tensor_bytes
            if fate == RECOMPUTE:
                recompute_s += remake_s
            else:
                offload_bytes += tensor_bytes
                offload_s += journey_s
    compute_s = stream_s + sum(f + d + w for f, d, w in passes)
    parts = {
        "compute": compute_s,
        "tensor_parallel": link_s,  # tensors that change their layout
        "sharded_weights": homes_s,  # gradient sums and the optimizer included
        "recompute": recompute_s,
        "offload": offload_s,
    }
    return MappedLayerCost(
        BlockCost(
            sum(parts.values()), float(states.sum()), kept_bytes, rebuilt_bytes, offload_bytes
        ),
        parts, stream_s / 3.0 + sum(f for f, _, _ in passes), sum(w for _, _, w in passes),
        delayed_bytes, tables.buffer_bytes(genes.stream), tuple(states.tolist()),
    )  # fmt: skip


def _crossing_s(crossing: EdgeTransfer, away: HelperPath | None) -> tuple[float, float, float]:
    """Return the seconds to recompute the tensors, the exposed seconds of all their transitions,
    and the seconds that offloading them to another stage's memory adds.
    """
    writer, reader, fetch = crossing.writer, crossing.reader, crossing.fetch
    forward, backward = crossing.forward, crossing.backward

    def exposed_s(link_s: float, compute_s: float, operator: MappedOperator) -> float:
        return float(exposed(link_s, compute_s, operator.streams))

    writer_forward_s, writer_data_s, _ = writer.passes_s
    forward_s, data_s, weight_s = reader.passes_s
    written_s = forward.exchange_s + exposed_s(forward.scatter_s, writer_forward_s, writer)
    gather_s = exposed_s(forward.gather_s, forward_s, reader)
    scatter_s = exposed_s(backward.scatter_s, data_s, reader)
    total_s = written_s + gather_s + backward.exchange_s + scatter_s
    total_s = total_s + exposed_s(backward.gather_s, writer_data_s, writer)
    total_s += fetch.exchange_s + exposed_s(fetch.gather_s, weight_s, reader)
    journey_s = 0.0 if away is None else away.journey_s(forward.stored_bytes)
    out_s = exposed_s(forward.gather_s + journey_s, forward_s, reader) - gather_s
    back_s = exposed_s(backward.scatter_s + journey_s, data_s, reader) - scatter_s
    return written_s + crossing.recompute_s, total_s, out_s + back_s


def _home(op: MappedOperator, home: str, setting: CostSetting, move: Move) -> tuple[float, Floats]:
    """Return seconds, and bytes of weights, gradients and optimizer, of a weight's home."""
    node, algorithm = op.node, op.algorithm
    assert node.unit is not None
    layouts, parameters = node.weight_layouts[:, 0], float(node.unit.parameters)

    def moved(bytes_per_parameter: float, have: int, want: int) -> TransitionCost:
        if have == want:
            return NO_COST
        total = bytes_per_parameter * parameters
        return move(total, layouts[have], layouts[have], layouts[want], algorithm, algorithm)

    data = moved(setting.states.weight, op.forward, op.data)
    to_home = moved(setting.states.reduced, op.weight, op.forward)
    f, d, w = (np.array([entry]) for entry in (op.forward, op.data, op.weight))
    moves = data.exchange_s, data.gather_s, to_home.exchange_s + to_home.gather_s
    seconds, _ = home_cost(node, home, setting, f, d, w, *moves)
    return float(seconds[0]), np.concatenate(home_bytes(setting.states, home, node, f, w))


def mapping_tables(
    block: WaferBlock, digits: Digits, setting: CostSetting, genes: BlockMapping
) -> BlockTables:
    """Return the tables of the codes that a mapping uses."""
    allowed_codes = {"stream": (genes.stream,)} | {
        unit.name: codes for unit, codes in zip(block.units, genes.used, strict=True)
    }
    modes = tuple(sorted({streams for streams, _ in genes.collectives})) or None
    pairs = zip(block.units, genes.collectives, strict=False)
    return BlockTables(
        block, digits, setting, die_pricer(setting.wafer.chip), allowed_codes, modes=modes,
        algorithms={unit.name: algorithm for unit, (_, algorithm) in pairs},
    )  # fmt: skip


DigitCollective = tuple[list[bool], float]
"""Member digits, and bytes per die: after an all-gather, before a reduce-scatter, or exchanged."""


class TransitionCollectives(NamedTuple):
    """The collectives of a transition, and the bytes a die holds between reduction and gather."""

    scatter: tuple[DigitCollective, ...]
    exchange: tuple[DigitCollective, ...]
    gather: tuple[DigitCollective, ...]
    stored_bytes: float


def collectives_between(
    digits: Digits, total: float, have: Sequence[int], want: Sequence[int]
) -> TransitionCollectives:
    """Return the collectives that bring a tensor of `total` bytes from `have` to `want`."""
    radix = [int(r) for r in digits.radix]
    replicated, partial = (roles.REPLICATED, roles.SUMMED), roles.PARTIAL
    die_bytes = total
    for r, h, w in zip(radix, have, want, strict=True):
        if h not in (*replicated, partial) or (h in replicated and w != roles.REPLICATED):
            die_bytes /= r
    pairs = list(zip(have, want, strict=True))
    scatter = [h == partial and w != roles.REPLICATED for h, w in pairs]
    summed = [h == partial and w == roles.REPLICATED for h, w in pairs]
    regathered = [h == roles.SUMMED and w == roles.REPLICATED for h, w in pairs]
    divided = [h not in (*replicated, partial) for h in have]
    exchanged = [
        c and w not in (roles.REPLICATED, h) for c, (h, w) in zip(divided, pairs, strict=True)
    ]
    gather = [c and w == roles.REPLICATED for c, (_, w) in zip(divided, pairs, strict=True)]
    partial_bytes = die_bytes
    die_bytes /= prod(r for r, m in zip(radix, scatter, strict=True) if m)
    gathered_bytes = die_bytes * prod(r for r, m in zip(radix, gather, strict=True) if m)
    return TransitionCollectives(
        ((scatter, partial_bytes), (summed, die_bytes)),
        ((exchanged, die_bytes),) if any(exchanged) else (),
        ((summed, die_bytes), (regathered, die_bytes), (gather, gathered_bytes)),
        die_bytes,
    )


def stored_layout(source: Ints, target: Ints) -> tuple[int, ...]:
    """Return the layout between a tensor's reduction and its gather."""
    summed = np.where(source == roles.PARTIAL, roles.SUMMED, source)
    return tuple(np.where(target != roles.REPLICATED, target, summed).tolist())
