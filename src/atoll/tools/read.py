"""Reader of launch files: finds the software a file belongs to, and reads it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from atoll.base.errors import AtollError
from atoll.tools.arguments import Launch
from atoll.tools.deepspeed.read import is_deepspeed, read_deepspeed
from atoll.tools.files.config_files import read_content
from atoll.tools.files.references import resolve
from atoll.tools.files.shell import read_script
from atoll.tools.hugging_face import NAME
from atoll.tools.megatron_lm.read import (
    is_megatron_values,
    read_megatron,
    read_megatron_values,
    training_commands,
)
from atoll.tools.nemo.read import is_nemo, read_nemo
from atoll.tools.nemo.read_mlperf import is_mlperf, read_mlperf
from atoll.tools.torchtitan.read import is_torchtitan, read_torchtitan
from atoll.tools.transformers.read import (
    is_trainer,
    read_trainer,
    read_trainer_script,
    trainer_commands,
)
from atoll.workload import config_from_hf
from atoll.workload.families.model_config import ModelConfig

KINDS = (
    (is_torchtitan, read_torchtitan),
    (is_deepspeed, read_deepspeed),
    (is_trainer, read_trainer),
)


def read_launch(
    path: Path,
    model: ModelConfig | None = None,
    environment: Mapping[str, str] | None = None,
    vocab: int | None = None,
) -> Launch:
    """Read a launch file; `model` if it has none, `environment` sets a script's variables."""
    if path.suffix not in (".toml", ".json", ".yaml", ".yml", ".py"):
        return _script(path, model, environment, vocab)
    content = read_content(path)
    if path.suffix == ".py":
        return _python(path, content, model)
    if path.suffix in (".yaml", ".yml"):
        content = resolve(content, environment or {})
    return _read_content(path, content, model, vocab)


def _python(path: Path, literals: Mapping[str, Any], model: ModelConfig | None) -> Launch:
    """Read the settings, the model and the length of a script that Atoll wrote."""
    described = literals.get("MODEL", {})
    if model is None and "model_type" in described:
        name = str(described.get(NAME, path.stem))
        model = replace(config_from_hf(described, str(path)), name=name)
    launch = _read_content(path, literals.get("SETTINGS", {}), model, None)
    run = dict(literals.get("RUN", {}))
    steps = run.pop("steps", launch.steps)
    fields = {name: value for name, value in launch.fields.items() if name != "stack"}
    return replace(launch, steps=steps, fields={**fields, **run})  # the stack is the tool's


def _read_content(
    path: Path, content: Mapping[str, Any], model: ModelConfig | None, vocab: int | None
) -> Launch:
    if is_megatron_values(content):
        return read_megatron_values(str(path), content, vocab)
    if is_nemo(content):
        return read_nemo(str(path), content, model, vocab)
    for fits, read in KINDS:
        if fits(content):
            return read(str(path), content, model)
    raise AtollError(
        f"{path}: not a launch file that is known: a Megatron-LM script, a torchtitan job (TOML), "
        "a DeepSpeed configuration (JSON), values of a NeMo recipe, arguments of Hugging Face's "
        "Trainer or accelerate's (YAML), a script that Atoll wrote (Python)"
    )


def _script(
    path: Path,
    model: ModelConfig | None,
    environment: Mapping[str, str] | None,
    vocab: int | None,
) -> Launch:
    script, file = read_script(path, environment), str(path)
    if training_commands(script):
        return read_megatron(file, script, vocab)
    if trainer_commands(script):
        return read_trainer_script(file, script, model)
    if is_mlperf(script):
        return read_mlperf(file, script, model)
    raise AtollError(
        f"{path}: starts no training program that is known: Megatron-LM's (pretrain_gpt.py with "
        "--num-layers and the like), a Trainer of Hugging Face (--per_device_train_batch_size), or "
        "by the variables of an MLPerf configuration; configurations are known by their endings "
        "(.yaml, .toml, .json)"
    )
