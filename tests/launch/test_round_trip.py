"""What an export writes, the reader of launch files reads back: the same model and layout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.base.errors import AtollError
from atoll.step.layout import Layout
from atoll.step.stages import even_sizes
from atoll.tools.read import read_launch
from atoll.training.estimate import Estimator
from atoll.workload import load_config
from export.export_cases import DENSE, EXPERTS, LONG, SHARDED, UNEVEN, Case
from oracles.step_by_layer import gradient_s

AXES = ("tp", "pp", "cp", "ep", "microbatch", "hsdp")
SHAPE = ("hidden", "layers", "heads", "kv_heads", "head_dim", "ffn", "gated", "norm", "experts",
         "experts_per_token", "shared_ffn", "dense_layers", "latent_kv", "latent_q",
         "tied_embeddings", "positions", "qk_norm", "norm_epsilon", "rotary_base",
         "position_rows")  # fmt: skip


def check(case: Case, target: str, folder: Path) -> None:
    config = load_config(case.model)
    path = case.export(target).save(folder)
    launch = read_launch(path, None if target in ("megatron-lm", "torchtitan") else config)
    assert launch.software == target
    assert launch.arguments.not_understood == {}, "what we write we understand"
    for field in SHAPE:
        assert getattr(launch.model, field) == getattr(config, field), field
    for axis in AXES:
        assert launch.fields.get(axis, 1) == getattr(case.layout, axis), axis
    assert launch.fields["batch"] == case.global_batch
    assert launch.fields["recompute"] == case.layout.recompute
    assert launch.fields["sequence"] == case.sequence
    if target == "megatron-lm":
        assert launch.fields["devices"] == case.layout.devices
        assert launch.fields["zero"] == case.layout.zero
        assert launch.fields["vpp"] == case.layout.vpp
        blocks = even_sizes(config.layers, case.layout.pp * case.layout.rounds)
        assert launch.fields["blocks"] == (blocks if len(set(blocks)) > 1 else ())
        assert launch.fields["sp"] == (case.layout.sp and case.layout.tp > 1)


@pytest.mark.parametrize("target", ["megatron-lm", "torchtitan", "nemo", "deepspeed"])
@pytest.mark.parametrize("case", [DENSE, UNEVEN, SHARDED, LONG, EXPERTS], ids=lambda c: c.model)
def test_a_written_file_is_read_back(case: Case, target: str, tmp_path: Path) -> None:
    try:
        case.export(target)
    except AtollError:
        pytest.skip("the target cannot run it")
    check(case, target, tmp_path)


@pytest.mark.parametrize("target", ["megatron-lm", "torchtitan", "nemo", "deepspeed"])
@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_a_plan_takes_what_the_check_of_its_file_says(
    target: str, precision: str, tmp_path: Path
) -> None:
    """Each tool has its own kernels and optimizer states: a plan is priced as the tool runs it."""
    job = {"model": "llama3-8b", "device": "h100", "devices": 16}
    try:
        plan = atoll.plan(
            **job, batch=32, tp=[1, 2], pp=[1], cp=[1], precision=precision, export=target
        )
    except AtollError as error:
        assert target == "deepspeed", "it has no fp8"
        assert "fp8" in str(error)
        return
    checked = atoll.check(plan.export(target).save(tmp_path), sequence=8192, **job)
    assert checked.estimate.step.time_s == pytest.approx(plan.best.step.time_s, rel=1e-12)
    assert checked.estimate.memory == plan.best.memory


@pytest.mark.parametrize("target", ["trl", "llama-factory", "nemo"])
@pytest.mark.parametrize("method", ["lora", "sft"])
@pytest.mark.parametrize("devices", [1, 8])
def test_a_plan_of_fine_tuning_takes_what_the_check_of_its_file_says(
    target: str, method: str, devices: int, tmp_path: Path
) -> None:
    job: dict[str, Any] = {"device": "h200", "devices": devices, "method": method}
    model = "llama3-8b" if method == "lora" else "qwen2-7b" if devices > 1 else "gpt2-xl"
    sequence = 4096 if devices > 1 else 1024
    if target == "nemo":
        job |= {"tp": [1], "pp": [1], "cp": [1]}
    plan = atoll.plan(model, **job, batch=16, sequence=sequence, export=target)
    file = plan.export(target).save(tmp_path)
    checked = atoll.check(file, model=model, device="h200", devices=devices, time_limit="1 s")
    assert checked.estimate.layout == plan.best.layout
    assert checked.estimate.step.time_s == pytest.approx(plan.best.step.time_s, rel=1e-12)
    assert checked.estimate.memory == plan.best.memory


@pytest.mark.parametrize(
    ("target", "model", "kept"),
    [
        ("megatron", "llama3-8b", {"tp": [2], "pp": [4], "vpp": [2]}),  # sends overlap
        ("megatron", "deepseek-v2-lite", {"tp": [1], "pp": [1], "ep": [8]}),  # norms of latents
        ("nemo", "llama3-8b", {"tp": [4], "pp": [2]}),  # tensor collectives inside products
        ("torchtitan", "llama3-8b", {"tp": [2], "pp": [1], "cp": [8], "zero": [3]}),  # dp 1
    ],
)
def test_a_divided_plan_takes_what_the_check_of_its_file_says(
    target: str, model: str, kept: dict[str, list[int]], tmp_path: Path
) -> None:
    job = {"model": model, "device": "h100", "devices": 16}
    plan = atoll.plan(**job, batch=32, sequence=8192, export=target, **kept)
    named = {} if target == "megatron-lm" else {"model": model}
    path = plan.export(target).save(tmp_path)
    checked = atoll.check(path, device="h100", devices=16, sequence=8192, **named)
    assert checked.estimate.layout == plan.best.layout
    assert checked.estimate.step.time_s == pytest.approx(plan.best.step.time_s, rel=1e-12)
    assert checked.estimate.memory == plan.best.memory


@pytest.mark.parametrize(
    ("target", "asked"),
    [
        ("torchtitan", {"model": "llama3-8b", "pp": 2, "zero": 1}),  # weights that FSDP keeps
        ("megatron", {"model": "mixtral-8x7b", "tp": 4, "etp": 1, "ep": 2, "zero": 0}),  # dp 2
        ("megatron", {"model": "mixtral-8x7b", "tp": 8, "etp": 1, "zero": 0}),  # of experts alone
    ],
)
def test_an_estimated_layout_takes_what_the_check_of_its_file_says(
    target: str, asked: dict[str, Any], tmp_path: Path
) -> None:
    found = atoll.estimate(**asked, device="h100", devices=8, batch=16, export=target)
    path = found.export(target).save(tmp_path)
    named = {} if target == "megatron-lm" else {"model": asked["model"]}
    checked = atoll.check(path, device="h100", devices=8, time_limit=1e-6, **named).estimate
    assert checked.layout == found.layout and checked.memory == found.memory
    assert checked.step.time_s == pytest.approx(found.step.time_s, rel=1e-12)


@pytest.mark.parametrize("target", ["megatron", "nemo"])
@pytest.mark.parametrize("overlap", ["tp_comm,grad_reduce,p2p", "no_grad_reduce", "grad_reduce"])
@pytest.mark.parametrize("layout", [{"tp": 2, "pp": 4, "vpp": 2}, {"tp": 4, "cp": 2}, {"dp": 16}])
def test_overlaps_and_flags_are_written_and_read_back(
    target: str, overlap: str, layout: dict[str, int], tmp_path: Path
) -> None:
    job: dict[str, Any] = {"device": "h100", "devices": 16, "sequence": 8192}
    flags = {"overlap": overlap, "flags": "te_loss,cp_p2p"}
    found = atoll.estimate("llama3-8b", **job, batch=32, tool=target, **layout, **flags)
    file = found.export(target)
    named = {} if target == "megatron" else {"model": "llama3-8b"}
    checked = atoll.check(file.save(tmp_path), **job, **named, time_limit=1e-6).estimate
    assert checked.step.time_s == pytest.approx(found.step.time_s, rel=1e-12)
    assert checked.memory == found.memory
    assert not any("says nothing" in note for note in file.notes)


def test_flags_that_a_file_does_not_say_are_noted() -> None:
    asked: dict[str, Any] = {"device": "h100", "devices": 8, "batch": 8, "flags": "head_wgrad=4"}
    (note,) = atoll.estimate("llama3-8b", **asked).export("megatron").notes[1:]
    assert note.startswith("The estimate has head_wgrad=4, of which the file says nothing")


def test_optimizer_states_that_a_file_does_not_say_are_noted() -> None:
    asked = {"model": "llama3-8b", "device": "h100", "devices": 8, "batch": 8, "zero": 3}
    noted = atoll.estimate(**asked, optimizer="bf16").export("megatron").notes
    assert "--optimizer mixed says what the file takes" in noted[-1]
    assert "optimizer states" not in " ".join(atoll.estimate(**asked).export("megatron").notes)


@given(
    model=st.sampled_from(
        ["llama3-8b", "qwen3-30b-a3b", "gpt3-175b", "mixtral-8x7b", "deepseek-v2-lite"]
    ),
    degrees=st.tuples(*(st.sampled_from([1, 2, 4]) for _ in range(4))),
    microbatch=st.sampled_from([1, 2]),
    zero=st.sampled_from([0, 1, 2, 3]),
    recompute=st.sampled_from(["none", "selective", "full"]),
    precision=st.sampled_from(["bf16", "fp8", "mxfp8", "nvfp4"]),
)
def test_drawn_layouts_are_read_back_from_megatron(
    model: str,
    degrees: tuple[int, ...],
    microbatch: int,
    zero: int,
    recompute: str,
    precision: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    tp, pp, cp, dp = degrees
    layout = Layout(
        dp=dp, tp=tp, pp=pp, cp=cp, microbatch=microbatch, zero=zero, recompute=recompute, sp=tp > 1
    )
    case = Case(model, layout, 2048, 32, precision)
    try:
        case.export("megatron")
    except AtollError:
        return
    check(case, "megatron-lm", tmp_path_factory.mktemp("launch"))


@pytest.mark.parametrize("target", ["megatron-lm", "torchtitan", "deepspeed", "nemo"])
@pytest.mark.parametrize("device", ["tpu-v5p", "physical-tpuv4", "trainium2"])
def test_a_file_is_checked_as_it_was_planned_whatever_runs_on_the_device(
    tmp_path: Path, device: str, target: str
) -> None:
    """TPUs and chips have programs of their own, and a file says no more than its layout there."""
    planned = atoll.plan(
        "llama2-7b", device, 16, batch=64, export=target, zero=1, pp=[1, 2], vpp=1, order="1f1b"
    )
    file = planned.export(target).save(tmp_path)
    given: dict[str, Any] = {"device": device, "devices": 16, "model": "llama2-7b"}
    given["sequence"] = 4096
    checked = atoll.check(file, **given, time_limit="1 s")
    assert checked.estimate.run.stack.name == planned.run.stack.name
    assert checked.estimate.step.time_s == pytest.approx(planned.best.step.time_s, rel=1e-9)
    own = planned.run.stack.name in ("xla", "chip")
    assert any("does not run" in note for note in checked.answer.notes) == own
    assert atoll.estimate(from_=file, **given).step.time_s == checked.estimate.step.time_s


@pytest.mark.parametrize(("zero", "pp"), [(0, 1), (1, 1), (1, 2), (0, 2)])
def test_deepspeed_without_zero_and_in_pipelines_sums_gradients_when_all_are_there(
    tmp_path: Path, zero: int, pp: int
) -> None:
    """Behind the last backward pass, in plans and in checks alike: `buffered_allreduce_fallback`,
    and ReduceGrads of a pipeline's schedule, which `overlap_comm` does not change.
    """
    given: dict[str, Any] = {"device": "h100", "devices": 8, "model": "gpt2-xl"}
    made = atoll.estimate(**given, batch=16, zero=zero, pp=pp, export="deepspeed")
    step, file = made.step, tmp_path / "ds_config.json"
    settings = {
        "train_batch_size": 16,
        "train_micro_batch_size_per_gpu": made.layout.microbatch,
        "gradient_accumulation_steps": made.layout.microbatches(16),
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": zero, "overlap_comm": True},
        "pipeline": {"stages": pp},
    }
    file.write_text(json.dumps(settings))
    checked = atoll.check(file, **given, time_limit="1 s")
    assert checked.estimate.step.time_s == pytest.approx(step.time_s, rel=1e-9)
    stepper, shares = Estimator(made.run).shares(made.layout)
    wires_s = [
        made.run.slack * gradient_s(stepper, *Estimator(made.run).trained(made.layout, share))[0]
        for share in shares
    ]
    hides = zero == 1 and pp == 1
    assert step.gradient_s == pytest.approx(0.0 if hides else max(wires_s), abs=1e-3 * max(wires_s))
