"""A search job: what the user asks, as a file or as keywords, checked before anything runs."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from atoll.errors import AtollError
from atoll.explore.objective import KINDS
from atoll.explore.scope import Scope, open_space
from atoll.hardware import ProductSpace, Space, load_network
from atoll.placement.chain import RECOMPUTE, ZERO
from atoll.profiles import get_profile
from atoll.step.states import load_states
from atoll.workload import load_model
from atoll.yamlfile import Area, Bytes, Count, FileModel, Power, Seconds, load_yaml

STRATEGIES = ("exact", "phaze", "evolve")
DEFAULT_MODEL = "llama2-7b"
LEAST_HBM_BYTES = 2**20
"""Less is a number whose unit was forgotten."""


@dataclass(frozen=True, slots=True)
class ModelJob:
    """One model to train; `sequence` None means the model's own."""

    name: str
    weight: float = 1.0
    global_batch: int | None = None
    sequence: int | None = None


@dataclass(frozen=True)
class Job:
    """Everything that a search needs to know. The defaults are PHAZE's whole grid."""

    models: tuple[ModelJob, ...] = (ModelJob(DEFAULT_MODEL),)
    devices: int = 1024
    global_batch: int = 4096
    microbatches: tuple[int, ...] = (1, 2, 4, 8, 16)
    tensor_widths: tuple[int, ...] = (1, 2, 4, 8)
    zero: tuple[int, ...] = ZERO
    """ZeRO stages to try."""
    recompute: str = "optimal"
    profile: str = "default"
    space: str = "phaze"
    hbm_capacities_bytes: tuple[int, ...] = ()
    """Restricts the space's HBM options to these capacities (empty: all of them)."""
    network: str | None = None
    optimizer: str | None = None
    objective: str = "mean"
    strategy: str = "exact"
    evaluations: int = 2000
    """Designs that strategy evolve looks at."""
    tolerance: float = 1e-3
    time_limit_s: float = 3600.0
    max_area_mm2: float | None = None
    max_power_W: float | None = None
    pareto: bool = False
    baselines: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.models:
            raise AtollError("job: models: at least one model is needed.")
        for name in ("devices", "global_batch", "evaluations"):
            _positive(name, getattr(self, name))
        for name in ("microbatches", "tensor_widths"):
            values = getattr(self, name)
            if not values:
                raise AtollError(f"job: {name}: at least one value is needed.")
            for value in values:
                _positive(name, value)
        for size in self.hbm_capacities_bytes:
            if size < LEAST_HBM_BYTES:
                raise AtollError(
                    f"job: hbm: {size:,} bytes hold no model; did you mean \"{size:g} GiB\"?"
                )
        if not self.zero or set(self.zero) - set(ZERO):
            raise AtollError(f"job: zero: a search places ZeRO 0 and 1, got {list(self.zero)}.")
        _one_of("recompute", self.recompute, RECOMPUTE)
        _one_of("objective", self.objective, KINDS)
        _one_of("strategy", self.strategy, STRATEGIES)
        if not 0.0 <= self.tolerance < 1.0:
            raise AtollError(f"job: tolerance: expected 0 <= tolerance < 1, got {self.tolerance}.")
        if self.time_limit_s <= 0.0:
            raise AtollError(f"job: time_limit: expected a positive time, got {self.time_limit_s}.")
        profile = get_profile(self.profile)
        load_states(self.optimizer or profile.optimizer)
        load_network(self.network or profile.network)
        for model in self.models:
            load_model(model.name)
            if model.weight <= 0.0 or not np.isfinite(model.weight):
                raise AtollError(
                    f"job: models: {model.name}: expected a positive weight, got {model.weight}."
                )
            if model.sequence is not None:
                _positive(f"models: {model.name}: sequence", model.sequence)
            if model.global_batch is not None:
                _positive(f"models: {model.name}: global_batch", model.global_batch)

    def load_space(self) -> Space | ProductSpace:
        """The space with the job's own constraints applied; a large one is not built."""
        return self.open_space()[0]

    def open_space(self) -> tuple[Space | ProductSpace, Scope]:
        """The same, with what it covers."""
        space, scope = open_space(
            self.space,
            get_profile(self.profile),
            self.hbm_capacities_bytes,
            self.max_area_mm2,
            self.max_power_W,
        )
        if isinstance(space, ProductSpace):
            exact_front = self.pareto and self.strategy != "evolve"
            for name, given in (("pareto", exact_front), ("strategy", self.strategy == "phaze")):
                if given:
                    raise AtollError(
                        f"job: {name}: not with a space of {len(space):,} points: {name} needs the "
                        "whole space in memory; shorten a list."
                    )
        return space, scope

    def to_dict(self) -> dict[str, Any]:
        return {
            "models": [
                {f.name: getattr(model, f.name) for f in fields(model)} for model in self.models
            ]
        } | {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.name != "models"}


