"""Node and edge tables of a block on one rectangle of dies: every code of every operator, priced.

A code is one tag a digit, written as a string such as "nnk". Tables hold seconds of compute,
parameters a die holds, what each home of the weights costs, and (between two operators) the
re-sharding with its overlap and the bytes to keep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod

import numpy as np
from numpy.typing import NDArray

from atoll.wafer import block_kernels as kernels
from atoll.wafer.block import KINDS, Block, Chain, Edge, Kind, Product, Roles, Unit
from atoll.wafer.digits import Digits
from atoll.wafer.pricing import Parts, Pricer, local_shape
from atoll.wafer.template import Wafer

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

STREAM_TAGS = "bscr"
HOMES = ("replicated", "optimizer", "gradients", "weights", "external")
"""Where a weight's copies live among the dies that use it: all state on each; the optimizer's
divided (ZeRO-1); gradients too (ZeRO-2); weights too, gathered for every use (ZeRO-3); or streamed
from outside the wafer."""
SEARCHED_HOMES = ("optimizer", "gradients", "weights")
ALGORITHMS = ("auto", "line", "ring", "2d")

STATE_BYTES = 16.0  # 2 weight, 2 gradient, 12 optimizer (mixed-precision Adam, arXiv:1910.02054)
MOVED_BYTES = 28.0  # through memory in an optimizer step, as in `placement.chain`


@dataclass(frozen=True)
class Setting:
    """What all tables of a search share."""

    wafer: Wafer
    microbatches: int
    """Microbatches of one step."""
    streaming: bool = True
    """Collectives run beside their operators in pieces."""
    algorithm: str = "auto"
    io_share: float = 1.0
    """Part of the wafer's input and output that one group may use."""


def parts_of(code: str, digits: Digits) -> Parts:
    """Split count of every tag."""
    parts: Parts = {}
    for tag, radix in zip(code, digits.radix, strict=True):
        parts[tag] = parts.get(tag, 1) * int(radix)
    return parts


def legal(code: str, sizes: dict[str, int], digits: Digits) -> bool:
    """No dimension is cut in more pieces than it has; samples are never cut unevenly."""
    parts = parts_of(code, digits)
    if any(tag not in sizes for tag in parts):
        return False
    if sizes["b"] % parts.get("b", 1):
        return False
    return all(count <= sizes[tag] for tag, count in parts.items() if tag != "r")


def legal_codes(sizes: dict[str, int], digits: Digits) -> tuple[str, ...]:
    tags = [tag for tag, size in sizes.items() if size > 1 or tag == "r"]
    return tuple(
        code
        for code in ("".join(chosen) for chosen in product(tags, repeat=digits.count))
        if legal(code, sizes, digits)
    )


def layouts(codes: Sequence[str], roles: Sequence[Roles]) -> IntArray:
    """(codes, tensors, digits): the role of every digit for every tensor."""
    width = len(codes[0]) if codes else 0
    table = np.zeros((len(codes), len(roles), width), np.int64)
    for i, code in enumerate(codes):
        for t, role in enumerate(roles):
            table[i, t] = [role[tag] for tag in code]
    return table


@dataclass(frozen=True, eq=False)
class Nodes:
    """One operator (or the stream) under each of its codes."""

    unit: Unit | None
    codes: tuple[str, ...]
    reads: IntArray
    writes: IntArray
    gradient_reads: IntArray
    gradient_writes: IntArray
    forward_s: FloatArray
    data_s: FloatArray
    weight_s: FloatArray
    parameters: FloatArray
    home_s: FloatArray  # (homes, codes): seconds a microbatch
    state_bytes: FloatArray  # (homes, codes)

    @property
    def compute_s(self) -> FloatArray:
        return self.forward_s + self.data_s + self.weight_s

    @cached_property
    def index(self) -> dict[str, int]:
        return {code: i for i, code in enumerate(self.codes)}


@dataclass(frozen=True, eq=False)
class EdgeTable:
    """(codes of the producer, codes of the consumer)."""

    time_s: FloatArray
    kept_bytes: FloatArray
    again_s: FloatArray
    """What making the tensor again costs: the producer's forward time and its reduction."""


