"""Matrix products on a GPU: tiles dealt to SMs in waves, split-K, HBM, power.

For every tile shape and every split of the reduction, the time is that of the waves of tiles, then
of the output's write that nothing hides; or that of moving operands and output once through HBM,
whichever is longer. The library is assumed to pick the best. docs/gpu-model.md has the formulas.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.hardware.gpu import ELEMENT_BYTES, Calibration, Gpu

Floats = NDArray[np.float64]

# Output tiles of one thread block on Hopper: multiples of the 64-row warpgroup instruction whose
# accumulators fit the registers (CUTLASS's default builder shapes).
TILES = np.array(
    [(256, 128), (128, 256), (128, 192), (192, 128), (128, 128), (128, 64), (64, 128), (64, 64)],
    dtype=np.float64,
)
SPLITS = np.array([1, 2, 3, 4, 6, 8, 16, 32], dtype=np.float64)
SLICE_BYTES = 128  # of the reduction, taken at a time: one swizzled row of shared memory
SECTOR_ELEMENTS = 16  # 32-byte memory sectors of 16-bit elements
VECTOR_ELEMENTS = 8  # 16-byte vectors of them, the least that bulk copies move
OUTPUT_BYTES = 2  # 16-bit results, of fp8 products too
PARTIAL_BYTES = 4  # fp32 partial sums of a split reduction


def gemm_times_s(
    gpu: Gpu,
    m: ArrayLike,
    n: ArrayLike,
    k: ArrayLike,
    batch: ArrayLike = 1,
    dtype: str = "bf16",
    *,
    sustained: bool = False,
    operand_row: ArrayLike | None = None,
) -> Floats:
    """Seconds of `batch` products (m x k) by (k x n), for arrays of sizes at once.

    Rows of the operands in memory are k elements long, or `operand_row` (a weight's gradient reads
    both operands transposed); rows of the output n. `sustained` prices every product at the power
    limit, as inside a training step; otherwise only
    long ones are, as when one kernel is timed by itself.
    """
    fit = gpu.calibration
    width = ELEMENT_BYTES.get(dtype, 2)
    loop_flops = gpu.loop_flops(dtype)  # refuses a format that the device has not
    sizes = np.broadcast_arrays(*(np.asarray(size, dtype=np.float64) for size in (m, n, k, batch)))
    m_, n_, k_, batch_ = (size.reshape(-1, 1, 1) for size in sizes)
    tile_m, tile_n = TILES[None, :, None, 0], TILES[None, :, None, 1]
    splits = SPLITS[None, None, :]

    slice_ = SLICE_BYTES / width
    depth = np.ceil(k_ / splits / slice_) * slice_
    tiles = np.ceil(m_ / tile_m) * np.ceil(n_ / tile_n) * batch_ * splits
    waves = np.ceil(tiles / gpu.sms)
    delivery = 1 + fit.tile_half * (tile_m + tile_n) / (tile_m * tile_n)
    tile_s = 2 * tile_m * tile_n * depth * delivery / (loop_flops / gpu.sms)
    odd = (m_ % SECTOR_ELEMENTS != 0) | (n_ % SECTOR_ELEMENTS != 0) | (k_ % SECTOR_ELEMENTS != 0)
    slowdown = np.where(odd, fit.misaligned, 1.0)
    row = k_ if operand_row is None else np.asarray(operand_row, dtype=np.float64).reshape(-1, 1, 1)
    slowdown = slowdown * _alignment(fit, row, n_)

    bandwidth_Bps = fit.hbm * gpu.hbm_Bps
    read_s = (m_ * k_ + k_ * n_) * batch_ * width / bandwidth_Bps
    write_s = slowdown * m_ * n_ * batch_ * OUTPUT_BYTES / bandwidth_Bps
    partial_bytes = 2 * splits * m_ * n_ * batch_ * PARTIAL_BYTES
    reduce_s = np.where(splits > 1, fit.split_s + partial_bytes / bandwidth_Bps, 0.0)
    compute_s = waves * tile_s * slowdown + fit.epilogue * write_s
    each_s = np.maximum(compute_s, read_s + write_s) + reduce_s
    best_s = each_s.reshape(each_s.shape[0], -1).min(axis=1).reshape(sizes[0].shape)
    return throttled_s(fit, best_s, sustained=sustained) + fit.kernel_s


def fastest_flops(gpu: Gpu, dtype: str) -> float:
    """FLOPs a second that no product exceeds at the power limit: full waves of the tile that its
    operands reach fastest.
    """
    fit = gpu.calibration
    delivery = 1 + fit.tile_half * float((TILES.sum(axis=1) / TILES.prod(axis=1)).min())
    return gpu.loop_flops(dtype) / delivery / (1 + fit.throttle)


def _alignment(fit: Calibration, operand_row: Floats, output_row: Floats) -> Floats:
    """Slowdown of the kernels for rows that do not start at 16-byte addresses."""
    words = (operand_row % VECTOR_ELEMENTS != 0) | (output_row % VECTOR_ELEMENTS != 0)
    slowdown = np.where(words, fit.word_rows, 1.0)
    slowdown = np.where(operand_row % 2 != 0, fit.odd_rows, slowdown)
    return np.where(output_row % 2 != 0, fit.odd_output, slowdown)


def throttled_s(fit: Calibration, busy_s: Floats, *, sustained: bool = False) -> Floats:
    """Time of a burst of matrix work once the power limit has lowered the clock."""
    reached = 1.0 if sustained else busy_s / (busy_s + fit.throttle_s)
    return busy_s * (1 + fit.throttle * reached)
