"""Architecture and mapping together: a space of wafers, each with its best mapping.

A wafer's throughput is at most what work over dies at peak rates gives; that bound, with its power
and cost, which are known without any search, decides who is solved. For the best wafer alone: best
bound first, until no bound beats the best found. For the front of throughput, power and cost: every
wafer that no solved one beats in all three.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atoll.errors import AtollError, InfeasibleError
from atoll.wafer.search import Found, WaferSearch
from atoll.wafer.template import Wafer


@dataclass(frozen=True)
class Explored:
    """Solved wafers, best first; how many were ruled out, and by what."""

    solved: tuple[tuple[Wafer, Found], ...]
    pruned: dict[str, int]
    bound_samples_per_s: float
    """No wafer of the space is faster."""


def explore_wafers(searches: Sequence[WaferSearch], front: bool) -> Explored:
    """Solve as few wafers as the bounds allow."""
    bounds = [search.batch / search.ideal_step_s() for search in searches]
    order = sorted(range(len(searches)), key=lambda i: (-bounds[i], searches[i].wafer.cost_dollars))
    solved: list[tuple[Wafer, Found]] = []
    pruned = {"bound": 0, "memory": 0}
    open_bound = 0.0
    reason: AtollError | None = None
    for index in order:
        search = searches[index]
        if _ruled_out(search.wafer, bounds[index], solved, front):
            pruned["bound"] += 1
            continue
        try:
            found = search.run()
        except InfeasibleError as error:
            reason = reason or error
            pruned["memory"] += 1
            continue
        solved.append((search.wafer, found))
        open_bound = max(open_bound, search.batch / found.bound_s)
    if not solved:
        raise InfeasibleError(f"space: no wafer of it holds the model; the first: {reason}")
    solved.sort(key=lambda pair: (-pair[1].best.samples_per_s, pair[0].cost_dollars))
    return Explored(tuple(solved), pruned, open_bound)


def _ruled_out(
    wafer: Wafer, bound: float, solved: Sequence[tuple[Wafer, Found]], front: bool
) -> bool:
    for other, found in solved:
        if found.best.samples_per_s < bound:
            continue
        cheaper = (
            other.peak_power_W <= wafer.peak_power_W and other.cost_dollars <= wafer.cost_dollars
        )
        if not front or cheaper:
            return True
    return False


def pareto_rows(explored: Explored) -> list[Wafer]:
    """Wafers that no other beats in throughput, peak power and cost at once."""
    chosen = []
    for wafer, found in explored.solved:
        beaten = any(
            other is not wafer
            and rival.best.samples_per_s >= found.best.samples_per_s
            and other.peak_power_W <= wafer.peak_power_W
            and other.cost_dollars <= wafer.cost_dollars
            and (
                rival.best.samples_per_s > found.best.samples_per_s
                or other.peak_power_W < wafer.peak_power_W
                or other.cost_dollars < wafer.cost_dollars
            )
            for other, rival in explored.solved
        )
        if not beaten:
            chosen.append(wafer)
    return chosen
