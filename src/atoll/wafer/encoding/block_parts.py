"""The parts of a block: chains of operators between two visits of the residual stream; the
variables of its mapping, and their cost.

    stream -> norm -> qkv -> attention -> proj -> stream -> norm -> fc1 -> act -> fc2 -> stream

Each operator has loop dimensions of one letter; a tag says which dimension a digit of the mesh
splits, and determines the layouts of all tensors of the operator, forward and backward:

    b batch   s sequence   k inputs   n outputs   h heads   t key/value sequence   e experts
    c columns (vector operators)      r none: every die of the digit does the same work

`block.py` reads them from the layers of `atoll.workload`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from atoll.base.arrays import Floats
from atoll.wafer.encoding.role_kernels import BATCH, COLUMNS, EXPERTS, PARTIAL, REPLICATED, SEQUENCE
from atoll.workload.graph.operator import Matmul, VectorWork

Roles = dict[str, int]

_SAME: Roles = {"b": BATCH, "s": SEQUENCE, "c": COLUMNS, "e": EXPERTS, "r": REPLICATED}


@dataclass(frozen=True)
class OperatorKind:
    """Roles of tags for the tensors of a kind of operator.

    Inputs and gradients of inputs are listed per input tensor.
    """

    reads: tuple[Roles, ...]
    writes: Roles
    gradient_reads: Roles
    """Layout required of the output's gradient."""
    gradient_writes: tuple[Roles, ...]
    weight: str = ""
    """Tags that split the weight; all others replicate it."""


_LINEAR_READS = _SAME | {"k": COLUMNS, "n": REPLICATED}
KINDS = {
    # Y[m, n] = X[m, k] W[k, n]: k leaves partial sums of Y, n partial sums of dX.
    "linear": OperatorKind(
        (_LINEAR_READS,),
        _SAME | {"k": PARTIAL, "n": COLUMNS},
        _SAME | {"k": REPLICATED, "n": COLUMNS},
        (_SAME | {"k": COLUMNS, "n": PARTIAL},),
        "kne",
    ),
    # Inputs: queries; keys and values. t leaves partial outputs, s partial dK and dV.
    "attention": OperatorKind(
        (
            _SAME | {"h": COLUMNS, "t": REPLICATED},
            _SAME | {"h": COLUMNS, "t": SEQUENCE, "s": REPLICATED},
        ),
        _SAME | {"h": COLUMNS, "t": PARTIAL},
        _SAME | {"h": COLUMNS, "t": REPLICATED},
        (_SAME | {"h": COLUMNS, "t": PARTIAL}, _SAME | {"h": COLUMNS, "t": SEQUENCE, "s": PARTIAL}),
    ),
    "vector": OperatorKind((_SAME,), _SAME, _SAME, (_SAME,)),
}


@dataclass(frozen=True)
class TaggedMatmul:
    """A matrix product with the tags that split its batch, rows, columns and reduction."""

    matmul: Matmul
    batch: str
    m: str
    n: str
    k: str


@dataclass(frozen=True)
class TaggedVector:
    """A vector pass, the tags that split its rows and columns, and the bytes that it moves."""

    work: VectorWork
    rows: str
    columns: str
    bytes: float
    starts: float = 1.0
    """Its share of the start of an operator; 0 if it is fused with products."""


@dataclass(frozen=True, eq=False)
class Unit:
    """One operator of the encoding."""

    name: str
    kind: str
    sizes: dict[str, int]
    """Loop dimensions by tag, as counts of divisible units."""
    forward: tuple[TaggedMatmul, ...]
    data_gradient: tuple[TaggedMatmul, ...]
    weight_gradient: tuple[TaggedMatmul, ...]
    forward_passes: tuple[TaggedVector, ...]
    backward_passes: tuple[TaggedVector, ...]
    parameters: int
    on_chip: bool
    traffic_bytes: float
    """Forward traffic of an on-chip operator; the mapper computes that of others."""
    outputs: int = 1
    """Tensors that travel separately (queries; keys and values)."""


@dataclass(frozen=True)
class Edge:
    """Tensors from one operator (or the stream) to the next, in bytes per microbatch."""

    name: str
    totals: tuple[float, ...]
    kept_name: str
    """The saved tensor of this edge ("" if backward reads none)."""


