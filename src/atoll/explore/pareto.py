"""Fronts of throughput against area, power and energy per token.

Against area with the bounds of the search: a chip is on the front if none as small is as fast, and
need not be evaluated when its bound shows that a smaller evaluated one is at least as fast, within
the tolerance. Power and energy have no such bound that would rule much out; their fronts are over
the designs that were evaluated for the area front, and say so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.explore.pricing.energy import energy_per_token_J
from atoll.explore.proof.branch_and_bound import Search

BATCH = 512
TOLERANCE = 0.01


@dataclass(frozen=True)
class Front:
    """Chips of a front, the fastest first; `proven_within` None: among evaluated designs only."""

    chips: list[int]
    proven_within: float | None


def fronts(search: Search) -> tuple[dict[str, Front], str]:
    """The three fronts, by the name of what throughput is held against; and why they are not
    complete, if the search was stopped: then all are among evaluated designs only.
    """
    area = area_front(search, TOLERANCE)
    if area is None:
        return evaluated_fronts(search), search.stop.reason
    return evaluated_fronts(search) | {"area_mm2": Front(area, TOLERANCE)}, ""


def evaluated_fronts(search: Search) -> dict[str, Front]:
    """The fronts among the designs that happen to have been evaluated."""
    known = [chip for chip in search.frontier.found if search.found_score(chip) > 0.0]
    steps = {chip: [f.energy for f in search.frontier.found[chip].values()] for chip in known}
    costs = {
        "area_mm2": {chip: float(search.frontier.chips.area_mm2[chip]) for chip in known},
        "power_W": {chip: max(step.power_W for step in own) for chip, own in steps.items()},
        "energy_per_token_J": {chip: energy_per_token_J(own) for chip, own in steps.items()},
    }
    return {name: Front(_cheapest(search, cost), None) for name, cost in costs.items()}


def _cheapest(search: Search, cost: dict[int, float]) -> list[int]:
    """Chips that no other beats in both score and cost."""
    chosen: list[int] = []
    least = np.inf
    for chip in sorted(cost, key=lambda c: (-search.found_score(c), cost[c])):
        if cost[chip] < least:
            least = cost[chip]
            chosen.append(chip)
    return chosen


def area_front(search: Search, tolerance: float = 0.01) -> list[int] | None:
    """Chips of the front, largest first; proven within `tolerance` of the true front.

    None where the search was stopped before that.
    """
    chips = search.frontier.chips
    by_area = np.argsort(chips.area_mm2, kind="stable")
    known = np.full(len(chips), -np.inf)
    for chip in search.frontier.found:
        known[chip] = search.found_score(chip)
    # Without a plan so far: it could not beat the best, but may still be the best of its size.
    evaluated = known > 0.0
    while True:
        best_smaller = np.empty(len(chips))
        best_smaller[by_area] = np.maximum.accumulate(known[by_area])
        promise = np.where(evaluated, -np.inf, search.scores / np.maximum(best_smaller, 1e-300))
        wanted = np.flatnonzero(promise > 1.0 + tolerance)
        if len(wanted) == 0:
            break
        chosen = _spread(wanted, chips.area_mm2, promise)
        if search.stop():
            return None
        known[chosen] = search.evaluate_all(chosen, waiting=wanted)
        if search.stop():
            return None  # some of them were not evaluated
        evaluated[chosen] = True
    front = []
    best = -np.inf
    for chip in np.lexsort((-known, chips.area_mm2)):
        if known[chip] > max(best, 0.0):
            best = known[chip]
            front.append(int(chip))
    return front[::-1]


def _spread(
    wanted: NDArray[np.int64], area_mm2: NDArray[np.float64], promise: NDArray[np.float64]
) -> NDArray[np.int64]:
    """The most promising chips of every range of areas, so that one round helps them all."""
    edges = np.quantile(area_mm2[wanted], np.linspace(0, 1, 33))
    group = np.searchsorted(edges, area_mm2[wanted])
    order = np.lexsort((-promise[wanted], group))
    rank = np.zeros(len(wanted), np.int64)
    previous, count = -1, 0
    for position in order:
        count = count + 1 if group[position] == previous else 0
        previous = int(group[position])
        rank[position] = count
    return wanted[np.argsort(rank, kind="stable")[:BATCH]]
