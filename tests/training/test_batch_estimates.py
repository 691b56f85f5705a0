"""Estimates of many layouts at once: those of a sum layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_cases import (
    GIB,
    WIDE,
    dense,
    mixture,
    random_runs,
    small_run,
    with_memory,
)

from atoll.step.layout import Layout
from atoll.tools.stack import STACKS
from atoll.training.batch.estimates import LEAST_CHOICE, LayoutSequence, batch_estimates
from atoll.training.estimate import Estimator
from atoll.training.operators.layers import recompute_choices
from atoll.training.planner.space import Axes, block_of, families
from atoll.training.request import make_run
from atoll.training.run import Run
from drawn import examples
from oracles.step_by_layer import StepByLayer, step_by_layer

NAMED = ("none", "selective", "alternate", "full")
CLOSE = 1e-9


def drawn(run: Run, axes: Axes, random: Random, blocks: int) -> list[list[Layout]]:
    """The layouts of some of a space's variants, recomputation apart."""
    listed = [b for f in families(run, axes) if len(b := block_of(run, axes, f))]
    found = []
    for block in random.sample(listed, min(blocks, len(listed))):
        size = random.choice(block.microbatch.tolist())
        found.append(block.layouts(np.flatnonzero(block.microbatch == size), "none"))
    return found


def one_by_one(estimator: Estimator, layout: Layout, choice: str) -> StepByLayer:
    """Also choices by operator, which no layout has a name for."""
    return step_by_layer(estimator, replace(layout, recompute="optimal"), (choice,) * layout.pp)


def assert_equal(
    run: Run, layouts: Sequence[Layout], choices: Sequence[str], sample: Sequence[int]
) -> None:
    """Times and bytes of some layouts under each choice; the least of all bounds every choice."""
    estimator = Estimator(run)
    time_s, needed = batch_estimates(estimator, LayoutSequence(layouts), choices)
    least_s, least_bytes = (
        found[:, 0]
        for found in batch_estimates(estimator, LayoutSequence(layouts), (LEAST_CHOICE,))
    )
    for at in sample:
        for column, choice in enumerate(choices):
            found = one_by_one(estimator, layouts[at], choice)
            assert time_s[at, column] == pytest.approx(found.time_s, rel=CLOSE)
            assert needed[at, column] == pytest.approx(max(found.needed), rel=CLOSE)
            assert least_s[at] <= found.time_s * (1 + CLOSE), layouts[at]
            assert least_bytes[at] <= max(found.needed) * (1 + CLOSE), layouts[at]
            if choice in NAMED:
                assert_row(estimator, replace(layouts[at], recompute=choice), found)


def assert_row(estimator: Estimator, layout: Layout, expected: StepByLayer) -> None:
    """An estimate is a row of the arrays: its stages and its memory are the same too."""
    estimate = estimator.estimate(layout)
    assert estimate.step.time_s == pytest.approx(expected.time_s, rel=CLOSE)
    assert [stage.total_s for stage in estimate.stages] == pytest.approx(expected.stages_s)
    assert [memory.needed for memory in estimate.memory] == pytest.approx(expected.needed)


@pytest.mark.slow
@examples(15, 60)
@given(random_runs(), st.sampled_from(("bf16", "fp8")), st.randoms(use_true_random=False))
def test_the_batch_equals_the_estimate_one_by_one(run: Run, precision: str, random: Random) -> None:
    """All stacks, states, orders, ZeRO stages, replicas, widths of experts and policies."""
    if precision == "fp8" and run.gpu.name == "h100":
        run = replace(run, precision=precision)
    axes = replace(WIDE, etp=random.choice(((), (1, 2))))
    for layouts in drawn(run, axes, random, blocks=2):
        sample = random.sample(range(len(layouts)), min(10, len(layouts)))
        assert_equal(run, layouts, NAMED, sample)


