"""Placement under PHAZE's assumptions: the chain as a layer table, solved exactly.

Flat network, weights and gradients of two bytes, one recomputation bit for whole stages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from atoll.errors import InfeasibleError
from atoll.fabric.network import Network
from atoll.phaze.table import LayerEdge, LayerGraph, LayerNode, LayerTable
from atoll.phaze.table_dp import TablePlan, TableStage, cost_of_plan, solve_table
from atoll.placement.chain import ChainFacts, layer_names
from atoll.placement.fixed import even_starts
from atoll.placement.plan import Placement, Stage

FloatArray = NDArray[np.float64]
_WEIGHT_BYTES = 2.0
_BITS = {"none": (False,), "full": (True,), "optimal": (False, True)}


@dataclass(frozen=True)
class FlatPlan:
    """The better of the two answers, without and with recomputation."""

    plan: TablePlan
    recompute: bool
    step_time_s: float
    table: LayerTable

    @property
    def recompute_share(self) -> float:
        """Every stage but the last runs its forward pass again, if any does."""
        tensor = self.plan.tensor_parallel
        if not self.recompute or tensor is None:
            return 0.0
        nodes = self.table.widths[tensor].nodes
        last = set(self.plan.stages[-1].nodes)
        busy_s = sum(node.forward_s + node.backward_s for node in nodes)
        again_s = sum(node.forward_s for node in nodes if node.id not in last)
        return again_s / busy_s if busy_s else 0.0


def divide_flat(
    facts: ChainFacts,
    forward_s: FloatArray,
    backward_s: FloatArray,
    network: Network,
    *,
    devices: int,
    tensor: int,
    microbatches: int,
    memory_bytes: float,
    optimizer: str,
    recompute: str,
) -> FlatPlan | None:
    """The fastest placement with times per kind of layer, or None if nothing fits."""
    best: FlatPlan | None = None
    for table in flat_tables(
        facts,
        forward_s,
        backward_s,
        network,
        devices=devices,
        tensor=tensor,
        microbatches=microbatches,
        memory_bytes=memory_bytes,
        optimizer=optimizer,
        recompute=recompute,
    ):
        plan = solve_table(table)
        step_s = plan.time_per_batch_s
        if step_s is not None and (best is None or step_s < best.step_time_s):
            best = FlatPlan(plan, table.recompute, step_s, table)
    return best


def flat_tables(
    facts: ChainFacts,
    forward_s: FloatArray,
    backward_s: FloatArray,
    network: Network,
    *,
    devices: int,
    tensor: int,
    microbatches: int,
    memory_bytes: float,
    optimizer: str,
    recompute: str,
) -> tuple[LayerTable, ...]:
    """The chain as a layer table, once for each recomputation bit that the policy allows."""
    table = LayerTable(
        devices=devices,
        memory_bytes=memory_bytes,
        bandwidth_Bps=network.levels[-1].bandwidth_Bps,
        microbatches=microbatches,
        recompute=False,
        optimizer="SGD" if optimizer == "sgd" else "Adam",
        widths={tensor: _graph(facts, forward_s, backward_s, tensor)},
        source=facts.model.name,
    )
    return tuple(replace(table, recompute=bit) for bit in _BITS[recompute])


def _graph(
    facts: ChainFacts, forward_s: FloatArray, backward_s: FloatArray, tensor: int
) -> LayerGraph:
    nodes = tuple(
        LayerNode(
            id=index,
            weight_bytes=_WEIGHT_BYTES * float(facts.parameters[index]),
            activation_bytes=float(facts.saved_bytes[index]),
            forward_s=float(forward_s[kind]),
            backward_s=float(backward_s[kind]),
            tensor_parallel=tensor > 1,
        )
        for index, kind in enumerate(facts.kind)
    )
    edges = tuple(
        LayerEdge(index, index + 1, float(facts.boundary_bytes[index + 1]))
        for index in range(len(nodes) - 1)
    )
    return LayerGraph(nodes, edges)


@dataclass(frozen=True, slots=True)
class _Parts:
    """One stage of a chain by part: seconds of one microbatch, bytes of a device."""

    forward_s: float
    backward_s: float
    recompute_s: float
    receive_s: float
    return_s: float
    state_bytes: float
    activation_bytes: float

    @property
    def transfer_s(self) -> float:
        """Gradients may arrive while the stage recomputes its forward pass."""
        return self.receive_s + max(0.0, self.return_s - self.recompute_s)


def _parts(table: LayerTable, tensor: int, first: int, last: int, from_end: int) -> _Parts:
    """Layers first..last-1 of a chain as a stage; `from_end` = 1 for the last of the pipeline."""
    graph = table.widths[tensor]
    own = graph.nodes[first:last]
    forward_s = sum(node.forward_s for node in own)
    activation_bytes = sum(node.activation_bytes for node in own)
    entering_bytes = graph.edges[first - 1].size_bytes if first > 0 else 0.0
    leaving_bytes = graph.edges[last - 1].size_bytes if last < len(graph.nodes) else 0.0
    stash_bytes = entering_bytes if table.recompute else activation_bytes
    copies = 3.0 if table.optimizer == "Adam" else 2.0
    return _Parts(
        forward_s=forward_s,
        backward_s=sum(node.backward_s for node in own),
        recompute_s=forward_s if table.recompute and from_end > 1 else 0.0,
        receive_s=entering_bytes / table.bandwidth_Bps,
        return_s=leaving_bytes / table.bandwidth_Bps,
        state_bytes=copies * sum(node.weight_bytes for node in own),
        activation_bytes=activation_bytes + (from_end - 1) * stash_bytes,
    )


def chain_stage(table: LayerTable, tensor: int, first: int, last: int, from_end: int) -> TableStage:
    """Layers first..last-1 of a table that is a chain, as a stage of it."""
    parts = _parts(table, tensor, first, last, from_end)
    return TableStage(
        nodes=tuple(node.id for node in table.widths[tensor].nodes[first:last]),
        devices=tensor,
        load_s=parts.forward_s + parts.backward_s + parts.recompute_s + parts.transfer_s,
        memory_bytes=parts.state_bytes + parts.activation_bytes,
    )


def describe_flat(
    facts: ChainFacts, flat: FlatPlan, network: Network, microbatches: int
) -> Placement:
    """Write a flat plan out like any other placement."""
    plan = flat.plan
    assert plan.tensor_parallel is not None and plan.data_parallel is not None
    stages = []
    for number, stage in enumerate(plan.stages):
        first, last = stage.nodes[0], stage.nodes[-1] + 1
        parts = _parts(flat.table, plan.tensor_parallel, first, last, len(plan.stages) - number)
        stages.append(
            Stage(
                layers=layer_names(facts, first, last),
                first=first,
                last=last,
                devices=stage.devices,
                compute_s=parts.forward_s + parts.backward_s,
                recompute_s=parts.recompute_s,
                transfer_s=parts.transfer_s,
                receive_s=parts.receive_s,
                forward_s=parts.forward_s,
                recompute="whole stage" if parts.recompute_s else "none",
                memory_bytes={
                    "states": parts.state_bytes,
                    "activations": parts.activation_bytes,
                },
            )
        )
    rounds = -(-microbatches // plan.data_parallel)
    slowest = max(stages, key=lambda stage: stage.load_s)
    data = plan.data_parallel
    weights = _WEIGHT_BYTES * float(facts.parameters[: stages[0].last].sum())
    reduction_s = 4.0 * (data - 1) / data * weights / network.levels[-1].bandwidth_Bps
    return Placement(
        pipeline=len(stages),
        tensor=plan.tensor_parallel,
        data=data,
        microbatch=facts.model.microbatch,
        microbatches=rounds,
        step_time_s=flat.step_time_s,
        stages=tuple(stages),
        time_parts_s={
            "compute": rounds * slowest.compute_s,
            "recompute": rounds * slowest.recompute_s,
            "pipeline_sends": rounds * slowest.transfer_s,
            "pipeline_bubble": (len(stages) - 1) * slowest.load_s,
            "gradient_reduction": reduction_s,
        },
    )


def fixed_flat(
    facts: ChainFacts,
    forward_s: FloatArray,
    backward_s: FloatArray,
    network: Network,
    *,
    devices: int,
    tensor: int,
    pipeline: int,
    data: int,
    microbatches: int,
    memory_bytes: float,
    optimizer: str,
    recompute: str,
) -> FlatPlan | None:
    """The even layout of so many stages and replicas, with the better recomputation bit."""
    starts = even_starts(facts.block, pipeline)
    if starts is None:
        return None
    spans = list(zip(starts, (*starts[1:], len(facts.kind)), strict=True))
    best: FlatPlan | None = None
    for table in flat_tables(
        facts,
        forward_s,
        backward_s,
        network,
        devices=devices,
        tensor=tensor,
        microbatches=microbatches,
        memory_bytes=memory_bytes,
        optimizer=optimizer,
        recompute=recompute,
    ):
        try:
            step_s = cost_of_plan(table, tensor, data, [range(*span) for span in spans])
        except InfeasibleError:
            continue
        if best is None or step_s < best.step_time_s:
            stages = tuple(
                chain_stage(table, tensor, first, last, pipeline - number)
                for number, (first, last) in enumerate(spans)
            )
            plan = TablePlan(step_s, tensor, data, stages, {tensor: step_s})
            best = FlatPlan(plan, table.recompute, step_s, table)
    return best
