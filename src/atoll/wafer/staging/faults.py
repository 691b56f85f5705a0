"""Wafers with dead dies and dead links: mapping around them, and what is left of the throughput.

Dead dies take their links with them; dies that are cut off from most others are left out too. The
working dies are cut into rectangles (`tiling.py`), stages get layers in proportion to what they can
do, and transfers are routed around what is dead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from atoll.answers.wafer import FaultsAnswer, FaultyWafer
from atoll.fabric.mesh import Die, Link, Rectangle, both_ways
from atoll.hardware.wafer import Wafer
from atoll.wafer.encoding.mapping import problems
from atoll.wafer.evaluate import Evaluation, evaluate
from atoll.wafer.staging.stages import INFINITY, Planner
from atoll.wafer.staging.tiling import guillotine

MOST_PIECES = 8


@dataclass(frozen=True)
class Faults:
    dies: tuple[Die, ...] = ()
    links: tuple[Link, ...] = ()

    def all_links(self, wafer: Wafer) -> list[Link]:
        """Dead links and every link of a dead die."""
        found = list(self.links)
        for x, y in self.dies:
            found += [((x, y), other) for other in wafer.mesh.neighbours((x, y))]
        return found

    def unusable(self, wafer: Wafer) -> tuple[Die, ...]:
        """Dead dies, and those that no working link joins to the largest part of the others."""
        broken = both_ways(self.all_links(wafer))
        working = {*Rectangle(0, 0, wafer.columns, wafer.rows).dies()} - {*self.dies}
        left, largest = sorted(working), list[Die]()
        while left:
            part = [left[0]]
            for here in part:
                near = (die for die in wafer.mesh.neighbours(here) if die in working)
                part += [die for die in near if die not in part and (here, die) not in broken]
            left = [die for die in left if die not in part]
            largest = max(largest, part, key=len)
        return (*self.dies, *sorted(working - {*largest}))


def sample_faults(wafer: Wafer, dead_share: float, random: np.random.Generator) -> Faults:
    """Every die dead with the same chance, independent of the others."""
    dead = random.random((wafer.rows, wafer.columns)) < dead_share
    return Faults(tuple((int(x), int(y)) for y, x in np.argwhere(dead)))


def map_around(
    planner: Planner, faults: Faults, microbatches: Sequence[int], most: int = MOST_PIECES
) -> Evaluation | None:
    """The best mapping found that leaves the dead out; None if nothing fits.

    Microbatches are tried in their order until two bring nothing: large ones have many codes.
    """
    wafer = planner.wafer
    broken, dead = faults.all_links(wafer), faults.unusable(wafer)
    tilings = [
        rectangles
        for pieces in range(1, most + 1)
        if len(rectangles := guillotine(wafer.rows, wafer.columns, pieces, dead, faults.links))
        == pieces
    ]
    best: Evaluation | None = None
    in_vain = 0
    for microbatch in microbatches:
        before = best
        for rectangles in tilings:
            stop = INFINITY if best is None else best.step_s
            found = planner.best(rectangles, microbatch, stop, broken)
            if found is not None and found.step_s < stop:
                best = found
        in_vain = in_vain + 1 if best is before else 0
        if best is not None and in_vain == 2:
            break
    if best is not None and problems(best.mapping, wafer.rows, wafer.columns, dead):
        raise AssertionError("a mapping around faults uses what is dead")
    return best


def unharmed(wafer: Wafer, healthy: Evaluation, faults: Faults) -> Evaluation | None:
    """The mapping of the whole wafer, where none of its stages has anything dead inside."""
    inside = [{*stage.rectangle.dies()} for stage in healthy.mapping.stages]
    dead = {*faults.unusable(wafer)}
    if any(dead & dies or any({*link} <= dies for link in faults.links) for dies in inside):
        return None
    return evaluate(wafer, healthy.mapping, faults.all_links(wafer))


def degraded(
    wafer: Wafer, healthy: Evaluation, dead_share: float, samples: int, seed: int,
    around: Callable[[Faults], Evaluation | None],
) -> FaultsAnswer:  # fmt: skip
    """Throughput over sampled wafers, as shares of the healthy one's; `around` maps on one."""
    random = np.random.default_rng(seed)
    kept: list[float] = []
    rows = []
    for _ in range(samples):
        faults = sample_faults(wafer, dead_share, random)
        found = healthy if not faults.dies else around(faults)
        share = 0.0 if found is None else found.samples_per_s / healthy.samples_per_s
        kept.append(min(1.0, share))
        rows.append(FaultyWafer(dead_dies=tuple(faults.dies), kept=share))
    return FaultsAnswer(
        dead_share=dead_share,
        samples=samples,
        median_kept=float(np.median(kept)),
        mean_kept=float(np.mean(kept)),
        least_kept=float(np.min(kept)),
        expected_samples_per_s=float(np.mean(kept)) * healthy.samples_per_s,
        unmapped=int(sum(share == 0.0 for share in kept)),
        wafers=tuple(rows),
    )
