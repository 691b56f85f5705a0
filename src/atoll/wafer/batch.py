"""Many mappings of one block at once: the compiled evaluator.

`Batch` lays the tables of a block out as plain arrays; `evaluate` prices mappings given as indices,
on all cores. It works out every transition anew instead of reading the exact part's edge tables, so
that the two check each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray

from atoll.jit import over_ranges
from atoll.wafer import block_kernels as kernels
from atoll.wafer.genes import BlockMapping
from atoll.wafer.tables import ALGORITHMS, HOMES, Nodes, Tables

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

TIME, STATE, KEPT, REBUILT = range(4)


@dataclass(frozen=True, eq=False)
class Genes:
    """Mappings as indices: stream (n,), codes and homes (n, operators), keep (n, saved)."""

    stream: IntArray
    codes: IntArray
    homes: IntArray
    keep: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.stream)


class Batch:
    """The arrays that the compiled evaluator reads."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.nodes: list[Nodes] = [tables.stream, *(n for chain in tables.nodes for n in chain)]
        block, digits, setting = tables.block, tables.digits, tables.setting
        most = max(len(n.codes) for n in self.nodes)
        d = digits.count

        def layouts(name: str) -> IntArray:
            table = np.zeros((len(self.nodes), most, 2, d), np.int64)
            for i, node in enumerate(self.nodes):
                given = getattr(node, name)
                table[i, : given.shape[0], : given.shape[1]] = given
            return table

        def column(name: str) -> FloatArray:
            table = np.zeros((len(self.nodes), most))
            for i, node in enumerate(self.nodes):
                table[i, : len(node.codes)] = getattr(node, name)
            return table

        def by_home(name: str) -> FloatArray:
            table = np.zeros((len(self.nodes), len(HOMES), most))
            for i, node in enumerate(self.nodes):
                table[i, :, : len(node.codes)] = getattr(node, name)
            return table

        ends, totals, droppable, entry = [], [], [], []
        unit = 1
        streams = tables.stream.codes
        for index, chain in enumerate(block.chains):
            path = [0, *range(unit, unit + len(chain.units)), 0]
            unit += len(chain.units)
            for i, edge in enumerate(chain.edges):
                ends.append((path[i], path[i + 1]))
                totals.append((*edge.totals, 0.0)[:2])
                droppable.append(bool(edge.kept_name))
                entry.append([tables.entry_s(index, c) if i == 0 else 0.0 for c in streams])
        share = np.array([tables.stream_share(code) for code in streams])
        self._arguments = (
            np.array(ends, np.int64), np.array(droppable, np.bool_), np.array(totals),
            layouts("reads"), layouts("writes"), layouts("gradient_reads"),
            layouts("gradient_writes"), column("forward_s"), column("data_s"), column("weight_s"),
            by_home("home_s"), by_home("state_bytes"), np.array(entry),
            np.array([tables.stream_s(code) for code in streams]),
            share * (block.stream_bytes + block.mask_bytes), setting.streaming, digits.radix,
            digits.axis, digits.stride, setting.wafer.link_Bps, setting.wafer.link_latency_s,
            ALGORITHMS.index(setting.algorithm),
        )  # fmt: skip
        self.saved = int(sum(droppable))

    def evaluate(self, genes: Genes) -> FloatArray:
        """(mappings, 4): seconds, state, kept and rebuilt bytes, per layer and die."""
        result = np.zeros((len(genes), 4))
        over_ranges(
            lambda start, stop: kernels.evaluate_range(
                start, stop, genes.stream, genes.codes, genes.homes, genes.keep, *self._arguments,
                result,
            ),
            len(genes),
        )  # fmt: skip
        return result

    def encode(self, mappings: Sequence[BlockMapping]) -> Genes:
        nodes = self.nodes[1:]
        return Genes(
            np.array([self.nodes[0].index[m.stream] for m in mappings], np.int64),
            np.array(
                [[n.index[c] for n, c in zip(nodes, m.codes, strict=True)] for m in mappings],
                np.int64,
            ),
            np.array([[HOMES.index(h) for h in m.homes] for m in mappings], np.int64),
            np.array([m.keep for m in mappings], np.bool_),
        )

    def decode(self, genes: Genes, row: int) -> BlockMapping:
        nodes = self.nodes[1:]
        return BlockMapping(
            self.nodes[0].codes[genes.stream[row]],
            tuple(n.codes[c] for n, c in zip(nodes, genes.codes[row], strict=True)),
            tuple(HOMES[h] for h in genes.homes[row]),
            tuple(bool(k) for k in genes.keep[row]),
        )

    def sample(self, count: int, random: np.random.Generator, homes: Sequence[str]) -> Genes:
        """Mappings drawn evenly from the legal codes."""
        nodes = self.nodes[1:]
        allowed = np.array([HOMES.index(home) for home in homes])
        return Genes(
            random.integers(len(self.nodes[0].codes), size=count),
            np.stack([random.integers(len(n.codes), size=count) for n in nodes], axis=1),
            allowed[random.integers(len(allowed), size=(count, len(nodes)))],
            random.integers(2, size=(count, self.saved)).astype(np.bool_),
        )

    def everything(self, homes: Sequence[str], piece: int = 1 << 16) -> Iterator[Genes]:
        """The whole encoding of the block, in pieces: for brute force on small cases."""
        nodes = self.nodes[1:]
        allowed = [HOMES.index(home) for home in homes]
        ranges = [range(len(self.nodes[0].codes)), *(range(len(n.codes)) for n in nodes)]
        home_ranges = [
            allowed if n.unit is not None and n.unit.parameters else allowed[:1] for n in nodes
        ]
        tail = np.array(
            list(product(*home_ranges, *([(False, True)] * self.saved))), np.int64
        ).reshape(-1, len(nodes) + self.saved)
        per_piece = max(1, piece // len(tail))
        rows: list[tuple[int, ...]] = []
        for codes in product(*ranges):
            rows.append(codes)
            if len(rows) == per_piece:
                yield self._piece(rows, tail, len(nodes))
                rows = []
        if rows:
            yield self._piece(rows, tail, len(nodes))

    @staticmethod
    def _piece(rows: list[tuple[int, ...]], tail: IntArray, units: int) -> Genes:
        head = np.repeat(np.array(rows, np.int64), len(tail), axis=0)
        options = np.tile(tail, (len(rows), 1))
        return Genes(
            np.ascontiguousarray(head[:, 0]),
            np.ascontiguousarray(head[:, 1:]),
            np.ascontiguousarray(options[:, :units]),
            np.ascontiguousarray(options[:, units:].astype(np.bool_)),
        )
