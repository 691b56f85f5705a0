"""Placement under PHAZE's assumptions: the same numbers by every road."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from atoll.fabric.network import FabricLevel, Network
from atoll.phaze.placer import PhazePlacer, layer_table
from atoll.phaze.table_dp import solve_table
from atoll.placement.chain import PlacementProblem, VariantTimes, layer_names
from atoll.placement.facts import ChainFacts, chain_facts
from atoll.placement.replay import replay_difference
from atoll.profiles import PHAZE
from atoll.step.states import load_states
from atoll.workload import load_config, prepare

NETWORK = Network("flat", (FabricLevel("all", 1024, 4 * 2**30, 0.0),))
PASS_S = np.array([(1e-3, 1e-3), (2e-3, 4e-3), (3e-3, 6e-3), (1e-4, 2e-4)])  # by kind of layer
TIMES = VariantTimes(PASS_S, np.zeros(0))
PLACER = PhazePlacer()


@cache
def facts_of() -> ChainFacts:
    config = replace(load_config("megatron-gpt2-2.5b"), layers=10)
    model = prepare(config, 1, 512, tp=2, attention="unfused", fusion="phaze")
    return chain_facts(model, "optimal")


problems = st.builds(
    lambda devices, microbatches, memory_bytes, optimizer, recompute: PlacementProblem(
        NETWORK, load_states(optimizer), facts_of(), devices, 2, microbatches, memory_bytes, 1e12,
        recompute,
    ),
    st.integers(2, 48),
    st.integers(1, 32),
    st.floats(0.3e9, 4e9),
    st.sampled_from(["mixed", "sgd"]),
    st.sampled_from(["none", "full", "optimal"]),
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(problems)
def test_stages_of_a_chain_cost_what_the_table_solver_says(problem: PlacementProblem) -> None:
    best = PLACER.fastest(problem, TIMES, np.inf)
    assume(best is not None)
    assert best is not None
    described = PLACER.describe(problem, TIMES, best).stages
    solved = solve_table(layer_table(problem, TIMES, best.recompute_share > 0.0)).stages
    ends = (*best.starts[1:], len(problem.facts.kind))
    for ours, first, last, stage in zip(described, best.starts, ends, solved, strict=True):
        assert ours.layers == layer_names(problem.facts, first, last)
        assert tuple(range(first, last)) == stage.nodes
        assert ours.devices == stage.devices
        assert ours.load_s == pytest.approx(stage.load_s, rel=1e-12)
        assert ours.total_memory_bytes == pytest.approx(stage.memory_bytes, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(problems)
def test_a_described_plan_adds_up(problem: PlacementProblem) -> None:
    best = PLACER.fastest(problem, TIMES, np.inf)
    assume(best is not None)
    assert best is not None
    placement = PLACER.describe(problem, TIMES, best)
    assert sum(placement.time_parts_s.values()) == pytest.approx(placement.step_time_s, rel=1e-9)
    assert placement.recompute_share == pytest.approx(best.recompute_share, rel=1e-9)
    assert placement.devices <= problem.devices
    for stage in placement.stages:
        assert stage.total_memory_bytes <= problem.memory_bytes * (1 + 1e-12)
        assert stage.forward_s is not None and stage.forward_s <= stage.compute_s
        assert (stage.recompute_s > 0) == (stage.recompute == "whole stage")
    recomputing = [stage.recompute_s > 0 for stage in placement.stages]
    whole = best.recompute_share > 0.0
    assert recomputing == [whole] * (placement.pipeline - 1) + [False]


@settings(max_examples=40, deadline=None)
@given(problems)
def test_nothing_is_found_below_the_best(problem: PlacementProblem) -> None:
    best = PLACER.fastest(problem, TIMES, np.inf)
    assume(best is not None)
    assert best is not None
    assert PLACER.fastest(problem, TIMES, best.step_time_s) is None
    assert PLACER.fastest(problem, TIMES, best.step_time_s * 1.001) == best


@settings(max_examples=40, deadline=None)
@given(problems, st.integers(1, 6))
def test_an_even_layout_never_beats_the_best_one(problem: PlacementProblem, stages: int) -> None:
    even = PLACER.fastest(problem, TIMES, np.inf, stages)
    if stages * problem.tp > problem.devices:
        assert even is None
    assume(even is not None)
    assert even is not None
    best = PLACER.fastest(problem, TIMES, np.inf)
    assert best is not None
    assert best.step_time_s <= even.step_time_s * (1 + 1e-12)
    placement = PLACER.describe(problem, TIMES, even)
    assert placement.pipeline == stages
    assert placement.data == problem.most_replicas(stages)
    assert sum(placement.time_parts_s.values()) == pytest.approx(even.step_time_s, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(problems)
def test_a_bound_considers_the_best_plan_and_lies_below_it(problem: PlacementProblem) -> None:
    best = PLACER.fastest(problem, TIMES, np.inf)
    assume(best is not None)
    assert best is not None
    total_s = PASS_S[problem.facts.kind].sum()
    floors = PLACER.floors(problem, total_s)
    rows = floors.stages == best.pipeline
    least_s = floors.loads[rows] * total_s / best.pipeline + floors.fixed_s[rows]
    assert least_s.min() <= best.step_time_s * (1 + 1e-12)


def test_an_even_layout_by_hand() -> None:
    problem = PlacementProblem(NETWORK, load_states("sgd"), facts_of(), 12, 2, 8, 1e12, 1e12)
    even = PLACER.fastest(problem, TIMES, np.inf, 3)
    assert even is not None and even.recompute_share == 0.0
    # Embedding and 3 blocks, 4 blocks, 3 blocks and head and loss.
    assert (even.starts, even.data) == ((0, 4, 8), 2)
    facts = facts_of()
    receive_s = facts.boundary_bytes[8] / (4 * 2**30)
    slowest_s = 3 * 6e-3 + 9e-3 + 3e-4 + receive_s
    reduction_s = 4 * (1 / 2) * 2.0 * facts.parameters[:4].sum() / (4 * 2**30)
    assert even.step_time_s == pytest.approx((4 + 2) * slowest_s + reduction_s)


@settings(max_examples=20, deadline=None)
@given(problems)
def test_optimal_takes_the_better_of_both_recomputation_bits(problem: PlacementProblem) -> None:
    answers = {}
    for policy in ("none", "full", "optimal"):
        found = PLACER.fastest(replace(problem, recompute=policy), TIMES, np.inf)
        answers[policy] = np.inf if found is None else found.step_time_s
    assert answers["optimal"] == min(answers["none"], answers["full"])


def test_a_replay_never_exceeds_the_formula() -> None:
    # It counts every stage as the slowest.
    model = prepare(load_config("gpt2-xl"), 1, 1024, attention="unfused", fusion="phaze")
    problem = PlacementProblem(
        NETWORK, load_states("sgd"), chain_facts(model, "optimal"), 32, 1, 64, 6e9, 1e12
    )
    best = PLACER.fastest(problem, TIMES, np.inf)
    assert best is not None and best.pipeline > 2
    placement = PLACER.describe(problem, TIMES, best)
    assert -0.5 < replay_difference(placement) <= 1e-9


def test_workers_get_the_profile_itself() -> None:
    assert pickle.loads(pickle.dumps(PHAZE)) == PHAZE
