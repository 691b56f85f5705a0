"""Rows say their software, network and kernels in the words of their sources; nothing is known of a
run by its name.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from atoll.base.errors import AtollError
from atoll.hardware.gpu import load_gpu
from atoll.step.layout import Layout, check_recompute
from atoll.tools.software import find_stack, graphed, overlapping, stack_named
from atoll.tools.stack import COMPILED, FSDP, MEGATRON, NEMO, XLA
from atoll.training.estimate import Estimate, estimate
from atoll.validation.row_runs import run_from_row, unread_words
from atoll.validation.row_settings import port_Bps
from atoll.validation.tables import RunRow
from atoll.validation.validate import predict, validate_runs

LLAMA = {
    "layers": "16", "hidden": "2048", "heads": "16", "kv_heads": "8", "ffn": "8192",
    "vocab": "32000", "seq": "4096", "devices": "16", "global_batch": "64", "micro_batch": "1",
    "tp": "2", "pp": "2", "dp": "4", "sp": "1", "mlp_gated": "1",
}  # fmt: skip


def row(device: str = "H100-SXM", name: str = "any", **more: str) -> RunRow:
    return RunRow(2, LLAMA | {"id": name, "device": device} | more)


def found(device: str = "H100-SXM", **more: str) -> Estimate:
    return estimate(*run_from_row(row(device, **more)))


@pytest.mark.parametrize(
    ("words", "stack"),
    [
        ("megatron-bridge 26.04.01", "nemo"), ("NeMo (megatron-core) ROCm", "nemo"),
        ("Megatron-LM core_r0.12", "megatron"), ("Megatron-LM 2021", "megatron-2021"),
        ("FlagScale (Megatron-LM 2023)", "megatron-2023"),
        ("megatron-deepspeed (Habana)", "megatron-2021"), ("torchtitan-fsdp2", "fsdp"),
        ("HF accelerate + deepspeed zero3", "deepspeed"), ("MaxText", "xla"),
        ("optimum-habana (Gaudi)", "gaudi"), ("NeMo AutoModel, PyTorch FSDP2", "automodel"),
        ("nanotron", "modular-lean"), ("PaddleNLP 2.7", "paddle"),
        ("modular-norm", "modular-norm"), ("torch.compile", "compiled"), ("my own", None),
    ],
)  # fmt: skip
def test_frameworks_with_their_releases(words: str, stack: str | None) -> None:
    assert stack_named(words) == stack


def test_the_first_qwen_runs_the_modules_of_flash_attn() -> None:
    """Its own code imports them where it finds them; later models have Hugging Face's."""
    words = {"framework": "Hugging Face transformers", "attention_kernel": "flash-attn 2"}
    single = {"devices": "1", "tp": "1", "pp": "1", "dp": "1", "sp": "0"}

    def stack_of(model: str, **more: str) -> tuple[str, float]:
        run, _ = run_from_row(row(model=model, **single | words | more))
        return run.model.family, run.stack.passes["rmsnorm"].bytes

    assert stack_of("Qwen-7B") == ("qwen", 4)
    assert stack_of("Qwen-7B", attention_kernel="sdpa") == ("qwen", 60)
    assert stack_of("Qwen2.5-7B") == stack_of("Qwen1.5-7B") == ("llama", 60)


def test_words_say_how_adapters_and_losses_are_computed() -> None:
    peft = find_stack("Hugging Face transformers, PEFT, eager PyTorch 2.0")
    assert peft.cast_adapters and peft.adapter_dropout
    scaled = find_stack("Hugging Face transformers + DeepSpeed ZeRO-3")  # in 16 bits only
    assert scaled.adapter_dropout and not scaled.cast_adapters
    assert (
        peft.host_checkpoint_s == scaled.host_checkpoint_s < find_stack("eager").host_checkpoint_s
    )
    assert find_stack("torchtune, torch.compile").loss_chunks == 8
    titan = find_stack("torchtitan FSDP2, torch.compile").passes
    assert titan["rotary_complex"].bytes > titan["rotary"].bytes
    assert "rotary_complex" not in find_stack("FSDP2, torch.compile").passes


