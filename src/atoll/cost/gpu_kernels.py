"""The loop over tiles and splits of a product on a GPU, compiled; `gpu_gemm` has its meaning."""

from __future__ import annotations

import math

from atoll.jit import entry

SPLITS = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 16.0, 32.0)
SLICE_BYTES = 128.0  # of the reduction, taken at a time: one swizzled row of shared memory
SPLIT_WAVES = 2.0  # products of so many waves are not split
OUTPUT_BYTES = 2.0  # 16-bit results, of narrower products too
PARTIAL_BYTES = 4.0  # fp32 partial sums of a split reduction


@entry
def best_times_s(
    m, n, k, batch, slowdown, tiles, sms, sm_flops, bandwidth_Bps, width, tile_half,
    epilogue, exposed, split_s, spill, throttle, throttle_s, out,
):  # fmt: skip
    """Seconds of every product under its best tile and split, without launch. `throttle_s` is the
    length of kernel at which half of the throttling shows.
    """
    slice_ = SLICE_BYTES / width
    for i in range(m.size):
        best = math.inf
        outputs = m[i] * n[i] * batch[i]
        write_s = slowdown[i] * outputs * OUTPUT_BYTES / bandwidth_Bps
        move_s = write_s + (m[i] + n[i]) * k[i] * batch[i] * width / bandwidth_Bps
        for t in range(tiles.shape[0]):
            area = tiles[t, 0] * tiles[t, 1]
            delivery = 1.0 + tile_half * (tiles[t, 0] + tiles[t, 1]) / area
            whole = math.ceil(m[i] / tiles[t, 0]) * math.ceil(n[i] / tiles[t, 1]) * batch[i]
            for split in SPLITS:
                if split > 1.0 and (whole >= SPLIT_WAVES * sms or k[i] < split * slice_):
                    break
                depth = math.ceil(k[i] / split / slice_) * slice_
                tile_s = 2.0 * area * depth * delivery / sm_flops
                busy_s = math.ceil(whole * split / sms) * tile_s * slowdown[i] + epilogue * write_s
                busy_s *= 1.0 + throttle * busy_s / (busy_s + throttle_s)
                each_s = max(busy_s, move_s) + exposed * min(busy_s, move_s)
                if split > 1.0:
                    partial_bytes = 2.0 * split * outputs * PARTIAL_BYTES
                    each_s += split_s + spill * partial_bytes / bandwidth_Bps
                best = min(best, each_s)
        out[i] = best
