"""Pipeline orders: which pass of which microbatch a stage runs next, and the route of the data.

A stage holds one or more chunks of the model. A pass is forward (F), backward (B) or, in orders
that split the backward pass, the weight gradients alone (W), which no other pass depends on.

    gpipe        all forward passes, then all backward passes                   arXiv:1811.06965
    1f1b         one forward, one backward pass in turn                   Narayanan et al., SC 2021
    interleaved  1f1b over several chunks per stage                       the same, section 2.2.2
    zb-h1        1f1b whose weight passes fill gaps, in the memory of 1f1b       arXiv:2401.10241
    zb-h2        the same with up to twice the microbatches in flight            the same
    zb-v         two chunks per stage, laid out in a V                           the same, section 6
    dualpipe     microbatches enter at both ends; every stage holds two chunks   arXiv:2412.19437

zb-v and dualpipe need a minimum of microbatches; with fewer, the order for that minimum is used
without the passes of the missing microbatches.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from atoll.base.errors import AtollError

Codes = NDArray[np.integer[Any]]

OrderName = Literal["1f1b", "interleaved", "gpipe", "zb-h1", "zb-h2", "zb-v", "dualpipe"]
ORDERS: tuple[str, ...] = get_args(OrderName)
SPLIT = ("zb-h1", "zb-h2", "zb-v", "dualpipe")
"""Orders with separate weight passes."""
TWO_CHUNKS = ("zb-v", "dualpipe")
"""Orders in which a stage holds two chunks of the model."""
WEIGHT_DELAY = {"zb-h1": 1, "zb-h2": 2}
"""Weight passes that a stage delays per stage before it."""
FUSED = ("1f1b", "interleaved", "gpipe")
"""Orders whose backward pass includes the weight gradients."""
KINDS = ("F", "B", "W")
FORWARD, BACKWARD, WEIGHT = range(3)


class PipelinePass(NamedTuple):
    """One pass of one microbatch through one chunk of a stage."""

    kind: str
    chunk: int
    microbatch: int


def chunks_per_stage(order: str, vpp: int = 1) -> int:
    """Return the model chunks per stage."""
    return 2 if order in TWO_CHUNKS else vpp


def model_copies(order: str) -> int:
    """Return the copies of the model in a pipeline: one per end at which microbatches enter."""
    return 2 if order == "dualpipe" else 1


def route(order: str, stages: int, chunks: int, microbatch: int) -> list[tuple[int, int]]:
    """Return the (stage, chunk) pairs that a microbatch's forward pass visits, in order."""
    down = [(s, 0) for s in range(stages)]
    if order == "zb-v":
        return down + [(s, 1) for s in reversed(range(stages))]
    if order == "dualpipe":
        # Odd microbatches enter at the last stage, through the chunks that mirror the even ones'.
        return down if microbatch % 2 == 0 else [(s, 1) for s in reversed(range(stages))]
    return [(s, c) for c in range(chunks) for s in range(stages)]


def arrivals(
    order: str, stages: int, chunks: int, pods: tuple[int, ...] = ()
) -> tuple[tuple[float, float], ...]:
    """Return per stage the (activations, gradients) that it receives per microbatch from other
    stages; with `pods` (the pod of each stage), only those from other pods.
    """
    messages = [[0.0, 0.0] for _ in range(stages)]
    pods_by_stage = pods or range(stages)
    directions = model_copies(order)  # in dualpipe every second one comes from the other end
    for microbatch in range(directions):
        for (sender, _), (receiver, _) in pairwise(route(order, stages, chunks, microbatch)):
            if pods_by_stage[sender] != pods_by_stage[receiver]:
                messages[receiver][0] += 1 / directions
                messages[sender][1] += 1 / directions
    return tuple((activations, gradients) for activations, gradients in messages)


def passes(
    order: str, stage: int, stages: int, chunks: int, microbatches: int
) -> list[PipelinePass]:
    """Return the passes of a stage in execution order."""
    codes = stage_codes(order, stage, stages, chunks, microbatches)
    places, kinds = np.divmod(codes, len(KINDS))
    numbers, chunk = np.divmod(places, chunks)
    rows = zip(kinds.tolist(), chunk.tolist(), numbers.tolist(), strict=True)
    return [PipelinePass(KINDS[kind], c, m) for kind, c, m in rows]


@lru_cache(maxsize=256)
def pass_codes(order: str, stages: int, chunks: int, microbatches: int) -> Codes:
    """Return (stages, passes) in execution order, each pass as one number,
    (microbatch * chunks + chunk) * 3 + kind, with the kinds numbered as in `KINDS`.
    """
    rows = [stage_codes(order, s, stages, chunks, microbatches) for s in range(stages)]
    return np.stack(rows).astype(np.int32)


def stage_codes(order: str, stage: int, stages: int, chunks: int, microbatches: int) -> Codes:
    """Return one row of `pass_codes`."""
    if order in TWO_CHUNKS:
        if order == "zb-v":
            codes = _zb_v(stage, stages, max(microbatches, 2 * stages - 1))
        else:
            codes = _dualpipe(stage, stages, max(microbatches, 2 * stages))
        return codes[codes < 2 * len(KINDS) * microbatches]  # without further microbatches
    if order in WEIGHT_DELAY:
        return _zero_bubble_passes(order, stage, stages, microbatches)
    if order not in FUSED:
        raise AtollError(f"pipeline order {order}: there is no such order")
    return _fused(order, stage, stages, chunks, microbatches)


