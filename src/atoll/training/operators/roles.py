"""Roles of the operators of a layer's graph, by their tensors."""

from __future__ import annotations

from atoll.workload.graph.layer import Layer
from atoll.workload.graph.operator import Operator, Role


def even_experts(layer: Layer) -> bool:
    """Return whether all experts get equally many tokens."""
    for op in layer.forward:
        if op.kind == "dispatch":
            sent, choices = layer.tensors[op.writes[0]], layer.tensors[op.reads[1]]
            return sent.shape[0] * sent.shape[1] == choices.elements
    return False


def multiplies_experts(layer: Layer, op: Operator) -> bool:
    """Return whether a linear's weight holds a matrix per expert."""
    roles = (Role.WEIGHT, Role.WEIGHT_GRADIENT)
    tensors = (layer.tensors[name] for name in (*op.reads, *op.writes))
    return any(t.role in roles and len(t.shape) == 3 for t in tensors)


def gates_experts(layer: Layer, op: Operator) -> bool:
    """Return whether a gated activation belongs to experts: their products read or write it."""
    tensors = {*op.reads, *op.writes}
    return len(op.vectors) == 2 and any(
        multiplies_experts(layer, product) and tensors & {*product.reads, *product.writes}
        for product in (*layer.forward, *layer.backward)
    )


def width_by_expert(layer: Layer, op: Operator) -> bool:
    """Return whether a bias has a row per expert."""
    roles = (Role.WEIGHT, Role.WEIGHT_GRADIENT)
    tensors = (layer.tensors[name] for name in (*op.reads, *op.writes))
    return any(t.role in roles and len(t.shape) == 2 for t in tensors)


def largest_weight(layer: Layer, op: Operator) -> int:
    """Return the elements of the largest weight or weight gradient of an operator."""
    roles = (Role.WEIGHT, Role.WEIGHT_GRADIENT)
    tensors = [layer.tensors[name] for name in (*op.reads, *op.writes)]
    return max((t.elements for t in tensors if t.role in roles), default=0)


def widths(layer: Layer, op: Operator) -> list[int]:
    """Return the columns of each weight in a product."""
    roles = (Role.WEIGHT, Role.WEIGHT_GRADIENT)
    tensors = [layer.tensors[name] for name in (*op.reads, *op.writes)]
    weights = [t for t in tensors if t.role in roles and len(t.shape) == 2]
    if len(weights) == 1 and op.name.startswith("fc1") and _gated(layer):
        return [weights[0].shape[1] // 2] * 2
    return [t.shape[1] for t in weights]


def _gated(layer: Layer) -> bool:
    return any(
        op.kind == "activation" and len(op.vectors) == 2 and op.name == "act"
        for op in layer.forward
    )


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
