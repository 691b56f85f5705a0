"""A launch file as a question: what it says, under what is said beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.errors import AtollError
from atoll.export import EXPORTERS
from atoll.hardware.device import load_device
from atoll.launch.account import Launch
from atoll.launch.read import read_launch
from atoll.questions import LayoutQuestion
from atoll.questions.question import Question
from atoll.training.request import compiles_itself
from atoll.workload.families.model_config import ModelConfig
from atoll.workload.load import load_model

OF_ITS_TOOL = ("stack", "overlap", "flags", "cuda_graphs")
"""What a file says of its tool, and not of the layout."""


def launched(file: str | Path, given: Mapping[str, Any]) -> Launch:
    """The file, read with the model, the variables and the vocabulary that are given for it."""
    said = given.get("set") or ()
    variables = _variables((said,) if isinstance(said, str) else said)
    return read_launch(Path(file), _model(given.get("model")), variables, given.get("vocab"))


def completed(asked: type[Question], given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a question that names a launch file; a plan, which has axes where the file has a
    layout, leaves that aside.
    """
    launch = launched(given["from_"], given)
    found = fields_of(launch, given)
    if issubclass(asked, LayoutQuestion):
        check_replicas(launch, found)
    axes = LayoutQuestion.model_fields if not issubclass(asked, LayoutQuestion) else {}
    said = {n: v for n, v in found.items() if n in asked.model_fields and n not in axes}
    return said | dict(given)


def fields_of(launch: Launch, given: Mapping[str, Any]) -> dict[str, Any]:
    """The file's layout as fields of a question; those that are given win."""
    precision = str(launch.fields.get("precision", "bf16"))
    said = {**EXPORTERS[launch.software].runs_as(precision), **launch.fields}
    if _compiles_itself(given.get("device")):
        said = {name: value for name, value in launch.fields.items() if name not in OF_ITS_TOOL}
    local = said.pop("local_batch", None)
    said |= {name: value for name, value in given.items() if value is not None}
    if said.get("devices") is None:
        raise AtollError(
            f"{launch.file}: does not say how many devices it runs on; add --devices N"
        )
    if "batch" not in said:
        # (A plan's axes are several values: the batch is that of the file's own layout.)
        tp, pp, cp, devices, micro = (
            value if isinstance(value := said[name], int) else launch.fields.get(name, 1)
            for name in ("tp", "pp", "cp", "devices", "microbatch")
        )
        said["batch"] = (local or micro) * max(1, devices // (tp * pp * cp))
    return said


def _compiles_itself(device: Any) -> bool:
    """A device that is not known is refused where it is asked for."""
    try:
        return isinstance(device, str | Path) and compiles_itself(load_device(device))
    except AtollError:
        return False


def check_replicas(launch: Launch, said: Mapping[str, Any]) -> None:
    """torchtitan's replicas divide data-parallel ranks alone, without those of the context."""
    if launch.software != "torchtitan":
        return
    replicas, devices, tp, cp, pp = (
        said.get(name, 1) for name in ("hsdp", "devices", "tp", "cp", "pp")
    )
    if replicas > 1 and devices % (tp * cp * pp) == 0 and devices // (tp * cp * pp) % replicas:
        raise AtollError(
            f"{launch.file}: has {replicas} replicas, which do not divide the "
            f"{devices // (tp * cp * pp)} data-parallel ranks of {devices} devices; use other "
            "--devices"
        )


def _model(name: str | None) -> ModelConfig | None:
    if not name:
        return None
    found = load_model(name)
    if not isinstance(found, ModelConfig):
        raise AtollError(
            f"model: {name} was captured; a launch file needs a zoo name or config.json"
        )
    return found


def _variables(given: Sequence[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for name, equals, _ in pairs:
        if not (equals and name.isidentifier()):
            raise AtollError(f"set: expected NAME=VALUE, got {name!r}")
    return {name: value for name, _, value in pairs}
