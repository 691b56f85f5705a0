"""The question of `atoll search`: the best chip for training runs, its schedules and layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    AliasChoices,
    BeforeValidator,
    Field,
    JsonValue,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from atoll.base import units
from atoll.base.registry import import_named
from atoll.files.yamlfile import MOST_BYTES, Count, FileModel
from atoll.questions import fields as f
from atoll.questions.fields import ADVANCED, CHIPS, LAYOUT, SEARCH, TRAINED, AtLeastOne, Counts
from atoll.questions.question import Area, Density, Named, Power, Question, Several, locate, option

LEAST_HBM_BYTES = 2**20
"""Smaller values lack a unit."""


# Built at once: pydantic before 2.14 cannot write a deferred default to a schema.
class ModelEntry(FileModel, defer_build=False):
    """One model to train, where there are several; what is not given is the question's."""

    name: f.ModelName
    weight: Annotated[float, Field(gt=0)] = 1.0
    batch: Annotated[
        Count | None,
        Field(validation_alias=AliasChoices("batch", "global_batch"),
              serialization_alias="global_batch"),
    ] = None  # fmt: skip
    sequence: Count | None = None


def _entries(value: Any) -> Any:
    entries = value if isinstance(value, list | tuple) else (value,)
    return tuple({"name": entry} if isinstance(entry, str) else entry for entry in entries)


def _capacity(value: Any) -> int:
    """Parse a memory size; plain small numbers are refused."""
    plain = isinstance(value, int) or str(value).strip().isdecimal()
    size = units.parse_bytes(f"{value} B" if plain else value)
    if size < LEAST_HBM_BYTES:
        raise ValueError(f'{size:,} bytes hold no model; did you mean "{size:g} GiB"?')
    return size


Capacity = Annotated[
    int, BeforeValidator(_capacity), Field(le=MOST_BYTES),
    WithJsonSchema({"type": ["string", "integer"], "examples": ["80 GiB"]}),
]  # fmt: skip
Precision = Literal["bf16", "fp8", "nvfp4"]
DEFAULT_MODELS = (ModelEntry.model_construct(name="llama2-7b", weight=1.0),)


