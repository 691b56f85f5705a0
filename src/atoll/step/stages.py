"""Assignment of layers to pipeline stages."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from heapq import heapify, heapreplace
from itertools import accumulate
from typing import NamedTuple, Protocol, TypeVar

import numpy as np

from atoll.base.arrays import Ints
from atoll.step.orders import chunks_per_stage, model_copies, route


class Repeated(Protocol):
    """A kind of layer in a chain: whether it is a block, and how often it occurs."""

    @property
    def is_block(self) -> bool: ...

    @property
    def repeat(self) -> int: ...


L = TypeVar("L", bound=Repeated)

FULL = 3 / 4
"""Time of a block without recomputation over that with full recomputation: a forward pass takes
half as long as a backward pass."""


def even_sizes(blocks: int, chunks: int) -> tuple[int, ...]:
    """Return even blocks per chunk, fewer at the ends, which have the embedding and the head."""
    base, more = divmod(blocks, chunks)
    sizes = [base] * chunks
    order = [*range(1, chunks - 1), chunks - 1, 0] if chunks > 1 else [0]
    for index in order[:more]:
        sizes[index] += 1
    return tuple(sizes)


@lru_cache(maxsize=4096)
def balanced_sizes(
    blocks: int, order: str, pp: int, vpp: int, head_blocks: float
) -> tuple[int, ...]:
    """Return the blocks per chunk (at least one) that minimise the slowest stage, where the layers
    behind the blocks take as long as `head_blocks` blocks; even sizes if none are better.
    """
    stage_chunks, last = _chunks_by_stages(order, pp, vpp)
    chunks = sum(map(len, stage_chunks.values()))
    even = even_sizes(blocks, chunks)
    if blocks < chunks:
        return even
    slowest = max(
        sum(even[chunk] for chunk in chunk_indices) + (head_blocks if stages == last else 0.0)
        for stages, chunk_indices in stage_chunks.items()
    )
    if slowest <= _least_load(blocks, len(stage_chunks), head_blocks):
        return even
    # Add one block at a time to the stage with the least work; ties go to the smallest chunk, then
    # to the last stage, which holds the fewest microbatches.
    counts = {stages: len(chunk_indices) for stages, chunk_indices in stage_chunks.items()}
    queue = [
        (count + (head_blocks if stages == last else 0.0), 1, -stage_chunks[stages][-1], stages)
        for stages, count in counts.items()
    ]
    heapify(queue)
    for _ in range(blocks - chunks):
        busy, _, _, stages = queue[0]
        counts[stages] = count = counts[stages] + 1
        size, chunks_ahead = divmod(count, len(stage_chunks[stages]))
        heapreplace(queue, (busy + 1, size, -stage_chunks[stages][-1 - chunks_ahead], stages))
    if max(queue)[0] >= slowest:
        return even
    sizes = [0] * chunks
    for stages, chunk_indices in stage_chunks.items():
        end_work = 0.0, head_blocks * (stages == last)
        spread = filled_sizes(counts[stages], len(chunk_indices), end_work)
        for chunk, size in zip(chunk_indices, spread, strict=True):
            sizes[chunk] = size
    return tuple(sizes)


@lru_cache(maxsize=2)  # for the two calls in `splits`
def _chunks_by_stages(
    order: str, pp: int, vpp: int
) -> tuple[dict[tuple[int, ...], list[int]], tuple[int, ...]]:
    """Return the chunks by stages, and the stages that hold the last chunk. Stages with the same
    chunks (both ends of dualpipe) have the same load and form one key.
    """
    count = chunks_per_stage(order, vpp)
    routes = [route(order, pp, count, microbatch) for microbatch in range(model_copies(order))]
    stage_chunks: dict[tuple[int, ...], list[int]] = {}
    for chunk, visits in enumerate(zip(*routes, strict=True)):
        place = tuple(sorted({stage for stage, _ in visits}))
        stage_chunks.setdefault(place, []).append(chunk)
    return stage_chunks, place


def _least_load(blocks: int, stages: int, head_blocks: float) -> float:
    """Return a lower bound on the slowest stage of any split, in blocks, with the head."""
    if stages == 1:
        return blocks + head_blocks
    near = int((blocks - head_blocks * (stages - 1)) / stages)
    return min(
        max(k + head_blocks, -((k - blocks) // (stages - 1)))
        for k in range(max(0, near - 1), max(0, near) + 3)
    )


class ChainWork(NamedTuple):
    """Work of a model's chain of layers, as far as it decides how blocks are split into stages."""

    blocks: int
    head_blocks: float | None
    """Work of the layers behind the blocks, relative to the mean block; None: only even splits."""
    block_work: tuple[float, ...] = ()
    """Work of each block, relative to the mean; empty where all blocks are alike."""
    end_parameters: tuple[float, float] = (0.0, 0.0)
    """Parameters of the layers before and behind the blocks, relative to the mean block."""
    block_parameters: tuple[float, ...] = ()
    """Parameters of each block, relative to the mean, where `block_work` is given."""


