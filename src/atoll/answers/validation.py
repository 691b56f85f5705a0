"""`atoll validate`, `atoll calibrate` and `atoll check`: predictions held against measurements,
published chips and launch files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import JsonValue

from atoll.answers.answer import Amount, Answer, Count, Number, Positive
from atoll.answers.plan import EstimateAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Absolute percentage errors, as shares; none without rows."""

    rows: int = 0
    mean_ape: float | None = None
    median_ape: float | None = None
    p90_ape: float | None = None
    bias: float | None = None
    """Mean signed error, of operators."""
    coverage: float | None = None
    """Share of runs measured inside their intervals."""
    half_width: float | None = None
    """Mean half-width of the intervals, relative to the prediction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupErrors:
    step_time: Errors
    memory: Errors
    rows: int
    accepted_share: float
    """Share of its runs predicted to fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """How much slower the layout that is ranked first was than the fastest measured one."""

    groups: int = 0
    mean: float | None = None
    median: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstRun:
    id: str
    device: str
    layout: str
    measured_s: float | None
    predicted_s: float
    error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsValidation(Answer):
    """Of whole training runs, or of steps of one device."""

    kind: Literal["runs-validation"] = "runs-validation"
    format: Literal[1] = 1
    rows: int
    predicted: int
    skipped: Mapping[str, int]
    """Number of rows without a prediction, by reason."""
    step_time: Errors
    memory: Errors
    reserved_memory: Errors = Errors()
    """Of measured ranks: errors of the peak that the allocator reserved."""
    kernel_classes: Mapping[str, Errors] = field(default_factory=dict)
    """Of rows with profiled kernels: errors of the time of each class, and of all kernels."""
    coverage: float | None = None
    """Of runs with a step time, the share inside of their 90 % intervals; of memory and of groups
    beside their errors."""
    rejected: int | None = None
    """Runs predicted not to fit, of runs that ran out of memory."""
    rejected_share: float | None = None
    accepted: int | None = None
    """Runs predicted to fit, of runs that ran."""
    accepted_share: float | None = None
    groups: Mapping[str, Mapping[str, GroupErrors]]
    """By device, method, precision and kind of run (`training.accuracy`)."""
    unread: Mapping[str, int]
    """Words of rows that the model does not use, with the number of rows."""
    regret: Regret = Regret()
    by_source: Mapping[str, GroupErrors]
    by_device: Mapping[str, GroupErrors]
    by_grade: Mapping[str, GroupErrors]
    by_feature: Mapping[str, GroupErrors]
    worst: tuple[WorstRun, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchFile:
    file: str
    rows: int
    ran: bool
    """Whether its runs ran, or went out of memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchScore:
    """How well a predictor does on some rows."""

    rows: int
    """Rows that it can express."""
    step_time: Errors
    first: Errors
    """Errors of the first predictor on the same rows."""
    memory: Errors
    ran: int
    """Runs that ran and have a memory prediction; `accepted_share` are predicted to fit."""
    accepted_share: float | None = None
    failed: int
    """Runs that went out of memory; `rejected_share` are predicted not to fit."""
    rejected_share: float | None = None
    regret: Regret = Regret()


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictorBench:
    name: str
    about: str
    refused: Mapping[str, int]
    """Rows that it cannot express, by the reason."""
    per_second: float
    """Rows answered or refused per second on one core."""
    all: BenchScore
    common: BenchScore
    """On the rows that every predictor can express."""
    groups: Mapping[str, Mapping[str, BenchScore]]
    """By kind of run, size of the model, precision, device and source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchAnswer(Answer):
    """Predictors beside each other on the same measured runs."""

    kind: Literal["bench"] = "bench"
    format: Literal[1] = 1
    files: tuple[BenchFile, ...]
    rows: int
    unread: Mapping[str, int]
    """Number of rows that describe no run, by reason."""
    shared: int
    """Rows that two predictors or more can express; `common` ones all of them."""
    common: int
    missing: Mapping[str, str]
    """Predictors that could not run, and why."""
    predictors: tuple[PredictorBench, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstOperator:
    line: int
    operator: str
    device: str = ""
    """Where the file has several."""
    measured_s: float
    predicted_s: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorsValidation(Answer):
    """Of operators of one device."""

    kind: Literal["operators-validation"] = "operators-validation"
    format: Literal[1] = 1
    device: str
    rows: int
    predicted: int
    skipped: Mapping[str, int]
    step_time: Errors
    memory: Errors = Errors()
    power: Errors = Errors()
    """Watts and joules of sustained loads, where the file has them."""
    energy: Errors = Errors()
    by_kind: Mapping[str, Errors]
    long: Errors = Errors()
    """Products of 50 us and more."""
    attention: Errors = Errors()
    groups: Mapping[str, Mapping[str, Errors]] = field(default_factory=dict)
    """Of a file of several devices: by device and by precision."""
    worst: tuple[WorstOperator, ...]
    steps: Mapping[str, RunsValidation] = field(default_factory=dict)
    """Whole steps of the same device, where no file was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationAnswer(Answer):
    """The operator model of a device, fitted on timings."""

    kind: Literal["calibration"] = "calibration"
    format: Literal[1] = 1
    device: str
    rows: int
    fitted: int
    skipped: tuple[str, ...]
    kept: tuple[str, ...]
    """Kinds with too few rows in the file: their parameters are unchanged."""
    parameters: Mapping[str, Parameter | Mapping[str, Parameter]]
    """As the calibration's file has them."""
    held_out: OperatorsValidation
    out: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTestFigures:
    """A log of NCCL's tests; figures as low, median, high."""

    collective: str
    ranks: int
    nodes: int
    bus_Bps: tuple[float, float, float] | None
    latency_s: tuple[float, float, float] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledStep:
    """One step of a profile on the device, in seconds."""

    time_s: float
    kinds: Mapping[str, float]
    """Time that kernels of each kind ran, several at once counted each."""
    exposed_s: float
    """Communication while nothing else ran."""
    hidden: Mapping[str, tuple[float, float]]
    """Per kind of communication: (time, exposed time)."""
    host_gap_s: float
    """The device idle because the next kernel had not been launched."""
    other_gap_s: float
    """The device idle for other reasons: dependencies, latencies of launches."""
    launches: int
    host_s: float
    """From the first launch to the last, without waiting for the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SoftwareFit:
    stack: str | None
    attention: str | None
    evidence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FitErrors:
    """Mean errors of step times: as the catalogue has it, fitted, each from the others."""

    before: float
    after: float
    left_out: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsFit:
    """How well a site fits measured runs."""

    rows: int
    fitted: int
    skipped: tuple[str, ...]
    software: tuple[SoftwareFit, ...]
    errors: FitErrors


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteCalibration(Answer):
    """A site from what its owner has measured, and what each measurement says."""

    kind: Literal["site-calibration"] = "site-calibration"
    format: Literal[1] = 1
    site: Mapping[str, JsonValue]
    """As its file has it; each value with its 90 % interval."""
    collectives: tuple[NcclTestFigures, ...] = ()
    steps: tuple[ProfiledStep, ...] = ()
    runs: RunsFit | None = None
    out: str | None = None


Parameter = int | float | str


@dataclass(frozen=True)
class BetterLayout:
    """The best layout for the same job under the same software."""

    layout: str
    step_time_s: float
    saved_percent: float | None
    """Of a step; None where the file's own layout does not fit, as all that is saved."""
    saved_hours: float | None
    """Device-hours saved per run; None if its length is unknown."""
    saved_usd: float | None
    launch_file: str
    """As a difference from the launch file that Atoll would write for the layout in use."""
    proof: str
    flags: str = ""
    """Options with which a plan of the file has the further flags: `--overlap` and `--flags`."""
    flag_arguments: tuple[str, ...] = ()
    """Arguments of the tool that set them, where they have an effect."""
    changes: tuple[str, ...] = ()
    """Arguments of the launch file that change, with both values: parallel sizes and pipeline
    first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedArguments:
    """Of a launch file, by name."""

    used: Mapping[str, JsonValue]
    without_effect: Mapping[str, JsonValue]
    not_modelled: Mapping[str, str]
    """Effect on a step that is not priced."""
    not_understood: Mapping[str, JsonValue]
    """Unknown arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPart:
    """Of a step: what a profile has, and what was predicted."""

    part: str
    measured_s: Amount
    predicted_s: Amount | None
    """None where the estimate has no such part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRun:
    """A run's log or profile beside its estimate."""

    file: str
    software: str
    """Software that wrote the log."""
    steps: Count
    """Steps used."""
    left_out: int
    """Steps left out: warm-up and outliers."""
    step_time_s: Positive
    """Median."""
    low_s: Positive
    """The 5th percentile; `high_s` is the 95th."""
    high_s: Positive
    error: Number
    """Predicted over measured step time, less 1."""
    memory_bytes: Amount | None
    memory_counts: str
    """Allocated or reserved, on the rank that wrote it."""
    memory_predicted_bytes: Amount | None
    memory_error: Number | None
    slack: tuple[Number, Number, Number] | None
    """Measured / estimated step time as the site's slack: value and 90 % interval."""
    parts: tuple[MeasuredPart, ...]
    """Of a profile; empty without one."""
    other_job: str = ""
    """What the log's run has that the estimate's has not, and the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckAnswer(Answer):
    """What is said of a launch file."""

    kind: Literal["check"] = "check"
    format: Literal[1] = 1
    file: str
    software: str
    not_priced: tuple[str, ...]
    """Arguments that the estimate leaves out, with their effect: its interval is wider for them,
    and no layout is called proven."""
    question: Mapping[str, JsonValue]
    estimate: EstimateAnswer
    arguments: CheckedArguments
    better: BetterLayout | None
    notes: tuple[str, ...]
    measured: MeasuredRun | None = None
    """With `--log` or `--trace`."""
    with_other_flags: BetterLayout | None = None
    """The best where the software's flags may change too; None where that brings nothing more."""


@dataclass(frozen=True, slots=True)
class ChipFigure:
    """A figure of one chip as published, and as the model has it."""

    published: float | None
    counts: bool
    """Whether it is a published figure and in the errors."""
    left_out: float
    """With constants from the other families of the table."""
    fitted: float
    """With constants from all chips of the table."""
    shipped: float
    """With the constants that searches take."""

    def error(self, value: float) -> float | None:
        return value / self.published - 1 if self.published else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipLine:
    """One chip; parts are those of `left_out`."""

    chip: str
    family: str
    area_mm2: ChipFigure
    power_W: ChipFigure
    area_parts_mm2: Mapping[str, float]
    power_parts_W: Mapping[str, float]
    """At peak, before the limit of its module."""
    module_W: float | None
    """Power limit of cooling for a module of its year, if it has one."""
    peak_flops: float | None
    constructed_flops: float | None
    """units x width x 2 x clock."""
    peak_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AreaPowerErrors:
    area: Errors
    power: Errors


@dataclass(frozen=True, slots=True, kw_only=True)
class PhysicalConstant:
    """A constant of the physical model."""

    value: float
    low: float
    high: float
    source: str
    fitted: float | None
    """On this table; none: it is not fitted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipsValidation(Answer):
    """Area and rated power of chips, each from the other families of the table."""

    kind: Literal["chips-validation"] = "chips-validation"
    format: Literal[1] = 1
    rows: int
    predicted: int
    skipped: Mapping[str, int]
    area: Errors
    power: Errors
    peak: Errors
    """Peak rate by construction, where the words say units and width."""
    fitted: AreaPowerErrors
    shipped: AreaPowerErrors
    families: Mapping[str, AreaPowerErrors]
    constants: Mapping[str, PhysicalConstant]
    chips: tuple[ChipLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLine:
    """Mean power of one node."""

    id: str
    device: str
    devices: int
    workload: str
    measured_W: float
    predicted_W: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesValidation(Answer):
    """Powers of whole nodes in training."""

    kind: Literal["nodes-validation"] = "nodes-validation"
    format: Literal[1] = 1
    rows: int
    predicted: int
    skipped: Mapping[str, int]
    power: Errors
    nodes: tuple[NodeLine, ...]


@dataclass(frozen=True, slots=True)
class FigureLine:
    """One figure of a table."""

    id: str
    group: str
    unit: str
    reference: float
    """As measured or published."""
    predicted: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class FiguresValidation(Answer):
    """Single figures: measured powers and clocks, or densities and prices of process nodes."""

    kind: Literal["figures-validation"] = "figures-validation"
    format: Literal[1] = 1
    rows: int
    predicted: int
    skipped: Mapping[str, int]
    groups: Mapping[str, Errors]
    figures: tuple[FigureLine, ...]


Validation = (
    OperatorsValidation | RunsValidation | ChipsValidation | NodesValidation | FiguresValidation
)
"""The kind follows from the columns of the table."""