@dataclass(frozen=True)
class OperatorChain:
    """Operators between two visits of the stream, with one edge more than operators."""

    units: tuple[Unit, ...]
    edges: tuple[Edge, ...]
    entry_passes: tuple[TaggedVector, ...] = ()
    """Forward work on the stream before the first operator (the norm), recomputed with it."""
    stream_passes: tuple[TaggedVector, ...] = ()
    """All other work on the stream: residual, dropout, and every backward pass there."""


@dataclass(frozen=True, eq=False)
class WaferBlock:
    """The repeated layer of a model at one microbatch."""

    model: str
    layers: int
    microbatch: int
    sequence: int
    hidden: int
    stream_bytes: float
    always_bytes: float
    """Saved tensors that are always kept, without the layer's input: masks, routes, norm inputs."""
    chains: tuple[OperatorChain, ...]
    head: Unit | None
    head_bytes: float
    """Logits and tensors saved by the loss, not divided."""
    embedding_parameters: int
    parameters: int

    @property
    def units(self) -> tuple[Unit, ...]:
        return tuple(unit for chain in self.chains for unit in chain.units)

    @property
    def saved_names(self) -> tuple[str, ...]:
        """The saved tensors of all edges, in the order of their fates."""
        edges = (edge for chain in self.chains for edge in chain.edges)
        return tuple(edge.kept_name for edge in edges if edge.kept_name)

    @property
    def stream_sizes(self) -> dict[str, int]:
        return {"b": self.microbatch, "s": self.sequence, "c": self.hidden, "r": 1}


FloatT = TypeVar("FloatT", float, Floats)
RECOMPUTE = 0
KEEP, OFFLOAD = 1, 2
"""Fates of a saved tensor between forward and backward: recomputed by its producer, kept, or
offloaded to another stage's memory."""
FATES = ("again", "keep", "offload")
SCHEDULE_1F1B = "1f1b"
SCHEDULES = (SCHEDULE_1F1B, "zb-h1")
"""Pipeline schedules of a mapping."""
EXTERNAL = "external"
HOMES = ("replicated", "optimizer", "gradients", "weights", EXTERNAL)
"""Placements of a weight's copies (`costs.homes`)."""
SEARCHED_HOMES = ("optimizer", "gradients", "weights")
OPTIMIZER = "mixed"
"""Default optimizer states."""


@dataclass(frozen=True)
class BlockMapping:
    """The variables of one block on one rectangle that the exact solver chooses."""

    stream: str
    codes: tuple[str, ...]
    homes: tuple[str, ...]
    keep: tuple[int, ...]
    """Fate of each saved tensor, in the order of the edges."""
    gradients: tuple[tuple[str, str], ...] = ()
    """Codes of each operator's data-gradient and weight-gradient pass; empty: the forward's."""
    collectives: tuple[tuple[bool, str], ...] = ()
    """Of each operator: streamed or not, and the algorithm; empty: those of the mapping."""

    @property
    def passes(self) -> tuple[tuple[str, str, str], ...]:
        """Codes of forward, data gradient and weight gradient by operator."""
        gradients = self.gradients or tuple((code, code) for code in self.codes)
        return tuple((f, d, w) for f, (d, w) in zip(self.codes, gradients, strict=True))

    @property
    def used(self) -> tuple[tuple[str, ...], ...]:
        """The distinct codes of every operator."""
        return tuple(tuple(dict.fromkeys(codes)) for codes in self.passes)


@dataclass(frozen=True)
class HelperPath:
    """Bandwidth and latency from a die of a stage to its helper's memory, in one direction."""

    bandwidth_Bps: float
    latency_s: float

    def journey_s(self, tensor_bytes: FloatT) -> FloatT:
        """Return the seconds of bytes from one die."""
        return tensor_bytes / self.bandwidth_Bps + self.latency_s


@dataclass(frozen=True)
class BlockCost:
    """Seconds per layer and microbatch; bytes per die and layer."""

    time_s: float
    state_bytes: float
    kept_bytes: float
    """Per microbatch in flight."""
    rebuilt_bytes: float
    """Recomputed or fetched for the backward pass of one microbatch of one layer."""
    away_bytes: float = 0.0
    """Per microbatch in flight, offloaded to another stage's memory."""

    def memory_bytes(self, layers: int, in_flight: int) -> float:
        return layers * (self.state_bytes + in_flight * self.kept_bytes) + self.rebuilt_bytes


@dataclass(frozen=True)
class SolvedBlock:
    mapping: BlockMapping
    cost: BlockCost
    bound_s: float
    """Lower bound on the block's time on this rectangle within the memory limit."""
