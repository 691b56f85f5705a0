"""How far an answer can be from the best possible.

The gap is 1 - score / bound. Relative to the answer, another can be better by bound / score - 1,
which is larger than the gap.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from atoll.base.units import counted

_ROUNDING = 1e-9  # relative: searches stop at the tolerance itself


@dataclass(frozen=True, slots=True)
class Certificate:
    """Proof of how good an answer is: "optimal" if none is better by more than `tolerance`."""

    score: float
    bound: float
    """No item scores higher."""
    tolerance: float
    items: int
    """Size of the search space."""
    kind: str
    """What an item is: "architecture", "layout"."""
    evaluated: int
    ruled_out: Mapping[str, int]
    """Number of items ruled out, by bound."""
    tightened: int = 0
    """Parts of items whose bounds were tightened."""
    subject: str = ""
    """Description of the search space; empty: `items` and `kind`."""
    peak_bound: float = math.inf
    """No item scores higher with any layout, searched or not; infinite: not known."""
    template: str = ""
    """Name and kind of the template of all items, where other templates have items too."""
    doubt: str = ""
    """Why the bound is not one on what would be measured; empty: it is."""

    @property
    def gap(self) -> float:
        return relative_gap(self.score, self.bound)

    @property
    def proven(self) -> bool:
        return not self.doubt and is_optimal(self.gap, self.tolerance)

    @property
    def status(self) -> str:
        return "optimal" if self.proven else "gap"

    @property
    def over(self) -> str:
        within = f" of template {self.template}" if self.template else ""
        return self.subject or f"{counted(self.items, self.kind)}{within}"

    def sentence(self) -> str:
        if self.doubt:
            share = percent_at_most(most_better(self.gap))
            better = f"none of {self.over} is more than {share} better"
            return f"not proven, because {self.doubt}; apart from these, {better}"
        sentence = proof_sentence(self.gap, self.tolerance, self.over)
        if not (self.proven and math.isfinite(self.peak_bound)):
            return sentence
        more = most_better(relative_gap(self.score, self.peak_bound))
        return f"{sentence}; layouts not searched: at most {more:.0%} better"


def relative_gap(score: float, bound: float) -> float:
    """Return 1 - score / bound."""
    return max(0.0, 1.0 - score / bound) if bound > 0.0 else 0.0


def most_better(gap: float) -> float:
    """Return bound / score - 1: no answer is better by more than this share."""
    return gap / (1.0 - gap) if gap < 1.0 else math.inf


def is_optimal(gap: float, tolerance: float) -> bool:
    """Return whether no answer is better by more than the tolerance."""
    return most_better(gap) <= tolerance * (1.0 + _ROUNDING)


def proof_sentence(gap: float, tolerance: float, over: str) -> str:
    """Say what was proven over `over` ("29,360 architectures")."""
    more = percent_at_most(most_better(gap))
    if is_optimal(gap, tolerance):
        better = f"more than {more} better (tolerance {tolerance:.2%})" if tolerance else "better"
        return f"proven optimal over {over}: none is {better}"
    return f"not proven optimal: the best of {over} may be up to {more} better (gap {gap:.2%})"


def percent_at_most(share: float) -> str:
    """Format an upper bound of a share with two digits, rounded up."""
    if not math.isfinite(share):
        return "any share"
    return f"{math.ceil(share * 1e4 * (1.0 - _ROUNDING)) / 1e4:.2%}"


def times(ours: float, theirs: float) -> str:
    """Format a ratio as "1.29x", with more digits if it is just below 1."""
    ratio = ours / theirs
    return f"{ratio:.2f}x" if ratio >= 1.0 or ratio < 0.995 else f"{ratio:.4f}x"
