"""The same layer under different software: fused or step by step, padded or not."""

from __future__ import annotations

from dataclasses import replace

import pytest
from training_cases import dense, gpu, grouped, mixture, small_run

import atoll
from atoll.base.errors import AtollError
from atoll.cost.pricer import Cost
from atoll.export.messages import step_messages
from atoll.step.layout import Layout, check_recompute
from atoll.step.states import STATES
from atoll.tools.software import flagged, graphed
from atoll.tools.stack import EAGER, MEGATRON, STACKS, Stack
from atoll.training.estimate import Estimator, estimate
from atoll.training.operators.layers import LayerCost
from atoll.training.run import Run
from atoll.training.step import StepTime
from atoll.workload.adapters import Adapters
from atoll.workload.builders.model import build_model
from atoll.workload.families.model_config import ModelConfig


def costs_of(run: Run, layout: Layout | None = None) -> dict[str, LayerCost]:
    return {cost.name: cost for cost in Estimator(run).costs(layout or Layout(dp=8))}


def test_eager_kernels_move_more_keep_more_and_launch_more() -> None:
    eager = costs_of(small_run(grouped(), stack=STACKS["eager"]))["block"]
    fused = costs_of(small_run(grouped(), stack=STACKS["megatron"]))["block"]
    assert eager.forward.vector_s > 2 * fused.forward.vector_s
    assert eager.backward.vector_s > 2 * fused.backward.vector_s
    assert eager.forward.kernels > fused.forward.kernels
    assert eager.kept("none").bytes > fused.kept("none").bytes
    # Streaming kernels leave power over, so that the clock is no lower.
    assert 0.8 * fused.forward.attention_s < eager.forward.attention_s <= fused.forward.attention_s


def test_queries_keys_and_values_are_one_product_or_three() -> None:
    split = costs_of(small_run(grouped(), stack=STACKS["compiled"]))["block"]
    joined = costs_of(small_run(grouped(), stack=STACKS["megatron"]))["block"]
    assert split.forward.matrix_s > joined.forward.matrix_s
    assert split.forward.kernels - joined.forward.kernels == 3  # q, k, v; gate, up


@pytest.mark.parametrize("vocab", [8191, 8195])
def test_an_unaligned_vocabulary_is_slow_unless_padded(vocab: int) -> None:
    even, odd = dense(vocab=8192), dense(vocab=vocab)
    plain = [costs_of(small_run(m, stack=STACKS["eager"]))["head"].forward for m in (even, odd)]
    padded = [costs_of(small_run(m, stack=STACKS["megatron"]))["head"].forward for m in (even, odd)]
    assert plain[1].matrix_s > 1.5 * plain[0].matrix_s
    assert padded[1].matrix_s < 1.05 * padded[0].matrix_s


def test_heads_off_vectors_left_the_tensor_cores_under_libraries_of_2021() -> None:
    """Heads of 62 elements rather than 64."""

    def slower(stack: str) -> float:
        even, ragged = (
            costs_of(small_run(dense(head_dim=d), stack=STACKS[stack], attention="unfused"))
            for d in (64, 62)
        )
        return ragged["block"].forward.matrix_s / even["block"].forward.matrix_s

    assert slower("megatron-2021") > 1.5 * slower("megatron") > 1.5


def test_rows_of_experts_are_copied_sorted_and_launched_one_by_one() -> None:
    run = small_run(mixture(), stack=STACKS["megatron"])
    free = replace(run, stack=replace(run.stack, routed_bytes=0.0))
    block, bare = costs_of(run)["block"], costs_of(free)["block"]
    assert block.forward.vector_s > bare.forward.vector_s
    assert block.backward.vector_s > bare.backward.vector_s
    assert 0.9 * bare.forward.matrix_s < block.forward.matrix_s <= bare.forward.matrix_s
    step, graphed_ = estimate(run, Layout(dp=8)).step, graphed(run.stack, "full_iteration")
    assert estimate(replace(run, stack=graphed_), Layout(dp=8)).step.time_s < step.time_s


