"""A transformer block as chains of operators between two visits of the residual stream.

    stream -> norm -> qkv -> attention -> proj -> stream -> norm -> fc1 -> act -> fc2 -> stream

Each operator has loop dimensions, one letter each; a tag says which dimension a digit of the mesh
splits, and from it follow the layouts of everything the operator touches, forward and backward:

    b batch   s sequence   k inputs   n outputs   h heads   t key/value sequence   e experts
    c columns (vector operators)      r none: every die of the digit does the same work

The shapes, products and vector passes are those of `atoll.workload`; nothing is written down twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from atoll.errors import AtollError
from atoll.wafer.block_kernels import BATCH, COLUMNS, EXPERTS, PARTIAL, SEQUENCE, WHOLE
from atoll.workload import build_model, load_config
from atoll.workload.layer import Layer, Model
from atoll.workload.operator import Matmul, Operator, Role, VectorWork

Roles = dict[str, int]

_SAME: Roles = {"b": BATCH, "s": SEQUENCE, "c": COLUMNS, "e": EXPERTS, "r": WHOLE}


@dataclass(frozen=True)
class Kind:
    """What a tag of this kind of operator means for its tensors.

    Inputs and gradients of inputs are listed per input tensor.
    """

    reads: tuple[Roles, ...]
    writes: Roles
    gradient_reads: Roles
    """Layout in which the gradient of the output is wanted."""
    gradient_writes: tuple[Roles, ...]
    weight: str = ""
    """Tags that split the weight; all others replicate it."""


_LINEAR_READS = _SAME | {"k": COLUMNS, "n": WHOLE}
KINDS = {
    # Y[m, n] = X[m, k] W[k, n]: k leaves partial sums of Y, n partial sums of dX.
    "linear": Kind(
        (_LINEAR_READS,),
        _SAME | {"k": PARTIAL, "n": COLUMNS},
        _SAME | {"k": WHOLE, "n": COLUMNS},
        (_SAME | {"k": COLUMNS, "n": PARTIAL},),
        "kne",
    ),
    # Inputs: queries; keys and values. t leaves partial outputs, s partial dK and dV.
    "attention": Kind(
        (_SAME | {"h": COLUMNS, "t": WHOLE}, _SAME | {"h": COLUMNS, "t": SEQUENCE, "s": WHOLE}),
        _SAME | {"h": COLUMNS, "t": PARTIAL},
        _SAME | {"h": COLUMNS, "t": WHOLE},
        (_SAME | {"h": COLUMNS, "t": PARTIAL}, _SAME | {"h": COLUMNS, "t": SEQUENCE, "s": PARTIAL}),
    ),
    "vector": Kind((_SAME,), _SAME, _SAME, (_SAME,)),
}


@dataclass(frozen=True)
class Product:
    """A matrix product with the tags that split its batch, rows, columns and reduction."""

    matmul: Matmul
    batch: str
    m: str
    n: str
    k: str


@dataclass(frozen=True)
class Pass:
    """A vector pass, the tags that split its rows and columns, and the bytes that it moves."""

    work: VectorWork
    rows: str
    columns: str
    bytes: float


@dataclass(frozen=True)
class Unit:
    """One operator of the encoding."""

    name: str
    kind: str
    sizes: dict[str, int]
    """Loop dimensions by tag, in whole numbers of what can be divided."""
    forward: tuple[Product, ...]
    data_gradient: tuple[Product, ...]
    weight_gradient: tuple[Product, ...]
    forward_passes: tuple[Pass, ...]
    backward_passes: tuple[Pass, ...]
    parameters: int
    on_chip: bool
    traffic_bytes: float
    """Forward traffic of an on-chip operator; the mapper knows that of the others."""

    @property
    def tags(self) -> str:
        return "".join(self.sizes)


@dataclass(frozen=True)
class Edge:
    """Tensors from one operator (or the stream) to the next: bytes of the whole microbatch."""

    name: str
    totals: tuple[float, ...]
    kept_name: str
    """The saved tensor that this edge stands for ("" if backward reads none)."""


@dataclass(frozen=True)
class Chain:
    """From the stream through some operators back to the stream: one edge more than operators."""

    units: tuple[Unit, ...]
    edges: tuple[Edge, ...]
    entry_passes: tuple[Pass, ...]
    """Forward work on the stream before the first operator (the norm): run again for its output."""
    stream_passes: tuple[Pass, ...]
    """All other work on the stream: residual, dropout, and every backward pass there."""


@dataclass(frozen=True, eq=False)
class Block:
    """The repeated layer of a model at one microbatch."""

    model: str
    layers: int
    microbatch: int
    sequence: int
    hidden: int
    stream_bytes: float
    mask_bytes: float
    """Dropout masks on the stream, kept always."""
    chains: tuple[Chain, ...]
    head: Unit | None
    head_bytes: float
    """Logits and what the loss keeps, whole."""
    embedding_parameters: int
    flops: float
    """Products of all layers, forward and backward, one microbatch."""
    parameters: int

    @property
    def units(self) -> tuple[Unit, ...]:
        return tuple(unit for chain in self.chains for unit in chain.units)

    @property
    def stream_sizes(self) -> dict[str, int]:
        return {"b": self.microbatch, "s": self.sequence, "c": self.hidden, "r": 1}


def _local(name: str, operator: Operator, layer: Layer, rows: str, columns: str) -> list[Pass]:
    share = layer.traffic_bytes(operator) / max(1, len(operator.vectors))
    return [Pass(work, rows, columns, share) for work in operator.vectors]


class _Reader:
    """Finds the parts of a sequential pre-norm block in a workload layer."""

    def __init__(self, model: Model, layer: Layer) -> None:
        self.model, self.layer = model, layer
        self.forward = {op.name: op for op in layer.forward}
        self.used: set[str] = set()

    def op(self, name: str) -> Operator:
        if name not in self.forward:
            raise AtollError(
                f"model {self.model.name}: its block has no operator {name!r}; a wafer maps "
                "sequential pre-norm blocks (GPT, Llama, Mixtral families), not this one."
            )
        return self.forward[name]

    def passes(self, names: tuple[str, ...], rows: str, columns: str) -> tuple[Pass, ...]:
        found: list[Pass] = []
        for name in names:
            if name in self.forward:
                found += _local(name, self.forward[name], self.layer, rows, columns)
        return tuple(found)

    def backward_passes(self, names: tuple[str, ...], rows: str, columns: str) -> tuple[Pass, ...]:
        found: list[Pass] = []
        for op in self.layer.backward:
            owner = op.name.split(".")[0]
            if owner in names and op.vectors and not op.matmuls:
                found += _local(op.name, op, self.layer, rows, columns)
        return tuple(found)

    def bytes(self, *names: str) -> float:
        return float(sum(self.layer.tensors[name].bytes for name in names))

    def weights(self, op: Operator) -> int:
        tensors = self.layer.tensors
        return sum(tensors[n].elements for n in op.reads if tensors[n].role is Role.WEIGHT)

    def linear(self, name: str, extra: tuple[str, ...] = ()) -> Unit:
        op = self.op(name)
        (product,) = op.matmuls
        tokens = self.model.tokens
        sizes = {"b": self.model.microbatch, "s": self.model.sequence}
        if product.batch > 1:
            sizes["e"] = product.batch
        sizes |= {"k": product.k, "n": product.n}
        if product.batch == 1 and product.m != tokens:
            raise AtollError(f"model {self.model.name}: operator {name} has an unexpected shape.")
        m, k, n = product.m, product.k, product.n
        make = Matmul
        return Unit(
            name=name,
            kind="linear",
            sizes=sizes,
            forward=(Product(make(product.batch, m, n, k), "e", "bs", "n", "k"),),
            data_gradient=(Product(make(product.batch, m, k, n), "e", "bs", "k", "n"),),
            weight_gradient=(Product(make(product.batch, k, n, m), "e", "k", "n", "bs"),),
            forward_passes=self.passes(extra, "bs", "n"),
            backward_passes=self.backward_passes(extra, "bs", "n"),
            parameters=self.weights(op),
            on_chip=False,
            traffic_bytes=0.0,
        )

    def attention(self) -> Unit:
        op = self.op("attention")
        back = next(o for o in self.layer.backward if o.name == "attention.bwd")
        scores = op.matmuls[0]
        heads = self.layer.tensors["context.lse"].shape[1]
        s, t = "s", "t"
        rows = (("s", "t", ""), ("s", "", "t"))
        back_rows = ((s, t, ""), (t, "", s), (s, t, ""), (s, "", t), (t, "", s))
        if len(op.matmuls) != 2 or len(back.matmuls) != len(back_rows):
            raise AtollError(f"model {self.model.name}: attention of an unexpected form.")
        return Unit(
            name="attention",
            kind="attention",
            sizes={"b": self.model.microbatch, "s": self.model.sequence, "h": heads,
                   "t": self.model.sequence},
            forward=tuple(
                Product(p, "bh", *tags) for p, tags in zip(op.matmuls, rows, strict=True)
            ),
            data_gradient=tuple(
                Product(p, "bh", *tags) for p, tags in zip(back.matmuls, back_rows, strict=True)
            ),
            weight_gradient=(),
            forward_passes=tuple(
                Pass(v, "bhs", "t", 0.0) for v in op.vectors
            ),
            backward_passes=tuple(Pass(v, "bhs", "t", 0.0) for v in back.vectors),
            parameters=0,
            on_chip=True,
            traffic_bytes=float(self.layer.traffic_bytes(op)) if scores.batch else 0.0,
        )  # fmt: skip

    def activation(self) -> Unit:
        op = self.op("act")
        sizes = {"b": self.model.microbatch, "s": self.model.sequence}
        shape = self.layer.tensors["act"].shape
        experts = self.op("fc1").matmuls[0].batch
        if experts > 1:
            sizes["e"] = experts
        sizes |= {"c": shape[-1], "r": 1}
        return Unit(
            name="act", kind="vector", sizes=sizes, forward=(), data_gradient=(),
            weight_gradient=(),
            forward_passes=tuple(_local("act", op, self.layer, "bse", "c")),
            backward_passes=self.backward_passes(("act",), "bse", "c"),
            parameters=0, on_chip=False, traffic_bytes=0.0,
        )  # fmt: skip


@lru_cache(maxsize=128)
def make_block(model: str, microbatch: int, sequence: int | None = None) -> Block:
    """The block of a zoo model (or configuration file) at one microbatch."""
    config = load_config(model)
    form = [
        words
        for words, present in (
            ("post-norm", config.post_norm),
            ("parallel branches", config.parallel),
            ("latent attention", bool(config.latent_kv)),
            ("norms after branches", config.branch_norms),
            ("shared experts", bool(config.shared_ffn)),
            ("image patches", bool(config.patch_inputs)),
            ("an encoder before them", bool(config.encoder_layers)),
        )
        if present
    ]
    if form:
        raise AtollError(
            f"model {model}: its blocks have {form[0]}; a wafer maps sequential pre-norm blocks "
            "(GPT, Llama, Mixtral families)."
        )
    whole = build_model(config, microbatch, sequence)
    repeats = [repeat for _, repeat in whole.layers]
    which = max(range(len(repeats)), key=lambda i: (repeats[i], len(whole.layers[i][0].forward)))
    layer, layers = whole.layers[which]
    if sum(repeats) - layers > 3:
        raise AtollError(
            f"model {model}: its blocks differ; a wafer maps models that repeat one block."
        )
    read = _Reader(whole, layer)
    for name in ("norm1", "norm2", "residual1", "residual2"):
        read.op(name)
    qkv, attention, proj = read.linear("qkv", ("rotary",)), read.attention(), read.linear("proj")
    fc1, act, fc2 = read.linear("fc1"), read.activation(), read.linear("fc2")
    stream = read.bytes(layer.input)
    experts = "e" in fc1.sizes
    sent = read.bytes("sent") if experts else stream
    keys = read.layer.tensors["k"].bytes + read.layer.tensors["v"].bytes
    context = read.bytes("context", "context.lse")
    first = Chain(
        units=(qkv, attention, proj),
        edges=(
            Edge("norm1", (stream,), "norm1"),
            Edge("qkv", (read.bytes("q"), float(keys)), "q, k, v"),
            Edge("context", (context,), "context"),
            Edge("middle", (stream,), "middle"),
        ),
        entry_passes=read.passes(("norm1",), "bs", "c"),
        stream_passes=read.passes(("residual1", "proj_dropout"), "bs", "c")
        + read.backward_passes(("norm1", "residual1", "proj_dropout", "dmiddle"), "bs", "c"),
    )
    last = "combine" if experts else "residual2"
    second = Chain(
        units=(fc1, act, fc2),
        edges=(
            Edge("norm2", (sent,), "norm2"),
            Edge("fc1", (read.bytes("fc1"),), "fc1"),
            Edge("act", (read.bytes("act"),), "act"),
            Edge("y", (read.bytes("fc2") if experts else stream,), ""),
        ),
        entry_passes=read.passes(("norm2", "choose"), "bs", "c"),
        stream_passes=read.passes(("residual2", "fc2_dropout", last), "bs", "c")
        + read.backward_passes(("norm2", "residual2", "fc2_dropout", "dx", "combine", "choose"),
                               "bs", "c"),
    )  # fmt: skip
    masks = [n for n in layer.saved if n.endswith(".mask")]
    head_layer = next(entry for entry, _ in whole.layers if entry.name == "head")
    head_reader = _Reader(whole, head_layer)
    loss = next(entry for entry, _ in whole.layers if entry.name == "loss")
    head = head_reader.linear("logits")
    loss_bytes = float(sum(loss.tensors[n].bytes for n in loss.saved))
    embedding = next(entry for entry, _ in whole.layers if entry.name == "embedding")
    flops = float(
        layers * (layer.flops_forward + layer.flops_backward)
        + head_layer.flops_forward
        + head_layer.flops_backward
    )
    return Block(
        model=model,
        layers=layers,
        microbatch=microbatch,
        sequence=whole.sequence,
        hidden=layer.tensors[layer.input].shape[-1],
        stream_bytes=stream,
        mask_bytes=read.bytes(*masks) if masks else 0.0,
        chains=(first, second),
        head=head,
        head_bytes=loss_bytes + head_reader.bytes("logits"),
        embedding_parameters=embedding.parameters,
        flops=flops,
        parameters=whole.parameters,
    )
