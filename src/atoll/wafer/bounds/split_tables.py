"""Tables of a block by splits (the number of parts of each dimension), for all shapes of dies.

If a shape has too many codes for the exact part, its operators still have few splits. A split
stands for all of its codes on all rectangles of a number of dies: every transition between two
splits takes at least

    reduction   the sums over all partial digits, of the fewest bytes that a die then holds
    exchange    digits that neither keep their dimension nor gather it
    gather      the bytes that a die holds at the end, over all digits that were not replicated

each at the best rate of any group of that many dies on these rectangles. The exact part's solvers
then give the least seconds over all splits, a lower bound for all codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from atoll.base.arrays import Bools, Floats, Ints
from atoll.fabric import mesh_kernels
from atoll.fabric.digits import digit_systems, factors
from atoll.fabric.mesh import ALGORITHMS, Mesh
from atoll.fabric.mesh_collectives import wires
from atoll.wafer.costs.die_pricer import DiePricer, pass_times_s
from atoll.wafer.costs.tables import (
    ChainTables,
    CostSetting,
    EdgeTable,
    NodeTable,
    distinct_layouts,
    exposed,
)
from atoll.wafer.encoding import role_kernels as roles
from atoll.wafer.encoding.block_parts import KINDS, Edge, Roles, Unit, WaferBlock
from atoll.wafer.encoding.codes import Parts, by_tag, splits
from atoll.wafer.exact.paths import BlockPaths
from atoll.wafer.exact.shared_states import DecoupledBound, Rules, SharedStates, WeightGradientCosts

_DIMENSIONS = [roles.BATCH, roles.SEQUENCE, roles.COLUMNS, roles.EXPERTS]


class Rate(NamedTuple):
    """Least seconds per byte and latency, by the dies of a group (entry 0 is unused)."""

    per_byte_s: Floats
    latency_s: Floats

    def seconds(self, group: Ints, volume: Any) -> Floats:
        time_s: Floats = self.per_byte_s[group] * volume + self.latency_s[group]
        return time_s


def rates(shapes: Sequence[tuple[int, int]], mesh: Mesh) -> tuple[Rate, Rate, Rate]:
    """Return rates: a gather over n dies, nested gathers and exchanges over at least n dies."""
    dies = shapes[0][0] * shapes[0][1]
    gather, exchange = (np.full((2, dies + 1), np.inf) for _ in range(2))
    gather[:, 1] = exchange[:, 1] = 0.0
    for digits in (digits for shape in shapes for digits in digit_systems(*shape)):
        plain = wires(digits, mesh)
        ideals = plain._replace(latency_s=0.0), plain._replace(bandwidth_Bps=np.inf)
        for digit_members in product((False, True), repeat=digits.count):
            member = np.array(digit_members, np.bool_)
            group = int(np.where(member, digits.radix, 1).prod())
            for row, ideal in enumerate(ideals if group > 1 else ()):
                gather_s = mesh_kernels.pass_flags(member, 1.0, ideal, ALGORITHMS.index("auto"))
                gather[row, group] = min(gather[row, group], gather_s)
                exchange_s = mesh_kernels.exchange_flags(member, 1.0, ideal)
                exchange[row, group] = min(exchange[row, group], exchange_s)
    sizes = [n for n in range(1, dies + 1) if dies % n == 0]
    nested = np.full_like(gather, np.inf)
    for outer, inner in product(sizes, repeat=2):
        if outer * inner in sizes:
            nested_s = gather[:, outer] + gather[:, inner] * np.array([1.0 / outer, 1.0])
            nested[:, outer * inner] = np.minimum(nested[:, outer * inner], nested_s)
    for table in (nested, exchange):
        for n in sizes:
            table[:, n] = table[:, [m for m in sizes if m % n == 0]].min(axis=1)
    return Rate(*gather), Rate(*nested), Rate(*exchange)


class SplitTables(ChainTables):
    """Lower bounds of `costs.tables.BlockTables`, for the splits of all shapes.

    A split's layouts are exponents (splits, tensors, roles, primes): how often each prime factor of
    the number of dies has each role.
    """

    def __init__(
        self, block: WaferBlock, shapes: Sequence[tuple[int, int]], setting: CostSetting,
        pricer: DiePricer, pieces: Sequence[int],
    ) -> None:  # fmt: skip
        """`pieces`: numbers of pieces in which the products of an operator may run."""
        self.block, self.setting, self._pricer, self._pieces = block, setting, pricer, pieces
        self.modes = tuple(count > 1 for count in pieces)
        self.dies = shapes[0][0] * shapes[0][1]
        self._primes = np.array(sorted(set(factors(self.dies))), np.int64)
        self._gather, self._nested, self._exchange = rates(shapes, setting.wafer.mesh)
        self.stream_splits = splits(block.stream_sizes, self.dies)
        self.stream = self._nodes(None, self.stream_splits)
        self.nodes = tuple(
            tuple(self._nodes(unit, splits(unit.sizes, self.dies)) for unit in chain.units)
            for chain in block.chains
        )

    def _layouts(self, cuts: Sequence[Parts], meanings: Sequence[Roles]) -> Ints:
        exponents = np.zeros((len(cuts), len(meanings), 7, len(self._primes)), np.int64)
        for tag, counts in by_tag(cuts).items():
            distinct, which = np.unique(counts, return_inverse=True)
            primes = [[factors(int(n)).count(int(p)) for p in self._primes] for n in distinct]
            powers = np.array(primes, np.int64).reshape(len(distinct), -1)[which]
            for t, meaning in enumerate(meanings):
                exponents[:, t, meaning[tag]] += powers
        return exponents

    def _nodes(self, unit: Unit | None, cuts: Sequence[Parts]) -> NodeTable:
        kind = KINDS[unit.kind if unit else "vector"]
        states, streams = self.setting.states, np.zeros(len(cuts), np.bool_)
        passes = np.zeros((len(cuts), 3))
        if unit is not None:
            times = [pass_times_s(self._pricer, unit, cuts, pieces) for pieces in self._pieces]
            passes, streams = np.concatenate(times), np.repeat(self.modes, len(cuts))
            cuts = [*cuts] * len(self._pieces)
        forward, data, weight = passes.T
        divided = np.array([prod(cut.get(tag, 1) for tag in kind.weight) for cut in cuts], np.int64)
        copies = self.dies // divided
        parameters = (unit.parameters if unit else 0) / divided
        step_s = states.update * parameters / self._pricer.stream_Bps
        wafer = self.setting.wafer
        port_s = states.weight * (unit.parameters if unit else 0)
        port_s /= wafer.io_Bps * self.setting.io_share
        outputs = unit.outputs if unit else 1
        tensors = 2 if unit and unit.kind == "attention" else 1
        return NodeTable(
            unit, tuple(str(parts) for parts in cuts), streams,
            self._layouts(cuts, kind.reads[:tensors]),
            self._layouts(cuts, [kind.writes] * outputs),
            self._layouts(cuts, [kind.gradient_reads] * outputs),
            self._layouts(cuts, kind.gradient_writes[:tensors]), forward, data, weight,
            parameters, copies[:, None], step_s / self.setting.microbatches,
            copies.astype(np.float64),
            np.maximum(port_s, states.weight * parameters / wafer.link_Bps),
            self._gather.seconds(copies, states.reduced * parameters),
            self._gather.seconds(copies, states.weight * parameters),
        )  # fmt: skip

    def to_home_s(self, chain: int, unit: int) -> Floats:
        """Return seconds of the gradient from splits of the weight pass to the forward pass."""
        node = self.chain_nodes(chain)[unit]
        have, want = node.weight_layouts, node.weight_layouts[:, 0][None, :]
        volume = self.setting.states.reduced * node.parameters[None, :]
        return self._nested.seconds(want // np.gcd(have, want), volume)

    def fetch_s(self, chain: int, unit: int) -> Floats:
        """Return seconds of gathering the input for the weight pass of every split."""
        node, edge = self.chain_nodes(chain)[unit], self.block.chains[chain].edges[unit - 1]
        wanted = self._dies(node.reads[:, 0, roles.REPLICATED])
        return self._nested.seconds(wanted, sum(edge.totals) / self.dies * wanted)

    @staticmethod
    def sliced(node: NodeTable) -> Bools:
        return np.asarray((node.writes[:, :, roles.REPLICATED] == 0).all(axis=(1, 2)))

    # -- edges ---------------------------------------------------------------------------------

    def _dies(self, powers: Ints) -> Ints:
        counts: Ints = (self._primes**powers).prod(axis=-1)
        return counts

    def _transition_s(
        self, totals: Sequence[float], source: Ints, target: Ints
    ) -> tuple[Floats, Floats, Floats]:
        """Return seconds of scatter, exchange and gather between all pairs of splits."""
        (source, rows), (target, columns) = distinct_layouts(source), distinct_layouts(target)
        shape = len(source), len(target)
        scatter, exchange, gather = (np.zeros(shape) for _ in range(3))
        for tensor, total in enumerate(totals):
            if total <= 0.0:
                continue
            written, read = source[:, tensor], target[:, tensor]
            share = total / self.dies
            partial = self._dies(written[:, roles.PARTIAL])
            scatter += self._nested.seconds(partial, share * partial)[:, None]
            replicated = np.minimum(
                written[:, None, roles.REPLICATED], read[None, :, roles.REPLICATED]
            )
            read_copies = self._dies(read[:, roles.REPLICATED])[None, :]
            group = read_copies // self._dies(replicated)
            gather += self._nested.seconds(group, share * read_copies)
            before, after = written[:, _DIMENSIONS], read[:, _DIMENSIONS]
            same_role = np.minimum(before[:, None], after[None, :]).sum(axis=2)
            divided = before.sum(axis=1)[:, None]
            exchanged = np.maximum(0, divided - same_role - read[None, :, roles.REPLICATED])
            exchange += self._exchange.seconds(self._dies(exchanged), share)
        pairs = np.ix_(rows, columns)
        return scatter[pairs], exchange[pairs], gather[pairs]

    def edge(self, edge: Edge, source: NodeTable, target: NodeTable) -> EdgeTable:
        scatter, exchange, gather = self._transition_s(edge.totals, source.writes, target.reads)
        source_streams, target_streams = source.streams[:, None], target.streams[None, :]
        written_s = exchange + exposed(scatter, source.forward_s[:, None], source_streams)
        forward_s = written_s + exposed(gather, target.forward_s[None, :], target_streams)
        parts = self._transition_s(edge.totals, target.gradient_writes, source.gradient_reads)
        back_scatter, exchange, back_gather = (part.T for part in parts)
        backward_s = exchange + exposed(back_scatter, target.data_s[None, :], target_streams)
        backward_s = backward_s + exposed(back_gather, source.data_s[:, None], source_streams)
        return EdgeTable(
            forward_s, backward_s, exposed(gather, target.weight_s[None, :], target_streams),
            np.full(forward_s.shape, sum(edge.totals) / self.dies),
            written_s + source.forward_s[:, None], gather, back_scatter,
        )  # fmt: skip

    # -- the stream ----------------------------------------------------------------------------

    def _norm_sums_s(self, parts: Parts) -> float:
        rows = self.block.microbatch * self.block.sequence / (parts.get("b", 1) * parts.get("s", 1))
        return 2.0 * float(self._gather.seconds(np.array(parts.get("c", 1)), 8.0 * rows))

    def _entry_s(self, chain: int, parts: Parts) -> float:
        passes = self.block.chains[chain].entry_passes
        return float(self._pricer.passes_s(passes, parts)) + self._norm_sums_s(parts)

    def norms_s(self, chain: int) -> Floats:
        return np.array([self._entry_s(chain, parts) for parts in self.stream_splits])

    def _stream_s(self, parts: Parts) -> float:
        return sum(
            self._entry_s(index, parts)
            + self._norm_sums_s(parts)
            + float(self._pricer.passes_s(chain.stream_passes, parts))
            for index, chain in enumerate(self.block.chains)
        )

    def paths(self, states: SharedStates) -> BlockPaths:
        cuts, block = self.stream_splits, self.block
        share = np.array([1.0 / prod(cut.get(tag, 1) for tag in "bsc") for cut in cuts])
        return BlockPaths(
            states.chains, np.array([self._stream_s(cut) for cut in cuts]),
            share * self.setting.stream_saved_bytes(block), np.zeros(len(cuts)),
        )  # fmt: skip


class SplitBounds(NamedTuple):
    """Bounds over all codes of all shapes: passes of an operator share one code, or have any."""

    shared: BlockPaths
    decoupled: DecoupledBound


def split_bounds(tables: SplitTables, rules: Rules) -> SplitBounds:
    states = SharedStates(tables, rules)
    gradient_costs = WeightGradientCosts(tables.to_home_s, tables.fetch_s, tables.sliced)
    shared = tables.paths(states)
    return SplitBounds(shared, DecoupledBound.from_states(states, shared, gradient_costs))
