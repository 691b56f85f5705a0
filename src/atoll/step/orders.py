"""Pipeline orders: which pass of which microbatch a stage runs next, and which way the data takes.

A stage holds one or more chunks of the model. A pass is forward (F), backward (B) or, in orders
that split the backward pass, the weight gradients alone (W), which nobody waits for.

    gpipe        all forward passes, then all backward passes                   arXiv:1811.06965
    1f1b         one forward, one backward pass in turn                   Narayanan et al., SC 2021
    interleaved  1f1b over several chunks a stage                         the same, section 2.2.2
    zb-h1        1f1b whose weight passes wait for a gap, in the memory of 1f1b  arXiv:2401.10241
    zb-h2        the same with up to twice the microbatches in flight            the same
    zb-v         two chunks a stage, laid out in a V                             the same, section 6
    dualpipe     microbatches enter at both ends; every stage holds two chunks   arXiv:2412.19437

zb-v and dualpipe are defined for enough microbatches; with fewer, the passes of those that are
missing are left out of the order for the least number that fills the pipeline.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

Codes = NDArray[np.integer[Any]]

OrderName = Literal["1f1b", "interleaved", "gpipe", "zb-h1", "zb-h2", "zb-v", "dualpipe"]
ORDERS: tuple[str, ...] = get_args(OrderName)
SPLIT = ("zb-h1", "zb-h2", "zb-v", "dualpipe")
"""Orders that run weight gradients apart."""
TWO_CHUNKS = ("zb-v", "dualpipe")
"""Orders in which a stage holds two chunks of the model."""
LATE = {"zb-h1": 1, "zb-h2": 2}
"""Weight passes that a stage delays, for every stage before it."""
KINDS = ("F", "B", "W")
FORWARD, BACKWARD, WEIGHT = range(3)


class Pass(NamedTuple):
    """One pass of one microbatch through one chunk of a stage."""

    kind: str
    chunk: int
    microbatch: int


def chunks_of(order: str, vpp: int = 1) -> int:
    """Chunks of the model that each stage holds."""
    return 2 if order in TWO_CHUNKS else vpp


def copies_of(order: str) -> int:
    """Times that a pipeline holds the model: once for each end at which microbatches enter."""
    return 2 if order == "dualpipe" else 1


def route(order: str, stages: int, chunks: int, microbatch: int) -> list[tuple[int, int]]:
    """The (stage, chunk) pairs that a microbatch's forward pass visits, in the model's order."""
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
    """For every stage, activations and gradients that a microbatch brings it from other stages;
    where the pods of the stages are given, of those in other pods.
    """
    found = [[0.0, 0.0] for _ in range(stages)]
    where = pods or range(stages)
    ways = copies_of(order)  # in dualpipe every second one comes from the other end
    for microbatch in range(ways):
        for (one, _), (two, _) in pairwise(route(order, stages, chunks, microbatch)):
            if where[one] != where[two]:
                found[two][0] += 1 / ways
                found[one][1] += 1 / ways
    return tuple((activations, gradients) for activations, gradients in found)


def passes(order: str, stage: int, stages: int, chunks: int, microbatches: int) -> list[Pass]:
    """The passes of a stage in the order in which it runs them."""
    codes = stage_codes(order, stage, stages, chunks, microbatches)
    places, kinds = np.divmod(codes, len(KINDS))
    numbers, chunk = np.divmod(places, chunks)
    rows = zip(kinds.tolist(), chunk.tolist(), numbers.tolist(), strict=True)
    return [Pass(KINDS[kind], c, m) for kind, c, m in rows]


@lru_cache(maxsize=256)
def pass_codes(order: str, stages: int, chunks: int, microbatches: int) -> Codes:
    """(stages, passes): what every stage runs, each pass as one number,
    (microbatch * chunks + chunk) * 3 + kind, with the kinds numbered as in `KINDS`.
    """
    rows = [stage_codes(order, s, stages, chunks, microbatches) for s in range(stages)]
    return np.stack(rows).astype(np.int32)


def stage_codes(order: str, stage: int, stages: int, chunks: int, microbatches: int) -> Codes:
    """One row of `pass_codes`."""
    if order == "zb-v":
        return _first_of(_zb_v(stage, stages, max(microbatches, 2 * stages - 1)), microbatches, 2)
    if order == "dualpipe":
        return _first_of(_dualpipe(stage, stages, max(microbatches, 2 * stages)), microbatches, 2)
    if order in LATE:
        return _delayed(order, stage, stages, microbatches)
    return _fused(order, stage, stages, chunks, microbatches)


def groups(stages: int, microbatches: int) -> list[int]:
    """Sizes of the groups of microbatches that interleaving sends through a chunk together: as many
    groups of at least `stages` microbatches as there can be, as equal as they can be.
    """
    count = max(1, microbatches // stages)
    size, more = divmod(microbatches, count)
    return [size + 1] * more + [size] * (count - more)


def first_group(stages: int, microbatches: int) -> int:
    """The size of the first of them, which is as large as any."""
    return -(-microbatches // max(1, microbatches // stages))


def _fused(order: str, stage: int, stages: int, chunks: int, microbatches: int) -> Codes:
    total = microbatches * chunks
    if order == "gpipe":
        ahead = total
    elif chunks > 1:
        first = (chunks - 1) * first_group(stages, microbatches)
        ahead = min(total, 2 * (stages - stage - 1) + first)
    else:
        ahead = min(total, stages - stage - 1)
    chunk, microbatch = _turns(stages, chunks, microbatches)
    forward = 3 * (microbatch * chunks + chunk)
    backward = 3 * (microbatch * chunks + chunks - 1 - chunk) + BACKWARD
    steady = np.stack([forward[ahead:], backward[: total - ahead]], axis=1).reshape(-1)
    return np.concatenate([forward[:ahead], steady, backward[total - ahead :]])


def _turns(stages: int, chunks: int, microbatches: int) -> tuple[Codes, Codes]:
    """Chunks and microbatches of a stage's forward passes: group by group, chunk by chunk."""
    if chunks == 1:
        return np.zeros(microbatches, dtype=np.int64), np.arange(microbatches)
    sizes = groups(stages, microbatches)
    chunk = [np.repeat(np.arange(chunks), size) for size in sizes]
    starts = np.cumsum([0, *sizes[:-1]])
    microbatch = [
        np.tile(np.arange(first, first + size), chunks)
        for first, size in zip(starts, sizes, strict=True)
    ]
    return np.concatenate(chunk), np.concatenate(microbatch)


