"""Compiled: what stages carry within seconds and bytes; the least fill of a pipeline whose largest
load is given, over all sizes of stages.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from atoll.arrays import FloatArray
from atoll.jit import entry, kernel

ROUNDING = 1e-9


@kernel
def _layer_bytes(layer_s, curve, prices):
    """Bytes of a layer on a die at least, if it takes no longer than given: by every price of a
    byte, what the least of seconds + price x bytes leaves.
    """
    least = 0.0
    for j in range(len(prices)):
        least = max(least, (curve[j] - layer_s) / prices[j])
    return least


class SizeArrays(NamedTuple):
    """What is known of stages of several sizes (`layer_bounds.SizeBound`), by size."""

    layer_s: FloatArray
    head_s: FloatArray
    head_bytes: FloatArray
    embedding_s: FloatArray
    embedding_bytes: FloatArray
    prices: FloatArray
    curves: FloatArray
    pooled: FloatArray


@kernel
def _carried(sizes, k, layers, row, largest_s, room, first, alone):
    """The most layers that fit a stage of size `k` in time and memory. Row 0 is the last stage, row
    i + 1 another one with the i-th number of microbatches in flight; the `first` has the embedding.
    `alone`: no other could help it.
    """
    left_s = largest_s * (1.0 + ROUNDING)
    if row == 0:
        left_s, room = left_s - sizes.head_s[k], room - sizes.head_bytes[k]
    if first:
        left_s, room = left_s - sizes.embedding_s[k], room - sizes.embedding_bytes[k]
    if left_s <= 0.0 or room <= 0.0:
        return 0
    most = int(min(float(layers), left_s / sizes.layer_s[k]))
    curve = sizes.pooled[k, max(0, row - 1)] if alone else sizes.curves[k, max(0, row - 1)]
    for some in range(most, 0, -1):
        least = some * _layer_bytes(left_s / some, curve, sizes.prices[k])
        if least <= room * (1.0 + ROUNDING):
            return some
    return 0


@entry
def all_carried(sizes, layers, rows, largest_s, room):
    """Whether stages of one size, `rows` from the last to the first, carry all layers."""
    total, some = 0, 0
    last = len(rows) - 1
    for number in range(last):
        if number == 0 or rows[number] != rows[number - 1]:
            some = _carried(sizes, 0, layers, rows[number], largest_s, room, False, False)
        total += some
    return total + _carried(sizes, 0, layers, rows[last], largest_s, room, True, False) >= layers


@entry
def carried_layers(sizes, dies, layers, rows, largest_s, room, most, most_first, held):
    """Fill `most` and `most_first` (rows, sizes): the layers that stages carry, others and the
    first; and `held` (rows, sizes, layers): the bytes of all dies of such a stage at least.
    """
    for k in range(len(dies)):
        for row in rows:
            most[row, k] = _carried(sizes, k, layers, row, largest_s, room, False, False)
            most_first[row, k] = _carried(sizes, k, layers, row, largest_s, room, True, row == 0)
            left_s = largest_s * (1.0 + ROUNDING)
            ends = 0.0
            if row == 0:
                left_s, ends = left_s - sizes.head_s[k], sizes.head_bytes[k]
            curve = sizes.pooled[k, max(0, row - 1)]
            for some in range(1, max(most[row, k], most_first[row, k]) + 1):
                least = some * _layer_bytes(left_s / some, curve, sizes.prices[k])
                held[row, k, some] = dies[k] * (least + ends)


@kernel
def _fill_s(layers, but_weight_s, ends_s, slow_s, most_weight_s, largest_s, weight_fill, late):
    """Seconds that a stage which is not the slowest adds to the step, at least.

    1F1B: its load. Zero bubble: its load less its weight passes, and less these once more where
    they are put off (`late`); they are at most what its other passes leave of the largest load, and
    what they take under the slowest of their codes.
    """
    if not weight_fill:
        return layers * slow_s + ends_s
    others_s = layers * but_weight_s + ends_s
    return max(0.0, others_s - min(largest_s - others_s, most_weight_s)) if late else others_s


@entry
def least_fill(
    dies,
    layers,
    sizes,
    layer_s,
    but_weight_s,
    head_s,
    head_but_weight_s,
    most_weight_s,
    head_most_weight_s,
    row_of,
    most,
    most_first,
    largest_s,
    weight_passes_fill,
    most_late,
    cap_s,
    parents,
):
    """Least sum of fills over all pipelines on `dies` dies whose loads are at most `largest_s`.

    Stages are laid from the last to the first. most (rows, sizes) is how many layers a stage of
    that size can carry, `row_of` the row of each stage counted from the last, most_first the same
    for a stage that is the first of the pipeline. One stage, the slowest, adds nothing. Weight
    passes of at most `most_late` others are put off, the shortest ones: together no longer than
    those of as many others counted from the last. `parents` remembers the way (stage, dies, layers,
    slowest chosen). Returns the sum (`cap_s`: there is no such pipeline below it), and the first
    stage: its number from the last (-1: none), its size, and the place before it.
    """
    count = sizes.shape[0]
    rate = 0.0
    for d in range(most.shape[0]):
        for k in range(count):
            rate = max(rate, max(most[d, k], most_first[d, k]) / sizes[k])
    here = np.full((dies + 1, layers + 1, 2), np.inf)
    here[0, 0, 0] = 0.0
    best = cap_s
    found = np.full(5, -1, np.int64)
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
                    sofar = here[used, done, flag]
                    if sofar >= best:
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
                                left,
                                but_weight_s[k],
                                ends,
                                layer_s[k],
                                left * most_weight_s[k] + ends_weight,
                                largest_s,
                                weight_passes_fill,
                                late,
                            )
                            value = sofar + (fill if flag == 1 else 0.0)
                            if value < best:
                                best = value
                                found[0] = stage
                                found[1] = k
                                found[2] = used
                                found[3] = done
                                found[4] = flag
                        for some in range(1, min(most[depth, k], left - 1) + 1):
                            if left - some > (dies - used - n) * rate:
                                continue
                            fill = _fill_s(
                                some,
                                but_weight_s[k],
                                ends,
                                layer_s[k],
                                some * most_weight_s[k] + ends_weight,
                                largest_s,
                                weight_passes_fill,
                                late,
                            )
                            for chosen in range(flag, 2):
                                value = sofar + (0.0 if chosen > flag else fill)
                                if value < after[used + n, done + some, chosen] and value < best:
                                    after[used + n, done + some, chosen] = value
                                    parents[stage, used + n, done + some, chosen] = k * 2 + flag
                                    parents[stage, used + n, done + some, chosen] += (
                                        2 * count * some
                                    )
                                    alive = True
        here = after
        if not alive:
            break
    return best, found


@entry
def fit_together(dies, layers, sizes, row_of, most, most_first, held, embedding, room):
    """Whether all dies of some pipeline, as in `least_fill`, hold no more than `room`.

    held (rows, sizes, layers) are the bytes of a stage, `embedding` (sizes,) what the first one
    holds beside.
    """
    count = sizes.shape[0]
    rate = 0.0
    for d in range(most.shape[0]):
        for k in range(count):
            rate = max(rate, max(most[d, k], most_first[d, k]) / sizes[k])
    here = np.full((dies + 1, layers + 1), np.inf)
    here[0, 0] = 0.0
    for stage in range(1, min(dies, layers) + 1):
        row = row_of[stage]
        after = np.full((dies + 1, layers + 1), np.inf)
        alive = False
        for used in range(stage - 1, dies):
            for done in range(stage - 1, layers):
                sofar = here[used, done]
                left = layers - done
                if sofar > room or left > (dies - used) * rate:
                    continue
                for k in range(count):
                    n = sizes[k]
                    if used + n > dies:
                        continue
                    last = left <= most_first[row, k]
                    if last and sofar + held[row, k, left] + embedding[k] <= room:
                        return True
                    for some in range(1, min(most[row, k], left - 1) + 1):
                        value = sofar + held[row, k, some]
                        if value < after[used + n, done + some] and value <= room:
                            after[used + n, done + some] = value
                            alive = True
        here = after
        if not alive:
            break
    return False
