"""`atoll plan` and `atoll estimate`: the content of plan.json and of `--json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from atoll.answers.answer import (
    Amount,
    Count,
    Explanation,
    Number,
    Picture,
    Positive,
    made_of,
)
from atoll.answers.certificate import LayoutProof
from atoll.errors import AtollError
from atoll.files.wholefile import whole_files
from atoll.files.yamlfile import suggestion
from atoll.step.layout import Layout
from atoll.step.length import WholeRun
from atoll.step.orders import copies_of
from atoll.step.parts import Origin
from atoll.step.replay import PassTime
from atoll.units import format_seconds


def _possible(layout: Layout) -> Layout:
    """Refuse degrees that no layout has; whether a run can have it is asked when it is used."""
    degrees = (layout.dp, layout.tp, layout.pp, layout.cp, layout.ep, layout.vpp, layout.microbatch)
    if min(degrees) < 1 or max(degrees) > MOST_DEGREE:
        raise ValueError(f"{layout} cannot be")
    return layout


PlannedLayout = Annotated[Layout, AfterValidator(_possible)]
MOST_DEGREE = 10**9
MOST_PASSES = 500_000
"""Of all stages, that are replayed and drawn."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The mean absolute error of the step time over measured runs of a kind, on which nothing was
    fitted.
    """

    of: str
    mean: Amount
    runs: Count
    sources: Count
    extrapolated: bool = False
    """Whether the device's operators were never timed, or the layout is beyond those measured."""

    def sentence(self) -> str:
        return f"{self.of}: {self.runs:,} runs, {self.mean:.0%} off on average"


@dataclass(frozen=True, slots=True)
class Range:
    low: Amount
    high: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Between what `share` of the runs of this kind were measured."""

    share: Amount
    step_time_s: Range
    memory_bytes: Range
    """Of what the allocator reports on the fullest stage (`memory_bytes.total`)."""

    def sentence(self, digits: int) -> str:
        low, high = (
            format_seconds(value, digits) for value in (self.step_time_s.low, self.step_time_s.high)
        )
        return f"{self.share:.0%} of runs of this kind lie between {low} and {high}"


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
class PassParts:
    """What a stage's passes are made of, in seconds."""

    forward: Mapping[str, Amount]
    backward: Mapping[str, Amount]
    host: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPasses:
    """All that a step is replayed from, so that whoever draws or prints a plan replays the same."""

    schedule: str
    passes: tuple[tuple[PassTime, ...], ...]
    """Of every stage, its chunks on one microbatch."""
    microbatches: Count
    replayed: Annotated[int, Field(gt=0)]
    """Of the microbatches, those run one by one; the others are more of the same steady state."""
    send_s: Amount
    after: tuple[tuple[str, Amount], ...]
    """What follows the pipeline, or is added to it by every microbatch on all stages alike."""
    slack: Positive = 1.0
    """Time of a step over what its parts explain."""
    step_time_s: Positive
    """As estimated."""
    parts: tuple[PassParts, ...] = ()
    """Of every stage."""

    def __post_init__(self) -> None:
        if not self.passes or self.replayed * len(self.passes) > MOST_PASSES:
            raise ValueError(f"{self.replayed} microbatches on {len(self.passes)} stages")

    @property
    def rest_s(self) -> float:
        """The microbatches that are not replayed one by one."""
        slowest_s = max(sum(p.total_s for p in row) for row in self.passes)
        slowest_s /= copies_of(self.schedule)
        return (self.microbatches - self.replayed) * slowest_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The step replayed pass by pass."""

    time_s: Positive
    difference: Number
    """Closed form over replay, less one."""
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
class LaunchFile:
    """The launch file of a tool that can say the layout, or why it cannot."""

    target: str
    file: str = ""
    """Its usual name."""
    text: str = ""
    notes: tuple[str, ...] = ()
    """What the target says differently, and what the user must supply."""
    refused: str = ""

    def save(self, path: str | Path = ".") -> Path:
        """Write the file, whole or not at all; a script can be run.

        Args:
            path: The file, or a folder, in which it has its usual name.

        Returns:
            The file.

        Raises:
            AtollError: It cannot be written there.

        Example:
            >>> import atoll
            >>> found = atoll.estimate("llama2-7b", "h100", 8, batch=64, tp=2, zero=3)
            >>> found.export("torchtitan").save("mine.toml").name
            'mine.toml'
        """
        given = Path(path)
        place = given / self.file if given.is_dir() else given
        with whole_files(lambda why: f"cannot write {place}: {why}", place) as (part,):
            part.write_text(self.text, encoding="utf-8")
            if self.file.endswith(".sh"):
                part.chmod(part.stat().st_mode | 0o111)
        return place


class Launched:
    """What has a layout that training tools can be told."""

    __slots__ = ()

    def export(self, target: str) -> LaunchFile:
        """The launch file of a training tool for the layout.

        Args:
            target: megatron, torchtitan, deepspeed, nemo, or a plug-in's. `atoll.plan(...,
                export=target)` plans with layouts that it can run only.

        Returns:
            The file: `text`, `notes`, and `save` to write it.

        Raises:
            AtollError: The tool cannot run the layout, or is not known.

        Example:
            >>> import atoll
            >>> found = atoll.estimate("llama2-7b", "h100", 8, batch=64, tp=2)
            >>> found.export("megatron").save("megatron.sh").name
            'megatron.sh'
        """
        return self._launch_file(target)

    def _launch_file(self, target: str) -> LaunchFile:
        raise NotImplementedError


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
class RunAnswer(Launched, Picture):
    """A training run under one layout."""

    format: Literal[3] = 3
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
    notes: tuple[str, ...] = ()
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
        made = {file.target: file for file in self.launch}
        if target not in made:
            raise AtollError(f"export: {target!r} is not known{suggestion(target, made)}")
        if made[target].refused:
            raise AtollError(made[target].refused)
        return made[target]


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
class Reason:
    axis: str
    why: str
    axes: PlannedLayout
    """The best with another value; where none fits, the one that needs least memory."""
    slower: Number | None
    """Than the answer; None where it does not fit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A layout that may be faster in truth."""

    layout: str
    """In words."""
    axes: PlannedLayout
    slower: Number


def candidates_words(candidates: Sequence[Candidate], between: float) -> str:
    """What must be tried, and why; nothing where nothing is near."""
    words = "; ".join(f"{c.layout} ({c.slower:+.1%})" for c in candidates)
    why = f"half of all pairs of layouts of one run are predicted {between:.0%} or more off"
    return f"to be tried beside it: {words} ({why})" if words else ""


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

        Example:
            >>> import atoll
            >>> plan = atoll.plan("gpt2-xl", "h100", 8, batch=64, tp=[1, 2], pp=[1])
            >>> plan.answer.explain().layout == str(plan.best.layout)
            True
        """
        mine = self.breakdown_s
        others = []
        for other in self.runners_up:
            theirs = other.breakdown_s
            sign = 1 if other.slower >= 0 else -1  # what shrinks, where the other is faster
            more_s = {name: sign * (theirs.get(name, 0.0) - mine[name]) for name in mine}
            part = max(more_s, key=more_s.__getitem__)
            part_s = mine[part], theirs.get(part, 0.0)
            others.append(made_of(SlowerLayout, other, part=part, part_s=part_s))
        return made_of(
            PlanExplanation,
            self,
            kind="plan-explanation",
            format=1,
            layout=self.layout_words,
            runners_up=tuple(others),
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
