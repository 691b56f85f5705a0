"""Low-rank adapters on frozen weights (LoRA, arXiv:2106.09685).

Beside a product y = x W with a weight that is not trained stand two narrow ones, u = x A and
y = x W + u B, and only A and B have gradients. Backwards every frozen product has its data gradient
alone, so that its input is kept only where an adapter reads it, and gradients of norms, biases and
tables are not made at all.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain

from atoll.base.errors import AtollError
from atoll.workload.graph.layer import Layer, Model
from atoll.workload.graph.operator import Operator, Role, Tensor, once, pass_over
from atoll.workload.graph.products import data_gradient, weight_gradient

# Products of a block by name, and the projections side by side in each.
PROJECTIONS = {
    "qkv": ("q", "k", "v"),
    "q_a": ("q",),
    "q_b": ("q",),
    "kv_a": ("k", "v"),
    "kv_b": ("k", "v"),
    "proj": ("o",),
    "fc1": ("gate", "up"),
    "shared1": ("gate", "up"),
    "fc2": ("down",),
    "shared2": ("down",),
}
ATTENTION, MLP = ("q", "k", "v", "o"), ("gate", "up", "down")
# As PEFT and as Megatron-Core name them.
TARGETS = {
    **{f"{name}_proj": (name,) for name in (*ATTENTION, *MLP)},
    "qkv_proj": ("q", "k", "v"),
    "linear_qkv": ("q", "k", "v"),
    "linear_proj": ("o",),
    "linear_fc1": ("gate", "up"),
    "linear_fc2": ("down",),
    "qkv": ("q", "k", "v"),
    "proj": ("o",),
    "attention": ATTENTION,
    "mlp": MLP,
    "all": (*ATTENTION, *MLP),
}
LORA_RANK = 16  # where nothing is said
GRADIENT = Role.WEIGHT_GRADIENT
Pair = tuple[Operator, Operator]
GRADIENTS_ONLY = ("linear_wgrad", "bias_grad", "table_grad", "scatter_add")
"""Operators that compute only weight gradients."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """Rank, and the projections that have adapters."""

    rank: int
    targets: tuple[str, ...] = ATTENTION


def targets_named(words: str) -> tuple[str, ...]:
    """Parse projections: "q_proj+v_proj", "attention", "all"; attention's for an empty text."""
    names = [word for word in re.split(r"[^a-z0-9_]+", words.lower()) if word]
    for word in names:
        if word not in TARGETS:
            raise AtollError(f"{word!r} is not a projection; known are {', '.join(TARGETS)}")
    return once(name for word in names or ("attention",) for name in TARGETS[word])


def with_adapters(model: Model, adapters: Adapters, *, apart: bool) -> Model:
    """The differentiated, unfused model with frozen weights; projections that are one product have
    an adapter each where they run `apart`, else one together."""
    return model.map(lambda layer: _frozen(layer, adapters, apart))


def trained_weights(layer: Layer) -> frozenset[str]:
    """Weights of an adapted layer that have gradients."""
    weights = (n for n, t in layer.tensors.items() if t.role is Role.WEIGHT)
    return frozenset(name for name in weights if f"d{name}" in layer.tensors)


def _frozen(layer: Layer, adapters: Adapters, apart: bool) -> Layer:
    tensors = dict(layer.tensors)
    forward: list[Operator] = []
    adapters_by_product: dict[str, list[Pair]] = {}
    for op in layer.forward:
        widths = _widths(layer, op, adapters, apart) if op.kind == "linear" else ()
        pairs = [_pair(tensors, op, adapters.rank, width, n) for n, width in enumerate(widths)]
        adapters_by_product[op.name] = pairs
        forward += [*chain(*pairs), _adding(tensors, op, [up.writes[0] for _, up in pairs])]
    backward: list[Operator] = []
    for op in layer.backward:
        pairs = adapters_by_product.get(op.name.rpartition(".")[0], [])
        if op.kind in GRADIENTS_ONLY:
            backward += chain(*(_weights(tensors, pair, op) for pair in pairs))
            continue
        data = [_data(tensors, pair, op) for pair in pairs if op.kind == "linear_dgrad"]
        backward += chain(*data)
        changed = _adding(tensors, op, [down.writes[0] for _, down in data])
        writes = [n for n in changed.writes if tensors[n].role is not Role.WEIGHT_GRADIENT]
        backward.append(replace(changed, writes=tuple(writes)))
    read = {name for op in backward for name in op.reads}
    backward = [op for op in backward if op.collective is None or read & set(op.writes)]
    written = {name for op in backward for name in op.writes}
    left = {n: t for n, t in tensors.items() if t.role is not GRADIENT or n in written}
    return replace(layer, tensors=left, forward=tuple(forward), backward=tuple(backward))


