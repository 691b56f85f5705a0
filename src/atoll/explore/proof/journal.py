"""The interface through which a search records its evaluations and reads those on record.

A search is deterministic: started again it needs the same evaluations in the same order, and those
on record are not computed. So a resumed search ends like one that was never interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atoll.base.arrays import Floats, Ints
from atoll.cost.chips import Chips
from atoll.explore.pricing.energy import StepEnergy
from atoll.schedule.solve import Effort


@dataclass(frozen=True, eq=False)
class EvaluatedPlan:
    """The best plan so far of a model on a chip."""

    step_time_s: float
    variant: int
    pass_s: Floats
    pp: int
    dp: int
    energy: StepEnergy
    effort: Effort = "quick"
    limit_s: float | None = None
    """Step limit up to which its schedules were solved; None: to the end."""


@dataclass(frozen=True)
class EvaluationKey:
    """Identifies an evaluation: a chip in a phase; when tightened, a node (variant, effort)."""

    phase: str  # "place", "front" (for the chip's own sake) or "tighten"
    chip: int  # the chip's number in the complete space
    variant: int = -1
    effort: str = ""


@dataclass(frozen=True, eq=False)
class ChipEvaluation:
    """A finished evaluation: the chip's bounds and plans after it."""

    lower_s: Floats
    plans: Mapping[int, EvaluatedPlan]


class Journal:
    """Keeps a search's evaluations; this base class keeps nothing."""

    def bounds(self, batch: int) -> Mapping[int, Floats]:
        """Return the recorded bounds of a batch, by chip."""
        return {}

    def put_bounds(self, batch: int, chips: Ints, rows: Floats, scores: Floats) -> None:
        """Record schedule bounds of chips."""

    def evaluation(self, key: EvaluationKey) -> ChipEvaluation | None:
        """Return a recorded evaluation, if any."""
        return None

    def put_evaluation(
        self, key: EvaluationKey, evaluation: ChipEvaluation, score: float, chips: Chips, chip: int
    ) -> None:
        """Record an evaluation of chip number `chip` of `chips`.

        A score below zero means that a model has no plan on it.
        """

    def note(self, name: str) -> Any:
        """Return another recorded result, such as the baselines; None if there is none."""
        return None

    def put_note(self, name: str, value: Any) -> None:
        """Record another result."""

    def progress(
        self, phase: str, left: int, total: int, best: int | None, score: float, bound: float
    ) -> None:
        """Report how far the search is."""
