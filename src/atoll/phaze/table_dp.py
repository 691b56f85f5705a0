"""Exact placement of a layer table on a flat pool of devices, under PHAZE's cost model.

A batch of m microbatches runs through a pipeline of S stages, copied d times:

    time = max load * (ceil(m/d) + S - 1) + 4 (d-1)/d * (weights of the first stage) / bandwidth

The load of a stage is its forward plus its backward time for one microbatch. One device group
runs the layers of a stage one after another, in the best order; transfers from other stages all
start at time 0. A stage takes t devices if one of its layers is tensor-parallel, and 1 otherwise.
The optimum is over every d, S, cut and width t. The graph of layers may branch.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from atoll.answers.design import TablePlan, TableStage
from atoll.base.errors import AtollError, InfeasibleError
from atoll.phaze.layer_table import LayerEdge, LayerGraph, LayerTable, topological_order
from atoll.phaze.table_kernels import (
    BACKWARD,
    FORWARD,
    RESIDENT,
    WIDE,
    Job,
    Lattice,
    PackedGraph,
    place,
)

MOST_SETS = 40_000
"""Most successor-closed sets of layers that the programme takes on."""


def solve_table(table: LayerTable) -> TablePlan:
    """The placement of least time per batch over all widths, proven by exhaustion."""
    optima = {width: _solve_width(table, width) for width in sorted(table.widths)}
    per_width_s = {width: plan.time_s if plan else None for width, plan in optima.items()}
    best = min(
        (plan for plan in optima.values() if plan), key=lambda plan: plan.time_s, default=None
    )
    if best is None:
        return TablePlan(None, None, None, (), per_width_s)
    stages = tuple(
        _stage(table, best.width, nodes, len(best.stages) - i)
        for i, nodes in enumerate(best.stages)
    )
    return TablePlan(best.time_s, best.width, best.data_parallel, stages, per_width_s)


# --- The cost of a given placement, in plain Python -----------------------------------------------


def plan_cost_s(
    table: LayerTable, width: int, data_parallel: int, stages: Sequence[Sequence[int]]
) -> float:
    """Seconds per batch of a placement given as layer ids per stage, first stage first.

    Written apart from the compiled programme, to check it. A placement that breaks a rule
    (layers missing or out of order, too many devices, too little memory) is an `InfeasibleError`.
    """
    if width not in table.widths:
        raise InfeasibleError(f"Width {width} is not one of the table's: {list(table.widths)}.")
    graph = table.widths[width]
    stage_index = {node: i for i, nodes in enumerate(stages) for node in nodes}
    placed = sorted(node for nodes in stages for node in nodes)
    if placed != sorted(node.id for node in graph.nodes) or not all(stages):
        raise InfeasibleError(
            "The stages of a placement must hold every layer exactly once, and none be empty."
        )
    for edge in graph.edges:
        if stage_index[edge.source] > stage_index[edge.target]:
            raise InfeasibleError(
                f"Layer {edge.source} feeds layer {edge.target}, so it cannot be in a later stage."
            )
    built = [_stage(table, width, nodes, len(stages) - i) for i, nodes in enumerate(stages)]
    used = data_parallel * sum(stage.devices for stage in built)
    if not 1 <= data_parallel <= table.microbatches or used > table.devices:
        raise InfeasibleError(
            f"Data parallelism {data_parallel} needs {used} devices and as many microbatches as "
            f"copies; there are {table.devices} devices and {table.microbatches} microbatches."
        )
    for i, stage in enumerate(built):
        # Sums taken in another order may differ in their last digit.
        if stage.memory_bytes > table.memory_bytes * (1 + 1e-12):
            raise InfeasibleError(
                f"Stage {i} needs {stage.memory_bytes:.6g} bytes per device; "
                f"{table.memory_bytes:.6g} are there."
            )
    first = set(built[0].nodes)
    weight_bytes = sum(node.weight_bytes for node in graph.nodes if node.id in first)
    rounds = math.ceil(table.microbatches / data_parallel) + len(stages) - 1
    sync_s = 4 * (data_parallel - 1) / data_parallel * weight_bytes / table.bandwidth_Bps
    return max(stage.load_s for stage in built) * rounds + sync_s


def _stage(table: LayerTable, width: int, nodes: Sequence[int], from_end: int) -> TableStage:
    """The stage of these layers, `from_end` = 1 for the last of the pipeline."""
    graph = table.widths[width]
    inside = set(nodes)
    members = [node for node in graph.nodes if node.id in inside]
    received = [e for e in graph.edges if e.target in inside]
    returned = [
        LayerEdge(e.target, e.source, e.size_bytes) for e in graph.edges if e.source in inside
    ]
    forward = {node.id: node.forward_s for node in members}
    backward = {node.id: node.backward_s for node in members}
    # Gradients may arrive while the stage recomputes its forward pass.
    recompute_s = sum(forward.values()) if table.recompute and from_end > 1 else 0.0
    forward_s = _serial_s(table, forward, received, 0.0)
    backward_s = _serial_s(table, backward, returned, recompute_s)

    weight_bytes = sum(node.weight_bytes for node in members)
    activation_bytes = sum(node.activation_bytes for node in members)
    input_bytes = sum(e.size_bytes for e in received if e.source not in inside)
    stash_bytes = input_bytes if table.recompute else activation_bytes
    resident_bytes = weight_copies(table.optimizer) * weight_bytes + activation_bytes
    return TableStage(
        nodes=tuple(nodes),
        devices=width if any(node.tensor_parallel for node in members) else 1,
        load_s=forward_s + backward_s,
        memory_bytes=resident_bytes + (from_end - 1) * stash_bytes,
    )


def _serial_s(
    table: LayerTable, duration_s: Mapping[int, float], edges: Iterable[LayerEdge], start_s: float
) -> float:
    """When one device, free from `start_s`, is done with these layers; `edges` enter them.

    It never waits while a layer could run, which is optimal whatever the order.
    """
    release_s = dict.fromkeys(duration_s, 0.0)
    waiting_for = dict.fromkeys(duration_s, 0)
    following: dict[int, list[int]] = {node: [] for node in duration_s}
    for edge in edges:
        if edge.source in duration_s:
            following[edge.source].append(edge.target)
            waiting_for[edge.target] += 1
        else:
            arrival_s = edge.size_bytes / table.bandwidth_Bps
            release_s[edge.target] = max(release_s[edge.target], arrival_s)
    ready = [(release_s[node], node) for node in duration_s if waiting_for[node] == 0]
    heapq.heapify(ready)
    clock_s = start_s
    while ready:
        arrival_s, node = heapq.heappop(ready)
        clock_s = max(clock_s, arrival_s) + duration_s[node]
        for after in following[node]:
            waiting_for[after] -= 1
            if waiting_for[after] == 0:
                heapq.heappush(ready, (release_s[after], after))
    return clock_s


def weight_copies(optimizer: str) -> int:
    """Weights and gradients, and with Adam one more copy, as PHAZE counts them."""
    return 3 if optimizer == "Adam" else 2


# --- The optimum of one width ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Optimum:
    time_s: float
    width: int
    data_parallel: int
    stages: tuple[tuple[int, ...], ...]


def _solve_width(table: LayerTable, width: int) -> _Optimum | None:
    layers = table.widths[width]
    order = topological_order(layers, f"{table.source}: edges.{width}")
    graph = _arrays(table, layers, order)
    job = _job(table, width, graph)
    if job is None:
        return None
    n = len(order)
    ids = [layers.nodes[i].id for i in order]
    # The suffixes of one topological order: all closed sets of a chain.
    sets = [((1 << k) - 1) << (n - k) for k in range(n + 1)]
    covers = [(k + 1, k, n - 1 - k) for k in range(n)]
    time_s, data_parallel, starts = place(graph, _lattice(n, sets, covers), job)
    joined = {(e.source, e.target) for e in layers.edges}
    if not all(pair in joined for pair in pairwise(ids)):
        sets, covers = _closed_sets(graph, f"{table.source}: the layer graph of width {width}")
        # The plan so far rules out most larger stages.
        job = _capped(job, graph, time_s)
        time_s, data_parallel, starts = place(graph, _lattice(n, sets, covers), job)
    if not starts:
        return None
    masks = [sets[k] for k in starts] + [0]
    stages = tuple(tuple(ids[v] for v in _bits(mask & ~below)) for mask, below in pairwise(masks))
    return _Optimum(time_s, width, data_parallel, stages)


def _arrays(table: LayerTable, layers: LayerGraph, order: Sequence[int]) -> PackedGraph:
    nodes = [layers.nodes[i] for i in order]
    rank = {node.id: i for i, node in enumerate(nodes)}
    copies, stash = weight_copies(table.optimizer), not table.recompute
    columns = [
        (
            node.forward_s,
            node.backward_s,
            node.weight_bytes,
            copies * node.weight_bytes + node.activation_bytes,
            node.activation_bytes * stash,
            float(node.tensor_parallel),
        )
        for node in nodes
    ]
    ends = np.array([(rank[e.source], rank[e.target]) for e in layers.edges], np.int64)
    source, target = ends.reshape(-1, 2).T
    size = np.array([e.size_bytes for e in layers.edges], np.float64)
    cost = np.stack([size / table.bandwidth_Bps, size * table.recompute], axis=-1)
    starts = np.arange(len(nodes) + 1)
    by_target, by_source = np.argsort(target, kind="stable"), np.argsort(source, kind="stable")
    return PackedGraph(
        layer=np.array(columns, np.float64),
        edge_start=np.stack(
            [np.searchsorted(target[by_target], starts), np.searchsorted(source[by_source], starts)]
        ),
        edge_node=np.stack([source[by_target], target[by_source]]),
        edge_cost=np.stack([cost[by_target], cost[by_source]]),
    )


def _job(table: LayerTable, width: int, graph: PackedGraph) -> Job | None:
    """The scalars of one width; None if not even one pipeline of it has enough devices.

    Stages are counted by kind, wide or narrow. The rarer kind is the odd one, so that its count,
    a dimension of the programme, stays small; where the kinds cost the same there is but one.
    """
    n = len(graph.layer)
    wide_layers = int(graph.layer[:, WIDE].sum())
    narrow_layers = n - wide_layers
    if wide_layers and width > table.devices:
        return None
    if width == 1 or wide_layers == 0:
        even, odd, odd_wide, odd_stages = 1, 1, -1, 0
    elif narrow_layers == 0:
        even, odd, odd_wide, odd_stages = width, width, -1, 0
    elif wide_layers < narrow_layers:
        even, odd, odd_wide, odd_stages = 1, width, 1, min(wide_layers, table.devices // width)
    else:
        even, odd, odd_wide, odd_stages = width, 1, 0, min(narrow_layers, table.devices)
    stages = min(n, table.devices // min(even, odd))
    work_s = graph.layer[:, [FORWARD, BACKWARD]].sum(axis=0) @ (1.0 + table.recompute, 1.0)
    return Job(
        devices=table.devices,
        microbatches=table.microbatches,
        memory_bytes=table.memory_bytes,
        sync_s_per_byte=4.0 / table.bandwidth_Bps,
        recompute=table.recompute,
        devices_even=even,
        devices_odd=odd,
        odd_wide=odd_wide,
        stages=stages,
        odd_stages=min(odd_stages, stages),
        work_s=float(work_s),
        cap_s=np.full(stages + 2, math.inf),
        before_s=np.full(stages + 2, math.inf),
    )


def _capped(job: Job, graph: PackedGraph, ceiling_s: float) -> Job:
    """The job without stage counts, loads and places that cannot beat or equal `ceiling_s`."""
    longest_s = float(graph.layer[:, [FORWARD, BACKWARD]].sum(axis=1).max())
    resident_bytes = float(graph.layer[:, RESIDENT].sum())
    load_s: dict[int, float] = {}  # what a stage of so many may load
    for stages in range(1, job.stages + 1):
        copies = job.devices // (stages * min(job.devices_even, job.devices_odd))
        rounds = -(-job.microbatches // min(copies, job.microbatches)) + stages - 1
        # The margins let an equal plan through in spite of rounding.
        most_s = ceiling_s * (1 + 1e-9) / rounds
        fits = resident_bytes <= stages * job.memory_bytes * (1 + 1e-9)
        # The last stage does not recompute, which saves it at most its own load.
        if fits and max(longest_s, job.work_s / (stages + job.recompute)) <= most_s:
            load_s[stages] = most_s
    most = max(load_s, default=1)
    cap_s = np.full(most + 2, -1.0)
    before_s = np.full(most + 2, 1e-9 * job.work_s)
    for s in range(most + 1):
        for stages, most_s in load_s.items():
            if stages >= s:
                cap_s[s] = max(cap_s[s], most_s)
            if stages > s:
                before_s[s] = max(before_s[s], (stages - s) * most_s)
    odd_stages = min(job.odd_stages, most)
    return job._replace(stages=most, odd_stages=odd_stages, cap_s=cap_s, before_s=before_s)


# --- Successor-closed sets, as bit masks over topological ranks -----------------------------------


def _closed_sets(graph: PackedGraph, where: str) -> tuple[list[int], list[tuple[int, int, int]]]:
    """All closed sets, smaller first, and the triples (set, set one layer below, that layer)."""
    n = len(graph.layer)
    before, after = (
        [_neighbours(graph, direction, v) for v in range(n)] for direction in (FORWARD, BACKWARD)
    )
    sets = [0]
    index = {0: 0}
    addable = [sum(1 << v for v in range(n) if after[v] == 0)]
    covers: list[tuple[int, int, int]] = []
    for k, mask in enumerate(sets):  # grows while it is walked
        for v in _bits(addable[k]):
            larger = mask | 1 << v
            if larger not in index:
                if len(sets) == MOST_SETS:
                    raise AtollError(
                        f"{where} branches into more than {MOST_SETS} successor-closed sets of "
                        "layers, too many to place exactly; merge parallel layers into one."
                    )
                index[larger] = len(sets)
                sets.append(larger)
                freed = sum(1 << u for u in _bits(before[v]) if after[u] & ~larger == 0)
                addable.append(addable[k] & ~(1 << v) | freed)
            covers.append((index[larger], k, v))
    return sets, covers


def _lattice(n: int, sets: Sequence[int], covers: Sequence[tuple[int, int, int]]) -> Lattice:
    width = (n + 7) // 8
    raw = np.frombuffer(b"".join(mask.to_bytes(width, "little") for mask in sets), np.uint8)
    member = np.unpackbits(raw.reshape(len(sets), width), axis=1, bitorder="little")[:, :n]
    table = np.array(covers, np.int64)
    table = table[np.argsort(table[:, 0], kind="stable")]
    return Lattice(
        member=np.ascontiguousarray(member),
        below_start=np.searchsorted(table[:, 0], np.arange(len(sets) + 1)),
        below=np.ascontiguousarray(table[:, 1:]),
    )


def _neighbours(graph: PackedGraph, direction: int, v: int) -> int:
    start, end = graph.edge_start[direction, v : v + 2]
    return sum(1 << int(w) for w in set(graph.edge_node[direction, start:end]))


def _bits(mask: int) -> list[int]:
    """Ranks in the mask, ascending."""
    return [rank for rank in range(mask.bit_length()) if mask >> rank & 1]
