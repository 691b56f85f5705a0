"""`atoll search` and `atoll estimate` on a wafer: the content of result.json and of `--json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, Field, JsonValue

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
)
from atoll.answers.certificate import ArchitectureProof
from atoll.answers.design import ChipFigures, Degree, PlacedModel, PlacementAnswer, SizedChip
from atoll.base.registry import import_named
from atoll.files.yamlfile import Count as PositiveInt
from atoll.files.yamlfile import FileModel
from atoll.hardware.accelerator import GIB
from atoll.hardware.wafer import Wafer

Place = tuple[Count, Count]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaferFigures:
    """What a wafer is made of, and what follows from it."""

    name: str
    grid: tuple[Degree, Degree]
    dies: Degree
    die_mm2: Positive
    site_mm2: Positive
    area_mm2: Positive
    stacks: Count
    memory_GiB_per_die: Amount
    memory_bandwidth_GBps_per_die: Amount
    link_GBps: Amount
    link_latency_ns: Amount
    io_GBps: Amount
    peak_PFLOPs: Positive
    peak_power_W: Positive
    die_yield: Amount
    cost_dollars: Amount

    @classmethod
    def of(cls, wafer: Wafer, /, **more: Any) -> Self:
        """Convert a wafer, with further fields."""
        hbm = wafer.chip.hbm
        return build_from(
            cls,
            wafer,
            grid=(wafer.rows, wafer.columns),
            area_mm2=wafer.site_mm2 * wafer.dies,
            memory_GiB_per_die=hbm.capacity_bytes / GIB,
            memory_bandwidth_GBps_per_die=hbm.bandwidth_Bps / 1e9,
            link_GBps=wafer.link_Bps / 1e9,
            link_latency_ns=wafer.link_latency_s * 1e9,
            io_GBps=wafer.io_Bps / 1e9,
            peak_PFLOPs=wafer.peak_flops / 1e15,
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WaferDesign(WaferFigures):
    """A wafer of a space with the best mapping found on it."""

    samples_per_s: Amount
    power_W: Amount
    microbatch: Degree
    stages: Degree
    memory_GiB_used: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class DetailedStep:
    """The step with links as queues and the pipeline event by event, beside the fast model's."""

    step_time_s: Positive
    difference: Number
    fast_step_time_s: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class DieView:
    x: Count
    y: Count
    stage: Count | None
    dead: bool
    memory_bytes: Mapping[str, Amount]
    memory_total_bytes: Amount
    busy: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class WaferStage:
    stage: Count
    rectangle: tuple[Count, Count, Degree, Degree]
    """x, y, width, height."""
    layers: Degree
    stream: str
    load_s: Number
    offload_target: Annotated[
        Count | None, Field(validation_alias=AliasChoices("offload_target", "helper"))
    ]
    offloaded: tuple[str, ...]
    """Tensors stored in the memory of that stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLoad:
    from_: Annotated[Place, Field(alias="from")]
    to: Place
    bytes_per_microbatch: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class WaferPicture:
    """Everything that a picture needs: dies with stage and memory, links with their load."""

    rows: Annotated[int, Field(gt=0, le=10_000)]
    columns: Annotated[int, Field(gt=0, le=10_000)]
    memory_bytes_per_die: Positive
    link_Bps: Amount
    dies: Annotated[tuple[DieView, ...], Field(min_length=1)]
    stages: Annotated[tuple[WaferStage, ...], Field(min_length=1)]
    links: tuple[LinkLoad, ...]
    dead_dies: tuple[Place, ...]
    dead_links: tuple[tuple[Place, Place], ...]


Grid = Annotated[int, Field(ge=0, le=10_000)]
"""Coordinate or length on the grid."""
Code = Annotated[str, Field(max_length=100)]
Digit = Annotated[int, Field(ge=1, le=10_000)]


class DigitsFile(FileModel):
    x: tuple[Digit, ...]
    y: tuple[Digit, ...]


class OperatorFile(FileModel):
    code: Code
    weight_placement: Annotated[
        str, Field(validation_alias=AliasChoices("weight_placement", "home"))
    ]
    data: Code | None = None
    weight: Code | None = None
    streaming: bool | None = None
    algorithm: str | None = None


class StageFile(FileModel):
    rectangle: tuple[Grid, Grid, Grid, Grid]
    digits: DigitsFile
    layers: PositiveInt
    stream: Code
    operators: dict[str, OperatorFile]
    keep: dict[str, bool | Literal["offload"]]
    head: Code
    offload_target: Annotated[
        int | None, Field(ge=0, validation_alias=AliasChoices("offload_target", "helper"))
    ] = None


class MappingFile(FileModel):
    model: str
    batch: PositiveInt
    microbatch: PositiveInt
    sequence: PositiveInt
    streaming: bool
    algorithm: str
    schedule: str = "1f1b"
    """Files without it ran 1F1B."""
    optimizer: str = "mixed"
    stages: Annotated[tuple[StageFile, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingAnswer(Answer):
    """What one mapping on a wafer costs."""

    kind: Literal["wafer-estimate"] = "wafer-estimate"
    format: Literal[1] = 1
    model: str
    step_time_s: Positive
    samples_per_s: Positive
    tokens_per_s: Positive
    mfu: Amount
    power_W: Amount
    fits: bool
    memory_bytes_per_die: Amount
    placement: PlacementAnswer
    accelerator: ChipFigures
    wafer: WaferFigures
    picture: WaferPicture
    detailed: DetailedStep
    mapping: MappingFile


@dataclass(frozen=True, slots=True, kw_only=True)
class WaferModel(PlacedModel):
    detailed: DetailedStep


@dataclass(frozen=True, slots=True, kw_only=True)
class BestMapping:
    accelerator: SizedChip
    """Each die's; area and power are the wafer's."""
    wafer: WaferFigures
    placement: PlacementAnswer
    microbatch: Degree
    recompute: str
    mapping: MappingFile
    models: Annotated[tuple[WaferModel, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineSetting:
    """One setting of another method."""

    setting: str
    samples_per_s: Amount | None
    out_of_memory: bool
    """Under the recomputation that the method itself prescribes."""
    needed_GiB_per_die: Amount
    used_GiB_per_die: Amount
    fits_with_least_recomputation: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedBaseline(BaselineSetting):
    """The setting that the method's paper fixes."""

    source: str
    """What it fixes, in our words, and where."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineDetails(BaselineSetting):
    """The best of all settings of another method."""

    variants: Mapping[str, Amount | None]
    as_fixed: FixedBaseline | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultyWafer:
    dead_dies: tuple[Place, ...]
    kept: Amount


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultsAnswer:
    """What faults cost: those that the job gives, and those of sampled wafers, where asked for."""

    kept: Amount | None = None
    """Share of the throughput with the faults of the job."""
    dead_share: Amount | None = None
    samples: Count = 0
    median_kept: Amount | None = None
    mean_kept: Amount | None = None
    least_kept: Amount | None = None
    expected_samples_per_s: Amount | None = None
    unmapped: Count = 0
    wafers: tuple[FaultyWafer, ...] = ()


@dataclass(frozen=True, slots=True)
class ResourceWorth:
    """A little more of one resource, and what it brings."""

    resource: str
    change: str
    samples_per_s: Amount
    gain: Number
    """Relative throughput; negative where what it takes away costs more."""
    area_mm2: Number
    """More area of the whole wafer."""
    gain_per_1000_mm2: Number | None
    """None: no area is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """The mapping's stages solved again with one decision variable frozen."""

    variable: Annotated[str, Field(validation_alias=AliasChoices("variable", "gene"))]
    frozen: str
    """What it may still be."""
    samples_per_s: Amount | None
    """None: nothing fits."""
    worth: Number | None
    """Throughput with it free over that with it frozen, less one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherMapping:
    samples_per_s: Positive
    microbatch: Degree
    stages: Degree
    rectangle: tuple[Degree, Degree]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaferFront:
    proven_within: Amount | None
    designs: tuple[WaferDesign, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WaferAnswer(DrawnAnswer):
    """The best mapping on a wafer, or on the best wafer of a space, with its bound."""

    kind: Literal["wafer"] = "wafer"
    format: Literal[1] = 1
    summary: Summary = ()
    best: BestMapping
    throughput_samples_per_s: Positive
    score: Positive
    certificate: ArchitectureProof
    baselines: Mapping[str, Amount | None]
    baseline_details: Mapping[str, BaselineDetails]
    wafer: WaferPicture
    faults: FaultsAnswer
    explanation: tuple[ResourceWorth, ...]
    stopped: str
    left_out: Mapping[str, str]
    wall_time_s: Amount
    phases_s: Mapping[str, Amount]
    runners_up: tuple[OtherMapping, ...]
    designs: tuple[WaferDesign, ...]
    pareto: Mapping[str, WaferFront]
    job: Mapping[str, JsonValue]
    """The question, as it was asked."""
    log10_mappings: Amount | None = None
    """Of the number of mappings with stages of one shape; none in files of older versions."""

    def explain(self, ablate: bool = False) -> WaferExplanation:
        """Why this mapping: its slowest stage, the runners-up, and what more of each resource
        would be worth.

        Args:
            ablate: Solve the mapping again with one decision variable frozen after the other.

        Returns:
            The reasons as data; printed, they read as those of `atoll explain`.

        Raises:
            AtollError: The wafer or model that the question names is gone.

        Examples:
            >>> import atoll
            >>> result = atoll.search("wafer-job.yaml")
            >>> result.answer.explain().stages
            4
        """
        explain = import_named("atoll.wafer.answer.explain:explain_wafer_result")
        explanation: WaferExplanation = explain(self, ablate=ablate)
        return explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowestStage:
    stage: Count
    rectangle: tuple[Count, Count, Degree, Degree]
    layers: Degree
    load_s: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowerMapping(OtherMapping):
    slower_by: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class WaferExplanation(Explanation):
    """Why this mapping."""

    printer = "atoll.printing.wafer:print_wafer_explanation"
    kind: Literal["wafer-explanation"] = "wafer-explanation"
    format: Literal[1] = 1
    wafer: WaferFigures
    model: str
    samples_per_s: Positive
    mfu: Amount
    step_time_s: Positive
    time_parts_s: Mapping[str, Number]
    stages: Degree
    slowest_stage: SlowestStage
    memory_bytes: Mapping[str, Amount]
    memory_bytes_per_die: Positive
    explanation: tuple[ResourceWorth, ...]
    ablations: tuple[Ablation, ...] = ()
    note: str
    runners_up: tuple[SlowerMapping, ...]
    baselines: Mapping[str, Amount | None]
    certificate: ArchitectureProof
