"""The question of `atoll search --wafer`: the best mapping of a model on one wafer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from atoll.questions import fields as f
from atoll.questions.fields import AnyCounts
from atoll.questions.question import Named, Question, Several, option
from atoll.yamlfile import Count, FileModel

Size = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Place = tuple[Whole, Whole]


class WaferLayout(FileModel):
    """Equal stages in a snake over the wafer: columns and rows of each, how many, microbatch."""

    rectangle: tuple[Size, Size]
    stages: Count
    microbatch: Count = 1


class WaferQuestion(Question):
    """The best mapping of a model on a wafer, or on the best wafer of a space, with its bound."""

    kind: Literal["wafer"] = "wafer"
    model: Annotated[
        Annotated[str, Named(loader="atoll.workload:load_config", file=True)],
        option("Zoo name, config.json, folder or cached id.", f.TRAINED),
    ] = "llama2-70b"
    batch: f.Batch = 128
    sequence: f.Sequence = None
    optimizer: Annotated[f.Optimizer, option("Bytes of its states.", f.TRAINED)] = "mixed"
    wafer: Annotated[
        Annotated[
            str,
            Named(loader="atoll.hardware.wafer_files:load_wafers", file=True),
        ],
        option("A wafer, or a space of wafers, instead of devices: name or file.", f.WAFER,
               shown="none, but default with options of this group"),
    ] = "default"  # fmt: skip
    microbatch: f.Microbatches = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
    stage_shapes: Annotated[
        tuple[tuple[Size, Size], ...],
        option("Columns and rows of a stage: only these are tried.", f.WAFER, shown="all",
               file_only=True),
    ] = ()  # fmt: skip
    stage_counts: Annotated[
        AnyCounts, option("Numbers of pipeline stages: only these.", f.WAFER, shown="all")
    ] = ()
    mapping: Annotated[
        Annotated[str, Named(file=True)] | None,
        option("mapping.json: what an estimate prices, a start for a search.", f.WAFER),
    ] = None
    layout: Annotated[
        WaferLayout | None,
        option("The same with only the stages given: the exact part fills in the blocks.", f.WAFER,
               file_only=True),
    ] = None  # fmt: skip
    ablations: Annotated[
        tuple[
            Literal["no-recompute", "one-axis", "volume-only", "no-streaming", "no-zero-bubble",
                    "no-offload", "shared-codes"], ...
        ],
        Several, option("Parts of the space to leave out.", f.WAFER),
    ] = ()  # fmt: skip
    dead_dies: Annotated[
        tuple[Place, ...], option("Columns and rows of dead dies.", f.WAFER, file_only=True)
    ] = ()
    dead_links: Annotated[
        tuple[tuple[Place, Place], ...],
        option("Dead links, each by the two dies.", f.WAFER, file_only=True),
    ] = ()
    dead_share: Annotated[
        Annotated[float, Field(ge=0, lt=1)] | None,
        option("Share of dead dies of sampled wafers.", f.WAFER, shown="the wafer's"),
    ] = None
    samples: Annotated[Whole, option("Wafers with dead dies to sample.", f.WAFER)] = 0
    explain: Annotated[
        bool, option("Say what more of each resource would be worth.", f.WAFER)
    ] = False
    pareto: f.Pareto = False
    baselines: f.Baselines = True
    seed: f.Seed = 0
    out: f.Out = None
    trace: f.Trace = None

    example: ClassVar[str] = "atoll search --wafer default --model llama2-70b"
    answer_keys: ClassVar[Mapping[str, str]] = {"microbatch": "microbatches"}

    @model_validator(mode="after")
    def _one_start(self) -> Self:
        if self.mapping is not None and self.layout is not None:
            raise ValueError("mapping: give a mapping file or a layout, not both")
        return self

    @property
    def restricted(self) -> bool:
        """Whether only some stages may be tried."""
        return bool(self.stage_shapes or self.stage_counts)


class MappingQuestion(WaferQuestion):
    """What one mapping on a wafer costs. Job files say it like a search."""

    offered: ClassVar[tuple[str, ...]] = ("wafer", "mapping")
    example: ClassVar[str] = "atoll estimate --wafer default --mapping runs/mine/mapping.json"
