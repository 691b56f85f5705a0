"""Questions from launch files: fields of the file, overridden by the user's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.base.errors import AtollError
from atoll.hardware.device import load_device
from atoll.questions import LayoutQuestion
from atoll.questions.question import Question
from atoll.tools.arguments import Launch
from atoll.tools.read import read_launch
from atoll.tools.registry import TOOLS
from atoll.training.request import compiles_itself
from atoll.workload.families.model_config import ModelConfig
from atoll.workload.load import load_model

TOOL_FIELDS = ("tool", "stack", "overlap", "flags", "cuda_graphs")
"""Fields that describe the tool, not the layout."""


def launched(file: str | Path, options: Mapping[str, Any]) -> Launch:
    """Read the file with the model, variables and vocabulary of the user's fields."""
    settings, model = options.get("set") or (), _model(options.get("model"))
    variables = _variables((settings,) if isinstance(settings, str) else settings)
    vocab, script_args = options.get("vocab"), options.get("script_args") or ()
    return read_launch(Path(file), model, variables, vocab, script_args)


def completed(question: type[Question], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a question's fields from its launch file; plans ignore the file's layout."""
    launch = launched(options["from_"], options)
    all_fields = question_fields(launch, options)
    if issubclass(question, LayoutQuestion):
        check_replicas(launch, all_fields)
    axes = LayoutQuestion.model_fields if not issubclass(question, LayoutQuestion) else {}
    fields = {n: v for n, v in all_fields.items() if n in question.model_fields and n not in axes}
    return fields | dict(options)


def question_fields(launch: Launch, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the file's layout as fields of a question; the user's fields win."""
    precision = str(launch.fields.get("precision", "bf16"))
    tool, method = TOOLS[launch.software], str(launch.fields.get("method", "pretrain"))
    fields = {"tool": tool.name, **tool.runs_as(precision, method), **launch.fields}
    fields["flags"] = f"{tool.flags or ''} {launch.fields.get('flags') or ''}".strip()
    if _compiles_itself(options.get("device")):
        fields = {name: value for name, value in launch.fields.items() if name not in TOOL_FIELDS}
    local_batch = fields.pop("local_batch", None)
    fields |= {name: value for name, value in options.items() if value is not None}
    if fields.get("devices") is None:
        raise AtollError(
            f"{launch.file}: does not say how many devices it runs on; add --devices N"
        )
    if "batch" not in fields:
        # (A plan's axes are several values: the batch is that of the file's own layout.)
        tp, pp, cp, devices, microbatch = (
            value if isinstance(value := fields[name], int) else launch.fields.get(name, 1)
            for name in ("tp", "pp", "cp", "devices", "microbatch")
        )
        fields["batch"] = (local_batch or microbatch) * max(1, devices // (tp * pp * cp))
    return fields


def _compiles_itself(device: Any) -> bool:
    """Return whether a device compiles whole programs; an unknown device is refused later."""
    try:
        return isinstance(device, str | Path) and compiles_itself(load_device(device))
    except AtollError:
        return False


def check_replicas(launch: Launch, fields: Mapping[str, Any]) -> None:
    """Check that torchtitan's replicas divide dp: context-parallel ranks do not count."""
    if launch.software != "torchtitan":
        return
    names = ("hsdp", "devices", "tp", "cp", "pp")
    replicas, devices, tp, cp, pp = (fields.get(name, 1) for name in names)
    ranks, left = divmod(devices, tp * cp * pp)
    if replicas > 1 and not left and ranks % replicas:
        raise AtollError(
            f"{launch.file}: has {replicas} replicas, which do not divide the {ranks} "
            f"data-parallel ranks of {devices} devices; use other --devices"
        )


def _model(name: str | None) -> ModelConfig | None:
    if not name:
        return None
    model = load_model(name)
    if not isinstance(model, ModelConfig):
        raise AtollError(
            f"model: {name} was captured; a launch file needs a zoo name or config.json"
        )
    return model


def _variables(settings: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in settings]
    for name, equals, _ in pairs:
        if not (equals and name.isidentifier()):
            raise AtollError(f"set: expected NAME=VALUE, got {name!r}")
    return {name: value for name, _, value in pairs}
