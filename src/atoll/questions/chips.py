"""The question of `atoll search`: the best chip for training runs, its schedules and layout."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AliasChoices, BeforeValidator, Field, WithJsonSchema

from atoll import units
from atoll.questions import fields as f
from atoll.questions.fields import Counts
from atoll.questions.question import Area, Named, Power, Question, Seconds, Several, option
from atoll.yamlfile import MOST_BYTES, Count, FileModel

DEFAULT_MODEL = "llama2-7b"
LEAST_HBM_BYTES = 2**20
"""Less is a number whose unit was forgotten."""


class ModelEntry(FileModel):
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
    listed = value if isinstance(value, list | tuple) else (value,)
    return tuple({"name": entry} if isinstance(entry, str) else entry for entry in listed)


def _capacity(value: Any) -> int:
    """A memory's size; nobody who writes 80 means bytes."""
    plain = isinstance(value, int) or str(value).strip().isdecimal()
    size = units.parse_bytes(f"{value} B" if plain else value)
    if size < LEAST_HBM_BYTES:
        raise ValueError(f'{size:,} bytes hold no model; did you mean "{size:g} GiB"?')
    return size


Capacity = Annotated[
    int, BeforeValidator(_capacity), Field(le=MOST_BYTES),
    WithJsonSchema({"type": ["string", "integer"], "examples": ["80 GiB"]}),
]  # fmt: skip


class SearchQuestion(Question):
    """Find the best chip, schedule and placement for a model, with proof.

    Without arguments: Llama-2 7B on 1,024 devices over PHAZE's 29,360 chips. Ctrl-C prints the
    best design so far with its proven gap (exit code 130).
    """

    kind: Literal["chips"] = "chips"
    model: Annotated[
        tuple[ModelEntry, ...], BeforeValidator(_entries), Field(min_length=1),
        option(
            "Zoo name, config.json, captured model, folder or cached id.", f.TRAINED,
            old=("models",),
        ),
    ] = (ModelEntry.model_construct(name=DEFAULT_MODEL, weight=1.0),)  # fmt: skip
    devices: f.Devices = 1024
    batch: f.Batch = 4096
    sequence: f.Sequence = None
    optimizer: Annotated[
        f.Optimizer | None, option("Bytes of its states.", f.TRAINED, shown="the profile's")
    ] = None
    objective: Annotated[
        Annotated[str, Named("atoll.explore.objective:KINDS")],
        option("What several models count together.", f.TRAINED),
    ] = "mean"
    microbatch: f.Microbatches = (1, 2, 4, 8, 16)
    tp: Annotated[
        Counts,
        option("Tensor parallel degrees.", f.LAYOUT, old=("tensor_widths", "tensor")),
    ] = (1, 2, 4, 8)
    zero: Annotated[
        tuple[Annotated[int, Named("atoll.placement.chain:ZERO")], ...], Several,
        Field(min_length=1), option("ZeRO stages.", f.LAYOUT),
    ] = (0, 1)  # fmt: skip
    recompute: Annotated[
        Annotated[str, Named("atoll.placement.chain:RECOMPUTE")],
        option("What is computed again; optimal: by operator.", f.LAYOUT),
    ] = "optimal"
    space: Annotated[
        Annotated[str, Named(file=True)],
        option("phaze (29,360 chips), or a space file (YAML).", f.CHIPS),
    ] = "phaze"
    hbm: Annotated[
        tuple[Capacity, ...], Several,
        option('HBM capacities, "80 GiB".', f.CHIPS, shown="all of the space"),
    ] = ()  # fmt: skip
    max_area: Annotated[Area | None, option('Largest area, "280 mm2".', f.CHIPS)] = None
    max_power: Annotated[Power | None, option('Largest peak power, "250 W".', f.CHIPS)] = None
    network: Annotated[
        f.NetworkName | None,
        option("Network of the catalogue or a file.", f.CHIPS, shown="the profile's"),
    ] = None
    profile: Annotated[
        Annotated[str, Named("atoll.profiles:PROFILES")],
        option("Assumptions: physically honest, or as PHAZE published.", f.CHIPS),
    ] = "default"
    strategy: Annotated[
        Literal["exact", "phaze", "evolve"],
        option("With proof, by PHAZE's rule, or by evolution.", f.SEARCH),
    ] = "exact"
    evaluations: Annotated[Count, option("Designs that evolve looks at.", f.SEARCH)] = 2000
    tolerance: Annotated[
        float, Field(ge=0, lt=1), option("Gap that counts as optimal.", f.SEARCH)
    ] = 1e-3
    time_limit: Annotated[
        Seconds, option('Stop after "10 min".', f.SEARCH, shown="1 h")
    ] = 3600.0
    pareto: f.Pareto = False
    baselines: f.Baselines = True
    beside: Annotated[
        tuple[f.DeviceName, ...], Several,
        option("Devices to plan for the same job, or files.", f.SEARCH, exclude=True),
    ] = ()  # fmt: skip
    seed: f.Seed = 0
    workers: Annotated[
        Annotated[int, Field(ge=0)] | None,
        option("Local processes; 0: this one alone.", f.SEARCH, shown="as the work needs",
               exclude=True),
    ] = None  # fmt: skip
    cluster: Annotated[
        str | None, option("Dask: tcp://host:8786, or local:4.", f.SEARCH, exclude=True)
    ] = None
    out: Annotated[
        Path | None,
        option("Keep all in this folder; started again, the search continues.", f.OUTPUT,
               exclude=True),
    ] = None  # fmt: skip
    trace: f.Trace = None

    example: ClassVar[str] = "atoll search --model llama3-8b --devices 256 --max-area '400 mm2'"
    answer_keys: ClassVar[Mapping[str, str]] = {
        "model": "models", "batch": "global_batch", "microbatch": "microbatches",
        "tp": "tensor_widths", "hbm": "hbm_capacities_bytes", "max_area": "max_area_mm2",
        "max_power": "max_power_W", "time_limit": "time_limit_s",
    }  # fmt: skip

    @property
    def models(self) -> tuple[ModelEntry, ...]:
        """The models, each with its sequence where one is told."""
        return tuple(
            entry.model_copy(update={"sequence": entry.sequence or self.sequence})
            for entry in self.model
        )

    def changed(self, **fields: Any) -> Self:
        """As for every question; a sequence that is given anew holds for every model."""
        if "sequence" in fields and "model" not in fields:
            own = (entry.model_copy(update={"sequence": None}) for entry in self.model)
            fields["model"] = tuple(own)
        return super().changed(**fields)

    def to_dict(self) -> dict[str, Any]:
        models = [entry.model_dump(by_alias=True) for entry in self.models]
        return super().to_dict() | {"models": models}
