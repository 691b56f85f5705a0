"""Differentiation of a layer: its backward operators follow from its forward ones.

The forward operators are visited in reverse, and each kind has a rule (backward_rules.py) that
writes down the operators of its gradient. What must be kept from the forward pass is then simply
what these operators read.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from atoll.base.errors import AtollError
from atoll.workload.graph.backward_rules import RULES
from atoll.workload.graph.layer import Layer
from atoll.workload.graph.operator import Role
from atoll.workload.graph.tape import Tape


def differentiate(layer: Layer, tensor_parallel: int = 1) -> Layer:
    """The layer with its backward pass, made anew from its (unfused) forward pass.

    `tensor_parallel` is the group over which the gradients of what enters a tensor-parallel region
    are summed; collectives of the forward pass turn into their conjugates.
    """
    forward_only = {
        name: tensor
        for name, tensor in layer.tensors.items()
        if tensor.role not in (Role.ACTIVATION_GRADIENT, Role.WEIGHT_GRADIENT)
    }
    tape = Tape(
        tensors=forward_only,
        # What leaves for later layers comes back with the sum of their gradients.
        readers=Counter([*(n for op in layer.forward for n in op.reads), *layer.more_outputs]),
        entering=Counter(name for op in layer.forward for name in op.enters),
        collectives=(op for op in layer.forward if op.collective is not None),
        group=tensor_parallel,
    )
    losses = {n for op in layer.forward if op.kind == "cross_entropy" for n in op.writes}
    for name in (layer.output, *layer.more_outputs):
        if name not in losses:
            tape.give(name)
    for op in reversed(layer.forward):
        if op.kind not in RULES:
            raise AtollError(
                f"layer {layer.name}: operator {op.name} of kind {op.kind!r} has no derivative "
                "(fusing comes last, after sharding and differentiating)"
            )
        RULES[op.kind](tape, op)
    for name, tensor in forward_only.items():
        if tensor.role is Role.WEIGHT:
            tape.weight_gradient(name)
    for name in (layer.input, *layer.more_inputs):
        if tape.has_gradient(name):
            tape.gradient(name)
    return replace(layer, tensors=tape.tensors, backward=tuple(tape.operators))
