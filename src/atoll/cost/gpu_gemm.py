"""Matrix products on a GPU: waves of tiles on SMs, split-K, HBM, power.

For every tile shape and split of the reduction, the time is the longer of two: the waves of tiles
plus the exposed write of the output, or moving operands and output once through HBM; plus the share
of the shorter that does not overlap. The library is assumed to pick the best combination.
docs/gpu-model.md has the formulas.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from atoll.base.arrays import Floats
from atoll.hardware.gpu import ELEMENT_BYTES, Calibration, Gpu

# Output tiles of one thread block. Hopper's are multiples of the 64-row warpgroup instruction whose
# accumulators fit the registers (CUTLASS's default builder shapes); Ampere's those of CUTLASS 2.
# Blackwell's have the 128 rows of tensor memory and as many columns as suit, in steps of 16.
_COMMON = [(256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64)]
# Additional shapes of cuBLAS 13 on an H200, by the names of its kernels. For row counts that are
# multiples of 64: these shapes (each at least 1 % of products). For others: any multiple of 8 rows,
# approximated by steps of 16.
_CUBLAS = [
    *((128, columns) for columns in (96, 112, 144, 168, 176, 192, 320)),
    *((rows, 128) for rows in (80, 160, 192)),
    (192, 192),
]
_RAGGED = ((64, 72, 136), (128, 72, 288), (192, 88, 208), (256, 72, 160))  # columns, rows from, to
TILES = {
    "hopper": np.array([*_COMMON, (128, 192), (192, 128)], dtype=np.float64),
    "ampere": np.array([*_COMMON, (256, 64), (64, 256)], dtype=np.float64),
    "cublas": np.array([*_COMMON, *_CUBLAS], dtype=np.float64),
    "blackwell": np.array([(128, n) for n in range(64, 257, 16)], dtype=np.float64),
}
_RAGGED_TILES = [(m, n) for n, low, high in _RAGGED for m in range(low, high + 1, 16)]
RAGGED = {"cublas": np.array(_RAGGED_TILES, dtype=np.float64)}
"""Additional tile shapes for row counts that are not multiples of the block."""
BLOCK_ROWS = 64
SECTOR_ELEMENTS = 16  # 32-byte memory sectors of 16-bit elements
VECTOR_ELEMENTS = 8  # 16-byte vectors of them, the least that bulk copies move
SPLITS = np.array([2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0])[:, None]  # split factors of k
SLICE_BYTES = 128.0  # bytes of the reduction per step: one swizzled row of shared memory
SPLIT_WAVES = 2.0  # products with at least this many waves are not split
OUTPUT_BYTES = 2.0  # 16-bit results, also of products in narrower formats
PARTIAL_BYTES = 4.0  # fp32 partial sums of a split reduction
FP4_BITS, HALF_BITS = 4, 16
CLOCK_OF_POWER = 1 / 3  # power is clock x voltage², and voltage about proportional to the clock
AT_ONCE = 2048  # products per batch, so that their arrays stay in caches
L2_BPS = 6e12  # reads from L2: casts on H100, L40S and RTX PRO 6000 reach 5 to 6.3 TB/s
L2_WRITE_BPS = 2.5e12  # writes of outputs that stay in L2, on L40S and RTX PRO 6000


class _Kernels(NamedTuple):
    """Kernels of one number format on a device."""

    loop_flops: float
    width: float  # bytes per element
    clock: tuple[float, float, int]  # throttle, half_s and onset (see `throttled_s`)
    long: float  # further throttle of long products in a step
    tiles: Floats
    splits: bool
    fill_s: float
    rotating_operands: int | None  # sets of operands
    cast: float  # bytes per element of the first operand that its cast moved
    boost: tuple[float, float]  # power of the share of busy SMs, least time at the peak's clock


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
    rotating_operands: int | None = None,
    cast: float = 0.0,
) -> Floats:
    """Return the seconds of `batch` products (m x k) by (k x n), for arrays of sizes.

    Operand rows in memory have k elements, or `operand_row` (a weight gradient reads both operands
    transposed); output rows have n. `sustained` prices every product at the power limit, as in a
    training step; otherwise only long ones are, as when one kernel is timed alone.
    `rotating_operands`: timed repeatedly with this many sets of operands, which are in L2 if it
    holds all of them; outputs may stay in L2. `cast`: bytes per element moved by an inference
    engine that casts the first operand just before; operand and output are then the same every
    time. Both options use the calibration of inference engines if the device has one.
    """
    fit, usual = gpu.calibration, gpu.calibration.format_fit(dtype)
    timed = bool(cast) or (rotating_operands is not None and dtype == gpu.half_dtype)
    engine = fit.engine_fit(dtype) if timed else usual
    loop_flops = gpu.loop_flops(dtype)  # raises if the device does not support the format
    if engine is not usual:
        loop_flops *= engine.matmul / usual.matmul
    throttle = _short_throttle(gpu, dtype) if sustained else engine.throttle
    row = k if operand_row is None else operand_row
    sizes = np.broadcast_arrays(*(np.asarray(a, dtype=np.float64) for a in (m, n, k, batch, row)))
    every = np.stack([size.reshape(-1) for size in sizes])
    half_s = fit.throttle_s if engine.throttle_s is None else engine.throttle_s
    kernels = _Kernels(
        loop_flops=loop_flops,
        width=float(ELEMENT_BYTES.get(dtype, 2)),
        clock=(throttle, 0.0 if sustained else half_s, fit.onset),
        long=fit.step_long if sustained else 0.0,
        tiles=TILES[engine.tiles or fit.tiles],
        splits=engine.splits,
        fill_s=fit.fill_s if engine.fill_s is None else engine.fill_s,
        rotating_operands=rotating_operands,
        cast=cast,
        boost=(
            0.0 if rotating_operands is None else engine.idle,
            min(1.0, loop_flops / gpu.peak_flops(dtype)),
        ),
    )
    time_s = _times_s(gpu, kernels, every)
    more = RAGGED.get(engine.tiles or fit.tiles)
    ragged = every[0] % BLOCK_ROWS != 0
    if more is not None and ragged.any():
        kernels = kernels._replace(tiles=np.concatenate([kernels.tiles, more]))
        time_s[ragged] = _times_s(gpu, kernels, every[:, ragged])
    return time_s.reshape(sizes[0].shape) + engine.kernel_s


def _times_s(gpu: Gpu, kernels: _Kernels, every: Floats) -> Floats:
    """Return the seconds of all products, without launch."""
    parts = np.split(every, range(AT_ONCE, every.shape[1], AT_ONCE), axis=1)
    return np.concatenate([_best_times_s(gpu, kernels, *part) for part in parts])


def _best_times_s(
    gpu: Gpu, kernels: _Kernels, m: Floats, n: Floats, k: Floats, batch: Floats, row: Floats
) -> Floats:
    """Return the seconds of every product with its best tile and split, without launch."""
    fit = gpu.calibration
    odd = (row % SECTOR_ELEMENTS != 0) | (n % SECTOR_ELEMENTS != 0)
    slowdown = np.where(odd, fit.misaligned, 1.0) * _alignment(fit, row, n)
    slice_, outputs = SLICE_BYTES / kernels.width, m * n * batch
    write_s, read_s = _moved_s(gpu, kernels, outputs, m * k * batch, n * k * batch)
    write_s = slowdown * write_s
    move_s = write_s + read_s
    rows, columns = kernels.tiles.T[:, :, None]
    # Seconds of one tile per element of its reduction, including operand delivery.
    delivery = 1 + fit.tile_half * (rows + columns) / (rows * columns)
    element_s = 2 * rows * columns * delivery / (kernels.loop_flops / gpu.sms)
    tiles_all = np.ceil(m / rows) * np.ceil(n / columns) * batch

    def tiles_s(split: Floats | float, of: Any, tiles: Floats, element_s: Floats) -> Floats:
        depth = np.ceil(k[of] / split / slice_) * slice_
        waves = np.ceil(tiles * split / gpu.sms)
        tile_s = element_s * depth + kernels.fill_s
        busy_s = waves * tile_s * slowdown[of] + fit.epilogue * write_s[of]
        busy_s = throttled_s(busy_s, *kernels.clock)
        if kernels.long:
            busy_s = throttled_s(busy_s, kernels.long, fit.throttle_s)
        if kernels.boost[0]:
            share = tiles * split / (waves * gpu.sms)
            busy_s = busy_s * np.maximum(share ** kernels.boost[0], kernels.boost[1])
        longer_s, shorter_s = np.maximum(busy_s, move_s[of]), np.minimum(busy_s, move_s[of])
        return np.asarray(longer_s + fit.exposed * shorter_s)

    best_s = tiles_s(1.0, slice(None), tiles_all, element_s).min(axis=0)
    few = (tiles_all < SPLIT_WAVES * gpu.sms) & (k >= SPLITS[0] * slice_)
    tile, of = np.nonzero(few & kernels.splits)
    if not of.size:
        return np.asarray(best_s)
    split_s = tiles_s(SPLITS, of, tiles_all[tile, of], element_s[tile, 0])
    partial_bytes = 2 * SPLITS * outputs[of] * PARTIAL_BYTES
    split_s += fit.split_s + fit.spill * partial_bytes / (fit.hbm * gpu.hbm_Bps)
    split_s[k[of] < SPLITS * slice_] = np.inf
    np.minimum.at(best_s, of, split_s.min(axis=0))
    return np.asarray(best_s)


def _moved_s(
    gpu: Gpu, kernels: _Kernels, outputs: Floats, first: Floats, second: Floats
) -> tuple[Floats, Floats]:
    """Return the seconds to write the output and to read both operands, from element counts."""
    fit, l2_bytes = gpu.calibration, gpu.l2_bytes
    bandwidth_Bps = fit.hbm * gpu.hbm_Bps
    written, weights = outputs * OUTPUT_BYTES, second * kernels.width
    read = first * kernels.width + weights
    write_s, read_s = written / bandwidth_Bps, read / bandwidth_Bps
    if kernels.rotating_operands is None:
        return write_s, read_s
    if not kernels.cast or bandwidth_Bps >= L2_WRITE_BPS:
        kept = np.minimum(written, fit.held * l2_bytes)
        write_s = (written - kept) / bandwidth_Bps + kept / L2_BPS
        return write_s, np.where(
            kernels.rotating_operands * read <= l2_bytes, read / L2_BPS, read_s
        )
    # The cast operand is in L2 if L2 holds all bytes that the cast moved. The previous output is in
    # L2 if a call moves at most half of L2; its share falls to 0 at the full size of L2.
    cast = kernels.cast * first
    call = cast + weights + written
    kept = written * np.clip(2 - 2 * call / l2_bytes, 0, 1)
    near = np.where(cast <= l2_bytes, first * kernels.width, 0.0)
    near += np.where(call + (kernels.rotating_operands - 1) * weights <= l2_bytes, weights, 0.0)
    write_s = (written - kept) / bandwidth_Bps + kept / L2_WRITE_BPS
    return write_s, (read - near) / bandwidth_Bps + near / L2_BPS


def limit_throttle(gpu: Gpu, dtype: str) -> float:
    """Return the relative slowdown of products at the power limit inside a training step. It is
    equal for 16 and 8 bits. Products of 4 bits multiply fewer bits per second; power is
    proportional to that rate and to the cube of the clock.
    """
    usual = gpu.calibration.limit_throttle
    if dtype != "nvfp4":
        return usual
    drawn = gpu.loop_flops(dtype) * FP4_BITS / (gpu.loop_flops(gpu.half_dtype) * HALF_BITS)
    return max(0.0, (1 + usual) * float(min(1.0, drawn) ** CLOCK_OF_POWER) - 1)


def _short_throttle(gpu: Gpu, dtype: str) -> float:
    """Return the relative slowdown of short products in a step; one as long as the calibration's
    `throttle_s` has `limit_throttle`.
    """
    return (1 + limit_throttle(gpu, dtype)) / (1 + gpu.calibration.step_long / 2) - 1


def fastest_flops(gpu: Gpu, dtype: str) -> float:
    """Return an upper bound on FLOPs per second at the power limit: full waves of the tile with the
    fastest operand delivery.
    """
    fit = gpu.calibration
    tiles = TILES[fit.format_fit(dtype).tiles or fit.tiles]
    delivery = 1 + fit.tile_half * float((tiles.sum(axis=1) / tiles.prod(axis=1)).min())
    return gpu.loop_flops(dtype) / delivery / (1 + _short_throttle(gpu, dtype))


def _alignment(fit: Calibration, operand_row: Floats, output_row: Floats) -> Floats:
    """Return the slowdown factor for rows that do not start at 16-byte addresses."""
    words = (operand_row % VECTOR_ELEMENTS != 0) | (output_row % VECTOR_ELEMENTS != 0)
    slowdown = np.where(words, fit.word_rows, 1.0)
    slowdown = np.where(operand_row % 2 != 0, fit.odd_rows, slowdown)
    return np.where(output_row % 2 != 0, fit.odd_output, slowdown)


def throttled_s(busy_s: Floats, throttle: Floats | float, half_s: float, onset: int = 1) -> Floats:
    """Return the time of matrix work under the power limit, with b = busy_s:
    b * (1 + throttle * b^onset / (b^onset + half_s^onset)). `half_s` is 0 if the clock is already
    low.
    """
    longer = busy_s**onset
    return np.asarray(busy_s * (1 + throttle * longer / (longer + half_s**onset)))
