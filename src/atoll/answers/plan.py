"""`atoll plan`, `atoll estimate` and `atoll measure`: the content of plan.json and of `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue

from atoll.answers.answer import (
    Amount,
    Answer,
    Count,
    DrawnAnswer,
    Explanation,
    Number,
    Positive,
    Summary,
    build_from,
    read_answer,
)
from atoll.answers.certificate import LayoutProof
from atoll.answers.layout import (
    AxisReason,
    ExpectedError,
    Exportable,
    Interval,
    LaunchFile,
    LayoutCandidate,
    PlannedLayout,
    StepPasses,
    Uncertainty,
    UnrestrictedLayout,
)
from atoll.base.errors import AtollError
from atoll.files.yamlfile import suggestion
from atoll.questions import LayoutQuestion, Question
from atoll.step.length import WholeRun
from atoll.step.parts import Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """One device of a stage at its peak."""

    stage: Count
    total: Amount
    """What the allocator reports."""
    needed: Amount
    """Total with fragmentation and the driver's share."""
    after_step: Amount
    """Bytes between steps."""
    parts: Mapping[str, Amount]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMemory(StageMemory):
    """The fullest stage, and all of them."""

    capacity: Amount
    headroom: Amount = 0.0
    """Share of the capacity to keep free."""
    tight: bool = False
    """Whether it fits, but not at the upper end of the interval."""
    most_needed: Amount
    """At the upper end of the interval, with fragmentation and the driver's share."""
    stages: tuple[StageMemory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """What one stage holds."""

    layers: tuple[str, ...]
    memory_bytes: Mapping[str, Amount]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayAnswer:
    """The step replayed pass by pass."""

    time_s: Positive
    difference: Number
    """Step time / replay time - 1; not 0 where only a part of the step is replayed."""
    microbatches: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class DevicePass:
    """The operators of one pass of a layer, in the order in which a device runs them."""

    layer: str
    repeat: Count
    pass_: Annotated[str, Field(alias="pass")]
    makespan_s: Amount
    operators: tuple[tuple[str, str, Amount, Amount], ...]
    """Name, kind of kernel, start, seconds."""
    work: tuple[tuple[Amount, Amount], ...] = ()
    """FLOPs and bytes per operator: HBM bytes, or link bytes if its kind is `link`."""
    origins: tuple[Origin, ...] = ()
    """With `--operators measured`: origin of the time per operator, or of most of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkLevel:
    name: str
    devices: Count
    bandwidth_Bps: Amount
    latency_s: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Who is near whom: axes from the fastest to the slowest, over the levels of the network."""

    devices: Count
    order: tuple[tuple[str, Count], ...]
    ep: Count
    etp: Count
    levels: tuple[NetworkLevel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """One step from the answer."""

    change: str
    gain: Number | None
    """Relative change of throughput; None if nothing fits."""
    area_mm2: Number | None = None
    score: Amount | None = None
    per_mm2: Number | None = None
    """Score per additional mm2."""
    power_W: Number | None = None
    """Additional peak power."""
    stopped_by: str = ""
    """The limit that this step breaks, or that it is slower; nothing where it would be better."""
    capped_GHz: Positive | None = None
    """The clock at which the step keeps to a limit on power that it breaks."""
    capped_gain: Number | None = None
    """Relative change of throughput at that clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """One part of the machine, a step down and a step up."""

    what: str
    less: Gain
    more: Gain


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAnswer(Exportable, DrawnAnswer):
    """A training run under one layout."""

    format: Literal[3] = 3
    summary: Summary = ()
    notes: tuple[str, ...] = ()
    """What to know before the figures are believed."""
    version: str = ""
    """Version of atoll that wrote it."""
    question: Mapping[str, JsonValue] = field(default_factory=dict)
    """The fields that were given, by their names; files by their absolute paths."""
    configuration: Mapping[str, JsonValue] = field(default_factory=dict)
    """The model's shape; empty where it was captured: the question names its file."""
    model: str
    device: str
    network: str
    devices: Annotated[int, Field(gt=0)]
    sequence: Annotated[int, Field(gt=0)]
    global_batch: Annotated[int, Field(gt=0)]
    tool: str = "none"
    """Training tool; "none": any runtime."""
    stack: str
    states: str
    precision: str
    attention: str
    imbalance: Amount
    site: str | None = None
    """Site whose measurements were used."""
    given: str
    """Assumptions in words: network with its bandwidths, clock, software."""
    layout: PlannedLayout
    layout_words: str
    step_time_s: Positive
    tokens_per_s_per_device: Amount
    mfu: Amount
    power_cap_W: Positive | None = None
    """Power cap per device; None: its rating."""
    power_W: Amount | None = None
    """Mean power of a device over the step; None if its rating is unknown."""
    energy_per_token_J: Amount | None = None
    fits: bool
    memory_bytes: PlanMemory
    breakdown_s: Mapping[str, Number]
    expected_error: ExpectedError
    """Mean error that is expected of such an estimate."""
    interval: Interval
    uncertainty: Uncertainty | None = None
    """Causes of the interval, and what would narrow it."""
    recomputed: Mapping[str, tuple[str, ...]]
    """Under "optimal": recomputed operators per kind of block."""
    stages: tuple[PlannedStage, ...]
    pipeline: StepPasses
    replay: ReplayAnswer
    operators: tuple[DevicePass, ...]
    operator_origins: Mapping[Origin, Amount] = field(default_factory=dict)
    """With `--operators measured`: share of a microbatch's operator time by origin."""
    cluster: Cluster
    whole_run: WholeRun | None = None
    """With `--tokens`."""
    sensitivity: tuple[Sensitivity, ...]
    launch: tuple[LaunchFile, ...] = ()

    def _launch_file(self, target: str) -> LaunchFile:
        file_by_target = {file.target: file for file in self.launch}
        if target not in file_by_target:
            raise AtollError(f"export: {target!r} is not known{suggestion(target, file_by_target)}")
        if file_by_target[target].refused:
            raise AtollError(file_by_target[target].refused)
        return file_by_target[target]


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateAnswer(RunAnswer):
    """What one layout of a training run costs."""

    kind: Literal["estimate"] = "estimate"


@dataclass(frozen=True, slots=True, kw_only=True)
class BestLayout:
    layout: str
    step_time_s: Positive
    throughput_samples_per_s: Positive
    fits: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerUp:
    layout: str
    """In words."""
    step_time_s: Positive
    slower: Number
    axes: PlannedLayout
    breakdown_s: Mapping[str, Number]
    tokens_per_s_per_device: Amount
    memory_bytes: Amount
    fastest_chance: Amount | None = None
    """Chance to be the fastest of the named layouts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer(RunAnswer):
    """The fastest layout that fits, with the proof."""

    kind: Literal["plan"] = "plan"
    best: BestLayout
    """The recommended layout."""
    fastest: BestLayout
    """The certified layout; differs from `best` if a simpler layout is as fast."""
    choice: str
    """Why `best` is not the fastest; empty if it is."""
    ties: Amount
    """Layouts slower by up to this share count as equal to the fastest."""
    tied: Count
    alternatives: tuple[LayoutCandidate, ...]
    """Layouts to benchmark as well: slower than the best by less than `between_layouts`."""
    fastest_chance: Amount | None = None
    """Chance of the best layout to be the fastest of the named ones."""
    between_layouts: Amount
    """Median relative error between estimates of two layouts of one run."""
    runners_up: tuple[RunnerUp, ...]
    reasons: tuple[AxisReason, ...]
    stopped: str
    """Why the search ended before its proof; empty if it did not."""
    left_out: Mapping[str, str]
    """What was left out for lack of time, and why."""
    certificate: LayoutProof
    unrestricted: UnrestrictedLayout | None = None
    """The fastest layout of a runtime that runs every layout; None if it is not faster."""

    def explain(self) -> PlanExplanation:
        """Why this layout: where its time goes, and what the others lack.

        Returns:
            The reasons as data; printed, they read as those of `atoll explain`.

        Examples:
            >>> import atoll
            >>> plan = atoll.plan("gpt2-xl", "h100", 8, batch=64, tp=[1, 2], pp=[1])
            >>> plan.answer.explain().layout == str(plan.best.layout)
            True
        """
        mine = self.breakdown_s
        slower_layouts = []
        for runner_up in self.runners_up:
            theirs = runner_up.breakdown_s
            sign = 1 if runner_up.slower >= 0 else -1  # faster: the part that shrinks most
            more_s = {name: sign * (theirs.get(name, 0.0) - mine[name]) for name in mine}
            part = max(more_s, key=more_s.__getitem__)
            part_s = mine[part], theirs.get(part, 0.0)
            slower_layouts.append(build_from(SlowerLayout, runner_up, part=part, part_s=part_s))
        return build_from(
            PlanExplanation,
            self,
            kind="plan-explanation",
            format=1,
            layout=self.layout_words,
            runners_up=tuple(slower_layouts),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowerLayout:
    layout: str
    step_time_s: Positive
    slower: Number
    part: str
    """Part of the step that grows most; if the layout is faster, that shrinks most."""
    part_s: tuple[Number, Number]
    """(answer, this layout)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanExplanation(Explanation):
    """Why this layout."""

    printer = "atoll.printing.training:print_plan_explanation"
    kind: Literal["plan-explanation"] = "plan-explanation"
    format: Literal[1] = 1
    layout: str
    model: str
    device: str
    devices: Count
    step_time_s: Positive
    mfu: Amount
    breakdown_s: Mapping[str, Number]
    reasons: tuple[AxisReason, ...]
    left_out: Mapping[str, str]
    certificate: LayoutProof
    choice: str = ""
    """Why it is not the certified fastest layout; empty if it is."""
    interval: Interval
    uncertainty: Uncertainty | None = None
    runners_up: tuple[SlowerLayout, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRank:
    """A rank that ran on the local device without communication, and what was predicted of it."""

    id: str
    stage: int
    rank: int
    outcome: str
    """ok, oom (it ran out of memory, a result), or error, time, died with the reason in `error`."""
    step_time_s: float | None = None
    predicted_step_time_s: float | None = None
    allocated_bytes: float | None = None
    predicted_allocated_bytes: float | None = None
    reserved_bytes: float | None = None
    predicted_reserved_bytes: float | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureAnswer(Answer):
    """Ranks of a layout, measured on one device."""

    kind: Literal["measured-ranks"] = "measured-ranks"
    format: Literal[1] = 1
    layout: str
    ranks: tuple[MeasuredRank, ...]
    rows: str
    """Table with a row per rank that has a result."""
    commands: tuple[str, ...] = ()
    """With `--dry-run`: the command; it reads `jobs`, one per line, from jobs.jsonl."""
    jobs: tuple[Mapping[str, JsonValue], ...] = ()


def plan_fields(question: type[Question], path: str | Path) -> dict[str, Any] | None:
    """Return the question of the layout that `plan` or `estimate` wrote to a folder; None for
    launch files.
    """
    if not Path(path).is_dir():
        return None
    answer = read_answer(Path(path) / "plan.json", PlanAnswer, EstimateAnswer)
    assert isinstance(answer, PlanAnswer | EstimateAnswer)
    fields = {n: v for n, v in answer.question.items() if n in question.model_fields}
    axes = {n: getattr(answer.layout, n, None) for n in LayoutQuestion.model_fields}
    fields |= {"tool": answer.tool, "order": answer.layout.schedule}
    return fields | {n: value for n, value in axes.items() if value not in (None, ())}
