"""Flash attention on a GPU: blocks of 128 rows, each walking the keys that it may see.

A block's time is that of its (query, key) pairs, set by the matrix products or, for small heads,
by the exponentials. Blocks are dealt to SMs as they come free: never more than full waves, never
more than an even share plus one longest block (Graham's bound for list scheduling, 1966).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from atoll.cost.gpu_gemm import Floats, throttled_s
from atoll.hardware.gpu import AttentionFit, Gpu

BLOCK_ROWS = 128
FORWARD_PRODUCTS = 2  # QK', PV
BACKWARD_PRODUCTS = 5  # the first again, and one for each of dV, dP, dQ, dK
# Passes over a tensor of query heads in backward: o and do for their row sums, q and do in the main
# kernel, dq as fp32 (cleared, then converted: four 16-bit passes) and its 16-bit result.
BACKWARD_QUERY_PASSES = 9
KEY_PASSES = 4  # k, v, dk, dv
GROUPED_PASSES = 4  # dk, dv of every query head written, then summed over the group


class Heads(NamedTuple):
    """Sizes of attention, each a number or an array of them; as many keys as queries unless `keys`
    says how many (then without a causal mask).
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
) -> Floats:
    """Seconds of flash attention, for arrays of sizes at once. `even`: as if blocks were spread
    evenly, and without the launch, what no larger batch takes less of for each of its samples.
    """
    *numbers, causal, keys = sizes
    arrays = (
        np.asarray(a, dtype=np.float64) for a in (*numbers, sizes.seq if keys is None else keys)
    )
    b, h, hk, s, d, sk, masked = np.broadcast_arrays(*arrays, np.asarray(causal, dtype=bool))
    direction = gpu.calibration.backward if backward else gpu.calibration.forward
    products = BACKWARD_PRODUCTS if backward else FORWARD_PRODUCTS

    pair_s = 2 * products * np.maximum(d, _min_head(gpu, direction)) * gpu.sms
    pair_s = pair_s / (direction.matmul * gpu.matmul_scale * gpu.peak_flops(dtype))
    rows, steps = np.ceil(s / BLOCK_ROWS), np.ceil(sk / BLOCK_ROWS)
    visited = np.where(masked, (steps + 1) / 2, steps)  # key blocks that a row block walks, mean
    square_s = pair_s * BLOCK_ROWS**2
    longest_s = square_s * steps + direction.block_s
    mean_s = square_s * visited + direction.block_s
    share = b * h * rows / gpu.sms
    busy_s = np.minimum(np.ceil(share) * longest_s, share * mean_s + longest_s)
    if even:
        busy_s = share * mean_s

    bandwidth_Bps = gpu.calibration.hbm * gpu.hbm_Bps
    element, key = 2 * b * s * d, 2 * b * sk * d
    if backward:
        grouped = np.where(hk < h, GROUPED_PASSES * h, 0.0)
        moved = element * BACKWARD_QUERY_PASSES * h + key * (KEY_PASSES * hk + grouped)
        busy_s = busy_s + moved / bandwidth_Bps  # mostly kernels before and after the main one
    else:
        busy_s = np.maximum(busy_s, 2 * (element * h + key * hk) / bandwidth_Bps)
    launch_s = 0.0 if even else direction.kernel_s
    return throttled_s(gpu.calibration, busy_s, sustained=sustained) + launch_s


def _min_head(gpu: Gpu, direction: AttentionFit) -> float:
    """Head size at which products and exponentials take equally long on this device."""
    return direction.min_head * gpu.tensor_per_exp
