"""Kernels of weights and activations in fp32: autocast over fp32 weights, and steps in fp32.

Autocast casts every weight for its product and its gradient back, keeps the residual stream and
norms in fp32, and casts the input of every projection on its own.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from atoll.training.operators.kernels.wide_products import FLOAT
from atoll.training.operators.layers import HALF
from atoll.training.operators.roles import map_operators, more_passes, widths
from atoll.workload.graph.layer import Layer
from atoll.workload.graph.operator import Operator, Role, Tensor, VectorWork, pass_over

WEIGHTS = (Role.WEIGHT, Role.WEIGHT_GRADIENT)


def autocast(layer: Layer, wide_functions: Set[str], fused_norms: bool) -> Layer:
    """Return a layer under autocast. `wide_functions` move fp32 instead of 16 bits. `fused_norms`
    are fused only where input and weight are both fp32: over the residual stream.
    """
    tensors = dict(layer.tensors)
    normed = {name: op for op in layer.forward if op.kind == "norm" for name in op.writes}
    stream = {n for op in layer.forward if op.kind == "add" for n in op.writes} | {layer.input}
    readers = {
        name: sum(len(widths(layer, op)) for op in layer.forward if name in op.reads)
        for name in normed
    }

    def passes(op: Operator) -> list[VectorWork]:
        named = (tensors[name] for name in (*op.reads, *op.writes))
        weights = [t for t in named if t.role in WEIGHTS and len(t.shape) > 1]
        if op.kind == "linear":
            cast = [pass_over("cast_down", weight) for weight in weights]
            copies = [n for n in op.reads if n in normed]
            copied = [pass_over("cast_down", tensors[name]) for name in copies]
            return cast + copied * len(widths(layer, op))
        if op.kind == "linear_wgrad":
            return [pass_over("cast_up", weight) for weight in weights]
        if op.kind == "linear_dgrad":
            outputs = [tensors[n] for n in op.writes if n.removeprefix("d") in normed]
            return [pass_over("cast_up", tensor) for tensor in outputs * len(widths(layer, op))]
        return []

    def changed(op: Operator) -> Operator:
        residual = op.kind == "add" and len(op.vectors) == 1
        if fused_norms and op.kind.startswith("norm") and stream.isdisjoint(op.reads):
            works = [
                work.by(work.function.replace("rmsnorm", "rmsnorm_mixed")) for work in op.vectors
            ]
            return replace(op, vectors=tuple(works))
        if not fused_norms and op.kind.startswith("norm") and not stream.isdisjoint(op.reads):
            op = replace(op, vectors=tuple(map(_fp32_norm, op.vectors)))
        mixed = "add_mixed" if residual and op in layer.forward else "add_fp32"
        works = [
            work.by(mixed) if residual
            else work.sized(2 * work.rows, work.cols) if work.function in wide_functions
            else work
            for work in op.vectors
        ]  # fmt: skip
        return replace(op, vectors=(*works, *passes(op)))

    def widened(name: str, tensor: Tensor) -> Tensor:
        if name in normed:
            return replace(tensor, element_bytes=HALF * max(1, readers[name]))
        return replace(tensor, element_bytes=FLOAT) if name in stream else tensor

    wider = {name: widened(name, tensor) for name, tensor in tensors.items()}
    return map_operators(layer, changed, wider)


def in_fp32(layer: Layer, unchanged: tuple[str, ...]) -> Layer:
    """Return a layer with fp32 activations; functions beginning as `unchanged` move no more."""
    roles = (Role.ACTIVATION, Role.ACTIVATION_GRADIENT)
    tensors = dict(layer.tensors)
    for name, tensor in layer.tensors.items():  # logits are counted in fp32
        half = tensor.role in roles and tensor.element_bytes == HALF
        if half and not name.removeprefix("d").startswith("logits"):
            tensors[name] = replace(tensor, element_bytes=FLOAT)

    def doubled(op: Operator) -> Operator:
        works = (
            work
            if work.function.startswith((*unchanged, "rmsnorm"))
            else work.sized(2 * work.rows, work.cols)
            for work in map(_fp32_norm, op.vectors)
        )
        return replace(op, vectors=tuple(works))

    return map_operators(layer, doubled, tensors)


def wide_rotary(layer: Layer) -> Layer:
    """Return a layer whose queries and keys are cast to fp32, for both products, to be rotated."""
    casts = {
        "rotary": ("cast_up", "cast_up", "cast_down"),
        "rotary_bwd": ("cast_up", "cast_down", "cast_down", "add_fp32"),
    }

    def cast(op: Operator) -> Operator:
        named = ((work, name) for work in op.vectors for name in casts.get(work.function, ()))
        return more_passes(op, [work.by(name) for work, name in named])

    return map_operators(layer, cast)


def _fp32_norm(work: VectorWork) -> VectorWork:
    """Return the pass of an RMSNorm over fp32, which its modules do not cast."""
    return work.by(work.function.replace("rmsnorm", "rmsnorm_fp32"))
