"""Kernels around low-rank adapters in plain modules (PEFT), and of 4-bit frozen weights.

With adapters in fp32, PEFT's default, every adapted projection casts its input and keeps the copy,
multiplies in fp32, adds its scaled result to the projection's and casts the sum back. Autocast
casts that copy and the adapters back to 16 bits, and keeps these copies.
"""

from __future__ import annotations

from dataclasses import replace

from atoll.tools.stack import Stack
from atoll.training.operators.kernels.fp32 import FLOAT
from atoll.training.operators.layers import HALF
from atoll.training.operators.roles import map_operators, more_passes
from atoll.workload.graph.layer import Layer
from atoll.workload.graph.operator import Operator, Role, VectorWork, pass_over

FROZEN_PRODUCTS = ("linear", "linear_dgrad")


def with_adapter_passes(layer: Layer, stack: Stack) -> Layer:
    """Return an adapted layer with the passes that PEFT's modules launch."""
    tensors, wide, cast = dict(layer.tensors), stack.fp32_adapters, stack.cast_adapters
    dropped = "adapter_dropout_fp32" if wide or cast else "adapter_dropout"
    dropout = (dropped,) if stack.adapter_dropout else ()
    down, back = dropout, dropout
    if cast:
        down = back = ("adapter_cast", *dropout, "adapter_round")
    elif wide:
        down, back = ("adapter_cast", *dropout), (*dropout, "adapter_round")
    inputs: dict[str, str] = {}

    def changed(op: Operator) -> Operator:
        more: list[VectorWork] = []
        part = op.name.rpartition(".adapter")[2]
        source, result = tensors[op.reads[0]], tensors[op.writes[0]] if op.writes else None
        weights = [tensors[n] for n in op.reads if tensors[n].role is Role.WEIGHT]
        if op.kind == "adapter" and cast:
            more = [pass_over("cast_down", weight) for weight in weights]
        if op.kind == "adapter" and part.endswith("down") and down:
            name = f"{op.name}.input"
            copied = (FLOAT if wide else HALF) + len(dropout)  # and the mask
            tensors[name] = replace(source, name=name, element_bytes=copied)
            inputs[op.name] = name
            more += [pass_over(function, source) for function in down]
            op = replace(op, writes=(*op.writes, name))
        elif op.kind == "adapter" and part.endswith("up") and result is not None:
            more += [pass_over("adapter_scale_fp32" if wide else "adapter_scale", result)]
        elif op.kind == "adapter_dgrad" and part.endswith("up.dgrad"):
            (product,) = op.matmuls
            function = "adapter_gradient" if wide else "adapter_scale"
            more = [VectorWork(function, product.batch * product.m, product.k)]
        elif op.kind == "adapter_dgrad" and result is not None:
            more = [pass_over(function, result) for function in back]
        elif op.kind == "adapter_wgrad" and result is not None:
            more = [pass_over("cast_up", result)] if cast else []
            name = inputs.get(op.name.removesuffix(".wgrad"), op.reads[0])
            op = replace(op, reads=(name, *op.reads[1:]))
        elif op.kind in FROZEN_PRODUCTS:
            if wide and op.kind == "linear":
                adds = (w.by("adapter_sum") if w.function == "add" else w for w in op.vectors)
                op = replace(op, vectors=tuple(adds))
            if stack.frozen_bytes is not None and layer.name not in ("head", "embedding"):
                more = [pass_over("dequantize", w) for w in weights if len(w.shape) > 1]
        return more_passes(op, more)

    return map_operators(layer, changed, tensors)
