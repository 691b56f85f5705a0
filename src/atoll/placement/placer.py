"""A profile's rule of placement: what a search asks of it, and the default's answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from atoll.arrays import FloatArray
from atoll.placement.chain import (
    Division,
    PlacementProblem,
    Times,
    describe,
    fixed_division,
)
from atoll.placement.chain_kernels import equal_replicas
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
        self, problem: PlacementProblem, times: Times, cutoff_s: float = np.inf
    ) -> Division | None:
        """The fastest placement below the cutoff, or None."""

    def even(self, problem: PlacementProblem, times: Times, stages: int) -> Division | None:
        """An expert's: blocks spread evenly over so many stages, with as many replicas as there
        is room for; None where it is not possible."""

    def describe(self, problem: PlacementProblem, times: Times, division: Division) -> Placement:
        """A division in full: stages, memory by part, time by cause."""

    def depths(self, problem: PlacementProblem) -> list[int]:
        """Numbers of stages that may fit: a bound considers no others."""

    def terms(self, problem: PlacementProblem, stages: int) -> StepTerms:
        """What a step of so many stages is made of, from below."""

    def state_bytes(self, states: States) -> float:
        """What a device keeps of a parameter: weight, gradient and optimizer state."""


@dataclass(frozen=True, slots=True)
class ExactPlacer:
    """The default: recomputation by operator, nested networks, equal replicas, with the layouts
    that the problem lists.
    """

    plain: ClassVar[bool] = False

    def place(
        self, problem: PlacementProblem, times: Times, cutoff_s: float = np.inf
    ) -> Division | None:
        if problem.others is None:
            return None
        return problem.others.fastest(problem, times, cutoff_s)

    def even(self, problem: PlacementProblem, times: Times, stages: int) -> Division | None:
        most = problem.most_replicas(stages)
        data = int(equal_replicas(problem.microbatches, most)[most])
        chain = times.chain(problem)
        found = (
            (zero, fixed_division(chain, system, pipeline=stages, data=data))
            for zero, system in problem.systems
        )
        known = [replace(division, zero=zero) for zero, division in found if division is not None]
        return min(known, key=lambda division: division.step_time_s, default=None)

    def describe(self, problem: PlacementProblem, times: Times, division: Division) -> Placement:
        if division.layout is not None and problem.others is not None:
            return problem.others.describe(problem, times, division)
        return describe(problem, times.chain(problem), division, times.pass_s[:, 0])

    def depths(self, problem: PlacementProblem) -> list[int]:
        """None: all its layouts are priced one by one."""
        return []

    def terms(self, problem: PlacementProblem, stages: int) -> StepTerms:
        raise NotImplementedError

    def state_bytes(self, states: States) -> float:
        return states.held
