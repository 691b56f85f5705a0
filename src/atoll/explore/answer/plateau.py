"""Designs nearly as good as the best: which of them is the answer, and what the others save.

A proof within a tolerance does not say which of the designs inside it is the best. The answer is
the smallest of them; ties are broken by peak power, then by cost. The answer states how many others
come close, and what power they would save.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from atoll.answers.answer import build_from
from atoll.answers.design import SizedChip, SlowerChip
from atoll.answers.search import NearAnswer
from atoll.explore.proof.branch_and_bound import Search

SHARES = (0.005, 0.01)  # relative slowdowns within which designs are counted
MOST_CHIPS = 1000  # most chips that are evaluated for the plateau, the highest bounds first
_ROUNDING = 1e-12


class ChipSize(NamedTuple):
    """Tie-breakers between chips of equal score, in order; rounded against floating-point noise."""

    area_mm2: float
    peak_power_W: float
    cost_usd: float  # of making the device; 0 for templates without a process


SizeOf = Callable[[int], ChipSize]


def evaluate_plateau(search: Search, tolerance: float) -> float:
    """Evaluate the chips that may be within the largest share of the answer.

    Returns the score above which every chip of the space was evaluated.
    """
    least = search.score / (1.0 + max(SHARES)) / (1.0 + tolerance)
    high = np.flatnonzero(search.scores >= least)
    open_ = np.array([c for c in high.tolist() if search.evaluated_score(c) <= 0.0], np.int64)
    ranked = open_[np.argsort(-search.scores[open_], kind="stable")]
    if len(ranked) and not search.stop():
        search.evaluate_near(ranked[:MOST_CHIPS], least)
    if search.stop() or search.reserve is not None:  # chips that cannot win were dropped
        return np.inf
    left_out = ranked[MOST_CHIPS:]
    return float(search.scores[left_out[0]]) if len(left_out) else least


def choose(search: Search, bound: float, tolerance: float, size_of: SizeOf) -> int:
    """Return the chip that is the answer: the smallest of those that the proof covers.

    Covered are evaluated designs with score >= bound / (1 + tolerance); without a proof, the
    fastest design.
    """
    scores = _evaluated_scores(search)
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
    chip_of: Callable[[int], SizedChip],
) -> tuple[NearAnswer, ...]:
    """Describe the designs near the answer; other memories of its design are not counted."""
    scores = _evaluated_scores(search)
    chips = search.frontier.chips
    score = scores[chosen]
    fastest: dict[int, int] = {}
    for chip in sorted(scores, key=lambda c: (-scores[c], int(search.frontier.ids[c]))):
        fastest.setdefault(int(chips.design[chip]), chip)
    fastest.pop(int(chips.design[chosen]))
    rows = []
    for share in SHARES:
        least = score / (1.0 + share)
        inside = [chip for chip in fastest.values() if scores[chip] >= least]
        frugal = min(inside, key=lambda c: (size_of(c).peak_power_W, -scores[c]), default=chosen)
        least_power = None
        if size_of(frugal).peak_power_W < size_of(chosen).peak_power_W:
            slower_by = score / scores[frugal] - 1.0
            least_power = build_from(SlowerChip, chip_of(frugal), slower_by=slower_by)
        complete, others = bool(least >= complete_above), len(inside)
        near = NearAnswer(share=share, others=others, complete=complete, least_power=least_power)
        rows.append(near)
    return tuple(rows)


def _evaluated_scores(search: Search) -> Mapping[int, float]:
    scores = ((chip, search.evaluated_score(chip)) for chip in search.frontier.plans)
    return {chip: score for chip, score in scores if score > 0.0}
