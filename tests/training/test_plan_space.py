"""The space of a plan: every layout that its axes and the checks allow, each exactly once."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import product

import pytest
from training_cases import all_layouts, dense, grouped, is_allowed, mixture, small_run

from atoll.base.errors import AtollError
from atoll.step.layout import RECOMPUTE, Layout
from atoll.step.orders import ORDERS
from atoll.step.stages import splits
from atoll.tools.stack import STACKS
from atoll.training.operators.layer_prices import chain_work
from atoll.training.planner.space import Axes
from atoll.training.run import Run

AXES = Axes(
    tp=(1, 2, 3, 4),
    pp=(1, 2, 3, 6),
    cp=(1, 2),
    ep=(1, 2, 4),
    etp=(1, 2, 4),
    vpp=(1, 2, 3),
    microbatch=(1, 3),
    sp=(True, False),
    zero=(0, 1, 2, 3),
    hsdp=(1, 2),
    recompute=("none", "full"),
    schedule=("1f1b", "gpipe", "zb-h1", "zb-v", "dualpipe"),
)


def by_brute_force(run: Run, axes: Axes) -> set[Layout]:
    """The product of all axes, less what the checks and the rules of the axes refuse: sequence
    parallelism only with a tensor width, a schedule of its own only with stages of one chunk; a
    layout without a pipeline has none, whichever are wanted.
    """
    found = set()
    for tp, pp, cp, ep, etp, vpp, microbatch, sp, zero, hsdp, recompute, schedule in product(
        axes.tp, axes.pp, axes.cp, axes.ep, axes.etp or (0,), axes.vpp, axes.microbatch,
        (True, False), axes.zero, axes.hsdp, axes.recompute, axes.schedule,
    ):  # fmt: skip
        if run.devices % (tp * pp * cp) or (sp and tp == 1):
            continue
        if pp == 1:
            schedule = "1f1b"
        if schedule != "1f1b" and vpp > 1:
            continue
        layout = Layout(
            dp=run.devices // (tp * pp * cp),
            tp=tp,
            pp=pp,
            cp=cp,
            ep=ep,
            etp=etp,
            vpp=vpp,
            microbatch=microbatch,
            sp=sp,
            zero=zero,
            hsdp=hsdp,
            recompute=recompute,
            schedule="interleaved" if vpp > 1 else schedule,
        )
        if is_allowed(layout, run):
            found |= {replace(layout, blocks=blocks) for blocks in splits_of(layout, run)}
    return found


def splits_of(layout: Layout, run: Run) -> set[tuple[int, ...]]:
    """As even as can be, and what takes the slowest stage least time of all numbers of blocks, with
    the head worth as much as its work says, or three quarters of it.
    """
    if layout.pp == 1 or not run.stack.balances:
        return {()}
    where = layout.schedule, layout.pp, layout.vpp
    return set(splits(chain_work(run), *where))


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [
        small_run(dense(6), devices=12, global_batch=36),
        small_run(grouped(5), devices=24, global_batch=72),
        small_run(grouped(6, vocab=65536), devices=12, global_batch=36),
        small_run(mixture(4), devices=16, global_batch=48),
        small_run(dense(3, causal=False), devices=8, global_batch=24, sequence=126),
    ],
    ids=["dense", "grouped", "heavy head", "experts", "encoder"],
)
@pytest.mark.parametrize("schedules", [AXES.schedule, ("zb-h1",), ("zb-h2", "gpipe")], ids=str)
def test_every_allowed_layout_is_enumerated_once(run: Run, schedules: tuple[str, ...]) -> None:
    axes = replace(AXES, schedule=schedules)
    listed = all_layouts(run, axes)
    assert len(listed) == len(set(listed))
    assert set(listed) == by_brute_force(run, axes)
    assert len(listed) > 30


def test_every_tensor_width_of_experts_is_enumerated_once() -> None:
    run = small_run(mixture(4), devices=16, global_batch=48)
    axes = replace(AXES, etp=(1, 2), schedule=("1f1b",))
    listed = all_layouts(run, axes)
    assert len(listed) == len(set(listed))
    assert set(listed) == by_brute_force(run, axes)
    assert {(x.tp, x.etp) for x in listed} >= {(2, 1), (2, 2), (1, 2)}


def test_a_batch_of_any_size_is_divided_at_once() -> None:
    run = small_run(dense(2), devices=1, global_batch=999_999_937)  # a prime
    begun = time.process_time()
    found = {layout.microbatch for layout in all_layouts(run, Axes(recompute=("none",)))}
    assert found == {1, 999_999_937} and time.process_time() - begun < 5.0


@pytest.mark.parametrize("schedule", ORDERS)
def test_any_schedule_alone_keeps_the_layouts_without_a_pipeline(schedule: str) -> None:
    run = small_run(dense(6), devices=8)
    alone = {x for x in all_layouts(run, Axes(schedule=(schedule,))) if x.pp == 1}
    assert alone == {x for x in all_layouts(run, Axes()) if x.pp == 1}
    assert alone


@pytest.mark.slow
@pytest.mark.parametrize("model", [dense(12), mixture(8)], ids=lambda m: m.name)
def test_default_axes_are_as_documented(model: object) -> None:
    run = small_run(model, devices=48, global_batch=96)  # type: ignore[arg-type]
    listed = all_layouts(run, Axes())
    assert len(listed) == len(set(listed))
    assert all(is_allowed(layout, run) for layout in listed)
    assert {x.tp for x in listed} == {1, 2, 4, 8}
    assert {x.cp for x in listed} == {1, 2, 4, 8}
    assert {x.ep for x in listed} == ({1, 2, 4} if run.model.experts else {1})
    assert {x.etp for x in listed} == {1, 2, 4, 8}
    assert {x.microbatch for x in listed} == {b for b in range(1, 97) if 96 % b == 0}
    assert {x.sp for x in listed if x.tp > 1} == {True, False}
    assert {x.zero for x in listed} == {0, 1, 2, 3}
    assert {x.hsdp for x in listed} >= {1, 2, 3, 4, 6, 8, 12, 16, 24, 48}
    assert {x.recompute for x in listed} == set(RECOMPUTE)
    assert {x.schedule for x in listed} == set(ORDERS) - {"gpipe"}
    assert {x.vpp for x in listed if x.pp == 2} >= set(range(1, run.model.layers // 2 + 2))


def test_values_given_twice_and_both_names_of_a_schedule_count_once() -> None:
    run = small_run(dense(4), devices=8)
    twice = Axes(tp=(2, 2), schedule=("1f1b", "interleaved"))
    assert sorted(map(str, all_layouts(run, twice))) == sorted(
        map(str, all_layouts(run, Axes(tp=(2,), schedule=("1f1b",))))
    )


@pytest.mark.parametrize("name", STACKS)
def test_a_stack_tries_the_orders_that_it_runs(name: str) -> None:
    run = small_run(dense(6), devices=8, stack=STACKS[name])
    listed = {x.schedule for x in all_layouts(run, Axes(recompute=("none",)))}
    assert listed == set(STACKS[name].orders) - {"gpipe"}


@pytest.mark.parametrize(
    ("axes", "sentence"),
    [
        ({"tp": (0,)}, "tp: expected positive integers, got 0"),
        ({"microbatch": (True,)}, "microbatch: expected positive integers, got True"),
        ({"zero": (5,)}, "zero: 5 is not one of 0, 1, 2, 3"),
        ({"recompute": ("all",)}, "recompute: 'all' is not one of none, selective"),
        ({"zero": ()}, "zero: no value to try"),
    ],
)
def test_axes_refuse_values_that_mean_nothing(axes: dict[str, tuple[int]], sentence: str) -> None:
    with pytest.raises(AtollError) as caught:
        Axes(**axes)  # type: ignore[arg-type]
    assert str(caught.value).startswith(sentence)
