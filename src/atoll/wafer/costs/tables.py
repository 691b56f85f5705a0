"""Node and edge tables of a block on one rectangle of dies, for every code of every operator.

Tables hold seconds of compute, parameters per die, costs of gathering and summing weights, and
(between two operators) the re-sharding with its overlap and the bytes to save.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import pairwise
from math import prod
from threading import Lock
from typing import Any

import numpy as np

from atoll.base.arrays import Bools, Floats, Ints
from atoll.fabric.digits import Digits
from atoll.fabric.mesh import ALGORITHMS
from atoll.fabric.mesh_collectives import gather_s, gathers_s, wires
from atoll.hardware.wafer import Wafer
from atoll.step.states import STATES, States
from atoll.wafer.costs import block_kernels as kernels
from atoll.wafer.costs.die_pricer import DiePricer, pass_times_s
from atoll.wafer.encoding import role_kernels as roles
from atoll.wafer.encoding.block_parts import KINDS, OPTIMIZER, Edge, Roles, Unit, WaferBlock
from atoll.wafer.encoding.codes import Parts, layouts, legal_codes, parts_of

_WEIGHT = {"k": roles.SEQUENCE, "n": roles.COLUMNS, "e": roles.EXPERTS}


@dataclass(frozen=True)
class CostSetting:
    """Parameters that all tables of a search share."""

    wafer: Wafer
    microbatches: int
    """Microbatches of one step."""
    streaming: bool = True
    """Collectives overlap their operators, in pieces."""
    algorithm: str = "auto"
    io_share: float = 1.0
    """Share of the wafer's input and output bandwidth that one group may use."""
    states: States = STATES[OPTIMIZER]

    def stream_saved_bytes(self, block: WaferBlock) -> float:
        """Return the bytes per layer and microbatch that are kept under any recompute."""
        return 0.0 if self.wafer.inputs_outside else block.stream_bytes + block.always_bytes

    def ports_s(self, block: WaferBlock) -> float:
        """Return the seconds of the wafer's ports per layer and microbatch if weights and inputs of
        layers are stored outside: weights for both passes and the input for the backward pass come
        in; gradients and the input go out.
        """
        if not self.wafer.inputs_outside:
            return 0.0
        bytes_per_parameter = max(2.0 * self.states.weight, self.states.reduced)
        parameters = sum(unit.parameters for unit in block.units)
        moved_bytes = bytes_per_parameter * parameters + block.stream_bytes + block.always_bytes
        return moved_bytes / (self.wafer.io_Bps * self.io_share)


@dataclass(frozen=True, eq=False)
class NodeTable:
    """One operator (or the stream): an entry per mode (collectives streamed or not) and code.

    The entries of a mode are contiguous; every mode has the same codes in the same order.
    """

    unit: Unit | None
    codes: tuple[str, ...]
    streams: Bools
    """Whether an entry's collectives overlap it, in pieces."""
    reads: Ints
    writes: Ints
    gradient_reads: Ints
    gradient_writes: Ints
    forward_s: Floats
    data_s: Floats
    weight_s: Floats
    parameters: Floats
    weight_layouts: Ints  # (codes, 1, digits): layout of the weight
    step_s: Floats
    """Optimizer step on the parameters of a die, per microbatch."""
    copies: Floats
    port_s: Floats
    """Loading the weight from outside the wafer."""
    gradient_sum_s: Floats
    """Half an all-reduce of the gradient over the copies of the weight."""
    weight_gather_s: Floats
    """Gathering the weight over its copies."""

    @property
    def compute_s(self) -> Floats:
        return self.forward_s + self.data_s + self.weight_s

    @cached_property
    def index(self) -> dict[str, int]:
        """First entry of every code."""
        return {code: i for i, code in reversed(list(enumerate(self.codes)))}

    def select(self, entries: Ints) -> NodeTable:
        """Return the table of some entries."""
        arrays: dict[str, Any] = {
            k: v[entries] for k, v in vars(self).items() if isinstance(v, np.ndarray)
        }
        return replace(self, codes=tuple(self.codes[i] for i in entries), **arrays)

    def entry(self, code: str, streams: bool) -> int:
        """Return the entry of a code with collectives streamed or not."""
        first = self.index[code]
        return first if self.streams[first] == streams else first + len(self.index)


@dataclass(frozen=True, eq=False)
class EdgeTable:
    """Re-sharding between two operators; arrays (entries of producer, entries of consumer)."""

    forward_s: Floats
    back_s: Floats
    fetch_s: Floats
    """Gathering the input again for the weight gradient, if all passes share one code."""
    saved_bytes: Floats
    recompute_s: Floats
    """Recomputing the tensor: the producer's forward pass and its reduction."""
    gather_s: Floats
    scatter_s: Floats
    """Seconds on links before overlap: forward gather, backward reduction."""

    @property
    def time_s(self) -> Floats:
        return self.forward_s + self.back_s + self.fetch_s