@pytest.mark.parametrize("stack", ["megatron", "eager", "xla"])
def test_choices_by_operator_are_among_them(stack: str) -> None:
    run = small_run(dense(4, activation="relu"), devices=4, stack=STACKS[stack])
    (layouts,) = drawn(run, WIDE, Random(1), blocks=1)
    costs = Estimator(run).costs(replace(layouts[0], recompute="optimal"))
    sample = Random(2).sample(range(len(layouts)), 4)
    assert_equal(run, layouts, recompute_choices(costs, "optimal"), sample)


def test_stages_may_hold_given_numbers_of_blocks() -> None:
    run = small_run(mixture(7), devices=8, global_batch=16)
    uneven = [
        Layout(dp=2, pp=4, blocks=(1, 2, 3, 1)),
        Layout(dp=2, pp=4, blocks=(0, 3, 4, 0), schedule="zb-h2"),
        Layout(dp=4, pp=2, vpp=2, blocks=(1, 2, 2, 2), schedule="interleaved", zero=3),
        Layout(dp=2, pp=4, blocks=(2, 2, 2, 1), schedule="dualpipe"),
    ]
    assert_equal(run, uneven, NAMED, range(len(uneven)))


@settings(max_examples=25, deadline=None)
@given(random_runs(), st.floats(0.0, 1.0), st.randoms(use_true_random=False))
def test_recomputation_by_operator_and_stage_is_the_fastest_that_fits(
    run: Run, share: float, random: Random
) -> None:
    """No slower than any choice for all stages, nor than any mixture drawn; each stage has the
    fastest choice that fits it, or all have the same. Where none fits, the one that needs least.
    """
    estimator = Estimator(run)
    for layouts in drawn(run, replace(WIDE, recompute=("none",)), random, blocks=1):
        layout = replace(random.choice(layouts), recompute="optimal")
        choices = recompute_choices(estimator.costs(layout), "optimal")
        known = [one_by_one(estimator, layout, choice) for choice in choices]
        needs = [max(e.needed) for e in known]
        memory = min(needs) + share * (max(needs) - min(needs)) - GIB * (share == 0)
        found = Estimator(with_memory(run, memory)).estimate(layout)
        fitting = [e for e in known if max(e.needed) <= int(memory)]
        assert found.fits == bool(fitting)
        if not fitting:
            assert found.worst.needed == pytest.approx(min(needs))
            continue
        assert found.step.time_s <= min(e.time_s for e in fitting) * (1 + 1e-11)
        if len(set(found.policies)) > 1:
            for stage, mine in enumerate(found.stages):
                others_s = [e.stages_s[stage] for e in known if e.needed[stage] <= int(memory)]
                assert mine.total_s <= min(others_s) * (1 + 1e-11)


@pytest.mark.parametrize(
    ("model", "device", "devices"),
    [
        ("bert-large", "phaze-tpuv4", 8),  # a chip of the template, a loss of its own
        ("deepseek-v3", "h200", 256),
        ("t5-11b", "a100-80", 32),
        ("gemma2-9b", "tpu-v5p", 16),
    ],
)
def test_so_it_is_on_other_devices_and_with_other_layers(
    model: str, device: str, devices: int
) -> None:
    run = make_run(model, device, devices, batch=4 * devices)
    axes = replace(WIDE, tp=(1, 2), microbatch=(1,), cp=(1,))
    drawn_layouts = drawn(run, axes, Random(3), blocks=2)
    assert drawn_layouts
    for layouts in drawn_layouts:
        sample = Random(4).sample(range(len(layouts)), min(8, len(layouts)))
        assert_equal(run, layouts, ("none", "full"), sample)


@pytest.mark.parametrize("order", ["zb-h1", "zb-v"])
def test_hosts_have_their_pace_though_no_weight_gradient_is_launched(order: str) -> None:
    """Of frozen weights there are none: the hosts' pipeline counts all the same."""
    run = make_run("llama3-8b", "h100", 8, batch=16, sequence=256, method="lora")
    layout = Layout(pp=4, dp=2, schedule=order)
    found = Estimator(run)
    step_s, _ = batch_estimates(found, LayoutSequence([layout]), ["none"])
    assert found.estimate(layout).step.host_s > 0
    assert step_s[0, 0] == pytest.approx(one_by_one(found, layout, "none").time_s, rel=1e-12)
