"""A design as answers show it: the chip, where the layers of a model run, what a step costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self

from pydantic import Field

from atoll.answers.answer import Amount, Answer, Count, Number, Positive, build_from, derived_key
from atoll.answers.certificate import Proof
from atoll.answers.layout import PlannedLayout
from atoll.base.units import counted, format_bytes, format_fit, format_mfu, format_seconds
from atoll.hardware.accelerator import GIB, MIB, Accelerator, Hbm
from atoll.hardware.silicon.systolic import TEMPLATES
from atoll.step.layout import Layout

Degree = Annotated[int, Field(gt=0, le=10**9)]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipFigures:
    """What a chip is made of."""

    tensor_cores: Degree
    vector_cores: Degree
    width: Degree
    depth: Degree
    vector_width: Degree
    glb_MiB: Positive
    glb_bandwidth_Bpc: Positive
    clock_GHz: Positive
    hbm_GiB: Amount
    hbm_bandwidth_GBps: Amount
    peak_TFLOPs: Positive
    template: str | None = None
    """None: ours."""
    own: Mapping[str, Number] | None = None
    """Parameters that only its template has, in base units."""

    @classmethod
    def of(cls, chip: Accelerator, /, **more: Any) -> Self:
        """Convert a chip, with further fields."""
        return build_from(
            cls,
            chip,
            glb_MiB=chip.glb_bytes / MIB,
            clock_GHz=chip.clock_Hz / 1e9,
            hbm_GiB=chip.hbm.capacity_bytes / GIB,
            hbm_bandwidth_GBps=chip.hbm.bandwidth_Bps / 1e9,
            peak_TFLOPs=chip.peak_flops / 1e12,
            template=None if chip.template is None else chip.template.name,
            own={parameter.name: value for parameter, value in chip.more} or None,
            **more,
        )

    def device(self) -> Accelerator:
        """Return the chip as an Accelerator."""
        template = None if self.template is None else TEMPLATES[self.template]
        template_values = self.own or {}
        return build_from(
            Accelerator,
            self,
            glb_bytes=round(self.glb_MiB * MIB),
            clock_Hz=self.clock_GHz * 1e9,
            hbm=Hbm(round(self.hbm_GiB * GIB), self.hbm_bandwidth_GBps * 1e9),
            template=template,
            more=tuple((p, template_values[p.name]) for p in template.extra_parameters)
            if template
            else (),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedChip(ChipFigures):
    """With its HBM interfaces."""

    area_mm2: Positive
    peak_power_W: Positive


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowerChip(SizedChip):
    slower_by: Number
    """Compared with the answer; below 0 it is faster, by less than the proof's tolerance."""


Record = Mapping[str, int | float]
"""An evaluated design as one flat row: its parameters, its figures, and those of each model."""


@dataclass(frozen=True, kw_only=True)
class PlacedStageAnswer:
    """One pipeline stage, on one tensor-parallel group of devices."""

    layers: tuple[str, ...]
    """Layer names with their counts, for example ("embedding", "block x8")."""
    devices: Count
    compute_s: Number
    """Forward and backward of one microbatch, without recomputation."""
    recompute_s: Number
    transfer_s: Number
    """Seconds of transfers into this stage per microbatch, of activations and gradients."""
    receive_s: Amount
    """Seconds to receive one activation from the previous stage; its gradient takes as long."""
    recompute: str
    """Names of the recomputed operators."""
    memory_bytes: Mapping[str, Amount]
    """Bytes by part (`step.parts`), and their `total`, which is added where it is missing."""
    forward_s: Amount | None
    """Forward part of `compute_s`, if known."""
    weight_s: Amount | None
    """Weight gradients in `compute_s`, if the schedule runs them separately."""
    chunks: tuple[tuple[Amount, Amount, Amount], ...]
    """Forward, backward and weight seconds of each chunk of an even layout's stage."""

    def __post_init__(self) -> None:
        if "total" not in self.memory_bytes:
            total_bytes = sum(self.memory_bytes.values())
            with_total = {**self.memory_bytes, "total": total_bytes}
            object.__setattr__(self, "memory_bytes", with_total)

    @derived_key
    def load_s(self) -> Number:
        """Seconds of one microbatch in this stage."""
        return self.compute_s + self.recompute_s + self.transfer_s

    @property
    def total_memory_bytes(self) -> float:
        return self.memory_bytes["total"]

    @property
    def memory_parts_bytes(self) -> dict[str, float]:
        """`memory_bytes` without the total."""
        return {name: size for name, size in self.memory_bytes.items() if name != "total"}


