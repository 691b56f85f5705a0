"""Fronts of throughput against costs: area, peak power, dollars; mean power, energy per token.

The first three are known of every chip before it is evaluated, and their fronts are proven: for
every chip of the space, bound on its score <= (1 + tolerance) x best score of the evaluated chips
that cost no more. Only chips whose bounds allow more are evaluated. Mean power and energy depend on
the layout; their fronts are among the evaluated designs, and say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.explore.pricing.energy import energy_per_token_J
from atoll.explore.pricing.price import PERS, Price
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.exact import tighten
from atoll.hardware.space import DesignSpace

TOLERANCE = 0.01
OWN_TOLERANCE = 0.005  # how far the plan of an evaluated chip may be from the chip's own bound
RANGES = 32  # ranges of each cost from which the next chips are taken
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Front:
    """Chips of a front, the fastest first, with their costs."""

    chips: list[int]
    cost: Mapping[int, float]
    proven_within: float | None
    """Largest share by which a chip of the space may exceed the front's chips that cost no more;
    None: among evaluated designs only."""


def fronts(search: Search) -> tuple[dict[str, Front], str]:
    """Return the fronts by cost, and why they are not proven within the tolerance (empty: are)."""
    gaps = prove_fronts(search, known_costs(search), TOLERANCE)
    proven = all(gap <= TOLERANCE for gap in gaps.values())
    within = {name: max(gap, TOLERANCE) for name, gap in gaps.items() if np.isfinite(gap)}
    return evaluated_fronts(search, within), "" if proven else search.stop.reason


def known_costs(search: Search) -> dict[str, Floats]:
    """Return the costs that do not depend on the layout; dollars where the template has a process.
    Of memories with one bandwidth a chip has the largest."""
    space, chips = search.space, search.frontier.chips
    assert isinstance(space, DesignSpace)
    costs = {"area_mm2": np.asarray(chips.area_mm2)}
    costs["peak_power_W"] = Price(PERS["watt"], 1).of_chips(space, chips, search.memories)
    if space.template.process_nm is not None or "process_nm" in space.columns:
        costs["cost_usd"] = Price(PERS["dollar"], 1).of_chips(space, chips, search.memories)
    return costs


def evaluated_fronts(search: Search, proven_within: Mapping[str, float] = {}) -> dict[str, Front]:
    """Return the fronts among the evaluated designs."""
    chips = [chip for chip in search.frontier.plans if search.evaluated_score(chip) > 0.0]
    steps = {chip: [f.energy for f in search.frontier.plans[chip].values()] for chip in chips}
    costs = {
        **{n: {chip: float(c[chip]) for chip in chips} for n, c in known_costs(search).items()},
        "power_W": {chip: max(step.power_W for step in steps_) for chip, steps_ in steps.items()},
        "energy_per_token_J": {chip: energy_per_token_J(steps_) for chip, steps_ in steps.items()},
    }
    return {
        name: Front(_non_dominated(search, cost), cost, proven_within.get(name))
        for name, cost in costs.items()
    }


def _non_dominated(search: Search, cost: Mapping[int, float]) -> list[int]:
    """Return the chips that no chip beats in both score and cost."""
    chosen: list[int] = []
    least = np.inf
    for chip in sorted(cost, key=lambda c: (-search.evaluated_score(c), cost[c])):
        if cost[chip] < least:
            least = cost[chip]
            chosen.append(chip)
    return chosen


class CheaperChips:
    """The best evaluated chips that cost no more than another, for each of several costs."""

    def __init__(self, costs: Mapping[str, Floats], tolerance: float) -> None:
        self.tolerance = tolerance
        self._costs = costs
        self._ordered = {name: np.sort(cost) for name, cost in costs.items()}
        self._rank = {
            name: np.searchsorted(self._ordered[name], cost, "right") - 1
            for name, cost in costs.items()
        }
        self._best = {name: np.zeros(len(cost)) for name, cost in costs.items()}
        """The best score at no more than each of the ordered costs."""

    def best(self, name: str, chips: Ints) -> Floats:
        """Return the best evaluated scores at no more of a cost than these chips have."""
        return np.asarray(self._best[name][self._rank[name][chips]])

    def to_beat(self, chips: Ints) -> Floats:
        """Return the scores above which these chips may be missing in a front."""
        scores = [self.best(name, chips) for name in self._costs]
        return np.asarray(np.min(scores, axis=0) * (1.0 + self.tolerance))

    def add(self, chip: int, score: float) -> None:
        """Add an evaluated chip."""
        for name, best in self._best.items():
            first = np.searchsorted(self._ordered[name], self._costs[name][chip], "left")
            end = np.searchsorted(best, score, "left")  # as scores never fall with the cost
            best[first : max(first, end)] = score


def prove_fronts(search: Search, costs: Mapping[str, Floats], tolerance: float) -> dict[str, float]:
    """Evaluate chips until the fronts are proven within the tolerance, or the search is stopped.

    Return, per cost, the largest share by which a chip's bound exceeds the best evaluated score at
    no more cost.
    """
    rivals = CheaperChips(costs, tolerance - _ROUNDING)
    every = np.arange(len(search.scores))
    for chip in search.frontier.plans:
        rivals.add(chip, search.evaluated_score(chip))
    fresh = np.ones(len(every), np.bool_)
    while not search.stop():
        open_ = np.flatnonzero(fresh & (search.scores > rivals.to_beat(every)))
        if len(open_) == 0:
            break
        chosen = _next_chips(search, rivals, costs, open_)
        with search.against(rivals, OWN_TOLERANCE, waiting=open_):
            search.batch(chosen)
        fresh[chosen] = False
    rivals.tolerance = tolerance
    with search.against(rivals, OWN_TOLERANCE, waiting=every[:0]):
        tighten(search, 0.0)
    open_ = np.flatnonzero(search.scores > 0.0)
    with np.errstate(divide="ignore"):
        excess = {name: search.scores[open_] / rivals.best(name, open_) - 1.0 for name in costs}
    return {name: max(0.0, float(shares.max(initial=0.0))) for name, shares in excess.items()}


def _next_chips(
    search: Search, rivals: CheaperChips, costs: Mapping[str, Floats], open_: Ints
) -> Ints:
    """Return the most promising chips in ranges of every cost; the cheapest without a rival."""
    to_beat = rivals.to_beat(open_)
    first, others = open_[to_beat <= 0.0], open_[to_beat > 0.0]
    promise = search.scores[others] / to_beat[to_beat > 0.0]
    chosen = [first[np.argmin(cost[first])] for cost in costs.values() if len(first)]
    for cost in costs.values():
        ranges = np.array_split(np.argsort(cost[others], kind="stable"), RANGES)
        chosen += [others[part[np.argmax(promise[part])]] for part in ranges if len(part)]
    return np.unique(np.array(chosen, np.int64))
