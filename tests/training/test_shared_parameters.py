"""Ranks that share parameters: replicas of the sharded group, and the two copies of DualPipe."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from training_cases import GB, dense, flat, grouped, mixture, small_run

from atoll.fabric.network import FabricLevel, Network
from atoll.step.layout import Layout
from atoll.training.estimate import Estimator, estimate
from atoll.training.step import Stepper
from oracles.step_by_layer import gradient_s, shared_s

PARAMETERS = 1e9
RATE_Bps = 10 * GB


def seconds(layout: Layout, expert: float = 0.0) -> float:
    """Gradients and weights of so many parameters, on one level without latency."""
    run = small_run(mixture(), devices=layout.devices, network=flat(RATE_Bps))
    return gradient_s(Stepper(run, layout), PARAMETERS, expert)[0]


@pytest.mark.parametrize("replicas", [1, 2, 4, 8, 16])
def test_gradients_are_scattered_inside_a_replica_and_summed_over_replicas(replicas: int) -> None:
    """4 bytes a gradient, 2 a weight; an all-reduce takes two passes of a ring."""
    inside = 16 // replicas
    scatter = 4 * PARAMETERS * (inside - 1) / inside
    total = 2 * (4 * PARAMETERS / inside) * (replicas - 1) / replicas
    gather = 2 * PARAMETERS * (inside - 1) / inside
    found = seconds(Layout(dp=8, cp=2, hsdp=replicas))
    assert found == pytest.approx((scatter + total + gather) / RATE_Bps)


def test_experts_are_replicated_inside_the_same_replicas() -> None:
    layout = Layout(dp=16, ep=4, hsdp=2)
    alone = seconds(layout, PARAMETERS) - seconds(layout)
    # Two of the four copies in each replica.
    scatter, total, gather = 4 * PARAMETERS / 2, 2 * (4 * PARAMETERS / 2) / 2, 2 * PARAMETERS / 2
    assert alone == pytest.approx((scatter + total + gather) / RATE_Bps)


@pytest.mark.parametrize("zero", [0, 1])
@pytest.mark.parametrize("dp", [1, 2, 8])
def test_both_copies_of_a_bidirectional_pipeline_sum_their_gradients(zero: int, dp: int) -> None:
    """As many bytes as one collective over all ranks that share a parameter: twice dp."""
    found = seconds(Layout(dp=dp, pp=4, zero=zero, schedule="dualpipe"))
    assert found == pytest.approx(seconds(Layout(dp=2 * dp, zero=zero)))


def test_replicas_keep_gathers_inside_a_node() -> None:
    """Nodes of 8 with slow links between them, which the sum over replicas alone crosses."""
    slow = Network(
        "slow", (FabricLevel("node", 8, 400 * GB, 0.0), FabricLevel("pod", 64, 1 * GB, 0.0))
    )
    run = small_run(grouped(), devices=32, global_batch=32, network=slow)
    whole, inside = (
        shared_s(Stepper(run, Layout(dp=32, zero=3, hsdp=replicas)), PARAMETERS, 0.0)
        for replicas in (1, 4)
    )
    assert inside[0] < 0.05 * whole[0]
    assert inside[1] > whole[1]


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("layout", [Layout(dp=16), Layout(dp=16, ep=2)], ids=str)
def test_more_replicas_need_more_memory(zero: int, layout: Layout) -> None:
    estimator = Estimator(small_run(mixture(), devices=16, global_batch=32))
    memory = [estimator.estimate(replace(layout, zero=zero, hsdp=n)).worst for n in (1, 2, 4, 8)]
    assert [m.optimizer for m in memory] == [n * memory[0].optimizer for n in (1, 2, 4, 8)]
    assert all(a.needed < b.needed for a, b in pairwise(memory))
    alone = estimator.estimate(replace(layout, zero=0)).worst
    assert memory[-1].optimizer <= alone.optimizer


def test_a_group_of_one_rank_divides_nothing() -> None:
    run = small_run(dense(), devices=8)
    alone, whole = estimate(run, Layout(dp=8, hsdp=8)), estimate(run, Layout(dp=8, zero=0))
    assert alone.worst == whole.worst
    assert alone.step.gradient_s == pytest.approx(whole.step.gradient_s)
