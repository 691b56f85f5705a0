"""Block counts of pipeline stages, as arrays for bounds on many layouts at once."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import Floats, Ints
from atoll.step.orders import TWO_CHUNKS, chunks_per_stage, model_copies, route
from atoll.step.stages import even_sizes, stage_counts
from atoll.training.batch.sums import numbered
from atoll.training.planner.space import LayoutColumns


class StageBlocks(NamedTuple):
    """Block counts, each of shape (runs,). Stored counts use the smallest chunk of a stage if its
    chunks hold different numbers of microbatches. Counts per microbatch are the mean of both
    directions if the schedule stores the model twice.
    """

    first: Floats
    last: Floats
    second: Floats
    fewest: Floats
    """Blocks stored in the first, last and second stage, and the fewest in any stage."""
    most_run: Floats
    first_run: Floats
    last_run: Floats
    fewest_run: Floats
    """Blocks per microbatch: most in any stage, first stage, last stage, fewest in any stage."""
    joined: Floats
    """1 / copies of the model if the first stage also has the last chunk, else 0."""
    before_last: Floats
    """Blocks in the first chunks of all stages except the last."""
    fewest_apart: Floats
    """Blocks per microbatch in a stage if every chunk were as small as the smallest chunk."""
    final: Floats
    """Blocks in the model's last chunk."""


def stage_blocks(block: LayoutColumns) -> StageBlocks:
    def blocks(schedule: int, pp: int, vpp: int, split: int) -> StageBlocks:
        order = block.order(schedule, pp, vpp)
        sizes = block.blocks(order, pp, vpp, split)
        return _blocks_of_stages(block.chain.blocks, order, pp, vpp, sizes)

    shapes, which = keys(block.schedule, block.pp, block.vpp, block.split)
    rows = np.array([blocks(*key) for key in shapes], dtype=np.float64)
    return StageBlocks(*rows.reshape(-1, len(StageBlocks._fields))[which].T)


@lru_cache(maxsize=8192)
def _blocks_of_stages(
    layers: int, order: str, pp: int, vpp: int, chunk_sizes: tuple[int, ...]
) -> StageBlocks:
    """Return the block counts of one pipeline."""
    chunks, copies = chunks_per_stage(order, vpp), model_copies(order)
    last_route = route(order, pp, chunks, copies - 1)
    sizes = chunk_sizes or even_sizes(layers, len(last_route))
    by_chunk = stage_counts([(True, layers)], order, pp, vpp, sizes)[..., 0]
    passed = by_chunk.sum(axis=1) / copies
    turned = pp > 1 and order in TWO_CHUNKS
    counted = by_chunk.min(axis=1) * chunks / copies if turned else passed
    stored = counted[0], counted[-1], counted[min(1, pp - 1)], min(counted)
    of_microbatch = max(passed), passed[0], passed[-1], min(passed)
    joined = 1 / copies if last_route[-1][0] == 0 else 0.0
    ends = joined, sum(sizes[: pp - 1]), min(sizes) * chunks / copies, sizes[-1]
    return StageBlocks(*map(float, (*stored, *of_microbatch, *ends)))  # type: ignore[arg-type]


def keys(*columns: NDArray[Any]) -> tuple[list[tuple[int, ...]], Ints]:
    """Return the distinct rows of some columns, and the index of each row among them."""
    parts = [numbered(column) for column in columns]
    shape = [max(1, len(values)) for values, _ in parts]
    numbers, which = numbered(np.ravel_multi_index([number for _, number in parts], shape))
    at = zip(parts, np.unravel_index(numbers, shape), strict=True)
    return list(zip(*(values[first].tolist() for (values, _), first in at), strict=True)), which
