"""The placement of layer tables is the true optimum of its cost model.

Witnesses: published optima of the reference solver, exhaustive search on small graphs, and a
plain restatement of the cost of the plan that is returned.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.base.errors import AtollError, InfeasibleError
from atoll.phaze import table_dp
from atoll.phaze.layer_table import LayerEdge, LayerGraph, LayerNode, LayerTable, read_table
from atoll.phaze.table_dp import TablePlan, plan_cost_s, solve_table

CASES = sorted((Path(__file__).parents[1] / "data" / "phaze_dp_cases").glob("*.in.json"))


def reference(path: Path) -> dict[str, Any]:
    answer = json.loads(path.with_name(path.name.replace(".in.", ".out.")).read_text())
    assert isinstance(answer, dict)
    return answer


def recomputed_s(table: LayerTable, plan: TablePlan) -> float:
    assert plan.tensor_parallel is not None and plan.data_parallel is not None
    stages = [stage.nodes for stage in plan.stages]
    return plan_cost_s(table, plan.tensor_parallel, plan.data_parallel, stages)


# --- Exhaustive search ----------------------------------------------------------------------------


def brute_force_table(table: LayerTable) -> float | None:
    """Least time per batch by trying every pipeline, copy count and order within a stage."""
    times = [
        time_s
        for width, graph in table.widths.items()
        for stages in pipelines(graph, frozenset(node.id for node in graph.nodes))
        for time_s in pipeline_times_s(table, width, stages)
    ]
    return min(times, default=None)


def pipelines(graph: LayerGraph, left: frozenset[int]) -> Iterator[list[frozenset[int]]]:
    """All ways to cut the layers left into a sequence of stages that no edge goes back in."""
    if not left:
        yield []
    for first in subsets(left):
        if first and all(
            e.source in first or e.source not in left for e in graph.edges if e.target in first
        ):
            for rest in pipelines(graph, left - first):
                yield [first, *rest]


def subsets(items: frozenset[int]) -> list[frozenset[int]]:
    found = [frozenset[int]()]
    for item in sorted(items):
        found += [subset | {item} for subset in found]
    return found


def pipeline_times_s(
    table: LayerTable, width: int, stages: list[frozenset[int]]
) -> Iterator[float]:
    """Times per batch of a pipeline for every number of copies; none if it does not fit."""
    graph, bandwidth_Bps = table.widths[width], table.bandwidth_Bps
    nodes = {node.id: node for node in graph.nodes}
    devices = 0
    loads_s = []
    for i, stage in enumerate(stages):
        following = len(stages) - 1 - i
        weights = sum(nodes[v].weight_bytes for v in stage)
        activations = sum(nodes[v].activation_bytes for v in stage)
        entering = [e for e in graph.edges if e.target in stage and e.source not in stage]
        stash = sum(e.size_bytes for e in entering) if table.recompute else activations
        weight_copies = {"SGD": 2, "Adam": 3}[table.optimizer]
        if weight_copies * weights + activations + following * stash > table.memory_bytes:
            return
        devices += width if any(nodes[v].tensor_parallel for v in stage) else 1
        again_s = sum(nodes[v].forward_s for v in stage) if table.recompute and following else 0.0
        forward_s = shortest_pass_s(graph, bandwidth_Bps, stage, False, 0.0)
        loads_s.append(forward_s + shortest_pass_s(graph, bandwidth_Bps, stage, True, again_s))
    first_bytes = sum(nodes[v].weight_bytes for v in stages[0])
    for copies in range(1, min(table.devices // devices, table.microbatches) + 1):
        rounds = math.ceil(table.microbatches / copies) + len(stages) - 1
        sync_s = 4 * (copies - 1) / copies * first_bytes / bandwidth_Bps
        yield max(loads_s) * rounds + sync_s


@cache
def shortest_pass_s(
    graph: LayerGraph, bandwidth_Bps: float, stage: frozenset[int], back: bool, start_s: float
) -> float:
    """Best finish of one pass over all orders that the edges allow."""
    nodes = {node.id: node for node in graph.nodes}
    ends = [(e.target, e.source) if back else (e.source, e.target) for e in graph.edges]
    arrival = [e.size_bytes / bandwidth_Bps for e in graph.edges]

    def finish(left: frozenset[int], clock: float) -> float:
        if not left:
            return clock
        best = math.inf
        for v in left:
            entering = [(u, s) for (u, w), s in zip(ends, arrival, strict=True) if w == v]
            if any(u in left for u, _ in entering):
                continue
            release = max((s for u, s in entering if u not in stage), default=0.0)
            duration = nodes[v].backward_s if back else nodes[v].forward_s
            best = min(best, finish(left - {v}, max(clock, release) + duration))
        return best

    return finish(stage, start_s)


# --- Random tables of small whole numbers, so that ties and exact fits do happen ------------------


@st.composite
def graphs(draw: st.DrawFn, layers: int, chain: bool) -> LayerGraph:
    size = st.integers(0, 6).map(float)
    ids = draw(st.permutations(range(-1, layers - 1)))  # ids tell nothing about the order
    nodes = [
        LayerNode(
            id=ids[i],
            weight_bytes=draw(size),
            activation_bytes=draw(size),
            forward_s=draw(size),
            backward_s=draw(size),
            tensor_parallel=draw(st.booleans()),
        )
        for i in range(layers)
    ]
    edges = [
        LayerEdge(ids[i], ids[j], draw(st.integers(0, 12).map(float)))
        for i in range(layers)
        for j in range(i + 1, layers)
        if (chain and j == i + 1) or draw(st.integers(0, 2)) == 0
    ]
    return LayerGraph(tuple(draw(st.permutations(nodes))), tuple(draw(st.permutations(edges))))


@st.composite
def tables(draw: st.DrawFn, most_layers: int, chain: bool) -> LayerTable:
    layers = draw(st.integers(1, most_layers))
    widths = draw(st.lists(st.sampled_from([1, 2, 3]), min_size=1, max_size=2, unique=True))
    return LayerTable(
        devices=draw(st.integers(1, 12)),
        memory_bytes=float(draw(st.integers(0, 90))),
        bandwidth_Bps=draw(st.sampled_from([0.5, 2.0, 7.0])),
        microbatches=draw(st.integers(1, 9)),
        recompute=draw(st.booleans()),
        optimizer=draw(st.sampled_from(["SGD", "Adam"])),
        widths={width: draw(graphs(layers, chain)) for width in sorted(widths)},
    )


def assert_optimal(table: LayerTable) -> None:
    plan = solve_table(table)
    optimum_s = brute_force_table(table)
    assert plan.time_per_batch_s == (None if optimum_s is None else pytest.approx(optimum_s))
    if plan.time_per_batch_s is not None:
        assert recomputed_s(table, plan) == pytest.approx(plan.time_per_batch_s, rel=1e-12)


@settings(max_examples=100, deadline=None)
@given(tables(most_layers=6, chain=True))
def test_chains_with_skip_edges_equal_exhaustive_search(table: LayerTable) -> None:
    assert_optimal(table)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(tables(most_layers=5, chain=False))
def test_branching_graphs_equal_exhaustive_search(table: LayerTable) -> None:
    assert_optimal(table)


@settings(max_examples=60, deadline=None)
@given(tables(most_layers=12, chain=True), st.integers(0, 12))
def test_a_layer_that_costs_nothing_and_hangs_on_nothing_changes_nothing(
    table: LayerTable, place: int
) -> None:
    # It makes a chain branch, so this holds the two ways of listing stages against each other.
    # With several copies it could be a first stage that has no weights to synchronise.
    table = replace(table, microbatches=1)
    free = LayerNode(99, 0.0, 0.0, 0.0, 0.0, tensor_parallel=False)
    branched = {
        width: LayerGraph((*graph.nodes[:place], free, *graph.nodes[place:]), graph.edges)
        for width, graph in table.widths.items()
    }
    alone_s = solve_table(table).time_per_batch_s
    branched_s = solve_table(replace(table, widths=branched)).time_per_batch_s
    assert branched_s == (None if alone_s is None else pytest.approx(alone_s))


@settings(max_examples=60, deadline=None)
@given(tables(most_layers=9, chain=False))
def test_bounds_from_a_first_plan_never_rule_out_the_optimum(table: LayerTable) -> None:
    bounded_s = solve_table(table).time_per_batch_s
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_dp, "_capped", lambda job, *_: job)
        free_s = solve_table(table).time_per_batch_s
    assert bounded_s == (None if free_s is None else pytest.approx(free_s, rel=1e-12))


@settings(max_examples=60, deadline=None)
@given(
    st.booleans().flatmap(lambda chain: tables(most_layers=8, chain=chain)),
    st.sampled_from(["bandwidth_Bps", "memory_bytes", "devices"]),
    st.integers(2, 5),
)
def test_more_bandwidth_memory_or_devices_never_hurt(
    table: LayerTable, field: str, factor: int
) -> None:
    less_s = solve_table(table).time_per_batch_s
    richer: LayerTable = replace(table, **{field: getattr(table, field) * factor})
    more_s = solve_table(richer).time_per_batch_s
    if less_s is not None:
        assert more_s is not None and more_s <= less_s * (1 + 1e-12)


# --- Against the reference ------------------------------------------------------------------------


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.name.split(".")[0])
def test_shipped_cases_match_the_reference(path: Path) -> None:
    table, answer = read_table(path), reference(path)
    plan = solve_table(table)
    for width, printed_s in answer["meta"]["tpb_per_width"].items():
        ours_s = plan.per_width_s[int(width)]
        assert ours_s == (None if printed_s >= 1e30 else pytest.approx(printed_s, rel=1e-5))
    if answer["result"] is None:
        assert "branching" in answer["meta"]["nofixed_fail"]  # the reference refuses, we do not
        assert plan.time_per_batch_s is not None
    elif answer["result"]["stages"]:
        expected_s = answer["result"]["finalTimePerBatch"]
        assert plan.time_per_batch_s == pytest.approx(expected_s, rel=1e-9)
        theirs = [stage["nodes"] for stage in answer["result"]["stages"]]
        width, copies = (answer["result"][f"{k}ParallelDegree"] for k in ("tensor", "data"))
        assert plan_cost_s(table, width, copies, theirs) == pytest.approx(expected_s, rel=1e-12)
    if plan.time_per_batch_s is not None:
        assert recomputed_s(table, plan) == pytest.approx(plan.time_per_batch_s, rel=1e-12)


def shipped(number: str) -> LayerTable:
    return read_table(next(path for path in CASES if path.name.startswith(number)))


def test_what_does_not_fit_has_no_time_and_no_stages() -> None:
    assert solve_table(shipped("04")).to_dict() == {
        "time_per_batch_s": None,
        "tensor_parallel": None,
        "data_parallel": None,
        "stages": [],
        "per_width_s": {"4": None, "8": None},
        "kind": "place",
        "format": 1,
    }


def test_the_branching_diamond_equals_exhaustive_search() -> None:
    table = shipped("20")
    assert solve_table(table).time_per_batch_s == pytest.approx(brute_force_table(table), rel=1e-12)


def test_a_plan_reports_its_stages() -> None:
    table = shipped("16")
    answer = json.loads(json.dumps(solve_table(table).to_dict()))
    assert [stage["devices"] for stage in answer["stages"]] == [1, 4, 4]
    assert [node for stage in answer["stages"] for node in stage["nodes"]] == list(range(26))
    assert all(stage["memory_bytes"] <= table.memory_bytes for stage in answer["stages"])
    rounds = math.ceil(256 / answer["data_parallel"]) + 2
    assert max(stage["load_s"] for stage in answer["stages"]) * rounds < answer["time_per_batch_s"]
    assert answer["per_width_s"]["4"] == answer["time_per_batch_s"] < answer["per_width_s"]["1"]


# --- Corners, by hand -----------------------------------------------------------------------------


def line(*layers: LayerNode, transfer_bytes: float = 0.0) -> LayerGraph:
    edges = tuple(LayerEdge(a.id, b.id, transfer_bytes) for a, b in pairwise(layers))
    return LayerGraph(layers, edges)


def layer(id: int, weight: float = 1.0, wide: bool = True) -> LayerNode:
    return LayerNode(id, weight, 0.0, 1.0, 2.0, wide)


ROOMY = LayerTable(64, 1e9, 1e9, 8, False, "SGD", {1: line(layer(0))})


def test_copies_are_limited_by_microbatches_and_devices() -> None:
    assert solve_table(ROOMY).data_parallel == 8
    assert solve_table(replace(ROOMY, devices=3)).data_parallel == 3
    assert solve_table(replace(ROOMY, microbatches=1)).data_parallel == 1


def test_a_copy_that_saves_no_round_is_not_made() -> None:
    # 8 microbatches over 4..7 copies take two rounds each; synchronisation grows with copies.
    assert solve_table(replace(ROOMY, devices=7)).data_parallel == 4


def test_layers_that_are_not_tensor_parallel_take_one_device() -> None:
    graph = line(layer(0, wide=False), layer(1), layer(2, wide=False))
    one_each = replace(ROOMY, memory_bytes=2.0, microbatches=1, widths={5: graph})
    assert solve_table(replace(one_each, devices=6)).time_per_batch_s is None
    plan = solve_table(replace(one_each, devices=7))
    assert [stage.devices for stage in plan.stages] == [1, 5, 1]


def test_a_width_beyond_the_devices_serves_layers_that_do_not_use_it() -> None:
    narrow = line(layer(0, wide=False), layer(1, wide=False))
    plan = solve_table(replace(ROOMY, devices=2, widths={4: narrow, 8: line(layer(0))}))
    assert plan.per_width_s[8] is None
    assert plan.tensor_parallel == 4 and plan.data_parallel == 2


def test_a_fit_to_the_last_byte_counts_as_fitting() -> None:
    graph = line(layer(0, weight=3.0), layer(1, weight=5.0))
    exact = replace(ROOMY, devices=1, memory_bytes=16.0, widths={1: graph})
    assert [stage.memory_bytes for stage in solve_table(exact).stages] == [16.0]
    assert solve_table(replace(exact, memory_bytes=15.999)).time_per_batch_s is None
    assert solve_table(replace(exact, optimizer="Adam")).time_per_batch_s is None
    assert solve_table(replace(exact, optimizer="Adam", memory_bytes=24.0)).stages


def test_a_long_chain_is_quick_and_exact() -> None:
    # 300 equal layers on 16 devices without transfers: one copy pays most for the pipeline.
    graph = line(*(layer(i, weight=0.0) for i in range(300)))
    plan = solve_table(replace(ROOMY, devices=16, microbatches=160, widths={1: graph}))
    assert plan.time_per_batch_s == pytest.approx(10 * 300 * 3.0)
    assert plan.data_parallel == 16


def test_too_many_closed_sets_are_refused_in_one_sentence() -> None:
    antichain = LayerGraph(tuple(layer(i) for i in range(40)), ())
    with pytest.raises(AtollError, match=r"width 2 branches into more than 40000 .*; merge"):
        solve_table(replace(ROOMY, widths={2: antichain}))


def test_as_many_closed_sets_as_allowed_are_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    table = replace(ROOMY, widths={1: LayerGraph(tuple(layer(i) for i in range(4)), ())})
    monkeypatch.setattr(table_dp, "MOST_SETS", 16)
    assert solve_table(table).time_per_batch_s is not None
    monkeypatch.setattr(table_dp, "MOST_SETS", 15)
    with pytest.raises(AtollError, match="more than 15"):
        solve_table(table)


@pytest.mark.parametrize(
    ("copies", "stages", "sentence"),
    [
        (1, [[0]], "every layer exactly once"),
        (1, [[], [0], [1]], "none be empty"),
        (1, [[1], [0]], "cannot be in a later stage"),
        (9, [[0, 1]], "9 needs 9 devices"),
        (1, [[0, 1]], "Stage 0 needs 16 bytes"),
    ],
)
def test_an_impossible_placement_has_no_cost(
    copies: int, stages: list[list[int]], sentence: str
) -> None:
    graph = line(layer(0, weight=3.0), layer(1, weight=5.0))
    with pytest.raises(InfeasibleError, match=sentence):
        plan_cost_s(replace(ROOMY, memory_bytes=12.0, widths={1: graph}), 1, copies, stages)