def _delayed(order: str, stage: int, stages: int, microbatches: int) -> Codes:
    """Weight passes delayed by as many microbatches as there are stages before (H1), or by two for
    each (H2), which also runs that many more forward passes ahead.
    """
    ahead = min(LATE[order] * (stages - stage - 1) + 1, microbatches)
    lag = min(LATE[order] * stage, microbatches)
    m = np.arange(microbatches)
    steady = np.stack(
        [
            3 * m + BACKWARD,
            np.where(m >= lag, 3 * (m - lag) + WEIGHT, -1),
            np.where(m + ahead < microbatches, 3 * (m + ahead), -1),
        ],
        axis=1,
    ).reshape(-1)
    return np.concatenate(
        [3 * m[:ahead], steady[steady >= 0], 3 * m[microbatches - lag :] + WEIGHT]
    )


F0, B0, W0, F1, B1, W1 = range(6)
"""Passes of the orders with two chunks per stage, of chunk 0 and of chunk 1."""


def _numbered(kinds: Codes) -> Codes:
    """Codes of passes of two chunks; the passes of each kind and chunk run in the order of their
    microbatches.
    """
    codes = np.empty(len(kinds), dtype=np.int64)
    for kind in range(6):
        places = np.flatnonzero(kinds == kind)
        chunk, base = divmod(kind, 3)
        codes[places] = 3 * (2 * np.arange(len(places)) + chunk) + base
    return codes


def _zb_v(stage: int, stages: int, microbatches: int) -> Codes:
    """Warm-up through both arms of the V, then one pass of each kind and chunk in turn."""
    after, steady = stages - stage, microbatches - stages
    cycle = np.tile([F0, B0, W0, F1, B1, W1], (steady, 1))
    started = 2 * after - 1 + stage + np.arange(steady)  # forward passes of chunk 0 so far
    cycle[started >= microbatches, 0] = -1
    kinds = np.concatenate(
        [
            [F0] * (2 * after - 1),
            [F1, F0] * stage,
            [F1, B1, W1] * after,
            cycle.reshape(-1),
            [B0, B1] * stage,
            [B0, W0] * after,
        ]
    )
    kinds = kinds[kinds >= 0]
    left = [microbatches - int((kinds == kind).sum()) for kind in (W1, W0)]
    return _numbered(np.concatenate([kinds, [W1] * left[0], [W0] * left[1]]))


def _dualpipe(stage: int, stages: int, microbatches: int) -> Codes:
    """Both directions in turn. A stage of the far half sees the directions exchanged."""
    near = min(stage, stages - 1 - stage)
    half, each = stages // 2, microbatches // 2
    rest = half - near - 1
    # Those of the direction that begins near by, and of the other.
    f, b, w, g, c, x = (F0, B0, W0, F1, B1, W1) if stage < half else (F1, B1, W1, F0, B0, W0)
    kinds = [f] * (2 * rest) + [f, g] * (near + 1) + [c, x, g] * rest
    kinds += [f, c, x, g, b, w] * (each - stages + near + 1)
    kinds += [c, x, g, b, w] * rest
    delayed: list[int] = []
    for i in range(near + 1):
        # Weight passes of the last part wait; those before run at once.
        for later, (backward, weight) in enumerate(((c, x), (b, w))):
            late = 2 * i + later >= near + 1
            kinds += [backward] if late else [backward, weight]
            delayed += [weight] * late
    for _ in range(rest):
        kinds += [delayed.pop(0), b]
        delayed.append(w)
    codes = _numbered(np.array(kinds + delayed))
    # Directions number their microbatches apart: even ones one way, odd ones the other.
    places, kind = np.divmod(codes, 3)
    number, chunk = np.divmod(places, 2)
    return np.asarray(3 * (2 * (2 * number + chunk) + chunk) + kind)


def _first_of(codes: Codes, microbatches: int, chunks: int) -> Codes:
    """Without the passes of further microbatches."""
    return codes[codes < 3 * chunks * microbatches]
