"""A profile's rule of placement: what a search asks of it, and the default's answers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Protocol

import numpy as np

from atoll.base.arrays import FloatArray
from atoll.placement.chain import (
    Division,
    PlacementProblem,
    VariantTimes,
    describe,
    divide,
    fixed_division,
    make_chain,
)
from atoll.placement.chain_kernels import equal_replicas, feasible_depths, reduction_s
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
    """The default: recomputation by operator, nested networks, equal replicas; and the layouts that
    the problem has beside such divisions.
    """

    plain: ClassVar[bool] = False

    def place(
        self, problem: PlacementProblem, times: VariantTimes, cutoff_s: float = np.inf
    ) -> Division | None:
        best: Division | None = None
        if problem.divides:
            chain = times.chain(problem)
            for zero, system in problem.systems:
                division = divide(chain, system, cutoff_s)
                if division is not None:
                    best, cutoff_s = replace(division, zero=zero), division.step_time_s
        if problem.planned is not None:
            best = problem.planned.fastest(problem, times, cutoff_s) or best
        return best

    def even(self, problem: PlacementProblem, times: VariantTimes, stages: int) -> Division | None:
        most = problem.most_replicas(stages)
        data = int(equal_replicas(problem.microbatches, most)[most])
        chain = times.chain(problem)
        divisions = (
            (zero, fixed_division(chain, system, pipeline=stages, data=data))
            for zero, system in problem.systems
        )
        feasible = [
            replace(division, zero=zero) for zero, division in divisions if division is not None
        ]
        return min(feasible, key=lambda division: division.step_time_s, default=None)

    def describe(
        self, problem: PlacementProblem, times: VariantTimes, division: Division
    ) -> Placement:
        if division.layout is not None and problem.planned is not None:
            return problem.planned.describe(problem, times, division)
        return describe(problem, times.chain(problem), division, times.pass_s[:, 0])

    def depths(self, problem: PlacementProblem) -> list[int]:
        """Those that fit with full recomputation."""
        if not problem.divides:
            return []
        facts, widest = problem.facts, problem.devices // problem.tp
        chain = make_chain(facts, np.zeros(len(facts.layers)), np.ones(facts.operator_count))
        fits = np.any([feasible_depths(chain, system) for _, system in problem.systems], axis=0)
        replicas = equal_replicas(problem.microbatches, widest)
        # With fewer microbatches than stages less is in flight: those depths are never ruled out.
        return [
            p
            for p in range(1, min(len(facts.kind), widest) + 1)
            if fits[p] or problem.microbatches // int(replicas[widest // p]) < p
        ]

    def terms(self, problem: PlacementProblem, stages: int) -> StepTerms:
        facts = problem.facts
        data = np.arange(1, problem.most_replicas(stages) + 1)
        data = data[problem.microbatches % data == 0]
        per_stage = (facts.parameters.sum() - facts.model.shared_parameters) / stages
        fixed_s = np.full(len(data), np.inf)
        for _, system in problem.systems:
            reduce_s = np.array([reduction_s(system, d, per_stage) for d in data.tolist()])
            fixed_s = np.minimum(fixed_s, reduce_s + system.optimizer_s[data] * per_stage)
        transfer_s = np.zeros(len(data))
        if stages > 1:
            least_s = system.cut_s[:, 1:-1].min(axis=1)
            transfer_s = 2.0 * (stages - 1) * least_s[system.cut_kind[data, stages]]
        rounds = problem.microbatches // data
        return StepTerms(rounds - 1.0, 1.0, transfer_s, fixed_s)

    def state_bytes(self, states: States) -> float:
        return states.bytes_per_parameter
