"""What an estimate owes whatever the figures: parts that add up, and causes that push one way."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from training_cases import (
    WIDE,
    dense,
    flat,
    gpu,
    grouped,
    mixture,
    network,
    random_runs,
    small_run,
    with_memory,
)

import atoll
from atoll.base.errors import AtollError
from atoll.fabric.nested import all_to_all_s
from atoll.fabric.network import Network
from atoll.hardware.physical.device_power import SPEED_SPREAD, slowest_of
from atoll.step.layout import Layout
from atoll.step.stages import even_sizes, stage_counts
from atoll.step.states import STATES
from atoll.tools.software import software
from atoll.tools.stack import STACKS
from atoll.training.estimate import Estimate, Estimator, estimate
from atoll.training.operators.layers import HALF
from atoll.training.planner.space import block_of, families
from atoll.training.request import make_layout, make_run
from atoll.training.run import Run
from atoll.workload.families.model_config import ModelConfig

CLOSE = 1e-9


@st.composite
def runs_with_layouts(draw: st.DrawFn) -> tuple[Run, Layout]:
    run = draw(random_runs())
    blocks = [b for v in families(run, WIDE) if len(b := block_of(run, WIDE, v))]
    assume(blocks)
    block = draw(st.sampled_from(blocks))
    rows = np.array([draw(st.integers(0, len(block) - 1))])
    (layout,) = block.layouts(rows, draw(st.sampled_from(WIDE.recompute)))
    return run, layout


def test_synchronous_devices_wait_for_the_slowest_of_all() -> None:
    """The mean largest of n draws, over the spread of devices of one type; one waits for none."""
    draws = np.random.default_rng(0)
    for devices in (2, 8, 64, 1024):
        slowest = draws.standard_normal((20_000, devices)).max(axis=1).mean()
        assert slowest_of(devices) == pytest.approx(1 + SPEED_SPREAD * slowest, abs=1e-3)
    alone = atoll.estimate("llama2-7b", "h200", 1, batch=4, recompute="full", optimizer="bf16")
    assert alone.run.waiting == 1
    pair = atoll.estimate("llama2-7b", "h200", 2, batch=8, recompute="full", optimizer="bf16")
    assert pair.run.slack == pair.run.waiting == slowest_of(2)
    assert pair.step.compute_s == pytest.approx(slowest_of(2) * pair.usual_step.compute_s)
    assert pair.usual_step.compute_s == pytest.approx(alone.step.compute_s)


@settings(max_examples=40, deadline=None)
@given(runs_with_layouts())
def test_parts_add_up(case: tuple[Run, Layout]) -> None:
    run, layout = case
    found = estimate(run, layout)
    parts = found.step.breakdown()
    assert sum(parts.values()) == pytest.approx(found.step.time_s, rel=CLOSE)
    assert all(seconds >= -1e-15 for seconds in parts.values())
    for memory in found.memory:
        assert sum(memory.parts().values()) == pytest.approx(memory.allocated, rel=CLOSE)
        assert all(size >= 0 for size in memory.parts().values())
        assert memory.allocated <= memory.needed - memory.context_bytes
    assert len(found.memory) == layout.pp
    assert 0 < found.mfu <= 1
    assert found.tokens_per_s_per_device * found.step.time_s * run.devices == pytest.approx(
        run.tokens
    )


@settings(max_examples=40, deadline=None)
@given(runs_with_layouts(), st.sampled_from(["links", "latency", "hbm", "flops"]))
def test_faster_hardware_never_makes_a_step_longer(case: tuple[Run, Layout], what: str) -> None:
    """Zero-bubble schedules apart: there, faster weight gradients leave more of a bubble open."""
    run, layout = case
    assume(not layout.schedule.startswith("zb"))
    faster = replace(run, **_improved(run, what))  # type: ignore[arg-type]
    before, after = estimate(run, layout).step.time_s, estimate(faster, layout).step.time_s
    assert after <= before * (1 + CLOSE)


@pytest.mark.parametrize(
    ("stack", "axes"),
    [
        ("megatron", {"cp": 2}),
        ("nemo", {"cp": 4}),
        ("xla", {"tp": 8, "cp": 2}),
        ("fsdp", {"cp": 8}),
    ],
)
def test_attention_does_not_hide_sends_of_a_ring_and_gathers_at_once(
    stack: str, axes: dict[str, int]
) -> None:
    """Both outlast the computation: what one of them leaves of it is what the other hides behind,
    so that faster computation neither helps nor harms.
    """
    run = small_run(grouped(), 32, 16, network=flat(2e9), stack=STACKS[stack])
    layout = make_layout(run, zero=3, **axes)
    found = estimate(run, layout).step
    assert found.context_s > 0 < found.sharded_s
    faster = replace(run, gpu=run.gpu.with_compute(1.2))
    assert estimate(faster, layout).step.time_s <= found.time_s * (1 + CLOSE)


@pytest.mark.parametrize("stack", ["nemo", "xla"])
def test_collectives_hide_inside_products_that_run_again_too(stack: str) -> None:
    run = small_run(grouped(), 8, network=flat(20e9), stack=STACKS[stack])
    overlap = run.stack.overlap
    alone = replace(run, stack=replace(run.stack, overlap=replace(overlap, tensor_products=0.0)))
    layout = make_layout(run, tp=8)
    again_s, hidden_s = (
        estimate(r, replace(layout, recompute="full")).step.tensor_s
        - estimate(r, layout).step.tensor_s
        for r in (alone, run)
    )
    assert hidden_s == pytest.approx((1 - overlap.tensor_products) * again_s)


def test_user_buffers_need_sequence_parallelism() -> None:
    """All-reduces are not cut into pieces: launch files turn the overlap off with it."""
    run = small_run(grouped(), 8, stack=STACKS["nemo"])
    without = replace(run, stack=software("nemo", "grad_reduce p2p", None))
    for sp in (True, False):
        layout = make_layout(run, tp=4, sp=sp)
        hidden_s = estimate(without, layout).step.tensor_s - estimate(run, layout).step.tensor_s
        assert hidden_s > 0 if sp else hidden_s == 0
    # Programs of XLA have no such setting.
    assert STACKS["xla"].overlap.in_products(sp=False) == STACKS["xla"].overlap.in_products(sp=True)


def _improved(run: Run, what: str) -> dict[str, object]:
    if what == "hbm":
        return {"gpu": replace(run.gpu, hbm_Bps=2 * run.gpu.hbm_Bps)}
    if what == "flops":
        peak = run.gpu.bf16_flops
        assert peak is not None
        measured = run.gpu.measured_flops
        return {
            "gpu": replace(run.gpu, bf16_flops=2 * peak, measured_flops=measured and 2 * measured)
        }
    factors = {"links": (2.0, 1.0), "latency": (1.0, 0.5)}
    bandwidth, latency = factors[what]
    levels = tuple(
        replace(x, bandwidth_Bps=x.bandwidth_Bps * bandwidth, latency_s=x.latency_s * latency)
        for x in run.network.levels
    )
    return {"network": Network("better", levels)}


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "zb-h2"])
@pytest.mark.parametrize("pp", [1, 2, 4])
def test_a_larger_batch_takes_longer_but_less_per_token(schedule: str, pp: int) -> None:
    layout = Layout(dp=8 // pp, pp=pp, schedule=schedule if pp > 1 else "1f1b")
    found = [
        estimate(small_run(dense(8), global_batch=batch), layout) for batch in (16, 32, 64, 128)
    ]
    times = [e.step.time_s for e in found]
    rates = [e.tokens_per_s_per_device for e in found]
    assert times == sorted(times)
    assert rates == sorted(rates)


def _states(found: Estimate) -> float:
    worst = found.worst
    return worst.weights + worst.gradients + worst.optimizer


@pytest.mark.parametrize("model", [dense(), grouped(), mixture()], ids=lambda m: m.name)
@pytest.mark.parametrize("states", sorted(STATES))
def test_higher_zero_stages_divide_more(model: object, states: str) -> None:
    run = small_run(model, states=STATES[states])  # type: ignore[arg-type]
    found = [estimate(run, Layout(dp=8, zero=zero)) for zero in range(4)]
    held = [_states(e) for e in found]
    assert held == sorted(held, reverse=True)
    assert held[3] == pytest.approx(held[0] / 8)
    assert found[2].worst.allocated <= found[1].worst.allocated <= found[0].worst.allocated


@pytest.mark.parametrize("stack", ["megatron", "eager", "fsdp", "modular"])
@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_fuller_recomputation_keeps_less_and_runs_longer(stack: str, attention: str) -> None:
    run = small_run(grouped(8), stack=STACKS[stack], attention=attention)
    estimator = Estimator(run)
    costs = estimator.costs(Layout(dp=8))
    for cost in (c for c in costs if c.is_block):
        none, selective, full = (cost.kept(p) for p in ("none", "selective", "full"))
        assert none.bytes >= selective.bytes >= full.bytes
        assert none.again.total_s <= selective.again.total_s <= full.again.total_s
        assert full.again.total_s == pytest.approx(cost.forward.total_s)
    times = [
        estimator.estimate(Layout(dp=8, recompute=policy)).step.time_s
        for policy in ("none", "selective", "full")
    ]
    assert times == sorted(times)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.7, 1.0])
def test_optimal_recomputation_is_never_slower_than_a_named_policy_that_fits(share: float) -> None:
    run = small_run(grouped(8), devices=1, global_batch=16)
    named = [Layout(microbatch=4, recompute=p, zero=0) for p in ("none", "selective", "full")]
    found = [estimate(run, layout) for layout in named]
    needed = sorted(e.worst.needed for e in found)
    room = needed[0] + share * (needed[-1] - needed[0]) + 1
    tight = replace(run, gpu=replace(run.gpu, hbm_bytes=int(room)))
    best = estimate(tight, Layout(microbatch=4, recompute="optimal", zero=0))
    assert best.fits
    assert best.step.time_s <= min(
        e.step.time_s for e in found if e.worst.needed <= tight.gpu.hbm_bytes
    ) * (1 + CLOSE)
    assert best.layout.recompute == "optimal"
    assert best.rerun
    if share == 1.0:
        assert all(not operators for _, operators in best.rerun)


def test_what_runs_again_is_told_once_for_each_kind_of_block() -> None:
    run = small_run(grouped(6, windows=(256, 0) * 3))
    found = estimate(with_memory(run, 1.2e9), make_layout(run, recompute="optimal"))
    assert [name for name, _ in found.rerun] == ["local_block", "global_block"]


def test_what_runs_again_names_only_stages_that_hold_such_blocks() -> None:
    """DeepSeek-V3's three dense blocks lie on the first stages, which recompute other operators
    than the stages behind them."""
    answer = atoll.estimate(
        "deepseek-v3", "h800", 2048, batch=15360, pp=32, ep=64, recompute="optimal"
    ).answer
    kinds = [{layer.partition(" x")[0] for layer in stage.layers} for stage in answer.stages]
    named: dict[str, set[int]] = {}
    for words in answer.recomputed:
        kind, _, stages = words.partition(" of ")
        for run in stages.removeprefix("stages ").removeprefix("stage ").split(", "):
            first, _, last = run.partition(" to ")
            named.setdefault(kind, set()).update(range(int(first), int(last or first) + 1))
    assert named == {k: {i for i, stage in enumerate(kinds) if k in stage} for k in named}
    assert named["dense_block"] == {0, 1}


def test_optimal_recomputation_without_room_needs_least() -> None:
    run = small_run(grouped(4), devices=1, global_batch=16)
    tight = replace(run, gpu=replace(run.gpu, hbm_bytes=1))
    best = estimate(tight, Layout(microbatch=4, recompute="optimal", zero=0))
    assert not best.fits
    full = estimate(tight, Layout(microbatch=4, recompute="full", zero=0))
    assert best.worst.needed <= full.worst.needed


def test_busier_experts_make_all_wait() -> None:
    layout = Layout(dp=8, ep=4, recompute="full")
    even, uneven = (
        estimate(small_run(mixture(), imbalance=imbalance), layout) for imbalance in (1.0, 2.0)
    )
    assert uneven.step.compute_s > even.step.compute_s
    assert uneven.step.expert_s > even.step.expert_s
    assert uneven.step.recompute_s > even.step.recompute_s
    same = [estimate(small_run(imbalance=i), Layout(dp=8)).step for i in (1.0, 2.0)]
    assert same[0] == same[1]


def test_experts_with_a_tensor_width_of_their_own() -> None:
    """Megatron-Core's folding: whole experts on devices that divide everything else."""
    run = small_run(mixture(shared_ffn=1024), devices=8)
    cut, whole = Layout(dp=4, tp=2, ep=2), Layout(dp=4, tp=2, ep=4, etp=1)
    of = {x: next(c for c in Estimator(run).costs(x) if c.experts) for x in (cut, whole)}
    # Half the experts, each with twice the columns; the rest of the layer is the same.
    assert of[cut].expert_parameters == of[whole].expert_parameters
    assert of[cut].parameters == of[whole].parameters
    assert (of[cut].experts, of[whole].experts) == (2, 1)
    # A device's own tokens go to whole experts: none are gathered for them, none doubled.
    assert of[cut].exchange_bytes == 2 * of[whole].exchange_bytes
    assert len(of[whole].forward_links) < len(of[cut].forward_links)
    sent = 1024 * 2 * 512 * 2 // 2  # tokens x experts a token x hidden x bytes, over tp
    kept = of[cut].kept("none").bytes - of[whole].kept("none").bytes
    assert kept == pytest.approx(2 * sent, rel=0.01)  # what they read and what they make
    found = {x: estimate(run, x) for x in (cut, whole)}
    assert found[whole].worst.weights == found[cut].worst.weights
    assert found[whole].worst.optimizer == found[cut].worst.optimizer


