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

from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from atoll.base.arrays import Bools, Floats, Ints
from atoll.fabric import mesh_kernels
from atoll.fabric.digits import digit_systems, factors
from atoll.fabric.mesh import ALGORITHMS, Mesh
from atoll.fabric.mesh_collectives import wires
from atoll.wafer.costs.die_pricer import DiePricer
from atoll.wafer.costs.tables import ChainTables, CostSetting, NodeTable, distinct_layouts
from atoll.wafer.encoding import role_kernels as roles
from atoll.wafer.encoding.block_parts import Edge, Roles, Unit, WaferBlock
from atoll.wafer.encoding.codes import Parts, by_tag, splits
from atoll.wafer.exact.paths import BlockPaths
from atoll.wafer.exact.shared_states import DecoupledBound, Rules, SharedStates, WeightGradientCosts

_DIMENSIONS = [roles.BATCH, roles.SEQUENCE, roles.COLUMNS, roles.EXPERTS]


class Rate(NamedTuple):
    """Least seconds per byte and latency, by the dies of a group (entry 0 is unused)."""

    per_byte_s: Floats
    latency_s: Floats

    def seconds(self, group: Ints, volume: Any) -> Floats:
        return np.asarray(self.per_byte_s[group] * volume + self.latency_s[group])


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
        pricer: DiePricer, modes: tuple[bool, ...],
    ) -> None:  # fmt: skip
        self.block, self.setting, self.pricer, self.modes = block, setting, pricer, modes
        self.dies = shapes[0][0] * shapes[0][1]
        self._primes = np.array(sorted(set(factors(self.dies))), np.int64)
        self._gather, self._nested, self._exchange = rates(shapes, setting.wafer.mesh)
        cuts = splits(block.stream_sizes, self.dies)
        self._stream_cuts = {str(cut): cut for cut in cuts}
        self.stream = self.node_table(None, tuple(self._stream_cuts), cuts)
        self.nodes = tuple(tuple(map(self._unit_nodes, chain.units)) for chain in block.chains)

    def _unit_nodes(self, unit: Unit) -> NodeTable:
        cuts = splits(unit.sizes, self.dies)
        return self.node_table(unit, tuple(map(str, cuts)), cuts)

    def cut(self, code: str) -> Parts:
        return self._stream_cuts[code]

    def layouts(
        self, codes: Sequence[str], cuts: Sequence[Parts], tensors: Sequence[Roles]
    ) -> Ints:
        exponents = np.zeros((len(cuts), len(tensors), 7, len(self._primes)), np.int64)
        for tag, counts in by_tag(cuts).items():
            distinct, which = np.unique(counts, return_inverse=True)
            primes = [[factors(int(n)).count(int(p)) for p in self._primes] for n in distinct]
            powers = np.array(primes, np.int64).reshape(len(distinct), -1)[which]
            for t, meaning in enumerate(tensors):
                exponents[:, t, meaning[tag]] += powers
        return exponents

    def over_copies(
        self, unit: Unit | None, codes: Sequence[str], copies: Ints
    ) -> tuple[Ints, Callable[[Floats], Floats]]:
        return copies[:, None], partial(self._gather.seconds, copies)

    def rows_gather_s(self, code: str, volume: float) -> float:
        return float(self._gather.seconds(np.array(self.cut(code).get("c", 1)), volume))

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
        return np.asarray((self._primes**powers).prod(axis=-1))

    def transition_parts(self, edge: Edge, written: Ints, read: Ints) -> tuple[Floats, Ints, Ints]:
        (source, rows), (target, columns) = distinct_layouts(written), distinct_layouts(read)
        parts = np.zeros((4, len(source), len(target)))
        scatter, exchange, gather, saved = parts
        saved += sum(edge.totals) / self.dies
        for tensor, total in enumerate(edge.totals):
            if total <= 0.0:
                continue
            have, want = source[:, tensor], target[:, tensor]
            share = total / self.dies
            partial_dies = self._dies(have[:, roles.PARTIAL])
            scatter += self._nested.seconds(partial_dies, share * partial_dies)[:, None]
            replicated = np.minimum(
                have[:, None, roles.REPLICATED], want[None, :, roles.REPLICATED]
            )
            read_copies = self._dies(want[:, roles.REPLICATED])[None, :]
            group = read_copies // self._dies(replicated)
            gather += self._nested.seconds(group, share * read_copies)
            before, after = have[:, _DIMENSIONS], want[:, _DIMENSIONS]
            same_role = np.minimum(before[:, None], after[None, :]).sum(axis=2)
            divided = before.sum(axis=1)[:, None]
            exchanged = np.maximum(0, divided - same_role - want[None, :, roles.REPLICATED])
            exchange += self._exchange.seconds(self._dies(exchanged), share)
        return parts, rows, columns


class SplitBounds(NamedTuple):
    """Bounds over all codes of all shapes: passes of an operator share one code, or have any."""

    shared: BlockPaths
    decoupled: DecoupledBound


def split_bounds(tables: SplitTables, rules: Rules) -> SplitBounds:
    states = SharedStates(tables, rules)
    gradient_costs = WeightGradientCosts(tables.to_home_s, tables.fetch_s, tables.sliced)
    return SplitBounds(states.paths, DecoupledBound.from_states(states, gradient_costs))
