"""The operator-centric encoding: the variables of a training step's mapping on a wafer.

Global variables: microbatch, pipeline schedule, and default collectives (streamed or not,
algorithm). Per pipeline stage: the rectangle of dies, the digit system on it, the number of layers,
the helper whose memory it may use, a code for the head, and the block's variables: the stream's
layout; for every operator a code (split of every loop dimension, order on the mesh axes) for each
of its passes and its collectives; a home for every weight; and a fate for every saved tensor: keep,
recompute, or offload to the helper.

`validate` reports broken rules. Mappings are saved as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from atoll.answers.wafer import DigitsFile, MappingFile, OperatorFile, StageFile
from atoll.base.errors import AtollError
from atoll.fabric.digits import Digits
from atoll.fabric.mesh import ALGORITHMS, Die, Rectangle
from atoll.files.jsonfile import read_object
from atoll.files.yamlfile import validate_dict
from atoll.step.states import load_states
from atoll.wafer.encoding.block import make_block
from atoll.wafer.encoding.block_parts import (
    FATES,
    HOMES,
    KEEP,
    OFFLOAD,
    OPTIMIZER,
    RECOMPUTE,
    SCHEDULE_1F1B,
    SCHEDULES,
    BlockMapping,
    WaferBlock,
)
from atoll.wafer.encoding.codes import legal
from atoll.workload.families.model_config import ModelConfig


@dataclass(frozen=True)
class StageMapping:
    """One pipeline stage."""

    rectangle: Rectangle
    digits: Digits
    layers: int
    block: BlockMapping
    head: str
    """Code of the output head, if the stage has it."""
    helper: int | None = None
    """The stage whose memory stores offloaded tensors."""


@dataclass(frozen=True)
class WaferMapping:
    """A training step on a wafer."""

    model: str | ModelConfig
    batch: int
    microbatch: int
    sequence: int
    stages: tuple[StageMapping, ...]
    streaming: bool = True
    algorithm: str = "auto"
    schedule: str = SCHEDULE_1F1B
    """Pipeline schedule: 1f1b, or zb-h1 (weight passes fill bubbles)."""
    optimizer: str = OPTIMIZER
    """Name of the optimizer's states."""

    @property
    def microbatches(self) -> int:
        return -(-self.batch // self.microbatch)

    @property
    def dies(self) -> list[Die]:
        return [die for stage in self.stages for die in stage.rectangle.dies()]

    def blocks(self) -> WaferBlock:
        return make_block(self.model, self.microbatch, self.sequence)

    def file(self) -> MappingFile:
        """Return the mapping as a file model."""
        block, model = self.blocks(), self.model
        fields: Any = vars(self) | {
            "model": model if isinstance(model, str) else model.name,
            "stages": tuple(_stage_file(stage, block) for stage in self.stages),
        }
        return MappingFile(**fields)

    def to_dict(self) -> dict[str, JsonValue]:
        """Return the mapping as plain data."""
        return self.file().model_dump(mode="json", exclude_none=True)

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)


def _stage_file(stage: StageMapping, block: WaferBlock) -> StageFile:
    genes = stage.block
    gradients = genes.gradients or ((None, None),) * len(genes.codes)
    collectives = genes.collectives or ((None, None),) * len(genes.codes)
    rows = zip(block.units, genes.codes, genes.homes, gradients, collectives, strict=False)
    return StageFile(
        rectangle=astuple(stage.rectangle),
        digits=DigitsFile(x=stage.digits.x, y=stage.digits.y),
        layers=stage.layers,
        stream=genes.stream,
        operators={
            unit.name: OperatorFile(
                code=code,
                weight_placement=home,
                data=data,
                weight=weight,
                streaming=streaming,
                algorithm=algorithm,
            )
            for unit, code, home, (data, weight), (streaming, algorithm) in rows
        },
        keep={
            name: "offload" if fate == OFFLOAD else bool(fate)
            for name, fate in zip(block.saved_names, genes.keep, strict=True)
        },
        head=stage.head,
        offload_target=stage.helper,
    )


def _stage(file: StageFile, streaming: bool, algorithm: str) -> StageMapping:
    operators = list(file.operators.values())
    differ = any(op.data is not None or op.weight is not None for op in operators)
    collectives = any(op.streaming is not None or op.algorithm is not None for op in operators)
    fates = {"offload": OFFLOAD, True: KEEP, False: RECOMPUTE}
    genes = BlockMapping(
        file.stream,
        tuple(op.code for op in operators),
        tuple(op.weight_placement for op in operators),
        tuple(fates[fate] for fate in file.keep.values()),
        tuple((op.data or op.code, op.weight or op.data or op.code) for op in operators if differ),
        tuple(
            (streaming if op.streaming is None else op.streaming, op.algorithm or algorithm)
            for op in operators
            if collectives
        ),
    )
    rectangle, digits = Rectangle(*file.rectangle), Digits(file.digits.x, file.digits.y)
    return StageMapping(rectangle, digits, file.layers, genes, file.head, file.offload_target)


