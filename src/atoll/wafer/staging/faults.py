"""Wafers with dead dies and links: mapping around faults, and the remaining throughput.

A dead die disables its links; dies cut off from most others are unusable too. The working dies are
cut into rectangles (`tiling.py`), stages get layers in proportion to their speed, and transfers are
routed around faults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from atoll.answers.wafer import FaultsAnswer, FaultyWafer
from atoll.fabric.mesh import Die, Link, Rectangle, both_directions
from atoll.hardware.wafer import Wafer
from atoll.wafer.encoding.mapping import problems
from atoll.wafer.evaluate import MappingCost, evaluate
from atoll.wafer.staging.planner import INFINITY, Planner
from atoll.wafer.staging.tiling import guillotine

MOST_PIECES = 8


@dataclass(frozen=True)
class Faults:
    """Dead dies and dead links of a wafer."""

    dies: tuple[Die, ...] = ()
    links: tuple[Link, ...] = ()

    def all_links(self, wafer: Wafer) -> list[Link]:
        """Return dead links and every link of a dead die."""
        links = list(self.links)
        for x, y in self.dies:
            links += [((x, y), neighbour) for neighbour in wafer.mesh.neighbours((x, y))]
        return links

    def unusable(self, wafer: Wafer) -> tuple[Die, ...]:
        """Return dead dies and dies not connected to the largest group of working dies."""
        broken = both_directions(self.all_links(wafer))
        working = {*Rectangle(0, 0, wafer.columns, wafer.rows).dies()} - {*self.dies}
        unvisited, largest = sorted(working), list[Die]()
        while unvisited:
            component = [unvisited[0]]
            for current in component:
                neighbours = (die for die in wafer.mesh.neighbours(current) if die in working)
                joined = (die for die in neighbours if (current, die) not in broken)
                component += [die for die in joined if die not in component]
            unvisited = [die for die in unvisited if die not in component]
            largest = max(largest, component, key=len)
        return (*self.dies, *sorted(working - {*largest}))


def sample_faults(wafer: Wafer, dead_share: float, random: np.random.Generator) -> Faults:
    """Draw dead dies independently with equal probability."""
    dead = random.random((wafer.rows, wafer.columns)) < dead_share
    return Faults(tuple((int(x), int(y)) for y, x in np.argwhere(dead)))


def map_around(planner: Planner, faults: Faults, microbatches: Sequence[int]) -> MappingCost | None:
    """Find the best mapping that avoids faults; None if nothing fits.

    Microbatches are tried in order until two in a row gain nothing: large ones have many codes.
    """
    wafer = planner.wafer
    broken, dead = faults.all_links(wafer), faults.unusable(wafer)
    tilings = [
        rectangles
        for pieces in range(1, MOST_PIECES + 1)
        if len(rectangles := guillotine(wafer.rows, wafer.columns, pieces, dead, faults.links))
        == pieces
    ]
    best: MappingCost | None = None
    rounds_without_gain = 0
    for microbatch in microbatches:
        previous_best = best
        for rectangles in tilings:
            limit_s = INFINITY if best is None else best.step_s
            evaluation = planner.best(rectangles, microbatch, limit_s, broken)
            if evaluation is not None and evaluation.step_s < limit_s:
                best = evaluation
        rounds_without_gain = rounds_without_gain + 1 if best is previous_best else 0
        if best is not None and rounds_without_gain == 2:
            break
    if best is not None and problems(best.mapping, wafer.rows, wafer.columns, dead):
        raise AssertionError("a mapping around faults uses what is dead")
    return best


def unharmed(wafer: Wafer, healthy: MappingCost, faults: Faults) -> MappingCost | None:
    """Evaluate the healthy wafer's mapping; None if a fault lies inside a stage."""
    inside = [{*stage.rectangle.dies()} for stage in healthy.mapping.stages]
    dead = {*faults.unusable(wafer)}
    if any(dead & dies or any({*link} <= dies for link in faults.links) for dies in inside):
        return None
    return evaluate(wafer, healthy.mapping, faults.all_links(wafer))


def degraded(
    wafer: Wafer, healthy: MappingCost, dead_share: float, samples: int, seed: int,
    around: Callable[[Faults], MappingCost | None],
) -> FaultsAnswer:  # fmt: skip
    """Sample faulty wafers: throughput as shares of the healthy one's; `around` maps on one."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(samples):
        faults = sample_faults(wafer, dead_share, random)
        evaluation = healthy if not faults.dies else around(faults)
        share = 0.0 if evaluation is None else evaluation.samples_per_s / healthy.samples_per_s
        rows.append(FaultyWafer(dead_dies=tuple(faults.dies), kept=share))
    shares = [min(1.0, row.kept) for row in rows]
    return FaultsAnswer(
        dead_share=dead_share,
        samples=samples,
        median_kept=float(np.median(shares)),
        mean_kept=float(np.mean(shares)),
        least_kept=float(np.min(shares)),
        expected_samples_per_s=float(np.mean(shares)) * healthy.samples_per_s,
        unmapped=int(sum(share == 0.0 for share in shares)),
        wafers=tuple(rows),
    )
