"""Measured powers of nodes in training, compared with `device_power.node_W`.

Columns: device, devices (in all nodes), workload, measured_W (mean of one node), scope, notes.
Scope says whether power was metered at the wall (AC) or behind the supplies (DC), notes whether the
node is liquid-cooled. Nodes have eight devices, or all of them if there are fewer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from atoll.answers.validation import NodeLine, NodesValidation
from atoll.base.errors import AtollError
from atoll.files.csvfile import read_csv, write_csv
from atoll.hardware.gpu import written_gpu
from atoll.hardware.physical.device_power import NodeLoad, node_W
from atoll.validation.errors import error_summary

COLUMNS = ("device", "devices", "workload", "measured_W", "scope")
PER_NODE = 8
FIXED_BATCH = re.compile(r"\b(lora|sft|fine-?tun\w*)\b", re.IGNORECASE)
LIQUID = re.compile(r"immersion|liquid|water|no fans", re.IGNORECASE)


def is_node_file(header: list[str]) -> bool:
    return all(name in header for name in COLUMNS)


def validate_nodes(path: str | Path, out: str | Path | None = None) -> NodesValidation:
    """Compare the node powers of a file."""
    _, lines = read_csv(path)
    nodes, skipped = [], dict[str, int]()
    for line in lines:
        try:
            if line.trouble:
                raise ValueError(line.trouble)
            nodes.append(_node(line.number, line.cells))
        except (ValueError, AtollError) as error:
            reason = f"line {line.number}: {error}"
            skipped[reason] = skipped.get(reason, 0) + 1
    if out is not None:
        _write(nodes, out)
    return NodesValidation(
        rows=len(lines),
        predicted=len(nodes),
        skipped=skipped,
        power=error_summary([node.error for node in nodes]),
        nodes=tuple(nodes),
    )


def _node(number: int, cells: Mapping[str, str]) -> NodeLine:
    gpu = written_gpu(cells["device"])
    if gpu.power_W is None:
        raise ValueError(f"device {gpu.name} has no power")
    devices, measured = (float(cells[name]) for name in ("devices", "measured_W"))
    if not (0 < measured < float("inf") and 1 <= devices < float("inf")):
        raise ValueError("devices, measured_W: expected positive numbers")
    load = NodeLoad(
        devices=round(devices),
        per_node=min(round(devices), PER_NODE),
        limit_W=gpu.power_W,
        fixed_batch=bool(FIXED_BATCH.search(cells["workload"])),
        at_wall="AC" in cells["scope"],
        in_liquid=bool(LIQUID.search(cells.get("notes", ""))),
    )
    predicted = node_W(load)
    return NodeLine(
        id=cells.get("id", "") or f"line {number}",
        device=gpu.name,
        devices=load.devices,
        workload=cells["workload"],
        measured_W=measured,
        predicted_W=predicted,
        error=predicted / measured - 1,
    )


def _write(nodes: Sequence[NodeLine], path: str | Path) -> None:
    header = ("id", "device", "devices", "workload", "measured_W", "predicted_W", "error")
    lines = [
        (n.id, n.device, n.devices, n.workload, n.measured_W, f"{n.predicted_W:.6g}",
         f"{n.error:.4f}")
        for n in nodes
    ]  # fmt: skip
    write_csv(path, header, lines)