def test_a_device_may_hide_part_of_what_software_overlaps() -> None:
    """Of what FSDP hides, an MI300X saves 21 %."""
    single = {"tp": "1", "pp": "1", "dp": "16", "sp": "0", "fsdp": "1", "framework": "torchtitan"}
    run, layout = run_from_row(row("MI300X", **single))
    free = replace(run, gpu=replace(run.gpu, overlap_gain=1.0))
    part = "sharded_weights"
    exposed_s, hidden_s = (estimate(r, layout).step.breakdown()[part] for r in (run, free))
    assert exposed_s > 2 * hidden_s


def test_kernels_that_are_named_beside_the_parallelism() -> None:
    """The same layout and overlap, other passes through memory."""
    eager, compiled = find_stack("AutoModel, FSDP2"), find_stack("AutoModel, FSDP2, torch.compile")
    fused = find_stack("AutoModel, FSDP2, Transformer Engine")
    assert compiled.overlap == fused.overlap == eager.overlap
    assert compiled.passes == COMPILED.passes and fused.passes == XLA.passes
    assert fused.attention == "flash" and eager.attention == "flash2"
    assert find_stack("NeMo with Transformer Engine") == NEMO


def test_trainers_of_hugging_face_divide_nothing_unless_they_state_it() -> None:
    def zero(**more: str) -> int:
        return run_from_row(row(tp="1", pp="1", dp="16", fsdp="0", zero_stage="", **more))[1].zero

    assert zero(framework="optimum-habana (Gaudi)") == 0
    assert zero(framework="Megatron-LM 2023") == 1


def test_what_a_launch_file_lets_overlap() -> None:
    hidden, unread = overlapping(MEGATRON, "tp_comm grad_reduce dispatcher=alltoall")
    assert hidden.overlap.tensor_products == NEMO.overlap.tensor_products
    assert not unread
    off, _ = overlapping(NEMO, "grad_reduce")
    assert off.overlap.tensor_products == 0
    same, _ = overlapping(NEMO, "dispatcher=hybridep")
    assert same == NEMO
    assert overlapping(NEMO, "warp drive")[1] == ("warp", "drive")


def test_dispatchers_tell_how_often_a_token_is_sent() -> None:
    assert overlapping(MEGATRON, "dispatcher=deepep")[0].sends_once
    assert not overlapping(NEMO, "dispatcher=alltoall")[0].sends_once
    assert NEMO.sends_once and not MEGATRON.sends_once


def test_late_weight_gradients_leave_nothing_to_hide_their_sums_behind() -> None:
    assert overlapping(NEMO, "ep_a2a delay_wgrad")[0].overlap.gradient == 0
    both, _ = overlapping(NEMO, "ep_a2a delay_wgrad grad_reduce")
    assert both.overlap.gradient == NEMO.overlap.gradient


def test_releases_tell_which_casts_are_fused() -> None:
    """Megatron-Bridge: those of experts since 26.06; a fused loss in all."""
    before, since = find_stack("Megatron-Bridge 26.04.01"), find_stack("Megatron-Bridge 26.06")
    assert (before.fused_casts, since.fused_casts) == ((), NEMO.fused_casts)
    assert before.loss_bytes == since.loss_bytes == 2 < find_stack("NeMo").loss_bytes


def test_fully_sharded_recipes_of_megatron_bridge_leave_what_does_not_fit_with_the_host() -> None:
    told = {"framework": "Megatron-Bridge 26.06", "recompute": "none"}
    assert run_from_row(row(**told, fsdp="1"))[1].recompute == "host"
    assert run_from_row(row(**told))[1].recompute == "none"
    assert run_from_row(row(framework="torchtitan", fsdp="1"))[1].recompute == "none"


def test_captured_graphs_leave_the_host_nothing_to_launch() -> None:
    assert graphed(MEGATRON, "0") == MEGATRON
    assert graphed(MEGATRON, "full_iteration").host_kernel_s == 0
    part = graphed(MEGATRON, "transformer_engine attn moe_router")
    assert 0 < part.host_layer_s < MEGATRON.host_layer_s


@pytest.mark.parametrize(
    ("words", "node", "gigabits"),
    [
        ("NVLink4 + 400G IB per GPU", 8, 400),
        ("Storage: 2x IB NDR 400Gb/s, Compute: 8x ConnectX-7 IB NDR 400Gb/s, Eth 100Gb/s", 8, 400),
        ("NVLINK Gen5 1800 GB/s | 4x ConnectX-8 IB XDR 800 Gb/s", 4, 800),
        ("2x 400Gbe Ethernet", 8, 100),
        ("8x200G", 8, 200),
        ("NVLINK Gen4 900 GB/s | 10G Ethernet", 8, None),  # a port for management
    ],
)
def test_ports_of_a_node_in_words(words: str, node: int, gigabits: float | None) -> None:
    assert port_Bps(words, node) == (None if gigabits is None else gigabits * 1e9 / 8)


