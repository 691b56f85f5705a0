"""Node and edge tables of a block on one rectangle of dies: every code of every operator, priced.

Tables hold seconds of compute,
parameters a die holds, what each home of the weights costs, and (between two operators) the
re-sharding with its overlap and the bytes to keep.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from threading import Lock
from typing import Any

import numpy as np

from atoll.arrays import BoolArray, FloatArray, IntArray
from atoll.fabric.digits import Digits
from atoll.fabric.mesh import ALGORITHMS
from atoll.fabric.mesh_collectives import gather_s, gathers_s, wires
from atoll.hardware.wafer import Wafer
from atoll.step.states import STATES, States
from atoll.wafer.costs import block_kernels as kernels
from atoll.wafer.costs.pricing import DiePricer, passes_of
from atoll.wafer.encoding import role_kernels as roles
from atoll.wafer.encoding.block_parts import KINDS, Block, Chain, Edge, Unit
from atoll.wafer.encoding.codes import cuts_of, layouts, legal_codes, parts_of
from atoll.wafer.encoding.genes import OPTIMIZER

_WEIGHT = {"k": roles.SEQUENCE, "n": roles.COLUMNS, "e": roles.EXPERTS}


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
    states: States = STATES[OPTIMIZER]

    def held_bytes(self, block: Block) -> float:
        """What a layer holds of a microbatch until its backward pass, whatever is recomputed."""
        return 0.0 if self.wafer.inputs_outside else block.stream_bytes + block.always_bytes

    def ports_s(self, block: Block) -> float:
        """What the wafer's ports need for a layer and microbatch where weights and inputs of layers
        live outside: in come weights for both passes and the input for the second; out go the
        gradients and the input.
        """
        if not self.wafer.inputs_outside:
            return 0.0
        each = max(2.0 * self.states.weight, self.states.reduced)
        parameters = sum(unit.parameters for unit in block.units)
        moved = each * parameters + block.stream_bytes + block.always_bytes
        return moved / (self.wafer.io_Bps * self.io_share)


@dataclass(frozen=True, eq=False)
class Nodes:
    """One operator (or the stream) under each of its codes, once for each way of its collectives.

    The entries of one way follow each other; those of the next have the same codes again.
    """

    unit: Unit | None
    codes: tuple[str, ...]
    streams: BoolArray
    """Whether an entry's collectives run beside it in pieces."""
    reads: IntArray
    writes: IntArray
    gradient_reads: IntArray
    gradient_writes: IntArray
    forward_s: FloatArray
    data_s: FloatArray
    weight_s: FloatArray
    parameters: FloatArray
    weights: IntArray  # (codes, 1, digits): layout of the weight
    step_s: FloatArray
    """An optimizer step on the parameters of a die, a microbatch."""
    copies: FloatArray
    port_s: FloatArray
    """To bring the weight in from outside the wafer."""
    sum_s: FloatArray
    """Half an all-reduce of the gradient over the copies of the weight."""
    gather_s: FloatArray
    """The weight gathered over its copies."""

    @property
    def compute_s(self) -> FloatArray:
        return self.forward_s + self.data_s + self.weight_s

    @cached_property
    def index(self) -> dict[str, int]:
        """The first entry of every code."""
        return {code: i for i, code in reversed(list(enumerate(self.codes)))}

    def only(self, at: IntArray) -> Nodes:
        """Some of the entries."""
        arrays: dict[str, Any] = {
            k: v[at] for k, v in vars(self).items() if isinstance(v, np.ndarray)
        }
        return replace(self, codes=tuple(self.codes[i] for i in at), **arrays)

    def find(self, code: str, streams: bool) -> int:
        """The entry of a code whose collectives run this way."""
        first = self.index[code]
        return first if self.streams[first] == streams else first + len(self.index)