def test_inputs_of_experts_are_cast_one_by_one_or_in_the_kernel_before() -> None:
    """Dense products are cast alike."""
    for model, differ in ((mixture(), True), (grouped(), False)):
        run = small_run(model, stack=STACKS["nemo"], precision="mxfp8", gpu=gpu("gb200"))
        old = replace(run, stack=replace(run.stack, fused_casts=()))
        times = [costs_of(r)["block"].forward.vector_s for r in (run, old)]
        assert (times[1] > times[0]) == differ


def test_some_blocks_of_every_stage_run_again() -> None:
    """Four of eight blocks, two on each of two stages: half of the time, half of what is spared."""
    run = small_run(grouped(8))
    none, four, full = (
        estimate(run, Layout(dp=4, pp=2, recompute=policy)) for policy in ("none", "full@2", "full")
    )
    assert none.step.recompute_s == 0
    assert four.step.recompute_s == pytest.approx(full.step.recompute_s / 2)
    held = [e.memory[0].activations for e in (none, four, full)]
    assert held[1] == pytest.approx((held[0] + held[2]) / 2)
    with pytest.raises(AtollError, match="full@N or host@N for N blocks of a stage"):
        check_recompute("full@some")


@pytest.mark.parametrize("stack", STACKS)
def test_all_blocks_of_some_are_all(stack: str) -> None:
    run = small_run(grouped(8), 16, stack=STACKS[stack])
    layout = Layout(dp=4, tp=2, pp=2)
    four, full = (estimate(run, replace(layout, recompute=policy)) for policy in ("full@4", "full"))
    assert four.memory == full.memory
    assert four.step == full.step


@pytest.mark.parametrize("imbalance", [1.0, 1.5])
def test_what_some_blocks_send_again_the_others_do_not(imbalance: float) -> None:
    """Collectives, turns of a ring, exchanges of tokens, and what the host launches of them."""
    run = small_run(mixture(8, dense_layers=()), 32, 32, imbalance=imbalance)
    run = replace(run, network=replace(run.network, levels=run.network.levels[1:]))
    layout = Layout(dp=8, tp=2, cp=2, ep=4)
    none, four, full = (
        Estimator(run).estimate(replace(layout, recompute=policy))
        for policy in ("none", "full@2", "full")
    )
    parts = [e.step.breakdown() for e in (none, four, full)]
    for part in ("recompute", "tensor_parallel", "context_parallel", "expert_parallel"):
        at = [x[part] for x in parts]
        assert at[0] < at[2], part
        assert at[1] == pytest.approx(at[0] + (at[2] - at[0]) / 4), part
    stepper, ((chunk,),) = Estimator(run).shares(four.layout)
    block = next(cost for cost, _ in chunk if cost.is_block)
    launches = [stepper.host(block, e.layout.recompute).overlapped_s for e in (none, four, full)]
    assert launches[1] == pytest.approx(launches[0] + (launches[2] - launches[0]) / 4)
    sent = [sum(x.bytes * x.count for x in step_messages(e)) for e in (none, four, full)]
    assert sent[1] == pytest.approx(sent[0] + (sent[2] - sent[0]) / 4)


def test_modules_that_run_again_drop_the_bytes_that_they_kept() -> None:
    """DeepSeek-V3 by its report (arXiv:2412.19437, section 3.3): every tensor counted by hand."""
    told = "layernorm+mla_up_proj+moe_act"
    found = atoll.estimate(
        "deepseek-v3", "h800", 2048, pp=16, ep=64, batch=15360, sequence=4096, precision="fp8",
        order="dualpipe", recompute=told, stack="nemo", flags="fp8_act,fp8_params",
        optimizer="moments16", overlap="ep_a2a,grad_reduce",
    )  # fmt: skip
    assert found.fits
    block = costs_of(found.run, found.layout)["block"]
    residuals, latents = 2 * 7168 * 2, 3 * (1536 + 512)  # latents in 16 bits, normed ones in 8
    attention = 128 * (128 * 3 + 4)  # outputs in 16 bits and cast, a sum of exponentials
    routed = 256 * 2 + 8 * (4 + 4)
    experts = 9 * (2 * 2048) + 8 * 7168 + 2048  # gate, up, inputs, and what shared2 takes: 8 bits
    each = residuals + latents + attention + routed + experts
    assert block.kept(told).bytes == pytest.approx(4096 * each)


