"""What a search tells whoever keeps its results, and asks before it computes anything.

A search is deterministic: started again it asks for the same pieces in the same order, and every
piece that is on record need not be computed. So a resumed search ends like one that was never
interrupted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atoll.arrays import FloatArray, IntArray
from atoll.cost.chips import Chips
from atoll.explore.pricing.energy import StepEnergy
from atoll.schedule.solve import Effort


@dataclass(frozen=True, eq=False)
class Found:
    """The best plan known of one model on one chip."""

    step_time_s: float
    variant: int
    pass_s: FloatArray
    pipeline: int
    data: int
    energy: StepEnergy
    effort: Effort = "quick"
    limit_s: float | None = None
    """Its schedules were solved as far as a proof against this step needed; None: all the way."""


@dataclass(frozen=True)
class Key:
    """Which evaluation: a chip in a phase of the search; when tightened, one node of it."""

    phase: str
    """"place", "front" (for the chip's own sake) or "tighten"."""
    chip: int
    """The chip's number in its space, whatever part of it is in memory."""
    variant: int = -1
    effort: str = ""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A finished evaluation: the chip's bounds and plans after it."""

    row: FloatArray
    found: Mapping[int, Found]


class Journal:
    """What keeps a search's findings; this one keeps nothing."""

    def bounds(self, batch: int) -> Mapping[int, FloatArray]:
        """Bounds on record of one batch, by chip."""
        return {}

    def put_bounds(self, batch: int, chips: IntArray, rows: FloatArray, scores: FloatArray) -> None:
        """Record schedule bounds of chips."""

    def evaluation(self, key: Key) -> Evaluation | None:
        """An evaluation on record."""
        return None

    def put_evaluation(
        self, key: Key, evaluation: Evaluation, score: float, chips: Chips, chip: int
    ) -> None:
        """Record an evaluation of chip number `chip` of `chips`.

        A score below zero: some model has no plan on it.
        """

    def note(self, name: str) -> Any:
        """A small result beside the evaluations, such as the baselines; None: not on record."""
        return None

    def put_note(self, name: str, value: Any) -> None:
        """Record one."""

    def progress(
        self, phase: str, left: int, total: int, best: int | None, score: float, bound: float
    ) -> None:
        """Report how far the search is."""