def exposed(link_s: Floats | float, compute_s: Floats | float, streams: Bools | bool) -> Floats:
    """Apply `exposed_s` of the kernels to arrays."""
    pieces = kernels.CHUNKS
    unhidden_s = np.maximum(0.0, link_s - kernels.SHARE * compute_s) * (pieces - 1.0) / pieces
    return np.where(streams, link_s / pieces + unhidden_s, link_s)


def delay_s(link_s: Floats, journey_s: Floats | float, compute_s: Floats, streams: Bools) -> Floats:
    """Return the exposed seconds that a journey adds to a transfer, by entries of a consumer."""
    overlap = compute_s[None, :], streams[None, :]
    return exposed(link_s + journey_s, *overlap) - exposed(link_s, *overlap)


def distinct_layouts(layouts: Ints) -> tuple[Ints, Ints]:
    """Return the distinct layouts, and the index of each layout among them."""
    return _distinct_layouts(layouts.shape, layouts.tobytes())


@lru_cache(maxsize=1 << 9)
def _distinct_layouts(shape: tuple[int, ...], content: bytes) -> tuple[Ints, Ints]:
    """Cached, since tables of every microbatch and mode need the same."""
    layouts = np.frombuffer(content, np.int64).reshape(shape)
    flat = layouts.reshape(len(layouts), -1)
    _, first, which = np.unique(flat, axis=0, return_index=True, return_inverse=True)
    return layouts[first], which.reshape(-1)


class _ByteLimitedCache:
    """Keeps the most recent arrays, up to a number of bytes."""

    def __init__(self, most_bytes: int) -> None:
        self._most, self._bytes = most_bytes, 0
        self._arrays: dict[Hashable, Floats] = {}
        self._lock = Lock()

    def get(self, key: Hashable, compute: Callable[[], Floats]) -> Floats:
        with self._lock:
            array = self._arrays.get(key)
        if array is not None:
            return array
        array = compute()
        with self._lock:
            if key not in self._arrays:
                self._arrays[key] = array
                self._bytes += array.nbytes
            while self._bytes > self._most:
                self._bytes -= self._arrays.pop(next(iter(self._arrays))).nbytes
        return array


_TRANSITION_CACHE = _ByteLimitedCache(1 << 26)


