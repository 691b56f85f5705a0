"""PHAZE's placement of a chain of layers: the chain as a layer table, solved exactly.

Flat network, weights and gradients of two bytes, one recomputation bit for whole stages, replicas
of which some may run a microbatch less.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.answers.design import PlacedStageAnswer, PlacementAnswer
from atoll.base.arrays import Floats
from atoll.base.errors import InfeasibleError
from atoll.phaze.layer_table import LayerEdge, LayerGraph, LayerNode, LayerTable
from atoll.phaze.table_dp import plan_cost_s, solve_table, weight_copies
from atoll.placement.chain import (
    Division,
    PlacementProblem,
    StepFloors,
    VariantTimes,
    even_starts,
    layer_names,
)
from atoll.step.states import States

_WEIGHT_BYTES = 2.0
_BITS = {"none": (False,), "full": (True,), "optimal": (False, True)}


@dataclass(frozen=True, slots=True)
class PhazePlacer:
    """A `Placer` that returns the better placement without and with recomputation."""

    def fastest(
        self,
        problem: PlacementProblem,
        times: VariantTimes,
        cutoff_s: float,
        even_stages: int | None = None,
    ) -> Division | None:
        if even_stages is not None:
            return _even(problem, times, even_stages)
        best: Division | None = None
        for bit in _BITS[problem.recompute]:
            plan = solve_table(layer_table(problem, times, bit))
            step_s, data = plan.time_per_batch_s, plan.data_parallel
            if step_s is not None and data is not None and step_s < cutoff_s:
                starts = [stage.nodes[0] for stage in plan.stages]
                best = _division(problem, times, bit, step_s, data, starts)
                cutoff_s = step_s
        return best

    def describe(
        self, problem: PlacementProblem, times: VariantTimes, division: Division
    ) -> PlacementAnswer:
        # A single stage has nothing to recompute, whatever the bit.
        table = layer_table(problem, times, division.recompute_share > 0.0)
        spans = list(_spans(problem, division.starts))
        stages = tuple(
            _stage(problem, table, first, last, division.pipeline - number)
            for number, (first, last) in enumerate(spans)
        )
        data = division.data
        rounds = -(-problem.microbatches // data)
        slowest = max(stages, key=lambda stage: stage.load_s)
        return PlacementAnswer(
            pipeline=len(stages),
            tensor=problem.tp,
            data=data,
            microbatch=problem.facts.model.microbatch,
            microbatches=rounds,
            step_time_s=division.step_time_s,
            stages=stages,
            time_parts_s={
                "compute": rounds * slowest.compute_s,
                "recompute": rounds * slowest.recompute_s,
                "pipeline_sends": rounds * slowest.transfer_s,
                "pipeline_bubble": (len(stages) - 1) * slowest.load_s,
                "gradient_reduction": float(_reduction_s(problem, data, spans[0][1])),
            },
            schedule="1f1b",
            zero=0,
            cp=1,
            ep=1,
            etp=None,
            vpp=1,
        )

    def floors(self, problem: PlacementProblem, least_s: float) -> StepFloors:
        """Return those of pipelines that fit weights, gradients and the activations of one
        microbatch, which are resident whether they are recomputed or not."""
        facts, rows = problem.facts, []
        resident = self.state_bytes(problem.states) * facts.parameters.sum()
        resident += facts.saved_bytes.sum()
        for stages in range(1, min(len(facts.kind), problem.devices // problem.tp) + 1):
            if resident / stages <= problem.memory_bytes:
                # From many replicas to few: loads only grow, so only a cheaper reduction helps.
                data = np.arange(problem.most_replicas(stages), 0, -1, dtype=np.int64)
                loads = np.asarray(-(-problem.microbatches // data) + stages - 1, np.float64)
                # The first stage has at least one layer.
                fixed_s = _reduction_s(problem, data, 1)
                kept = undominated(loads, fixed_s, least_s / stages)
                rows += [(stages, 1, loads[i], 0.0, fixed_s[i]) for i in kept]
        columns = np.array(rows, np.float64).reshape(-1, 5).T
        no_paths = np.zeros((len(StepFloors._fields) - 5, len(rows)))
        stages_and_copies = columns[:2].astype(np.int64)
        return StepFloors(*stages_and_copies, *columns[2:], *no_paths)

    def state_bytes(self, states: States) -> float:
        return _WEIGHT_BYTES * weight_copies(_optimizer(states))


def _even(problem: PlacementProblem, times: VariantTimes, stages: int) -> Division | None:
    """Divide the blocks evenly over `stages` stages with the most replicas, if that is possible."""
    starts = even_starts(problem.facts.block, stages)
    if starts is None:
        return None
    data = problem.most_replicas(stages)
    best: Division | None = None
    for bit in _BITS[problem.recompute]:
        table = layer_table(problem, times, bit)
        try:
            step_s = plan_cost_s(
                table, problem.tp, data, [range(*span) for span in _spans(problem, starts)]
            )
        except InfeasibleError:
            continue
        if best is None or step_s < best.step_time_s:
            best = _division(problem, times, bit, step_s, data, starts)
    return best


def layer_table(problem: PlacementProblem, times: VariantTimes, recompute: bool) -> LayerTable:
    """The chain as a table of one width."""
    facts, tensor = problem.facts, problem.tp
    passes_s = times.pass_s[facts.kind, :2].tolist()
    rows = zip(facts.parameters.tolist(), facts.saved_bytes.tolist(), passes_s, strict=True)
    nodes = tuple(
        LayerNode(index, _WEIGHT_BYTES * weights, float(saved), forward_s, backward_s, tensor > 1)
        for index, (weights, saved, (forward_s, backward_s)) in enumerate(rows)
    )
    sizes = facts.boundary_bytes[1 : len(nodes)].tolist()
    edges = tuple(LayerEdge(i, i + 1, float(size)) for i, size in enumerate(sizes))
    return LayerTable(
        devices=problem.devices,
        memory_bytes=problem.memory_bytes,
        bandwidth_Bps=problem.network.levels[-1].bandwidth_Bps,
        microbatches=problem.microbatches,
        recompute=recompute,
        optimizer=_optimizer(problem.states),
        widths={tensor: LayerGraph(nodes, edges)},
        source=facts.model.name,
    )


def _optimizer(states: States) -> str:
    return "SGD" if states.name == "sgd" else "Adam"


def _spans(problem: PlacementProblem, starts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """First layer of each stage, and of the next."""
    return zip(starts, (*starts[1:], len(problem.facts.kind)), strict=True)


def _division(
    problem: PlacementProblem,
    times: VariantTimes,
    recompute: bool,
    step_s: float,
    data: int,
    starts: Sequence[int],
) -> Division:
    """Describe a division; with recomputation every stage but the last reruns its forward pass."""
    times_s = times.pass_s[problem.facts.kind]
    rerun_s = times_s[: starts[-1], 0].sum() if recompute else 0.0
    share = float(rerun_s / times_s.sum()) if rerun_s else 0.0
    return Division(step_s, len(starts), data, tuple(starts), share)


def _reduction_s(problem: PlacementProblem, data: NDArray[np.int64] | int, layers: int) -> Floats:
    """PHAZE counts two all-reduces of the first stage's weights."""
    weight_bytes = _WEIGHT_BYTES * problem.facts.parameters[:layers].sum()
    Bps = problem.network.levels[-1].bandwidth_Bps
    return np.asarray(4.0 * (data - 1) / data * weight_bytes / Bps)


