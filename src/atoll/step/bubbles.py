"""Formulas of the bubble of each pipeline order, and of the microbatches that each stage holds.

With p stages, M microbatches, and per chunk a forward pass f, a data gradient b and a weight
gradient w, w <= f <= b (recomputation belongs to b), equal stages take M loads and the bubble

    1f1b, gpipe    (p - 1) (f + b + w)
    interleaved    (p - 1 + (v - 1) max(0, p - M)) (f + b + w)           v chunks per stage
    zb-h1          (p - 1) (f + b) - min(M - 1, p - 1) w
    zb-h2          (p - 1) (f + b) - min(M - 1, 2 p - 2) w, at least 0
    zb-v           2 max(0, p - M) f + max(2 (p - 1) b - 2 k w, (2 (p - 1) - k) b - (p - 1 - k) w),
                   k = min(max(0, M - p), p - 1)
    dualpipe       M <= p: (p - M) f + (p - 2) b;  M > p: max(h (f + b), 2 h b - f)
                   - max(0, h - max(0, 2 p - M)) w,  h = p / 2 - 1

Each formula equals the replay (`tests/step`). With unequal stages, the slowest is always busy and
f, b and w are the means of the other stages, with w at most the slowest stage's weight pass.
Stages within 20 % of each other: at most 9 % below the replay and 18 % above it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from atoll.base.arrays import Floats
from atoll.step.orders import (
    FUSED,
    SPLIT,
    WEIGHT_DELAY,
    chunks_per_stage,
    first_group,
    model_copies,
)
from atoll.step.replay import PassTime

N = TypeVar("N", float, Floats)
Peaks = tuple[tuple[float, float], ...]


def step_s(order: str, stages: Sequence[PassTime], microbatches: int, vpp: int = 1) -> float:
    """Return the seconds of all microbatches; `stages`: one microbatch through all chunks."""
    slowest_s = max(stage.total_s for stage in stages)
    return microbatches * slowest_s + bubble_s(order, stages, microbatches, vpp)


def bubble_s(order: str, stages: Sequence[PassTime], microbatches: int, vpp: int = 1) -> float:
    """Return the seconds of a step beyond the slowest stage's microbatches."""
    n = len(stages) - 1
    if n == 0:
        return 0.0
    slowest = max(stages, key=lambda s: s.total_s)
    faster_stages = list(stages)
    faster_stages.remove(slowest)
    weights = [s.weight_s for s in faster_stages]
    if order in SPLIT:
        weights = [min(w, slowest.weight_s) for w in weights]
    if order in WEIGHT_DELAY:  # where not all can be delayed, the shortest are
        weights = sorted(weights * WEIGHT_DELAY[order])[: microbatches - 1]
    forward_s = sum(s.forward_s for s in faster_stages) / n
    backward_s = sum(s.backward_s for s in faster_stages) / n
    weight_s = sum(weights) / max(1, len(weights))
    terms = bubble_terms(order, n + 1, microbatches, vpp)
    return max(0.0, *(f * forward_s + b * backward_s + w * weight_s for f, b, w in terms))


@lru_cache(maxsize=4096)
def bubble_terms(
    order: str, stages: int, microbatches: int, vpp: int
) -> tuple[tuple[float, float, float], ...]:
    """Return (forward, backward, weight) coefficients of the bubble: the bubble is the largest of
    these sums over the mean passes of one microbatch through all chunks of the stages other than
    the slowest. It grows with forward and backward passes and shrinks with weight passes.
    """
    p, m, n = stages, microbatches, stages - 1
    if order in WEIGHT_DELAY:
        return ((n, n, -min(m - 1, WEIGHT_DELAY[order] * n)),)
    if order == "zb-v":  # two chunks, each half of the passes
        k, first = min(max(0, m - p), n), max(0, p - m)
        return (first, n, -k), (first, n - k / 2, -(n - k) / 2)
    if order == "dualpipe" and m <= p:
        return ((p - m, p - 2, 0),)
    if order == "dualpipe":
        h = p // 2 - 1
        late = max(0, h - max(0, 2 * p - m))
        return (h, h, -late), (-1, 2 * h, -late)
    if order not in FUSED:
        raise ValueError(f"pipeline order {order} has no bubble")
    times = (n + (vpp - 1) * max(0, p - m)) / vpp
    return ((times, times, times),)


def microbatches_in_flight(
    order: str, stages: int, stage: int, microbatches: int, vpp: int = 1
) -> float:
    """Return the most microbatches (of all chunks of a stage) between forward and backward pass."""
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
        chunk_microbatches = 2 * (p - stage - 1) + (vpp - 1) * first_group(p, m) + 1
        return min(chunk_microbatches, m * vpp) / vpp
    return float(min(p - stage, m))


