"""The wafer as a plain object for drawing, and as a text map for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

from atoll.answers.answer import build_from
from atoll.answers.wafer import DieView, LinkLoad, WaferPicture, WaferStage
from atoll.fabric.mesh import Die, Link, Rectangle
from atoll.hardware.wafer import Wafer
from atoll.wafer.encoding.block_parts import OFFLOAD
from atoll.wafer.evaluate import MappingCost
from atoll.wafer.link_loads import link_loads
from atoll.wafer.staging.faults import Faults

_LABELS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def wafer_picture(
    wafer: Wafer, evaluation: MappingCost, dead: Sequence[Die] = (), dead_links: Sequence[Link] = ()
) -> WaferPicture:
    """Return the data of a picture: dies with stage and memory, links with load."""
    stages = list(zip(evaluation.mapping.stages, evaluation.stages, strict=True))
    stage_by_die = {
        die: number for number, (stage, _) in enumerate(stages) for die in stage.rectangle.dies()
    }
    most_s = max(cost.load_s for cost in evaluation.stages)
    broken = Faults(tuple(dead), tuple(dead_links)).all_links(wafer)
    dies = []
    for x, y in Rectangle(0, 0, wafer.columns, wafer.rows).dies():
        stage = stage_by_die.get((x, y))
        cost = None if stage is None else evaluation.stages[stage]
        view = DieView(
            x=x,
            y=y,
            stage=stage,
            dead=(x, y) in dead,
            memory_bytes=dict(cost.memory_bytes) if cost else {},
            memory_total_bytes=cost.total_bytes if cost else 0.0,
            busy=cost.load_s / most_s if cost else 0.0,
        )
        dies.append(view)
    return build_from(
        WaferPicture,
        wafer,
        memory_bytes_per_die=wafer.memory_bytes,
        dies=tuple(dies),
        stages=tuple(
            WaferStage(
                stage=number,
                rectangle=astuple(stage.rectangle),
                layers=stage.layers,
                stream=stage.block.stream,
                load_s=cost.load_s,
                offload_target=stage.helper,
                offloaded=tuple(offloaded(evaluation, number)),
            )
            for number, (stage, cost) in enumerate(stages)
        ),
        links=tuple(
            LinkLoad(from_=a, to=b, bytes_per_microbatch=size)
            for (a, b), size in sorted(link_loads(wafer, evaluation, broken).items())
        ),
        dead_dies=tuple(sorted(dead)),
        dead_links=tuple(sorted(dead_links)),
    )


def offloaded(evaluation: MappingCost, stage: int) -> list[str]:
    """Return the names of the tensors that a stage offloads."""
    names = evaluation.mapping.blocks().saved_names
    keep = evaluation.mapping.stages[stage].block.keep
    return [name for name, fate in zip(names, keep, strict=True) if fate == OFFLOAD]


def text_map(picture: WaferPicture) -> str:
    """Draw rows of dies: the stage's label, its memory in percent; # is dead, . is spare."""
    rows = []
    for y in range(picture.rows):
        cells = []
        for die in (die for die in picture.dies if die.y == y):
            cell = "  #   " if die.dead else "  .   "
            if die.stage is not None and not die.dead:
                used = die.memory_total_bytes / picture.memory_bytes_per_die
                cell = f"{_label(die.stage)}:{used:<4.0%}"
            cells.append(cell)
        rows.append(" ".join(cells).rstrip())
    for stage in picture.stages:
        if stage.offloaded and stage.offload_target is not None:
            label, target = _label(stage.stage), _label(stage.offload_target)
            rows.append(f"stage {label} leaves {', '.join(stage.offloaded)} with {target}")
    return "\n".join(rows)


def _label(stage: int) -> str:
    return _LABELS[stage % len(_LABELS)]