def test_experts_wider_than_the_rest_gather_tokens_of_several_devices() -> None:
    run = small_run(mixture(), devices=8)
    alone, wide = (
        next(c for c in Estimator(run).costs(Layout(dp=8, ep=2, etp=etp)) if c.experts)
        for etp in (1, 2)
    )
    assert wide.expert_parameters * 2 == alone.expert_parameters
    assert wide.exchange_bytes == 2 * alone.exchange_bytes
    assert {(x.kind, x.group) for x in wide.forward_links} == {
        ("all_gather", 2),
        ("reduce_scatter", 2),
    }


def test_recomputation_repeats_the_exchange_of_tokens_only_where_it_must() -> None:
    run = small_run(mixture())
    once = estimate(run, Layout(dp=8, ep=4)).step.expert_s
    attention = estimate(run, Layout(dp=8, ep=4, recompute="selective")).step.expert_s
    again = estimate(run, Layout(dp=8, ep=4, recompute="full")).step.expert_s
    assert attention == pytest.approx(once)
    assert again == pytest.approx(1.5 * once)


def test_a_ring_over_nodes_is_slower_than_one_inside() -> None:
    run = small_run(
        dense(4, max_sequence=4096), devices=16, global_batch=16, sequence=4096,
        stack=replace(STACKS["megatron"], overlap=replace(STACKS["megatron"].overlap, ring=0.0)),
    )  # fmt: skip
    inside = estimate(run, Layout(dp=2, cp=2, tp=4)).step.context_s
    across = estimate(run, Layout(dp=1, cp=4, tp=4)).step.context_s
    assert across > 6 * inside


