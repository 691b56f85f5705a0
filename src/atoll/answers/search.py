"""`atoll search` over chips: the content of result.json and of `--json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Literal

from pydantic import Field, JsonValue

from atoll.answers.answer import Amount, Count, DrawnAnswer, Explanation, Number, Positive, Summary
from atoll.answers.certificate import ArchitectureProof
from atoll.answers.design import (
    Degree,
    PlacementAnswer,
    Record,
    SearchedModel,
    SizedChip,
    SlowerChip,
)
from atoll.answers.plan import Sensitivity
from atoll.base.registry import import_named
from atoll.base.units import FREQUENCY, counted, format_quantity, format_seconds, format_slower


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignAnswer:
    """One chip with the best plan of each model on it; the first model's at the top too."""

    accelerator: SizedChip
    placement: PlacementAnswer
    microbatch: Degree
    recompute: str
    step_time_s: Positive
    models: Annotated[tuple[SearchedModel, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceAnswer:
    """What was searched, after the job's limits."""

    name: str
    designs: Count
    area_mm2: tuple[Amount, Amount]
    hbm_GiB: tuple[Amount, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExistingDevice:
    """A device that exists at its best layout for the same job, or why there is none."""

    device: str
    """Name in the question."""
    network: str
    stack: str
    fits: bool
    throughput_samples_per_s: Positive | None = None
    step_time_s: Positive | None = None
    mfu: Amount | None = None
    layout: str | None = None
    power_W: Amount | None = None
    process_nm: Positive | None = None
    area_mm2: Positive | None = None
    """As published."""
    step_time_interval_s: tuple[Positive, Positive] | None = None
    """Of 90 % of such runs."""
    template_step_time_s: Positive | None = None
    """Step of the device as a chip of the answer's template, at `template_clock_GHz`, with the
    answer's cost model and network: what differs from the answer then is the chip alone."""
    template_clock_GHz: Positive | None = None
    nominal_clock_GHz: Positive | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAlone:
    """A model on the chip that it would choose for itself."""

    model: str
    chip: str
    """In words."""
    samples_per_s: Positive
    bound_samples_per_s: Positive
    """No chip of the space gives it more."""
    shared_samples_per_s: Positive
    """On the common chip."""
    cost: Amount = 0.0
    """Share of its samples per second lost by sharing."""

    def sharing(self, samples_per_s: float) -> ModelAlone:
        """Return a copy with the samples per second on the common chip."""
        cost = max(0.0, 1.0 - samples_per_s / self.samples_per_s)
        return replace(self, shared_samples_per_s=samples_per_s, cost=cost)

    def words(self) -> str:
        return (
            f"{self.model} alone: {self.samples_per_s:,.1f} samples/s on {self.chip}; sharing "
            f"costs it {self.cost:.1%}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NearAnswer:
    """The designs that are slower than the answer by no more than a share."""

    share: Amount
    others: Count
    """Number of designs without the answer."""
    complete: bool
    """Whether no further design of the space can be among them."""
    least_power: SlowerChip | None
    """The design of least peak power, where that is less than the answer's."""

    def count_words(self) -> str:
        """ "at least 9 others within 0.5%"."""
        words = counted(self.others, "other")
        if not self.complete:
            words = f"at least {words}"
        elif self.others == 0:
            words = "no other"
        return f"{words} within {100 * self.share:g}%"

    def power_words(self, answer: SizedChip) -> str:
        """Compare the design of least power with the answer."""
        least = self.least_power
        assert least is not None
        chip, differs = least.device(), least.clock_GHz != answer.clock_GHz
        clock = f" at {format_quantity(chip.clock_Hz, FREQUENCY, 3)}" if differs else ""
        return (
            f"{chip.describe()}{clock}: {format_slower(least.slower_by)}, "
            f"{least.area_mm2:.1f} mm2, {least.peak_power_W:.0f} W at peak "
            f"({least.peak_power_W / answer.peak_power_W - 1.0:+.0%})"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontAnswer:
    """Designs that no other beats in both throughput and a cost."""

    proven_within: Amount | None
    """No chip of the space exceeds the throughput of the front's chips that cost no more by a
    larger share. None: among evaluated designs only."""
    designs: tuple[Record, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SteadyChip:
    """A chip under draws of the constants of the physical model."""

    chip: str
    """In words."""
    fits: Amount
    """Share of the draws in which it meets the limits at its nominal clock."""
    loss_mean: Amount
    """Mean of 1 - score / best score of the draw. A chip over the power limit runs at the fastest
    clock that meets it; a chip that is too large has score 0."""
    loss_p95: Amount
    area_mm2: tuple[Amount, Amount]
    """5th and 95th percentile."""
    peak_power_W: tuple[Amount, Amount]
    scores: tuple[Amount, ...]
    """In each draw, at the clock that meets the limits there; 0: at none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantShare:
    name: str
    share: Amount
    """Share of the sum over constants of squared changes of the best score at range ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Robustness(SteadyChip):
    """The answer under draws of the constants."""

    draws: Count
    without_a_chip: Count
    """Further draws in which no chip meets the limits."""
    designs: Count
    """The best of each draw is the best of these chips, within `proven_within`."""
    proven_within: Amount
    steadiest: SteadyChip
    """Evaluated chip with the least mean loss; lower bound: `least_loss`, which is 0 under a limit
    on sustained power, where none is searched for."""
    least_loss: Amount
    constants: tuple[ConstantShare, ...]

    def beats_words(self, devices: Sequence[ExistingDevice]) -> str:
        """The number of draws in which the answer has more throughput than each device."""
        rates = {device.device: device.throughput_samples_per_s for device in devices}
        counts = [
            f"{name} in {sum(score > rate for score in self.scores)}"
            for name, rate in rates.items()
            if rate is not None and self.scores
        ]
        return f"; faster than {', '.join(counts)} of the draws" if counts else ""

    def words(self) -> str:
        lost = sum(score == 0.0 for score in self.scores)
        kept = round(self.fits * self.draws)
        outcomes = [f"in {kept} of {self.draws} draws it keeps to the limits at its clock"]
        if slower := self.draws - kept - lost:
            outcomes.append(f"in {slower} it needs a lower clock")
        if lost:
            outcomes.append(f"in {lost} it is too large or too hot (a loss of 100%)")
        text = (
            f"{len(self.constants)} constants drawn at random: {', '.join(outcomes)}; on average "
            f"it loses {self.loss_mean:.1%} against the best chip of each draw (of "
            f"{self.designs:,} that keep to the limits in at least one)"
        )
        if self.without_a_chip:
            text += f"; {self.without_a_chip} more draws leave no chip"
        steady = self.steadiest
        if steady.chip == self.chip:
            text += "; no chip loses less on average"
        else:
            text += f"; least loss on average, {steady.loss_mean:.1%}: {steady.chip} or below"
        moving = [constant for constant in self.constants if constant.share >= 0.01][:3]
        if moving:
            shares = ", ".join(f"{constant.name} {constant.share:.0%}" for constant in moving)
            text += f"; what moves the best chip most: {shares}"
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowPrice:
    """What a little more of something is worth to a run."""

    what: str
    unit: str
    at: Positive
    """Limit or value in the answer."""
    low: Positive
    high: Positive
    """The price holds between `low` and `high`; both ends were solved."""
    less: Number | None
    """Relative change of throughput at `low`; None if no chip fits."""
    more: Number | None
    per_unit_below: Number | None
    """Relative change of throughput per unit, below and above `at`."""
    per_unit_above: Number | None
    chosen_anew: bool
    """Whether each end has its own proven best chip; else the answer's chip with a changed rate."""
    to_target: Amount | None
    """Additional units that reach the target; None: not within `high`."""
    remark: str = ""
    """Note on the upper end: interpolated over a gap of the lists, or why the price is 0."""

    def cells(self) -> tuple[str, str, str, str]:
        """Return resource, value, and the prices of a unit less and a unit more with their ends."""
        ends = (
            (self.less, self.per_unit_below, self.low),
            (self.more, self.per_unit_above, self.high),
        )
        less, more = (
            f"no chip at {end:,.4g}"
            if gain is None or per is None
            else f"{sign}{100 * per:.3g}% per {self.unit} to {end:,.4g} ({gain:+.1%})"
            for sign, (gain, per, end) in zip("-+", ends, strict=True)
        )
        if self.remark:
            more = f"{more[:-1]}; {self.remark})" if self.high > self.at else self.remark
        return self.what, f"{self.at:,.4g} {self.unit}", less, more

    def words(self) -> str:
        what, at, less, more = self.cells()
        reach = "" if not self.to_target else f"; {self.to_target:,.3g} {self.unit} more would do"
        return f"{what} at {at}: {less}, {more}{reach}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NextChip:
    """The answer as the next machine of a run that was planned or measured, under its software."""

    device: str
    step_time_s: Positive
    """Step time of the present run."""
    measured: bool
    host_s: Amount
    """Host time per step that the device waits for."""
    slack: Positive
    """Step time / sum of its parts."""
    chip_step_time_s: Positive
    """Step time of the answer with the same host time and slack, which do not change the ranking
    of chips."""
    target: Positive
    """Wanted speed-up over the run."""
    prices: tuple[ShadowPrice, ...]

    @property
    def faster(self) -> float:
        return self.step_time_s / self.chip_step_time_s

    def words(self) -> tuple[str, ...]:
        lost = f"{format_seconds(self.host_s)} of host time, slack {self.slack:.3f}"
        short = self.target / self.faster - 1
        need = (
            f"more than the target of {self.target:g} times"
            if short <= 0
            else f"{self.target:g} times as fast needs {short:.0%} more throughput"
        )
        return (
            f"a step on {self.device} takes {format_seconds(self.step_time_s)} "
            f"({'measured' if self.measured else 'planned'}); with the same software ({lost}) this "
            f"chip takes {format_seconds(self.chip_step_time_s)}: {self.faster:.2f} times as fast; "
            f"{need}",
            *(price.words() for price in self.prices),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchAnswer(DrawnAnswer):
    """The best chip, its proof, its baselines."""

    kind: Literal["search"] = "search"
    format: Literal[1] = 1
    summary: Summary = ()
    best: DesignAnswer
    throughput_samples_per_s: Positive
    score: Positive
    stopped: str
    """Why the search ended before its proof; nothing where it did not."""
    front_stopped: str
    wall_time_s: Amount
    left_out: Mapping[str, str]
    certificate: ArchitectureProof
    space: SpaceAnswer | None
    notes: tuple[str, ...]
    baselines: Mapping[str, Amount | None]
    beside: Mapping[str, ExistingDevice]
    step_time_interval_s: tuple[Positive, Positive] | None = None
    """With existing devices: of 90 % of runs such as that of the first model on the answer."""
    alone: Mapping[str, ModelAlone]
    baseline_remarks: Mapping[str, str]
    plateau: tuple[NearAnswer, ...]
    warnings: tuple[str, ...]
    phases_s: Mapping[str, Amount]
    runners_up: tuple[DesignAnswer, ...]
    pareto: Mapping[str, FrontAnswer]
    price_per_device: Positive | None = None
    """Dollars or watts per device, if the score is throughput per dollar or watt."""
    robustness: Robustness | None = None
    ahead: NextChip | None = None
    """With `--from`: comparison with that run."""
    job: Mapping[str, JsonValue]
    """The question, as it was asked."""
    given: str = ""
    """Assumptions in words: network with its bandwidths, clock, process."""

    def explain(self, beside: Sequence[str] = ()) -> SearchExplanation:
        """Why this chip: where the time goes, what limits it, and what others lack.

        Args:
            beside: Existing devices to compare with; those of the search unless given.

        Returns:
            The reasons as data; printed, they read as those of `atoll explain`.

        Raises:
            AtollError: A device has an unknown name.

        Examples:
            >>> import atoll
            >>> result = atoll.search(model="bert-large", space="tiny.yaml", devices=8)
            >>> result.answer.explain().models[0].model
            'bert-large'
        """
        explain_result = import_named("atoll.explore.explain.explanation:explain_result")
        explanation: SearchExplanation = explain_result(self, tuple(beside))
        return explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSummary:
    layer: str
    pass_: Annotated[str, Field(alias="pass")]
    makespan_s: Amount
    gap: Number
    bound: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowOperator:
    layer: str
    pass_: Annotated[str, Field(alias="pass")]
    name: str
    core: str
    duration_s: Amount
    limit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RooflinePoint:
    """An operator on the roofline of the chip."""

    layer: str
    pass_: Annotated[str, Field(alias="pass")]
    name: str
    flop_per_byte: Amount
    """FLOPs over the bytes that it moves to and from HBM."""
    flop_per_s: Amount
    roof_flop_per_s: Amount
    """The lower of the chip's peak and HBM bandwidth x `flop_per_byte`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedModel:
    """Where a model's time goes."""

    model: str
    samples_per_s: Positive
    mfu: Amount
    time_parts_s: Mapping[str, Number]
    limits: Mapping[str, Amount]
    """Share of the operators' time by what limits them."""
    schedules: tuple[ScheduleSummary, ...]
    slowest_operators: tuple[SlowOperator, ...]
    roofline: tuple[RooflinePoint, ...] = ()
    """Operators of the layers with matrix products."""
    roof_share: Amount = 0.0
    """FLOPs of these operators over those that their roofs allow in the same time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowerModel:
    """Why one model is slower, or a little faster, on a runner-up."""

    model: str
    slower_by: Number
    """Below 0 it is faster, by less than the proof's tolerance."""
    part: str
    """Part of the step that grows most; on a faster chip, that shrinks most."""
    part_s: tuple[Number, Number]
    """(answer, runner-up)."""
    layout: tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    accelerator: SizedChip
    differs: Mapping[str, tuple[int | float, int | float]]
    reasons: tuple[SlowerModel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFigure:
    """A figure of an existing device and of the answer; None where it is not published."""

    name: str
    unit: str
    device: Number | None
    answer: Number | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaterfallBar:
    """One change on the way from an existing device to the answer."""

    change: str
    before: str
    after: str
    step_time_s: Positive
    """After this change and all before it, each at its best layout."""
    added_s: Number
    """Change of the step time; the bars add up to the difference of the two steps."""
    layout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceComparison:
    """Why not an existing device: figures, time by class, and a waterfall to the answer."""

    step_time_s: Positive | None
    """None: the job does not fit (`remark`)."""
    answer_step_time_s: Positive
    figures: tuple[ComparedFigure, ...]
    classes_s: Mapping[str, tuple[Number, Number]] = field(default_factory=dict)
    """Seconds of a step by class, (device, answer); both add up to the steps."""
    layout: str = ""
    described: str = ""
    """The device as a chip of the template."""
    described_step_time_s: Positive | None = None
    """Its step with the cost model and network of the answer."""
    waterfall: tuple[WaterfallBar, ...] = ()
    remark: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchExplanation(Explanation):
    """Why this chip."""

    printer = "atoll.printing.explanation:print_explanation"
    kind: Literal["search-explanation"] = "search-explanation"
    format: Literal[1] = 1
    best: SizedChip
    models: tuple[ExplainedModel, ...]
    certificate: ArchitectureProof
    baselines: Mapping[str, Amount | None]
    score: Positive
    runners_up: tuple[Comparison, ...]
    steps: tuple[Sensitivity, ...] = ()
    """The next smaller and larger value of each part of the chip."""
    comparison: Mapping[str, DeviceComparison] = field(default_factory=dict)
    """By existing device."""
    notes: tuple[str, ...] = ()
