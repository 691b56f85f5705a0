"""Estimates of many layouts at once, compiled: those of the readable estimate one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_cases import (
    GIB,
    WIDE,
    dense,
    gpu,
    mixture,
    network,
    random_runs,
    small_run,
    with_memory,
)

from atoll.jit import set_threads
from atoll.step.layout import Layout
from atoll.training.batch import LEAST, batch_estimates
from atoll.training.estimate import Estimate, Estimator
from atoll.training.layers import choices_of
from atoll.training.request import make_run
from atoll.training.run import Run
from atoll.training.space import Axes, block_of, variants
from atoll.training.stack import STACKS

NAMED = ("none", "selective", "alternate", "full")
CLOSE = 1e-9


def drawn(run: Run, axes: Axes, random: Random, blocks: int) -> list[list[Layout]]:
    """The layouts of some of a space's variants, recomputation apart."""
    listed = [b for v in variants(run, axes) if len(b := block_of(run, axes, v))]
    chosen = random.sample(listed, min(blocks, len(listed)))
    return [[b.layout(int(i)) for i in b.bases()[0]] for b in chosen]


def one_by_one(estimator: Estimator, layout: Layout, choice: str) -> Estimate:
    return estimator._estimate(replace(layout, recompute=choice))


def assert_equal(
    run: Run, layouts: Sequence[Layout], choices: Sequence[str], sample: Sequence[int]
) -> None:
    """Times and bytes of some layouts under each choice; the least of all bounds every choice."""
    estimator = Estimator(run)
    time_s, needed = batch_estimates(estimator, layouts, (*choices, LEAST))
    for at in sample:
        for column, choice in enumerate(choices):
            found = one_by_one(estimator, layouts[at], choice)
            assert time_s[at, column] == pytest.approx(found.step.time_s, rel=CLOSE)
            assert needed[at, column] == pytest.approx(found.worst.needed, rel=CLOSE)
            assert time_s[at, -1] <= found.step.time_s * (1 + CLOSE), layouts[at]
            assert needed[at, -1] <= found.worst.needed * (1 + CLOSE), layouts[at]


@settings(max_examples=60, deadline=None)
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
    assert_equal(run, layouts, choices_of(costs, "optimal"), sample)


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
def test_recomputation_by_operator_is_the_fastest_choice_that_fits(
    run: Run, share: float, random: Random
) -> None:
    """Or, where none fits, the one that needs least."""
    estimator = Estimator(run)
    for layouts in drawn(run, replace(WIDE, recompute=("none",)), random, blocks=1):
        layout = replace(random.choice(layouts), recompute="optimal")
        choices = choices_of(estimator.costs(layout), "optimal")
        known = [one_by_one(estimator, layout, choice) for choice in choices]
        needs = [e.worst.needed for e in known]
        memory = min(needs) + share * (max(needs) - min(needs)) - GIB * (share == 0)
        found = Estimator(with_memory(run, memory)).estimate(layout)
        fitting = [e for e in known if e.worst.needed <= int(memory)]
        if fitting:
            fastest_s = min(e.step.time_s for e in fitting)
            assert found.fits
            assert found.step.time_s == pytest.approx(fastest_s, rel=1e-11)
        else:
            assert found.worst.needed == min(needs)
        assert found.policy in choices


def test_threads_change_nothing() -> None:
    run = small_run(dense(7), devices=32, global_batch=96, gpu=gpu("tpu-v5e"))
    run = replace(run, network=network(run.gpu.network))
    axes = replace(WIDE, tp=(2,), cp=(1,), microbatch=(1,), sp=(True,))
    (layouts,) = drawn(run, axes, Random(0), blocks=1)
    many = layouts * (4096 // len(layouts) + 1)
    before = set_threads(1)
    alone = batch_estimates(Estimator(run), many, NAMED)
    set_threads(2)
    together = batch_estimates(Estimator(run), many, NAMED)
    set_threads(before)
    assert all((a == b).all() for a, b in zip(alone, together, strict=True))


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
