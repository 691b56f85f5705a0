"""Data of the page's sections, which its scripts draw."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from atoll.answers.answer import Summary
from atoll.answers.design import SizedChip
from atoll.answers.designs import ShownParameter
from atoll.answers.layout import LaunchFile
from atoll.answers.plan import Cluster, Sensitivity
from atoll.answers.search import DeviceComparison


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeRow:
    """A step by cause."""

    name: str
    about: str
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimesView:
    title: str
    rows: tuple[TimeRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PassView:
    """One pass of a layer: its operators as rows of name, core, start, seconds, tensor cores,
    vector cores, limit.
    """

    layer: str
    repeat: int
    pass_: Annotated[str, Field(alias="pass")]
    makespan_s: float
    operators: tuple[tuple[str, str, float, float, int, int, str], ...]
    lower_bound_s: float | None = None
    gap: float | None = None
    bound: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineView:
    """A timeline: slices of every stage as [name, start, end, microbatch, chunk]."""

    step_time_s: float
    end_s: float
    stretch: float
    microbatches: int
    shown: int
    idle_s: tuple[float, ...]
    names: tuple[str, ...]
    stages: tuple[tuple[tuple[float, ...], ...], ...]
    left_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StageView:
    name: str
    layers: tuple[str, ...]
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryView:
    capacity_bytes: float
    stages: tuple[StageView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreCounts:
    tensor: int
    vector: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """One model: schedules, pipeline, memory."""

    model: str
    layers: tuple[PassView, ...]
    cores: CoreCounts | None
    pipeline: PipelineView | None
    memory: MemoryView
    energy_J: Mapping[str, float]
    replay_difference: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitivityView:
    unit: str
    per_mm2: bool
    rows: tuple[Sensitivity, ...]
    base: float | None = None
    """The score of the answer itself, evaluated again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipView(SizedChip):
    """A chip and the square millimetres of its parts."""

    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineView:
    """Score of a baseline, with the area of a known chip."""

    name: str
    score: float | None
    remark: str = ""
    area_mm2: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnView:
    """Distinct values, and the index per point (base64)."""

    values: tuple[float, ...]
    wide: bool
    """Whether indices take two bytes instead of one; the highest means no value."""
    places: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceView:
    """Points of a scatter plot: columns of 32-bit floats and bytes (base64)."""

    count: int
    total: int
    note: str
    shown: tuple[ShownParameter, ...]
    """Parameters that the chips differ in."""
    parameters: Mapping[str, ColumnView]
    score: str
    state: str
    figures: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLoad:
    layers: int
    load_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WaferMap:
    """Dies as rows of x, y, stage, dead, bytes; links as x, y, x, y, bytes."""

    rows: int
    columns: int
    capacity_bytes: float
    dies: tuple[tuple[int, int, int | None, bool, float], ...]
    links: tuple[tuple[int, int, int, int, float], ...]
    dead_links: tuple[tuple[tuple[int, int], tuple[int, int]], ...]
    stages: tuple[StageLoad, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableView:
    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartPoint:
    """A value of a figure, with its interval if it has one."""

    x: float
    """Value of the axis, or index of the category."""
    y: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChartView:
    """A figure of several answers against an axis, one line of points per name."""

    figure: str
    axis: str
    categories: tuple[str, ...] = ()
    """Names in place of numbers on the axis."""
    lines: Mapping[str, tuple[ChartPoint, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class PageView:
    """A page; fields that are None have no section."""

    kind: str
    title: str
    summary: Summary
    details: Summary = ()
    """Assumptions, proof and notes: lines of (label, text)."""
    facts: Summary = ()
    """Further figures: (name, value)."""
    times: tuple[TimesView, ...] = ()
    models: tuple[ModelView, ...] = ()
    sensitivity: SensitivityView | None = None
    comparison: Mapping[str, DeviceComparison] | None = None
    reasons: tuple[str, ...] = ()
    cluster: Cluster | None = None
    launch: tuple[LaunchFile, ...] | None = None
    tool: str | None = None
    unit: str | None = None
    score: float | None = None
    best: SizedChip | None = None
    chip: ChipView | None = None
    baselines: tuple[BaselineView, ...] = ()
    pareto: Mapping[str, float | None] | None = None
    space: SpaceView | None = None
    wafer: WaferMap | None = None
    tables: tuple[TableView, ...] = ()
    charts: tuple[ChartView, ...] = ()
