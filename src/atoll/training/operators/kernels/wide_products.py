"""Matrix products in fp32: of SDPA's math back end, of adapters and of models kept in fp32.

On a GPU without TF32 they run on the vector units, at a rate that small dimensions lower.
"""

from __future__ import annotations

from atoll.cost.gpu_vector import streaming_s
from atoll.cost.pricer import Cost
from atoll.hardware.gpu import Gpu
from atoll.tools.stack import Stack
from atoll.workload.graph.operator import Matmul, Operator

FLOAT = 4  # bytes
# Share of the 16-bit matrix peak: 49 TFLOP/s of 989 on an H200 (sm80_xmma_gemm_f32f32 kernels), of
# which products with a dimension of 64 (heads) reach two thirds.
FP32_SHARE = 0.0505
# 190 to 331 TFLOP/s (sm90_xmma_gemm_f32f32_tf32f32 kernels), which hardly differ with size.
TF32_SHARE = 0.25
SMALL_SIZE = 32
MATH_KINDS = ("attention_scores", "attention_values", "attention_dgrad")
ADAPTER_KINDS = ("adapter", "adapter_dgrad", "adapter_wgrad")


def wide_product(gpu: Gpu, stack: Stack, product: Matmul) -> Cost:
    """Return the cost of a product of fp32 operands: time of its multiply-adds or, where that is
    longer, of its operands and results through HBM.
    """
    m, n, k = product.m, product.n, product.k
    share = TF32_SHARE if stack.wide == "tf32" else FP32_SHARE
    rate = share * gpu.peak_flops(gpu.half_dtype) / (1 + SMALL_SIZE / min(m, n, k))
    moved = FLOAT * product.batch * (m * k + k * n + m * n)
    busy_s = product.flops / rate + gpu.calibration.kernel_s
    seconds = max(busy_s, float(streaming_s(gpu, moved)))
    return Cost(seconds * product.fraction, kernels=1)


def is_math(op: Operator) -> bool:
    """Return whether an operator is a product of unfused attention."""
    return op.kind in MATH_KINDS


def is_wide(stack: Stack, op: Operator) -> bool:
    """Return whether the stack multiplies an operator's operands in fp32."""
    return (
        bool(stack.wide)
        or (stack.math_attention and is_math(op))
        or (stack.fp32_adapters and op.kind in ADAPTER_KINDS)
    )
