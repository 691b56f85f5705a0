"""The operator-centric encoding: a whole mapping of a training step on a wafer, as genes.

Global genes: microbatch, streaming (whether collectives run beside their operators), collective
algorithm, pipeline schedule. Per pipeline stage: the rectangle of dies, the digit system on it, the
number of layers, and the block's genes: the stream's layout, a code for every operator (split of
every loop dimension, order on the mesh axes; forward, data gradient and weight gradient share it,
because a weight has one place), a home for every weight, keep or run again for every saved tensor,
and a code for the head.

`validate` names what is wrong, `repair` makes a neighbouring legal mapping, `mutate` and
`crossover` stay inside the space, `count` says how large it is. Mappings are saved as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import comb
from typing import Any

import numpy as np

from atoll.errors import AtollError
from atoll.placement.zero_bubble import ONE_F_ONE_B, SCHEDULES
from atoll.wafer.block import Block, make_block
from atoll.wafer.digits import Digits, digit_systems
from atoll.wafer.genes import BlockMapping
from atoll.wafer.tables import ALGORITHMS, HOMES, SEARCHED_HOMES, legal, legal_codes

Die = tuple[int, int]


@dataclass(frozen=True)
class Rectangle:
    """Columns x..x+width-1, rows y..y+height-1."""

    x: int
    y: int
    width: int
    height: int

    @property
    def size(self) -> int:
        return self.width * self.height

    def dies(self) -> list[Die]:
        return [
            (x, y)
            for y in range(self.y, self.y + self.height)
            for x in range(self.x, self.x + self.width)
        ]


@dataclass(frozen=True)
class StageMapping:
    """One pipeline stage."""

    rectangle: Rectangle
    digits: Digits
    layers: int
    block: BlockMapping
    head: str
    """Code of the output head, where the stage holds it."""


@dataclass(frozen=True)
class WaferMapping:
    """A training step on a wafer."""

    model: str
    batch: int
    microbatch: int
    sequence: int
    stages: tuple[StageMapping, ...]
    streaming: bool = True
    algorithm: str = "auto"
    schedule: str = ONE_F_ONE_B
    """Of the pipeline: 1f1b, or zb-h1 (weight passes fill it)."""

    @property
    def microbatches(self) -> int:
        return -(-self.batch // self.microbatch)

    @property
    def dies(self) -> list[Die]:
        return [die for stage in self.stages for die in stage.rectangle.dies()]

    def blocks(self) -> Block:
        return make_block(self.model, self.microbatch, self.sequence)

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "batch": self.batch,
            "microbatch": self.microbatch,
            "sequence": self.sequence,
            "streaming": self.streaming,
            "algorithm": self.algorithm,
            "schedule": self.schedule,
            "stages": [_stage_dict(stage, self.blocks()) for stage in self.stages],
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), indent=1)


def _stage_dict(stage: StageMapping, block: Block) -> dict[str, Any]:
    r = stage.rectangle
    names = [unit.name for unit in block.units]
    kept = [edge.kept_name for chain in block.chains for edge in chain.edges if edge.kept_name]
    return {
        "rectangle": [r.x, r.y, r.width, r.height],
        "digits": {"x": list(stage.digits.x), "y": list(stage.digits.y)},
        "layers": stage.layers,
        "stream": stage.block.stream,
        "operators": {
            name: {"code": code, "home": home}
            for name, code, home in zip(names, stage.block.codes, stage.block.homes, strict=True)
        },
        "keep": dict(zip(kept, stage.block.keep, strict=True)),
        "head": stage.head,
    }


def from_dict(data: Mapping[str, Any]) -> WaferMapping:
    """The mapping in a dictionary; one sentence about the first thing that is wrong."""
    try:
        stages = tuple(
            StageMapping(
                Rectangle(*(int(v) for v in entry["rectangle"])),
                Digits(tuple(entry["digits"]["x"]), tuple(entry["digits"]["y"])),
                int(entry["layers"]),
                BlockMapping(
                    entry["stream"],
                    tuple(op["code"] for op in entry["operators"].values()),
                    tuple(op["home"] for op in entry["operators"].values()),
                    tuple(bool(v) for v in entry["keep"].values()),
                ),
                entry["head"],
            )
            for entry in data["stages"]
        )
        return WaferMapping(
            model=data["model"],
            batch=int(data["batch"]),
            microbatch=int(data["microbatch"]),
            sequence=int(data["sequence"]),
            stages=stages,
            streaming=bool(data["streaming"]),
            algorithm=data["algorithm"],
            # Files from before the gene ran 1F1B.
            schedule=data.get("schedule", ONE_F_ONE_B),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise AtollError(f"mapping: field {error} is missing or of the wrong kind.") from None


def from_json(text: str) -> WaferMapping:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise AtollError(f"mapping: not valid JSON ({error.msg}, line {error.lineno}).") from None
    return from_dict(data)


def problems(
    mapping: WaferMapping, rows: int, columns: int, dead: Sequence[Die] = ()
) -> list[str]:
    """Every rule that the mapping breaks, in words; none for a legal one."""
    found: list[str] = []
    block = mapping.blocks()
    layers = sum(stage.layers for stage in mapping.stages)
    if layers != block.layers:
        found.append(f"stages hold {layers} layers, but the model has {block.layers}")
    if mapping.algorithm not in ALGORITHMS:
        found.append(f"algorithm {mapping.algorithm!r} is none of {', '.join(ALGORITHMS)}")
    if mapping.schedule not in SCHEDULES:
        found.append(f"schedule {mapping.schedule!r} is none of {', '.join(SCHEDULES)}")
    seen: set[Die] = set()
    for number, stage in enumerate(mapping.stages):
        r, where = stage.rectangle, f"stage {number}"
        if r.x < 0 or r.y < 0 or r.x + r.width > columns or r.y + r.height > rows:
            found.append(f"{where}: its rectangle leaves the grid of {rows} x {columns}")
        if seen & set(r.dies()):
            found.append(f"{where}: shares dies with an earlier stage")
        if set(dead) & set(r.dies()):
            found.append(f"{where}: uses a dead die")
        seen |= set(r.dies())
        if (stage.digits.width, stage.digits.height) != (r.width, r.height):
            found.append(f"{where}: digits do not multiply to its rectangle")
            continue
        if stage.layers < 1:
            found.append(f"{where}: holds no layer")
        found += [f"{where}: {text}" for text in _block_problems(stage, block)]
    return found


def _block_problems(stage: StageMapping, block: Block) -> list[str]:
    found = []
    genes = stage.block
    if not legal(genes.stream, block.stream_sizes, stage.digits):
        found.append(f"stream layout {genes.stream!r} is not legal")
    for unit, code in zip(block.units, genes.codes, strict=True):
        if len(code) != stage.digits.count or not legal(code, unit.sizes, stage.digits):
            found.append(f"operator {unit.name}: code {code!r} is not legal")
    found += [f"home {home!r} is unknown" for home in genes.homes if home not in HOMES]
    if len(genes.keep) != _saved(block):
        found.append(f"keep has {len(genes.keep)} entries, expected {_saved(block)}")
    if block.head is not None and not legal(stage.head, block.head.sizes, stage.digits):
        found.append(f"head code {stage.head!r} is not legal")
    return found


def validate(
    mapping: WaferMapping, rows: int, columns: int, dead: Sequence[Die] = ()
) -> None:
    found = problems(mapping, rows, columns, dead)
    if found:
        raise AtollError(f"mapping: {found[0]}.")


def _saved(block: Block) -> int:
    return sum(bool(edge.kept_name) for chain in block.chains for edge in chain.edges)


# --- moves ----------------------------------------------------------------------------------------


def repair(mapping: WaferMapping) -> WaferMapping:
    """A legal mapping near a broken one: layers add up, codes fit their dimensions.

    Rectangles are left alone; digits follow them.
    """
    block = mapping.blocks()
    stages = [_repair_stage(stage, block) for stage in mapping.stages]
    counts = [max(1, stage.layers) for stage in stages]
    while sum(counts) > block.layers and max(counts) > 1:
        counts[int(np.argmax(counts))] -= 1
    while sum(counts) < block.layers:
        counts[int(np.argmin(counts))] += 1
    stages = [replace(stage, layers=n) for stage, n in zip(stages, counts, strict=True)]
    algorithm = mapping.algorithm if mapping.algorithm in ALGORITHMS else "auto"
    schedule = mapping.schedule if mapping.schedule in SCHEDULES else ONE_F_ONE_B
    return replace(mapping, stages=tuple(stages), algorithm=algorithm, schedule=schedule)


def _repair_stage(stage: StageMapping, block: Block) -> StageMapping:
    r = stage.rectangle
    digits = stage.digits
    if (digits.width, digits.height) != (r.width, r.height):
        digits = digit_systems(r.width, r.height)[0]
    genes = stage.block
    codes = tuple(
        _repair_code(code, unit.sizes, digits)
        for code, unit in zip(genes.codes, block.units, strict=True)
    )
    saved = _saved(block)
    keep = (*genes.keep, *([True] * saved))[:saved]
    homes = tuple(home if home in HOMES else "optimizer" for home in genes.homes)
    assert block.head is not None
    return replace(
        stage,
        digits=digits,
        head=_repair_code(stage.head, block.head.sizes, digits),
        block=BlockMapping(
            _repair_code(genes.stream, block.stream_sizes, digits), codes, homes, keep
        ),
    )


def _repair_code(code: str, sizes: dict[str, int], digits: Digits) -> str:
    """Keep the tags that can stay, from the first digit on; fill with what fits."""
    if len(code) == digits.count and legal(code, sizes, digits):
        return code
    allowed = legal_codes(sizes, digits)
    if not allowed:
        raise AtollError(
            f"mapping: no split of dimensions {sizes} over {digits.size} dies is legal; use a "
            "smaller rectangle."
        )
    padded = code[: digits.count].ljust(digits.count)
    return max(allowed, key=lambda c: (sum(a == b for a, b in zip(c, padded, strict=True)), c))


def mutate(
    mapping: WaferMapping, random: np.random.Generator, homes: Sequence[str] = SEARCHED_HOMES
) -> WaferMapping:
    """One random legal change of one gene; `homes` are those that a weight may move to."""
    block = mapping.blocks()
    index = int(random.integers(len(mapping.stages)))
    stage = mapping.stages[index]
    genes = stage.block
    move = int(random.integers(8))
    if move == 0 and len(mapping.stages) > 1:
        return _shift_layer(mapping, index, random)
    if move == 1:
        return replace(mapping, streaming=not mapping.streaming)
    if move == 7 and len(mapping.stages) > 1:
        others = [name for name in SCHEDULES if name != mapping.schedule]
        return replace(mapping, schedule=others[int(random.integers(len(others)))])
    if move == 2:
        i = int(random.integers(len(genes.keep)))
        keep = tuple(k != (j == i) for j, k in enumerate(genes.keep))
        genes = replace(genes, keep=keep)
    elif move == 3:
        i = int(random.integers(len(genes.homes)))
        home = homes[int(random.integers(len(homes)))]
        genes = replace(genes, homes=(*genes.homes[:i], home, *genes.homes[i + 1 :]))
    elif move == 4:
        choices = legal_codes(block.stream_sizes, stage.digits)
        genes = replace(genes, stream=choices[int(random.integers(len(choices)))])
    else:
        i = int(random.integers(len(genes.codes)))
        choices = legal_codes(block.units[i].sizes, stage.digits)
        code = choices[int(random.integers(len(choices)))]
        genes = replace(genes, codes=(*genes.codes[:i], code, *genes.codes[i + 1 :]))
    stages = list(mapping.stages)
    stages[index] = replace(stage, block=genes)
    return replace(mapping, stages=tuple(stages))


def _shift_layer(mapping: WaferMapping, index: int, random: np.random.Generator) -> WaferMapping:
    other = (index + (1 if random.integers(2) else -1)) % len(mapping.stages)
    stages = list(mapping.stages)
    if stages[index].layers < 2:
        return mapping
    stages[index] = replace(stages[index], layers=stages[index].layers - 1)
    stages[other] = replace(stages[other], layers=stages[other].layers + 1)
    return replace(mapping, stages=tuple(stages))


def crossover(
    left: WaferMapping, right: WaferMapping, random: np.random.Generator
) -> WaferMapping:
    """Block genes of either parent, stage by stage, where the rectangles agree in shape."""
    stages = []
    for i, stage in enumerate(left.stages):
        other = right.stages[i] if i < len(right.stages) else stage
        take = bool(random.integers(2)) and other.digits == stage.digits
        stages.append(replace(stage, block=other.block) if take else stage)
    streaming = right.streaming if random.integers(2) else left.streaming
    schedule = right.schedule if random.integers(2) else left.schedule
    child = replace(left, stages=tuple(stages), streaming=streaming, schedule=schedule)
    return child if left.microbatch == right.microbatch else repair(child)


def count(block: Block, width: int, height: int, stages: int) -> int:
    """Mappings of a model on so many stages of one shape, each with its own block genes."""
    per_stage = 0
    for digits in digit_systems(width, height):
        product = len(legal_codes(block.stream_sizes, digits)) * 2 ** _saved(block)
        for unit in block.units:
            product *= len(legal_codes(unit.sizes, digits))
            product *= len(SEARCHED_HOMES) if unit.parameters else 1
        per_stage += product
    ways = int(per_stage**stages)
    return 2 * len(SCHEDULES) * ways * comb(block.layers - 1, stages - 1)
