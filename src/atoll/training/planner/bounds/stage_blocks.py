"""How many blocks the stages of pipelines hold and pass, for bounds on many layouts at once."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.step.orders import TWO_CHUNKS, chunks_per_stage, model_copies, route
from atoll.step.stages import even_sizes
from atoll.training.planner.space import LayoutColumns

Floats = NDArray[np.float64]


class StageBlocks(NamedTuple):
    """(runs,): blocks that stages hold, where chunks that hold different numbers of microbatches
    count as the smallest of them; and blocks that a microbatch passes, the mean of both directions
    where the model is held twice.
    """

    first: Floats
    last: Floats
    second: Floats
    fewest: Floats
    """Held by the first, the last and the second stage, and the fewest of any."""
    most_run: Floats
    first_run: Floats
    last_run: Floats
    fewest_run: Floats
    """Passed in the stage with most, in the first, in the last, and in the one with fewest."""
    joined: Floats
    """Where the first stage has the last chunk too, its part of what stands before and behind."""
    before_last: Floats
    """Passed in the first chunks of all stages but the last."""
    fewest_apart: Floats
    """Passed in every stage, if all its chunks were as small as the smallest of the model."""
    final: Floats
    """In the model's last chunk."""


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
    """Those of one pipeline."""
    chunks, copies = chunks_per_stage(order, vpp), model_copies(order)
    ways = [route(order, pp, chunks, microbatch) for microbatch in range(copies)]
    sizes = chunk_sizes or even_sizes(layers, len(ways[0]))
    stage_sizes: list[list[int]] = [[] for _ in range(pp)]
    for direction in ways:
        for (stage, _), size in zip(direction, sizes, strict=True):
            stage_sizes[stage].append(size)
    passed = [sum(of) / copies for of in stage_sizes]
    turned = pp > 1 and order in TWO_CHUNKS
    counted = [min(of) * chunks / copies for of in stage_sizes] if turned else passed
    numbers = (
        *(counted[stage] for stage in (0, pp - 1, min(1, pp - 1))),
        min(counted),
        max(passed),
        passed[0],
        passed[-1],
        min(passed),
        1 / copies if ways[-1][-1][0] == 0 else 0.0,
        sum(sizes[: pp - 1]),
        min(sizes) * chunks / copies,
        sizes[-1],
    )
    return StageBlocks(*map(float, numbers))  # type: ignore[arg-type]


def keys(*columns: NDArray[Any]) -> tuple[list[tuple[int, ...]], NDArray[np.intp]]:
    """Entries of some columns without repeats, and which of them each one is."""
    parts = [numbered(column) for column in columns]
    shape = [max(1, len(values)) for values, _ in parts]
    numbers, which = numbered(np.ravel_multi_index([number for _, number in parts], shape))
    at = zip(parts, np.unravel_index(numbers, shape), strict=True)
    return list(zip(*(values[first].tolist() for (values, _), first in at), strict=True)), which


def numbered(values: NDArray[Any]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Small numbers without repeats, and which of them each entry is; marked, as sorting takes
    longer.
    """
    marks = np.zeros(int(values.max(initial=0)) + 1, dtype=np.bool_)
    marks[values] = True
    return np.flatnonzero(marks), (np.cumsum(marks) - 1)[values]
