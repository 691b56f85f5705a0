"""A profile's rule of placement: what a search asks of it, and the default's answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from atoll.base.arrays import FloatArray
from atoll.placement.chain import Division, PlacementProblem, VariantTimes
from atoll.placement.plan import Placement
from atoll.step.states import States


class StepTerms(NamedTuple):
    """Of a step with so many stages, for each number of replicas, the fewest first: how often the
    largest load is paid and how often a whole pass, and the seconds that no chip changes."""

    loads: FloatArray
    passes: float
    transfer_s: FloatArray
    """Of a whole pass, at least."""
    fixed_s: FloatArray
    """Gradient reduction and optimizer, at least."""


class Placer(Protocol):
    """Places chains of layers."""

    @property
    def plain(self) -> bool:
        """Whether data, tensor and pipeline parallelism are all that it knows."""

    def place(
        self, problem: PlacementProblem, times: VariantTimes, cutoff_s: float = np.inf
    ) -> Division | None:
        """The fastest placement below the cutoff, or None."""

    def even(self, problem: PlacementProblem, times: VariantTimes, stages: int) -> Division | None:
        """An expert's: blocks spread evenly over so many stages, with as many replicas as there
        is room for; None where it is not possible."""

    def describe(
        self, problem: PlacementProblem, times: VariantTimes, division: Division
    ) -> Placement:
        """A division in full: stages, memory by part, time by cause."""

    def depths(self, problem: PlacementProblem) -> list[int]:
        """Numbers of stages that may fit: a bound considers no others."""

    def terms(self, problem: PlacementProblem, stages: int) -> StepTerms:
        """What a step of so many stages is made of, from below."""

    def state_bytes(self, states: States) -> float:
        """What a device keeps of a parameter: weight, gradient and optimizer state."""


@dataclass(frozen=True, slots=True)
class ExactPlacer:
    """The default: the planner's layouts, priced as a plan on the chip prices them."""

    plain: ClassVar[bool] = False

    def place(
        self, problem: PlacementProblem, times: VariantTimes, cutoff_s: float = np.inf
    ) -> Division | None:
        if problem.planned is None:
            return None
        return problem.planned.fastest(problem, times, cutoff_s)

    def even(self, problem: PlacementProblem, times: VariantTimes, stages: int) -> Division | None:
        if problem.planned is None:
            return None
        return problem.planned.fastest(problem, times, np.inf, stages)

    def describe(
        self, problem: PlacementProblem, times: VariantTimes, division: Division
    ) -> Placement:
        assert problem.planned is not None
        return problem.planned.describe(problem, times, division)

    def depths(self, problem: PlacementProblem) -> list[int]:
        return []  # The planner's layouts have bounds of their own.

    def terms(self, problem: PlacementProblem, stages: int) -> StepTerms:
        raise NotImplementedError

    def state_bytes(self, states: States) -> float:
        return states.bytes_per_parameter
