"""Each rule of a training step, asked of every program that has it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

import atoll
from atoll.answers.answer import dumped
from atoll.answers.certificate import Proof
from atoll.answers.design import PlacedStageAnswer, PlacementAnswer
from atoll.answers.layout import StepPasses
from atoll.base.errors import AtollError
from atoll.cost.table import link_s
from atoll.explore.pricing.workloads import make_variants, make_workload
from atoll.fabric.mesh import Rectangle
from atoll.fabric.nested import collective_s
from atoll.hardware.catalog import load_network
from atoll.hardware.wafer_files import load_wafer
from atoll.placement.chain import even_starts
from atoll.placement.replay import replay_placement
from atoll.profiles import DEFAULT
from atoll.questions import WaferLayout as Stages
from atoll.questions import WaferQuestion
from atoll.report.timeline import placement_timeline, plan_timeline
from atoll.step.bubbles import (
    microbatches_before_weight_pass,
    microbatches_in_flight,
    peak_activation_bytes,
    step_s,
)
from atoll.step.layout import Layout
from atoll.step.orders import passes
from atoll.step.parts import MEMORY_PARTS, TIME_PARTS
from atoll.step.replay import PassTime, replay
from atoll.step.stages import even_sizes
from atoll.step.states import STATES, load_states
from atoll.training.batch.estimates import LayoutSequence, make_tables
from atoll.training.batch.sums import Sums
from atoll.training.estimate import Estimator
from atoll.training.replay import replay_estimate
from atoll.training.request import make_layout, make_run
from atoll.training.step import accumulation_s
from atoll.wafer.encoding.block import make_block
from atoll.wafer.estimate import estimate_wafer
from atoll.wafer.evaluate import delayed_bytes
from atoll.wafer.job import options_of
from atoll.wafer.run import search_wafer
from atoll.wafer.staging.offload import StagePipeline
from atoll.wafer.staging.planner import Planner
from atoll.workload import load_config
from atoll.workload.flops import model_flops
from atoll.workload.graph.operator import CollectiveKind, Operator, TensorCollective

from .questions import SMALL, SPACE, WAFER

REL = 1e-9


def test_optimizer_states_of_one_name_take_the_same_bytes_everywhere():
    for name, states in STATES.items():
        per_parameter = load_states(name).bytes_per_parameter
        assert per_parameter == states.weight + states.gradient + states.optimizer
        run = make_run("gpt2-xl", "h100", 8, batch=8, optimizer=name)
        memory = Estimator(run).estimate(Layout(dp=8, zero=0)).worst
        held = memory.weights + memory.gradients + memory.optimizer
        parameters = memory.weights / states.weight
        assert held == pytest.approx(per_parameter * parameters, rel=REL)


def test_states_are_the_same_everywhere_where_nothing_is_said():
    planned = atoll.estimate("gpt2-xl", "h100", 8, batch=8).run.states
    assert options_of(WaferQuestion.of(model=SMALL), load_wafer("default")).states == planned
    assert load_states(DEFAULT.optimizer) == planned


def test_zero_divides_gradients_alike_in_time_and_memory():
    run = make_run("llama3-8b", "h100", 8, batch=64)
    alike = [Layout(dp=8, zero=2), Layout(dp=2, cp=4, zero=2)]
    assert len({accumulation_s(run, layout, 2, 1e9, 0.0) for layout in alike}) == 1
    held = {run.states.parts(1e9, layout.divided(1e9, 0.0), 2) for layout in alike}
    assert len(held) == 1


def test_blocks_are_spread_evenly_by_one_rule():
    planned = even_sizes(22, 4)
    starts = even_starts(np.ones(22, np.bool_), 4)
    assert starts is not None
    placed = tuple(np.diff([*starts, 22]).tolist())
    assert planned == placed


@pytest.mark.parametrize("batch", [7, 31])
def test_a_step_computes_every_sample_that_it_is_credited_with(batch):
    computed = [4 * Planner(load_wafer(WAFER), SMALL, batch, 256).rounds(4)]
    workload = make_workload("bert-large", batch)
    with suppress(AtollError):  # to refuse is as good
        variants = make_variants([workload], (4,), (1,), 1, "none", DEFAULT).variants
        computed += [v.microbatches * v.microbatch for v in variants]
    assert min(computed) >= batch


@pytest.mark.parametrize("microbatches", [2, 8])
def test_zero_bubble_holds_what_its_order_holds(microbatches):
    stages = 4
    planner = Planner(load_wafer(WAFER), SMALL, microbatches, 256)
    line = StagePipeline((Rectangle(0, 0, 1, 1),) * stages, 1, "zb-h1")
    late_bytes = delayed_bytes(make_block(SMALL, 1, 256), 1)
    for stage in range(stages):
        kept = most = 0
        for item in passes("zb-h1", stage, stages, 1, microbatches):
            kept += {"F": 1, "B": 0, "W": -1}[item.kind]
            most = max(most, kept)
        where = "zb-h1", stages, stage, microbatches
        assert microbatches_in_flight(*where) + microbatches_before_weight_pass(*where) == most
        assert peak_activation_bytes(*where, kept_bytes=1.0, waiting_bytes=1.0) == most
        most_held, bytes_ = planner._peak_demand(line, stage)
        assert most_held + bytes_ / late_bytes == pytest.approx(most)


def placement_of(
    order: str, stages: int, microbatches: int, send_s: float = 0.0
) -> PlacementAnswer:
    """Equal stages of F = B = W = 1 s as a search describes them."""
    stage = PlacedStageAnswer(
        layers=(), devices=1, compute_s=3.0, recompute_s=0.0, transfer_s=2 * send_s,
        receive_s=send_s, recompute="none", memory_bytes={}, forward_s=1.0, weight_s=1.0, chunks=(),
    )  # fmt: skip
    return PlacementAnswer(
        pipeline=stages, tensor=1, data=1, microbatch=1, microbatches=microbatches,
        step_time_s=1.0, stages=(stage,) * stages, time_parts_s={}, schedule=order,
        zero=0, cp=1, ep=1, etp=None, vpp=1,
    )  # fmt: skip


@pytest.mark.parametrize("order", ["1f1b", "zb-h1"])
@pytest.mark.parametrize(("stages", "microbatches"), [(8, 16), (4, 2), (4, 12)])
def test_a_pipeline_takes_the_same_step_everywhere(order, stages, microbatches):
    stage = PassTime(1.0, 1.0, 1.0)
    by_formula = step_s(order, [stage] * stages, microbatches)
    by_events = replay(order, [[stage]] * stages, microbatches).time_s
    assert by_formula == pytest.approx(by_events, rel=REL)
    searched = replay_placement(placement_of(order, stages, microbatches))
    assert searched.time_s == pytest.approx(by_events, rel=REL)


def test_a_pipeline_with_slow_transfers_is_replayed_and_drawn_alike():
    send_s, microbatches = 4.0, 8
    placement = placement_of("1f1b", 3, microbatches, send_s)
    searched_s = replay_placement(placement).time_s
    times = ((PassTime(1.0, 1.0, 1.0),),) * 3
    record = StepPasses(
        schedule="1f1b", passes=times, microbatches=microbatches, after=(),
        replayed=microbatches, send_s=send_s, waits_s=((send_s, send_s),) * 3,
        step_time_s=searched_s,
    )  # fmt: skip
    drawn = (
        plan_timeline(record),
        placement_timeline(replace(placement, step_time_s=searched_s)),
    )
    for timeline in drawn:
        assert timeline is not None
        assert timeline.stretch == pytest.approx(1.0, rel=REL)


@pytest.mark.parametrize("parameters", [1e5, 3e7, 5e8])
@pytest.mark.parametrize(("replicas", "tensor"), [(8, 1), (12, 1), (8, 8)])
@pytest.mark.parametrize("name", ["dgx-a100", "dgx-h100", "tpu-v4"])
def test_gradients_are_summed_in_the_same_time_everywhere(name, replicas, tensor, parameters):
    network = load_network(name).cut(96)
    optimizer = load_states(DEFAULT.optimizer)
    sent = optimizer.reduced * parameters
    reduced_s = collective_s(network, "all_reduce", sent, replicas, stride=tensor)
    run = make_run("llama3-8b", "h100", 96, batch=96)
    run = replace(run, network=network, states=optimizer)
    layout = Layout(dp=replicas, tp=tensor, zero=0)
    tables = make_tables(Estimator(run), LayoutSequence([layout]), ["none"])
    sums = Sums(tables, tables.rows)
    group, none = np.zeros(1, dtype=np.int64), np.zeros(1)
    _, (planned,) = sums.shared_s(group, np.array([parameters]), none)
    assert reduced_s == pytest.approx(planned, rel=REL)
    operator = Operator("sum", "all_reduce", (), (), collective=TensorCollective(
        CollectiveKind.ALL_REDUCE, int(parameters), tensor))  # fmt: skip
    inside = collective_s(network, "all_reduce", int(parameters), tensor)
    assert link_s(operator, network) == pytest.approx(inside, rel=REL)


def test_a_sample_has_the_same_model_flops_everywhere():
    searched = atoll.search(model="gpt2-xl", devices=8, batch=32, space=SPACE, baselines=False).best
    (plan,) = searched.plans
    planned = atoll.estimate("gpt2-xl", "h100", 8, batch=32)
    job = WaferQuestion.of(wafer=WAFER, model=SMALL, batch=4, sequence=256,
                   layout=Stages(rectangle=(2, 1), stages=4))  # fmt: skip
    wafer = estimate_wafer(job)
    gpt2, small = model_flops(load_config("gpt2-xl")), model_flops(load_config(SMALL), 256)
    peak = searched.accelerator.peak_flops * plan.placement.devices
    assert plan.mfu * peak / plan.samples_per_s == pytest.approx(gpt2, rel=REL)
    peak = planned.run.gpu.peak_flops("bf16") * 8
    assert planned.mfu * peak * planned.step.time_s / 32 == pytest.approx(gpt2, rel=REL)
    speed = wafer.evaluation.samples_per_s
    assert wafer.mfu * wafer.wafer.peak_flops / speed == pytest.approx(small, rel=REL)


def test_certificates_say_the_same_things():
    searched = atoll.search(model="bert-large", devices=8, batch=32, space=SPACE, baselines=False)
    planned = atoll.plan("gpt2-xl", "h100", 8, batch=32)
    wafer = search_wafer(
        WaferQuestion.of(wafer=WAFER, model=SMALL, batch=4, sequence=256, microbatch=(1,),
                 stage_counts=(1,), baselines=False)
    )  # fmt: skip
    for certificate in (searched.certificate, planned.certificate, wafer.certificate):
        told = dumped(Proof.of(certificate))
        assert {"score", "bound", "gap", "tolerance", "status"} <= set(told)
        assert told["gap"] == pytest.approx(max(0.0, 1.0 - told["score"] / told["bound"]), abs=REL)


def _answers():
    searched = atoll.search(model="gpt2-xl", devices=8, batch=32, space=SPACE, baselines=False)
    planned = atoll.estimate("gpt2-xl", "h100", 8, pp=2, batch=32)
    wafer = estimate_wafer(
        WaferQuestion.of(wafer=WAFER, model=SMALL, batch=4, sequence=256,
                 layout=Stages(rectangle=(2, 1), stages=4))
    )  # fmt: skip
    return searched.best.plans[0].placement, planned, wafer.placement


def test_parts_of_a_step_have_one_list_of_names_and_add_up():
    searched, planned, wafer = _answers()
    told = planned.step.breakdown()
    assert sum(told.values()) == pytest.approx(planned.step.time_s, rel=REL)
    for placement in (searched, wafer):
        told_s = sum(placement.time_parts_s.values())
        assert told_s == pytest.approx(placement.step_time_s, rel=REL)
    for parts in (told, searched.time_parts_s, wafer.time_parts_s):
        assert set(parts) <= set(TIME_PARTS)


def test_parts_of_memory_have_one_list_of_names():
    searched, planned, wafer = _answers()
    stages = (*searched.stages, *wafer.stages)
    for parts in (planned.worst.parts(), *(stage.memory_parts_bytes for stage in stages)):
        assert set(parts) <= set(MEMORY_PARTS)
        assert {"weights", "gradients", "optimizer", "activations"} <= set(parts)


def test_gradient_accumulation_is_the_same_in_the_estimate_and_in_its_file():
    found = atoll.estimate("llama2-7b", "h100", 4, tp=2, pp=2, batch=64)
    after = dict(found.answer.pipeline.after)
    assert found.step.accumulate_s > 0.0
    expected_s = found.usual_step.accumulate_s
    assert after["gradient accumulation"] == pytest.approx(expected_s, rel=REL)


def test_a_replay_is_near_its_estimate():
    run = make_run("llama2-7b", "a100-80", 16, batch=64)
    layout = replace(make_layout(run, tp=2, pp=4), zero=1)
    found = Estimator(run).estimate(layout)
    assert abs(replay_estimate(found).difference) < 0.05
