"""Which layers each pipeline stage holds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from heapq import heapify, heapreplace
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from atoll.step.orders import chunks_of, copies_of, route


class Repeated(Protocol):
    """A kind of layer in a chain: whether it is a block, and how often it stands there."""

    @property
    def is_block(self) -> bool: ...

    @property
    def repeat(self) -> int: ...


L = TypeVar("L", bound=Repeated)

FULL = 3 / 4
"""Of a block's time, recomputed in full, what it takes otherwise: a backward pass is two forward
passes."""


def even_sizes(blocks: int, chunks: int) -> tuple[int, ...]:
    """Blocks of each model chunk: equal, or where that cannot be, one fewer at the two ends first,
    which also hold the embedding and the head.
    """
    base, more = divmod(blocks, chunks)
    sizes = [base] * chunks
    order = [*range(1, chunks - 1), chunks - 1, 0] if chunks > 1 else [0]
    for index in order[:more]:
        sizes[index] += 1
    return tuple(sizes)


@lru_cache(maxsize=4096)
def balanced_sizes(blocks: int, order: str, pp: int, vpp: int, behind: float) -> tuple[int, ...]:
    """Sizes whose slowest stage takes least, where what stands behind the blocks takes as long as
    so many of them and no chunk is without a block; the even ones where none are better.
    """
    held, last = _held(order, pp, vpp)
    chunks = sum(map(len, held.values()))
    even = even_sizes(blocks, chunks)
    if blocks < chunks:
        return even
    slowest = max(
        sum(even[i] for i in of) + (behind if at == last else 0.0) for at, of in held.items()
    )
    if slowest <= _least_load(blocks, len(held), behind):
        return even
    # One block after another to the stage that is done first; of such, to the one whose chunk is
    # the smallest, and to the last one, which holds the fewest microbatches.
    counts = {at: len(of) for at, of in held.items()}
    turns = [
        (n + (behind if at == last else 0.0), 1, -held[at][-1], at) for at, n in counts.items()
    ]
    heapify(turns)
    for _ in range(blocks - chunks):
        busy, _, _, at = turns[0]
        counts[at] = n = counts[at] + 1
        size, ahead = divmod(n, len(held[at]))
        heapreplace(turns, (busy + 1, size, -held[at][-1 - ahead], at))
    if max(turns)[0] >= slowest:
        return even
    sizes = [0] * chunks
    for at, of in held.items():
        for i, size in zip(of, _spread(counts[at], len(of), behind * (at == last)), strict=True):
            sizes[i] = size
    return tuple(sizes)


def _spread(blocks: int, chunks: int, behind: float) -> list[int]:
    """A stage's blocks in its chunks, each to the one that is done first (of such, the last): what
    stands behind the blocks counts in the last chunk. Stages take turns chunk by chunk, and all
    wait for the slowest of each turn.
    """
    sizes = [1] * chunks
    turns = [(1.0, -i) for i in range(chunks - 1)] + [(1.0 + behind, 1 - chunks)]
    heapify(turns)
    for _ in range(blocks - chunks):
        busy, i = turns[0]
        sizes[-i] += 1
        heapreplace(turns, (busy + 1, i))
    return sizes


@lru_cache(maxsize=2)  # of the two that `splits` tries
def _held(
    order: str, pp: int, vpp: int
) -> tuple[dict[tuple[int, ...], list[int]], tuple[int, ...]]:
    """By stages the chunks that they have, and the stages that have the last. Stages with the same
    chunks (both ends of dualpipe) are busy alike, and have one turn.
    """
    count = chunks_of(order, vpp)
    ways = [route(order, pp, count, microbatch) for microbatch in range(copies_of(order))]
    held: dict[tuple[int, ...], list[int]] = {}
    for chunk, at in enumerate(zip(*ways, strict=True)):
        place = tuple(sorted({stage for stage, _ in at})) if len(at) > 1 else (at[0][0],)
        held.setdefault(place, []).append(chunk)
    return held, place


def _least_load(blocks: int, stages: int, behind: float) -> float:
    """No split has a slowest stage below this, where one also has what stands behind."""
    if stages == 1:
        return blocks + behind
    near = int((blocks - behind * (stages - 1)) / stages)
    return min(
        max(k + behind, -((k - blocks) // (stages - 1)))
        for k in range(max(0, near - 1), max(0, near) + 3)
    )


@lru_cache(maxsize=4096)
def splits(
    blocks: int, order: str, pp: int, vpp: int, behind: float
) -> tuple[tuple[int, ...], ...]:
    """Blocks of the chunks in the ways that are tried: as even as can be (none said), and balanced
    where blocks run once or are recomputed in full, which takes a third more.
    """
    if pp == 1:
        return ((),)
    found = {balanced_sizes(blocks, order, pp, vpp, x) for x in (behind, FULL * behind)}
    return ((), *sorted(found - {even_sizes(blocks, len(next(iter(found))))}))


def stage_shares(
    layers: Sequence[L], order: str, pp: int, vpp: int, given: Sequence[int] = ()
) -> tuple[tuple[tuple[tuple[L, int], ...], ...], ...]:
    """For each stage, the layers of each of its chunks with how often they occur; chunks have the
    given numbers of blocks, or as even ones as can be.
    """
    structure = tuple((layer.is_block, layer.repeat) for layer in layers)
    return tuple(
        tuple(tuple((layers[kind], n) for kind, n in enumerate(chunk) if n) for chunk in stage)
        for stage in stage_counts(structure, order, pp, vpp, given).tolist()
    )


def stage_counts(
    structure: Sequence[tuple[bool, int]],
    order: str,
    pp: int,
    vpp: int,
    given: Sequence[int] = (),
) -> NDArray[np.int64]:
    """(stages, chunks, kinds): how many layers there are of each kind, for a chain of layers of
    which each is given as (whether it is a block, repeats): what precedes the blocks goes to the
    first chunk, what follows them to the last. Chunks lie on the stages as microbatches pass them
    (`route`).
    """
    held = chunks_of(order, vpp)
    ways = [route(order, pp, held, microbatch) for microbatch in range(copies_of(order))]
    blocks = [(kind, repeat) for kind, (is_block, repeat) in enumerate(structure) if is_block]
    sizes = np.array(given or even_sizes(sum(repeat for _, repeat in blocks), len(ways[0])))
    ends = np.cumsum(sizes)
    chunks = np.zeros((len(sizes), len(structure)), dtype=np.int64)
    at = 0
    for kind, repeat in blocks:
        shared = np.minimum(ends, at + repeat) - np.maximum(ends - sizes, at)
        chunks[:, kind] = np.maximum(0, shared)
        at += repeat
    first = blocks[0][0]
    for kind, (is_block, _) in enumerate(structure):
        if not is_block:
            chunks[0 if kind < first else -1, kind] += 1
    found = np.zeros((pp, held, len(structure)), dtype=np.int64)
    for way in ways:
        stages, places = np.array(way).T
        found[stages, places] = chunks
    return found