class ChainTables:
    """Tables of a block: of the codes of a shape (`BlockTables`) or of splits (`SplitTables`)."""

    block: WaferBlock
    setting: CostSetting
    pricer: DiePricer
    dies: int
    stream: NodeTable
    nodes: tuple[tuple[NodeTable, ...], ...]
    modes: tuple[bool, ...]

    def cut(self, code: str) -> Parts:
        """Return the split of an entry of the stream."""
        raise NotImplementedError

    def layouts(
        self, codes: Sequence[str], cuts: Sequence[Parts], tensors: Sequence[Roles]
    ) -> Ints:
        """Return the layouts of tensors by entry; `cuts` are the splits of the codes."""
        raise NotImplementedError

    def over_copies(
        self, unit: Unit | None, codes: Sequence[str], copies: Ints
    ) -> tuple[Ints, Callable[[Floats], Floats]]:
        """Return the layouts of a weight, and the seconds to gather bytes over its copies."""
        raise NotImplementedError

    def rows_gather_s(self, code: str, volume: float) -> float:
        """Return the seconds to gather bytes over the dies that cut the stream's columns."""
        raise NotImplementedError

    def transition_parts(self, edge: Edge, written: Ints, read: Ints) -> tuple[Floats, Ints, Ints]:
        """Return seconds of scatter, exchange and gather, and bytes to save, between distinct
        layouts, which do not depend on the mode; and the indices of entries among these.
        """
        raise NotImplementedError

    # -- nodes ---------------------------------------------------------------------------------

    def node_table(
        self, unit: Unit | None, codes: tuple[str, ...], cuts: Sequence[Parts]
    ) -> NodeTable:
        """Return the table of an operator or of the stream (None) for codes with these splits."""
        kind = KINDS[unit.kind if unit else "vector"]
        # The stream overlaps nothing, so its mode does not matter.
        modes = self.modes if unit else (False,)
        passes = np.zeros((len(codes), 3))
        if unit is not None:
            pieces = (int(kernels.CHUNKS) if streams else 1 for streams in modes)
            passes = np.concatenate([pass_times_s(self.pricer, unit, cuts, n) for n in pieces])
        streams = np.repeat(np.array(modes, np.bool_), len(codes))
        codes, cuts = codes * len(modes), [*cuts] * len(modes)
        divided = np.array([prod(cut.get(tag, 1) for tag in kind.weight) for cut in cuts], np.int64)
        copies = self.dies // divided
        weights = unit.parameters if unit else 0
        parameters = weights / divided
        wafer, states = self.setting.wafer, self.setting.states
        port_s = states.weight * weights / (wafer.io_Bps * self.setting.io_share)
        tensors = 2 if unit and unit.kind == "attention" else 1
        outputs = unit.outputs if unit else 1
        tensor_roles = (kind.reads[:tensors], [kind.writes] * outputs)
        gradient_roles = ([kind.gradient_reads] * outputs, kind.gradient_writes[:tensors])
        reads, writes = (self.layouts(codes, cuts, r) for r in tensor_roles)
        gradient_reads, gradient_writes = (self.layouts(codes, cuts, r) for r in gradient_roles)
        forward_s, data_s, weight_s = passes.T
        weight_layouts, gather_s = self.over_copies(unit, codes, copies)
        return NodeTable(
            unit, codes, streams, reads, writes, gradient_reads, gradient_writes,
            forward_s, data_s, weight_s, parameters, weight_layouts,
            states.update * parameters / self.pricer.stream_Bps / self.setting.microbatches,
            copies.astype(np.float64),
            np.maximum(port_s, states.weight * parameters / wafer.link_Bps),
            gather_s(states.reduced * parameters), gather_s(states.weight * parameters),
        )  # fmt: skip

    def chain_nodes(self, chain: int) -> tuple[NodeTable, ...]:
        """Return the stream, the operators, and the stream again."""
        return (self.stream, *self.nodes[chain], self.stream)

    # -- edges ---------------------------------------------------------------------------------

    def chain_edges(self, chain: int) -> tuple[EdgeTable, ...]:
        nodes, edges = self.chain_nodes(chain), self.block.chains[chain].edges
        pairs = zip(edges, pairwise(nodes), strict=True)
        first, *others = (self._edge(edge, *pair) for edge, pair in pairs)
        # The stream runs the norm: recomputing its output means running the norm again.
        norms_s = np.array([self.entry_s(chain, code) for code in self.stream.codes])
        return replace(first, recompute_s=first.recompute_s + norms_s[:, None]), *others

    def _edge(self, edge: Edge, source: NodeTable, target: NodeTable) -> EdgeTable:
        forward_s, written_s, gather_s, saved_bytes = self.forward_arrays(edge, source, target)
        backward_s, scatter_s = self.backward_arrays(edge, source, target)
        fetch_s = exposed(gather_s, target.weight_s[None, :], target.streams[None, :])
        written_s += source.forward_s[:, None]
        times = forward_s, backward_s, fetch_s, saved_bytes, written_s, gather_s, scatter_s
        return EdgeTable(*times)

    def forward_arrays(
        self, edge: Edge, source: NodeTable, target: NodeTable
    ) -> tuple[Floats, ...]:
        """Return seconds forward, of reduction and exchange, of the gather; bytes to save."""
        arrays = np.empty((4, len(source.codes), len(target.codes)))
        compute = source.forward_s, source.streams, target.forward_s, target.streams
        parts = self.transition_parts(edge, source.writes, target.reads)
        kernels.forward_matrix(*parts, *compute, arrays)
        return tuple(arrays)

    def backward_arrays(
        self, edge: Edge, source: NodeTable, target: NodeTable
    ) -> tuple[Floats, ...]:
        """Return seconds of the gradients' transition, and of its reduction."""
        arrays = np.empty((2, len(source.codes), len(target.codes)))
        compute = source.data_s, source.streams, target.data_s, target.streams
        parts = self.transition_parts(edge, target.gradient_writes, source.gradient_reads)
        kernels.backward_matrix(*parts, *compute, arrays)
        return tuple(arrays)

    # -- the stream ----------------------------------------------------------------------------

    @cached_property
    def _cached_s(self) -> dict[Hashable, float]:
        return {}

    def _norm_sums_s(self, code: str) -> float:
        """Return the seconds in which a norm sums two 4-byte statistics per row over columns."""
        cut, block = self.cut(code), self.block
        if "c" not in cut:
            return 0.0
        if code not in self._cached_s:
            rows = block.microbatch * block.sequence / (cut.get("b", 1) * cut.get("s", 1))
            self._cached_s[code] = 2.0 * self.rows_gather_s(code, 8.0 * rows)
        return self._cached_s[code]

    def _vectors_s(self, chain: int, code: str, *, entry: bool) -> float:
        """Return seconds of the stream's vector passes before a chain, or of the others."""
        cut = self.cut(code)
        key = chain, entry, frozenset(cut.items())
        if key not in self._cached_s:
            described = self.block.chains[chain]
            passes = described.entry_passes if entry else described.stream_passes
            self._cached_s[key] = float(self.pricer.passes_s(passes, cut))
        return self._cached_s[key]

    def entry_s(self, chain: int, code: str) -> float:
        return self._vectors_s(chain, code, entry=True) + self._norm_sums_s(code)

    def stream_s(self, code: str) -> float:
        """Return the seconds of all work on the stream of one layer, forward and backward."""
        total = 0.0
        for chain in range(len(self.block.chains)):
            total += self.entry_s(chain, code) + self._norm_sums_s(code)
            total += self._vectors_s(chain, code, entry=False)
        return total

    def stream_share(self, code: str) -> float:
        """Return the share of a stream tensor that a die holds."""
        cut = self.cut(code)
        return 1.0 / prod(cut.get(tag, 1) for tag in "bsc")

    def buffer_bytes(self, code: str) -> float:
        """Return the bytes of two of the stream's tensors (current and next), gathered except over
        samples, and of what comes back from outside.
        """
        gathered_bytes = 2.0 * self.block.stream_bytes / self.cut(code).get("b", 1)
        saved_bytes = self.block.stream_bytes + self.block.always_bytes
        outside_bytes = saved_bytes - self.setting.stream_saved_bytes(self.block)
        return gathered_bytes + self.stream_share(code) * outside_bytes


