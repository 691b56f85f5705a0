"""`atoll plan` and `atoll estimate`: the content of plan.json and of `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from atoll.answers.answer import (
    Amount,
    Count,
    DrawnAnswer,
    Explanation,
    Number,
    Positive,
    made_of,
)
from atoll.answers.certificate import LayoutProof
from atoll.answers.layout import (
    Candidate,
    Expected,
    Interval,
    Launched,
    LaunchFile,
    PlannedLayout,
    Reason,
    StepPasses,
)
from atoll.errors import AtollError
from atoll.files.yamlfile import suggestion
from atoll.step.length import WholeRun
from atoll.step.parts import Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """One device of a stage at its peak."""

    stage: Count
    total: Amount
    """What the allocator reports."""
    needed: Amount
    """With fragmentation and the driver's share."""
    after_step: Amount
    """Between steps."""
    parts: Mapping[str, Amount]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMemory(StageMemory):
    """The fullest stage, and all of them."""

    capacity: Amount
    headroom: Amount = 0.0
    """Share of it that was to stay free."""
    tight: bool = False
    """Whether it fits, but would not at the upper end of the interval."""
    most_needed: Amount
    """At the upper end of the interval, with fragmentation and the driver's share."""
    stages: tuple[StageMemory, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """What one stage holds."""

    layers: tuple[str, ...]
    memory_bytes: Mapping[str, Amount]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The step replayed pass by pass."""

    time_s: Positive
    difference: Number
    """The step over this time, less one: by what is left of steps that are replayed in part."""
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
    """Of each operator its FLOPs, and its bytes: of HBM, or of links where its kind is `link`."""
    origins: tuple[Origin, ...] = ()
    """With `--operators measured`, how the time of each is known, or most of it."""


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
    """Of the throughput; none where nothing fits."""
    area_mm2: Number | None = None
    score: Amount | None = None
    per_mm2: Number | None = None
    """Score for each more of area."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """One part of the machine, a step down and a step up."""

    what: str
    less: Gain
    more: Gain


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAnswer(Launched, DrawnAnswer):
    """A training run under one layout."""

    format: Literal[3] = 3
    notes: tuple[str, ...] = ()
    """What to know before the figures are believed."""
    version: str = ""
    """Of the atoll that wrote it."""
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
    stack: str
    states: str
    precision: str
    attention: str
    imbalance: Amount
    site: str | None = None
    """Whose measurements were used."""
    given: str
    """All that it holds for, in words: network with its bandwidths, clock, software."""
    layout: PlannedLayout
    layout_words: str
    step_time_s: Positive
    tokens_per_s_per_device: Amount
    mfu: Amount
    power_cap_W: Positive | None = None
    """What each device is held to; none: its rating."""
    power_W: Amount | None = None
    """Mean draw of a device over the step; none where its rating is not known."""
    energy_per_token_J: Amount | None = None
    fits: bool
    memory_bytes: PlanMemory
    breakdown_s: Mapping[str, Number]
    expected_error: Expected
    """How far such estimates were off."""
    interval: Interval
    recomputed: Mapping[str, tuple[str, ...]]
    """Under "optimal", the operators of each kind of block that run again."""
    stages: tuple[PlannedStage, ...]
    pipeline: StepPasses
    replay: Replayed
    operators: tuple[DevicePass, ...]
    operator_origins: Mapping[Origin, Amount] = field(default_factory=dict)
    """With `--operators measured`, shares of the time of operators of a microbatch."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAnswer(RunAnswer):
    """The fastest layout that fits, with the proof."""

    kind: Literal["plan"] = "plan"
    best: BestLayout
    """The layout that is named."""
    fastest: BestLayout
    """Of which the certificate speaks; another one where layouts that take as long are simpler."""
    choice: str
    """Why it is not the fastest; nothing where it is."""
    ties: Amount
    """Layouts that take so much longer than the fastest count as equal."""
    tied: Count
    alternatives: tuple[Candidate, ...]
    """Layouts that must be tried beside it: the best is ahead by less than `between_layouts`."""
    between_layouts: Amount
    """By what estimates of two layouts of one run are off from each other, in half of all cases."""
    runners_up: tuple[RunnerUp, ...]
    reasons: tuple[Reason, ...]
    stopped: str
    """Why the search ended before its proof; nothing where it did not."""
    left_out: Mapping[str, str]
    """What there was no time for, and why."""
    certificate: LayoutProof

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
            sign = 1 if runner_up.slower >= 0 else -1  # what shrinks, where the other is faster
            more_s = {name: sign * (theirs.get(name, 0.0) - mine[name]) for name in mine}
            part = max(more_s, key=more_s.__getitem__)
            part_s = mine[part], theirs.get(part, 0.0)
            slower_layouts.append(made_of(SlowerLayout, runner_up, part=part, part_s=part_s))
        return made_of(
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
    """Of the step: the one that grows most; that shrinks most where the layout is faster."""
    part_s: tuple[Number, Number]
    """In the answer, and here."""


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
    reasons: tuple[Reason, ...]
    left_out: Mapping[str, str]
    certificate: LayoutProof
    choice: str = ""
    """Why it is not the fastest, of which the certificate speaks; nothing where it is."""
    runners_up: tuple[SlowerLayout, ...]
