"""A wafer job: wafer, model, batch, and what the search may use; as a file or as keywords."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from pydantic import Field, create_model

from atoll.errors import AtollError
from atoll.step.states import load_states
from atoll.wafer.costs.tables import OPTIMIZER
from atoll.wafer.encoding.block import make_block
from atoll.wafer.encoding.mapping import read_mapping
from atoll.wafer.search import MICROBATCHES
from atoll.wafer.stages import Options
from atoll.workload import load_config
from atoll.yamlfile import Count, FileModel, load_yaml

Size = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Place = tuple[Whole, Whole]


class Layout(FileModel):
    """Equal stages in a snake over the wafer: columns and rows of each, how many, microbatch."""

    rectangle: tuple[Size, Size]
    stages: Count
    microbatch: Count = 1


ABLATIONS = ("no-recompute", "one-axis", "volume-only", "no-streaming", "no-zero-bubble",
             "no-offload", "shared-codes")  # fmt: skip


@dataclass(frozen=True)
class WaferJob:
    """Everything that a search on a wafer needs to know."""

    wafer: str = "default"
    model: str = "llama2-70b"
    batch: Count = 128
    sequence: Count | None = None
    optimizer: str = OPTIMIZER
    """Name of its states: bytes a parameter of weights, gradients and optimizer."""
    microbatches: tuple[Count, ...] = MICROBATCHES
    ablations: tuple[str, ...] = ()
    dead_dies: tuple[Place, ...] = ()
    dead_links: tuple[tuple[Place, Place], ...] = ()
    dead_share: float | None = None
    """Sample wafers with this share of dead dies, beside the answer for the whole one."""
    samples: Whole = 0
    pareto: bool = False
    baselines: bool = True
    seed: Whole = 0
    mapping: str | None = None
    """File of a mapping: what `atoll estimate` prices, and a start for `atoll search`."""
    layout: Layout | None = None
    """The same with only the stages given: the exact part fills in each stage's block."""
    stage_shapes: tuple[tuple[Size, Size], ...] = ()
    """Columns and rows of a stage's rectangle: only these are tried (none: all)."""
    stage_counts: tuple[Count, ...] = ()
    """Numbers of pipeline stages: only these are tried (none: all)."""
    explain: bool = False
    """Say what a little more of each resource would be worth."""

    def __post_init__(self) -> None:
        for name in ("batch", "sequence"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise AtollError(f"job: {name}: expected a positive whole number, got {value}.")
        for name in self.ablations:
            if name not in ABLATIONS:
                raise AtollError(
                    f"job: ablations: allowed are {', '.join(ABLATIONS)}; got {name!r}."
                )
        if self.dead_share is not None and not 0.0 <= self.dead_share < 1.0:
            raise AtollError(
                f"job: dead_share: expected at least 0 and less than 1, got {self.dead_share}."
            )
        if self.mapping is not None and self.layout is not None:
            raise AtollError("job: mapping: give a mapping file or a layout, not both.")
        if not self.microbatches or min(self.microbatches) < 1:
            raise AtollError("job: microbatches: expected positive whole numbers.")
        if any(min(shape) < 1 for shape in self.stage_shapes):
            raise AtollError("job: stage_shapes: expected positive columns and rows.")
        if any(count < 1 for count in self.stage_counts):
            raise AtollError("job: stage_counts: expected positive whole numbers.")
        load_states(self.optimizer)
        load_config(self.model)
        make_block(self.model, 1, self.sequence)

    @property
    def options(self) -> Options:
        return Options(
            streaming="no-streaming" not in self.ablations,
            recompute="no-recompute" not in self.ablations,
            offload="no-offload" not in self.ablations,
            passes="shared-codes" not in self.ablations,
            one_axis="one-axis" in self.ablations,
            volume_only="volume-only" in self.ablations,
            zero_bubble="no-zero-bubble" not in self.ablations,
            states=load_states(self.optimizer),
        )

    @property
    def restricted(self) -> bool:
        """Whether only some stages may be tried."""
        return bool(self.stage_shapes or self.stage_counts)

    @property
    def tokens(self) -> int:
        return make_block(self.model, 1, self.sequence).sequence

    def to_dict(self) -> dict[str, Any]:
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self)}


def _plain(value: Any) -> Any:
    if isinstance(value, Layout):
        return value.model_dump(mode="json")
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


_OPTIONAL: Any = {
    name: (hint | None, None)
    for name, hint in get_type_hints(WaferJob, include_extras=True).items()
} | {"wafer": (str, ...), "global_batch": (Count | None, None)}
WaferJobFile = create_model("WaferJobFile", __base__=FileModel, **_OPTIONAL)
"""A job file with a `wafer`; every other field of the job is optional, `global_batch` its batch."""


def is_wafer_job(path: str | Path) -> bool:
    """Whether a job file names a wafer, so that it is ours to read."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return False
    return any(line.split(":")[0] == "wafer" for line in text.splitlines())


def load_wafer_job(path: str | Path) -> WaferJob:
    """The job in a YAML file. Files that it names are looked up beside it."""
    where = Path(path)
    file = load_yaml(where, WaferJobFile)
    given = {
        name: value
        for name in WaferJobFile.model_fields
        if (value := getattr(file, name)) is not None
    }
    if "global_batch" in given:
        given["batch"] = given.pop("global_batch")
    for name in ("wafer", "model", "mapping"):
        if name in given:
            candidate = where.parent / given[name]
            there = os.path.exists(candidate)  # noqa: PTH110  (no raise)
            given[name] = str(candidate) if there else given[name]
    if "mapping" in given:
        mapping = read_mapping(given["mapping"])
        names = ("model", "batch", "sequence", "optimizer")
        given = {name: getattr(mapping, name) for name in names} | given
    try:
        return WaferJob(**given)
    except AtollError as error:
        raise AtollError(f"{path}: {str(error).removeprefix('job: ')}") from None