class BlockTables(ChainTables):
    """All tables of one block on one digit system."""

    def __init__(
        self, block: WaferBlock, digits: Digits, setting: CostSetting, pricer: DiePricer,
        allowed_codes: Mapping[str, tuple[str, ...]] | None = None, *, units: bool = True,
        modes: tuple[bool, ...] | None = None, algorithms: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        """`modes`: collectives of operators to price (streamed or not); `algorithms`: by operator,
        for sums over the copies of its weight, if not that of the setting.
        """
        self._algorithms = algorithms or {}
        self.modes = modes or (setting.streaming,)
        self.block, self.digits, self.setting, self.pricer = block, digits, setting, pricer
        self.dies = digits.size
        self._allowed_codes = allowed_codes or {}
        self.mesh = (wires(digits, setting.wafer.mesh), ALGORITHMS.index(setting.algorithm))
        """Arguments of kernels: the mesh, and the algorithm of its collectives."""
        self.stream = self.unit_nodes(None)
        self.nodes = tuple(
            tuple(self.unit_nodes(unit) for unit in chain.units if units) for chain in block.chains
        )

    def cut(self, code: str) -> Parts:
        return parts_of(code, self.digits)

    def unit_nodes(self, unit: Unit | None) -> NodeTable:
        """Return the table of an operator, or of the stream."""
        name, sizes = (unit.name, unit.sizes) if unit else ("stream", self.block.stream_sizes)
        codes = self._allowed_codes.get(name) or legal_codes(sizes, self.digits)
        return self.node_table(unit, codes, [self.cut(code) for code in codes])

    def layouts(
        self, codes: Sequence[str], cuts: Sequence[Parts], tensors: Sequence[Roles]
    ) -> Ints:
        return layouts(codes, tensors)

    def over_copies(
        self, unit: Unit | None, codes: Sequence[str], copies: Ints
    ) -> tuple[Ints, Callable[[Floats], Floats]]:
        kind = KINDS[unit.kind if unit else "vector"]
        member = np.array([[tag not in kind.weight for tag in code] for code in codes], np.bool_)
        algorithm = self._algorithms.get(unit.name, "") if unit else ""
        weights = {tag: _WEIGHT.get(tag, roles.REPLICATED) for tag in "bsknhtecr"}
        gather_s = partial(self.gather_over_copies_s, member, algorithm=algorithm)
        return layouts(codes, [weights]), gather_s

    def gather_over_copies_s(self, member: Bools, volume: Floats, algorithm: str = "") -> Floats:
        """Return the seconds to gather, or reduce-scatter, `volume` bytes over groups of dies."""
        chosen, mesh = algorithm or self.setting.algorithm, self.setting.wafer.mesh
        return gathers_s(self.digits, member.reshape(len(volume), -1), volume, mesh, chosen)

    def rows_gather_s(self, code: str, volume: float) -> float:
        where = self.digits, [tag == "c" for tag in code], volume, self.setting.wafer.mesh
        return gather_s(*where, self.setting.algorithm)

    def transition_parts(self, edge: Edge, written: Ints, read: Ints) -> tuple[Floats, Ints, Ints]:
        source, rows = distinct_layouts(written)
        target, columns = distinct_layouts(read)

        def compute() -> Floats:
            parts = np.zeros((4, len(source), len(target)))
            kernels.transition_matrix(np.array(edge.totals), source, target, *self.mesh, *parts)
            return parts

        mesh = self.digits, self.setting.wafer.mesh, self.setting.algorithm, edge.totals
        key = (*mesh, source.tobytes(), target.tobytes())
        return _TRANSITION_CACHE.get(key, compute), rows, columns
