"""What a pipeline order costs beyond its slowest stage's work, and what each stage holds: formulas.

With p stages, M microbatches, and per chunk a forward pass f, a data gradient b and a weight
gradient w, w <= f <= b (recomputation belongs to b), equal stages take M loads and the bubble

    1f1b, gpipe    (p - 1) (f + b + w)
    interleaved    (p - 1 + (v - 1) max(0, p - M)) (f + b + w)               v chunks a stage
    zb-h1          (p - 1) (f + b) - min(M - 1, p - 1) w
    zb-h2          (p - 1) (f + b) - min(M - 1, 2 p - 2) w, at least 0
    zb-v           2 max(0, p - M) f + max(2 (p - 1) b - 2 k w, (2 (p - 1) - k) b - (p - 1 - k) w),
                   k = min(max(0, M - p), p - 1)
    dualpipe       M <= p: (p - M) f + (p - 2) b;  M > p: max(h (f + b), 2 h b - f)
                   - max(0, h - max(0, 2 p - M)) w,  h = p / 2 - 1

Each equals the replay (`tests/step`). Unequal stages: the slowest is busy all the time, and every
other adds its own part, with no more of its weight pass than the slowest stage's takes. Stages
within 20 % of each other: at most 9 % below the replay and 18 % above it. Unequal chunks of
interleaved stages wait for one another, which `turns` adds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from atoll.step.orders import LATE, SPLIT, chunks_of, copies_of, first_group
from atoll.step.replay import PassTime

N = TypeVar("N", float, NDArray[np.float64])
Peaks = tuple[tuple[float, float], ...]


def step_s(order: str, stages: Sequence[PassTime], microbatches: int, vpp: int = 1) -> float:
    """Seconds of all microbatches; `stages` are the passes of one through all chunks of a stage."""
    slowest_s = max(stage.total_s for stage in stages)
    return microbatches * slowest_s + bubble_s(order, stages, microbatches, vpp)


def bubble_s(order: str, stages: Sequence[PassTime], microbatches: int, vpp: int = 1) -> float:
    """Seconds of a step beyond the slowest stage's microbatches."""
    n = len(stages) - 1
    if n == 0:
        return 0.0
    slowest = max(stages, key=lambda s: s.total_s)
    others = list(stages)
    others.remove(slowest)
    weights = [s.weight_s for s in others]
    if order in SPLIT:
        weights = [min(w, slowest.weight_s) for w in weights]
    if order in LATE:  # the shortest are put off, where some cannot be
        weights = sorted(weights * LATE[order])[: microbatches - 1]
    forward_s = sum(s.forward_s for s in others) / n
    backward_s = sum(s.backward_s for s in others) / n
    weight_s = sum(weights) / max(1, len(weights))
    ways = bubble_terms(order, n + 1, microbatches, vpp)
    return max(0.0, *(f * forward_s + b * backward_s + w * weight_s for f, b, w in ways))


def bubble_terms(
    order: str, stages: int, microbatches: int, vpp: int
) -> tuple[tuple[float, float, float], ...]:
    """The formulas: how often the mean forward, backward and weight pass of the stages but the
    slowest stand in the bubble, those of one microbatch through all chunks; the longest way counts.
    Longer with longer forward and backward passes (of both alike), shorter with longer weight
    passes.
    """
    p, m, n = stages, microbatches, stages - 1
    if order in LATE:
        return ((n, n, -min(m - 1, LATE[order] * n)),)
    if order == "zb-v":  # two chunks: a half of the passes each
        k, first = min(max(0, m - p), n), max(0, p - m)
        return (first, n, -k), (first, n - k / 2, -(n - k) / 2)
    if order == "dualpipe" and m <= p:
        return ((p - m, p - 2, 0),)
    if order == "dualpipe":
        h = p // 2 - 1
        late = max(0, h - max(0, 2 * p - m))
        return (h, h, -late), (-1, 2 * h, -late)
    times = (n + (vpp - 1) * max(0, p - m)) / vpp
    return ((times, times, times),)


