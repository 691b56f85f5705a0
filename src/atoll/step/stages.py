"""Which layers each pipeline stage holds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol, TypeVar

from atoll.step.orders import chunks_of, route


class Repeated(Protocol):
    """A kind of layer in a chain: whether it is a block, and how often it stands there."""

    @property
    def is_block(self) -> bool: ...

    @property
    def repeat(self) -> int: ...


L = TypeVar("L", bound=Repeated)


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
    ways = [route(order, pp, chunks_of(order, vpp), microbatch) for microbatch in range(2)]
    chunks = range(len(ways[0]))
    even = even_sizes(blocks, len(chunks))
    if blocks < len(chunks):
        return even
    places = [[way[chunk][0] for way in ways] for chunk in chunks]

    def loads(sizes: Sequence[int]) -> list[float]:
        found = [0.0] * pp
        for stages, size in zip(places, sizes, strict=True):
            for stage in stages:
                found[stage] += size
        for stage in places[-1]:
            found[stage] += behind
        return found

    # One block after another to the stage that is done first; of such, to the last one, which
    # holds the fewest microbatches.
    sizes = [1] * len(chunks)
    busy = loads(sizes)
    for _ in range(blocks - len(chunks)):
        chunk = min(chunks, key=lambda i: (max(busy[s] for s in places[i]), sizes[i], -i))
        sizes[chunk] += 1
        for stage in places[chunk]:
            busy[stage] += 1
    return tuple(sizes) if max(busy) < max(loads(even)) else even


def stage_shares(
    layers: Sequence[L], order: str, pp: int, vpp: int, given: Sequence[int] = ()
) -> tuple[tuple[tuple[tuple[L, int], ...], ...], ...]:
    """For each stage, the layers of each of its chunks with how often they occur; chunks have the
    given numbers of blocks, or as even ones as can be.
    """
    structure = tuple((layer.is_block, layer.repeat) for layer in layers)
    return tuple(
        tuple(tuple((layers[kind], n) for kind, n in chunk) for chunk in stage)
        for stage in stage_counts(structure, order, pp, vpp, given)
    )


def stage_counts(
    structure: Sequence[tuple[bool, int]],
    order: str,
    pp: int,
    vpp: int,
    given: Sequence[int] = (),
) -> tuple[tuple[tuple[tuple[int, int], ...], ...], ...]:
    """For each stage and chunk, (kind of layer, how many), for a chain of layers of which each is
    given as (whether it is a block, repeats): what precedes the blocks goes to the first chunk,
    what follows them to the last. Chunks lie on the stages as microbatches pass them (`route`).
    """
    held = chunks_of(order, vpp)
    ways = [route(order, pp, held, microbatch) for microbatch in range(2)]
    blocks = [(kind, repeat) for kind, (is_block, repeat) in enumerate(structure) if is_block]
    first = blocks[0][0]
    ends = [kind for kind, (is_block, _) in enumerate(structure) if not is_block]
    sizes = given or even_sizes(sum(repeat for _, repeat in blocks), len(ways[0]))
    chunks: list[tuple[tuple[int, int], ...]] = []
    start = 0
    for index, size in enumerate(sizes):
        share = _between(blocks, start, start + size)
        if index == 0:
            share = [*((kind, 1) for kind in ends if kind < first), *share]
        if index == len(sizes) - 1:
            share = [*share, *((kind, 1) for kind in ends if kind > first)]
        chunks.append(tuple(share))
        start += size
    where = {place: chunk for way in ways for place, chunk in zip(way, chunks, strict=True)}
    return tuple(tuple(where[stage, i] for i in range(held)) for stage in range(pp))


def _between(blocks: Sequence[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    """Of the chain of blocks, those from `start` to `end`."""
    found = []
    at = 0
    for kind, repeat in blocks:
        count = min(end, at + repeat) - max(start, at)
        if count > 0:
            found.append((kind, count))
        at += repeat
    return found