def test_the_fewest_blocks_that_let_a_run_fit_are_kept_in_the_hosts_memory() -> None:
    """All but one of them, which is on its way; no time is counted."""
    run = small_run(grouped(8))
    none, three = (estimate(run, Layout(dp=8, recompute=name)) for name in ("none", "host@3"))
    kept, away = none.memory[0].activations, three.memory[0].activations
    block = (kept - away) / 2
    assert block == pytest.approx(kept / 8, rel=0.05)
    assert three.step == none.step
    assert estimate(run, Layout(dp=8, recompute="host")).layout.recompute == "none"
    beyond = none.memory[0].needed - 1.5 * block * (1 + none.memory[0].fragmentation)
    small = replace(run, gpu=replace(run.gpu, hbm_bytes=int(beyond)))
    assert estimate(small, Layout(dp=8, recompute="host")).layout.recompute == "host@3"


def test_frozen_fp8_weights_are_turned_round_before_blackwell() -> None:
    """Held once, they are read and written for every data gradient where products need that."""
    for device, turned in (("h100", True), ("gb200", False)):
        run = small_run(grouped(), stack=STACKS["nemo"], gpu=gpu(device), adapters=Adapters(8))
        costs = costs_of(replace(run, precision="fp8"))["block"]
        alike = costs_of(
            replace(run, precision="fp8", stack=replace(run.stack, scaled_weights=False))
        )
        assert (costs.backward.vector_s > alike["block"].backward.vector_s) == turned


def test_host_launches_bind_small_models_in_eager_mode() -> None:
    run = small_run(dense(4), devices=1, global_batch=1, stack=EAGER, sequence=128)
    small = estimate(run, Layout(zero=0)).step
    free = replace(run, stack=replace(EAGER, host_kernel_s=0.0))
    assert small.host_s > 0.5 * small.time_s
    assert estimate(free, Layout(zero=0)).step.time_s < 0.5 * small.time_s
    large = replace(run, global_batch=64, sequence=1024)
    step = estimate(large, Layout(microbatch=64, zero=0)).step
    assert step.host_s < 0.05 * step.time_s


def test_an_optimizer_on_the_host_frees_memory_and_takes_its_processors_time() -> None:
    """A node's processors update the parameters of all its devices; gradients wait there too."""
    run = small_run(grouped(), devices=8, stack=STACKS["deepspeed"])
    hosted = replace(run, stack=flagged(run.stack, "host_optimizer"))
    layout = Layout(dp=8, zero=3)
    device, host = estimate(run, layout), estimate(hosted, layout)
    assert device.worst.optimizer > 0 == host.worst.optimizer == host.worst.gradients
    assert host.step.optimizer_s > 10 * device.step.optimizer_s
    several = replace(hosted, global_batch=8 * run.global_batch)
    more = estimate(several, layout).step, estimate(hosted, layout).step
    assert more[0].optimizer_s == more[1].optimizer_s
    assert more[0].accumulate_s > more[1].accumulate_s
    paged = estimate(replace(hosted, states=STATES["8bit"]), Layout(dp=8, zero=1))
    assert paged.worst.optimizer == 0 < paged.worst.gradients


def test_blocks_are_recomputed_from_inputs_on_the_host() -> None:
    run = small_run(grouped(12), devices=8)
    full, hosted = (estimate(run, Layout(dp=8, recompute=p)) for p in ("full", "full@host"))
    assert hosted.worst.activations < 0.5 * full.worst.activations
    assert hosted.step.time_s == full.step.time_s