class Tables:
    """All tables of one block on one digit system."""

    def __init__(
        self,
        block: Block,
        digits: Digits,
        setting: Setting,
        price: Pricer,
        only: Mapping[str, tuple[str, ...]] | None = None,
        *,
        units: bool = True,
    ) -> None:
        self.block, self.digits, self.setting, self.price = block, digits, setting, price
        self._only = only or {}
        self._mesh = (
            digits.radix, digits.axis, digits.stride, setting.wafer.link_Bps,
            setting.wafer.link_latency_s,
        )  # fmt: skip
        self._algorithm = ALGORITHMS.index(setting.algorithm)
        chosen = block.units if units else ()
        self._prepare((*chosen, *([block.head] if block.head else [])) if not only else chosen)
        self.stream = self._stream()
        self.nodes = tuple(
            tuple(self.unit_nodes(u) for u in chain.units if units) for chain in block.chains
        )

    # -- nodes ---------------------------------------------------------------------------------

    def codes(self, name: str, sizes: dict[str, int]) -> tuple[str, ...]:
        return self._only.get(name) or legal_codes(sizes, self.digits)

    def _prepare(self, units: Sequence[Unit]) -> None:
        """Price every product that any code needs in one go."""
        chunks = int(kernels.CHUNKS) if self.setting.streaming else 1
        shapes = []
        for unit in units:
            for code in self.codes(unit.name, unit.sizes):
                parts = parts_of(code, self.digits)
                for item in (*unit.forward, *unit.data_gradient):
                    shapes.append(local_shape(unit, item, parts, chunks))
                for item in unit.weight_gradient:
                    shapes.append(local_shape(unit, item, parts))
        self.price.prepare(shapes)

    def _stream(self) -> Nodes:
        codes = self.codes("stream", self.block.stream_sizes)
        kind = KINDS["vector"]
        zero = np.zeros(len(codes))
        nothing = np.zeros((len(HOMES), len(codes)))
        return Nodes(
            None, codes, layouts(codes, kind.reads), layouts(codes, [kind.writes]),
            layouts(codes, [kind.gradient_reads]), layouts(codes, kind.gradient_writes), zero, zero,
            zero, zero, nothing, nothing,
        )  # fmt: skip

    def unit_nodes(self, unit: Unit) -> Nodes:
        codes = self.codes(unit.name, unit.sizes)
        kind = KINDS[unit.kind]
        rows = [self._node(unit, code) for code in codes]
        columns = [np.array(column) for column in zip(*rows, strict=True)]
        forward, data, weight, parameters = columns
        home_s, state = self._homes(unit, kind, codes, forward, data, weight, parameters)
        tensors = 2 if unit.kind == "attention" else 1
        writes = unit.outputs
        return Nodes(
            unit, codes, layouts(codes, kind.reads[:tensors]),
            layouts(codes, [kind.writes] * writes),
            layouts(codes, [kind.gradient_reads] * writes),
            layouts(codes, kind.gradient_writes[:tensors]), forward, data, weight, parameters,
            home_s, state,
        )  # fmt: skip

    def _node(self, unit: Unit, code: str) -> tuple[float, float, float, float]:
        parts = parts_of(code, self.digits)
        chunks = int(kernels.CHUNKS) if self.setting.streaming and unit.kind == "linear" else 1
        price = self.price

        def products(items: Sequence[Product], pieces: int) -> float:
            shapes = [local_shape(unit, item, parts, pieces) for item in items]
            return sum((pieces * price.product_s(shape) for shape in shapes), 0.0)

        vectors_f = price.passes_s(unit.forward_passes, parts)
        vectors_b = price.passes_s(unit.backward_passes, parts)
        forward, data = products(unit.forward, chunks), products(unit.data_gradient, chunks)
        weight = products(unit.weight_gradient, 1)
        if unit.on_chip:
            # Products, vector work and memory run side by side.
            share = prod(parts.values())
            bandwidth = price.chip.hbm.bandwidth_Bps
            forward = max(forward, vectors_f, unit.traffic_bytes / share / bandwidth)
            data = max(data, vectors_b, 2.0 * unit.traffic_bytes / share / bandwidth)
        else:
            forward += vectors_f
            data += vectors_b
        held = prod(parts.get(tag, 1) for tag in KINDS[unit.kind].weight)
        return forward, data, weight, unit.parameters / held

    def _homes(
        self, unit: Unit, kind: Kind, codes: Sequence[str], forward: FloatArray, data: FloatArray,
        weight: FloatArray, parameters: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:  # fmt: skip
        """Seconds a microbatch and bytes of state a die, by home and code."""
        time = np.zeros((len(HOMES), len(codes)))
        state = np.zeros((len(HOMES), len(codes)))
        if not unit.parameters:
            return time, state
        rounds = self.setting.microbatches
        bandwidth = self.price.chip.hbm.bandwidth_Bps
        streams = self.setting.streaming
        for i, code in enumerate(codes):
            member = np.array([tag not in kind.weight for tag in code], np.bool_)
            copies = float(prod(int(r) for r in self.digits.radix[member]))
            w = float(parameters[i])
            one = float(kernels.pass_one(member, 2.0 * w, *self._mesh, self._algorithm))
            step = MOVED_BYTES * w / bandwidth / rounds
            f, d, g = (
                float(kernels.exposed_one(one, c, streams))
                for c in (forward[i], data[i], weight[i])
            )
            # Streamed weights come through the wafer's ports and then, as a broadcast, over every
            # die's link; prefetched one operator ahead.
            wafer = self.setting.wafer
            port = max(
                2.0 * unit.parameters / (wafer.io_Bps * self.setting.io_share),
                2.0 * w / wafer.link_Bps,
            )
            outside = max(0.0, port - forward[i]) + max(0.0, port - data[i] - weight[i])
            time[:, i] = (
                2.0 * one / rounds + step,
                2.0 * one / rounds + step / copies,
                g + one / rounds + step / copies,
                f + d + g + step / copies,
                outside,
            )
            state[:, i] = (
                STATE_BYTES * w,
                4.0 * w + 12.0 * w / copies,
                2.0 * w + 14.0 * w / copies,
                STATE_BYTES * w / copies,
                0.0,
            )
        return time, state

    # -- edges ---------------------------------------------------------------------------------

    def chain_nodes(self, chain: int) -> tuple[Nodes, ...]:
        """The stream, the operators, and the stream again."""
        return (self.stream, *self.nodes[chain], self.stream)

    def edge(self, edge: Edge, source: Nodes, target: Nodes) -> EdgeTable:
        shape = len(source.codes), len(target.codes)
        time, kept, again = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        kernels.edge_matrix(
            np.array(edge.totals), source.writes, target.reads, target.gradient_writes,
            source.gradient_reads, source.forward_s, target.forward_s, source.data_s,
            target.data_s, target.weight_s, self.setting.streaming, *self._mesh, self._algorithm,
            time, kept, again,
        )  # fmt: skip
        return EdgeTable(time, kept, again + source.forward_s[:, None])

    def chain_edges(self, chain: int) -> tuple[EdgeTable, ...]:
        nodes = self.chain_nodes(chain)
        described: Chain = self.block.chains[chain]
        tables = [
            self.edge(edge, nodes[i], nodes[i + 1]) for i, edge in enumerate(described.edges)
        ]
        # The stream runs the norm: that is what its output costs to make again.
        norm = np.array([self.entry_s(chain, code) for code in self.stream.codes])
        first = tables[0]
        tables[0] = EdgeTable(first.time_s, first.kept_bytes, first.again_s + norm[:, None])
        return tuple(tables)

    # -- the stream ----------------------------------------------------------------------------

    def _norm_sums_s(self, code: str) -> float:
        """Columns cut between dies: a norm sums two 4-byte statistics a row over them."""
        member = np.array([tag == "c" for tag in code], np.bool_)
        parts = parts_of(code, self.digits)
        rows = self.block.microbatch * self.block.sequence / (parts.get("b", 1) * parts.get("s", 1))
        return 2.0 * float(kernels.pass_one(member, 8.0 * rows, *self._mesh, self._algorithm))

    def entry_s(self, chain: int, code: str) -> float:
        parts = parts_of(code, self.digits)
        passes = self.block.chains[chain].entry_passes
        return self.price.passes_s(passes, parts) + self._norm_sums_s(code)

    def stream_s(self, code: str) -> float:
        """All work on the stream of one layer, forward and backward."""
        parts = parts_of(code, self.digits)
        total = 0.0
        for index, chain in enumerate(self.block.chains):
            total += self.entry_s(index, code) + self._norm_sums_s(code)
            total += self.price.passes_s(chain.stream_passes, parts)
        return total

    def stream_share(self, code: str) -> float:
        """The part of a stream tensor that a die holds."""
        parts = parts_of(code, self.digits)
        return 1.0 / prod(parts.get(tag, 1) for tag in "bsc")

    def buffer_bytes(self, code: str) -> float:
        """Two of the stream's tensors, gathered but for samples: the one in work and the next."""
        return 2.0 * self.block.stream_bytes / parts_of(code, self.digits).get("b", 1)
