"""Placement interface of a profile, and its default implementation."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from atoll.answers.design import PlacementAnswer
from atoll.base.arrays import Floats
from atoll.placement.chain import Division, PlacementProblem, VariantTimes
from atoll.step.states import States


class StepTerms(NamedTuple):
    """Terms of lower bounds on the step time, loads * (largest stage load) + fixed_s, of shape
    (replica counts,), fewest replicas first."""

    stages: int
    loads: Floats
    fixed_s: Floats
    """Lower bound on gradient reduction and optimizer."""


class Placer(Protocol):
    """Interface for the placement of chains of layers."""

    @property
    def plain(self) -> bool:
        """Return whether only data, tensor and pipeline parallelism are supported."""

    def place(
        self, problem: PlacementProblem, times: VariantTimes, cutoff_s: float = np.inf
    ) -> Division | None:
        """Return the fastest placement below the cutoff, or None."""

    def even(self, problem: PlacementProblem, times: VariantTimes, stages: int) -> Division | None:
        """Return the placement of a human expert: blocks divided evenly over `stages` stages, with
        the most replicas; None if it is not possible."""

    def describe(
        self, problem: PlacementProblem, times: VariantTimes, division: Division
    ) -> PlacementAnswer:
        """Return the full placement of a division: stages, memory by part, time by cause."""

    def step_terms(self, problem: PlacementProblem) -> Iterable[StepTerms]:
        """Return the terms of lower bounds for each number of stages that may fit; none of the
        planner's layouts, which have their own (`PricedLayouts.floors`)."""

    def state_bytes(self, states: States) -> float:
        """Return the bytes per parameter of weight, gradient and optimizer state."""


@dataclass(frozen=True, slots=True)
class ExactPlacer:
    """Default placer: the planner's layouts, with the same step times as a plan on the chip."""

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
    ) -> PlacementAnswer:
        assert problem.planned is not None
        return problem.planned.describe(problem, times, division)

    def step_terms(self, problem: PlacementProblem) -> Iterable[StepTerms]:
        return ()

    def state_bytes(self, states: States) -> float:
        return states.bytes_per_parameter