def _widths(layer: Layer, op: Operator, adapters: Adapters, apart: bool) -> tuple[int, ...]:
    """Columns of each adapter of a product: those of its adapted projections."""
    names = PROJECTIONS.get(op.name.rpartition(".")[2], ())
    weights = [layer.tensors[n] for n in op.reads if layer.tensors[n].role is Role.WEIGHT]
    columns = [t.shape[-1] for t in weights if len(t.shape) > 1]
    if op.name == "qkv" and len(columns) == 1:  # one module
        return tuple(columns) if set(names) & set(adapters.targets) else ()
    if len(columns) != len(names):  # side by side in one weight
        acts = [o for o in layer.forward if o.kind == "activation" and op.writes[0] in o.reads]
        if acts and len(acts[0].vectors) == 1:
            names = names[-1:]  # without a gate
        columns = [sum(columns) // max(1, len(names))] * len(names)
    sizes = [n for name, n in zip(names, columns, strict=True) if name in adapters.targets]
    return tuple(sizes) if apart or not sizes else (sum(sizes),)


def _pair(tensors: dict[str, Tensor], op: Operator, rank: int, width: int, number: int) -> Pair:
    """Add the down and up products of an adapter next to one product."""
    (product,), x = op.matmuls, tensors[op.reads[0]]
    label = f"{op.name}.adapter{number or ''}"
    bundle = (product.batch,) if product.batch > 1 else ()

    def add(part: str, shape: tuple[int, ...], role: Role) -> str:
        name = f"{label}.{part}"
        tensors[name] = Tensor(name, shape, x.element_bytes, role)
        if role is Role.WEIGHT:
            tensors[f"d{name}"] = replace(tensors[name], name=f"d{name}", role=GRADIENT)
        return name

    down = add("down.weight", (*bundle, product.k, rank), Role.WEIGHT)
    up = add("up.weight", (*bundle, rank, width), Role.WEIGHT)
    inner = add("inner", (*x.shape[:-1], rank), Role.ACTIVATION)
    out = add("out", (*x.shape[:-1], width), Role.ACTIVATION)
    first, second = replace(product, n=rank), replace(product, n=width, k=rank)
    return (
        Operator(f"{label}.down", "adapter", (op.reads[0], down), (inner,), (first,)),
        Operator(f"{label}.up", "adapter", (inner, up), (out,), (second,)),
    )


def _adding(tensors: dict[str, Tensor], op: Operator, more: Sequence[str]) -> Operator:
    """Add adapter results to a product."""
    adds = tuple(pass_over("add", tensors[name]) for name in more)
    return replace(op, reads=(*op.reads, *more), vectors=(*op.vectors, *adds))


def _data(tensors: dict[str, Tensor], pair: Pair, op: Operator) -> Pair:
    """Gradients of an adapter's inner tensor and of its input."""
    down, up = pair
    grads = tuple(n for n in op.reads if tensors[n].role is not Role.WEIGHT)
    gradients = []
    for side, read in ((up, grads), (down, (f"d{up.reads[0]}",))):
        x = tensors[side.reads[0]]
        name = f"d{x.name}" if side is up else f"d{x.name}.{down.name}"
        tensors[name] = replace(x, name=name, role=Role.ACTIVATION_GRADIENT)
        products = (data_gradient(side.matmuls[0]),)
        reads = (*read, side.reads[1])
        gradients.append(Operator(f"{side.name}.dgrad", "adapter_dgrad", reads, (name,), products))
    return gradients[0], gradients[1]


def _weights(tensors: dict[str, Tensor], pair: Pair, op: Operator) -> Pair:
    """Gradients of an adapter's weights, in place of the frozen one's."""
    down, up = pair
    saved, *grads = op.reads
    gradients = []
    for side, reads in ((up, (up.reads[0], *grads)), (down, (saved, f"d{up.reads[0]}"))):
        products = (weight_gradient(side.matmuls[0]),)
        writes = (f"d{side.reads[1]}",)
        gradients.append(Operator(f"{side.name}.wgrad", "adapter_wgrad", reads, writes, products))
    return gradients[0], gradients[1]
