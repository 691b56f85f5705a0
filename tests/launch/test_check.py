"""A launch file judged: what it says, what it costs, what would be better."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.base.errors import AtollError
from atoll.cli import main
from atoll.printing.training import print_checked
from atoll.questions.verbs import CheckQuestion
from atoll.tools.read import read_launch
from atoll.training.estimate import Estimate

SCRIPT = """#!/bin/bash
ARGS=(
  --num-layers 16 --hidden-size 2048 --num-attention-heads 16 --ffn-hidden-size 8192
  --seq-length 2048 --max-position-embeddings 2048 --vocab-size 32000 --swiglu
  --normalization RMSNorm --position-embedding-type rope --disable-bias-linear
  --untie-embeddings-and-output-weights --hidden-dropout 0 --attention-dropout 0
  --micro-batch-size 1 --global-batch-size ${BATCH:-64} --train-iters 1000
  --tensor-model-parallel-size 8 --sequence-parallel --bf16 --lr 1e-4 --save /nowhere
  --recompute-granularity full --recompute-method uniform --recompute-num-layers 1
)
torchrun --nproc-per-node ${GPUS} pretrain_gpt.py "${ARGS[@]}" $MORE
"""


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.sh"
    path.write_text(SCRIPT)
    return path


def test_without_time_for_others_the_layout_in_use_is_priced(script: Path) -> None:
    checked = atoll.check(script, device="h100", set=["GPUS=8"], time_limit=1e-6)
    assert checked.estimate.fits and checked.better is None and "time limit" in checked.why_not


def test_the_estimate_is_that_of_the_layout_which_the_file_says(script: Path) -> None:
    checked = atoll.check(script, device="h100", set=["GPUS=8"], price=2.0)
    layout = checked.estimate.layout
    assert (layout.tp, layout.dp, layout.zero, layout.recompute) == (8, 1, 0, "full")
    assert checked.estimate.fits and checked.launch.steps == 1000
    found = checked.launch.arguments
    assert set(found.without_effect) == {"lr", "save"} and not found.not_understood


def test_blocks_of_a_stage_that_are_recomputed_are_counted(script: Path) -> None:
    script.write_text(
        SCRIPT.replace("uniform --recompute-num-layers 1", "block --recompute-num-layers 4")
    )
    four_blocks = atoll.check(script, device="h100", set=["GPUS=8"])
    assert four_blocks.estimate.layout.recompute == "full@4"
    assert not four_blocks.launch.arguments.not_understood


@pytest.mark.parametrize(
    ("more", "recompute", "effects"),
    [
        ("--moe-layer-recompute", "core_attn+moe", ()),
        ("--fp8-format hybrid --fp8-recipe tensorwise", "selective", ()),
        ("--fp8-format hybrid --fp8-recipe blockwise", "selective",
         ("fp8_recipe: another quantization to 8 bits",)),
        ("--exp-avg-dtype bf16 --main-params-dtype fp32", "selective",
         ("exp_avg_dtype: other types of gradients or optimizer states",)),
    ],
)  # fmt: skip
def test_values_of_megatrons_arguments_are_priced_or_their_effect_is_said(
    more: str, recompute: str, effects: tuple[str, ...], tmp_path: Path
) -> None:
    path = tmp_path / "train.sh"
    lines = SCRIPT.splitlines()
    lines[-3] = "  --recompute-activations"
    path.write_text("\n".join(lines).replace("$MORE", more))
    launch = read_launch(path, environment={"GPUS": "8"})
    assert (launch.fields["recompute"], launch.arguments.not_priced) == (recompute, effects)


def test_a_better_layout_is_proven_and_priced(script: Path) -> None:
    checked = atoll.check(script, device="h100", set=["GPUS=8"], price=2.0)
    better = checked.better
    assert better is not None and better.step_time_s < checked.estimate.step.time_s
    saved_s = 1000 * 8 * (checked.estimate.step.time_s - better.step_time_s)
    assert better.saved_hours == pytest.approx(saved_s / 3600)
    assert better.saved_usd == pytest.approx(2 * saved_s / 3600)
    assert "--tensor-model-parallel-size" in better.launch_file
    shown = checked.to_dict()
    assert {"question", "estimate", "arguments", "better"} <= shown.keys()
    assert shown["better"]["layout"] == better.layout


def test_nothing_is_saved_of_a_run_that_does_not_fit(script: Path) -> None:
    """What would be faster, had it the memory, is no run to save from: -17 % was told of one."""
    script.write_text(
        SCRIPT.replace("--tensor-model-parallel-size 8 --sequence-parallel ", "")
        .replace("--hidden-size 2048", "--hidden-size 8192")
        .replace("--micro-batch-size 1", "--micro-batch-size 8")
    )
    checked = atoll.check(script, device="h100", set=["GPUS=8"], price=2.0)
    better = checked.better
    assert not checked.estimate.fits and better is not None
    assert (better.saved_percent, better.saved_hours, better.saved_usd) == (None, None, None)
    assert checked.to_dict()["better"]["saved_percent"] is None


def test_what_other_flags_would_bring_is_told_apart(script: Path) -> None:
    checked = atoll.check(script, device="h100", set=["GPUS=8"])
    freed, better = checked.with_other_flags, checked.better
    assert freed is not None and better is not None
    assert freed.step_time_s < better.step_time_s < checked.estimate.step.time_s
    fused = ("--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl te")
    assert freed.flag_arguments == fused, "its layout overlaps, and has no tensor parallelism"
    assert "add --overlap-grad-reduce" in freed.changes
    assert checked.to_dict()["with_other_flags"]["layout"] == freed.layout
    every = "--overlap-grad-reduce --overlap-param-gather --tp-comm-overlap"
    every += " --cross-entropy-loss-fusion --cross-entropy-fusion-impl te"
    script.write_text(SCRIPT.replace("$MORE", every))
    assert atoll.check(script, device="h100", set=["GPUS=8"]).with_other_flags is None


def test_the_options_of_other_flags_write_the_file_that_has_them(
    script: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: dict[str, Any] = {"device": "h100", "set": ["GPUS=8"]}
    checked = atoll.check(script, **asked)
    freed = checked.with_other_flags
    assert freed is not None
    print_checked(checked, CheckQuestion.of(file=script, **asked))
    assert freed.flags in " ".join(capsys.readouterr().out.split())
    _, overlap, _, flags = freed.flags.split()
    plan = atoll.plan(from_=script, **asked, overlap=overlap, flags=flags)
    assert plan.best.step.time_s == pytest.approx(freed.step_time_s, rel=1e-12)
    written = plan.export("megatron").save(tmp_path / "freed.sh")
    again = atoll.check(written, device="h100", devices=8, time_limit=1e-6).estimate
    assert again.step.time_s == pytest.approx(freed.step_time_s, rel=1e-9)


def test_changes_of_parallel_sizes_and_pipelines_come_first(script: Path) -> None:
    uneven = "--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*6|t*10L"
    text = SCRIPT.replace("$MORE", f"'{uneven}'".replace(" ", "' '")).replace("size 8", "size 4")
    script.write_text(text)
    checked = atoll.check(script, device="h100", set=["GPUS=8"])
    assert checked.better is not None and checked.estimate.layout.blocks == (6, 10)
    changes = checked.better.changes
    assert [change.split()[change.startswith("drop")] for change in changes[:3]] == [
        "--tensor-model-parallel-size", "--pipeline-model-parallel-size",
        "--pipeline-model-parallel-layout",
    ]  # fmt: skip
    assert "drop --recompute-granularity" in changes[3:]


@pytest.mark.parametrize("target", ["megatron", "nemo"])
def test_context_parallelism_by_heads_is_written_and_read_back(tmp_path: Path, target: str) -> None:
    given = {"batch": 16, "sequence": 4096, "cp": 2, "dp": 4, "flags": "cp_a2a"}
    found = atoll.estimate("llama2-7b", "h100", 8, **given)  # type: ignore[arg-type]
    written = found.export(target)
    file = written.save(tmp_path / written.file)
    checked = atoll.check(file, device="h100", devices=8, model="llama2-7b")
    assert "cp_a2a" in (checked.question.flags or "").split()
    assert checked.estimate.run.stack.exchanges_heads


def test_gradients_that_the_file_does_not_overlap_are_not_hidden(script: Path) -> None:
    given = {"device": "h100", "devices": 64}
    plain = atoll.check(script, **given)  # type: ignore[arg-type]
    script.write_text(SCRIPT.replace("$MORE", "--overlap-grad-reduce"))
    overlapping = atoll.check(script, **given)  # type: ignore[arg-type]
    exposed = [c.estimate.step.breakdown()["gradient_reduction"] for c in (plain, overlapping)]
    assert exposed[0] > 2 * exposed[1] > 0


def test_what_the_file_does_not_say_is_asked_for_in_a_sentence(script: Path) -> None:
    with pytest.raises(AtollError, match="add --devices N"):
        atoll.check(script, device="h100")


def test_a_vocabulary_that_only_the_tokenizer_knows_is_asked_for(script: Path) -> None:
    script.write_text(SCRIPT.replace("--vocab-size 32000", "--tokenizer-type Own"))
    with pytest.raises(AtollError, match="add --vocab N"):
        atoll.check(script, device="h100", devices=8)
    checked = atoll.check(script, device="h100", devices=8, vocab=32000)
    assert checked.launch.model.vocab == 32768  # padded to 128 for each of 8 tensor ranks


def test_the_command_wins_over_the_file(script: Path) -> None:
    checked = atoll.check(script, device="h100", devices=16, batch=32)
    assert (checked.question.devices, checked.question.batch) == (16, 32)


def test_estimates_and_plans_take_what_a_launch_file_says(script: Path) -> None:
    given = {"from_": script, "device": "h100", "set": ["GPUS=8"]}
    checked = atoll.check(script, device="h100", set=["GPUS=8"])
    same = atoll.estimate(**given)  # type: ignore[arg-type]
    assert isinstance(same, atoll.Estimate)
    assert (same.run, same.layout) == (checked.estimate.run, checked.estimate.layout)
    other = atoll.estimate(**given, tp=4, recompute="none")  # type: ignore[arg-type]
    assert isinstance(other, atoll.Estimate)
    assert (other.layout.tp, other.layout.dp, other.layout.recompute) == (4, 2, "none")
    best = atoll.plan(**given, export="megatron").best  # type: ignore[arg-type]
    assert checked.plan is not None and best.layout == checked.plan.best.layout


def test_a_job_file_may_name_a_launch_file_beside_it(script: Path) -> None:
    job = script.parent / "job.yaml"
    job.write_text(f"from_: {script.name}\ndevice: h100\nset: [GPUS=8, BATCH=32]\n")
    found = atoll.estimate(job=job)
    assert isinstance(found, atoll.Estimate)
    assert (found.layout.tp, found.run.global_batch) == (8, 32)
    with pytest.raises(AtollError, match="vocab: said of a launch file"):
        atoll.estimate("gpt2-xl", "h100", 8, vocab=9)


def test_arguments_of_the_script_follow_two_dashes(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script.write_text(SCRIPT.replace("${GPUS}", "$1").replace("$MORE", "$2"))
    words = ["check", str(script), "--device", "h100", "--time-limit", "1ms", "--json"]
    monkeypatch.setattr("sys.argv", ["atoll", *words, "--", "8", "--seed=3"])
    with pytest.raises(SystemExit, match="0"):
        main()
    answer = json.loads(capsys.readouterr().out)
    assert answer["question"]["devices"] == 8
    assert answer["arguments"]["without_effect"]["seed"] == "3"
    assert atoll.check(script, device="h100", script_args=["16"]).question.devices == 16


MODEL_ARGS = """
ENV_VARS: {CUDA_DEVICE_MAX_CONNECTIONS: 1}
MODEL_ARGS:
  --num-layers: 12
  --hidden-size: 1024
  --num-attention-heads: 16
  --seq-length: 1024
  --max-position-embeddings: 1024
  --vocab-size: 32000
  --micro-batch-size: ${MBS}
  --global-batch-size: 32
  --tensor-model-parallel-size: ${TP}
  --data-path: ${DATA}/text
  --bf16: true
