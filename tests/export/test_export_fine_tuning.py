"""Fine-tuning by TRL and LLaMA-Factory: the files, and the tools' own classes that read them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from export_cases import Case

from atoll.base.errors import AtollError
from atoll.step.layout import Layout
from atoll.tools.files.config_files import read_content
from atoll.workload.adapters import ATTENTION, MLP, Adapters

pytestmark = pytest.mark.filterwarnings("ignore")  # the tools' own
ADAPTERS: dict[str, Any] = {"method": "lora", "adapters": Adapters(8, ATTENTION)}
LORA = Case("llama3-8b", Layout(dp=8, zero=3, recompute="full"), more=ADAPTERS)
REPLICAS = Case("llama3-8b", Layout(dp=8, zero=0, microbatch=2), more=ADAPTERS)
FULL = Case("qwen3-8b", Layout(dp=8, zero=2), more={"method": "sft", "steps": 300})
CASES = [LORA, REPLICAS, FULL]


def settings(case: Case, folder: Path) -> Any:
    return read_content(case.export("trl").save(folder))["SETTINGS"]


def test_a_script_for_trl_says_the_layout(tmp_path: Path) -> None:
    values = settings(LORA, tmp_path)
    assert values["per_device_train_batch_size"] == 1
    assert values["gradient_accumulation_steps"] == 8
    assert values["fsdp_config"] == {
        "fsdp_version": 2,
        "fsdp_reshard_after_forward": True,
        "fsdp_activation_checkpointing": True,
    }
    assert values["lora_r"] == 8
    assert values["lora_target_modules"] == ["q_proj", "k_proj", "v_proj", "o_proj"]
    lines = LORA.export("trl").text.splitlines()
    assert lines[1].startswith("# Written for trl 1.16, transformers 5.22, peft 0.21")
    assert lines[2] == "# Start: torchrun --nproc-per-node 8 sft.py"


def test_a_file_for_llama_factory_says_the_layout() -> None:
    text = replace(LORA, layout=Layout(dp=16, zero=2)).export("llama-factory").text
    values = yaml.safe_load(text)
    assert values["finetuning_type"] == "lora"
    assert values["lora_target"] == "q_proj,k_proj,v_proj,o_proj"
    assert values["fsdp"] == "shard_grad_op auto_wrap"
    assert values["disable_gradient_checkpointing"] is True
    assert "-m llamafactory.launcher llama_factory.yaml" in text.splitlines()[2]
    start = LORA.export("llama-factory").text.splitlines()[2]
    assert start.endswith(
        "FORCE_TORCHRUN=1 NPROC_PER_NODE=8 llamafactory-cli train llama_factory.yaml"
    )


def test_replicas_have_no_fsdp(tmp_path: Path) -> None:
    assert "fsdp" not in settings(REPLICAS, tmp_path)
    assert "fsdp" not in yaml.safe_load(REPLICAS.export("llama-factory").text)


@pytest.mark.parametrize("target", ["trl", "llama-factory"])
@pytest.mark.parametrize(
    ("case", "words"),
    [
        (Case("llama3-8b", Layout(dp=8, zero=3)), "runs sft or lora, not pretrain; change"),
        (replace(LORA, layout=Layout(dp=4, tp=2, zero=3)), "tp 1, not 2"),
        (replace(LORA, layout=Layout(dp=8, zero=1)), "zero 0 or 2 or 3, not 1"),
        (replace(LORA, model="qwen3-30b-a3b", more={**ADAPTERS, "adapters": Adapters(8, MLP)}),
         "no adapters for fused experts"),
    ],
)  # fmt: skip
def test_what_they_cannot_run_is_refused(target: str, case: Case, words: str) -> None:
    with pytest.raises(AtollError, match=words):
        case.export(target)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.layout))
def test_trl_and_peft_take_the_settings(case: Case, tmp_path: Path) -> None:
    trl, peft = pytest.importorskip("trl"), pytest.importorskip("peft")
    from transformers import AutoConfig

    literals = read_content(case.export("trl").save(tmp_path))
    values = dict(literals["SETTINGS"])
    adapters = {name: values.pop(name) for name in list(values) if name.startswith("lora_")}
    arguments = trl.SFTConfig(output_dir=str(tmp_path), use_cpu=True, **values)
    assert arguments.max_length == case.sequence
    assert arguments.max_steps == case.more.get("steps", 20)
    sharding = arguments.fsdp_plugin_args
    assert (sharding is not None) == (case.layout.zero > 0)
    assert not sharding or sharding["reshard_after_forward"] == (case.layout.zero == 3)
    if adapters:
        assert peft.LoraConfig(r=adapters.pop("lora_r"), lora_alpha=adapters["lora_alpha"]).r == 8
    assert AutoConfig.for_model(**literals["MODEL"]).num_hidden_layers in (32, 36)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.layout))
def test_llama_factory_takes_the_file(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISABLE_VERSION_CHECK", "1")
    parser = pytest.importorskip("llamafactory.hparams.parser")
    values = yaml.safe_load(case.export("llama-factory").text)
    _, data, training, tuning, _ = parser._parse_train_args(
        {**values, "use_cpu": True, "bf16": False}
    )
    assert training.per_device_train_batch_size == case.layout.microbatch
    assert data.cutoff_len == case.sequence - 1  # its packing keeps a token free
    assert tuning.finetuning_type == ("lora" if "adapters" in case.more else "full")
    assert bool(training.fsdp) == (case.layout.zero > 0)
