"""Fronts of throughput against area, peak power, cost, mean power and energy per token.

The first three are known for every chip before it is evaluated, so that their fronts are proven: a
chip is on the front if none as cheap is as fast, and need not be evaluated when its bound shows
that a cheaper evaluated one is at least as fast, within the tolerance. Mean power and energy depend
on the layout; their fronts are over the evaluated designs, and say so.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import Floats
from atoll.explore.pricing.energy import energy_per_token_J
from atoll.explore.pricing.price import PERS
from atoll.explore.proof.branch_and_bound import Search
from atoll.hardware.physical.price import USUAL_PRICES
from atoll.hardware.space import DesignSpace

FIRST_BATCH, BATCH = 32, 512
TOLERANCE = 0.01


@dataclass(frozen=True)
class Front:
    """Chips of a front with their costs, the fastest first; `proven_within` None: among evaluated
    designs only."""

    costs: dict[int, float]
    proven_within: float | None


def fronts(search: Search) -> tuple[dict[str, Front], str]:
    """Return the fronts by the name of their cost, and why they are incomplete (empty: they are
    not). Of a search that was stopped, all are among evaluated designs only.
    """
    proven: dict[str, Front] = {}
    for name, costs in chip_costs(search).items():
        chips = proven_front(search, name, costs, TOLERANCE)
        if chips is None:
            return evaluated_fronts(search), search.stop.reason
        proven[name] = Front({chip: float(costs[chip]) for chip in chips}, TOLERANCE)
    return evaluated_fronts(search) | proven, ""


def chip_costs(search: Search) -> dict[str, Floats]:
    """Return the costs that are known before a chip is evaluated, each of shape (chips,)."""
    chips, space = search.frontier.chips, search.space
    costs = {"area_mm2": chips.area_mm2}
    if not isinstance(space, DesignSpace):
        return costs
    price = search.objective.price
    prices = USUAL_PRICES if price is None else price.prices
    for name, per in (("peak_power_W", PERS["watt"]), ("cost_usd", PERS["dollar"])):
        if per.priced and space.template.process_nm is None and "process_nm" not in space.columns:
            continue
        costs[name] = np.empty(len(chips))
        for number, options in enumerate(search.memories):
            for hbm in options:
                alike = chips.hbm_capacity_bytes == hbm.capacity_bytes
                chosen = np.flatnonzero((chips.memory == number) & alike)
                costs[name][chosen] = per.device(space, hbm, prices)[chips.design[chosen]]
    return costs


def evaluated_fronts(search: Search) -> dict[str, Front]:
    """Return the fronts among the evaluated designs."""
    chips = [chip for chip in search.frontier.plans if search.evaluated_score(chip) > 0.0]
    steps = {chip: [f.energy for f in search.frontier.plans[chip].values()] for chip in chips}
    costs = {
        name: {chip: float(values[chip]) for chip in chips}
        for name, values in chip_costs(search).items()
    } | {
        "power_W": {chip: max(step.power_W for step in steps_) for chip, steps_ in steps.items()},
        "energy_per_token_J": {chip: energy_per_token_J(steps_) for chip, steps_ in steps.items()},
    }
    return {name: Front(_non_dominated(search, cost), None) for name, cost in costs.items()}


def _non_dominated(search: Search, cost: dict[int, float]) -> dict[int, float]:
    """Return the chips, with their costs, that no chip beats in both score and cost."""
    chosen: dict[int, float] = {}
    least = np.inf
    for chip in sorted(cost, key=lambda c: (-search.evaluated_score(c), cost[c])):
        if cost[chip] < least:
            least = chosen[chip] = cost[chip]
    return chosen


def proven_front(
    search: Search, name: str, costs: Floats, tolerance: float = TOLERANCE
) -> list[int] | None:
    """Return the chips of the front against `costs` (chips,), the most expensive first, proven
    within `tolerance`. None where the search was stopped before that.
    """
    by_cost = np.argsort(costs, kind="stable")
    scores = np.full(len(costs), -np.inf)
    for chip in search.frontier.plans:
        scores[chip] = search.evaluated_score(chip)
    # A chip without a plan cannot beat the best, but may be the best of its cost.
    evaluated = scores > 0.0
    size = FIRST_BATCH  # small at first: what is evaluated rules out many others
    while True:
        best_cheaper = np.empty(len(costs))
        best_cheaper[by_cost] = np.maximum.accumulate(scores[by_cost])
        promise = np.where(evaluated, -np.inf, search.scores / np.maximum(best_cheaper, 1e-300))
        wanted = np.flatnonzero(promise > 1.0 + tolerance)
        if len(wanted) == 0:
            break
        chosen = _most_promising_by_cost(wanted, costs, promise)[:size]
        if search.stop():
            return None
        floors = np.maximum(best_cheaper, 0.0) * (1.0 + tolerance)
        scores[chosen] = search.evaluate_front(
            chosen, f"front {name}", costs, floors, tolerance, wanted
        )
        if search.stop():
            return None  # not all were evaluated
        evaluated[chosen] = True
        size = min(2 * size, BATCH)
    front = []
    best = -np.inf
    for chip in np.lexsort((-scores, costs)):
        if scores[chip] > max(best, 0.0):
            best = scores[chip]
            front.append(int(chip))
    return front[::-1]


def _most_promising_by_cost(
    wanted: NDArray[np.int64], costs: Floats, promise: Floats
) -> NDArray[np.int64]:
    """Return the chips in an order that takes the most promising ones of every range of costs
    first."""
    edges = np.quantile(costs[wanted], np.linspace(0, 1, 33))
    group = np.searchsorted(edges, costs[wanted])
    order = np.lexsort((-promise[wanted], group))
    starts = np.searchsorted(group[order], group[order])
    rank = np.empty(len(wanted), np.int64)
    rank[order] = np.arange(len(wanted)) - starts
    return wanted[np.argsort(rank, kind="stable")]
