"""Random legal changes of one variable of a mapping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from atoll.fabric.mesh import ALGORITHMS
from atoll.wafer.encoding.block_parts import (
    FATES,
    OFFLOAD,
    RECOMPUTE,
    SCHEDULES,
    SEARCHED_HOMES,
    BlockMapping,
)
from atoll.wafer.encoding.codes import legal_codes
from atoll.wafer.encoding.mapping import StageMapping, WaferMapping

T = TypeVar("T")

COLLECTIVES = tuple((streams, algorithm) for streams in (True, False) for algorithm in ALGORITHMS)


def with_helper(stage: StageMapping, helper: int | None, number: int, stages: int) -> StageMapping:
    """Return the stage with this helper, or without one if it is not a different stage."""
    if helper is not None and helper != number and 0 <= helper < stages:
        return replace(stage, helper=helper)
    keep = tuple(RECOMPUTE if fate == OFFLOAD else fate for fate in stage.block.keep)
    return replace(stage, helper=None, block=replace(stage.block, keep=keep))


def mutate(
    mapping: WaferMapping, random: np.random.Generator, homes: Sequence[str] = SEARCHED_HOMES
) -> WaferMapping:
    """Change one variable at random, legally; `homes` are those that a weight may move to."""
    index = int(random.integers(len(mapping.stages)))
    stage = mapping.stages[index]
    move = int(random.integers(11))
    if move == 0 and len(mapping.stages) > 1:
        return _shift_layer(mapping, index, random)
    if move == 1:
        return replace(mapping, streaming=not mapping.streaming)
    if move == 10 and len(mapping.stages) > 1:
        schedules = [name for name in SCHEDULES if name != mapping.schedule]
        return replace(mapping, schedule=schedules[int(random.integers(len(schedules)))])
    if move == 2 and len(mapping.stages) > 1:
        helper = int(random.integers(len(mapping.stages)))
        stage = with_helper(stage, helper, index, len(mapping.stages))
    else:
        stage = replace(stage, block=_mutate_block(mapping, stage, move, random, homes))
    stages = list(mapping.stages)
    stages[index] = stage
    return replace(mapping, stages=tuple(stages))


def _mutate_block(
    mapping: WaferMapping, stage: StageMapping, move: int, random: np.random.Generator,
    homes: Sequence[str],
) -> BlockMapping:  # fmt: skip
    block, genes = mapping.blocks(), stage.block
    operator = int(random.integers(len(genes.codes)))
    unit = block.units[operator]
    choices = legal_codes(unit.sizes, stage.digits)
    code = choices[int(random.integers(len(choices)))]
    if move == 3:
        position = int(random.integers(len(genes.keep)))
        excluded = (genes.keep[position], *(() if stage.helper is not None else (OFFLOAD,)))
        fates = [fate for fate in range(len(FATES)) if fate not in excluded]
        fate = fates[int(random.integers(len(fates)))]
        return replace(genes, keep=_put(genes.keep, position, fate))
    if move == 4:
        home = homes[int(random.integers(len(homes)))]
        return replace(genes, homes=_put(genes.homes, operator, home))
    if move == 5:
        layouts = legal_codes(block.stream_sizes, stage.digits)
        return replace(genes, stream=layouts[int(random.integers(len(layouts)))])
    if move == 6:
        pairs = tuple((data, weight) for _, data, weight in genes.passes)
        data, weight = pairs[operator]
        gradient_codes = (code, code) if not unit.parameters else (
            (code, weight) if random.integers(2) else (data, code)
        )  # fmt: skip
        return replace(genes, gradients=_put(pairs, operator, gradient_codes))
    if move == 7:
        defaults = ((mapping.streaming, mapping.algorithm),) * len(genes.codes)
        collective = COLLECTIVES[int(random.integers(len(COLLECTIVES)))]
        return replace(genes, collectives=_put(genes.collectives or defaults, operator, collective))
    return replace(genes, codes=_put(genes.codes, operator, code))


def _put(values: tuple[T, ...], position: int, value: T) -> tuple[T, ...]:
    return (*values[:position], value, *values[position + 1 :])


def _shift_layer(mapping: WaferMapping, index: int, random: np.random.Generator) -> WaferMapping:
    neighbour = (index + (1 if random.integers(2) else -1)) % len(mapping.stages)
    stages = list(mapping.stages)
    if stages[index].layers < 2:
        return mapping
    stages[index] = replace(stages[index], layers=stages[index].layers - 1)
    stages[neighbour] = replace(stages[neighbour], layers=stages[neighbour].layers + 1)
    return replace(mapping, stages=tuple(stages))
