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
