"""Every plan can be launched: its file has the layout that was printed, is priced alike, and passes
the tool's own parser where that is installed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from megatron_machine import parsed

import atoll
from atoll.tools.files.config_files import read_content

pytestmark = pytest.mark.filterwarnings("ignore")  # the tools' own
MODELS: dict[str, dict[str, Any]] = {
    "llama3-8b": {"tool": None},
    "qwen3-30b-a3b": {"tool": "megatron-lm"},
    "qwen3-8b": {"tool": "torchtitan"},
    "mixtral-8x7b": {"tool": "deepspeed"},
    "llama3-70b": {"tool": "trl", "method": "lora"},
    "qwen2-7b": {"tool": "llama-factory", "method": "sft"},
}
"""Models, each with the tool and the method of its questions; None: the usual tool."""
DEVICES = {"h100": 16, "a100-80": 32, "h200": 8, "b200": 16}
"""Devices, and how many of them."""
FAST = {("llama3-8b", "h200"), ("llama3-70b", "h200"), ("qwen2-7b", "b200")}
QUESTIONS = [
    pytest.param(*pair, marks=() if pair in FAST else (pytest.mark.slow,))
    for pair in product(MODELS, DEVICES)
]


@pytest.mark.parametrize(("model", "device"), QUESTIONS)
def test_a_plan_is_its_launch_file(
    model: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {"device": device, "devices": DEVICES[device], "sequence": 4096}
    plan = atoll.plan(model, **given, **MODELS[model], batch=64)
    layout, tool = plan.best.layout, plan.tool.name
    path = plan.export(tool).save(tmp_path)
    assert str(layout) in path.read_text(), "the layout that the plan prints"
    checked = atoll.check(path, model=model, **given, time_limit="1 ms").estimate
    assert checked.layout == layout
    assert checked.step.time_s == pytest.approx(plan.best.step.time_s, rel=1e-9)
    assert checked.memory == plan.best.memory
    assert checked.run.not_priced == ()
    PARSERS[tool](path, layout, monkeypatch)


def by_megatron(path: Path, layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = pytest.importorskip("megatron.training.arguments")
    values, _ = parsed(arguments, monkeypatch, path, layout)
    degrees = values.tensor_model_parallel_size, values.pipeline_model_parallel_size
    assert (*degrees, values.data_parallel_size) == (layout.tp, layout.pp, layout.dp)


def by_torchtitan(path: Path, layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = pytest.importorskip("torchtitan.config")
    if not hasattr(config, "ParallelismConfig"):
        pytest.skip("the files are for torchtitan 0.3, which is configured in Python")
    monkeypatch.syspath_prepend(path.parent)
    sys.modules.pop(path.stem, None)
    importlib.invalidate_caches()
    job = config.ConfigManager().parse_args(["--module", path.stem, "--config", "train"])
    assert job.parallelism.tensor_parallel_degree == layout.tp


def by_deepspeed(path: Path, layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config = pytest.importorskip("deepspeed.runtime.config")
    ranks = SimpleNamespace(get_rank=lambda: 0, get_world_size=lambda: layout.devices)
    monkeypatch.setattr(config, "dist", ranks)
    parts = SimpleNamespace(get_sequence_parallel_world_size=lambda: layout.cp)
    settings = read_content(path)["SETTINGS"]
    values = config.DeepSpeedConfig(settings, mpu=parts if layout.cp > 1 else None)
    assert values.zero_optimization_stage == layout.zero


def by_trl(path: Path, layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trl = pytest.importorskip("trl")
    settings = read_content(path)["SETTINGS"]
    values = {name: value for name, value in settings.items() if not name.startswith("lora_")}
    arguments = trl.SFTConfig(output_dir=str(path.parent), use_cpu=True, **values)
    assert (arguments.fsdp_plugin_args is not None) == (layout.zero > 0)


def by_llama_factory(path: Path, layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISABLE_VERSION_CHECK", "1")
    parser = pytest.importorskip("llamafactory.hparams.parser")
    values = {**yaml.safe_load(path.read_text()), "use_cpu": True, "bf16": False}
    training = parser._parse_train_args(values)[2]
    assert training.per_device_train_batch_size == layout.microbatch


PARSERS: dict[str, Callable[[Path, Any, pytest.MonkeyPatch], None]] = {
    "megatron-lm": by_megatron,
    "torchtitan": by_torchtitan,
    "deepspeed": by_deepspeed,
    "trl": by_trl,
    "llama-factory": by_llama_factory,
}