@lru_cache(maxsize=4096)
def splits(chain: ChainWork, order: str, pp: int, vpp: int) -> tuple[tuple[int, ...], ...]:
    """Return the candidate blocks per chunk: even (an empty tuple), and balanced for blocks without
    and with full recomputation, which takes a third longer. Where each stage is one chunk, also the
    sizes with the least work in the slowest stage if blocks differ, and those with the fewest
    parameters in the largest stage, or the least mean of both, for slow networks.
    """
    blocks, head_blocks, block_work, (before, behind), parameters = chain
    if pp == 1 or head_blocks is None:
        return ((),)
    loads = head_blocks, FULL * head_blocks
    balanced = {balanced_sizes(blocks, order, pp, vpp, load) for load in loads}
    if pp <= blocks and chunks_per_stage(order, vpp) == model_copies(order) == 1:
        both = before / 2, (behind + head_blocks) / 2
        if block_work:
            balanced |= {lightest_sizes(block_work, pp, (0.0, load)) for load in loads}
            means = tuple((a + b) / 2 for a, b in zip(block_work, parameters, strict=True))
            balanced |= {lightest_sizes(parameters, pp, (before, behind))}
            balanced |= {lightest_sizes(means, pp, both)}
        else:
            balanced |= {filled_sizes(blocks, pp, ends) for ends in ((before, behind), both)}
    chunks = len(next(iter(balanced)))
    return ((), *sorted(balanced - {even_sizes(blocks, chunks)}))


def filled_sizes(blocks: int, stages: int, end_work: tuple[float, float]) -> tuple[int, ...]:
    """Return the sizes of `lightest_sizes` for equal blocks: each block goes to the stage (or
    chunk) with the least work, the last of several.
    """
    sizes, work = [1] * stages, [1.0] * stages
    work[0] += end_work[0]
    work[-1] += end_work[1]
    queue = [(busy, -stage) for stage, busy in enumerate(work)]
    heapify(queue)
    for _ in range(blocks - stages):
        busy, stage = queue[0]
        sizes[-stage] += 1
        heapreplace(queue, (busy + 1.0, stage))
    return tuple(sizes)


@lru_cache(maxsize=4096)
def lightest_sizes(
    block_work: Sequence[float], stages: int, end_work: tuple[float, float]
) -> tuple[int, ...]:
    """Return the blocks per stage, at least one, that minimise the work of the slowest stage; of
    those the ones with the least sum of squares. The first and the last stage have `end_work` too.
    """
    ends = [0.0, *accumulate(block_work)]
    count = len(block_work)
    before, behind = end_work
    # best[i]: (slowest, squares, sizes) of the first i blocks on the stages so far.
    best: list[tuple[float, float, tuple[int, ...]]]
    best = [(before + work, (before + work) ** 2, (i,)) for i, work in enumerate(ends)]
    for stage in range(1, stages):
        head = behind if stage == stages - 1 else 0.0
        longer: list[tuple[float, float, tuple[int, ...]]]
        longer = [(math.inf, math.inf, (0,))] * (count + 1)
        for i in range(stage + 1, count + 1):
            longer[i] = min(
                (
                    max(best[j][0], ends[i] - ends[j] + head),
                    best[j][1] + (ends[i] - ends[j] + head) ** 2,
                    (*best[j][2], i - j),
                )
                for j in range(stage, i)
            )
        best = longer
    return best[count][2]


def stage_shares(
    layers: Sequence[L], order: str, pp: int, vpp: int, chunk_blocks: Sequence[int] = ()
) -> tuple[tuple[tuple[tuple[L, int], ...], ...], ...]:
    """Return per stage and chunk the layers and how often they occur; chunks have `chunk_blocks`
    blocks, or as even numbers as possible.
    """
    structure = tuple((layer.is_block, layer.repeat) for layer in layers)
    return tuple(
        tuple(tuple((layers[kind], n) for kind, n in enumerate(chunk) if n) for chunk in stage)
        for stage in stage_counts(structure, order, pp, vpp, chunk_blocks).tolist()
    )


def stage_counts(
    structure: Sequence[tuple[bool, int]],
    order: str,
    pp: int,
    vpp: int,
    chunk_blocks: Sequence[int] = (),
) -> Ints:
    """Return (stages, chunks, kinds): the layers of each kind, for a chain of (is block, repeats).
    Layers before the blocks go to the first chunk, those behind to the last; chunks lie on the
    stages in the order of `route`.
    """
    per_stage = chunks_per_stage(order, vpp)
    routes = [route(order, pp, per_stage, microbatch) for microbatch in range(model_copies(order))]
    blocks = [(kind, repeat) for kind, (is_block, repeat) in enumerate(structure) if is_block]
    total = sum(repeat for _, repeat in blocks)
    sizes = np.array(chunk_blocks or even_sizes(total, len(routes[0])))
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
    counts = np.zeros((pp, per_stage, len(structure)), dtype=np.int64)
    for stage_route in routes:
        stages, places = np.array(stage_route).T
        counts[stages, places] = chunks
    return counts