def test_exchanged_heads_are_whole_sequences_of_some_and_wait_for_each_other() -> None:
    """What cp 4 by heads computes is what tp 4 computes of them, without the ring's merges; four
    tensors are sent, queries and outputs of all heads, keys and values of theirs."""
    ring = small_run(dense(4, max_sequence=4096), devices=8, global_batch=8, sequence=4096)
    heads = replace(ring, stack=software(ring.stack.name, None, None, "cp_a2a"))
    layout = Layout(dp=2, cp=4)
    by_ring, by_heads = (estimate(run, layout).usual_step for run in (ring, heads))
    assert by_heads.compute_s < by_ring.compute_s
    model = ring.model
    width = 2 * model.heads * model.head_dim + 2 * model.kv_heads * model.head_dim
    sent = all_to_all_s(ring.network, 2 * 4096 // 4 * width, 4)
    passes = 2 * 4  # forward and backward, microbatches of a replica
    assert by_heads.context_s == pytest.approx(passes * model.layers * sent)


def test_deepspeed_repeats_key_heads_for_more_ranks() -> None:
    """Two key heads on eight ranks: each has one, and they are sent four times."""
    model = grouped(heads=8, kv_heads=2, max_sequence=8192)
    run = small_run(model, devices=8, stack=STACKS["deepspeed"], sequence=8192)
    ring = replace(run, stack=replace(run.stack, exchanges_heads=False))
    layout = Layout(cp=8)
    by_ring, by_heads = (estimate(r, layout).usual_step for r in (ring, run))
    assert by_heads.compute_s < by_ring.compute_s
    width = 2 * model.heads * model.head_dim + 2 * 4 * model.kv_heads * model.head_dim
    sent = all_to_all_s(run.network, 2 * width * run.sequence // 8, 8)
    passes = 2 * run.global_batch
    assert by_heads.context_s == pytest.approx(passes * model.layers * sent)


def test_gaudis_deepspeed_sums_gradients_on_every_device() -> None:
    """Its ZeRO 2 reduces all of them to every rank, which sends twice as much."""
    run = small_run(grouped(), devices=8, stack=STACKS["gaudi"])
    halved = replace(run, stack=replace(run.stack, reduces_all=False))
    summed_s, scattered_s = (
        estimate(r, Layout(dp=8, zero=2)).usual_step.gradient_s for r in (run, halved)
    )
    assert summed_s > 1.3 * scattered_s
    assert estimate(run, Layout(dp=8, zero=1)).step == estimate(halved, Layout(dp=8, zero=1)).step


def test_heads_that_do_not_divide_go_round_a_ring() -> None:
    ring = small_run(grouped(), devices=64, global_batch=64)
    heads = replace(ring, stack=software(ring.stack.name, None, None, "cp_a2a"))
    wide = Layout(dp=16, cp=4)
    assert estimate(heads, wide).step == estimate(ring, wide).step


def _zero(run: Run, zero: int) -> Estimate:
    return estimate(run, Layout(dp=8, microbatch=1, zero=zero))


@pytest.mark.parametrize("stack", ["megatron", "zero3-2021", "fsdp"])
def test_divided_gradients_are_reduced_in_every_microbatch(stack: str) -> None:
    """DeepSpeed, Megatron-FSDP and FSDP keep no whole gradients to reduce once a step."""
    run = small_run(grouped(), devices=8, stack=STACKS[stack], network=flat())
    once, eightfold = (replace(run, global_batch=8 * m) for m in (1, 8))
    assert _zero(eightfold, 1).step.gradient_s == pytest.approx(_zero(once, 1).step.gradient_s)
    one, eight = _zero(once, 2).step.gradient_s, _zero(eightfold, 2).step.gradient_s
    assert 3 * one < eight <= 8 * one * (1 + CLOSE)


def test_divided_gradients_leave_a_layers_whole_gradient_in_memory() -> None:
    run = small_run(grouped(), devices=8)
    one, two = _zero(run, 1).worst, _zero(run, 2).worst
    assert two.gradients == pytest.approx(one.gradients / 8)
    assert two.buffers > 0
    assert two.allocated < one.allocated


@pytest.mark.parametrize("zero", [2, 3])
@pytest.mark.parametrize("model", [grouped(), mixture()], ids=lambda m: m.name)
def test_accumulation_adds_what_memory_holds(zero: int, model: ModelConfig) -> None:
    """Gradients are divided over data and context ranks, experts' over those that share them."""
    run = small_run(model, devices=8, global_batch=64)
    ep = 2 if model.experts else 1
    data = estimate(run, Layout(dp=8, ep=ep, zero=zero, microbatch=1))
    context = estimate(run, Layout(dp=4, cp=2, ep=ep, zero=zero, microbatch=2))
    assert context.worst.gradients == pytest.approx(data.worst.gradients)
    assert context.step.accumulate_s == pytest.approx(data.step.accumulate_s)
    bytes_ = data.worst.gradients / run.states.gradient * run.stack.accumulated_bytes
    if zero == 2:  # all are copied into the buckets that are reduced
        whole = estimate(run, Layout(dp=8, ep=ep, zero=0)).worst.gradients
        bytes_ += whole / run.states.gradient * (HALF + run.states.reduced)
    through_hbm_s = bytes_ / (run.gpu.calibration.vector_hbm * run.gpu.hbm_Bps)
    assert data.usual_step.accumulate_s == pytest.approx(8 * through_hbm_s)


CONTEXTS = [
    ("llama3-8b", "a100-80", 8192, 1, 1),
    ("llama3-8b", "h100", 8192, 2, 1),
    ("llama3-70b", "h100", 8192, 8, 2),
    ("gpt3-175b", "h100", 2048, 8, 4),
    ("mixtral-8x7b", "h200", 4096, 1, 1),
    ("deepseek-v3", "h100", 4096, 1, 2),
    ("bert-large", "a100-40", 512, 1, 1),
]


@pytest.mark.parametrize(("model", "device", "sequence", "tp", "pp"), CONTEXTS)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_context_parallelism_is_never_faster_at_equal_tokens_a_device(
    model: str, device: str, sequence: int, tp: int, pp: int, recompute: str
) -> None:
    """Dividing the sequences of a microbatch changes no product; attention comes in more and
    smaller kernels whose results must be merged.
    """
    run = make_run(model, device, 64 * tp * pp, batch=2048, sequence=sequence)
    estimator = Estimator(run)
    for samples in (1, 2):
        times = [
            estimator.estimate(
                Layout(
                    dp=64 // cp, tp=tp, pp=pp, cp=cp, microbatch=samples * cp, recompute=recompute
                )
            ).step.time_s
            for cp in (1, 2, 4, 8)
        ]
        assert times == sorted(times)
        assert times[1] > times[0]


@settings(max_examples=30, deadline=None)
@given(random_runs(), st.sampled_from((2, 4)), st.sampled_from((1, 2)))
def test_context_parallelism_is_never_faster_on_any_device_and_stack(
    run: Run, cp: int, samples: int
) -> None:
    run = replace(run, attention="flash", devices=16, global_batch=96 * samples)
    alone = estimate(run, Layout(dp=16, microbatch=samples)).step.time_s
    divided = Layout(dp=16 // cp, cp=cp, microbatch=samples * cp)
    assert estimate(run, divided).step.time_s >= alone


@pytest.mark.parametrize("flags", ["cp_p2p", "cp_a2a"])
@pytest.mark.parametrize("cp", [2, 8])
def test_a_window_saves_as_much_under_context_parallelism(cp: int, flags: str) -> None:
    """At equal tokens a device meets equally many keys, but for the first ones of a sequence."""
    model = grouped(window=1024, kv_heads=8, max_sequence=65536)
    software_ = software("megatron", None, None, flags)
    run = small_run(model, 8, 8, sequence=8192, stack=software_)
    alone = estimate(run, make_layout(run)).step
    shared = replace(run, sequence=8192 * cp, global_batch=8 // cp)
    found = estimate(shared, make_layout(shared, cp=cp)).step
    assert 0.98 * alone.compute_s <= found.compute_s <= 1.3 * alone.compute_s
    everywhere = estimate(
        replace(shared, model=replace(model, window=0)), make_layout(shared, cp=cp)
    )
    assert everywhere.step.compute_s > (1 + cp / 10) * found.compute_s


def test_a_ring_of_unfused_attention_is_refused() -> None:
    run = small_run(dense(), devices=8, attention="unfused")
    with pytest.raises(AtollError, match="cp is 2, but only flash attention goes round a ring"):
        estimate(run, Layout(dp=4, cp=2))
    assert all(v.cp == 1 for v in families(run, WIDE))


def test_stages_share_the_layers_evenly_and_the_ends_get_fewer() -> None:
    assert even_sizes(8, 4) == (2, 2, 2, 2)
    assert even_sizes(6, 4) == (1, 2, 2, 1)
    assert even_sizes(7, 4) == (1, 2, 2, 2)
    assert even_sizes(2, 4) == (0, 1, 1, 0)
    assert even_sizes(5, 1) == (5,)


@given(st.integers(1, 40), st.integers(0, 10), st.integers(1, 6), st.integers(1, 4))
def test_every_layer_lies_on_one_stage(blocks: int, others: int, pp: int, vpp: int) -> None:
    structure = ((False, 1), (True, blocks), *([(True, others)] if others else []), (False, 1))
    assume(pp * vpp <= blocks + others + 2)
    stages = stage_counts(structure, "1f1b", pp, vpp)
    assert stages.shape == (pp, vpp, len(structure))
    assert stages.sum(axis=(0, 1)).tolist() == [repeat for _, repeat in structure]
    assert stages[0, 0, 0] == stages[-1, -1, -1] == 1


@pytest.mark.parametrize("name", ["bert-large", "vit-b16", "gpt-j-6b", "gemma2-9b", "deepseek-v2"])
def test_all_families_can_be_estimated(name: str) -> None:
    run = make_run(name, "h100", 16, batch=512)
    found = estimate(run, make_layout(run, tp=2, pp=2, microbatch=16, sp=False, recompute="full"))
    assert 0.01 < found.mfu < 0.8
    assert found.worst.weights > 0


def test_devices_of_other_makers_take_their_own_network() -> None:
    run = make_run("llama2-7b", "tpu-v5p", 16, batch=32, stack="xla")
    assert run.network.name == "tpu-v5p"
    assert run.network == network("tpu-v5p").cut(16)
    assert run.network.levels[0].torus == (2, 2, 4)
    assert make_run("llama2-7b", "v100", 8, batch=8).precision == "fp16"
    assert gpu("v100").half_dtype == "fp16"


def test_the_memory_of_every_stage_is_told_by_part() -> None:
    found = Estimator(small_run(dense(8), devices=4, global_batch=16)).estimate(Layout(pp=4))
    told = found.to_dict()["memory_bytes"]
    assert [stage["stage"] for stage in told["stages"]] == [0, 1, 2, 3]
    for stage in told["stages"]:
        assert sum(stage["parts"].values()) == pytest.approx(stage["total"])
    fullest = max(told["stages"], key=lambda stage: stage["needed"])
    assert (fullest["total"], fullest["parts"]) == (told["total"], told["parts"])