def undominated(loads: Floats, fixed_s: Floats, load_s: float) -> list[int]:
    """Return the indices of layouts (by ascending loads) that no earlier one dominates on every
    chip whose largest load is at least `load_s`: a step takes loads * (largest load) + fixed_s.
    """
    least_s = np.inf
    kept = []
    for i, step_s in enumerate((loads * load_s + fixed_s).tolist()):
        if step_s < least_s:
            kept.append(i)
            least_s = step_s
    return kept


def _stage(
    problem: PlacementProblem, table: LayerTable, first: int, last: int, from_end: int
) -> PlacedStageAnswer:
    """Layers first..last-1 of a chain as a stage; `from_end` = 1 for the last of the pipeline."""
    graph = table.widths[problem.tp]
    nodes = graph.nodes[first:last]
    forward_s = sum(node.forward_s for node in nodes)
    recompute_s = forward_s if table.recompute and from_end > 1 else 0.0
    entering_bytes = graph.edges[first - 1].size_bytes if first > 0 else 0.0
    leaving_bytes = graph.edges[last - 1].size_bytes if last < len(graph.nodes) else 0.0
    receive_s = entering_bytes / table.bandwidth_Bps
    return_s = leaving_bytes / table.bandwidth_Bps
    weight_bytes = sum(node.weight_bytes for node in nodes)
    activation_bytes = sum(node.activation_bytes for node in nodes)
    stash_bytes = entering_bytes if table.recompute else activation_bytes
    return PlacedStageAnswer(
        layers=layer_names(problem.facts, first, last),
        devices=problem.tp,
        compute_s=forward_s + sum(node.backward_s for node in nodes),
        recompute_s=recompute_s,
        # Gradients may arrive while the stage recomputes its forward pass.
        transfer_s=receive_s + max(0.0, return_s - recompute_s),
        receive_s=receive_s,
        forward_s=forward_s,
        weight_s=None,
        chunks=(),
        recompute="whole stage" if recompute_s else "none",
        memory_bytes={
            "weights": weight_bytes,
            "gradients": weight_bytes,
            "optimizer": (weight_copies(table.optimizer) - 2) * weight_bytes,
            "activations": activation_bytes + (from_end - 1) * stash_bytes,
        },
    )
