"""DeepSpeed scripts, whose configuration DeepSpeed's own class reads."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from export_cases import EXPERTS, SHARDED, Case

from atoll.base.errors import AtollError
from atoll.step.layout import Layout
from atoll.tools.files.config_files import read_content

pytestmark = pytest.mark.filterwarnings("ignore")  # the tools' own


def literals(case: Case, folder: Path) -> Any:
    return read_content(case.export("deepspeed").save(folder))


def test_a_file_says_the_layout(tmp_path: Path) -> None:
    script = literals(SHARDED, tmp_path)
    optimizer = script["SETTINGS"].pop("optimizer")
    assert optimizer["type"] == "AdamW"
    assert script["SETTINGS"] == {
        "train_batch_size": 64,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 8,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {"stage": 3, "overlap_comm": True, "contiguous_gradients": True},
        "activation_checkpointing": {"partition_activations": False},
    }
    assert script["RUN"] == {"sequence": 4096, "batch": 64, "steps": 20, "devices": 8}
    assert script["MODEL"]["model_type"] == "llama"
    assert "# Start: deepspeed --num_gpus 8 train.py" in SHARDED.export("deepspeed").text


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        (Layout(dp=2, tp=2), "sp False, not True"),
        (Layout(dp=2, tp=2, cp=2, sp=False), "cannot join tp and cp"),
        (Layout(dp=2, tp=16, sp=False), "does not divide the 8 key and value heads"),
        (Layout(dp=2, pp=2), "pp 1, not 2"),
        (Layout(dp=4, zero=3, hsdp=2), "hsdp 1, not 2"),
        (Layout(dp=2, recompute="selective"), "recompute none or full, not selective"),
    ],
)
def test_what_deepspeed_cannot_say_is_refused(layout: Layout, words: str) -> None:
    with pytest.raises(AtollError, match=words) as caught:
        Case("llama3-8b", layout).export("deepspeed")
    assert "\n" not in str(caught.value)


def test_a_model_that_is_no_decoder_is_refused() -> None:
    with pytest.raises(AtollError, match="t5-3b is not a causal language model"):
        Case("t5-3b", Layout(dp=2), sequence=512).export("deepspeed")


def test_experts_with_a_tensor_width_of_their_own_are_refused() -> None:
    with pytest.raises(AtollError, match="have the tensor width tp, not etp 2"):
        Case("mixtral-8x7b", Layout(dp=2, etp=2)).export("deepspeed")


def test_fp8_is_refused() -> None:
    with pytest.raises(AtollError, match="precision bf16 or fp16, not fp8"):
        Case("llama3-8b", Layout(dp=2), precision="fp8").export("deepspeed")


# --- DeepSpeed itself -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def module() -> Any:
    return pytest.importorskip("deepspeed.runtime.config")


def read_back(module: Any, monkeypatch: pytest.MonkeyPatch, case: Case, folder: Path) -> Any:
    """The configuration as DeepSpeed reads it on the layout's devices."""
    devices, parts = case.layout.devices, case.layout.cp
    monkeypatch.setattr(
        module, "dist", SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda: devices)
    )
    ulysses = SimpleNamespace(get_sequence_parallel_world_size=lambda: parts)
    settings = literals(case, folder)["SETTINGS"]
    return module.DeepSpeedConfig(settings, mpu=ulysses if parts > 1 else None)


ROUND = [
    SHARDED,
    EXPERTS,
    Case("llama3-8b", Layout(dp=8, zero=0)),
    Case("llama3-8b", Layout(dp=8, zero=2, microbatch=2), precision="fp16"),
    Case("llama3-8b", Layout(dp=2, tp=4, sp=False)),
    Case("llama3-8b", Layout(dp=2, cp=4, zero=3)),
]


@pytest.mark.parametrize("case", ROUND, ids=lambda case: f"{case.model} {case.layout}")
def test_deepspeed_reads_the_layout_back(
    case: Case, module: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    layout = case.layout
    found = read_back(module, monkeypatch, case, tmp_path)
    assert found.train_batch_size == case.global_batch * layout.tp  # AutoTP's ranks count, too
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


def test_experts_pass_deepspeeds_own_check(module: Any, tmp_path: Path) -> None:
    checks = pytest.importorskip("deepspeed.module_inject.auto_ep_config")
    values = literals(EXPERTS, tmp_path)["SETTINGS"]
    found = checks.parse_autoep_config(values["expert_parallel"])
    layout = EXPERTS.layout
    checks.validate_autoep_config(
        found, layout.devices, pp_size=1, tp_size=1, sp_size=1, zero_stage=layout.zero
    )
