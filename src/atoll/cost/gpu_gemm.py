"""Matrix products on a GPU: tiles dealt to SMs in waves, split-K, HBM, power.

For every tile shape and every split of the reduction, the time is that of the waves of tiles, then
of the output's write that nothing hides; or that of moving operands and output once through HBM,
whichever is longer, and of the shorter what the longer does not hide. The library is assumed to
pick the best. docs/gpu-model.md has the formulas.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.cost import gpu_kernels as kernels
from atoll.hardware.gpu import ELEMENT_BYTES, Calibration, Gpu

Floats = NDArray[np.float64]

# Output tiles of one thread block. Hopper's are multiples of the 64-row warpgroup instruction whose
# accumulators fit the registers (CUTLASS's default builder shapes); Ampere's those of CUTLASS 2.
_COMMON = [(256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64)]
TILES = {
    "hopper": np.array([*_COMMON, (128, 192), (192, 128)], dtype=np.float64),
    "ampere": np.array([*_COMMON, (256, 64), (64, 256)], dtype=np.float64),
}
SECTOR_ELEMENTS = 16  # 32-byte memory sectors of 16-bit elements
VECTOR_ELEMENTS = 8  # 16-byte vectors of them, the least that bulk copies move


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
    fit, own = gpu.calibration, gpu.calibration.format_fit(dtype)
    throttle = fit.limit_throttle if sustained else own.throttle
    loop_flops = gpu.loop_flops(dtype)  # refuses a format that the device has not
    row = k if operand_row is None else operand_row
    sizes = np.broadcast_arrays(*(np.asarray(a, dtype=np.float64) for a in (m, n, k, batch, row)))
    m_, n_, k_, batch_, row_ = (np.ascontiguousarray(size).reshape(-1) for size in sizes)
    odd = (m_ % SECTOR_ELEMENTS != 0) | (n_ % SECTOR_ELEMENTS != 0) | (k_ % SECTOR_ELEMENTS != 0)
    slowdown = np.where(odd, fit.misaligned, 1.0) * _alignment(fit, row_, n_)
    found_s = np.empty(m_.size)
    kernels.best_times_s(
        m_, n_, k_, batch_, slowdown, TILES[fit.tiles], float(gpu.sms), loop_flops / gpu.sms,
        fit.hbm * gpu.hbm_Bps, float(ELEMENT_BYTES.get(dtype, 2)), fit.tile_half,
        fit.epilogue, fit.exposed, fit.split_s, fit.spill, throttle,
        0.0 if sustained else fit.throttle_s, found_s,
    )  # fmt: skip
    return found_s.reshape(sizes[0].shape) + own.kernel_s


def fastest_flops(gpu: Gpu, dtype: str) -> float:
    """FLOPs a second that no product exceeds at the power limit: full waves of the tile that its
    operands reach fastest.
    """
    fit = gpu.calibration
    tiles = TILES[fit.tiles]
    delivery = 1 + fit.tile_half * float((tiles.sum(axis=1) / tiles.prod(axis=1)).min())
    return gpu.loop_flops(dtype) / delivery / (1 + fit.limit_throttle)


def _alignment(fit: Calibration, operand_row: Floats, output_row: Floats) -> Floats:
    """Slowdown of the kernels for rows that do not start at 16-byte addresses."""
    words = (operand_row % VECTOR_ELEMENTS != 0) | (output_row % VECTOR_ELEMENTS != 0)
    slowdown = np.where(words, fit.word_rows, 1.0)
    slowdown = np.where(operand_row % 2 != 0, fit.odd_rows, slowdown)
    return np.where(output_row % 2 != 0, fit.odd_output, slowdown)


def throttled_s(busy_s: Floats, throttle: float, half_s: float) -> Floats:
    """Time of a burst of matrix work once the power limit has lowered the clock; `half_s` is how
    long it takes until half of that shows, 0 where it was low before.
    """
    return np.asarray(busy_s * (1 + throttle * busy_s / (busy_s + half_s)))