"""


def test_variables_of_argument_files_are_set_or_named(tmp_path: Path) -> None:
    file = tmp_path / "model_config.yaml"
    file.write_text(MODEL_ARGS)
    given = {"device": "h100", "devices": 8}
    found = atoll.check(file, set=["TP=2", "MBS=4"], **given)  # type: ignore[arg-type]
    assert (found.estimate.layout.tp, found.estimate.layout.microbatch) == (2, 4)
    assert found.answer.not_priced == ()
    with pytest.raises(AtollError, match=r"micro_batch_size depends .* --set NAME=VALUE \(MBS\)"):
        atoll.check(file, set=["TP=2"], **given)  # type: ignore[arg-type]


def relative_width(checked: atoll.Checked) -> float:
    times_s = checked.estimate.interval.step_time_s
    return times_s.high / times_s.low


def test_arguments_that_are_not_priced_widen_the_interval_and_withhold_the_proof(
    script: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = {"device": "h100"}
    arguments = ("--log-interval 1", "--optimizer muon", "--muon-momentum 0.9", "--new-kernel 3")
    plain, muon, scaled, unknown = (
        atoll.check(script, set=["GPUS=8", f"MORE={' '.join(arguments[:n])}"], **given)  # type: ignore[arg-type]
        for n in range(1, 5)
    )
    assert plain.answer.not_priced == () and "proven" in plain.better.proof  # type: ignore[union-attr]
    assert list(muon.launch.arguments.not_modelled) == ["optimizer"]
    assert unknown.launch.arguments.not_understood == {"new_kernel": "3"}
    assert relative_width(plain) < relative_width(muon) == relative_width(scaled)
    assert relative_width(unknown) > 1.1 * relative_width(muon)
    assert unknown.estimate.step.time_s == plain.estimate.step.time_s
    for checked in (muon, unknown):
        assert checked.better is not None
        assert checked.better.proof.startswith("not proven, because not all arguments are priced")
    asked: dict[str, Any] = {**given, "from_": script}
    asked["set"] = ["GPUS=8", f"MORE={' '.join(arguments)}"]
    plan = atoll.plan(**asked, tp=[1], pp=[1], cp=[1])
    for estimate in (atoll.estimate(**asked), plan.best):
        assert "not priced: new_kernel 3: unknown" in estimate.notes
    assert atoll.estimate(**asked).interval == unknown.estimate.interval
    assert plan.proof().startswith("not proven") and not plan.answer.certificate.proven
    keys = list(unknown.to_dict())
    assert keys.index("not_priced") < keys.index("estimate")
    print_checked(unknown, CheckQuestion.of(file=script, **given))
    printed = capsys.readouterr().out
    assert printed.partition("Step")[0].count("not priced:") == 2, "before any figure"
    with pytest.raises(AtollError, match="not priced: new_kernel 3: unknown"):
        atoll.check(script, strict=True, set=["GPUS=8", "MORE=--new-kernel 3"], **given)  # type: ignore[arg-type]


def test_a_misspelled_argument_is_unknown_and_the_known_one_is_named(script: Path) -> None:
    given = ["GPUS=8", "MORE=--moe-router-topks 2 --new-kernel 3"]
    checked = atoll.check(script, device="h100", set=given)
    assert checked.answer.not_priced == (
        "moe_router_topks 2: unknown, did you mean moe_router_topk?",
        "new_kernel 3: unknown",
    )


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.sh", "echo hello", "starts no training program"),
        ("recipe", "model:\n  num_layers: 2\n", "known by their endings"),
        ("a.sh", "torchrun train.py --num-layers 'open", "is not closed"),
        ("a.json", "{", "not valid JSON"),
        ("a.json", '{"a": 1}', "not a launch file that is known"),
        ("a.toml", "a = [", "not valid TOML"),
        ("a.yaml", "a: [", "not valid YAML"),
        ("a.json", '{"train_batch_size": 8}', "add --model"),
    ],
)
def test_broken_files_are_one_sentence(
    name: str, content: str, sentence: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(AtollError, match=sentence) as raised:
        atoll.check(path, device="h100", devices=8)
    assert "\n" not in str(raised.value)


def test_a_binary_file_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_bytes(b"\x00\xff" * 100)
    with pytest.raises(AtollError, match="not UTF-8 text"):
        atoll.check(path, device="h100", devices=8)


TITAN = """
[model]
name = "llama3"
flavor = "8B"
[parallelism]
data_parallel_replicate_degree = 2
data_parallel_shard_degree = {sharded}
tensor_parallel_degree = 2
context_parallel_degree = 2
"""


@pytest.mark.parametrize(
    ("name", "content", "switch"),
    [
        ("a.sh", SCRIPT.replace("--bf16", "--bf16 --optimizer-cpu-offload"), "optimizer_cpu_off"),
        (
            "a.yaml",
            "model: {tensor_model_parallel_size: 2}\noptimizer: {optimizer_cpu_offload: true}\n",
            "optimizer_cpu_offload",
        ),
        ("a.toml", TITAN.format(sharded=4) + "[training]\nenable_cpu_offload = true\n", "training"),
    ],
)
def test_an_optimizer_on_the_host_is_refused_instead_of_given_an_interval(
    name: str, content: str, switch: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(AtollError, match=rf"offloads to the host \({switch}.*take it out"):
        atoll.check(path, device="h100", devices=32, model="llama3-8b", set=["GPUS=8"])


def test_an_optimizer_of_which_nothing_is_offloaded_is_priced(script: Path) -> None:
    kept = "--optimizer-cpu-offload --optimizer-offload-fraction 0.0"
    script.write_text(SCRIPT.replace("--bf16", f"--bf16 {kept}"))
    checked = atoll.check(script, device="h100", set=["GPUS=8"], time_limit=1e-6)
    assert not checked.launch.arguments.not_understood


def test_a_job_file_names_chip_and_launch_file_beside_it(tmp_path: Path) -> None:
    chip = Path(atoll.__file__).parent / "hardware/catalog/accelerators/physical-tpuv4.yaml"
    (tmp_path / "chip.yaml").write_text(chip.read_text())
    (tmp_path / "run.sh").write_text(SCRIPT)
    (tmp_path / "job.yaml").write_text(
        "kind: devices\nfrom_: run.sh\ndevice: chip.yaml\ndevices: 8\n"
    )
    found = atoll.estimate(job=tmp_path / "job.yaml")
    assert isinstance(found, Estimate) and found.run.stack.name == "chip"
    with pytest.raises(AtollError, match="device: device 'h1000' is not in the catalogue"):
        atoll.estimate(from_=tmp_path / "run.sh", device="h1000", devices=8)


def test_torchtitans_degrees_say_how_many_devices_there_are(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(TITAN.format(sharded=4))
    found = atoll.estimate(from_=file, device="h100")
    assert (found.layout.devices, found.layout.hsdp, found.layout.dp) == (32, 2, 8)
    file.write_text(TITAN.format(sharded=-1))
    with pytest.raises(AtollError, match="does not say how many devices"):
        atoll.estimate(from_=file, device="h100")
    assert atoll.estimate(from_=file, device="h100", devices=16).layout.dp == 4
    with pytest.raises(AtollError, match="2 replicas, which do not divide the 3 data-parallel"):
        atoll.estimate(from_=file, device="h100", devices=12)
    planned = atoll.plan(from_=file, device="h100", devices=12, batch=12, pp=1, cp=1, zero=3)
    assert planned.best.layout.devices == 12  # its layout is left aside
