"""Tables of a block by how often each dimension is cut, whatever the shape of the dies.

Where a shape has too many codes for the exact part, its operators still have few splits (how many
parts of each dimension). A split stands for all codes that have it, on all rectangles of so many
dies: every transfer between two splits takes at least

    reduction   the sums of all partial digits, of the bytes that a die then holds at least
    exchange    digits that neither keep their dimension nor gather it
    gather      what a die must hold at the end, over all digits that were not whole before

each at the best rate of any group of that many dies on these rectangles. The exact part's machinery
(`exact.states`) then finds the least seconds of all splits, which no code beats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from atoll.arrays import BoolArray, FloatArray, IntArray
from atoll.fabric import mesh_kernels
from atoll.fabric.digits import digit_systems, factors
from atoll.fabric.mesh import ALGORITHMS, Mesh
from atoll.fabric.mesh_collectives import wires
from atoll.wafer.costs.pricing import DiePricer, passes_of
from atoll.wafer.costs.tables import EdgeTable, Nodes, Setting, distinct, exposed
from atoll.wafer.encoding import role_kernels as roles
from atoll.wafer.encoding.block_parts import KINDS, Block, Edge, Roles, Unit
from atoll.wafer.encoding.codes import Parts, by_tag, splits
from atoll.wafer.exact.paths import BlockPaths
from atoll.wafer.exact.states import DecoupledBound, WeightGradientCosts, Rules, SharedStates

_DIMENSIONS = [roles.BATCH, roles.SEQUENCE, roles.COLUMNS, roles.EXPERTS]


class Rate(NamedTuple):
    """Least seconds a byte and seconds of latency, by the dies of a group (entry 0 is unused)."""

    per_byte_s: FloatArray
    latency_s: FloatArray

    def seconds(self, group: IntArray, volume: Any) -> FloatArray:
        found: FloatArray = self.per_byte_s[group] * volume + self.latency_s[group]
        return found


def rates(shapes: Sequence[tuple[int, int]], mesh: Mesh) -> tuple[Rate, Rate, Rate]:
    """Of one gather; of gathers one inside the other, over at least so many dies; of an exchange
    between at least so many.
    """
    dies = shapes[0][0] * shapes[0][1]
    once, exchange = (np.full((2, dies + 1), np.inf) for _ in range(2))
    once[:, 1] = exchange[:, 1] = 0.0
    for digits in (digits for shape in shapes for digits in digit_systems(*shape)):
        plain = wires(digits, mesh)
        ways = plain._replace(latency_s=0.0), plain._replace(bandwidth_Bps=np.inf)
        for chosen in product((False, True), repeat=digits.count):
            member = np.array(chosen, np.bool_)
            group = int(np.where(member, digits.radix, 1).prod())
            for row, way in enumerate(ways if group > 1 else ()):
                auto = mesh_kernels.pass_one(member, 1.0, way, ALGORITHMS.index("auto"))
                once[row, group] = min(once[row, group], auto)
                moved = mesh_kernels.exchange_one(member, 1.0, way)
                exchange[row, group] = min(exchange[row, group], moved)
    sizes = [n for n in range(1, dies + 1) if dies % n == 0]
    nested = np.full_like(once, np.inf)
    for outer, inner in product(sizes, repeat=2):
        if outer * inner in sizes:
            both = once[:, outer] + once[:, inner] * np.array([1.0 / outer, 1.0])
            nested[:, outer * inner] = np.minimum(nested[:, outer * inner], both)
    for table in (nested, exchange):
        for n in sizes:
            table[:, n] = table[:, [m for m in sizes if m % n == 0]].min(axis=1)
    return Rate(*once), Rate(*nested), Rate(*exchange)


class SplitTables:
    """What `costs.tables.Tables` has for the codes of one shape, for the splits of all shapes.

    A split's layouts are exponents (splits, tensors, roles, primes): how often each prime of the
    number of dies stands in each role.
    """

    def __init__(
        self, block: Block, shapes: Sequence[tuple[int, int]], setting: Setting, price: DiePricer,
        pieces: Sequence[int],
    ) -> None:  # fmt: skip
        """`pieces` in which the products of an operator may run."""
        self.block, self.setting, self._pricer, self._pieces = block, setting, price, pieces
        self.modes = tuple(count > 1 for count in pieces)
        self.dies = shapes[0][0] * shapes[0][1]
        self._primes = np.array(sorted(set(factors(self.dies))), np.int64)
        self._gather, self._nested, self._exchange = rates(shapes, setting.wafer.mesh)
        self.stream_splits = splits(block.stream_sizes, self.dies)
        self.stream = self._nodes(None, self.stream_splits)
        self.nodes = tuple(
            tuple(self._nodes(u, splits(u.sizes, self.dies)) for u in chain.units)
            for chain in block.chains
        )

    def _layouts(self, among: Sequence[Parts], meanings: Sequence[Roles]) -> IntArray:
        found = np.zeros((len(among), len(meanings), 7, len(self._primes)), np.int64)
        for tag, counts in by_tag(among).items():
            different, which = np.unique(counts, return_inverse=True)
            primes = [[factors(int(n)).count(int(p)) for p in self._primes] for n in different]
            powers = np.array(primes, np.int64).reshape(len(different), -1)[which]
            for t, meaning in enumerate(meanings):
                found[:, t, meaning[tag]] += powers
        return found

    def _nodes(self, unit: Unit | None, among: Sequence[Parts]) -> Nodes:
        kind = KINDS[unit.kind if unit else "vector"]
        states, streams = self.setting.states, np.zeros(len(among), np.bool_)
        passes = np.zeros((len(among), 3))
        if unit is not None:
            ways = [passes_of(self._pricer, unit, among, pieces) for pieces in self._pieces]
            passes, streams = (
                np.concatenate(ways),
                np.repeat(self.modes, len(among)),
            )
            among = [*among] * len(self._pieces)
        forward, data, weight = passes.T
        cut = np.array([prod(p.get(tag, 1) for tag in kind.weight) for p in among], np.int64)
        copies = self.dies // cut
        parameters = (unit.parameters if unit else 0) / cut
        step = states.update * parameters / self._pricer.chip.hbm.bandwidth_Bps
        wafer = self.setting.wafer
        ports = states.weight * (unit.parameters if unit else 0)
        ports /= wafer.io_Bps * self.setting.io_share
        outputs = unit.outputs if unit else 1
        tensors = 2 if unit and unit.kind == "attention" else 1
        return Nodes(
            unit, tuple(str(parts) for parts in among), streams,
            self._layouts(among, kind.reads[:tensors]),
            self._layouts(among, [kind.writes] * outputs),
            self._layouts(among, [kind.gradient_reads] * outputs),
            self._layouts(among, kind.gradient_writes[:tensors]), forward, data, weight,
            parameters, copies[:, None], step / self.setting.microbatches,
            copies.astype(np.float64),
            np.maximum(ports, states.weight * parameters / wafer.link_Bps),
            self._gather.seconds(copies, states.reduced * parameters),
            self._gather.seconds(copies, states.weight * parameters),
        )  # fmt: skip

    def chain_nodes(self, chain: int) -> tuple[Nodes, ...]:
        """The stream, the operators, and the stream again."""
        return (self.stream, *self.nodes[chain], self.stream)

    def to_home_s(self, chain: int, unit: int) -> FloatArray:
        """The gradient from every split of the weight pass to every one of the forward pass."""
        node = self.chain_nodes(chain)[unit]
        have, want = node.weights, node.weights[:, 0][None, :]
        volume = self.setting.states.reduced * node.parameters[None, :]
        return self._nested.seconds(want // np.gcd(have, want), volume)

    def fetch_s(self, chain: int, unit: int) -> FloatArray:
        """The input gathered for the weight pass of every split."""
        node, edge = self.chain_nodes(chain)[unit], self.block.chains[chain].edges[unit - 1]
        wanted = self._dies(node.reads[:, 0, roles.WHOLE])
        return self._nested.seconds(wanted, sum(edge.totals) / self.dies * wanted)

    @staticmethod
    def sliced(node: Nodes) -> BoolArray:
        return np.asarray((node.writes[:, :, roles.WHOLE] == 0).all(axis=(1, 2)))

    # -- edges ---------------------------------------------------------------------------------

    def _dies(self, powers: IntArray) -> IntArray:
        found: IntArray = (self._primes**powers).prod(axis=-1)
        return found

    def _transition_s(
        self, totals: Sequence[float], source: IntArray, target: IntArray
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Seconds of scatter, exchange and gather between all pairs of splits: worked out for those
        whose layouts differ. Ways of collectives do not change them.
        """
        (source, rows), (target, columns) = distinct(source), distinct(target)
        shape = len(source), len(target)
        scatter, exchange, gather = (np.zeros(shape) for _ in range(3))
        for t, total in enumerate(totals):
            if total <= 0.0:
                continue
            have, want = source[:, t], target[:, t]
            share = total / self.dies
            partial = self._dies(have[:, roles.PARTIAL])
            scatter += self._nested.seconds(partial, share * partial)[:, None]
            whole = np.minimum(have[:, None, roles.WHOLE], want[None, :, roles.WHOLE])
            wanted = self._dies(want[:, roles.WHOLE])[None, :]
            gather += self._nested.seconds(wanted // self._dies(whole), share * wanted)
            kept = np.minimum(have[:, None, _DIMENSIONS], want[None, :, _DIMENSIONS]).sum(axis=2)
            cut = have[:, _DIMENSIONS].sum(axis=1)[:, None]
            over = np.maximum(0, cut - kept - want[None, :, roles.WHOLE])
            exchange += self._exchange.seconds(self._dies(over), share)
        pairs = np.ix_(rows, columns)
        return scatter[pairs], exchange[pairs], gather[pairs]

    def _edge(self, edge: Edge, source: Nodes, target: Nodes) -> EdgeTable:
        scatter, exchange, gather = self._transition_s(edge.totals, source.writes, target.reads)
        a, b = source.streams[:, None], target.streams[None, :]
        made = exchange + exposed(scatter, source.forward_s[:, None], a)
        forward = made + exposed(gather, target.forward_s[None, :], b)
        moved = self._transition_s(edge.totals, target.gradient_writes, source.gradient_reads)
        back_scatter, exchange, back_gather = (part.T for part in moved)
        back = exchange + exposed(back_scatter, target.data_s[None, :], b)
        back = back + exposed(back_gather, source.data_s[:, None], a)
        return EdgeTable(
            forward, back, exposed(gather, target.weight_s[None, :], b),
            np.full(forward.shape, sum(edge.totals) / self.dies),
            made + source.forward_s[:, None], gather, back_scatter,
        )  # fmt: skip

    def chain_edges(self, chain: int) -> tuple[EdgeTable, ...]:
        nodes, described = self.chain_nodes(chain), self.block.chains[chain]
        tables = [self._edge(e, nodes[i], nodes[i + 1]) for i, e in enumerate(described.edges)]
        norm = np.array([self._entry_s(chain, parts) for parts in self.stream_splits])
        tables[0] = replace(tables[0], again_s=tables[0].again_s + norm[:, None])
        return tuple(tables)

    # -- the stream ----------------------------------------------------------------------------

    def _norm_sums_s(self, parts: Parts) -> float:
        rows = self.block.microbatch * self.block.sequence / (parts.get("b", 1) * parts.get("s", 1))
        return 2.0 * float(self._gather.seconds(np.array(parts.get("c", 1)), 8.0 * rows))

    def _entry_s(self, chain: int, parts: Parts) -> float:
        passes = self.block.chains[chain].entry_passes
        return float(self._pricer.passes_s(passes, parts)) + self._norm_sums_s(parts)

    def _stream_s(self, parts: Parts) -> float:
        return sum(
            self._entry_s(index, parts)
            + self._norm_sums_s(parts)
            + float(self._pricer.passes_s(chain.stream_passes, parts))
            for index, chain in enumerate(self.block.chains)
        )

    def paths(self, states: SharedStates) -> BlockPaths:
        among, block = self.stream_splits, self.block
        share = np.array([1.0 / prod(parts.get(tag, 1) for tag in "bsc") for parts in among])
        return BlockPaths(
            states.chains, np.array([self._stream_s(parts) for parts in among]),
            share * self.setting.held_bytes(block), np.zeros(len(among)),
        )  # fmt: skip


class SplitBounds(NamedTuple):
    """Bounds over all codes of all shapes: one code for all passes of an operator, or any."""

    shared: BlockPaths
    decoupled: DecoupledBound


def split_bounds(tables: SplitTables, rules: Rules) -> SplitBounds:
    states = SharedStates(tables, rules)
    ways = WeightGradientCosts(tables.to_home_s, tables.fetch_s, tables.sliced)
    shared = tables.paths(states)
    return SplitBounds(shared, DecoupledBound.from_states(states, shared, ways))