def test_columns_decide_and_names_do_not() -> None:
    plain = run_from_row(row(model="mine"))
    assert run_from_row(row(name="bs-a100-17", model="mine")) == plain
    told, _ = run_from_row(
        row(
            framework="nanotron",
            network="h100-800g",
            attention_kernel="FlashAttention 2",
            dropout="0.1",
        )
    )
    assert (told.stack.name, told.attention, told.network.name) == (
        "modular-lean", "flash2", "h100-800g",
    )  # fmt: skip
    assert told.model.dropout == 0.1
    slower = run_from_row(row(network="8x 200Gb/s RoCE"))[0].network
    assert slower.levels[-1].bandwidth_Bps == plain[0].network.levels[-1].bandwidth_Bps / 2


def test_words_that_nobody_knows_are_told_and_cost_nothing(tmp_path: Path) -> None:
    odd = row(framework="skynet", optimizer_states="plasma", attention_kernel="telepathy")
    assert len(unread_words(odd)) == 3
    assert run_from_row(odd) == run_from_row(row())
    header = ["id", "device", "framework", "measured_iter_time_s", *LLAMA]
    line = ["1", "H100", "skynet", "1.0", *LLAMA.values()]
    table = tmp_path / "runs.csv"
    table.write_text(f"{','.join(header)}\n{','.join(line)}\n")
    shown = validate_runs(table)
    assert shown.unread == {"framework 'skynet'": 1}
    assert shown.accepted == shown.accepted_share == 1
    assert set(shown.groups) == {"device", "kind", "method", "precision"}
    assert shown.groups["precision"]["bf16"].rows == 1
    assert validate_runs(table, expect="oom").rejected_share == 0


def test_what_is_not_said_is_typical_of_the_device_and_its_time() -> None:
    old = {"mlp_gated": "0", "flash_attention": "0", "sp": "0"}
    then, _ = run_from_row(row("V100-SXM2", **old))
    assert (then.stack.name, then.attention, then.model.dropout) == (
        "megatron-2021",
        "unfused",
        0.1,
    )
    assert run_from_row(row("A100-SXM"))[0].stack.name == "modular-norm"
    assert run_from_row(row("A100-SXM", recompute="full"))[0].stack.name == "modular"
    now, _ = run_from_row(row())
    assert (now.stack.name, now.states.name, now.attention) == ("nemo", "mixed16", "flash")
    sharded = {"tp": "1", "pp": "1", "dp": "16", "zero_stage": "3", "fsdp": "1"}
    assert run_from_row(row(**sharded))[0].stack == FSDP
    early, _ = run_from_row(row(model="MPT-7b", mlp_gated="0", **sharded))
    assert (early.stack.name, early.attention) == ("fsdp-2023", "flash1")


def test_windows_of_attention() -> None:
    windowed = run_from_row(row(window="128", full_attention_every="2"))[0].model
    assert windowed.windows[:4] == (128, 0, 128, 0)
    whole, half, every = (
        found(seq="16384", **told).step.compute_s
        for told in ({}, {"window": "128", "full_attention_every": "2"}, {"window": "128"})
    )
    assert every < half < whole


def test_compiled_programs_take_a_replicas_batch_at_once() -> None:
    _, layout = run_from_row(row("TPU-v5e", pp="1", dp="8"))
    assert (layout.microbatch, layout.sp) == (8, True)


@pytest.mark.parametrize(
    ("words", "policy"),
    [
        ("attention core", "selective"),
        ("mlp layernorm", "mlp+layernorm"),
        ("mla_up_proj,moe_act", "mla_up_proj+moe_act"),
    ],
)
def test_recomputation_by_module(words: str, policy: str) -> None:
    assert run_from_row(row(recompute="selective", recompute_modules=words))[1].recompute == policy
    check_recompute(policy)
    with pytest.raises(AtollError, match="modules joined by"):
        check_recompute("mlp+spoon")


