"""Measured or published figures, compared with the models of power and process nodes.

Three kinds of tables, distinguished by their columns:

    nodes in training  mean power of one node, compared with `device_power.node_W`.
    measured powers    nodes in training, devices in large products or bound by memory, idle ones.
    process nodes      densities, cells, energies, voltages, prices and defects of
                       `hardware.physical.nodes`.

Cells of the last two are numbers, ranges ("403-410" counts as its middle) or shares of a rating
("20% TDP").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from atoll.answers.validation import FigureLine, FiguresValidation, NodeLine, NodesValidation
from atoll.base.errors import AtollError
from atoll.files.csvfile import read_csv
from atoll.hardware.gpu import Gpu, written_gpu
from atoll.hardware.physical.constants import PUBLISHED
from atoll.hardware.physical.device_power import H200_FIT, Capped, NodeLoad, Rates, device_W, node_W
from atoll.hardware.physical.nodes import LARGEST_NM, RETICLE_MM2, SMALLEST_NM, ProcessNodes, nodes
from atoll.validation.errors import error_summary, errors_by
from atoll.validation.tables import Row, read_each, read_rows, write_records

POWERS = ("device", "scope", "workload", "avg_power_W", "idle_W", "clock_MHz")
PROCESSES = ("node_nm", "category", "item", "value", "unit")
NODES = ("device", "devices", "workload", "measured_W", "scope")
PER_NODE = 8
FIXED_BATCH = re.compile(r"\b(lora|sft|fine-?tun\w*)\b", re.IGNORECASE)
LIQUID = re.compile(r"immersion|liquid|water|no fans", re.IGNORECASE)
_AMOUNT = re.compile(r"~?(\d[\d,.]*)(?:\s*-\s*(\d[\d,.]*))?")
_PRODUCT = re.compile(r"^[\d.,x ]+= *")
_SHARE = re.compile(r"(\d[\d.]*)% TDP")
_NODES = re.compile(r"(?:(\d+) x )?(\d+)\s*x?\s+(.+?)(?: HGX)?(?: node)?")
_PRODUCTS = re.compile(r"\bgemms?\b|\bmatmul", re.IGNORECASE)
_MEMORY_BOUND = re.compile(r"\bgemv\b|memory bound|\btriad\b", re.IGNORECASE)
_MEGA = 1e6


class Figure(NamedTuple):
    """A reference figure and its prediction."""

    group: str
    unit: str
    reference: float
    predicted: float


Reader = Callable[[Row], Iterator[Figure]]


def validate_figures(path: str | Path, out: str | Path | None = None) -> FiguresValidation:
    """Compare every figure of a table that the models predict."""
    read = find_reader(read_csv(path)[0])
    if read is None:
        needed = " or ".join(", ".join(names) for names in (POWERS, PROCESSES))
        raise AtollError(f"{path}: a table of figures needs the columns {needed}")
    rows = read_rows(path, (), Row)
    figures, skipped = read_each(rows, lambda row: list(_lines(row, read)))
    lines = [line for row in figures for line in row]
    write_records(out, ("id", "group", "unit", "reference", "predicted", "error"), lines)
    errors = np.array([line.error for line in lines])
    names = [line.group for line in lines]
    return FiguresValidation(
        rows=len(rows),
        predicted=len(figures),
        skipped=skipped,
        groups=errors_by(errors, names, tuple(dict.fromkeys(names))),
        figures=tuple(lines),
    )


def _lines(row: Row, read: Reader) -> Iterator[FigureLine]:
    name, node_nm = row.id or row.text("item", f"line {row.line}"), row.text("node_nm")
    name = f"{node_nm} nm, {name}" if node_nm else name
    for figure in read(row):
        yield FigureLine(name, *figure, error=figure.predicted / figure.reference - 1)


def find_reader(header: list[str]) -> Reader | None:
    """Return the reader of a table with these columns, None for other tables."""
    if all(name in header for name in POWERS):
        return _powers
    return _process if all(name in header for name in PROCESSES) else None


def _amount(text: str) -> float:
    """Parse a number, a range (its middle) or a product's total ("26 x 33 = 858")."""
    match = _AMOUNT.fullmatch(_PRODUCT.sub("", text))
    try:
        ends = [float(end.replace(",", "")) for end in match.groups() if end] if match else []
    except ValueError:
        ends = []
    if not ends or min(ends) <= 0:
        raise AtollError(f"expected a number or a range, got {text[:40]!r}")
    return sum(ends) / len(ends)


# --- Measured powers ------------------------------------------------------------------------------


def _powers(row: Row) -> Iterator[Figure]:
    """Return the figures of a row; refuse a row without any that is predicted."""
    measured = row.text("measured")
    if measured.startswith("no") or "TDP as power" in row.text("scope"):
        raise AtollError("power is not measured, but the rating")
    if row.text("scope").startswith("node"):
        return iter([_node(row)])
    figures = list(_device(row))
    if not figures:
        raise AtollError("neither idle, nor products or a memory-bound load with power or clock")
    return iter(figures)


def _node(row: Row) -> Figure:
    if not row.text("avg_power_W"):
        raise AtollError("node without a mean power")
    match = _NODES.fullmatch(row.text("device"))
    if match is None:
        raise AtollError(
            f"device: expected such as '8x H100 SXM node', got {row.text('device')[:40]!r}"
        )
    per_node, cooling = int(match[2]), row.text("scope") + row.text("note")
    load = _load(row, written_gpu(match[3]), int(match[1] or 1) * per_node, per_node, cooling)
    return Figure("mean power of a node", "W", _amount(row.text("avg_power_W")), node_W(load))


