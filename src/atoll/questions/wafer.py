"""The question of `atoll search --wafer`: the best mapping of a model on one wafer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from atoll.files.yamlfile import Count, FileModel
from atoll.questions import fields as f
from atoll.questions.fields import TRAINED, WAFER, Counts, NonNegative
from atoll.questions.question import Question, Several, option

Size = Annotated[int, Field(ge=1)]
Place = tuple[NonNegative, NonNegative]
WaferName = Annotated[
    str, f.named_file("atoll.hardware.wafer_files:", "load_wafers", "wafer_names")
]
Ablation = Literal[
    "no-recompute", "one-axis", "volume-only", "no-streaming", "no-zero-bubble", "no-offload",
    "shared-codes",
]  # fmt: skip


class WaferLayout(FileModel):
    """Equal stages in a snake over the wafer: columns and rows of each, how many, microbatch."""

    rectangle: tuple[Size, Size]
    stages: Count
    microbatch: Count = 1


class WaferQuestion(Question):
    """The best mapping of a model on a wafer, or on the best wafer of a space, with its bound."""

    kind: Literal["wafer"] = "wafer"
    model: f.ModelName = option(f.MODEL_HELP, TRAINED, "llama2-70b")
    batch: f.Batch = 128
    sequence: f.Sequence = None
    optimizer: f.OptimizerName = option("Optimizer states and their precision.", TRAINED, "mixed")
    wafer: WaferName = option(
        "A wafer, or a space of wafers, instead of devices: name or file.", WAFER, "default",
        shown="none, but default with options of this group",
    )  # fmt: skip
    microbatch: f.Microbatches = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
    stage_shapes: tuple[tuple[Size, Size], ...] = option(
        "Allowed columns and rows of a stage.", WAFER, (), shown="all", file_only=True
    )
    stage_counts: Counts = option("Allowed numbers of pipeline stages.", WAFER, (), shown="all")
    mapping: f.FileName | None = option(
        "mapping.json: the mapping to estimate, or a start for a search.", WAFER, None
    )
    layout: WaferLayout | None = option(
        "Only the stages of a mapping: the codes of blocks are solved.", WAFER, None,
        file_only=True,
    )  # fmt: skip
    ablations: Annotated[tuple[Ablation, ...], Several] = option(
        "Parts of the space to leave out.", WAFER, ()
    )
    dead_dies: tuple[Place, ...] = option(
        "Columns and rows of dead dies.", WAFER, (), file_only=True
    )
    dead_links: tuple[tuple[Place, Place], ...] = option(
        "Dead links, each by the two dies.", WAFER, (), file_only=True
    )
    dead_share: f.Part | None = option(
        "Share of dead dies of sampled wafers.", WAFER, None, shown="the wafer's"
    )
    samples: NonNegative = option("Wafers with dead dies to sample.", WAFER, 0)
    explain: bool = option(
        "Say what more of each resource would be worth.", WAFER, False, file_only=True
    )
    time_limit: f.TimeLimit = 3600.0
    pareto: f.Pareto = False
    baselines: f.Baselines = True
    seed: f.Seed = 0
    workers: f.Workers = None
    cluster: f.Cluster = None
    out: f.OutFolder = None
    trace: f.Trace = None

    example = "atoll search --wafer default --model llama2-70b"
    answer_keys: ClassVar[Mapping[str, str]] = {
        "microbatch": "microbatches", "time_limit": "time_limit_s",
    }  # fmt: skip

    @model_validator(mode="after")
    def _check_single_start(self) -> Self:
        if self.mapping is not None and self.layout is not None:
            raise ValueError("mapping: give a mapping file or a layout, not both")
        return self

    @property
    def restricted(self) -> bool:
        """Whether stage shapes or counts are restricted."""
        return bool(self.stage_shapes or self.stage_counts)


class MappingQuestion(WaferQuestion):
    """What one mapping on a wafer costs. Job files say it like a search."""

    offered = ("wafer", "mapping")
    example = "atoll estimate --wafer default --mapping runs/mine/mapping.json"
