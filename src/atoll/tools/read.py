"""Reader of launch files: finds the software a file belongs to, and reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from atoll.base.errors import AtollError
from atoll.tools.arguments import Launch
from atoll.tools.deepspeed.read import is_deepspeed, read_deepspeed
from atoll.tools.files.config_files import read_content
from atoll.tools.files.references import resolve
from atoll.tools.files.shell import read_script
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
from atoll.workload.families.model_config import ModelConfig

WIDTHS = re.compile(r"parallel|shard|(^|[._-])[tpdce]p([._-]|$)", re.IGNORECASE)
"""Names of arguments that say how many devices share something."""
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
    launch = _read(path, model, environment, vocab)
    account = launch.arguments
    widths = {n: v for n, v in account.not_understood.items() if WIDTHS.search(n) and v.isdigit()}
    if not account.used:
        raise AtollError(f"{path}: none of its arguments is understood as {launch.software}'s")
    if unread := next((f"{n} {v}" for n, v in widths.items() if int(v) > 1), ""):
        raise AtollError(
            f"{path}: {unread} is unknown, so its layout is too; give the layout to atoll estimate"
        )
    return launch


def _read(
    path: Path,
    model: ModelConfig | None,
    environment: Mapping[str, str] | None,
    vocab: int | None,
) -> Launch:
    if path.suffix not in (".toml", ".json", ".yaml", ".yml"):
        return _script(path, model, environment, vocab)
    content = read_content(path)
    if path.suffix in (".yaml", ".yml"):
        content = resolve(content, environment or {})
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
        "Trainer or accelerate's (YAML)"
    )


def _script(
    path: Path,
    model: ModelConfig | None,
    environment: Mapping[str, str] | None,
    vocab: int | None,
) -> Launch:
    script, file = read_script(path, environment), str(path)
    try:
        if training_commands(script):
            return read_megatron(file, script, vocab)
        if trainer_commands(script):
            return read_trainer_script(file, script, model)
        if is_mlperf(script):
            return read_mlperf(file, script, model)
    except AtollError as error:
        if not script.missing:
            raise
        raise AtollError(
            f"{path}: sources {', '.join(script.missing)}, not found beside it; put it there "
            f"(without it: {str(error).removeprefix(f'{path}: ')})"
        ) from None
    raise AtollError(
        f"{path}: starts no training program that is known: Megatron-LM's (pretrain_gpt.py with "
        "--num-layers and the like), a Trainer of Hugging Face (--per_device_train_batch_size), or "
        "by the variables of an MLPerf configuration; configurations are known by their endings "
        "(.yaml, .toml, .json)"
    )