def _load(row: Row, gpu: Gpu, devices: int, per_node: int, cooling: str) -> NodeLoad:
    return NodeLoad(
        devices=devices,
        per_node=per_node,
        limit_W=_rated_W(gpu),
        fixed_batch=bool(FIXED_BATCH.search(row.text("workload"))),
        at_wall="AC" in row.text("scope"),
        in_liquid=bool(LIQUID.search(cooling)),
    )


def _device(row: Row) -> Iterator[Figure]:
    products = bool(_PRODUCTS.search(row.text("workload")))
    streams = bool(_MEMORY_BOUND.search(row.text("workload")))
    idle, busy = row.text("idle_W"), products or streams
    if not idle and not busy:
        return
    gpu = written_gpu(row.text("device"))
    rated_W = _rated_W(gpu)
    if idle:
        share = _SHARE.fullmatch(idle)
        reference_W = float(share[1]) / 100 * rated_W if share else _amount(idle)
        yield Figure("idle power of a device", "W", reference_W, H200_FIT.idle * rated_W)
    if not busy:
        return
    limit = row.text("power_limit_W")
    cap_W = min(_amount(limit), rated_W) if limit else rated_W
    rates = Rates(products=float(products), dram=float(streams and not products))
    if row.text("avg_power_W"):
        power_W = device_W(rated_W, rates, cap_W=cap_W)
        reference_W = _amount(row.text("avg_power_W"))
        yield Figure("power of a device under load", "W", reference_W, power_W)
    if row.text("clock_MHz"):
        slowdown = Capped(cap_W / rated_W).slowdown(gpu.calibration.limit_throttle)
        clock_MHz = gpu.clock_Hz / _MEGA / (1 + slowdown if products else 1)
        yield Figure("clock under a limit", "MHz", _amount(row.text("clock_MHz")), clock_MHz)


def _rated_W(gpu: Gpu) -> float:
    if gpu.power_W is None:
        raise AtollError(f"device {gpu.name} has no rated power")
    return gpu.power_W


# --- Nodes in training ----------------------------------------------------------------------------


def validate_nodes(path: str | Path, out: str | Path | None = None) -> NodesValidation:
    """Compare the node powers of a file; nodes have eight devices, or all if there are fewer."""
    nodes, skipped = read_each(read_rows(path, NODES, Row), _node_line)
    header = ("id", "device", "devices", "workload", "measured_W", "predicted_W", "error")
    write_records(out, header, nodes)
    return NodesValidation(
        rows=len(nodes) + sum(skipped.values()),
        predicted=len(nodes),
        skipped=skipped,
        power=error_summary([node.error for node in nodes]),
        nodes=tuple(nodes),
    )


def _node_line(row: Row) -> NodeLine:
    gpu, devices = written_gpu(row.text("device")), row.integer("devices")
    measured_W = row.number("measured_W")
    predicted_W = node_W(_load(row, gpu, devices, min(devices, PER_NODE), row.text("notes")))
    return NodeLine(
        id=row.id or row.where,
        device=gpu.name,
        devices=devices,
        workload=row.text("workload"),
        measured_W=measured_W,
        predicted_W=predicted_W,
        error=predicted_W / measured_W - 1,
    )


# --- Process nodes --------------------------------------------------------------------------------

_NODE_QUANTITIES: dict[tuple[str, str], Callable[[ProcessNodes], object]] = {
    ("logic_density", "MTr/mm2"): lambda node: node.logic_MTr_per_mm2,
    ("sram", "um2"): lambda node: node.bit_cell_um2,
    ("sram", "Mb/mm2"): lambda node: node.macro_bytes_per_mm2 * 8 / 1e6,
    ("relative_energy", "x"): lambda node: node.energy,
    ("voltage", "V"): lambda node: node.voltage_V,
    ("wafer_price", "USD"): lambda node: node.wafer_usd,
    ("defect_density", "1/cm2"): lambda node: node.defects_per_mm2 * 100,
}
_NODE_INDEPENDENT = {
    ("reticle", "mm2"): RETICLE_MM2,
    ("energy_wire", "pJ/bit/mm"): PUBLISHED.wire_pJ_per_bit_mm,
}
"""Quantities that do not depend on the node."""


def _process(row: Row) -> Iterator[Figure]:
    category, unit = kind = row.text("category"), row.text("unit")
    if kind not in _NODE_QUANTITIES and kind not in _NODE_INDEPENDENT:
        raise AtollError(f"{category} in {unit}: not compared with the physical model")
    reference = _amount(row.text("value"))
    node_nm = _amount(row.text("node_nm")) if row.text("node_nm") else 0.0
    if kind in _NODE_INDEPENDENT:
        predicted = _NODE_INDEPENDENT[kind]
    else:
        if not SMALLEST_NM <= node_nm <= LARGEST_NM:
            raise AtollError(f"node_nm: the model has {SMALLEST_NM:g} to {LARGEST_NM:g} nm")
        predicted = float(str(_NODE_QUANTITIES[kind](nodes(node_nm))))
    yield Figure(f"{category.replace('_', ' ')} ({unit})", unit, reference, predicted)
