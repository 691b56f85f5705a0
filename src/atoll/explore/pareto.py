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
    """Return the fronts by the name of their cost, and why they are incomplete (empty: they are
    not). Of a search that was stopped, all are among evaluated designs only.
    """
    area = area_front(search, TOLERANCE)
    if area is None:
        return evaluated_fronts(search), search.stop.reason
    return evaluated_fronts(search) | {"area_mm2": Front(area, TOLERANCE)}, ""


def evaluated_fronts(search: Search) -> dict[str, Front]:
    """Return the fronts among the evaluated designs."""
    chips = [chip for chip in search.frontier.plans if search.evaluated_score(chip) > 0.0]
    steps = {chip: [f.energy for f in search.frontier.plans[chip].values()] for chip in chips}
    costs = {
        "area_mm2": {chip: float(search.frontier.chips.area_mm2[chip]) for chip in chips},
        "power_W": {chip: max(step.power_W for step in steps_) for chip, steps_ in steps.items()},
        "energy_per_token_J": {chip: energy_per_token_J(steps_) for chip, steps_ in steps.items()},
    }
    return {name: Front(_non_dominated(search, cost), None) for name, cost in costs.items()}


def _non_dominated(search: Search, cost: dict[int, float]) -> list[int]:
    """Return the chips that no chip beats in both score and cost."""
    chosen: list[int] = []
    least = np.inf
    for chip in sorted(cost, key=lambda c: (-search.evaluated_score(c), cost[c])):
        if cost[chip] < least:
            least = cost[chip]
            chosen.append(chip)
    return chosen


def area_front(search: Search, tolerance: float = 0.01) -> list[int] | None:
    """Return the chips of the area front, largest first, proven within `tolerance`.

    None where the search was stopped before that.
    """
    chips = search.frontier.chips
    by_area = np.argsort(chips.area_mm2, kind="stable")
    scores = np.full(len(chips), -np.inf)
    for chip in search.frontier.plans:
        scores[chip] = search.evaluated_score(chip)
    # A chip without a plan cannot beat the best, but may be the best of its size.
    evaluated = scores > 0.0
    while True:
        best_smaller = np.empty(len(chips))
        best_smaller[by_area] = np.maximum.accumulate(scores[by_area])
        promise = np.where(evaluated, -np.inf, search.scores / np.maximum(best_smaller, 1e-300))
        wanted = np.flatnonzero(promise > 1.0 + tolerance)
        if len(wanted) == 0:
            break
        chosen = _most_promising_by_area(wanted, chips.area_mm2, promise)
        if search.stop():
            return None
        scores[chosen] = search.evaluate_all(chosen, waiting=wanted)
        if search.stop():
            return None  # not all were evaluated
        evaluated[chosen] = True
    front = []
    best = -np.inf
    for chip in np.lexsort((-scores, chips.area_mm2)):
        if scores[chip] > max(best, 0.0):
            best = scores[chip]
            front.append(int(chip))
    return front[::-1]


def _most_promising_by_area(
    wanted: NDArray[np.int64], area_mm2: NDArray[np.float64], promise: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Return the most promising chips of every range of areas, at most BATCH."""
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
