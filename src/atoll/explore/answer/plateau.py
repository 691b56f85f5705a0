"""Designs as good as the best, to within little: which of them is the answer, and the others.

A proof within a tolerance does not say which of the designs inside it is the best. Among those that
it covers the answer is the smallest; equal areas are told apart by peak power, then by cost. How
many others come close, and what power they would save, is said with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from atoll.explore.answer.result import Design, Near
from atoll.explore.proof.branch_and_bound import Search

SHARES = (0.005, 0.01)
"""How much slower than the answer a design may be to be counted."""
MOST_CHIPS = 1000
"""Chips that are evaluated for the plateau alone, the highest bounds first."""
_ROUNDING = 1e-12


class ChipSize(NamedTuple):
    """What tells chips of equal score apart, the first that differs; rounded, so that the last bits
    of a sum decide nothing."""

    area_mm2: float
    peak_power_W: float
    cost_usd: float
    """Of making the device; 0 for templates without a process, whose area has no price."""


SizeOf = Callable[[int], ChipSize]


def evaluate_plateau(search: Search, tolerance: float) -> float:
    """Evaluate the chips whose bounds may place them within the largest share of the answer.

    Returns the score above which every chip of the space was looked at.
    """
    least = search.score / (1.0 + max(SHARES)) / (1.0 + tolerance)
    high = np.flatnonzero(search.scores >= least)
    open_ = np.array([c for c in high.tolist() if search.found_score(c) <= 0.0], np.int64)
    ranked = open_[np.argsort(-search.scores[open_], kind="stable")]
    if len(ranked) and not search.stop():
        search.evaluate_near(ranked[:MOST_CHIPS], least)
    if search.stop() or search.reserve is not None:  # chips that cannot win have left memory
        return np.inf
    left_out = ranked[MOST_CHIPS:]
    return float(search.scores[left_out[0]]) if len(left_out) else least


def choose(search: Search, bound: float, tolerance: float, size_of: SizeOf) -> int:
    """Return the chip that is the answer: the smallest of those that the proof covers.

    Covered are the evaluated designs that no design of the space beats by more than the tolerance:
    score >= bound / (1 + tolerance). Where the search ended before its proof, the fastest.
    """
    scores = _found_scores(search)
    best = max(scores.values())
    floor = min(best, bound / (1.0 + tolerance)) * (1.0 - _ROUNDING)
    covered = [chip for chip, score in scores.items() if score >= floor]
    ids = search.frontier.ids
    return min(covered, key=lambda chip: (size_of(chip), -scores[chip], int(ids[chip])))


def plateau(
    search: Search,
    chosen: int,
    complete_above: float,
    size_of: SizeOf,
    design: Callable[[int], Design],
) -> tuple[Near, ...]:
    """What else comes close to the answer; other bandwidths of the same design are not counted."""
    scores = _found_scores(search)
    chips = search.frontier.chips
    score = scores[chosen]
    fastest: dict[int, int] = {}
    for chip in sorted(scores, key=lambda c: (-scores[c], int(search.frontier.ids[c]))):
        fastest.setdefault(int(chips.design[chip]), chip)
    fastest.pop(int(chips.design[chosen]))
    described: dict[int, Design] = {}
    rows = []
    for share in SHARES:
        least = score / (1.0 + share)
        inside = [chip for chip in fastest.values() if scores[chip] >= least]
        frugal = min(inside, key=lambda c: (size_of(c).peak_power_W, -scores[c]), default=chosen)
        saves = size_of(frugal).peak_power_W < size_of(chosen).peak_power_W
        if saves and frugal not in described:
            described[frugal] = design(frugal)
        rows.append(
            Near(
                share,
                len(inside),
                least >= complete_above,
                described[frugal] if saves else None,
                score / scores[frugal] - 1.0 if saves else 0.0,
            )
        )
    return tuple(rows)


def _found_scores(search: Search) -> Mapping[int, float]:
    known = ((chip, search.found_score(chip)) for chip in search.frontier.found)
    return {chip: score for chip, score in known if score > 0.0}
