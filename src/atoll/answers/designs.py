"""`atoll designs`, and what a store keeps of designs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NotRequired

from pydantic import JsonValue
from typing_extensions import TypedDict

from atoll.answers.answer import Answer

Identity = Mapping[str, JsonValue]
"""What the results of a job depend on, as its store is known by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownParameter:
    """A number that tells the chips of a run apart, and how it is shown."""

    name: str
    label: str
    unit: str
    per: float
    """Base units in one of those."""
    whole: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipJob:
    """What a store says of its chips; nothing where it holds none."""

    parameters: tuple[ShownParameter, ...] = ()


RunKind = Literal["search", "wafer", "plan"]
Row = Mapping[str, JsonValue]
"""A design by the names of its columns: a chip's (`StoredDesign`), a wafer's or a layout's."""


class StoredEnergy(TypedDict):
    parts_J: Mapping[str, float]
    step_time_s: float
    devices: int
    tokens: int


class StoredPlan(TypedDict):
    """The best plan known of one model on one chip."""

    number: int
    """The model's among those of the job."""
    model: str
    samples_per_s: float | None
    step_time_s: float
    variant: int
    microbatch: int
    tensor: int
    cp: int
    ep: int
    etp: int
    sp: bool
    pipeline: int
    data: int
    pass_s: Sequence[Sequence[float]]
    energy: StoredEnergy
    effort: str
    limit_s: NotRequired[float | None]


class StoredDesign(TypedDict):
    """One evaluated design: its figures, its parameters, the plan of its first model."""

    chip: int
    design: int
    score: float | None
    area_mm2: float
    power_W: float
    energy_per_token_J: float
    tensor_cores: int
    vector_cores: int
    width: int
    depth: int
    vector_width: int
    glb_bytes: int
    hbm_capacity_bytes: int
    hbm_bandwidth_Bps: float
    clock_Hz: float
    model: str
    samples_per_s: float | None
    step_time_s: float
    microbatch: int
    tensor: int
    pipeline: int
    data: int
    phase: str
    at: float
    plans: NotRequired[Sequence[StoredPlan]]
    """Of all models, where one design is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusAnswer:
    """Where a run stands (`reader.RunStatus`)."""

    state: str
    pid: int
    host: str
    executor: str
    phase: str
    left: int
    total: int
    bounded: int
    evaluated: int
    designs: int
    score: float
    bound: float | None
    """None where nothing is bounded yet."""
    seconds: float
    gap: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A file with all designs."""

    file: str
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignsAnswer(Answer):
    """A page of the designs of a run."""

    kind: Literal["designs"] = "designs"
    format: Literal[1] = 1
    run: RunKind
    """What was searched: the rows are chips, wafers or layouts."""
    status: StatusAnswer
    count: int
    parameters: tuple[ShownParameter, ...] = ()
    """Of chips: columns of their rows."""
    designs: tuple[Row, ...]
    parquet: Written | None = None