@dataclass(frozen=True, kw_only=True)
class PlacementAnswer:
    """The distribution of one training step over all devices."""

    pipeline: Degree
    tensor: Degree
    data: Degree
    microbatch: Degree
    microbatches: Degree
    """Microbatches of one replica in one step."""
    step_time_s: Positive
    stages: Annotated[tuple[PlacedStageAnswer, ...], Field(min_length=1)]
    time_parts_s: Mapping[str, Number]
    """The step's time by cause; the parts add up to `step_time_s`."""
    schedule: str
    zero: Count
    """ZeRO stage (`step.states`)."""
    cp: Degree
    ep: Degree
    etp: Degree | None
    """Tensor-parallel degree of the experts; None if it equals `tensor`."""
    vpp: Degree
    """Chunks per stage of the interleaved schedule."""
    hsdp: Degree = 1
    """Replicas of the group that ZeRO divides over."""
    sp: bool = False
    """Sequence parallelism."""

    @derived_key
    def devices(self) -> Degree:
        return self.data * sum(stage.devices for stage in self.stages)

    @derived_key
    def layout(self) -> str:
        """Degrees and features of the layout, as plans write them, without unused ones."""
        return str(self.degrees)

    @property
    def degrees(self) -> Layout:
        """The layout with even stages, as the training planner has it."""
        return Layout(
            tp=self.tensor,
            pp=self.pipeline,
            dp=self.data,
            cp=self.cp,
            ep=self.ep,
            etp=self.etp or 0,
            vpp=self.vpp,
            microbatch=self.microbatch,
            zero=self.zero,
            hsdp=self.hsdp,
            sp=self.sp,
            recompute="none" if self.recompute == "none" else "optimal",
            schedule=self.schedule,
        )

    @derived_key
    def recompute(self) -> str:
        """Recomputation of the stages in one phrase."""
        return "; ".join(dict.fromkeys(stage.recompute for stage in self.stages))

    @property
    def recompute_share(self) -> float:
        """Seconds of recomputation per second of other computation, over all stages."""
        busy_s = sum(stage.compute_s for stage in self.stages)
        return sum(stage.recompute_s for stage in self.stages) / busy_s if busy_s else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedProduct:
    """How matrix products of m x k by k x n run on tensor cores (`cost.gemm_kernels`)."""

    batch: Degree
    m: Degree
    n: Degree
    k: Degree
    streamed: Literal["m", "n"]
    """The dimension that streams past resident tiles, "rows" below; the other has the "columns"."""
    cores_batch: Degree
    cores_rows: Degree
    cores_columns: Degree
    """Tensor cores that share the batch, the rows and the columns."""
    chunk_rows: Degree
    """Rows that a core streams past one resident tile."""
    k_parts: Count
    tiles_rows: Count
    tiles_columns: Count
    """Tiles in the shared buffer; 0 where operands stay on the chip."""
    resident: Literal["streamed panel", "resting panel", "output tile"]
    """What stays in the shared buffer while the rest passes through."""
    buffer_bytes: Amount
    """Bytes of the shared buffer that the product may use."""
    cycles: Amount
    """Clock cycles of the arrays, before any stall."""
    hbm_bytes: Amount
    glb_bytes: Amount
    utilisation: Amount
    """Multiply-adds over those that the cores in use could do in these cycles."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledOperator:
    name: str
    core: str
    start_s: Amount
    duration_s: Amount
    tensor_cores: Count
    vector_cores: Count
    limit: str
    """Limiting resource: tensor, vector, hbm, glb or link."""
    flops: Amount = 0
    moved_bytes: Amount = 0
    """HBM bytes, each tensor once; link bytes if `core` is `link`."""
    products: tuple[MappedProduct, ...] = ()
    """Mappings of its matrix products; empty under a cost model that names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerPass:
    """The schedule of one pass of a kind of layer on a chip, with its proof."""

    layer: str
    repeat: Count
    pass_: Annotated[str, Field(alias="pass")]
    makespan_s: Amount
    lower_bound_s: Amount
    gap: Number
    bound: str
    operators: tuple[ScheduledOperator, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedModel:
    """One model on one chip, or on a wafer."""

    model: str
    samples_per_s: Positive
    tokens_per_s_per_device: Positive
    mfu: Amount
    placement: PlacementAnswer
    power_W: Amount
    energy_per_token_J: Amount
    microbatch: Degree
    recompute: str
    replay_difference: Number
    """The pipeline replayed event by event, against the model's step: relative."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedModel(PlacedModel):
    energy_parts_J: Mapping[str, Amount]
    layers: tuple[LayerPass, ...]
    """Schedules per layer; empty for runners-up."""

    @property
    def power_wait(self) -> float:
        """Share of the passes' time that they wait for a limit on power."""
        busy_s = sum(entry.repeat * entry.makespan_s for entry in self.layers)
        compute_s = sum(stage.compute_s for stage in self.placement.stages)
        return max(0.0, 1.0 - busy_s / compute_s) if self.layers and compute_s else 0.0

    def summary(self, capacity_bytes: float, out_of_memory: float | None) -> list[tuple[str, str]]:
        """Return what to run, step time and memory, as lines of (label, text); `out_of_memory`:
        chance of running out of memory where that is tight.
        """
        where = self.placement
        most_bytes = max(stage.total_memory_bytes for stage in where.stages)
        fits = format_fit(capacity_bytes - most_bytes, capacity_bytes, out_of_memory)
        rate = self.tokens_per_s_per_device
        batch = counted(round(self.samples_per_s * where.step_time_s), "sequence")
        tokens = round(rate * where.devices / self.samples_per_s)
        recomputed = f" ({where.recompute})" if where.recompute != "none" else ""
        return [
            (
                "Run",
                f"{self.model} on {counted(where.devices, 'chip')}: {where.layout}{recomputed}; "
                f"{batch} of {tokens:,} tokens in a step",
            ),
            (
                "Step",
                f"{format_seconds(where.step_time_s)}, {self.samples_per_s:,.1f} samples/s, "
                f"{rate * where.devices:,.0f} tokens/s ({rate:,.0f} per chip), "
                f"MFU {format_mfu(self.mfu)}",
            ),
            (
                "Memory",
                f"{format_bytes(most_bytes)} needed of {format_bytes(capacity_bytes)}: {fits}",
            ),
        ]


@dataclass(frozen=True, slots=True)
class TableStage:
    nodes: tuple[int, ...]  # layer ids, in topological order
    devices: int
    load_s: float  # forward and backward of one microbatch, with transfers and recomputation
    memory_bytes: float  # on each device


@dataclass(frozen=True)
class TablePlan(Answer):
    """The optimal placement; without stages and with None throughout if nothing fits."""

    time_per_batch_s: float | None
    tensor_parallel: int | None
    data_parallel: int | None
    stages: tuple[TableStage, ...]
    per_width_s: Mapping[int, float | None]
    kind: Literal["place"] = "place"
    format: Literal[1] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAnswer:
    """What a pod does."""

    device: str
    devices: Count
    network: str
    used: bool
    microbatch: Count
    blocks: tuple[Count, ...]
    """Blocks per stage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodAlone:
    """The best that one pod can do, or why it can do nothing."""

    device: str
    devices: Count
    step_time_s: Positive | None = None
    layout: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedStage:
    """One stage on the devices of its pod."""

    pod: Count
    stage: Count
    blocks: Count
    microbatch_s: Amount
    recompute: str
    needed_bytes: Amount
    capacity_bytes: Amount
    memory_bytes: Mapping[str, Amount]


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedAnswer(Answer):
    """The fastest layout on pods that differ, with the proof."""

    kind: Literal["mixed-plan"] = "mixed-plan"
    format: Literal[1] = 1
    notes: tuple[str, ...] = ()
    """What to know before the figures are believed."""
    model: str
    sequence: Count
    global_batch: Count
    stack: str
    precision: str
    given: str
    """Assumptions, in words."""
    pods: tuple[PodAnswer, ...]
    by: Literal["alone", "stages", "replicas"]
    """One pod alone, stages of one pipeline across pods, or replicas in each of them."""
    order: tuple[Count, ...]
    """Numbers of the pods, as ranks go through them."""
    layout: PlannedLayout
    """Over all devices of these pods."""
    layout_words: str
    step_time_s: Positive
    tokens_per_s: Amount
    breakdown_s: Mapping[str, Number]
    """Step by cause; with replicas in several pods, of the slowest."""
    replay_difference: Number
    """The step over the replay of its passes, less one."""
    crossing: str
    """Where the link between the pods is crossed."""
    bottleneck: str
    stages: tuple[MixedStage, ...]
    runners_up: tuple[tuple[str, str, Number], ...]
    """Layout, how it uses the pods, and how much slower it is."""
    alone: tuple[PodAlone, ...]
    stopped: str
    excluded: tuple[str, ...]
    certificate: Proof
