"""What an answer does not model, or takes for granted, is said before its figures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import atoll
from atoll.cli import app
from atoll.files.yamlfile import load_yaml
from atoll.hardware.gpu import PRECISIONS, gpu_names
from atoll.training.accuracy import PUBLISHED_MFU, PublishedMfus
from workload.small_families import given as family_fields

LLAMA = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 8,
    "num_attention_heads": 8, "vocab_size": 32000, "max_position_embeddings": 2048,
}  # fmt: skip
FOUR_BITS = {
    "quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False,
    "bnb_4bit_quant_type": "nf4",
}  # fmt: skip
VISION = {"depth": 32, "hidden_size": 1280, "num_heads": 16}
PODS = """
pods:
  - {device: h100, devices: 8}
  - {device: a100-80, devices: 8}
link: {bandwidth: 25 GB/s, latency: 10 us}
"""


def config(folder: Path, **more: Any) -> Path:
    path = folder / "mine.json"
    path.write_text(json.dumps({**LLAMA, **more}))
    return path


def printed(*arguments: str) -> str:
    """What a command prints, without the breaks between its lines."""
    shown = CliRunner().invoke(app, arguments)
    assert shown.exit_code == 0, shown.output
    return " ".join(shown.output.split())


def test_a_quantized_configuration_is_told_before_the_figures(tmp_path: Path) -> None:
    """A 4-bit configuration was planned in bf16 without a word."""
    model = config(tmp_path, quantization_config=FOUR_BITS)
    words = (
        "mine: quantized weights (quantization_config: bitsandbytes, 4 bits) are not modelled; "
        "weights are planned in 16 bits, or in the precision that is asked for"
    )
    estimate = atoll.estimate(str(model), "h100", 8, batch=8, method="lora")
    assert estimate.answer.notes[0] == words
    assert [*estimate.to_dict()][:3] == ["format", "summary", "notes"]
    assert str(estimate).index(words) < str(estimate).index("MFU")
    text = printed("estimate", "--model", str(model), "--device", "h100")
    assert text.index(f"Note {words}") < text.index("Run ") < text.index("Step ")
    assert words in printed("models", str(model))


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"quant_method": "gptq", "bits": 4}, "quantization_config: gptq, 4 bits"),
        ({"quant_method": "fp8"}, "quantization_config: fp8"),
        ({"load_in_8bit": True}, "quantization_config: a method that it does not name, 8 bits"),
    ],
)
def test_every_method_of_quantization_is_named(
    said: dict[str, object], words: str, tmp_path: Path
) -> None:
    (note,) = atoll.describe_model(str(config(tmp_path, quantization_config=said))).warnings
    assert f"({words})" in note


def test_a_vision_tower_that_is_left_out_is_told(tmp_path: Path) -> None:
    """Of Qwen2.5-VL only the name said "(language part)"."""
    qwen = {**LLAMA, "num_key_value_heads": 8, "vision_config": VISION}
    old = config(tmp_path, **{**qwen, "model_type": "qwen2_5_vl"})
    (note,) = atoll.plan(str(old), "h100", 8, batch=8).answer.notes
    assert note == (
        "mine (language part): only the language part is planned; vision_config (32 blocks) is "
        "left out, with its weights, memory and time"
    )
    nested = {"model_type": "gemma3", "text_config": LLAMA, "vision_config": VISION}
    (tmp_path / "nested.json").write_text(json.dumps(nested))
    (note,) = atoll.estimate(str(tmp_path / "nested.json"), "h100").notes
    assert "vision_config (32 blocks) is left out" in note


def test_pods_and_searches_tell_it_too(tmp_path: Path) -> None:
    model = config(tmp_path, quantization_config=FOUR_BITS)
    (tmp_path / "pods.yaml").write_text(PODS)
    given = ("--model", str(model), "--batch", "64")
    layout = ("--tp", "1", "--pp", "1", "--zero", "1", "--microbatch", "1")
    text = printed("plan", *given, *layout, "--pods", str(tmp_path / "pods.yaml"))
    assert text.index("Note mine: quantized weights") < text.index("Run ")
    space = Path(atoll.__file__).parents[2] / "examples" / "spaces" / "tiny.yaml"
    found = atoll.search(model=str(model), devices=8, batch=64, space=str(space))
    assert found.summary()[0] == ("Note", found.warnings[0])
    assert found.warnings[0].startswith("mine: quantized weights")


MAMBA = {
    "model_type": "mamba2", "hidden_size": 1024, "num_hidden_layers": 24, "state_size": 128,
    "expand": 2, "head_dim": 64, "num_heads": 32, "n_groups": 1, "vocab_size": 50288,
}  # fmt: skip


def test_fused_kernels_of_state_spaces_are_an_assumption_that_is_told(tmp_path: Path) -> None:
    """57 ms were predicted of a step that took 3,174 without them, and nothing was said."""
    path = tmp_path / "mamba.json"
    path.write_text(json.dumps(MAMBA))
    given = ("--model", str(path), "--batch", "2", "--microbatch", "2", "--sequence", "2048")
    text = printed("estimate", *given, "--device", "h200", "--stack", "eager")
    assumed = "Note assumed: fused Mamba-2 kernels (mamba-ssm, causal-conv1d); without them"
    assert text.index(assumed) < text.index("Run ")
    shown = printed("plan", *given, "--device", "h200", "--devices", "1", "--json")
    (note,) = json.loads(shown)["notes"]
    assert note.startswith("assumed: fused Mamba-2 kernels")
    chip = atoll.estimate(str(path), "physical-tpuv4", 1, batch=2, sequence=2048)
    assert chip.notes == ()  # its schedule is the kernel


def test_state_spaces_without_their_kernels_are_slow_and_said_to_be_uncertain(
    tmp_path: Path,
) -> None:
    path = tmp_path / "mamba.json"
    path.write_text(json.dumps(MAMBA))
    fused, plain = (
        atoll.estimate(
            str(path), "h200", 1, batch=2, sequence=2048, microbatch=2, stack="eager", flags=flags
        )
        for flags in (None, "plain_mixers")
    )
    assert plain.step.time_s > 20 * fused.step.time_s
    assert plain.notes[0].startswith("state-space blocks run without their fused kernels")


@pytest.mark.parametrize(
    ("family", "kernels"),
    [
        ("bamba", "fused Mamba-2 kernels"),
        ("falcon_h1", "fused Mamba-2 kernels"),
        ("jamba", "fused Mamba-1 kernels"),
        ("qwen3_next", "flash-linear-attention, causal-conv1d"),
        ("minimax", "fused lightning attention"),
        ("lfm2", "fused short convolutions"),
    ],
)
def test_every_mixer_names_its_kernels(family: str, kernels: str, tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(family_fields(family)))
    (note,) = atoll.estimate(str(path), "h100", batch=1).notes
    assert note.startswith("assumed: ") and kernels in note
    assert ("3.17 s were measured" in note) == ("Mamba-2" in kernels)


GEMMA = {
    "model_type": "gemma3_text", "head_dim": 128, "hidden_size": 5376, "intermediate_size": 21504,
    "num_attention_heads": 32, "num_hidden_layers": 62, "num_key_value_heads": 16,
    "sliding_window": 1024,
}  # fmt: skip


def test_an_mfu_above_all_published_runs_of_the_device_is_not_credible(tmp_path: Path) -> None:
    """Gemma-3 27B on 128 TPU v5p: an MFU of 80 % stood without a word."""
    path = tmp_path / "gemma.json"
    path.write_text(json.dumps(GEMMA))
    given = ("--model", str(path), "--device", "tpu-v5p", "--devices", "128", "--batch", "512")
    layout = ("--sequence", "4096", "--zero", "3")
    shown = json.loads(printed("estimate", *given, *layout, "--json"))
    (note,) = shown["notes"]
    assert shown["mfu"] > 0.75
    assert note.startswith(
        f"not credible: MFU {shown['mfu']:.1%} is above 67.7%, the highest of 6 "
    )
    assert "(MaxText-128B on 256 tpu-v5p; MaxText " in note
    text = printed("estimate", *given, *layout)
    assert text.index("Note not credible: MFU") < text.index("Run ")


def test_an_mfu_that_was_reached_is_not_flagged() -> None:
    """A100s have reached 65.4 %."""
    reached = atoll.estimate("llama2-7b", "a100-80", 16, batch=64, pp=2)
    assert 0.5 < reached.mfu < 0.654 and reached.notes == ()


def test_devices_without_enough_published_runs_are_compared_with_all_others() -> None:
    fast = atoll.estimate("llama2-7b", "tpu-v4", 16, batch=64, zero=3)
    assert fast.mfu > 0.677
    (note,) = fast.notes
    assert "published dense runs on all devices (too few on tpu-v4 are on record)" in note


def test_a_narrow_format_is_compared_with_runs_of_that_format() -> None:
    """MFU counts the 16-bit peak: in fp8 more of it was reached than in bf16."""
    assert atoll.estimate("llama3-8b", "h100", 8, batch=64, precision="fp8").mfu > 0.566
    assert atoll.estimate("llama3-8b", "h100", 8, batch=64, precision="fp8").notes == ()


def test_a_chip_that_does_not_exist_is_not_compared_with_published_runs() -> None:
    assert atoll.estimate("llama2-7b", "physical-tpuv4", 16, batch=64).notes == ()


def test_published_figures_are_of_devices_of_the_catalogue_and_name_their_source() -> None:
    entries = load_yaml(Path(str(PUBLISHED_MFU)), PublishedMfus).highest
    named = [(device, p) for e in entries for device in e.devices for p in e.precisions]
    assert len(set(named)) == len(named) and {device for device, _ in named} <= {*gpu_names()}
    assert all(entry.source and entry.run and 0.3 < entry.mfu < 1.5 for entry in entries)
    assert {p for e in entries if not e.devices for p in e.precisions} == {*PRECISIONS}


def test_models_that_are_read_in_full_have_no_notes() -> None:
    assert atoll.estimate("llama3-8b", "h100", 8, batch=8).notes == ()
