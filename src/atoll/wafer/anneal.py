"""Annealing for what the exact part leaves: the order of stages on the wafer, and mixed genes.

Starts from a found mapping. Moves: swap the places of two stages, shift a layer over a boundary,
change one gene (code, home, fate, helper, stream, collective) of one stage. The evaluator prices
every move; what does not fit never becomes the answer. Deterministic for a seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp

import numpy as np

from atoll.fabric.mesh import Link
from atoll.hardware.wafer import Wafer
from atoll.wafer.costs.tables import SEARCHED_HOMES
from atoll.wafer.encoding.mapping import WaferMapping
from atoll.wafer.encoding.moves import mutate
from atoll.wafer.evaluate import Evaluation, evaluate

MOVES = 150
HOT = 0.01  # relative: a move this much worse is taken at first with probability 1/e
COLD = 1e-5


@dataclass(frozen=True)
class Annealed:
    best: Evaluation
    gain: float
    """Relative throughput won over the start."""


def anneal(
    wafer: Wafer, start: Evaluation, seed: int, moves: int = MOVES,
    dead_links: Sequence[Link] = (), homes: Sequence[str] = SEARCHED_HOMES,
) -> Annealed:  # fmt: skip
    random = np.random.default_rng(seed)
    here = best = start
    for step in range(moves):
        heat = HOT * (COLD / HOT) ** (step / max(1, moves - 1))
        candidate = _neighbour(here.mapping, random, homes)
        if candidate == here.mapping:
            continue
        found = evaluate(wafer, candidate, dead_links)
        if not found.fits:
            continue
        worse = found.step_s / here.step_s - 1.0
        if worse <= 0.0 or random.random() < exp(-worse / heat):
            here = found
            if here.step_s < best.step_s:
                best = here
    return Annealed(best, start.step_s / best.step_s - 1.0)


def _neighbour(
    mapping: WaferMapping, random: np.random.Generator, homes: Sequence[str]
) -> WaferMapping:
    if len(mapping.stages) > 1 and random.random() < 0.5:
        a, b = (int(i) for i in random.choice(len(mapping.stages), 2, replace=False))
        swapped = swap_stages(mapping, a, b)
        if swapped is not None:
            return swapped
    return mutate(mapping, random, homes)


def swap_stages(mapping: WaferMapping, a: int, b: int) -> WaferMapping | None:
    """Two stages change places; None if their rectangles differ in shape."""
    first, second = mapping.stages[a].rectangle, mapping.stages[b].rectangle
    if (first.width, first.height) != (second.width, second.height):
        return None
    stages = list(mapping.stages)
    stages[a] = replace(stages[a], rectangle=second)
    stages[b] = replace(stages[b], rectangle=first)
    return replace(mapping, stages=tuple(stages))
