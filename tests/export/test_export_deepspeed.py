"""DeepSpeed configurations, read by DeepSpeed's own configuration class."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from export_cases import EXPERTS, SHARDED, Case

from atoll.base.errors import AtollError
from atoll.step.layout import Layout

pytestmark = pytest.mark.filterwarnings("ignore")  # the tools' own


def test_a_file_says_the_layout() -> None:
    made = SHARDED.export("deepspeed")
    assert json.loads(made.text) == {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 8,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "overlap_comm": True, "contiguous_gradients": True},
        "activation_checkpointing": {"partition_activations": False},
    }
    assert "deepspeed --num_nodes 1 --num_gpus 8" in made.notes[0]
    assert "gradient_checkpointing_enable()" in made.notes[1]


def test_a_pipeline_is_left_to_the_users_code() -> None:
    made = Case("llama3-8b", Layout(dp=2, pp=4, recompute="full")).export("deepspeed")
    assert json.loads(made.text)["pipeline"] == {"stages": 4, "activation_checkpoint_interval": 1}
    assert "PipelineModule(num_stages=4) with 8, 8, 8, 8 blocks" in " ".join(made.notes)


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (Layout(dp=2, tp=2), "set sp off"),
        (Layout(dp=2, tp=2, pp=2, sp=False), "cannot join tp and pp"),
        (Layout(dp=2, cp=2, pp=2), "cannot join pp and cp"),
        (Layout(dp=2, tp=16, sp=False), "does not divide the 8 key and value heads"),
        (Layout(dp=2, pp=2, vpp=2), "set vpp 1 and 1f1b"),
        (Layout(dp=2, pp=2, schedule="gpipe"), "set vpp 1 and 1f1b"),
        (Layout(dp=2, pp=2, zero=3), "take zero 0 or 1, not 3"),
        (Layout(dp=4, zero=3, hsdp=2), "set hsdp 1"),
        (Layout(dp=2, recompute="selective"), "use none or full"),
        (Layout(dp=2, recompute="optimal"), "use none or full"),
    ],
)
def test_what_deepspeed_cannot_say_is_refused(layout: Layout, words: str) -> None:
    with pytest.raises(AtollError, match=words) as caught:
        Case("llama3-8b", layout).export("deepspeed")
    assert "\n" not in str(caught.value)


def test_experts_with_a_tensor_width_of_their_own_are_refused() -> None:
    with pytest.raises(AtollError, match="have the tensor width tp, not etp 2"):
        Case("mixtral-8x7b", Layout(dp=2, etp=2)).export("deepspeed")


def test_fp8_is_refused() -> None:
    with pytest.raises(AtollError, match="use bf16 or fp16"):
        Case("llama3-8b", Layout(dp=2), precision="fp8").export("deepspeed")


# --- DeepSpeed itself -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def module() -> Any:
    return pytest.importorskip("deepspeed.runtime.config")


def read_back(module: Any, monkeypatch: pytest.MonkeyPatch, case: Case, folder: Path) -> Any:
    """The file as DeepSpeed reads it on the layout's devices."""
    devices, layout = case.layout.devices, case.layout
    # What a launched job would be asked: its ranks, and the data parallel ones among them.
    ranks = SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda: devices)
    unit = SimpleNamespace(get_data_parallel_world_size=lambda: layout.dp)
    monkeypatch.setattr(module, "dist", ranks)
    path = case.export("deepspeed").save(folder)
    return module.DeepSpeedConfig(str(path), mpu=unit)


ROUND = [
    SHARDED,
    EXPERTS,
    Case("llama3-8b", Layout(dp=8, zero=0)),
    Case("llama3-8b", Layout(dp=8, zero=2, microbatch=2), precision="fp16"),
    Case("llama3-8b", Layout(dp=2, tp=4, sp=False)),
    Case("llama3-8b", Layout(dp=2, cp=4, zero=3)),
    Case("llama3-405b", Layout(dp=2, pp=16, recompute="full")),
]


@pytest.mark.parametrize("case", ROUND, ids=lambda case: f"{case.model} {case.layout}")
def test_deepspeed_reads_the_layout_back(
    case: Case, module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    layout = case.layout
    found = read_back(module, monkeypatch, case, tmp_path)
    assert found.train_batch_size == case.global_batch
    assert found.train_micro_batch_size_per_gpu == layout.microbatch
    assert found.gradient_accumulation_steps == layout.microbatches(case.global_batch)
    assert found.zero_optimization_stage == layout.zero
    assert found.bfloat16_config.enabled == (case.precision == "bf16")
    assert found.float16_config.enabled == (case.precision == "fp16")
    assert (found.tensor_parallel_config.autotp_size or 1) == layout.tp
    assert not found.activation_checkpointing_config.partition_activations
    if layout.ep > 1:
        assert found.expert_parallel_config.enabled
        assert found.expert_parallel_config.autoep_size == layout.ep
    if layout.pp > 1:
        assert found.pipeline["stages"] == layout.pp
        assert found.pipeline["activation_checkpoint_interval"] == 1


def test_experts_pass_deepspeeds_own_check(module: Any) -> None:
    checks = pytest.importorskip("deepspeed.module_inject.auto_ep_config")
    values = json.loads(EXPERTS.export("deepspeed").text)
    found = checks.parse_autoep_config(values["expert_parallel"])
    layout = EXPERTS.layout
    checks.validate_autoep_config(
        found, layout.devices, pp_size=1, tp_size=1, sp_size=1, zero_stage=layout.zero
    )
