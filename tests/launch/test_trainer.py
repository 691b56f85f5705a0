"""Hugging Face: arguments of the Trainer, and accelerate's configuration."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import atoll
from atoll.base.errors import AtollError
from atoll.tools.arguments import Launch
from atoll.tools.read import read_launch
from atoll.workload import load_config

TRAINER = """
model_name_or_path: some/model
bf16: true
per_device_train_batch_size: 4
gradient_accumulation_steps: 8
gradient_checkpointing: true
max_seq_length: 2048
learning_rate: 2.0e-05
num_train_epochs: 1
max_steps: -1
output_dir: data/out
"""
FSDP = """
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
num_machines: 2
num_processes: 16
fsdp_config:
  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP
  fsdp_sharding_strategy: {strategy}
  fsdp_offload_params: false
"""


def read(tmp_path: Path, text: str, name: str = "train.yaml") -> Launch:
    path = tmp_path / name
    path.write_text(text)
    return read_launch(path, load_config("llama3-8b"))


def test_the_trainers_arguments(tmp_path: Path) -> None:
    launch = read(tmp_path, TRAINER)
    fields = launch.fields
    assert [fields[n] for n in ("microbatch", "local_batch", "sequence")] == [4, 32, 2048]
    assert (fields["recompute"], fields["precision"], fields["zero"]) == ("full", "bf16", 0)
    assert launch.arguments.not_understood == {} and launch.steps is None


@pytest.mark.parametrize(
    ("strategy", "zero", "hsdp"),
    [("FULL_SHARD", 3, 1), ("SHARD_GRAD_OP", 2, 1), ("NO_SHARD", 0, 1), ("HYBRID_SHARD", 3, 2)],
)
def test_fsdps_strategies_are_stages_of_zero(
    strategy: str, zero: int, hsdp: int, tmp_path: Path
) -> None:
    fields = read(tmp_path, FSDP.format(strategy=strategy)).fields
    assert (fields["zero"], fields["hsdp"], fields["devices"]) == (zero, hsdp, 16)
    assert fields["optimizer"] == "fp32", "FSDP gathers 16-bit weights of fp32 ones"


@pytest.mark.parametrize(("reshard", "zero"), [("true", 3), ("false", 2)])
def test_fsdp_2_says_whether_weights_are_divided_again(
    reshard: str, zero: int, tmp_path: Path
) -> None:
    text = FSDP.replace("sharding_strategy: {strategy}", f"reshard_after_forward: {reshard}")
    assert read(tmp_path, text).fields["zero"] == zero


def test_a_command_with_its_launcher_and_the_files_that_they_name(tmp_path: Path) -> None:
    (tmp_path / "fsdp.yaml").write_text(FSDP.format(strategy="FULL_SHARD"))
    script = (
        "accelerate launch --config_file fsdp.yaml --num_processes 8 run_clm.py \\\n"
        " --per_device_train_batch_size 2 --block_size 4096 --gradient_checkpointing\n"
    )
    fields = read(tmp_path, script, "go.sh").fields
    assert [fields[n] for n in ("devices", "zero", "microbatch", "sequence", "recompute")] == [
        8, 3, 2, 4096, "full",
    ]  # fmt: skip


def test_deepspeeds_file_is_read_with_the_trainers_arguments(tmp_path: Path) -> None:
    zero = {"zero_optimization": {"stage": 2, "overlap_comm": True}, "bf16": {"enabled": "auto"}}
    (tmp_path / "ds.json").write_text(json.dumps(zero))
    launch = read(tmp_path, TRAINER + "deepspeed: ds.json\n")
    assert (launch.fields["zero"], launch.fields["microbatch"]) == (2, 4)
    assert launch.arguments.used["deepspeed:zero_optimization.stage"] == "2"
    assert (launch.fields["stack"], launch.fields["flags"]) == ("deepspeed", "")
    zero["zero_optimization"] |= {"offload_optimizer": {"device": "cpu", "pin_memory": True}}
    (tmp_path / "ds.json").write_text(json.dumps(zero))
    assert read(tmp_path, TRAINER + "deepspeed: ds.json\n").fields["flags"] == "host_optimizer"
    with pytest.raises(
        AtollError, match=r"leaves ZeRO to \.\./secret\.json, which was found neither"
    ):
        read(tmp_path, TRAINER + "deepspeed: ../secret.json\n")


@pytest.mark.parametrize("root", [".git", "working directory"])
def test_paths_count_from_the_repositorys_root_and_the_working_directory_too(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LLaMA-Factory's examples name examples/deepspeed/ds_z3_config.json."""
    folder = tmp_path / "examples" / "lora"
    folder.mkdir(parents=True)
    (tmp_path / "examples" / "ds.json").write_text(
        '{"zero_optimization": {"stage": 3}, "bf16": {"enabled": true}}'
    )
    text = TRAINER + "deepspeed: examples/ds.json\nuse_gradient_checkpointing: true\n"
    text = text.replace("gradient_checkpointing: true\nmax", "max")
    with pytest.raises(AtollError, match="which was found neither"):
        read(folder, text)
    if root == ".git":
        (tmp_path / ".git").mkdir()
    else:
        monkeypatch.chdir(tmp_path)
    fields = read(folder, text).fields
    assert (fields["zero"], fields["recompute"]) == (3, "full")


@pytest.mark.parametrize(
    ("more", "targets"),
    [
        ("", "q_proj+v_proj"),
        ("lora_target_modules: [q_proj, o_proj]\n", "q_proj+o_proj"),
        ("lora_target: all\n", "all"),
    ],
)
def test_adapters_are_a_method(more: str, targets: str, tmp_path: Path) -> None:
    launch = read(tmp_path, f"{TRAINER}lora_r: 8\nlora_alpha: 32\n{more}")
    fields = launch.fields
    assert [fields[n] for n in ("method", "lora_rank", "lora_targets")] == ["lora", 8, targets]
    assert not launch.arguments.not_understood