def _positive(name: str, value: int) -> None:
    if value <= 0:
        raise AtollError(f"job: {name}: expected a positive whole number, got {value}.")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise AtollError(f"job: {name}: allowed are {', '.join(allowed)}; got {value!r}.")


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


# --- The job file ---------------------------------------------------------------------------------


class ModelEntry(FileModel):
    """A model in a job file."""

    name: str
    weight: Annotated[float, Field(gt=0)] = 1.0
    global_batch: Count | None = None
    sequence: Count | None = None


class JobFile(FileModel):
    """A job file; every field is optional and defaults to PHAZE's grid."""

    model: str | None = None
    models: tuple[ModelEntry | str, ...] | None = None
    sequence: Count | None = None
    devices: Count | None = None
    global_batch: Count | None = None
    microbatches: tuple[Count, ...] | None = None
    tensor_widths: tuple[Count, ...] | None = None
    zero: tuple[Annotated[int, Field(strict=True)], ...] | None = None
    recompute: Literal["optimal", "none", "full"] | None = None
    profile: Literal["default", "phaze"] | None = None
    space: str | None = None
    hbm: tuple[Bytes, ...] | None = None
    network: str | None = None
    optimizer: str | None = None
    objective: Literal["mean", "weighted", "worst"] | None = None
    strategy: Literal["exact", "phaze", "evolve"] | None = None
    evaluations: Count | None = None
    tolerance: Annotated[float, Field(ge=0, lt=1)] | None = None
    time_limit: Seconds | None = None
    max_area: Area | None = None
    max_power: Power | None = None
    pareto: bool | None = None
    baselines: bool | None = None
    seed: Annotated[int, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _one_way_to_name_models(self) -> JobFile:
        if self.model is not None and self.models is not None:
            raise ValueError("give either model or models, not both")
        return self


_RENAMED = {
    "hbm": "hbm_capacities_bytes",
    "time_limit": "time_limit_s",
    "max_area": "max_area_mm2",
    "max_power": "max_power_W",
}


def load_job(path: str | Path) -> Job:
    """The job in a YAML file. Files that it names are looked up beside it."""
    where = Path(path)
    file = load_yaml(where, JobFile)
    given: dict[str, Any] = {}
    for name in JobFile.model_fields:
        value = getattr(file, name)
        if value is not None and name not in ("model", "models", "sequence"):
            given[_RENAMED.get(name, name)] = value
    entries = file.models if file.models is not None else (file.model or DEFAULT_MODEL,)
    given["models"] = tuple(
        ModelJob(_beside(where, entry), sequence=file.sequence)
        if isinstance(entry, str)
        else ModelJob(
            _beside(where, entry.name),
            entry.weight,
            entry.global_batch,
            entry.sequence or file.sequence,
        )
        for entry in entries
    )
    for name in ("space", "network"):
        if name in given:
            given[name] = _beside(where, given[name])
    try:
        return Job(**given)
    except AtollError as error:
        raise AtollError(f"{path}: {str(error).removeprefix('job: ')}") from None


def _beside(job: Path, name: str) -> str:
    """A file next to the job file if there is one of that name; otherwise the name itself."""
    candidate = job.parent / name
    beside, here = os.path.exists(candidate), os.path.exists(name)  # noqa: PTH110  (no raise)
    return str(candidate) if beside and not here else name

