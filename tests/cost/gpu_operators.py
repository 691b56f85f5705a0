"""Seconds of one operator on one GPU, alone: the calibrated analytic model's front.

The times are those of kernels on the device, as replayed in a CUDA graph; what the host that
launches them adds to a whole step is the training room's business.
"""

from __future__ import annotations

from atoll.base.errors import AtollError
from atoll.cost.gpu_attention import Heads, attention_times_s
from atoll.cost.gpu_gemm import gemm_times_s
from atoll.cost.gpu_vector import LEAST_BYTES, streaming_s, vector_times_s
from atoll.hardware.gpu import Gpu


def gemm_s(
    gpu: Gpu,
    m: int,
    n: int,
    k: int,
    batch: int = 1,
    dtype: str = "bf16",
    *,
    sustained: bool = False,
) -> float:
    """`batch` products (m x k) by (k x n); `sustained` as inside a long training step."""
    _positive(m=m, n=n, k=k, batch=batch)
    return float(gemm_times_s(gpu, m, n, k, batch, dtype, sustained=sustained))


def attention_s(
    gpu: Gpu,
    batch: int,
    heads: int,
    kv_heads: int,
    seq: int,
    head_dim: int,
    *,
    causal: bool = True,
    backward: bool = False,
    dtype: str = "bf16",
    sustained: bool = False,
) -> float:
    """Flash attention in one direction, `heads / kv_heads` query heads on each key head."""
    _positive(batch=batch, heads=heads, kv_heads=kv_heads, seq=seq, head_dim=head_dim)
    if heads % kv_heads:
        raise AtollError(f"heads: expected a multiple of kv_heads {kv_heads}, got {heads}")
    return float(
        attention_times_s(
            gpu,
            Heads(batch, heads, kv_heads, seq, head_dim, causal),
            backward=backward,
            dtype=dtype,
            sustained=sustained,
        )
    )


def vector_s(gpu: Gpu, function: str, rows: int, cols: int = 1) -> float:
    """A streaming operator of the calibration's table, such as "rmsnorm_fwd" or "xent_bwd"."""
    _positive(rows=rows, cols=cols)
    return float(vector_times_s(gpu, function, rows, cols))


def optimizer_s(
    gpu: Gpu, parameters: int, bytes_per_parameter: float = LEAST_BYTES["adamw_fp32_step"]
) -> float:
    """One step of Adam that moves so many bytes a parameter (28: fp32 weight, gradient, moments).

    Other precisions keep the calibrated ratio of bytes moved to bytes needed.
    """
    _positive(parameters=parameters)
    excess = gpu.calibration.traffic_bytes("adamw_fp32_step") / LEAST_BYTES["adamw_fp32_step"]
    return float(streaming_s(gpu, parameters * bytes_per_parameter * excess))


def _positive(**sizes: int) -> None:
    for name, size in sizes.items():
        if size <= 0:
            raise AtollError(f"{name}: expected a positive size, got {size}")
