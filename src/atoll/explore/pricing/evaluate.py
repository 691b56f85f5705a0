"""Evaluation of nodes (a chip with a variant), from operator costs to the best placement.

Lower bounds use lower bounds on the layers' makespans; upper bounds use feasible schedules. Both
use the same exact placement, so the optimum of a node lies between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from atoll.base.arrays import Bools, Floats, Ints
from atoll.base.jit import Kernel
from atoll.base.kernel_cache import wait_for_kernels
from atoll.base.stopping import StopCheck, never
from atoll.cost import table
from atoll.cost.chips import Chips
from atoll.cost.table_kernels import Costs
from atoll.executors.threads import over_ranges
from atoll.explore.pricing.bound_kernels import layer_floors
from atoll.explore.pricing.layouts import SearchSetting
from atoll.explore.pricing.limit import operator_J, pass_J, resting_W, shortest_s
from atoll.explore.pricing.operator_work import OperatorWork, operator_work
from atoll.explore.pricing.workloads import Variant, Variants
from atoll.placement.chain import Division, PlacementProblem, VariantTimes
from atoll.schedule.bound_kernels import EPSILON
from atoll.schedule.list_kernels import Problems, quick_bounds
from atoll.schedule.problem import Schedule, ScheduleProblem
from atoll.schedule.solve import Effort, empty_quick, solve
from atoll.workload.graph.layer import predecessors

BLOCK = 256  # pairs of pass and chip whose operator options are in memory at once, per thread
HALVINGS = 5  # bisection steps to find the pass time that is sufficient for a proof


@dataclass(eq=False)
class PricedChips:
    """Chips with the cost table of all variants on them."""

    chips: Chips
    variants: Variants
    setting: SearchSetting
    costs: Costs
    work: OperatorWork

    @staticmethod
    def of(
        chips: Chips,
        variants: Variants,
        setting: SearchSetting,
        work: OperatorWork | None = None,
        *,
        floors: bool = False,
        nodes: tuple[Ints, Ints] | None = None,
    ) -> PricedChips:
        """Price all operators on the chips, or those of `nodes`, which are pairs of a chip and a
        variant; `floors` uses lower bounds for matrix products, which need no search."""
        wait_for_kernels("bounds")
        keys, profile = variants.passes.keys, setting.profile
        products = table.cost_model(chips, profile).floors if floors else None
        # Floors are as fast without a selection; a power limit takes the energy of all operators.
        wanted = None
        if nodes is not None and products is None and setting.limit is None:
            wanted = _used_configs(chips, variants, *nodes)
        costs = table.build_costs(keys, chips, setting.network, profile, products, wanted)
        operations = chips.stalls.operations or profile.vector_operations
        work = work or operator_work(keys, setting.network, operations)
        return PricedChips(chips, variants, setting, costs, work)

    @property
    def passes(self) -> table.PassSet:
        return self.variants.passes

    def schedule_bounds(self, node_chip: Ints, node_variant: Ints) -> tuple[Floats, Floats]:
        """Return fast lower and upper bounds on the passes of nodes, each of shape (nodes, layers,
        2), where the last axis is forward and backward."""

        def fill(start: int, stop: int, chips: Ints, layers: Ints, *bounds: Any) -> None:
            for at in range(2 * start, 2 * stop, BLOCK):
                both = np.arange(at, min(at + BLOCK, 2 * stop))
                seconds = self._quick_bounds(2 * layers[both // 2] + both % 2, chips[both // 2])
                for bound, pass_s in zip(bounds, seconds, strict=True):
                    bound.reshape(-1)[both] = pass_s

        lower, upper = self._bounds(node_chip, node_variant, fill, 2)
        return lower, upper

    def _quick_bounds(self, node_pass: Ints, node_chip: Ints) -> tuple[Floats, Floats]:
        graphs = self.passes.arrays
        ptr, duration, demand = table.pass_problems(self.costs, graphs, node_pass, node_chip)
        problems = Problems(
            ptr, duration, demand, table.capacities(self.costs, node_chip), graphs.ptr[node_pass],
            graphs.pred_ptr, graphs.pred_idx, self.variants.begins,
        )  # fmt: skip
        quick = empty_quick(len(node_pass), len(duration))
        quick_bounds(0, len(node_pass), problems, quick)
        return quick.lower_s, quick.upper_s

    def floors(self, node_chip: Ints, node_variant: Ints) -> Floats:
        """Return lower bounds from critical paths and total work, shape (nodes, layers, 2); faster
        than `schedule_bounds`."""
        begins, every = self.variants.begins, np.arange(len(self.costs.tensor_cores))
        capacity = table.capacities(self.costs, every) * (1.0 + EPSILON)
        tables = begins, capacity, self.costs, self.passes.arrays

        def fill(start: int, stop: int, *arguments: Any) -> None:
            layer_floors(start, stop, *tables, *arguments)

        return self._bounds(node_chip, node_variant, fill, 1)[0]

    def _bounds(
        self, node_chip: Ints, node_variant: Ints, fill: Kernel, count: int
    ) -> tuple[Floats, ...]:
        """Return `count` arrays of bounds, each of shape (nodes, layers, 2). The function
        `fill(start, stop, chips, layers, *bounds)` fills arrays of shape (chip-layer pairs, 2)."""
        ranges = self.variants.layer_ranges
        begin, layers = ranges[node_variant], np.diff(ranges)[node_variant]
        node = np.repeat(np.arange(len(node_chip)), layers)
        position = np.arange(len(node)) - np.repeat(np.cumsum(layers) - layers, layers)
        # Variants that differ only in expert parallelism share most of their layers.
        layer = self.passes.alike[begin[node] + position]
        every = len(self.passes.layers)
        pairs, number = np.unique(node_chip[node] * every + layer, return_inverse=True)
        pair_bounds = np.zeros((count, len(pairs), 2))
        arguments = (*np.divmod(pairs, every), *pair_bounds)
        over_ranges(lambda a, b: fill(a, b, *arguments), len(pairs))
        if self.setting.limit is not None:
            chip, layer = np.divmod(pairs, every)
            used, at = np.unique(layer, return_inverse=True)
            np.maximum(pair_bounds, self._limited_s(used)[at, :, chip], out=pair_bounds)
        bounds = np.zeros((count, len(node_chip), int(layers.max(initial=0)), 2))
        bounds[:, node, position] = pair_bounds[:, number]
        return tuple(bounds)

    def forward_s(self, node_chip: Ints, node_variant: Ints) -> Floats:
        """Return the shortest durations of the forward operators of each node's blocks, shape
        (nodes, operators). The kinds of blocks follow one another on the operator axis."""
        variants = self.variants.variants
        most = max(sum(len(v.passes[b.layer].forward) for b in v.facts.blocks) for v in variants)
        result = np.zeros((len(node_chip), most))
        for number in np.unique(node_variant):
            variant, rows = variants[number], np.flatnonzero(node_variant == number)
            passes = (2 * (variant.first_layer + block.layer) for block in variant.facts.blocks)
            parts = [self._alone_s(number, node_chip[rows]) for number in passes]
            operators_s = np.concatenate(parts, axis=1)
            if variant.cp > 1:  # sum over the ring steps
                operators_s = np.add.reduceat(operators_s, variant.turns, axis=1)
            result[rows, : operators_s.shape[1]] = operators_s
        return result

    def _alone_s(self, number: int, chips: Ints) -> Floats:
        """Return the shortest durations of the operators of a pass, shape (chips, operators)."""
        parts = [np.zeros((0, int(np.diff(self.passes.arrays.ptr)[number])))]
        for start in range(0, len(chips), BLOCK):
            part = chips[start : start + BLOCK]
            passes = np.full(len(part), number)
            _, duration, _ = table.pass_problems(self.costs, self.passes.arrays, passes, part)
            parts.append(duration.min(axis=1).reshape(len(part), -1))
        shortest = np.concatenate(parts)
        if self.setting.limit is None:
            return shortest
        ptr, op = self.passes.arrays.ptr, self.passes.arrays.op
        joules = self._operator_J[op[ptr[number] : ptr[number + 1]]][:, chips]
        return np.maximum(shortest, shortest_s(joules, self._left_W[chips]).T)

    @cached_property
    def _operator_J(self) -> Floats:
        return operator_J(self.chips, self.costs, self.work)

    @cached_property
    def _left_W(self) -> Floats:
        """Return the power limit minus the idle power of each chip in watts, shape (chips,)."""
        assert self.setting.limit is not None
        return self.setting.limit.of(self.chips.area_mm2) - resting_W(self.chips)

    def _limited_s(self, layers: Ints) -> Floats:
        """Return lower bounds on pass seconds from the power limit, shape (layers, 2, chips)."""
        return shortest_s(pass_J(self.passes, self._operator_J, layers), self._left_W)

    def pass_bounds(
        self, chip: int, variant: Variant, schedules: Sequence[Schedule]
    ) -> tuple[Floats, Floats]:
        """Return lower bounds and makespans of all passes, each of shape (layers, 2): those of the
        schedules, raised to the bound from the power limit."""
        lower = np.array([schedule.lower_bound_s for schedule in schedules]).reshape(-1, 2)
        upper = np.array([schedule.makespan_s for schedule in schedules]).reshape(-1, 2)
        if self.setting.limit is not None:
            layers = np.arange(variant.first_layer, variant.first_layer + len(variant.passes))
            least_s = self._limited_s(layers)[:, :, chip]
            lower, upper = np.maximum(lower, least_s), np.maximum(upper, least_s)
        return lower, upper

    def operators_s(self, chip: int, variant: Variant) -> Floats:
        """Return the shortest durations of the blocks' forward operators, shape (operators,)."""
        number = self.variants.variants.index(variant)
        row = self.forward_s(np.array([chip]), np.array([number]))[0]
        operators_s: Floats = row[: variant.facts.operator_count].copy()
        return operators_s

    def times(
        self, chip: int, variant: Variant, pass_s: Floats, most_s: Floats | None = None
    ) -> VariantTimes:
        """Combine pass times of a variant with its operator times; see `times_of`."""
        return times_of(variant, pass_s, self.operators_s(chip, variant), most_s)

    def place(
        self,
        chip: int,
        variant: Variant,
        pass_s: Floats,
        cutoff_s: float = np.inf,
        memory_bytes: float | None = None,
        most_s: Floats | None = None,
    ) -> Division | None:
        """Return the fastest placement below the cutoff with pass times of shape (layers, 2). With
        `most_s`, they are lower bounds and these upper ones; the step is then a lower bound."""
        problem = self.placement_problem(chip, variant, memory_bytes)
        return self.setting.place(problem, self.times(chip, variant, pass_s, most_s), cutoff_s)

    def placement_problem(
        self, chip: int, variant: Variant, memory_bytes: float | None = None
    ) -> PlacementProblem:
        """Return the placement problem of a variant on this chip, or with another memory size."""
        if memory_bytes is None:
            memory_bytes = float(self.chips.hbm_capacity_bytes[chip])
        return self.setting.problem(variant, memory_bytes, float(self.chips.stream_Bps[chip]))

    def problem(self, chip: int, pass_index: int) -> ScheduleProblem:
        """Return the scheduling problem of one pass on one chip."""
        duration, demand = table.pass_problem(self.costs, self.passes.arrays, pass_index, chip)
        return ScheduleProblem(
            duration_s=duration,
            demand=demand,
            capacity=table.capacities(self.costs, np.array([chip]))[0],
            predecessors=predecessors(self.passes.operators(pass_index)),
        )

    def schedules(
        self,
        chip: int,
        variant: Variant,
        effort: Effort,
        tolerance: float,
        limit_s: float = np.inf,
        stop: StopCheck = never,
    ) -> list[Schedule]:
        """Return the forward and the backward schedule of every layer of a variant, in turn.

        Passes are solved in descending order of repeats * gap. The work ends as soon as the lower
        bounds prove that no step is below `limit_s`.
        """
        wait_for_kernels("schedules")
        first = 2 * variant.first_layer
        problems = [self.problem(chip, first + i) for i in range(2 * len(variant.passes))]
        schedules = [solve(problem, effort="quick") for problem in problems]
        repeats = np.zeros(len(variant.passes))
        repeats[: variant.layers] = variant.facts.repeats
        repeats = np.repeat(np.where(repeats > 0, repeats, np.roll(repeats, variant.layers)), 2)
        gaps_s = repeats * [schedule.makespan_s - schedule.lower_bound_s for schedule in schedules]
        for number in np.argsort(-gaps_s, kind="stable").tolist():
            if schedules[number].gap <= tolerance:
                continue
            enough_s = np.inf
            if effort != "linear":  # "linear" is as fast as computing `enough_s`
                enough_s = self._enough_s(chip, variant, schedules, number, limit_s)
            schedules[number] = solve(
                problems[number], effort=effort, tolerance=tolerance, enough_s=enough_s, stop=stop
            )
            lower, upper = self.pass_bounds(chip, variant, schedules)
            if np.isfinite(limit_s) and (
                self.place(chip, variant, lower, limit_s, most_s=upper) is None
            ):
                break
        return schedules

    def _enough_s(
        self, chip: int, variant: Variant, schedules: list[Schedule], number: int, limit_s: float
    ) -> float:
        """Return how long one pass must take so that every step reaches `limit_s`, with the other
        passes fixed; infinite if its current makespan is not long enough."""
        lower, upper = self.pass_bounds(chip, variant, schedules)

        def rules_out(seconds: float) -> bool:
            lower.reshape(-1)[number] = seconds
            return self.place(chip, variant, lower, limit_s, most_s=upper) is None

        low, high = schedules[number].lower_bound_s, schedules[number].makespan_s
        if not np.isfinite(limit_s) or not rules_out(high):
            return np.inf
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            low, high = (low, middle) if rules_out(middle) else (middle, high)
        return high


def _used_configs(chips: Chips, variants: Variants, node_chip: Ints, node_variant: Ints) -> Bools:
    """Return on which tensor configurations nodes run operators, (operators, configurations)."""
    ranges, passes = variants.layer_ranges, variants.passes.arrays
    by_variant = np.zeros((len(variants.variants), len(chips.tensor_configs)), np.bool_)
    for config in chips.tensor_config[node_chip].T:
        by_variant[node_variant[config >= 0], config[config >= 0]] = True
    by_operator = np.zeros((len(variants.passes.keys), by_variant.shape[1]), np.bool_)
    spans = pairwise(passes.ptr[2 * ranges].tolist())
    for (start, stop), used in zip(spans, by_variant, strict=True):
        by_operator[np.unique(passes.op[start:stop])] |= used
    return by_operator


def times_of(
    variant: Variant, pass_s: Floats, forward_s: Floats, most_s: Floats | None = None
) -> VariantTimes:
    """Return the times of a variant's passes, or bounds on them, as a placement needs them."""
    most = None if most_s is None else times_of(variant, most_s, forward_s)
    layers = variant.layers
    end = len(variant.passes)
    return VariantTimes(pass_s[:layers], forward_s, pass_s[layers:end], most)
