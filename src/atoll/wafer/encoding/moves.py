"""Moves in the encoding: `mutate` stays inside the space, `count` says how large it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import comb
from typing import TypeVar

import numpy as np

from atoll.fabric.digits import digit_systems
from atoll.fabric.mesh import ALGORITHMS
from atoll.wafer.costs.tables import SEARCHED_HOMES
from atoll.wafer.encoding.block_parts import Block
from atoll.wafer.encoding.codes import legal_codes
from atoll.wafer.encoding.genes import AGAIN, FATES, OFFLOAD, SCHEDULES, BlockMapping
from atoll.wafer.encoding.mapping import StageMapping, WaferMapping, saved_tensors

T = TypeVar("T")

WAYS = tuple((streams, algorithm) for streams in (True, False) for algorithm in ALGORITHMS)


def with_helper(
    stage: StageMapping, helper: int | None, number: int, stages: int
) -> StageMapping:
    """The stage with this helper, or without one if that is no other stage."""
    if helper is not None and helper != number and 0 <= helper < stages:
        return replace(stage, helper=helper)
    keep = tuple(AGAIN if fate == OFFLOAD else fate for fate in stage.block.keep)
    return replace(stage, helper=None, block=replace(stage.block, keep=keep))


def mutate(
    mapping: WaferMapping, random: np.random.Generator, homes: Sequence[str] = SEARCHED_HOMES
) -> WaferMapping:
    """One random legal change of one gene; `homes` are those that a weight may move to."""
    index = int(random.integers(len(mapping.stages)))
    stage = mapping.stages[index]
    move = int(random.integers(11))
    if move == 0 and len(mapping.stages) > 1:
        return _shift_layer(mapping, index, random)
    if move == 1:
        return replace(mapping, streaming=not mapping.streaming)
    if move == 10 and len(mapping.stages) > 1:
        others = [name for name in SCHEDULES if name != mapping.schedule]
        return replace(mapping, schedule=others[int(random.integers(len(others)))])
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
    i = int(random.integers(len(genes.codes)))
    unit = block.units[i]
    choices = legal_codes(unit.sizes, stage.digits)
    code = choices[int(random.integers(len(choices)))]
    if move == 3:
        at = int(random.integers(len(genes.keep)))
        others = [f for f in range(len(FATES)) if f != genes.keep[at]]
        if stage.helper is None:
            others = [f for f in others if f != OFFLOAD]
        return replace(genes, keep=_put(genes.keep, at, others[int(random.integers(len(others)))]))
    if move == 4:
        home = homes[int(random.integers(len(homes)))]
        return replace(genes, homes=_put(genes.homes, i, home))
    if move == 5:
        layouts = legal_codes(block.stream_sizes, stage.digits)
        return replace(genes, stream=layouts[int(random.integers(len(layouts)))])
    if move == 6:
        pairs = tuple((d, w) for _, d, w in genes.passes)
        data, weight = pairs[i]
        changed = (code, code) if not unit.parameters else (
            (code, weight) if random.integers(2) else (data, code)
        )  # fmt: skip
        return replace(genes, gradients=_put(pairs, i, changed))
    if move == 7:
        same = ((mapping.streaming, mapping.algorithm),) * len(genes.codes)
        way = WAYS[int(random.integers(len(WAYS)))]
        return replace(genes, collectives=_put(genes.collectives or same, i, way))
    return replace(genes, codes=_put(genes.codes, i, code))


def _put(values: tuple[T, ...], at: int, value: T) -> tuple[T, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _shift_layer(mapping: WaferMapping, index: int, random: np.random.Generator) -> WaferMapping:
    other = (index + (1 if random.integers(2) else -1)) % len(mapping.stages)
    stages = list(mapping.stages)
    if stages[index].layers < 2:
        return mapping
    stages[index] = replace(stages[index], layers=stages[index].layers - 1)
    stages[other] = replace(stages[other], layers=stages[other].layers + 1)
    return replace(mapping, stages=tuple(stages))


def count(block: Block, width: int, height: int, stages: int) -> int:
    """Mappings of a model on so many stages of one shape, each with its own block genes."""
    saved = saved_tensors(block)
    fates = 2**saved + (stages - 1) * 3**saved  # without a helper, and with any other stage
    per_stage = 0
    for digits in digit_systems(width, height):
        product = len(legal_codes(block.stream_sizes, digits)) * fates
        for unit in block.units:
            codes = len(legal_codes(unit.sizes, digits))
            product *= codes**3 * len(SEARCHED_HOMES) if unit.parameters else codes**2
            product *= len(WAYS)
        per_stage += product
    ways = comb(block.layers - 1, stages - 1) * len(SCHEDULES)
    return int(per_stage**stages) * ways