@dataclass(frozen=True, eq=False)
class EdgeTable:
    """(codes of the producer, codes of the consumer)."""

    forward_s: FloatArray
    back_s: FloatArray
    fetch_s: FloatArray
    """The gathered input once more for the weight gradient, all passes under one code."""
    kept_bytes: FloatArray
    again_s: FloatArray
    """What making the tensor again costs: the producer's forward time and its reduction."""
    gather_s: FloatArray
    scatter_s: FloatArray
    """Seconds on links before any is hidden: forward gather, backward reduction."""

    @property
    def time_s(self) -> FloatArray:
        return self.forward_s + self.back_s + self.fetch_s


def exposed(
    link_s: FloatArray | float, compute_s: FloatArray | float, streams: BoolArray | bool
) -> FloatArray:
    """`exposed_s` of the kernels for whole arrays."""
    pieces = kernels.CHUNKS
    late = np.maximum(0.0, link_s - kernels.SHARE * compute_s) * (pieces - 1.0) / pieces
    return np.where(streams, link_s / pieces + late, link_s)


def distinct(layouts: IntArray) -> tuple[IntArray, IntArray]:
    """Layouts that differ, and which of them each one is: codes differ in more than their layouts
    of one tensor.
    """
    return _distinct(layouts.shape, layouts.tobytes())


@lru_cache(maxsize=1 << 9)
def _distinct(shape: tuple[int, ...], content: bytes) -> tuple[IntArray, IntArray]:
    """Tables of every microbatch and way of collectives ask for the same."""
    layouts = np.frombuffer(content, np.int64).reshape(shape)
    flat = layouts.reshape(len(layouts), -1)
    _, first, which = np.unique(flat, axis=0, return_index=True, return_inverse=True)
    return layouts[first], which.reshape(-1)