def microbatches_before_weight_pass(
    order: str, stages: int, stage: int, microbatches: int
) -> float:
    """Return further microbatches whose weight pass is still to come at a stage's peak."""
    in_flight = microbatches_in_flight(order, stages, stage, microbatches)
    return min(float(WEIGHT_DELAY.get(order, 0) * stage), microbatches - in_flight)


def peaks(order: str, stages: int, stage: int, microbatches: int, vpp: int = 1) -> Peaks:
    """Return (microbatches before their backward pass, microbatches before their weight pass) at
    each moment at which a stage may need most memory: before a backward pass, after one, or when
    most weight passes are delayed.
    """
    p, m = stages, microbatches
    pipeline = order, p, stage, m
    in_flight = microbatches_in_flight(*pipeline, vpp)
    if order in WEIGHT_DELAY:
        late = microbatches_before_weight_pass(*pipeline)
        latest = min(WEIGHT_DELAY[order] * stage + 1.0, in_flight + late)
        return ((in_flight, late), (in_flight + late - latest, latest))
    if order not in SPLIT:
        return ((in_flight, 0.0),)
    microbatches_per_chunk = model_copies(order) / chunks_per_stage(order)
    left, late = _latest_v(p, stage, m) if order == "zb-v" else _latest_both(p, stage, m)
    return (
        (in_flight, 0.0),
        (in_flight - microbatches_per_chunk, microbatches_per_chunk),
        (left * microbatches_per_chunk, late * microbatches_per_chunk),
    )


def _latest_v(p: int, stage: int, m: int) -> tuple[int, int]:
    """Return the backward passes left and weight passes delayed in zb-v when most are delayed: at
    its end a stage runs `stage` backward passes of both chunks, then the remaining ones of chunk 0.
    """
    missing = max(0, 2 * p - 1 - m)  # microbatches, compared with a full pipeline
    after = max(0, p - stage - missing)
    late = min(stage, max(0, p - missing)) + max(0, stage - missing) + min(1, after)
    return max(0, after - 1), late


def _latest_both(p: int, stage: int, m: int) -> tuple[int, int]:
    """Return the same for dualpipe, which delays the weight passes of the later half of the last
    backward passes of both directions; each remaining backward pass then follows one of these.
    """
    near = min(stage, p - 1 - stage)
    to_middle = p // 2 - near - 1
    missing = max(0, 2 * p - m) // 2  # per direction
    ends = near + 1 - missing, near + 1 + to_middle - missing
    late = [i < end for i in range(near + 1) for end in ends][near + 1 :]
    left = max(0, to_middle - missing)
    # Nothing ran before a backward pass that is not delayed.
    at_once = [ran for ran, is_delayed in enumerate(late[:left], start=1) if not is_delayed]
    return left - max(at_once, default=0), sum(late) + len(at_once)


def in_flight_per_chunk(
    order: str, stages: int, stage: int, microbatches: int, vpp: int = 1
) -> tuple[float, ...]:
    """Return the microbatches in flight per chunk at a stage's peak; the mean for interleaved
    chunks. Chunks near the end of the model (zb-v) or of a direction (dualpipe) hold few.
    """
    p, m = stages, microbatches
    in_flight = microbatches_in_flight(order, p, stage, m, vpp)
    if order == "zb-v":
        second = min(stage + 1, m)
        return 2 * in_flight - second, second
    if order == "dualpipe":
        far = min(min(stage, p - 1 - stage) + 1, m // 2)
        return (in_flight - far, far) if stage < p // 2 else (far, in_flight - far)
    return (in_flight,) * vpp


def chunk_weights(
    order: str, stages: int, stage: int, microbatches: int, vpp: int = 1
) -> tuple[float, ...]:
    """Return each chunk's share of a stage's microbatches in flight."""
    pipeline = order, stages, stage, microbatches, vpp
    in_flight = microbatches_in_flight(*pipeline)
    return tuple(chunk_in_flight / in_flight for chunk_in_flight in in_flight_per_chunk(*pipeline))


def peak_activation_bytes(
    order: str,
    stages: int,
    stage: int,
    microbatches: int,
    vpp: int = 1,
    *,
    kept_bytes: N,
    waiting_bytes: float,
) -> N:
    """Return the bytes of all microbatches at a stage's peak, where each keeps `kept_bytes` until
    its backward pass and then `waiting_bytes` until a delayed weight pass.
    """
    return bytes_at_peak(peaks(order, stages, stage, microbatches, vpp), kept_bytes, waiting_bytes)


def bytes_at_peak(peaks: Iterable[Any], kept_bytes: N, waiting_bytes: N | float) -> N:
    """Return the same for given `peaks`, as numbers or arrays."""
    peak_bytes = kept_bytes * 0.0
    for in_flight, delayed in peaks:
        peak_bytes = np.maximum(peak_bytes, kept_bytes * in_flight + waiting_bytes * delayed)
    return peak_bytes
