"""The wafer as a plain object for drawing, and as a map of characters for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from atoll.fabric.mesh import Die, Link
from atoll.hardware.wafer import Wafer
from atoll.wafer.encoding.genes import OFFLOAD
from atoll.wafer.evaluate import Evaluation

_LABELS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def wafer_object(
    wafer: Wafer, found: Evaluation, dead: Sequence[Die] = (),
    dead_links: Sequence[Link] = (),
) -> dict[str, Any]:  # fmt: skip
    """Everything a picture needs: dies with stage and memory, links with their load."""
    stage_of = {
        die: number
        for number, stage in enumerate(found.mapping.stages)
        for die in stage.rectangle.dies()
    }
    dies = []
    for y in range(wafer.rows):
        for x in range(wafer.columns):
            stage = stage_of.get((x, y))
            memory = found.stages[stage].memory_bytes if stage is not None else {}
            dies.append(
                {
                    "x": x,
                    "y": y,
                    "stage": stage,
                    "dead": (x, y) in dead,
                    "memory_bytes": dict(memory),
                    "memory_total_bytes": sum(memory.values()),
                    "busy": (
                        found.stages[stage].load_s / max(s.load_s for s in found.stages)
                        if stage is not None
                        else 0.0
                    ),
                }
            )
    return {
        "rows": wafer.rows,
        "columns": wafer.columns,
        "memory_bytes_per_die": wafer.memory_bytes,
        "link_Bps": wafer.link_Bps,
        "dies": dies,
        "stages": [
            {
                "stage": number,
                "rectangle": [
                    stage.rectangle.x, stage.rectangle.y, stage.rectangle.width,
                    stage.rectangle.height,
                ],
                "layers": stage.layers,
                "stream": stage.block.stream,
                "load_s": cost.load_s,
                "helper": stage.helper,
                "offloaded": offloaded(found, number),
            }
            for number, (stage, cost) in enumerate(
                zip(found.mapping.stages, found.stages, strict=True)
            )
        ],
        "links": [
            {"from": list(a), "to": list(b), "bytes_per_microbatch": load}
            for (a, b), load in sorted(found.links.items())
        ],
        "dead_dies": [list(die) for die in sorted(dead)],
        "dead_links": [[list(a), list(b)] for a, b in sorted(dead_links)],
    }  # fmt: skip


def offloaded(found: Evaluation, stage: int) -> list[str]:
    """Names of the tensors that a stage leaves with its helper."""
    block = found.mapping.blocks()
    names = [e.kept_name for c in block.chains for e in c.edges if e.kept_name]
    keep = found.mapping.stages[stage].block.keep
    return [name for name, fate in zip(names, keep, strict=True) if fate == OFFLOAD]


def text_map(picture: dict[str, Any]) -> str:
    """Rows of dies: the stage's label, its memory in percent; # is dead, . is spare."""
    capacity = picture["memory_bytes_per_die"]
    rows = []
    for y in range(picture["rows"]):
        cells = []
        for die in picture["dies"]:
            if die["y"] != y:
                continue
            if die["dead"]:
                cells.append("  #  ")
            elif die["stage"] is None:
                cells.append("  .  ")
            else:
                label = _LABELS[die["stage"] % len(_LABELS)]
                cells.append(f"{label}{die['memory_total_bytes'] / capacity:4.0%}")
        rows.append(" ".join(cells))
    for stage in picture["stages"]:
        if stage["offloaded"]:
            label, helper = (_LABELS[n % len(_LABELS)] for n in (stage["stage"], stage["helper"]))
            rows.append(f"stage {label} leaves {', '.join(stage['offloaded'])} with {helper}")
    return "\n".join(rows)
