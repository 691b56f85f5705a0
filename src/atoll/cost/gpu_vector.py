"""Streaming operators on a GPU: norms, activations, softmax, losses, embedding, optimizer.

Time is bytes / bandwidth plus the time of an empty kernel, so the rate grows with the size and
levels off. Bytes per element are those of eager PyTorch's kernels: exact for additions and
products, whose passes are known, and calibrated for the others.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from atoll.base.arrays import Floats
from atoll.hardware.gpu import ADAM_BYTES, Gpu

# Least bytes moved per element: reads and writes of 16-bit tensors unless noted otherwise.
LEAST_BYTES: Mapping[str, float] = {
    "add_fwd": 6,
    "add_bwd": 0,  # the gradient is passed on as it is
    "mul_fwd": 6,
    "mul_bwd": 12,
    "silu_fwd": 4,
    "silu_bwd": 6,
    "gelu_fwd": 4,
    "gelu_bwd": 6,
    "dropout_fwd": 5,  # with a mask of bytes
    "dropout_bwd": 5,
    "layernorm_fwd": 4,
    "layernorm_bwd": 6,
    "rmsnorm_fwd": 4,
    "rmsnorm_bwd": 6,
    "softmax_fwd": 8,  # fp32
    "softmax_fwd_wide": 8,  # rows too long for a warp's registers: read more than once
    "softmax_bwd": 12,
    "xent_fwd": 18,  # 16-bit logits to fp32, then log-softmax
    "xent_bwd": 18,
    "embed_fwd": 4,
    "adamw_fp32_step": ADAM_BYTES,
}
STREAMING = ("add_fwd", "add_bwd", "mul_fwd", "mul_bwd")  # their bytes are known, not calibrated
KERNELS: Mapping[str, int] = {"mul_bwd": 2, "layernorm_bwd": 2, "rmsnorm_bwd": 2, "dropout_fwd": 2}
NARROW_COLUMNS = 1024  # the longest row that PyTorch's softmax keeps in registers


def vector_times_s(gpu: Gpu, function: str, rows: ArrayLike, cols: ArrayLike = 1) -> Floats:
    """Return the seconds of a streaming operator over rows x cols elements, for arrays of sizes."""
    rows_, cols_ = np.broadcast_arrays(
        np.asarray(rows, dtype=np.float64), np.asarray(cols, dtype=np.float64)
    )
    fit = gpu.calibration
    per_element = np.full(rows_.shape, fit.traffic_bytes(function))
    if function == "softmax_fwd":
        wide = fit.traffic_bytes("softmax_fwd_wide")
        per_element = np.where(cols_ > NARROW_COLUMNS, wide, per_element)
    return streaming_s(gpu, rows_ * cols_ * per_element, KERNELS.get(function, 1))


def streaming_s(gpu: Gpu, moved_bytes: ArrayLike, kernels: int = 1) -> Floats:
    """Return the seconds to move bytes through HBM with the given number of kernels."""
    fit = gpu.calibration
    moved_s = np.asarray(moved_bytes, dtype=np.float64) / (fit.vector_hbm * gpu.hbm_Bps)
    return np.asarray(moved_s + kernels * fit.vector_kernel_s, dtype=np.float64)
