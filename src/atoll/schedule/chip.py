"""Pricer for template chips: the time of a layer's pass is the makespan of its schedule."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import replace

import numpy as np

from atoll.base.arrays import Floats
from atoll.cost.chips import chips_of_accelerator
from atoll.cost.pricer import Cost, LayerTimes
from atoll.cost.table import PassSet, build_costs, capacities, flatten, pass_problem
from atoll.cost.table_kernels import Costs
from atoll.fabric.network import Network
from atoll.hardware.accelerator import Accelerator
from atoll.profile import Profile
from atoll.schedule.problem import ScheduleProblem
from atoll.schedule.solve import Effort, solve
from atoll.workload.graph.layer import Layer, predecessors
from atoll.workload.graph.operator import Operator

EFFORT: Effort = "bounded"
_ATTENTION = ("attention", "attention_bwd")
RING_TURN = "@turn"  # name suffix of the ring steps of attention after the first


class ChipPricer:
    """Pricer that schedules layers on one chip; equal layers are scheduled once. `hidden` is the
    share of collectives that software overlaps with matrix products in chunks. With `bounds_only`,
    pass times are lower bounds on the makespans, about 50 times as fast to compute.
    """

    schedules_links = True
    operand_share = 1.0
    launch_s = 0.0

    def __init__(
        self,
        chip: Accelerator,
        network: Network,
        profile: Profile,
        hidden: float = 0.0,
        *,
        bounds_only: bool = False,
    ) -> None:
        self.hidden = hidden
        self.bounds_only = bounds_only
        self.chips = chips_of_accelerator(chip, profile)
        self.peak_flops = chip.peak_flops
        self.network = network
        self.profile = profile
        self.fusion = profile.fusion
        self._times_by_layer: dict[tuple[int, int], tuple[Layer, LayerTimes]] = {}

    def layer(self, layer: Layer, ring: int, samples: int) -> LayerTimes:
        """Return the times of both passes by schedule; ring attention runs step by step."""
        key = id(layer), ring
        entry = self._times_by_layer.get(key)
        if entry is None:
            entry = self._times_by_layer[key] = layer, self._times(layer, ring)
        return entry[1]

    def kept_bytes(self, layer: Layer, dropped: Set[str] = frozenset()) -> float:
        return 0.0

    def least(self, layer: Layer, operators: Iterable[Operator], ring: int) -> Cost:
        """Return the time of matrix products at the chip's peak; all else may overlap."""
        flops = sum(p.flops * p.fraction for op in operators for p in op.matmuls)
        return Cost(matrix_s=flops / self.peak_flops)

    def beyond(
        self, layer: Layer, operators: Iterable[Operator], samples: Sequence[int], ep: int
    ) -> Floats:
        """Return zeros: no further bound is known without schedules."""
        return np.zeros(len(samples))

    def _times(self, layer: Layer, ring: int) -> LayerTimes:
        turned = in_turns(layer, ring)
        passes = flatten([turned])
        costs = build_costs(passes.keys, self.chips, self.network, self.profile)
        costs = costs._replace(link_s=costs.link_s * (1.0 - self.hidden))
        both: tuple[list[int], list[int]] = [], []
        for i, op in enumerate(turned.backward):
            both[op.weighs].append(i)

        def makespan_s(number: int, rows: Sequence[int]) -> float:
            problem = _schedule_problem(costs, passes, number, rows)
            if self.bounds_only:
                return solve(problem, effort="quick").lower_bound_s
            return solve(problem, effort=EFFORT).makespan_s

        forward_s = makespan_s(0, range(len(turned.forward)))
        backward_s = makespan_s(1, range(len(turned.backward)))
        data_s, weight_s = (makespan_s(1, rows) for rows in both)
        alone: dict[str, Cost] = {}
        for number, operators in enumerate((turned.forward, turned.backward)):
            for op, seconds in zip(operators, _alone_s(costs, passes, number), strict=True):
                name = op.name.removesuffix(RING_TURN)
                alone[name] = alone.get(name, Cost()) + _cost(op, seconds)
        return LayerTimes(
            operators=alone,
            forward=_scaled([alone[op.name] for op in layer.forward], forward_s),
            backward=_scaled([alone[op.name] for op in layer.backward], backward_s),
            data=_scaled([alone[op.name] for op in layer.backward if not op.weighs], data_s),
            weight=_scaled([alone[op.name] for op in layer.backward if op.weighs], weight_s),
        )


def in_turns(layer: Layer, ring: int) -> Layer:
    """Return a layer whose attention runs in `ring` equal steps, one per device (the causal mask is
    balanced over the devices). Each step adds to the result of the previous one.
    """
    if ring == 1:
        return layer

    def turns(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
        operators_in_turns: list[Operator] = []
        for op in operators:
            operators_in_turns.append(op)
            if op.kind in _ATTENTION:
                after = replace(op, name=f"{op.name}{RING_TURN}", reads=(*op.reads, *op.writes))
                operators_in_turns += [after] * (ring - 1)
        return tuple(operators_in_turns)

    return replace(layer, forward=turns(layer.forward), backward=turns(layer.backward))


def _alone_s(costs: Costs, passes: PassSet, number: int) -> list[float]:
    """Return the shortest duration of each operator of a pass."""
    duration, _ = pass_problem(costs, passes.arrays, number, 0)
    return [float(s) for s in duration.min(axis=1, initial=np.inf)]


def _schedule_problem(
    costs: Costs, passes: PassSet, number: int, rows: Sequence[int]
) -> ScheduleProblem:
    """Return the scheduling problem of these operators of a pass."""
    duration, demand = pass_problem(costs, passes.arrays, number, 0)
    return ScheduleProblem(
        duration_s=duration[list(rows)],
        demand=demand[list(rows)],
        capacity=capacities(costs, np.zeros(1, np.int64))[0],
        predecessors=predecessors(tuple(passes.operators(number)[i] for i in rows)),
    )


def _cost(op: Operator, seconds: float) -> Cost:
    if op.kind in _ATTENTION:
        return Cost(attention_s=seconds)
    return Cost(matrix_s=seconds) if op.matmuls else Cost(vector_s=seconds)


def _scaled(costs: Sequence[Cost], seconds: float) -> Cost:
    """Return a cost of `seconds` in total, divided by kind in proportion to the operators."""
    total = sum(costs, Cost())
    if not total.total_s:
        return Cost(vector_s=seconds)
    matrix_s = seconds * total.matrix_s / total.total_s
    attention_s = seconds * total.attention_s / total.total_s
    return Cost(matrix_s, attention_s, seconds - matrix_s - attention_s)
