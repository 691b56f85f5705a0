"""Roles of the operators of a layer's graph, by their tensors, and changes of all operators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from atoll.workload.graph.layer import Layer
from atoll.workload.graph.operator import Operator, Role, Tensor, VectorWork

Change = Callable[[Operator], Operator]


def map_operators(
    layer: Layer, change: Change, tensors: Mapping[str, Tensor] | None = None
) -> Layer:
    """Apply `change` to every operator; it may add to `tensors`, which replace the layer's."""
    forward, backward = tuple(map(change, layer.forward)), tuple(map(change, layer.backward))
    tensors = layer.tensors if tensors is None else tensors
    return replace(layer, tensors=tensors, forward=forward, backward=backward)


def more_passes(op: Operator, passes: Iterable[VectorWork]) -> Operator:
    """Return the operator with further passes after its own."""
    return replace(op, vectors=(*op.vectors, *passes))


def weight_tensors(layer: Layer, op: Operator) -> list[Tensor]:
    """Return the weights and weight gradients that an operator reads or writes."""
    tensors = (layer.tensors[name] for name in (*op.reads, *op.writes))
    return [t for t in tensors if t.role in (Role.WEIGHT, Role.WEIGHT_GRADIENT)]


def even_experts(layer: Layer) -> bool:
    """Return whether all experts get equally many tokens."""
    for op in layer.forward:
        if op.kind == "dispatch":
            sent, choices = layer.tensors[op.writes[0]], layer.tensors[op.reads[1]]
            return sent.shape[0] * sent.shape[1] == choices.elements
    return False


def multiplies_experts(layer: Layer, op: Operator) -> bool:
    """Return whether a linear's weight holds a matrix per expert."""
    return any(len(t.shape) == 3 for t in weight_tensors(layer, op))


def gates_experts(layer: Layer, op: Operator) -> bool:
    """Return whether a gated activation belongs to experts: their products read or write it."""
    tensors = {*op.reads, *op.writes}
    return len(op.vectors) == 2 and any(
        multiplies_experts(layer, product) and tensors & {*product.reads, *product.writes}
        for product in (*layer.forward, *layer.backward)
    )


def width_by_expert(layer: Layer, op: Operator) -> bool:
    """Return whether a bias has a row per expert."""
    return any(len(t.shape) == 2 for t in weight_tensors(layer, op))


def largest_weight(layer: Layer, op: Operator) -> int:
    """Return the elements of the largest weight or weight gradient of an operator."""
    return max((t.elements for t in weight_tensors(layer, op)), default=0)


def widths(layer: Layer, op: Operator) -> list[int]:
    """Return the columns of each weight in a product."""
    columns = [t.shape[1] for t in weight_tensors(layer, op) if len(t.shape) == 2]
    acts = (act for act in layer.forward if act.kind == "activation" and act.name == "act")
    if len(columns) == 1 and op.name.startswith("fc1") and any(len(a.vectors) == 2 for a in acts):
        return [columns[0] // 2] * 2
    return columns


def read_again(layer: Layer, op: Operator) -> int:
    """Return the bytes that the gradients of a norm's weights read: a second kernel sums over
    columns and reads the gradient and the input again.
    """
    output_roles = {layer.tensors[name].role for name in op.writes}
    if output_roles != {Role.WEIGHT_GRADIENT, Role.ACTIVATION_GRADIENT}:
        return 0
    reads = [layer.tensors[name] for name in op.reads]
    return sum(sorted(t.bytes for t in reads if t.role is not Role.WEIGHT)[-2:])


def is_loss(op: Operator) -> bool:
    return any(work.function.startswith("cross_entropy") for work in op.vectors)