@pytest.mark.parametrize(
    ("more", "flags"),
    [
        ("", ""),
        ("optim: adamw_torch\n", "foreach"),
        ("optim: adamw_hf\n", "forloop"),
        ("lora_r: 8\nload_in_4bit: true\n", "nf4"),
        ("lora_rank: 8\nquantization_bit: 4\n", "nf4 nested_scales"),  # LLaMA-Factory's default
        ("lora_r: 8\n", ""),  # autocast multiplies in 16 bits
        ("lora_r: 8\nbf16: false\ndtype: bfloat16\n", "fp32_adapters"),  # PEFT's default
        ("lora_r: 8\nbf16: false\npure_bf16: true\n", ""),
    ],
)
def test_arguments_of_kernels_are_priced(more: str, flags: str, tmp_path: Path) -> None:
    text = TRAINER.replace("bf16: true\n", "") if "bf16" in more else TRAINER
    launch = read(tmp_path, text + more)
    assert launch.fields["flags"] == flags
    assert launch.arguments.not_priced == ()


def test_moments_of_8_bits_are_priced(tmp_path: Path) -> None:
    launch = read(tmp_path, TRAINER + "optim: adamw_8bit\n")
    assert launch.fields["optimizer"] == "8bit" and launch.arguments.not_priced == ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (TRAINER.replace("bf16: true", "bf16: false"), "trains in fp32"),
        (TRAINER + "beta: 0.1\n", "trains on preferences"),
        (TRAINER + "lora_r: 16\nload_in_8bit: true\n", "in 8 bits"),
        (FSDP.format(strategy="FULL_SHARD").replace("params: false", "params: true"), "offloads"),
        (FSDP.replace("FSDP", "MEGATRON_LM"), "Megatron-LM plugin"),
        (TRAINER + "fsdp: full_shard auto_wrap offload\n", r"offloads to the host \(fsdp\)"),
        (TRAINER + "deepspeed: {zero_optimization: {stage: 3}}\n", "configuration inside"),
        (TRAINER + "deepspeed: zero3_offload\n", "leaves ZeRO to zero3_offload"),
    ],
)
def test_what_is_not_modelled_is_refused_in_a_sentence(
    text: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(AtollError, match=sentence) as raised:
        read(tmp_path, text)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("more", "effects"),
    [
        ("attn_implementation: kernels-community/flash-attn3\n", ()),
        ("attn_implementation: new_kernel\n", ("attn_implementation: another attention kernel",)),
        ("gradient_checkpointing: offload\n",
         ("gradient_checkpointing: recomputation's inputs go to the host",)),
        ("packing: true\npacking_strategy: bfd\n", ()),
        ("loss_type: dft\n", ("loss_type: another loss",)),
        ("deepspeed: zero3\ntarget_modules: all-linear\nlora_rank: 8\n", ()),
    ],
)  # fmt: skip
def test_every_value_is_priced_or_its_effect_is_said(
    more: str, effects: tuple[str, ...], tmp_path: Path
) -> None:
    launch = read(tmp_path, TRAINER.replace("gradient_checkpointing: true\n", "") + more)
    assert launch.arguments.not_priced == effects
    preset = "deepspeed" in more
    assert launch.fields["zero"] == (3 if preset else 0)
    assert launch.fields.get("lora_targets") == ("all" if preset else None)


def test_a_packing_switch_of_a_command_has_no_value(tmp_path: Path) -> None:
    path = tmp_path / "sft.sh"
    path.write_text(
        "accelerate launch --num_processes 8 sft.py --model_name_or_path m --bf16 --packing "
        "--per_device_train_batch_size 1 --max_length 2048\n"
    )
    launch = read_launch(path, load_config("llama3-8b"))
    assert (launch.software, launch.arguments.not_priced) == ("trl", ())


def test_adapters_and_names_of_trl_belong_to_trl(tmp_path: Path) -> None:
    adapters = TRAINER + "use_peft: true\nlora_r: 16\n"
    for text in (adapters, TRAINER + "packing: true\n", TRAINER.replace("max_seq_", "max_")):
        assert read(tmp_path, text).software == "trl"
    path = tmp_path / "train.yaml"
    path.write_text(adapters.replace("size: 4", "size: 32").replace("ing: true", "ing: false"))
    checked = atoll.check(path, device="h100", devices=8, model="llama3-8b")
    assert not checked.estimate.fits and checked.better is not None
    assert "'lora_r': 16" in checked.plan.export("trl").text  # type: ignore[union-attr]


def test_a_name_of_the_hub_is_that_model_of_the_zoo(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(TRAINER.replace("some/model", "meta-llama/Llama-3.1-8B-Instruct"))
    assert read_launch(path).model.name == "llama3.1-8b"


def test_a_trainer_is_judged(tmp_path: Path) -> None:
    path = tmp_path / "train.yaml"
    path.write_text(TRAINER)
    with pytest.raises(AtollError, match=r"names [^,]+, not its shape; add --model"):
        atoll.check(path, device="h100", devices=8)
    checked = atoll.check(path, device="h100", devices=8, model="llama3-8b")
    assert checked.question.batch == 4 * 8 * 8
    assert not checked.estimate.fits, "16 bytes a parameter of 8 billion on every device"
    assert checked.launch.software == "transformers"
    assert checked.better is not None and "zero 0 -> 2" in checked.better.changes
