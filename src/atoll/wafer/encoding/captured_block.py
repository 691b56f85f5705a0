"""Rename a captured block like a built one, so that the same reader takes both.

A capture names its operators after the module's parts. The graph identifies them: the products
that attention reads, the one that reads attention, and of the two MLP products the one that reads
the other through the activation. Products of one tensor are joined first, as kernels run them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from atoll.base.errors import AtollError
from atoll.workload.graph.layer import Layer, predecessors
from atoll.workload.graph.operator import Operator, Role, once
from atoll.workload.joined_products import joined


@dataclass(frozen=True)
class BlockForm:
    """Order of norms and branches of a block."""

    post_norm: bool
    parallel: bool


class _OperatorGraph:
    """The operators of a pass and their predecessors."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        self.operators = operators
        self._before: list[set[int]] = []
        for before in predecessors(tuple(operators)):
            self._before.append(reduce(set.union, (self._before[i] for i in before), set(before)))

    def leads(self, first: Operator, second: Operator) -> bool:
        return self.operators.index(first) in self._before[self.operators.index(second)]

    def between(self, first: Operator | None, last: Operator) -> list[Operator]:
        """Return the vector operators between an operator (or the layer's input) and another."""
        return [
            op
            for op in self.operators
            if not op.matmuls and self.leads(op, last) and (first is None or self.leads(first, op))
        ]


def as_built(layer: Layer, model: str) -> tuple[Layer, BlockForm]:
    """Return the block with the names of a built one, and its form."""
    layer = _weights_last(joined(layer))
    forward, backward = _OperatorGraph(layer.forward), _OperatorGraph(layer.backward)

    def only(operators: Iterable[Operator]) -> Operator:
        matches = list(operators)
        if len(matches) != 1:
            raise AtollError(
                f"model {model}: its captured block is not attention and an MLP, each between two "
                "products with weights; a wafer maps such blocks only."
            )
        return matches[0]

    attention = only(op for op in layer.forward if op.kind == "attention")
    linear = [op for op in layer.forward if op.kind == "linear"]
    qkv = only(op for op in linear if forward.leads(op, attention))
    after = [op for op in linear if forward.leads(attention, op)]
    proj = only(op for op in after if not any(forward.leads(earlier, op) for earlier in after))
    mlp = [op for op in linear if op not in (qkv, proj)]
    fc2 = only(op for op in mlp if any(forward.leads(earlier, op) for earlier in mlp))
    fc1 = only(op for op in mlp if op is not fc2)
    attention_backward = only(op for op in layer.backward if op.kind == "attention_bwd")

    def data_pass(op: Operator) -> Operator:
        weights = {n for n in op.reads if layer.tensors[n].role is Role.WEIGHT}
        gradients = (b for b in layer.backward if b.kind == "linear_dgrad")
        return only(b for b in gradients if weights & set(b.reads))

    parts = {"qkv": [qkv], "attention": [attention], "proj": [proj], "fc1": [fc1], "fc2": [fc2]}
    parts["rotary"] = forward.between(qkv, attention)
    parts["act"] = forward.between(fc1, fc2)
    form = BlockForm(qkv.reads[0] == layer.input, qkv.reads[0] == fc1.reads[0])
    if not form.post_norm:
        parts["norm1"] = forward.between(None, qkv)
    norm_before_mlp = next((op for op in layer.forward if fc1.reads[0] in op.writes), None)
    if not form.parallel and norm_before_mlp is not None and fc1.reads[0] != layer.output:
        parts["norm2" if not form.post_norm else "norm1"] = [norm_before_mlp]
    backward_parts = {
        "attention.bwd": [attention_backward],
        "act.bwd": backward.between(data_pass(fc2), data_pass(fc1)),
        "rotary.bwd": backward.between(attention_backward, data_pass(qkv)),
    }
    names = {
        proj.writes[0]: "proj", fc2.reads[0]: "act", attention.writes[0]: "context",
        attention.writes[1]: "context.lse", **dict.fromkeys(fc1.writes, "fc1"),
    }  # fmt: skip
    stream = [
        n
        for op in layer.forward
        if proj.writes[0] in op.reads and not op.matmuls
        for n in op.writes
        if n in layer.saved and n not in (fc1.reads[0], layer.output)
    ]
    names |= dict.fromkeys(stream[:1], "middle")
    for name in ("norm1", "norm2"):
        reader = qkv if name == "norm1" and not form.post_norm else fc1
        if parts.get(name) and reader.reads[0] != layer.input:
            names[reader.reads[0]] = name
    return _renamed(layer, parts, backward_parts, names), form


def _weights_last(layer: Layer) -> Layer:
    """Sort the reads of forward operators: weights and biases last."""

    def is_weight(name: str) -> bool:
        return layer.tensors[name].role is Role.WEIGHT

    forward = (replace(op, reads=tuple(sorted(op.reads, key=is_weight))) for op in layer.forward)
    return replace(layer, forward=tuple(forward))


def _renamed(
    layer: Layer, parts: dict[str, list[Operator]], backward_parts: dict[str, list[Operator]],
    names: dict[str, str],
) -> Layer:  # fmt: skip
    """Merge the operators of each part, and the tensors of each name (widths added)."""

    def tensors(tensor_names: Iterable[str]) -> tuple[str, ...]:
        return once(names.get(n, n) for n in tensor_names)

    def operators(ops: Sequence[Operator], parts: dict[str, list[Operator]]) -> list[Operator]:
        part_names = {op.name: name for name, members in parts.items() for op in members}
        merged: dict[str, Operator] = {}
        for op in ops:
            name = part_names.get(op.name, op.name)
            earlier = merged.pop(name, None)
            renamed = replace(op, name=name, reads=tensors(op.reads), writes=tensors(op.writes))
            merged[name] = renamed if earlier is None else replace(
                renamed, reads=once((*earlier.reads, *renamed.reads)),
                writes=once((*earlier.writes, *renamed.writes)),
                vectors=(*earlier.vectors, *renamed.vectors),
            )  # fmt: skip
        return list(merged.values())

    all_tensors = dict(layer.tensors)
    for name in dict.fromkeys(names.values()):
        sources = [layer.tensors[old] for old, new in names.items() if new == name]
        width = sum(tensor.shape[-1] for tensor in sources)
        shape = *sources[0].shape[:-1], width
        all_tensors[name] = replace(sources[0], name=name, shape=shape)
    return replace(
        layer, tensors=all_tensors, forward=tuple(operators(layer.forward, parts)),
        backward=tuple(operators(layer.backward, backward_parts)),
    )  # fmt: skip


def head_as_built(layer: Layer, model: str) -> tuple[Layer, float]:
    """Return the last layer with its product named `logits`, and the bytes the loss saves."""
    products = [op for op in layer.forward if op.kind == "linear"]
    if len(products) != 1:
        raise AtollError(
            f"model {model}: its captured head is not one product with the vocabulary."
        )
    (head,) = products
    graph = _OperatorGraph(layer.forward)
    loss_tensors = {n for op in layer.forward if graph.leads(head, op) for n in op.writes}
    loss_bytes = sum(layer.tensors[n].bytes for n in layer.saved if n in loss_tensors)
    return _renamed(layer, {"logits": [head]}, {}, {head.writes[0]: "logits"}), float(loss_bytes)
