"""Many mappings of one block at once: the compiled twin of `wafer.costs.layer`.

`Batch` lays the tables of a block out as plain arrays; `evaluate` prices mappings given as indices,
on all cores. It works out every transition anew instead of reading the exact part's edge tables, so
that the two check each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.executors.threads import over_ranges
from atoll.fabric.mesh import ALGORITHMS
from atoll.step.states import States
from atoll.wafer.costs.tables import BlockTables, NodeTable
from atoll.wafer.encoding.block_parts import HOMES, KINDS, BlockMapping, HelperPath

from . import wafer_batch_kernels as kernels

COLUMNS = 10  # of a priced mapping


def bytes_per_parameter(states: States) -> Floats:
    """`home_bytes` as a table: (homes, whole or divided over the copies, parts of the states)."""
    ways = [(states.parts(1.0, 0.0, zero), states.parts(0.0, 1.0, zero)) for zero in range(4)]
    return np.array([*ways, np.zeros((2, 3))])


@dataclass(frozen=True, eq=False)
class Genes:
    """Mappings as indices: stream (n,), fates (n, saved), the others (n, operators).

    `codes`, `data` and `weight` are entries of the operator's nodes for its three passes.
    """

    stream: Ints
    codes: Ints
    data: Ints
    weight: Ints
    algorithms: Ints
    homes: Ints
    keep: Ints

    def __len__(self) -> int:
        return len(self.stream)


class Batch:
    """The arrays that the compiled evaluator reads."""

    def __init__(self, tables: BlockTables, away: HelperPath | None = None) -> None:
        self.tables = tables
        self.nodes: list[NodeTable] = [tables.stream, *(n for chain in tables.nodes for n in chain)]
        block, digits, setting = tables.block, tables.digits, tables.setting
        states = setting.states
        self._each = (states.reduced, states.weight)
        most = max(len(n.codes) for n in self.nodes)
        count = len(self.nodes)
        layouts = np.zeros((count, most, 5, 2, digits.count), np.int64)
        figures = np.zeros((count, most, 7))
        figures[:, :, kernels.COPIES] = 1.0
        streams = np.zeros((count, most), np.bool_)
        sums = np.zeros((count, 2, len(ALGORITHMS), most))
        for i, node in enumerate(self.nodes):
            given = (node.reads, node.writes, node.gradient_reads, node.gradient_writes,
                     node.weight_layouts)  # fmt: skip
            for kind, table in enumerate(given):
                layouts[i, : table.shape[0], kind, : table.shape[1]] = table
            columns = (node.forward_s, node.data_s, node.weight_s, node.step_s, node.copies,
                       node.parameters, node.port_s)  # fmt: skip
            figures[i, : len(node.codes)] = np.stack(columns, axis=1)
            streams[i, : len(node.codes)] = node.streams
            sums[i, :, :, : len(node.codes)] = self._sums(node)
        ends, totals, droppable, entry = [], [], [], []
        unit = 1
        codes = tables.stream.codes
        for index, chain in enumerate(block.chains):
            path = [0, *range(unit, unit + len(chain.units)), 0]
            unit += len(chain.units)
            for i, edge in enumerate(chain.edges):
                ends.append((path[i], path[i + 1]))
                totals.append((*edge.totals, 0.0)[:2])
                droppable.append(bool(edge.kept_name))
                entry.append([tables.entry_s(index, c) if i == 0 else 0.0 for c in codes])
        share = np.array([tables.stream_share(code) for code in codes])
        units = [node.unit for node in self.nodes]
        weighted = [u is not None and u.parameters > 0 for u in units]
        self._arguments = (
            np.array(ends, np.int64), np.array(droppable, np.bool_), np.array(totals),
            np.array(weighted),
            np.array([u is not None and (u.parameters > 0 or u.on_chip) for u in units]),
            layouts, streams, figures, sums,
            np.outer([0.0 if u is None else u.parameters for u in units], self._each),
            bytes_per_parameter(states), float(setting.microbatches), np.array(entry),
            np.array([tables.stream_s(code) for code in codes]),
            share * (block.stream_bytes + block.always_bytes), tables.mesh[0],
            away.bandwidth_Bps if away else np.inf, away.latency_s if away else 0.0,
            tables.mesh[1],
        )  # fmt: skip
        self.weighted = weighted[1:]
        self.saved = int(sum(droppable))

    def _sums(self, node: NodeTable) -> Floats:
        """(2, algorithms, entries): seconds to sum a gradient, to gather a weight over copies."""
        if node.unit is None or not node.unit.parameters:
            return np.zeros((2, len(ALGORITHMS), len(node.codes)))
        split = KINDS[node.unit.kind].weight
        member = np.array([[tag not in split for tag in code] for code in node.codes], np.bool_)
        return np.array([
            [self.tables.gather_over_copies_s(member, each * node.parameters, a)
             for a in ALGORITHMS]
            for each in self._each
        ])  # fmt: skip

    def evaluate(self, genes: Genes) -> Floats:
        """(mappings, 10): seconds; state, kept, rebuilt and away bytes, per layer and die; then the
        seconds of compute, links, homes, reruns and journeys.
        """
        result = np.zeros((len(genes), COLUMNS))
        over_ranges(
            lambda start, stop: kernels.evaluate_range(
                start, stop, genes.stream, genes.codes, genes.data, genes.weight, genes.algorithms,
                genes.homes, genes.keep, *self._arguments, result,
            ),
            len(genes),
        )  # fmt: skip
        return result

    def encode(self, mappings: Sequence[BlockMapping]) -> Genes:
        setting = self.tables.setting
        rows: list[list[list[int]]] = [[], [], [], []]
        for m in mappings:
            for row in rows:
                row.append([])
            ways = m.collectives or ((setting.streaming, setting.algorithm),) * len(m.codes)
            for node, codes, (streams, algorithm) in zip(
                self.nodes[1:], m.passes, ways, strict=True
            ):
                for row, code in zip(rows, codes, strict=False):
                    row[-1].append(node.entry(code, streams))
                rows[3][-1].append(ALGORITHMS.index(algorithm))
        forward, data, weight, algorithms = (np.array(row, np.int64) for row in rows)
        return Genes(
            np.array([self.nodes[0].index[m.stream] for m in mappings], np.int64),
            forward, data, weight, algorithms,
            np.array([[HOMES.index(h) for h in m.homes] for m in mappings], np.int64),
            np.array([m.keep for m in mappings], np.int64),
        )  # fmt: skip
