"""Placement under PHAZE's assumptions: the same numbers by every road."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TypedDict

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from atoll.fabric.network import Level, Network
from atoll.phaze.flat import FlatPlan, chain_stage, describe_flat, divide_flat, fixed_flat
from atoll.placement.chain import ChainFacts, chain_facts
from atoll.workload import load_config, prepare

NETWORK = Network("flat", (Level("all", 1024, 4 * 2**30, 0.0),))
FORWARD_S = np.array([1e-3, 2e-3, 3e-3, 1e-4])  # by kind of layer
BACKWARD_S = np.array([1e-3, 4e-3, 6e-3, 2e-4])


class Job(TypedDict):
    devices: int
    tensor: int
    microbatches: int
    memory_bytes: float
    optimizer: str
    recompute: str


@cache
def facts_of() -> ChainFacts:
    config = replace(load_config("megatron-gpt2-2.5b"), layers=10)
    model = prepare(config, 1, 512, tensor_parallel=2, attention="unfused", fusion="phaze")
    return chain_facts(model, "optimal")


jobs = st.fixed_dictionaries(
    {
        "devices": st.integers(2, 48),
        "tensor": st.just(2),
        "microbatches": st.integers(1, 32),
        "memory_bytes": st.floats(0.3e9, 4e9),
        "optimizer": st.sampled_from(["adam", "sgd"]),
        "recompute": st.sampled_from(["none", "full", "optimal"]),
    }
)


def best_of(job: Job) -> FlatPlan | None:
    return divide_flat(facts_of(), FORWARD_S, BACKWARD_S, NETWORK, **job)


def by_hand(job: Job, pipeline: int, data: int) -> FlatPlan | None:
    return fixed_flat(
        facts_of(), FORWARD_S, BACKWARD_S, NETWORK, pipeline=pipeline, data=data, **job
    )


@settings(max_examples=40, deadline=None)
@given(jobs)
def test_stages_of_a_chain_cost_what_the_table_solver_says(job: Job) -> None:
    flat = best_of(job)
    assume(flat is not None)
    assert flat is not None
    stages = flat.plan.stages
    for number, stage in enumerate(stages):
        first, last = stage.nodes[0], stage.nodes[-1] + 1
        ours = chain_stage(flat.table, 2, first, last, len(stages) - number)
        assert (ours.nodes, ours.devices) == (stage.nodes, stage.devices)
        assert ours.load_s == pytest.approx(stage.load_s, rel=1e-12)
        assert ours.memory_bytes == pytest.approx(stage.memory_bytes, rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(jobs)
def test_a_described_flat_plan_adds_up(job: Job) -> None:
    flat = best_of(job)
    assume(flat is not None)
    assert flat is not None
    placement = describe_flat(facts_of(), flat, NETWORK, job["microbatches"])
    assert sum(placement.time_parts_s.values()) == pytest.approx(placement.step_time_s, rel=1e-9)
    assert placement.devices <= job["devices"]
    for stage in placement.stages:
        assert stage.total_memory_bytes <= job["memory_bytes"] * (1 + 1e-12)
        assert stage.forward_s is not None and stage.forward_s <= stage.compute_s
        assert (stage.recompute_s > 0) == (stage.recompute == "whole stage")
    recomputing = [stage.recompute_s > 0 for stage in placement.stages]
    assert recomputing == [flat.recompute] * (placement.pipeline - 1) + [False]


@settings(max_examples=40, deadline=None)
@given(jobs, st.integers(1, 6), st.integers(1, 6))
def test_an_even_layout_never_beats_the_best_one(job: Job, pipeline: int, data: int) -> None:
    even = by_hand(job, pipeline, data)
    if pipeline * data * job["tensor"] > job["devices"] or data > job["microbatches"]:
        assert even is None
    assume(even is not None)
    assert even is not None
    best = best_of(job)
    assert best is not None
    assert best.step_time_s <= even.step_time_s * (1 + 1e-12)
    placement = describe_flat(facts_of(), even, NETWORK, job["microbatches"])
    assert (placement.pipeline, placement.data) == (pipeline, data)
    assert sum(placement.time_parts_s.values()) == pytest.approx(even.step_time_s, rel=1e-9)


def test_an_even_layout_by_hand() -> None:
    job = Job(
        devices=16,
        tensor=2,
        microbatches=8,
        memory_bytes=1e12,
        optimizer="sgd",
        recompute="optimal",
    )
    even = by_hand(job, pipeline=3, data=2)
    assert even is not None and not even.recompute
    # Embedding and 3 blocks, 4 blocks, 3 blocks and head and loss.
    assert [stage.nodes for stage in even.plan.stages] == [
        (0, 1, 2, 3),
        (4, 5, 6, 7),
        (8, 9, 10, 11, 12),
    ]
    facts = facts_of()
    receive_s = facts.boundary_bytes[8] / (4 * 2**30)
    slowest_s = 3 * 6e-3 + 9e-3 + 3e-4 + receive_s
    reduction_s = 4 * (1 / 2) * 2.0 * facts.parameters[:4].sum() / (4 * 2**30)
    assert even.step_time_s == pytest.approx((4 + 2) * slowest_s + reduction_s)


@settings(max_examples=20, deadline=None)
@given(jobs)
def test_optimal_takes_the_better_of_both_recomputation_bits(job: Job) -> None:
    answers = {}
    for policy in ("none", "full", "optimal"):
        flat = best_of({**job, "recompute": policy})
        answers[policy] = np.inf if flat is None else flat.step_time_s
    assert answers["optimal"] == min(answers["none"], answers["full"])
