"""Reader of launch files: finds the software a file belongs to, and reads it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from atoll.base.errors import AtollError
from atoll.files.yamlfile import shipped_table
from atoll.tools.arguments import Launch, UserValues
from atoll.tools.deepspeed.read import read_deepspeed
from atoll.tools.files.config_files import editable_lines, imported_as, read_content
from atoll.tools.files.references import resolve
from atoll.tools.files.shell import Script, read_script
from atoll.tools.gpt_neox.read import read_gpt_neox
from atoll.tools.hugging_face import NAME
from atoll.tools.megatron_lm.read import read_megatron, read_megatron_values, training_commands
from atoll.tools.nanotron.read import read_nanotron
from atoll.tools.nemo.read import read_nemo
from atoll.tools.nemo.read_mlperf import is_mlperf, read_mlperf
from atoll.tools.torchtitan.read import read_torchtitan
from atoll.tools.torchtitan.read_program import read_program
from atoll.tools.transformers import read as trainer_files
from atoll.workload import config_from_hf, load_config
from atoll.workload.families.model_config import ModelConfig

WIDTHS = re.compile(r"parallel|shard|(^|[._-])[tpdce]p([._-]|$)", re.IGNORECASE)
"""Names of arguments that say how many devices share something."""
CONFIGURATIONS = {
    "megatron_values": read_megatron_values,
    "nemo": read_nemo,
    "nanotron": read_nanotron,
    "gpt_neox": read_gpt_neox,
    "torchtitan": read_torchtitan,
    "deepspeed": read_deepspeed,
    "trainer": trainer_files.read_trainer,
    "axolotl": trainer_files.read_axolotl,
}
NAMES: dict[str, list[list[str]]] = shipped_table("atoll.tools", "configurations.yaml")
"""Lists of names by which a configuration is recognised."""
RECIPES: dict[str, str] = shipped_table("atoll.tools.nemo", "recipes.yaml")["recipes"]
SCRIPTS = (
    (training_commands, read_megatron),
    (trainer_files.trainer_commands, trainer_files.read_trainer_script),
    (is_mlperf, read_mlperf),
)


def read_launch(
    path: Path,
    model: ModelConfig | None = None,
    environment: Mapping[str, str] | None = None,
    vocab: int | None = None,
    arguments: Sequence[str] = (),
) -> Launch:
    """Read a launch file; `model` if it has none, `environment` and `arguments` of a script."""
    user = UserValues(model, vocab, environment or {}, tuple(arguments))
    readers = {".py": _python, **dict.fromkeys((".toml", ".json", ".yaml", ".yml"), _configuration)}
    launch = readers.get(path.suffix, _script)(path, user)
    fields = {name: value for name, value in launch.fields.items() if value is not None}
    launch = replace(launch, fields=fields)
    if not launch.arguments.used:
        raise AtollError(f"{path}: none of its arguments is understood as {launch.software}'s")
    for name, value in launch.arguments.not_understood.items():
        if WIDTHS.search(name) and value.isdigit() and int(value) > 1:
            raise AtollError(
                f"{path}: {name} {value} is unknown, so its layout is too; give the layout to "
                "atoll estimate"
            )
    return launch


def _configuration(path: Path, user: UserValues) -> Launch:
    content = read_content(path)
    if path.suffix in (".yaml", ".yml"):
        content = resolve(content, user.variables)
    return _read_content(path, content, user)


def _python(path: Path, user: UserValues) -> Launch:
    """Read the settings, the model and the length of a script that Atoll wrote."""
    literals = read_content(path)
    if "SETTINGS" not in literals:
        return read_program(path, user)
    described = literals.get("MODEL", {})
    if user.model is None and "model_type" in described:
        name = str(described.get(NAME, path.stem))
        user = replace(user, model=replace(config_from_hf(described, str(path)), name=name))
    elif user.model is None and (recipe := imported_as(path, "recipe")):
        stems = {stem: name for name, stem in RECIPES.items()}
        name = stems.get(re.sub("_(pretrain|sft|peft)_config$", "", recipe), "")
        user = replace(user, model=load_config(name)) if name else user
    launch = _read_content(path, literals["SETTINGS"], user)
    run = dict(literals.get("RUN", {}))
    steps = run.pop("steps", launch.steps)
    fields = {**launch.fields, "stack": None} | run  # the stack is the tool's
    return replace(launch, steps=steps, fields=fields, editable_lines=editable_lines(path))


def _read_content(path: Path, content: Mapping[str, Any], user: UserValues) -> Launch:
    names = {*_names(content)}
    for kind, lists in NAMES.items():
        if any(names.issuperset(required) for required in lists):
            return CONFIGURATIONS[kind](str(path), content, user)
    raise AtollError(
        f"{path}: not a launch file that is known: a Megatron-LM script, a torchtitan job (TOML), "
        "a DeepSpeed configuration (JSON), a YAML file of NeMo, Hugging Face's Trainer, "
        "accelerate, axolotl, nanotron or GPT-NeoX, or a script that Atoll wrote (Python); say the "
        "layout of another tool to atoll estimate"
    )


def _names(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of a file, of its sections ("model.") and of what they have ("model.x")."""
    for written, value in content.items():
        name = str(written).replace("-", "_")
        yield name
        if isinstance(value, Mapping):
            yield f"{name}."
            yield from (f"{name}.{inner}" for inner in value)


def _with_allocator(launch: Launch, script: Script) -> Launch:
    """Add what the script tells PyTorch's allocator, which has two names for it."""
    settings = (script.exported.get(f"PYTORCH_{name}ALLOC_CONF", "") for name in ("", "CUDA_"))
    if not any("expandable_segments:true" in each.lower() for each in settings):
        return launch
    flags = f"{launch.fields.get('flags') or ''} growing_segments".strip()
    return replace(launch, fields={**launch.fields, "flags": flags})


def _script(path: Path, user: UserValues) -> Launch:
    script = read_script(path, user.variables, user.arguments)
    try:
        for fits, read in SCRIPTS:
            if fits(script):
                return _with_allocator(read(str(path), script, user), script)
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
