"""Flash attention on a GPU: blocks of 128 query rows, each iterating over its visible keys.

The time of a block is set by its matrix products or, for small heads, by its exponentials, plus the
share of the shorter that does not overlap. Free SMs take the next block: the time is at most that
of full waves and, under a causal mask, at most an even share plus a part of the longest block (with
all of it, Graham's bound for list scheduling, 1966). If there are fewer blocks than SMs, some
libraries also split the keys and combine the parts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from atoll.base.arrays import Floats
from atoll.cost.gpu_gemm import throttled_s
from atoll.hardware.gpu import Gpu

BLOCK_ROWS = 128  # keys per step, and queries per block unless the calibration overrides them
LIMIT_S = 7e-3  # calls of engines that the power limit slows by half of what it can, on all devices
KEY_SPLITS = (2, 4, 8)
FORWARD_PRODUCTS = 2  # QK', PV
BACKWARD_PRODUCTS = 5  # the first again, and one for each of dV, dP, dQ, dK
# Passes over a tensor of query heads in backward: o and do for their row sums, q and do in the main
# kernel, dq as fp32 (cleared, then converted: four 16-bit passes) and its 16-bit result.
BACKWARD_QUERY_PASSES = 9
KEY_PASSES = 4  # k, v, dk, dv
GROUPED_PASSES = 4  # dk, dv of every query head written, then summed over the group


class Heads(NamedTuple):
    """Sizes of attention, each a number or an array. The number of keys equals that of queries
    unless `keys` is given (then without a causal mask).
    """

    batch: ArrayLike
    heads: ArrayLike
    kv_heads: ArrayLike
    seq: ArrayLike
    head_dim: ArrayLike
    causal: ArrayLike
    keys: ArrayLike | None = None


def attention_times_s(
    gpu: Gpu,
    sizes: Heads,
    *,
    backward: bool = False,
    dtype: str = "bf16",
    sustained: bool = False,
    even: bool = False,
    prompt: bool = False,
) -> Floats:
    """Return the seconds of flash attention for arrays of sizes. `prompt`: forward, as inference
    engines run it. `even`: blocks divided evenly over SMs and no launch time, which is a lower
    bound per sample for every larger batch.
    """
    *numbers, causal, keys = sizes
    arrays = (
        np.asarray(a, dtype=np.float64) for a in (*numbers, sizes.seq if keys is None else keys)
    )
    b, h, hk, s, d, sk, masked = np.broadcast_arrays(*arrays, np.asarray(causal, dtype=bool))
    fit = gpu.calibration
    direction = fit.backward if backward else (prompt and fit.prompt) or fit.forward
    products = BACKWARD_PRODUCTS if backward else FORWARD_PRODUCTS

    wide = np.ceil(d / direction.head_columns) * direction.head_columns
    # The head size at which products and exponentials take equally long.
    exp = direction.min_head * gpu.tensor_per_exp
    # Two query tiles alternate between tensor cores and exponentials. Wide heads have space for
    # only one, whose products and exponentials run in sequence.
    alone = (d > direction.narrow_head) & (direction.narrow_rows >= 2 * BLOCK_ROWS)
    exposed = np.where(alone, 1.0, direction.exposed)
    multiplied, gain = (wide / direction.fp8_gain if dtype == "fp8" else wide), np.ones(d.shape)
    columns = np.maximum(multiplied, exp) + exposed * np.minimum(multiplied, exp)
    for head, head_fit in direction.fp8_heads if dtype == "fp8" else ():
        gain = np.where(d == head, head_fit, gain)
    rate = direction.matmul * gain * gpu.matmul_scale
    half = gpu.half_dtype if dtype == "fp8" else dtype
    pair_s = 2 * products * columns * gpu.sms / (rate * gpu.peak_flops(half))
    queries = np.where(d <= direction.narrow_head, direction.narrow_rows, BLOCK_ROWS)
    queries = np.where(masked, np.minimum(queries, direction.causal_rows), queries)
    rows, steps = np.ceil(s / queries), np.ceil(sk / BLOCK_ROWS)
    # Mean number of key blocks per query block.
    visited = np.where(masked, np.minimum((steps + queries / BLOCK_ROWS) / 2, steps), steps)
    step_s = pair_s * queries * BLOCK_ROWS
    start_s, side = direction.block_s * queries / BLOCK_ROWS, np.ones(d.shape)
    if dtype == "fp8" and direction.fp8_block_s is not None:
        start_s = direction.fp8_block_s * queries / BLOCK_ROWS
    if dtype == "fp8" and direction.fp8_columns is not None:  # concurrent blocks on an SM
        side = np.maximum(1.0, direction.fp8_columns / d)
    share = b * h * rows / gpu.sms

    def dealt_s(parts: int) -> Floats:
        mean_s = step_s * visited / parts + start_s
        longest_s = side * (step_s * steps / parts + start_s)
        waves_s = np.ceil(share * parts / side) * longest_s
        list_s = np.maximum(share * parts * mean_s + direction.tail * longest_s, longest_s)
        return np.asarray(np.where(masked, np.minimum(waves_s, list_s), waves_s))

    bandwidth_Bps = fit.hbm * gpu.hbm_Bps
    element, key = 2 * b * s * d, 2 * b * sk * d
    busy_s = share * (step_s * visited + start_s) if even else dealt_s(1)
    if not (even or backward or direction.split_s is None):
        for parts in KEY_SPLITS:  # fp32 results of each part are written and read
            joined_s = dealt_s(parts) + direction.split_s + 4 * parts * element * h / bandwidth_Bps
            busy_s = np.where(share <= 1, np.minimum(busy_s, joined_s), busy_s)
    if backward:
        grouped = np.where(hk < h, GROUPED_PASSES * h, 0.0)
        moved = element * BACKWARD_QUERY_PASSES * h + key * (KEY_PASSES * hk + grouped)
        busy_s = busy_s + moved / bandwidth_Bps  # mostly kernels before and after the main one
    else:
        busy_s = np.maximum(busy_s, 2 * (element * h + key * hk) / bandwidth_Bps)
    launch_s = 0.0 if even else direction.kernel_s
    if sustained:
        return throttled_s(busy_s, fit.attention_throttle(direction), 0.0) + launch_s
    if prompt:  # power goes to products of 16 bits, whose share of the time differs with the head
        drawn = 0.0 if dtype == "fp8" else direction.throttle * wide / columns
        return throttled_s(busy_s, drawn, LIMIT_S, fit.onset) + launch_s
    return throttled_s(busy_s, direction.throttle, fit.throttle_s) + launch_s
