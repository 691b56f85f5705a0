"""The parts of a block: chains of operators between two visits of the residual stream.

    stream -> norm -> qkv -> attention -> proj -> stream -> norm -> fc1 -> act -> fc2 -> stream

Each operator has loop dimensions of one letter; a tag says which dimension a digit of the mesh
splits, and determines the layouts of all tensors of the operator, forward and backward:

    b batch   s sequence   k inputs   n outputs   h heads   t key/value sequence   e experts
    c columns (vector operators)      r none: every die of the digit does the same work

`block.py` reads them from the layers of `atoll.workload`.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    entry_passes: tuple[TaggedVector, ...]
    """Forward work on the stream before the first operator (the norm), recomputed with it."""
    stream_passes: tuple[TaggedVector, ...]
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
