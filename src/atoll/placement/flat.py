"""Placement under the seed's assumptions: the chain as a layer table, solved exactly.

Flat network, weights and gradients of two bytes, one recomputation bit for whole stages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from atoll.hardware.network import Network
from atoll.placement.chain import ChainFacts, layer_names
from atoll.placement.plan import Placement, Stage
from atoll.placement.table import LayerEdge, LayerGraph, LayerNode, LayerTable
from atoll.placement.table_dp import TablePlan, solve_table

FloatArray = NDArray[np.float64]
_WEIGHT_BYTES = 2.0


@dataclass(frozen=True)
class FlatPlan:
    """The better of the two answers, without and with recomputation."""

    plan: TablePlan
    recompute: bool
    step_time_s: float


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
    table = LayerTable(
        devices=devices,
        memory_bytes=memory_bytes,
        bandwidth_Bps=network.levels[-1].bandwidth_Bps,
        microbatches=microbatches,
        recompute=False,
        optimizer="Adam" if optimizer == "adam" else "SGD",
        widths={tensor: _graph(facts, forward_s, backward_s, tensor)},
        source=facts.model.name,
    )
    bits = {"none": (False,), "full": (True,), "optimal": (False, True)}[recompute]
    best: FlatPlan | None = None
    for bit in bits:
        plan = solve_table(replace(table, recompute=bit))
        step = plan.time_per_batch_s
        if step is not None and (best is None or step < best.step_time_s):
            best = FlatPlan(plan, bit, step)
    return best


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


def describe_flat(
    facts: ChainFacts, flat: FlatPlan, network: Network, microbatches: int
) -> Placement:
    """Write a flat plan out like any other placement."""
    plan = flat.plan
    assert plan.tensor_parallel is not None and plan.data_parallel is not None
    stages = []
    for number, stage in enumerate(plan.stages):
        first, last = stage.nodes[0], stage.nodes[-1] + 1
        again = flat.recompute and number < len(plan.stages) - 1
        stages.append(
            Stage(
                layers=layer_names(facts, first, last),
                first=first,
                last=last,
                devices=stage.devices,
                load_s=stage.load_s,
                recompute="whole stage" if again else "none",
                memory_bytes={"all": stage.memory_bytes},
            )
        )
    rounds = -(-microbatches // plan.data_parallel)
    load = max(stage.load_s for stage in stages)
    data = plan.data_parallel
    weights = _WEIGHT_BYTES * float(facts.parameters[: stages[0].last].sum())
    reduction = 4.0 * (data - 1) / data * weights / network.levels[-1].bandwidth_Bps
    return Placement(
        pipeline=len(stages),
        tensor=plan.tensor_parallel,
        data=data,
        microbatch=facts.model.microbatch,
        microbatches=rounds,
        step_time_s=flat.step_time_s,
        stages=tuple(stages),
        time_parts_s={
            "stages": rounds * load,
            "bubble": (len(stages) - 1) * load,
            "gradient reduction": reduction,
        },
    )
