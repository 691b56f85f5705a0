"""One layer of a mapping: walked edge by edge, and priced.

The same walk serves the fast model here and the replay on links that are queues (`detailed.py`):
they differ in what a transition takes (`Move`) and in how much of it an operator hides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from atoll.arrays import FloatArray, IntArray
from atoll.fabric.digits import Digits
from atoll.fabric.mesh import ALGORITHMS
from atoll.wafer.costs import block_kernels as kernels
from atoll.wafer.costs.homes import home_bytes, home_cost
from atoll.wafer.costs.pricing import pricer
from atoll.wafer.costs.tables import Nodes, Setting, Tables, exposed
from atoll.wafer.encoding.block_parts import Block
from atoll.wafer.encoding.genes import AGAIN, KEEP, Away, BlockCost, BlockMapping


class Moved(NamedTuple):
    """Seconds of a transition's parts, and the bytes a die holds between reduction and gather."""

    scatter_s: float
    exchange_s: float
    gather_s: float
    held_bytes: float


_NOTHING = Moved(0.0, 0.0, 0.0, 0.0)

Move = Callable[[float, IntArray, IntArray, IntArray, str, str], Moved]
"""Bytes of a tensor; the layout it comes from, the one on the way to which it waits, the one that
is wanted; the algorithms of its reduction and of its gather."""


class Visit(NamedTuple):
    """An operator (or the stream) of a chain: its entries for the three passes, its algorithm."""

    node: Nodes
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


class Crossing(NamedTuple):
    """Tensors from one operator of a chain to the next, and what happens to them."""

    writer: Visit
    reader: Visit
    there: Moved
    back: Moved
    fetch: Moved
    """For the reader's weight gradient (or data pass): its input, and its output's gradient."""
    fate: int | None
    """None: the backward pass reads no such tensor."""
    again_s: float
    """The writer's forward pass; on the stream, the norm."""


def visits(tables: Tables, genes: BlockMapping) -> list[Visit]:
    """The operators of a block under their variables, in order."""
    setting = tables.setting
    ways = genes.collectives or ((setting.streaming, setting.algorithm),) * len(genes.codes)
    units = (nodes for chain in tables.nodes for nodes in chain)
    found = []
    for nodes, codes, (streams, algorithm) in zip(units, genes.passes, ways, strict=True):
        forward, data, weight = (nodes.find(code, streams) for code in codes)
        found.append(Visit(nodes, forward, data, weight, algorithm))
    return found


def _both(one: Moved, other: Moved) -> Moved:
    return Moved(*(a + b for a, b in zip(one, other, strict=True)))


def walk(tables: Tables, genes: BlockMapping, move: Move) -> list[list[Crossing]]:
    """Every edge of every chain."""
    at = tables.stream.index[genes.stream]
    stream = Visit(tables.stream, at, at, at, tables.setting.algorithm)
    operators, fates = iter(visits(tables, genes)), iter(genes.keep)

    def moved(
        totals: tuple[float, ...], source: IntArray, via: IntArray, target: IntArray, *ways: str
    ) -> Moved:
        found = _NOTHING
        for tensor in zip(totals, source, via, target, strict=False):
            if tensor[0] > 0.0:
                found = _both(found, move(*tensor, ways[0], ways[-1]))
        return found

    found: list[list[Crossing]] = []
    for index, chain in enumerate(tables.block.chains):
        path = [stream, *(next(operators) for _ in chain.units), stream]
        found.append([])
        for e, edge in enumerate(chain.edges):
            a, b = path[e], path[e + 1]
            wrote, reads = a.node.writes[a.forward], b.node.reads
            there = moved(edge.totals, wrote, wrote, reads[b.forward], a.algorithm, b.algorithm)
            wrote_back = b.node.gradient_writes[b.data]
            wants_back = a.node.gradient_reads[a.data]
            ways = b.algorithm, a.algorithm
            back = moved(edge.totals, wrote_back, wrote_back, wants_back, *ways)
            fetch = Moved(0.0, 0.0, there.gather_s, 0.0)
            if b.weight != b.forward:
                fetch = moved(edge.totals, wrote, reads[b.forward], reads[b.weight], b.algorithm)
            weighted = bool(b.node.parameters.any())
            have, want = (b.data, b.weight) if weighted else (b.forward, b.data)
            saves = b.node.unit is not None and (weighted or b.node.unit.on_chip)
            if saves and have != want:
                layouts = b.node.gradient_reads
                more = moved(
                    chain.edges[e + 1].totals, layouts[have], layouts[have], layouts[want],
                    b.algorithm,
                )  # fmt: skip
                fetch = _both(fetch, more)
            again = tables.entry_s(index, genes.stream) if e == 0 else a.passes_s[0]
            fate = next(fates) if edge.kept_name else None
            found[-1].append(Crossing(a, b, there, back, fetch, fate, again))
    return found


@dataclass(frozen=True)
class LayerCost:
    """One layer of a stage."""

    cost: BlockCost
    parts_s: Mapping[str, float]
    forward_s: float
    weight_s: float
    delayed_bytes: float
    """What a weight pass that is put off holds: the tensors between operators, once each."""
    buffer_bytes: float
    states: tuple[float, ...]
    """Bytes of weights, gradients and optimizer."""