def held(order: str, stages: int, stage: int, microbatches: int, vpp: int = 1) -> float:
    """Microbatches, in units of a whole stage, whose activations wait for their backward pass."""
    p, m = stages, microbatches
    if order == "gpipe":
        return float(m)
    if order == "zb-h2":
        return float(min(2 * (p - stage) - 1, m))
    if order == "zb-v":
        return min(2 * p, m + stage + 1, 2 * m) / 2
    if order == "dualpipe":
        return float(min(p + 1, m // 2 + min(stage, p - 1 - stage) + 1, m))
    if vpp > 1:
        ahead = 2 * (p - stage - 1) + (vpp - 1) * first_group(p, m) + 1
        return min(ahead, m * vpp) / vpp
    return float(min(p - stage, m))


def waiting(order: str, stages: int, stage: int, microbatches: int) -> float:
    """More microbatches whose weight gradients are still to come when a stage holds the most."""
    late = LATE.get(order, 0) * stage
    return min(float(late), microbatches - held(order, stages, stage, microbatches))


def peaks(order: str, stages: int, stage: int, microbatches: int, vpp: int = 1) -> Peaks:
    """(held, waiting) where a stage may need most: before a backward pass, or after one, when one
    is held less and its weight gradient waits, or where most of these wait.
    """
    p, m = stages, microbatches
    where = order, p, stage, m
    most = held(*where, vpp)
    if order in LATE:
        late = waiting(*where)
        latest = min(LATE[order] * stage + 1.0, most + late)
        return ((most, late), (most + late - latest, latest))
    if order not in SPLIT:
        return ((most, 0.0),)
    one = copies_of(order) / chunks_of(order)
    left, late = _latest_v(p, stage, m) if order == "zb-v" else _latest_both(p, stage, m)
    return ((most, 0.0), (most - one, one), (left * one, late * one))


def _latest_v(p: int, stage: int, m: int) -> tuple[int, int]:
    """Of zb-v, backward passes left and weight passes put off when most are: at its end a stage
    runs `stage` backward passes of both chunks, then those left of the first.
    """
    missing = max(0, 2 * p - 1 - m)  # of the order for a full pipeline
    after = max(0, p - stage - missing)
    late = min(stage, max(0, p - missing)) + max(0, stage - missing) + min(1, after)
    return max(0, after - 1), late


def _latest_both(p: int, stage: int, m: int) -> tuple[int, int]:
    """The same of dualpipe, which puts off the later half of the last backward passes of both
    directions; each pass that is left then runs after one of these.
    """
    near = min(stage, p - 1 - stage)
    rest = p // 2 - near - 1
    missing = max(0, 2 * p - m) // 2  # in each direction
    ends = near + 1 - missing, near + 1 + rest - missing
    late = [i < end for i in range(near + 1) for end in ends][near + 1 :]
    left = max(0, rest - missing)
    found = left, sum(late)
    for ran, there in enumerate(late[:left], start=1):
        if not there:  # nothing ran before it
            found = left - ran, found[1] + 1
    return found


def held_chunks(
    order: str, stages: int, stage: int, microbatches: int, vpp: int = 1
) -> tuple[float, ...]:
    """Microbatches of each chunk where a stage holds most; of interleaved ones the mean. Where the
    model turns (zb-v), or a direction begins far away (dualpipe), few wait for their backward pass.
    """
    p, m = stages, microbatches
    most = held(order, p, stage, m, vpp)
    if order == "zb-v":
        second = min(stage + 1, m)
        return 2 * most - second, second
    if order == "dualpipe":
        far = min(min(stage, p - 1 - stage) + 1, m // 2)
        return (most - far, far) if stage < p // 2 else (far, most - far)
    return (most,) * vpp


def chunk_weights(
    order: str, stages: int, stage: int, microbatches: int, vpp: int = 1
) -> tuple[float, ...]:
    """How much what each chunk keeps of one microbatch counts, so that `held` of their sum are what
    the chunks hold together.
    """
    where = order, stages, stage, microbatches, vpp
    most = held(*where)
    return tuple(of / most for of in held_chunks(*where))


def held_bytes(
    order: str,
    stages: int,
    stage: int,
    microbatches: int,
    vpp: int = 1,
    *,
    kept_bytes: N,
    waiting_bytes: float,
) -> N:
    """Bytes of all microbatches at a stage's peak, where one keeps some for its backward pass and
    some after it, for weight gradients that the order puts off.
    """
    found = kept_bytes * 0.0
    for most, late in peaks(order, stages, stage, microbatches, vpp):
        found = np.maximum(found, kept_bytes * most + waiting_bytes * late)
    return found
