"""Measured or published figures, compared with the models of power and process nodes.

Two kinds of tables, distinguished by their columns:

    measured powers   device, scope, workload, avg_power_W, idle_W, clock_MHz; power_limit_W,
                      measured, note. Nodes in training, devices in large products or bound by
                      memory, and idle ones are predicted.
    process nodes     node_nm, category, item, value, unit: densities, cells, energies, voltages,
                      prices and defects of `hardware.physical.nodes`.

Cells are numbers, ranges ("403-410" counts as its middle) or shares of a rating ("20% TDP").
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from atoll.answers.validation import FigureLine, FiguresValidation
from atoll.base.errors import AtollError
from atoll.files.csvfile import read_csv, write_csv
from atoll.hardware.gpu import Gpu, written_gpu
from atoll.hardware.physical.constants import PUBLISHED
from atoll.hardware.physical.device_power import (
    H200_FIT,
    Capped,
    NodeLoad,
    Rates,
    device_W,
    node_W,
)
from atoll.hardware.physical.nodes import LARGEST_NM, RETICLE_MM2, SMALLEST_NM, ProcessNodes, nodes
from atoll.validation.errors import error_summary
from atoll.validation.nodes import FIXED_BATCH, LIQUID

POWERS = ("device", "scope", "workload", "avg_power_W", "idle_W", "clock_MHz")
PROCESSES = ("node_nm", "category", "item", "value", "unit")
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


Reader = Callable[[Mapping[str, str]], Iterator[Figure]]


def validate_figures(path: str | Path, out: str | Path | None = None) -> FiguresValidation:
    """Compare every figure of a table that the models predict."""
    header, rows = read_csv(path)
    read = find_reader(header)
    if read is None:
        needed = " or ".join(", ".join(names) for names in (POWERS, PROCESSES))
        raise AtollError(f"{path}: a table of figures needs the columns {needed}")
    lines: list[FigureLine] = []
    skipped: dict[str, int] = {}
    predicted = 0
    for row in rows:
        try:
            if row.trouble:
                raise ValueError(f"line {row.number}: {row.trouble}")
            figures = list(read(row.cells))
            name = row.cells.get("id") or row.cells.get("item") or f"line {row.number}"
            node = row.cells.get("node_nm")
            name = f"{node} nm, {name}" if node else name
            lines += [FigureLine(name, *f, error=f.predicted / f.reference - 1) for f in figures]
            predicted += 1
        except (ValueError, AtollError) as error:
            skipped[str(error)] = skipped.get(str(error), 0) + 1
    if out is not None:
        columns = ("id", "group", "unit", "reference", "predicted", "error")
        write_csv(path=out, header=columns, rows=[
            (f.id, f.group, f.unit, f.reference, f"{f.predicted:.6g}", f"{f.error:.4f}")
            for f in lines
        ])  # fmt: skip
    groups = dict.fromkeys(line.group for line in lines)
    return FiguresValidation(
        rows=len(rows),
        predicted=predicted,
        skipped=skipped,
        groups={
            group: error_summary([line.error for line in lines if line.group == group])
            for group in groups
        },
        figures=tuple(lines),
    )


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
        raise ValueError(f"expected a number or a range, got {text[:40]!r}")
    return sum(ends) / len(ends)


# --- Measured powers ------------------------------------------------------------------------------


def _powers(cells: Mapping[str, str]) -> Iterator[Figure]:
    """Return the figures of a row; refuse a row without any that is predicted."""
    measured = cells.get("measured", "")
    if measured.startswith("no") or "TDP as power" in cells["scope"]:
        raise ValueError("power is not measured, but the rating")
    if cells["scope"].startswith("node"):
        return iter([_node(cells)])
    figures = list(_device(cells))
    if not figures:
        raise ValueError("neither idle, nor products or a memory-bound load with power or clock")
    return iter(figures)


def _node(cells: Mapping[str, str]) -> Figure:
    if not cells["avg_power_W"]:
        raise ValueError("node without a mean power")
    match = _NODES.fullmatch(cells["device"])
    if match is None:
        raise ValueError(
            f"device: expected such as '8x H100 SXM node', got {cells['device'][:40]!r}"
        )
    per_node = int(match[2])
    load = NodeLoad(
        devices=int(match[1] or 1) * per_node,
        per_node=per_node,
        limit_W=_rated_W(written_gpu(match[3])),
        fixed_batch=bool(FIXED_BATCH.search(cells["workload"])),
        at_wall="AC" in cells["scope"],
        in_liquid=bool(LIQUID.search(cells["scope"] + cells.get("note", ""))),
    )
    return Figure("mean power of a node", "W", _amount(cells["avg_power_W"]), node_W(load))


def _device(cells: Mapping[str, str]) -> Iterator[Figure]:
    products = bool(_PRODUCTS.search(cells["workload"]))
    streams = bool(_MEMORY_BOUND.search(cells["workload"]))
    idle, busy = cells["idle_W"], products or streams
    if not idle and not busy:
        return
    gpu = written_gpu(cells["device"])
    rated_W = _rated_W(gpu)
    if idle:
        share = _SHARE.fullmatch(idle)
        reference_W = float(share[1]) / 100 * rated_W if share else _amount(idle)
        yield Figure("idle power of a device", "W", reference_W, H200_FIT.idle * rated_W)
    if not busy:
        return
    limit = cells.get("power_limit_W", "")
    cap_W = min(_amount(limit), rated_W) if limit else rated_W
    rates = Rates(products=float(products), dram=float(streams and not products))
    if cells["avg_power_W"]:
        power_W, reference_W = device_W(rated_W, rates, cap_W=cap_W), _amount(cells["avg_power_W"])
        yield Figure("power of a device under load", "W", reference_W, power_W)
    if cells["clock_MHz"]:
        slowdown = Capped(cap_W / rated_W).slowdown(gpu.calibration.limit_throttle)
        clock_MHz = gpu.clock_Hz / _MEGA / (1 + slowdown if products else 1)
        yield Figure("clock under a limit", "MHz", _amount(cells["clock_MHz"]), clock_MHz)


def _rated_W(gpu: Gpu) -> float:
    if gpu.power_W is None:
        raise ValueError(f"device {gpu.name} has no rated power")
    return gpu.power_W


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


def _process(cells: Mapping[str, str]) -> Iterator[Figure]:
    category, unit = kind = cells["category"], cells["unit"]
    if kind not in _NODE_QUANTITIES and kind not in _NODE_INDEPENDENT:
        raise ValueError(f"{category} in {unit}: not compared with the physical model")
    reference = _amount(cells["value"])
    node_nm = _amount(cells["node_nm"]) if cells["node_nm"] else 0.0
    if kind in _NODE_INDEPENDENT:
        predicted = _NODE_INDEPENDENT[kind]
    else:
        if not SMALLEST_NM <= node_nm <= LARGEST_NM:
            raise ValueError(f"node_nm: the model has {SMALLEST_NM:g} to {LARGEST_NM:g} nm")
        predicted = float(str(_NODE_QUANTITIES[kind](nodes(node_nm))))
    yield Figure(f"{category.replace('_', ' ')} ({unit})", unit, reference, predicted)