class _Recent:
    """What was made last, at most so many bytes of it: the planners of a search ask for the same
    shape one after the other.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most, self._bytes = most_bytes, 0
        self._made: dict[Hashable, FloatArray] = {}
        self._lock = Lock()

    def of(self, key: Hashable, make: Callable[[], FloatArray]) -> FloatArray:
        with self._lock:
            found = self._made.get(key)
        if found is not None:
            return found
        found = make()
        with self._lock:
            if key not in self._made:
                self._made[key] = found
                self._bytes += found.nbytes
            while self._bytes > self._most:
                self._bytes -= self._made.pop(next(iter(self._made))).nbytes
        return found


_RECENT = _Recent(1 << 26)


class Tables:
    """All tables of one block on one digit system."""

    def __init__(
        self,
        block: Block,
        digits: Digits,
        setting: Setting,
        price: DiePricer,
        only: Mapping[str, tuple[str, ...]] | None = None,
        *,
        units: bool = True,
        modes: tuple[bool, ...] | None = None,
        algorithms: Mapping[str, str] | None = None,
    ) -> None:
        """`modes`: the ways of an operator's collectives to price (streamed or not); `algorithms`:
        those of operators that name their own, for sums over the copies of their weights.
        """
        self._algorithms = algorithms or {}
        self.modes = modes or (setting.streaming,)
        self.block, self.digits, self.setting, self.price = block, digits, setting, price
        self._only = only or {}
        self._known_s: dict[Hashable, float] = {}
        self.mesh = (wires(digits, setting.wafer.mesh), ALGORITHMS.index(setting.algorithm))
        """What kernels want to know of the mesh and its collectives."""
        self.stream = self._stream()
        self.nodes = tuple(
            tuple(self.unit_nodes(u) for u in chain.units if units) for chain in block.chains
        )

    # -- nodes ---------------------------------------------------------------------------------

    def codes(self, name: str, sizes: dict[str, int]) -> tuple[str, ...]:
        return self._only.get(name) or legal_codes(sizes, self.digits)

    def _stream(self) -> Nodes:
        codes = self.codes("stream", self.block.stream_sizes)
        kind = KINDS["vector"]
        zero = np.zeros(len(codes))
        # Nothing hides behind the stream: its way of collectives does not matter.
        return Nodes(
            None, codes, np.zeros(len(codes), np.bool_), layouts(codes, kind.reads),
            layouts(codes, [kind.writes]), layouts(codes, [kind.gradient_reads]),
            layouts(codes, kind.gradient_writes), zero, zero, zero, zero,
            np.zeros((len(codes), 1, self.digits.count), np.int64), zero, zero + 1.0, zero, zero,
            zero,
        )  # fmt: skip

    def unit_nodes(self, unit: Unit) -> Nodes:
        legal_ones = self.codes(unit.name, unit.sizes)
        codes = legal_ones * len(self.modes)
        streams = np.repeat(np.array(self.modes, np.bool_), len(legal_ones))
        kind = KINDS[unit.kind]
        among = [parts_of(code, self.digits) for code in legal_ones]
        pieces = (int(kernels.CHUNKS) if way else 1 for way in self.modes)
        passes = np.concatenate([passes_of(self.price, unit, among, way) for way in pieces])
        forward, data, weight = passes.T
        held = [prod(parts.get(tag, 1) for tag in kind.weight) for parts in among]
        parameters = unit.parameters / np.array(held * len(self.modes))
        member = np.array([[tag not in kind.weight for tag in code] for code in codes], np.bool_)
        copies = np.where(member.reshape(len(codes), -1), self.digits.radix, 1).prod(axis=1)
        states = self.setting.states
        step = states.update * parameters / self.price.chip.hbm.bandwidth_Bps
        step /= self.setting.microbatches
        way = self._algorithms.get(unit.name, "")
        tensors = 2 if unit.kind == "attention" else 1
        writes = unit.outputs
        weights = {tag: _WEIGHT.get(tag, roles.WHOLE) for tag in "bsknhtecr"}
        return Nodes(
            unit, codes, streams, layouts(codes, kind.reads[:tensors]),
            layouts(codes, [kind.writes] * writes),
            layouts(codes, [kind.gradient_reads] * writes),
            layouts(codes, kind.gradient_writes[:tensors]), forward, data, weight, parameters,
            layouts(codes, [weights]), step, copies.astype(np.float64),
            self._port_s(unit, parameters),
            self.over_copies_s(member, states.reduced * parameters, way),
            self.over_copies_s(member, states.weight * parameters, way),
        )  # fmt: skip

    def _port_s(self, unit: Unit, parameters: FloatArray) -> FloatArray:
        """Streamed weights come through the wafer's ports and then, as a broadcast, over every
        die's link; prefetched one operator ahead.
        """
        wafer, each = self.setting.wafer, self.setting.states.weight
        ports = each * unit.parameters / (wafer.io_Bps * self.setting.io_share)
        return np.maximum(ports, each * parameters / wafer.link_Bps)

    def over_copies_s(
        self, member: BoolArray, volume: FloatArray, algorithm: str = ""
    ) -> FloatArray:
        """Seconds to gather so many bytes over each group of dies, or to sum and divide them."""
        chosen, mesh = algorithm or self.setting.algorithm, self.setting.wafer.mesh
        return gathers_s(self.digits, member.reshape(len(volume), -1), volume, mesh, chosen)

    # -- edges ---------------------------------------------------------------------------------

    def chain_nodes(self, chain: int) -> tuple[Nodes, ...]:
        """The stream, the operators, and the stream again."""
        return (self.stream, *self.nodes[chain], self.stream)

    def edge(self, edge: Edge, source: Nodes, target: Nodes) -> EdgeTable:
        forward, made, gather, kept = self.ahead(edge, source, target)
        back, scatter = self.back(edge, source, target)
        fetch = exposed(gather, target.weight_s[None, :], target.streams[None, :])
        made += source.forward_s[:, None]
        return EdgeTable(forward, back, fetch, kept, made, gather, scatter)

    def ahead(self, edge: Edge, source: Nodes, target: Nodes) -> tuple[FloatArray, ...]:
        """Seconds forward; of the reduction with its exchange; of the gather; bytes to keep."""
        found = np.empty((4, len(source.codes), len(target.codes)))
        beside = source.forward_s, source.streams, target.forward_s, target.streams
        moved = self._moved(edge, source.writes, target.reads)
        kernels.ahead_matrix(*moved, *beside, found)
        return tuple(found)

    def back(self, edge: Edge, source: Nodes, target: Nodes) -> tuple[FloatArray, ...]:
        """Seconds of the gradients' way back, and of its reduction."""
        found = np.empty((2, len(source.codes), len(target.codes)))
        beside = source.data_s, source.streams, target.data_s, target.streams
        moved = self._moved(edge, target.gradient_writes, source.gradient_reads)
        kernels.back_matrix(*moved, *beside, found)
        return tuple(found)

    def _moved(
        self, edge: Edge, written: IntArray, read: IntArray
    ) -> tuple[FloatArray, IntArray, IntArray]:
        """Seconds of scatter, exchange and gather, and bytes to keep, between layouts that differ;
        and which of them each one is. Ways of collectives do not change them.
        """
        (have, rows), (want, columns) = distinct(written), distinct(read)

        def make() -> FloatArray:
            found = np.zeros((4, len(have), len(want)))
            kernels.parts_matrix(np.array(edge.totals), have, want, *self.mesh, *found)
            return found

        where = self.digits, self.setting.wafer.mesh, self.setting.algorithm, edge.totals
        return _RECENT.of((*where, have.tobytes(), want.tobytes()), make), rows, columns

    def chain_edges(self, chain: int) -> tuple[EdgeTable, ...]:
        nodes = self.chain_nodes(chain)
        described: Chain = self.block.chains[chain]
        tables = [self.edge(edge, nodes[i], nodes[i + 1]) for i, edge in enumerate(described.edges)]
        # The stream runs the norm: that is what its output costs to make again.
        norm = np.array([self.entry_s(chain, code) for code in self.stream.codes])
        tables[0] = replace(tables[0], again_s=tables[0].again_s + norm[:, None])
        return tuple(tables)

    # -- the stream ----------------------------------------------------------------------------

    def _norm_sums_s(self, code: str) -> float:
        """Columns cut between dies: a norm sums two 4-byte statistics a row over them."""
        if "c" not in code:
            return 0.0
        if code not in self._known_s:
            parts, block = parts_of(code, self.digits), self.block
            rows = block.microbatch * block.sequence / (parts.get("b", 1) * parts.get("s", 1))
            where = self.digits, [tag == "c" for tag in code], 8.0 * rows, self.setting.wafer.mesh
            self._known_s[code] = 2.0 * gather_s(*where, self.setting.algorithm)
        return self._known_s[code]

    def _vectors_s(self, chain: int, code: str, *, entry: bool) -> float:
        """Vector passes of the stream before a chain's first operator, or the others; worked out
        once for codes that cut alike.
        """
        key = chain, entry, cuts_of(code, self.digits)
        if key not in self._known_s:
            parts = parts_of(code, self.digits)
            described = self.block.chains[chain]
            passes = described.entry_passes if entry else described.stream_passes
            self._known_s[key] = float(self.price.passes_s(passes, parts))
        return self._known_s[key]

    def entry_s(self, chain: int, code: str) -> float:
        return self._vectors_s(chain, code, entry=True) + self._norm_sums_s(code)

    def stream_s(self, code: str) -> float:
        """All work on the stream of one layer, forward and backward."""
        total = 0.0
        for chain in range(len(self.block.chains)):
            total += self.entry_s(chain, code) + self._norm_sums_s(code)
            total += self._vectors_s(chain, code, entry=False)
        return total

    def stream_share(self, code: str) -> float:
        """The part of a stream tensor that a die holds."""
        parts = parts_of(code, self.digits)
        return 1.0 / prod(parts.get(tag, 1) for tag in "bsc")

    def buffer_bytes(self, code: str) -> float:
        """Two of the stream's tensors, gathered but for samples: the one in work and the next; and
        what comes back from outside.
        """
        gathered = 2.0 * self.block.stream_bytes / parts_of(code, self.digits).get("b", 1)
        whole = self.block.stream_bytes + self.block.always_bytes
        return gathered + self.stream_share(code) * (whole - self.setting.held_bytes(self.block))