def test_activations_in_the_hosts_memory() -> None:
    told = {"recompute_modules": "moe_act", "activation_offload": "core_attn attn_norm"}
    policy = run_from_row(row(recompute="selective", **told))[1].recompute
    assert policy == "moe_act+core_attn@host+attn_norm@host"
    check_recompute(policy)


@pytest.mark.parametrize(
    ("framework", "policy"),
    [
        ("torchtitan", "alternate"),
        ("torchtitan FSDP2, torch.compile", "alternate"),
        ("torchtitan-compiled", "alternate"),
        ("MaxText", "core_attn+layernorm+mlp+moe+host"),
        ("Megatron-LM", "selective"),
    ],
)
def test_selective_recomputation_by_software(framework: str, policy: str) -> None:
    cells = row(recompute="selective", framework=framework)
    assert run_from_row(cells)[1].recompute == policy
    check_recompute(policy)


def test_modules_that_run_again_keep_less_and_take_longer() -> None:
    run, layout = run_from_row(row(recompute="none"))

    def under(policy: str) -> Estimate:
        return estimate(run, replace(layout, recompute=policy))

    none, mlp, norms, full = map(under, ("none", "mlp", "layernorm", "full"))
    assert full.worst.activations < mlp.worst.activations < norms.worst.activations
    assert norms.worst.activations < none.worst.activations
    assert full.step.time_s > mlp.step.time_s > norms.step.time_s > none.step.time_s
    assert under("core_attn").step.time_s == under("selective").step.time_s
    sent = under("core_attn@host+attn_norm@host")
    assert sent.worst.activations < none.worst.activations
    assert sent.step.time_s == none.step.time_s  # beside other layers


def test_narrow_formats_keep_the_inputs_of_products_as_they_were_cast() -> None:
    half, eighth, quarter = (
        found("GB200", precision=name).worst.activations for name in ("bf16", "fp8", "nvfp4")
    )
    assert quarter < eighth < half
    assert eighth > 0.75 * half  # most is kept for others than products


def test_formats_of_blackwell() -> None:
    large = {"hidden": "8192", "ffn": "28672", "heads": "64"}
    times = [found("GB300", precision=p, **large).step.time_s for p in ("bf16", "mxfp8", "nvfp4")]
    assert times == sorted(times, reverse=True)
    with pytest.raises(AtollError, match="no nvfp4 matrix units"):
        found("H100", precision="nvfp4")
    gpu = load_gpu("gb300")
    assert gpu.peak_flops("nvfp4") == 15e15
    assert gpu.loop_flops("nvfp4") < 2 * gpu.loop_flops("fp8")  # as measured, not as published


def test_products_that_add_gradients_read_and_write_their_sum() -> None:
    wide = found(grad_dtype="fp32", framework="megatron").step.accumulate_s
    assert found(grad_dtype="bf16", framework="megatron").step.accumulate_s == pytest.approx(
        wide / 3
    )


def test_several_nodes_wait_for_the_slowest() -> None:
    run, _ = run_from_row(row("A100-SXM", framework="megatron-2021"))
    assert run.slack > replace(run, devices=8).slack > replace(run, devices=1).slack == 1


def test_what_stays_between_steps() -> None:
    told = found().to_dict()["memory_bytes"]["stages"]
    assert len(told) == 2
    for stage in told:
        parts = stage["parts"]
        held = parts["weights"] + parts["gradients"] + parts["optimizer"] + parts["buffers"]
        assert stage["after_step"] == pytest.approx(held)
    assert Layout(recompute="mlp+layernorm").recompute == "mlp+layernorm"


@pytest.mark.parametrize(("recompute", "time_s"), [("none", 7.6), ("full", 10.0)])
def test_a_step_that_no_such_device_can_run_is_refused(recompute: str, time_s: float) -> None:
    """The products of 32 sequences take 7.7 s at 123 TFLOP/s, the best product measured on an RTX
    A6000, and 10.1 s with those that are run again.
    """
    cells = {"devices": "1", "global_batch": "32", "tp": "1", "pp": "1", "dp": "1", "sp": "0"}
    timed = [
        row("RTX-A6000", recompute=recompute, measured_iter_time_s=f"{measured_s}", **cells)
        for measured_s in (time_s, 100 * time_s)
    ]
    refused, read = predict(timed)
    assert refused.predicted is None and "the best product measured on it" in refused.reason
    assert read.predicted is not None
