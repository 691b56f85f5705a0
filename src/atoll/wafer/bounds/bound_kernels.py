"""Compiled: layers that stages carry within seconds and bytes; the least fill of a pipeline with a
given largest load, over all sizes of stages.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from atoll.base.arrays import Floats
from atoll.base.jit import entry, kernel

ROUNDING = 1e-9


@kernel
def _layer_bytes(layer_s, curve, prices):
    """Return the fewest bytes per die of a layer of at most `layer_s`: the maximum over prices of
    (least of seconds + price x bytes - layer_s) / price.
    """
    least = 0.0
    for j in range(len(prices)):
        least = max(least, (curve[j] - layer_s) / prices[j])
    return least


class SizeArrays(NamedTuple):
    """Bounds of stages of several sizes (`layer_bounds.SizeBound`), by size."""

    layer_s: Floats
    head_s: Floats
    head_bytes: Floats
    embedding_s: Floats
    embedding_bytes: Floats
    prices: Floats
    curves: Floats
    pooled: Floats


@kernel
def _carried(sizes, k, layers, row, largest_s, free_bytes, first, alone):
    """Return the most layers that fit a stage of size `k` in time and memory. Row 0 is the last
    stage, row i + 1 a stage with `DEPTHS[i]` microbatches in flight; the `first` stage has the
    embedding. `alone`: there is no other stage to offload to.
    """
    left_s = largest_s * (1.0 + ROUNDING)
    if row == 0:
        left_s, free_bytes = left_s - sizes.head_s[k], free_bytes - sizes.head_bytes[k]
    if first:
        left_s -= sizes.embedding_s[k]
        free_bytes -= sizes.embedding_bytes[k]
    if left_s <= 0.0 or free_bytes <= 0.0:
        return 0
    most = int(min(float(layers), left_s / sizes.layer_s[k]))
    curve = sizes.pooled[k, max(0, row - 1)] if alone else sizes.curves[k, max(0, row - 1)]
    for count in range(most, 0, -1):
        least = count * _layer_bytes(left_s / count, curve, sizes.prices[k])
        if least <= free_bytes * (1.0 + ROUNDING):
            return count
    return 0


@entry
def all_carried(sizes, layers, rows, largest_s, free_bytes):
    """Return whether stages of one size, `rows` from the last to the first, carry all layers."""
    total, carried = 0, 0
    last = len(rows) - 1
    for number in range(last):
        if number == 0 or rows[number] != rows[number - 1]:
            carried = _carried(sizes, 0, layers, rows[number], largest_s, free_bytes, False, False)
        total += carried
    total += _carried(sizes, 0, layers, rows[last], largest_s, free_bytes, True, False)
    return total >= layers


@entry
def carried_layers(sizes, dies, layers, rows, largest_s, free_bytes, most, most_first, size_bytes):
    """Fill `most` and `most_first` (rows, sizes): the most layers of a stage, and of a first stage;
    and `size_bytes` (rows, sizes, layers): the fewest bytes of all dies of such a stage.
    """
    for k in range(len(dies)):
        for row in rows:
            most[row, k] = _carried(sizes, k, layers, row, largest_s, free_bytes, False, False)
            last = row == 0
            most_first[row, k] = _carried(sizes, k, layers, row, largest_s, free_bytes, True, last)
            left_s = largest_s * (1.0 + ROUNDING)
            head_bytes = 0.0
            if row == 0:
                left_s, head_bytes = left_s - sizes.head_s[k], sizes.head_bytes[k]
            curve = sizes.pooled[k, max(0, row - 1)]
            for count in range(1, max(most[row, k], most_first[row, k]) + 1):
                least = count * _layer_bytes(left_s / count, curve, sizes.prices[k])
                size_bytes[row, k, count] = dies[k] * (least + head_bytes)


@kernel
def _fill_s(layers, but_weight_s, ends_s, slow_s, most_weight_s, largest_s, weight_fill, late):
    """Return the fewest seconds that a stage other than the slowest adds to the step.

    1F1B: its load. Zero bubble: its load without its weight passes, minus these once more if they
    are delayed (`late`). They take at most largest_s minus its other passes, and at most
    `most_weight_s`.
    """
    if not weight_fill:
        return layers * slow_s + ends_s
    others_s = layers * but_weight_s + ends_s
    return max(0.0, others_s - min(largest_s - others_s, most_weight_s)) if late else others_s


@kernel
def _most_per_die(most, most_first, sizes):
    """Return the most layers that a die can carry in a stage of any row and size."""
    rate = 0.0
    for row in range(most.shape[0]):
        for k in range(len(sizes)):
            rate = max(rate, max(most[row, k], most_first[row, k]) / sizes[k])
    return rate


@entry
def least_fill(
    dies, layers, sizes, layer_s, but_weight_s, head_s, head_but_weight_s, most_weight_s,
    head_most_weight_s, row_of, most, most_first, largest_s, weight_passes_fill, most_late, cap_s,
    parents,
):  # fmt: skip
    """Return the least sum of fills over all pipelines on `dies` dies with loads up to `largest_s`.

    Stages are placed from the last to the first. `most` (rows, sizes) is the number of layers that
    a stage can carry, `most_first` the same for the first stage of the pipeline, `row_of` the row
    of each stage counted from the last. One stage, the slowest, adds nothing. Weight passes of at
    most `most_late` other stages are delayed, the shortest ones: together no longer than those of
    as many stages counted from the last. `parents` records the path (stage, dies, layers, slowest
    chosen). Returns the sum (`cap_s`: no pipeline is below it) and the first stage: its number from
    the last (-1: none), size index, and dies, layers and slowest flag before it.
    """
    count = sizes.shape[0]
    rate = _most_per_die(most, most_first, sizes)
    fills = np.full((dies + 1, layers + 1, 2), np.inf)
    fills[0, 0, 0] = 0.0
    best = cap_s
    first_stage = np.full(5, -1, np.int64)
    for stage in range(1, min(dies, layers) + 1):
        depth = row_of[stage]
        after = np.full((dies + 1, layers + 1, 2), np.inf)
        alive = False
        for used in range(stage - 1, dies):
            for done in range(stage - 1, layers):
                left = layers - done
                if left > (dies - used) * rate:
                    continue
                for flag in range(2):
                    total = fills[used, done, flag]
                    if total >= best:
                        continue
                    late = stage - 1 - flag < most_late
                    for k in range(count):
                        n = sizes[k]
                        if used + n > dies:
                            continue
                        ends = head_but_weight_s[k] if stage == 1 else 0.0
                        if not weight_passes_fill and stage == 1:
                            ends = head_s[k]
                        ends_weight = head_most_weight_s[k] if stage == 1 else 0.0
                        if left <= most_first[depth, k]:
                            fill = _fill_s(
                                left, but_weight_s[k], ends, layer_s[k],
                                left * most_weight_s[k] + ends_weight, largest_s,
                                weight_passes_fill, late,
                            )  # fmt: skip
                            value = total + (fill if flag == 1 else 0.0)
                            if value < best:
                                best = value
                                first_stage[0] = stage
                                first_stage[1] = k
                                first_stage[2] = used
                                first_stage[3] = done
                                first_stage[4] = flag
                        for added in range(1, min(most[depth, k], left - 1) + 1):
                            if left - added > (dies - used - n) * rate:
                                continue
                            fill = _fill_s(
                                added, but_weight_s[k], ends, layer_s[k],
                                added * most_weight_s[k] + ends_weight, largest_s,
                                weight_passes_fill, late,
                            )  # fmt: skip
                            for chosen in range(flag, 2):
                                value = total + (0.0 if chosen > flag else fill)
                                if value < after[used + n, done + added, chosen] and value < best:
                                    after[used + n, done + added, chosen] = value
                                    code = k * 2 + flag + 2 * count * added
                                    parents[stage, used + n, done + added, chosen] = code
                                    alive = True
        fills = after
        if not alive:
            break
    return best, first_stage


@entry
def fit_together(dies, layers, sizes, row_of, most, most_first, size_bytes, embedding, limit_bytes):
    """Return whether all dies of some pipeline, as in `least_fill`, hold at most `limit_bytes`.

    `size_bytes` (rows, sizes, layers) are those of a stage, `embedding` (sizes,) those that the
    first stage adds.
    """
    count = sizes.shape[0]
    rate = _most_per_die(most, most_first, sizes)
    used_bytes = np.full((dies + 1, layers + 1), np.inf)
    used_bytes[0, 0] = 0.0
    for stage in range(1, min(dies, layers) + 1):
        row = row_of[stage]
        after = np.full((dies + 1, layers + 1), np.inf)
        alive = False
        for used in range(stage - 1, dies):
            for done in range(stage - 1, layers):
                total = used_bytes[used, done]
                left = layers - done
                if total > limit_bytes or left > (dies - used) * rate:
                    continue
                for k in range(count):
                    n = sizes[k]
                    if used + n > dies:
                        continue
                    last = left <= most_first[row, k]
                    if last and total + size_bytes[row, k, left] + embedding[k] <= limit_bytes:
                        return True
                    for added in range(1, min(most[row, k], left - 1) + 1):
                        value = total + size_bytes[row, k, added]
                        if value < after[used + n, done + added] and value <= limit_bytes:
                            after[used + n, done + added] = value
                            alive = True
        used_bytes = after
        if not alive:
            break
    return False