def mapping_of(file: MappingFile) -> WaferMapping:
    """Return the mapping that a file describes."""
    stages = tuple(_stage(stage, file.streaming, file.algorithm) for stage in file.stages)
    fields: Any = dict(file) | {"stages": stages, "optimizer": load_states(file.optimizer).name}
    return WaferMapping(**fields)


def from_dict(data: Mapping[str, JsonValue], where: str = "mapping") -> WaferMapping:
    """Return the mapping in plain data; raise with every error in it."""
    return mapping_of(validate_dict(data, MappingFile, where))


def read_mapping(path: str | Path) -> WaferMapping:
    """Read a mapping file."""
    return from_dict(read_object(Path(path)), str(path))


def problems(mapping: WaferMapping, rows: int, columns: int, dead: Sequence[Die] = ()) -> list[str]:
    """Describe every rule that the mapping breaks."""
    broken: list[str] = []
    block = mapping.blocks()
    layers = sum(stage.layers for stage in mapping.stages)
    if layers != block.layers:
        broken.append(f"stages hold {layers} layers, but the model has {block.layers}")
    if mapping.algorithm not in ALGORITHMS:
        broken.append(f"algorithm {mapping.algorithm!r} is none of {', '.join(ALGORITHMS)}")
    if mapping.schedule not in SCHEDULES:
        broken.append(f"schedule {mapping.schedule!r} is none of {', '.join(SCHEDULES)}")
    used_dies: set[Die] = set()
    for number, stage in enumerate(mapping.stages):
        r, where = stage.rectangle, f"stage {number}"
        if r.x < 0 or r.y < 0 or r.x + r.width > columns or r.y + r.height > rows:
            broken.append(f"{where}: its rectangle leaves the grid of {rows} x {columns}")
            continue
        if used_dies & set(r.dies()):
            broken.append(f"{where}: shares dies with an earlier stage")
        if set(dead) & set(r.dies()):
            broken.append(f"{where}: uses a dead die")
        used_dies |= set(r.dies())
        if (stage.digits.width, stage.digits.height) != (r.width, r.height):
            broken.append(f"{where}: digits do not multiply to its rectangle")
            continue
        if stage.layers < 1:
            broken.append(f"{where}: holds no layer")
        broken += [f"{where}: {text}" for text in _block_problems(stage, block)]
        broken += [f"{where}: {text}" for text in _helper_problems(mapping, number)]
    return broken


def _helper_problems(mapping: WaferMapping, number: int) -> list[str]:
    stage = mapping.stages[number]
    if stage.helper is None:
        offloads = OFFLOAD in stage.block.keep
        return ["offloads tensors, but has no offload target"] if offloads else []
    if stage.helper == number or not 0 <= stage.helper < len(mapping.stages):
        return [f"offload target {stage.helper} is not another stage"]
    return []


def _block_problems(stage: StageMapping, block: WaferBlock) -> list[str]:
    broken = []
    genes = stage.block
    if not legal(genes.stream, block.stream_sizes, stage.digits):
        broken.append(f"stream layout {genes.stream!r} is not legal")
    if len(genes.codes) != len(block.units):
        return [*broken, f"operators has {len(genes.codes)} entries, expected {len(block.units)}"]
    for name in ("gradients", "collectives"):
        entries = len(getattr(genes, name))
        if entries not in (0, len(genes.codes)):
            return [*broken, f"{name} has {entries} entries, expected {len(genes.codes)} or none"]
    for unit, (forward, data, weight) in zip(block.units, genes.passes, strict=True):
        for code in dict.fromkeys((forward, data, weight)):
            if not legal(code, unit.sizes, stage.digits):
                broken.append(f"operator {unit.name}: code {code!r} is not legal")
        if not unit.parameters and data != weight:
            broken.append(f"operator {unit.name}: has no weight, but a code {weight!r} for it")
    broken += [
        f"algorithm {algorithm!r} is none of {', '.join(ALGORITHMS)}"
        for _, algorithm in genes.collectives
        if algorithm not in ALGORITHMS
    ]
    broken += [f"weight placement {home!r} is unknown" for home in genes.homes if home not in HOMES]
    if len(genes.keep) != len(block.saved_names):
        broken.append(f"keep has {len(genes.keep)} entries, expected {len(block.saved_names)}")
    broken += [f"fate {fate} is unknown" for fate in genes.keep if fate not in range(len(FATES))]
    if block.head is not None and not legal(stage.head, block.head.sizes, stage.digits):
        broken.append(f"head code {stage.head!r} is not legal")
    return broken


def validate(mapping: WaferMapping, rows: int, columns: int, dead: Sequence[Die] = ()) -> None:
    broken = problems(mapping, rows, columns, dead)
    if broken:
        raise AtollError(f"mapping: {broken[0]}.")
