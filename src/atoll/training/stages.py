"""Which layers each pipeline stage holds."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.training.layers import LayerCost

Share = tuple[tuple[LayerCost, int], ...]


def chunk_sizes(blocks: int, chunks: int) -> tuple[int, ...]:
    """Blocks of each model chunk: equal, or where that cannot be, one fewer at the two ends first,
    which also hold the embedding and the head.
    """
    base, more = divmod(blocks, chunks)
    sizes = [base] * chunks
    order = [*range(1, chunks - 1), chunks - 1, 0] if chunks > 1 else [0]
    for index in order[:more]:
        sizes[index] += 1
    return tuple(sizes)


def stage_shares(costs: Sequence[LayerCost], pp: int, vpp: int) -> tuple[tuple[Share, ...], ...]:
    """For each stage, the layers of each of its chunks with how often they occur."""
    blocks = [cost for cost in costs if cost.is_block]
    total = sum(cost.repeat for cost in blocks)
    sizes = chunk_sizes(total, pp * vpp)
    before = [cost for cost in costs if not cost.is_block and cost.name == costs[0].name]
    after = [cost for cost in costs if not cost.is_block and cost.name != costs[0].name]
    chunks: list[Share] = []
    start = 0
    for index, size in enumerate(sizes):
        share = [*_between(blocks, start, start + size)]
        if index == 0:
            share = [*((cost, 1) for cost in before), *share]
        if index == len(sizes) - 1:
            share = [*share, *((cost, 1) for cost in after)]
        chunks.append(tuple(share))
        start += size
    return tuple(tuple(chunks[stage::pp]) for stage in range(pp))


def _between(blocks: Sequence[LayerCost], start: int, end: int) -> list[tuple[LayerCost, int]]:
    """Of the chain of blocks, those from `start` to `end`."""
    found = []
    at = 0
    for cost in blocks:
        count = min(end, at + cost.repeat) - max(start, at)
        if count > 0:
            found.append((cost, count))
        at += cost.repeat
    return found