def test_what_modules_leave_may_be_kept_on_the_host() -> None:
    """The activations of two blocks of a stage are on the device, on their way."""
    run = small_run(grouped(12), devices=8)
    for pp in (1, 2):
        layout = Layout(dp=8 // pp, pp=pp)
        modules, hosted = (estimate(run, replace(layout, recompute=p)) for p in ("mlp", "mlp+host"))
        assert hosted.worst.activations < 0.5 * modules.worst.activations
        assert hosted.step.time_s == modules.step.time_s


def test_fsdp_gathers_ahead_whether_compiled_or_not() -> None:
    overlaps = {STACKS[name].overlap.gather for name in ("torchtitan", "torchtitan-compiled")}
    assert overlaps == {STACKS["fsdp"].overlap.gather}


def test_hooks_around_every_module_bind_small_microbatches_of_deepspeeds_zero_3() -> None:
    """More modules, as of adapters, and recomputation run more of them."""
    run = small_run(grouped(), devices=8, stack=STACKS["deepspeed"], sequence=128)
    adapted = replace(run, adapters=Adapters(8))

    def host_s(run: Run, zero: int, recompute: str = "none") -> float:
        layout = Layout(dp=8, zero=zero, recompute=recompute)
        return estimate(run, layout).stages[0].host_s

    assert host_s(run, 3) > 2 * host_s(run, 2)
    more_s = [host_s(run, 3, policy) - host_s(run, 2, policy) for policy in ("none", "full")]
    assert more_s[1] > 1.3 * more_s[0]
    assert host_s(adapted, 3) > 1.5 * host_s(run, 3)
    sharded = replace(run, stack=STACKS["fsdp"])
    assert host_s(sharded, 3) < host_s(sharded, 2) * 1.01


def test_hooks_gather_ahead_as_far_as_the_host_is_ahead_of_its_device() -> None:
    """Where it is not, gathers of weights stand in full in the step."""
    run = small_run(grouped(), devices=8, stack=STACKS["deepspeed"], sequence=128)
    late = replace(run, stack=replace(run.stack, overlap=replace(run.stack.overlap, gather=0.0)))
    slow = replace(run, stack=replace(run.stack, host_module_s=1.0))
    sharded_s = [estimate(r, Layout(dp=8, zero=3)).step.sharded_s for r in (run, late, slow)]
    assert 0 < sharded_s[0] <= sharded_s[1] == pytest.approx(sharded_s[2])


def test_older_attention_kernels_are_slower() -> None:
    run = small_run(grouped())
    seconds = [
        costs_of(replace(run, attention=name))["block"].forward.attention_s
        for name in ("flash", "flex", "flash2", "flash1")
    ]
    assert seconds[0] < seconds[1] < seconds[2] < seconds[3]
    ampere = replace(run, gpu=gpu("a100-80"))
    newest, second = (
        costs_of(replace(ampere, attention=name))["block"].forward.attention_s
        for name in ("flash", "flash2")
    )
    assert newest == second  # the second version was written for Ampere


def test_measured_rates_of_flash_attention_2_set_its_pace() -> None:
    """Kernels written for Ampere use neither Blackwell's nor AMD's matrix units fully; other
    devices have libraries of their own."""
    run = small_run(grouped(max_sequence=16384), sequence=16384)

    def attention_s(device: str, library: str) -> tuple[float, float]:
        there = replace(run, gpu=gpu(device), attention=library)
        block = costs_of(there)["block"]
        return block.forward.attention_s, block.backward.attention_s

    model = run.model
    forward_flops = 2 * run.sequence**2 * model.heads * model.head_dim  # causal
    for device in ("b200", "mi300x"):
        fastest, second = attention_s(device, "flash"), attention_s(device, "flash2")
        there = gpu(device)
        assert there.flash2_flops and there.flash2_backward_flops
        assert second[0] == pytest.approx(forward_flops / there.flash2_flops, rel=0.01)
        assert second[1] > 1.2 * fastest[1]
    assert STACKS["gaudi"].attention == "flash"


def test_unfused_attention_keeps_its_scores() -> None:
    run = small_run(dense(dropout=0.1, attention_dropout=0.1))
    flash = costs_of(run)["block"].kept("none").bytes
    unfused = costs_of(replace(run, attention="unfused"))["block"]
    scores = 2 * 8 * 1024 * 1024  # 16-bit, 8 heads
    assert unfused.kept("none").bytes - flash >= 2 * scores
    assert unfused.kept("none").bytes - unfused.kept("selective").bytes >= 2 * scores


def test_plain_modules_keep_the_softmax_of_decoders_in_fp32() -> None:
    def score_bytes(**sizes: str) -> float:
        run = small_run(grouped(**sizes), stack=EAGER, attention="unfused")
        fused = costs_of(replace(run, attention="flash"))["block"].kept("none").bytes
        more = costs_of(run)["block"].kept("none").bytes - fused
        return more / (run.model.heads * run.sequence**2)

    assert score_bytes(family="llama") == pytest.approx(6, rel=0.1)
    assert score_bytes(family="gpt2") == pytest.approx(2, rel=0.1)


def test_a_dense_mask_makes_attention_compute_the_full_square() -> None:
    def attention_s(model: ModelConfig, flags: str) -> float:
        run = small_run(model, stack=flagged(EAGER, flags), sequence=8192)
        return costs_of(run)["block"].backward.attention_s

    causal, windowed = grouped(max_sequence=8192), grouped(max_sequence=8192, window=256)
    assert attention_s(causal, "dense_mask") > 2 * attention_s(causal, "")
    assert attention_s(windowed, "") < 0.5 * attention_s(causal, "")
    assert attention_s(windowed, "dense_window") == attention_s(causal, "dense_mask")
    assert attention_s(causal, "dense_window") == attention_s(causal, "")


def test_the_math_back_end_multiplies_scores_in_fp32() -> None:
    runs = [
        small_run(grouped(), stack=flagged(EAGER, flags), attention="unfused")
        for flags in ("", "math_attention")
    ]
    half, fp32 = (costs_of(run)["block"] for run in runs)
    assert fp32.forward.matrix_s > 1.5 * half.forward.matrix_s
    assert "math back end" in runs[1].given and "math back end" not in runs[0].given


@pytest.mark.parametrize("flags", ["loss_chunks=8", "liger_loss", "compiled_loss"])
def test_losses_by_chunks_or_in_16_bits_need_less_memory(flags: str) -> None:
    def logits_bytes(words: str) -> float:
        run = small_run(grouped(vocab=131072), stack=flagged(EAGER, words))
        return estimate(run, Layout(dp=8, microbatch=4)).memory[-1].logits

    assert logits_bytes(flags) < 0.4 * logits_bytes("")


def test_a_checkpointed_loss_computes_its_logits_again() -> None:
    runs = [
        small_run(grouped(), stack=flagged(EAGER, f"loss_chunks=4 {word}"))
        for word in ("", "recompute_loss")
    ]
    once, again = (costs_of(run)["head"] for run in runs)
    assert again.backward.matrix_s == pytest.approx(once.backward.matrix_s + once.forward.matrix_s)
    assert "loss in 4 chunks" in runs[1].given


def test_optimizers_of_separate_kernels_move_more_bytes() -> None:
    def optimizer_s(flags: str, states: str = "bf16") -> float:
        run = small_run(grouped(), stack=flagged(EAGER, flags), states=STATES[states])
        return estimate(run, Layout(dp=8, zero=0)).step.optimizer_s

    fused = optimizer_s("")
    assert optimizer_s("foreach") > optimizer_s("forloop") > 1.5 * fused
    assert fused < optimizer_s("clip") < 1.6 * fused
    assert optimizer_s("", "8bit") > 4 * fused


def test_megatron_scales_zeroes_and_without_fusion_adds_gradients() -> None:
    run = replace(small_run(grouped()), states=STATES["mixed"], global_batch=8)
    parameters = build_model(run.model, 1).parameters

    def step(stack: Stack) -> StepTime:
        return estimate(replace(run, stack=stack), Layout(dp=8, zero=0)).step

    plain, averaged = step(MEGATRON), step(replace(MEGATRON, scales_gradients=False))
    scaled_s = plain.optimizer_s - averaged.optimizer_s
    assert scaled_s == pytest.approx(2 * 4 * parameters / run.gpu.stream_Bps, rel=0.03)
    # Products add gradients; without fusion a kernel adds those of one microbatch too.
    assert plain.accumulate_s == 0
    added_s = step(flagged(MEGATRON, "no_grad_fusion")).accumulate_s
    assert added_s == pytest.approx(16.6 * parameters / run.gpu.stream_Bps, rel=0.03)


def test_a_loss_of_many_kernels_is_a_streaming_class() -> None:
    classes = [
        estimate(
            small_run(grouped(), stack=flagged(MEGATRON, flags)), Layout(dp=8)
        ).kernel_classes_s
        for flags in ("", "te_loss")
    ]
    plain, fused = (times_s["softmax/loss"] for times_s in classes)
    assert plain == 0 < fused
    assert classes[0]["streaming"] > classes[1]["streaming"] + fused


def test_a_foreach_optimizer_of_megatron_needs_roots_of_its_moments() -> None:
    runs = [
        small_run(grouped(vocab=65536), stack=flagged(MEGATRON, flags), sequence=64,
                  states=STATES["mixed"])
        for flags in ("", "foreach")
    ]  # fmt: skip
    fused, foreach = (estimate(run, Layout(dp=8, zero=0)).memory[0] for run in runs)
    roots = foreach.optimizer / 3  # of fp32 weights and two moments
    assert foreach.transient + foreach.activations + foreach.logits == pytest.approx(roots)
    assert foreach.allocated > fused.allocated


def test_a_foreach_optimizer_copies_the_gradients() -> None:
    runs = [
        small_run(grouped(vocab=65536), stack=flagged(EAGER, flags), sequence=64)
        for flags in ("", "foreach")
    ]
    fused, foreach = (estimate(run, Layout(dp=8, zero=0)).memory[0] for run in runs)
    assert foreach.transient == pytest.approx(foreach.gradients)
    assert foreach.allocated > fused.allocated


def test_fp32_adapters_cast_their_inputs_and_keep_the_copies() -> None:
    def block(flags: str) -> tuple[LayerCost, Run]:
        stack, adapters = flagged(EAGER, flags), Adapters(16, ("q", "down"))
        run = small_run(grouped(), stack=stack, adapters=adapters, states=STATES["bf16"])
        return costs_of(run, Layout(dp=8, microbatch=4))["block"], run

    (half, run), (fp32, _) = block(""), block("fp32_adapters")
    assert fp32.forward.vector_s > half.forward.vector_s
    assert fp32.backward.matrix_s > half.backward.matrix_s
    # Copies of both inputs; the products' own are not kept, the inner tensors are twice as wide.
    more = 4 * (run.model.hidden + run.model.ffn) - 2 * (run.model.hidden + run.model.ffn)
    kept = (fp32.kept("none").bytes - half.kept("none").bytes) / (4 * run.sequence)
    assert kept == pytest.approx(more, rel=0.05)


def test_autocast_casts_inputs_of_fp32_adapters_up_and_down() -> None:
    def block(flags: str) -> LayerCost:
        stack, adapters = flagged(EAGER, flags), Adapters(16, ("q", "down"))
        run = small_run(grouped(), stack=stack, adapters=adapters, states=STATES["bf16"])
        return costs_of(run, Layout(dp=8, microbatch=4))["block"]

    half, cast, dropped = block(""), block("cast_adapters"), block("cast_adapters adapter_dropout")
    # Of two adapters: the input up and down, and both weights; backwards the input's gradient up
    # and down, and both weight gradients. Products run in 16 bits.
    assert cast.forward.kernels - half.forward.kernels == 2 * 4
    assert cast.backward.kernels - half.backward.kernels == 2 * 4
    assert cast.backward.matrix_s == pytest.approx(half.backward.matrix_s)
    assert cast.kept("none").bytes == half.kept("none").bytes  # copies instead of inputs
    assert dropped.kept("none").bytes > cast.kept("none").bytes  # masks
    assert dropped.forward.kernels - cast.forward.kernels == 2
    assert dropped.forward.vector_s > cast.forward.vector_s > half.forward.vector_s


def test_joint_projections_have_one_product_and_one_adapter() -> None:
    def block(family: str, adapters: Adapters | None = None) -> LayerCost:
        model = replace(grouped(), family=family)
        run = small_run(model, stack=EAGER, adapters=adapters, states=STATES["bf16"])
        return costs_of(run, Layout(dp=8, microbatch=4))["block"]

    apart, joint = block("llama"), block("qwen")
    assert apart.forward.kernels - joint.forward.kernels == 2
    assert (apart.parameters, apart.tensors - 2) == (joint.parameters, joint.tensors)
    adapters = Adapters(16, ("q", "k", "v"))
    assert block("llama", adapters).modules - block("qwen", adapters).modules == 2 * 3


def test_4_bit_weights_are_dequantized_for_every_product() -> None:
    runs = [
        small_run(grouped(), stack=flagged(EAGER, flags), adapters=Adapters(16))
        for flags in ("", "nf4")
    ]
    half, nf4 = (costs_of(run)["block"] for run in runs)
    assert nf4.forward.kernels - half.forward.kernels == 6  # q, k, v, o, gate with up, down
    assert runs[1].frozen_bytes == pytest.approx(0.56)
    assert "4-bit frozen weights" in runs[1].given


def test_autocast_casts_every_weight_and_keeps_the_copies() -> None:
    runs = [
        small_run(grouped(), stack=flagged(EAGER, flags), states=STATES["fp32"])
        for flags in ("", "autocast")
    ]
    plain, cast = (costs_of(run)["block"] for run in runs)
    assert cast.forward.vector_s > 1.3 * plain.forward.vector_s
    assert cast.weight.vector_s > plain.weight.vector_s
    assert cast.kept("none").bytes > plain.kept("none").bytes
    memory = [estimate(run, Layout(dp=8, zero=0)).memory[0].weights for run in runs]
    assert 1.3 < memory[1] / memory[0] < 1.5  # 16-bit copies, except of the embedding


def test_steps_in_fp32_have_slow_products_and_wide_activations() -> None:
    half, tf32, fp32 = (
        costs_of(small_run(grouped(), stack=flagged(EAGER, flags)), Layout(dp=8, microbatch=4))
        for flags in ("", "tf32", "fp32")
    )
    times = [costs["block"].forward.matrix_s for costs in (half, tf32, fp32)]
    assert times[0] < times[1] < times[2]
    kept = [costs["block"].kept("none").bytes for costs in (half, tf32, fp32)]
    assert 1.5 * kept[0] < kept[1] == kept[2]


def test_experts_of_plain_modules_are_masked_or_summed_slice_by_slice() -> None:
    plain, masked, sliced = (
        costs_of(small_run(mixture(), stack=flagged(EAGER, flags)))["block"]
        for flags in ("", "masked_experts", "sliced_experts")
    )
    assert masked.forward.vector_s > plain.forward.vector_s
    assert masked.backward.vector_s > plain.backward.vector_s
    assert sliced.forward.vector_s == plain.forward.vector_s
    assert sliced.weight.vector_s > plain.weight.vector_s


def test_fp8_products_are_faster_and_their_casts_are_paid() -> None:
    model = dense(hidden=4096, heads=32, kv_heads=32, ffn=16384)
    half = costs_of(small_run(model))["block"]
    eight = costs_of(small_run(model, precision="fp8"))["block"]
    assert 0.45 * half.forward.matrix_s < eight.forward.matrix_s < 0.7 * half.forward.matrix_s
    assert eight.forward.vector_s > half.forward.vector_s
    assert 0.8 * half.forward.attention_s < eight.forward.attention_s < half.forward.attention_s


def test_tensor_parallelism_divides_work_and_adds_collectives() -> None:
    run = small_run(dense(hidden=4096, heads=32, kv_heads=32, ffn=16384))
    whole = costs_of(run)["block"]
    quarter = costs_of(run, Layout(dp=2, tp=4))["block"]
    assert quarter.forward.matrix_s == pytest.approx(whole.forward.matrix_s / 4, rel=0.3)
    assert quarter.parameters == pytest.approx(whole.parameters / 4, rel=0.01)
    assert not whole.forward_links
    assert [link.kind for link in quarter.forward_links].count("all_gather") == 2
    plain = costs_of(run, Layout(dp=2, tp=4, sp=False))["block"]
    assert [link.kind for link in plain.forward_links] == ["all_reduce", "all_reduce"]
    assert plain.kept("none").bytes > quarter.kept("none").bytes


def test_context_parallelism_divides_the_causal_square() -> None:
    long = dense(max_sequence=16384)
    run = small_run(long, sequence=16384)
    whole = costs_of(run)["block"].forward.attention_s
    part = costs_of(run, Layout(dp=4, cp=2))["block"].forward.attention_s
    assert part == pytest.approx(whole / 2, rel=0.1)


def test_costs_add_and_scale() -> None:
    one = Cost(1.0, 2.0, 3.0, 4)
    assert (one + one).total_s == 12.0
    assert one.times(2) == one + one