def groups(stages: int, microbatches: int) -> list[int]:
    """Return the sizes of the groups of microbatches that interleaving sends through a chunk: the
    most groups of at least `stages` microbatches, as equal as possible.
    """
    count = max(1, microbatches // stages)
    size, more = divmod(microbatches, count)
    return [size + 1] * more + [size] * (count - more)


def first_group(stages: int, microbatches: int) -> int:
    """Return the size of the first group, which is the largest."""
    return -(-microbatches // max(1, microbatches // stages))


def _fused(order: str, stage: int, stages: int, chunks: int, microbatches: int) -> Codes:
    total = microbatches * chunks
    if order == "gpipe":
        warmup = total
    elif chunks > 1:
        first = (chunks - 1) * first_group(stages, microbatches)
        warmup = min(total, 2 * (stages - stage - 1) + first)
    else:
        warmup = min(total, stages - stage - 1)
    chunk, microbatch = _forward_sequence(stages, chunks, microbatches)
    forward = 3 * (microbatch * chunks + chunk)
    backward = 3 * (microbatch * chunks + chunks - 1 - chunk) + BACKWARD
    steady = np.stack([forward[warmup:], backward[: total - warmup]], axis=1).reshape(-1)
    return np.concatenate([forward[:warmup], steady, backward[total - warmup :]])


def _forward_sequence(stages: int, chunks: int, microbatches: int) -> tuple[Codes, Codes]:
    """Return chunks and microbatches of a stage's forward passes: by group, then by chunk."""
    if chunks == 1:
        return np.zeros(microbatches, dtype=np.int64), np.arange(microbatches)
    sizes = groups(stages, microbatches)
    chunk = [np.repeat(np.arange(chunks), size) for size in sizes]
    groups_of = np.split(np.arange(microbatches), np.cumsum(sizes[:-1]))
    microbatch = [np.tile(numbers, chunks) for numbers in groups_of]
    return np.concatenate(chunk), np.concatenate(microbatch)


def _zero_bubble_passes(order: str, stage: int, stages: int, microbatches: int) -> Codes:
    """Delay weight passes by one (H1) or two (H2) microbatches per preceding stage."""
    warmup = min(WEIGHT_DELAY[order] * (stages - stage - 1) + 1, microbatches)
    lag = min(WEIGHT_DELAY[order] * stage, microbatches)
    m = np.arange(microbatches)
    weights = np.where(m >= lag, 3 * (m - lag) + WEIGHT, -1)
    forward = np.where(m + warmup < microbatches, 3 * (m + warmup), -1)
    steady = np.stack([3 * m + BACKWARD, weights, forward], axis=1).reshape(-1)
    late = 3 * m[microbatches - lag :] + WEIGHT
    return np.concatenate([3 * m[:warmup], steady[steady >= 0], late])


F0, B0, W0, F1, B1, W1 = range(6)
"""Passes of chunk 0 and chunk 1 in orders with two chunks per stage."""


def _numbered(kinds: Codes) -> Codes:
    """Return codes of passes of two chunks, numbered by microbatch within a kind and chunk."""
    codes = np.empty(len(kinds), dtype=np.int64)
    for kind in range(6):
        places = np.flatnonzero(kinds == kind)
        chunk, base = divmod(kind, 3)
        codes[places] = 3 * (2 * np.arange(len(places)) + chunk) + base
    return codes


def _zb_v(stage: int, stages: int, microbatches: int) -> Codes:
    """Return the order: warm-up through both arms of the V, then all kinds and chunks in turn."""
    after, steady = stages - stage, microbatches - stages
    cycle = np.tile([F0, B0, W0, F1, B1, W1], (steady, 1))
    started = 2 * after - 1 + stage + np.arange(steady)  # forward passes of chunk 0 so far
    cycle[started >= microbatches, 0] = -1
    warmup = [F0] * (2 * after - 1) + [F1, F0] * stage + [F1, B1, W1] * after
    cooldown = [B0, B1] * stage + [B0, W0] * after
    kinds = np.concatenate([warmup, cycle.reshape(-1), cooldown])
    kinds = kinds[kinds >= 0]
    left = [microbatches - int((kinds == kind).sum()) for kind in (W1, W0)]
    return _numbered(np.concatenate([kinds, [W1] * left[0], [W0] * left[1]]))


def _dualpipe(stage: int, stages: int, microbatches: int) -> Codes:
    """Alternate both directions. A stage of the second half sees the directions exchanged."""
    near = min(stage, stages - 1 - stage)
    half, per_direction = stages // 2, microbatches // 2
    to_middle = half - near - 1
    # Passes of the direction that enters at the nearer end, then of the opposite one.
    f, b, w, g, c, x = (F0, B0, W0, F1, B1, W1) if stage < half else (F1, B1, W1, F0, B0, W0)
    kinds = [f] * (2 * to_middle) + [f, g] * (near + 1) + [c, x, g] * to_middle
    kinds += [f, c, x, g, b, w] * (per_direction - stages + near + 1)
    kinds += [c, x, g, b, w] * to_middle
    delayed: list[int] = []
    for i in range(near + 1):
        # Later weight passes are delayed, earlier ones run at once.
        for later, (backward, weight) in enumerate(((c, x), (b, w))):
            late = 2 * i + later >= near + 1
            kinds += [backward] if late else [backward, weight]
            delayed += [weight] * late
    for _ in range(to_middle):
        kinds += [delayed.pop(0), b]
        delayed.append(w)
    codes = _numbered(np.array(kinds + delayed))
    # Microbatches are even in one direction and odd in the opposite one.
    places, kind = np.divmod(codes, 3)
    number, chunk = np.divmod(places, 2)
    return np.asarray(3 * (2 * (2 * number + chunk) + chunk) + kind)
