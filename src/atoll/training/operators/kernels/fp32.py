"""Kernels in fp32: products of SDPA's math back end, of adapters and of models kept in fp32, and
the casts and passes of autocast over fp32 weights.
On a GPU without TF32, products run on the vector units, at a rate that small dimensions lower.
Autocast casts every weight for its product and its gradient back, keeps the residual stream and
norms in fp32, and casts the input of every projection on its own.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from atoll.cost.gpu_vector import streaming_s
from atoll.cost.pricer import Cost
from atoll.hardware.gpu import Gpu
from atoll.tools.stack import Stack
from atoll.training.operators.layers import HALF
from atoll.training.operators.roles import map_operators, more_passes, weight_tensors, widths
from atoll.workload.graph.layer import Layer
from atoll.workload.graph.operator import Matmul, Operator, Role, Tensor, VectorWork, pass_over

FLOAT = 4  # bytes
# Share of the 16-bit matrix peak: 49 TFLOP/s of 989 on an H200 (sm80_xmma_gemm_f32f32 kernels), of
# which products with a dimension of 64 (heads) reach two thirds.
FP32_SHARE, SMALL_SIZE = 0.0505, 32
# 334 TFLOP/s at dimensions of 2,048, 125 at heads of 64 (sm90_xmma_gemm_f32f32_tf32f32 kernels).
TF32_SHARE, TF32_SMALL_SIZE = 0.355, 110
# 126 TFLOP/s where rows do not start at 16 bytes (cutlass_80_tensorop_s1688gemm_align1).
TF32_UNALIGNED_SHARE = 0.127
MATH_KINDS = ("attention_scores", "attention_values", "attention_dgrad")
ADAPTER_KINDS = ("adapter", "adapter_dgrad", "adapter_wgrad")


def wide_product(gpu: Gpu, stack: Stack, product: Matmul) -> Cost:
    """Return the cost of a product of fp32 operands: time of its multiply-adds or, where that is
    longer, of its operands and results through HBM.
    """
    m, n, k = product.m, product.n, product.k
    share, small_size = FP32_SHARE, SMALL_SIZE
    if stack.wide == "tf32":
        share, small_size = TF32_SHARE, TF32_SMALL_SIZE
    share /= 1 + small_size / min(m, n, k)
    if stack.wide == "tf32" and (m % 4 or n % 4 or k % 4):
        share = min(share, TF32_UNALIGNED_SHARE)
    rate = share * gpu.peak_flops(gpu.half_dtype)
    moved = FLOAT * product.batch * (m * k + k * n + m * n)
    busy_s = product.flops / rate + gpu.calibration.kernel_s
    seconds = max(busy_s, float(streaming_s(gpu, moved)))
    return Cost(seconds * product.fraction, kernels=1)


def is_math(op: Operator) -> bool:
    """Return whether an operator is a product of unfused attention."""
    return op.kind in MATH_KINDS


def is_wide(stack: Stack, op: Operator) -> bool:
    """Return whether the stack multiplies an operator's operands in fp32."""
    adapters = stack.fp32_adapters and op.kind in ADAPTER_KINDS
    return bool(stack.wide) or (stack.math_attention and is_math(op)) or adapters


def autocast(layer: Layer, wide_functions: Set[str], fused_norms: bool) -> Layer:
    """Return a layer under autocast. `wide_functions` move fp32 instead of 16 bits. `fused_norms`
    are fused only where input and weight are both fp32: over the residual stream.
    """
    tensors = layer.tensors
    normed = {name: op for op in layer.forward if op.kind == "norm" for name in op.writes}
    stream = {n for op in layer.forward if op.kind == "add" for n in op.writes} | {layer.input}
    readers = {
        name: sum(len(widths(layer, op)) for op in layer.forward if name in op.reads)
        for name in normed
    }

    def passes(op: Operator) -> list[VectorWork]:
        weights = [t for t in weight_tensors(layer, op) if len(t.shape) > 1]
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