class SearchQuestion(Question):
    """Find the best chip, schedule and placement for a model, with proof.

    Without arguments: Llama-2 7B on 1,024 devices, over chips of 7 nm up to 600 mm2 and 400 W.
    Ctrl-C prints the best design so far with its proven gap (exit code 130).
    """

    kind: Literal["chips"] = "chips"
    from_: f.FileName | None = option(
        "Run that the chip must make twice as fast: folder or JSON of plan, estimate or check, "
        "which gives model, devices, batch and software losses.",
        TRAINED, None, shown="none", exclude=True,
    )  # fmt: skip
    model: Annotated[tuple[ModelEntry, ...], BeforeValidator(_entries), AtLeastOne] = option(
        f.MODEL_HELP, TRAINED, DEFAULT_MODELS, old=("models",)
    )
    devices: f.Devices = 1024
    batch: f.Batch = 4096
    batch_tokens: f.BatchTokens = None
    sequence: f.Sequence = None
    optimizer: f.OptimizerName | None = option(
        "Optimizer states and their precision.", TRAINED, None, shown="the profile's"
    )
    precision: Precision = option(
        "Precision of linear layers; cells compute two fp8 or four nvfp4 products at a time.",
        TRAINED,
        "bf16",
    )
    objective: Annotated[str, Named("atoll.explore.proof.objective:AIMS")] = option(
        "Objective over several models.", TRAINED, "mean"
    )
    per: Annotated[str, Named("atoll.explore.pricing.price:PERS")] | None = option(
        "Maximise throughput per dollar, per watt or per total cost of ownership.",
        TRAINED, None, shown="throughput alone",
    )  # fmt: skip
    years: f.Price | None = option("Years of use, for tco.", ADVANCED, None, shown="5")
    kwh_price: f.Price | None = option("Dollars per kWh, for tco.", ADVANCED, None, shown="0.08")
    pue: f.Price | None = option(
        "Power of the site divided by that of its machines, for tco.", ADVANCED, None, shown="1.2"
    )
    network_price: f.Price | None = option(
        "Dollars of network per device, for tco.", ADVANCED, None, shown="2,000"
    )
    microbatch: f.Microbatches = (1, 2, 4, 8, 16)
    tp: Annotated[Counts, AtLeastOne] = option(
        "Tensor parallel degrees.", LAYOUT, (1, 2, 4, 8), old=("tensor_widths", "tensor")
    )
    cp: Counts = option("Context parallel degrees.", LAYOUT, (), shown="1, 2; long sequences: to 8")
    ep: Counts = option("Expert parallel degrees.", LAYOUT, (), shown="powers of 2, all experts")
    etp: Counts = option("Tensor-parallel degrees of the experts.", LAYOUT, (), shown="tp")
    vpp: Counts = option("Model chunks per stage.", LAYOUT, (), shown="those of equal size")
    hsdp: Counts = option(
        "Replicas of the group that ZeRO divides over.", LAYOUT, (), shown="1; complete nodes"
    )
    sp: bool | None = option(
        "Sequence parallelism.", LAYOUT, None, shown="both where tp is above 1"
    )
    zero: f.ZeroStages = option("ZeRO stages.", LAYOUT, (), shown="0, 1, 2, 3")
    order: f.OrderNames = option("Pipeline orders.", LAYOUT, (), shown="all but gpipe")
    recompute: Annotated[str, Named("atoll.placement.facts:RECOMPUTE")] = option(
        "What is recomputed; optimal: chosen per operator.", LAYOUT, "optimal"
    )
    space: f.FileName | None = option(
        "phaze (29,360 chips), or a space file (YAML).", CHIPS, None, shown="the template's"
    )
    template: Annotated[str, Named("atoll.hardware.silicon.systolic:TEMPLATES")] | None = option(
        "Chip template, with its own values or those of a space file.",
        CHIPS,
        None,
        shown="physical-7nm",
    )
    hbm: Annotated[tuple[Capacity, ...], Several] = option(
        'HBM capacities, "80 GiB".', CHIPS, (), shown="all of the space"
    )
    max_area: Area | None = option(
        'Largest area, "280 mm2".', CHIPS, None, shown="600 mm2 for physical templates"
    )
    max_power: Power | None = option(
        'Largest power, "250 W".', CHIPS, None, shown="400 W for physical templates"
    )
    cooling: Density | None = option(
        'Largest power per die area, "0.8 W/mm2".', CHIPS, None, shown="none"
    )
    power: Literal["rated", "sustained"] = option(
        "What max_power and cooling limit: all parts busy (rated), or each pass, which slows down "
        "if necessary (sustained).",
        CHIPS, "rated",
    )  # fmt: skip
    network: f.NetworkName | None = option(
        "Network of the catalogue, a file, or links: torus@300GB/s, switch-64@450GB/s.",
        CHIPS,
        None,
        shown="the profile's",
    )
    profile: f.ProfileName = option(
        "Assumptions: modelled bandwidths and memory, or those of the PHAZE paper.",
        ADVANCED,
        "default",
    )
    cost_model: Annotated[str, Named("atoll.cost.model:COST_MODELS")] | None = option(
        "Cost model of matrix products.", ADVANCED, None, shown="the profile's"
    )
    strategy: Annotated[str, Named("atoll.explore.strategies:STRATEGIES")] = option(
        "Search with proof, by PHAZE's rule, or by evolution.", ADVANCED, "exact"
    )
    evaluations: Count = option("Designs that evolution evaluates.", ADVANCED, 2000)
    tolerance: f.Part = option("Gap that counts as optimal.", ADVANCED, 1e-3)
    time_limit: f.TimeLimit = 3600.0
    pareto: f.Pareto = False
    robust: f.NonNegative = option(
        "Random draws of the physical constants to test the answer with (20, for example).",
        SEARCH, 0, shown="none",
    )  # fmt: skip
    baselines: f.Baselines = True
    beside: f.DeviceNames = option(
        "Existing devices to compare with: names or files.", SEARCH, (), exclude=True
    )
    seed: f.Seed = 0
    workers: f.Workers = None
    cluster: f.Cluster = None
    sweep: f.Sweep = ()
    out: f.OutFolder = None
    trace: f.Trace = None

    example = "atoll search --model llama3-8b --devices 256 --max-area '400 mm2'"
    answer_keys: ClassVar[Mapping[str, str]] = {
        "model": "models", "batch": "global_batch", "microbatch": "microbatches",
        "tp": "tensor_widths", "hbm": "hbm_capacities_bytes", "max_area": "max_area_mm2",
        "max_power": "max_power_W", "cooling": "cooling_W_per_mm2", "time_limit": "time_limit_s",
    }  # fmt: skip

    @model_validator(mode="before")
    @classmethod
    def _apply_followed_run(cls, fields: Any, info: ValidationInfo) -> Any:
        """Fill fields that are not set from the answer of the run in `from_`."""
        if not isinstance(fields, dict) or fields.get("from_") is None:
            return fields
        file = locate(str(fields["from_"]), info)
        return import_named("atoll.explore.explain.next_chip:completed")({**fields, "from_": file})

    @model_validator(mode="before")
    @classmethod
    def _batch_of_tokens(cls, fields: Any, info: ValidationInfo) -> Any:
        return f.with_batch_of_tokens(fields, info, DEFAULT_MODELS[0].name)

    @property
    def models(self) -> tuple[ModelEntry, ...]:
        """The models, each with its sequence if one is set."""
        default = self.sequence
        return tuple(e.model_copy(update={"sequence": e.sequence or default}) for e in self.model)

    def changed(self, **fields: Any) -> Self:
        if "sequence" in fields and "model" not in fields:
            fields["model"] = tuple(e.model_copy(update={"sequence": None}) for e in self.model)
        return super().changed(**fields)

    def to_dict(self) -> dict[str, JsonValue]:
        models: list[JsonValue] = [entry.model_dump(by_alias=True) for entry in self.models]
        return super().to_dict() | {"models": models}