@lru_cache(maxsize=4096)
def block_cost(
    block: Block, digits: Digits, setting: Setting, genes: BlockMapping, away: Away | None = None
) -> LayerCost:
    """Cost of one layer, its seconds by cause and by pass."""
    tables = tables_of(block, digits, setting, genes)
    wires = tables.mesh[0]

    def move(
        total: float, source: IntArray, via: IntArray, target: IntArray, scatter: str, gather: str
    ) -> Moved:
        ways = ALGORITHMS.index(scatter), ALGORITHMS.index(gather)
        return Moved(*kernels.transition_one(total, source, via, target, wires, *ways))

    chosen = visits(tables, genes)
    stream_s = tables.stream_s(genes.stream)
    passes = [visit.passes_s for visit in chosen]
    homes_s, states = 0.0, np.zeros(3)
    for visit, home in zip(chosen, genes.homes, strict=True):
        if visit.node.parameters.any():
            seconds, held = _home(visit, home, setting, move)
            homes_s += seconds
            states += held
    share = tables.stream_share(genes.stream) * setting.held_bytes(block)
    links = again = journeys = delayed = rebuilt = left = 0.0
    kept = share
    for crossing in (crossing for chain in walk(tables, genes, move) for crossing in chain):
        made_s, link_s, away_s = _crossing_s(crossing, away)
        size, fate = crossing.there.held_bytes, crossing.fate
        links += link_s
        delayed += size
        if fate == KEEP:
            kept += size
        elif fate is not None:
            rebuilt += size
            if fate == AGAIN:
                again += made_s
            else:
                left += size
                journeys += away_s
    compute = stream_s + sum(f + d + w for f, d, w in passes)
    parts = {
        "compute": compute,
        "tensor_parallel": links,  # tensors that change their layout
        "sharded_weights": homes_s,  # gradient sums and the optimizer included
        "recompute": again,
        "offload": journeys,
    }
    return LayerCost(
        BlockCost(sum(parts.values()), float(states.sum()), kept, rebuilt, left), parts,
        stream_s / 3.0 + sum(f for f, _, _ in passes), sum(w for _, _, w in passes),
        delayed, tables.buffer_bytes(genes.stream), tuple(states.tolist()),
    )  # fmt: skip


def _crossing_s(crossing: Crossing, away: Away | None) -> tuple[float, float, float]:
    """Seconds to make the tensors once more, of all their transitions beyond what operators hide,
    and of a journey to another stage's memory and back.
    """
    a, b, there, back = crossing.writer, crossing.reader, crossing.there, crossing.back

    def late(link_s: float, compute_s: float, visit: Visit) -> float:
        return float(exposed(link_s, compute_s, visit.streams))

    forward_a, data_a, _ = a.passes_s
    forward_b, data_b, weight_b = b.passes_s
    made = there.exchange_s + late(there.scatter_s, forward_a, a)
    hidden = late(there.gather_s, forward_b, b), late(back.scatter_s, data_b, b)
    links = made + hidden[0] + back.exchange_s + hidden[1] + late(back.gather_s, data_a, a)
    links += crossing.fetch.exchange_s + late(crossing.fetch.gather_s, weight_b, b)
    journey = 0.0 if away is None else there.held_bytes / away.bandwidth_Bps + away.latency_s
    out = late(there.gather_s + journey, forward_b, b) - hidden[0]
    home = late(back.scatter_s + journey, data_b, b) - hidden[1]
    return made + crossing.again_s, links, out + home


def _home(visit: Visit, home: str, setting: Setting, move: Move) -> tuple[float, FloatArray]:
    """Seconds of a weight with this home, and its bytes of weights, gradients and optimizer."""
    node, way = visit.node, visit.algorithm
    assert node.unit is not None
    layouts, parameters = node.weights[:, 0], float(node.unit.parameters)

    def moved(each: float, have: int, want: int) -> Moved:
        if have == want:
            return _NOTHING
        return move(each * parameters, layouts[have], layouts[have], layouts[want], way, way)

    data = moved(setting.states.weight, visit.forward, visit.data)
    to_home = moved(setting.states.reduced, visit.weight, visit.forward)
    f, d, w = (np.array([entry]) for entry in (visit.forward, visit.data, visit.weight))
    moves = data.exchange_s, data.gather_s, to_home.exchange_s + to_home.gather_s
    seconds, _ = home_cost(node, home, setting, f, d, w, *moves)
    return float(seconds[0]), np.concatenate(home_bytes(setting.states, home, node, f, w))


def tables_of(block: Block, digits: Digits, setting: Setting, genes: BlockMapping) -> Tables:
    """Tables of the codes of one mapping alone."""
    only = {"stream": (genes.stream,)} | {
        unit.name: codes for unit, codes in zip(block.units, genes.used, strict=True)
    }
    modes = tuple(sorted({streams for streams, _ in genes.collectives})) or None
    own = zip(block.units, (way for _, way in genes.collectives), strict=False)
    return Tables(
        block, digits, setting, pricer(setting.wafer.chip), only, modes=modes,
        algorithms={unit.name: way for unit, way in own},
    )  # fmt: skip
