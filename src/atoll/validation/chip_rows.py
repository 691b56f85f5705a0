"""Table of published chips: each row as a chip of the physical model.

Units are words such as "432 TC x 256 FMA/clk (8x4x8)", "108 SM (128 on die) x 64 fp32 + 32 fp64" or
"160 SM x 128 fp32 = 20,480": a count, then the size of each unit, as a product of numbers. Peak
rates over the clock give the number of multiply-adds; words give their grouping. Missing cells have
the defaults `_USUAL_*`. A row with numbers that no chip can have is refused, with the cells to look
at.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from math import prod
from pathlib import Path

import numpy as np

from atoll.base.errors import AtollError
from atoll.base.units import counted
from atoll.hardware.accelerator import MIB
from atoll.hardware.physical.area import area_parts_mm2, total
from atoll.hardware.physical.memories import parse_dram
from atoll.hardware.physical.nodes import RETICLE_MM2
from atoll.hardware.physical.physical_chip import USUAL_YEAR, PhysicalChip, columns
from atoll.hardware.physical.power import power_parts_W
from atoll.validation.tables import Row, read_each, read_rows

REQUIRED_COLUMNS = ("chip", "vendor", "process_nm", "bf16_TFLOPs", "silicon_mm2", "tdp_W")
_USUAL_CLOCK_GHZ = 1.2
_USUAL_LANES_PER_CELL = 1 / 32  # TPU v4 has 1/32, Ascend 910 1/64, D1 1/16
_USUAL_BYTES_PER_CELL = 1024.0  # A100 has 830, TPU v4 1,360, Ascend 910 510
_INT8_PER_BF16 = 4.0  # for chips without bf16, in the default number of lanes
_TERA, _GIGA = 1e12, 1e9
_ROUNDING = 0.01
"""Tolerated difference of a product from the total stated behind it."""
_LIMIT = 1e9
"""Limit of numbers in a table: with it all derived quantities are finite."""

_MOST_CHANNELS = 64
"""Channels of 64 bits: 4,096 data pins. Memory of a host or a pool does not count."""
_MOST_DIES = 10_000
_WAFER_MM2 = np.pi / 4 * 300.0**2
_MARGIN = 1.5
"""Factor by which the model may overestimate: its worst published chip is 43 % off."""
_MOST_W_PER_MM2 = 5.0
"""With all parts busy, before a module's limit; chips of the table reach 1.3."""
_SOURCE_COLUMNS = {
    "cells": "bf16_TFLOPs, fp8_TFLOPs, fp4_TFLOPs, clock_GHz",
    "lanes": "vector_units",
    "control": "matrix_units, vector_units",
    "buffers": "onchip_sram_MiB",
    "cache": "l2_MiB",
    "network": "matrix_units, vector_units, onchip_sram_MiB",
    "dram": "hbm_gen, hbm_stacks, hbm_TBps",
    "links": "link_GBps_total",
    "uncore": "dies",
    "operands": "matrix_units, clock_GHz",
    "static": "process_nm",
}
"""Columns that determine a part of area or power."""

_NUMBER = re.compile(
    r"(?<![\w.,-])~?(\d[\d,]*(?:\.\d+)?)(k|M)?(B\b|-bit|)(?![\w])\s*([A-Za-z][\w-]*)?"
)
_LANES = ("fp32", "lane", "lanes", "sublanes", "alu", "alus", "simd", "vector")
_SPARED = re.compile(r"(\d[\d,]*)\s+\S+\s+\((\d[\d,]*) on dies?\)")


@dataclass(frozen=True, slots=True)
class ChipRow:
    """A published chip with its published figures."""

    line: int
    name: str
    family: str
    """Its vendor."""
    chip: PhysicalChip
    silicon_mm2: float | None
    tdp_W: float | None
    area_counts: bool
    """Whether its silicon area is published, and not derived or guessed."""
    power_counts: bool
    peak_flops: float | None
    constructed_flops: float | None
    """Units x width x 2 x clock, if the words give all three."""


def read_chips(path: str | Path | Traversable) -> tuple[list[ChipRow], dict[str, int]]:
    """Read the chips of a table; return them and the number of skipped rows by reason."""
    rows, skipped = read_each(read_rows(path, REQUIRED_COLUMNS, Row), _read)
    if not rows:
        raise AtollError(f"{path}: no chip could be read" + "".join(f"; {r}" for r in skipped))
    return rows, skipped


def _read(row: Row) -> ChipRow:
    chip, constructed = _chip(row)
    _check_limits(chip)
    peaks = [p * _TERA for name in ("bf16", "fp8") if (p := row.number(f"{name}_TFLOPs", 0.0))]
    # words may count cells of either precision: "4 x 320x320 int8 (fp16 at 1/4)"
    peak = min(peaks, key=lambda flops: abs(flops - (constructed or peaks[0])), default=None)
    silicon, tdp = (row.number(name, 0.0) or None for name in ("silicon_mm2", "tdp_W"))
    return ChipRow(
        line=row.line,
        name=row.text("chip"),
        family=row.text("vendor") or row.text("chip"),
        chip=chip,
        silicon_mm2=silicon,
        tdp_W=tdp,
        area_counts=silicon is not None and _has_grade(row.text("die_q"), "published"),
        power_counts=tdp is not None and _has_grade(row.text("tdp_q"), "published", "vendor"),
        peak_flops=peak,
        constructed_flops=constructed,
    )


def _has_grade(words: str, *grades: str) -> bool:
    """Return whether a figure has one of the grades; a table without grades is published."""
    grade_text = words.lower().replace("not published", "")
    return not words or any(grade in grade_text for grade in grades)


def _chip(row: Row) -> tuple[PhysicalChip, float | None]:
    matrix, vector = row.text("matrix_units"), row.text("vector_units")
    clock = row.number("clock_GHz", _USUAL_CLOCK_GHZ) * _GIGA
    per_clock = {
        name: row.number(f"{name}_TFLOPs", 0.0) * _TERA / 2 / clock
        for name in ("bf16", "fp8", "fp4")
    }
    matrix_cells = per_clock["bf16"] or per_clock["fp8"] / _INT8_PER_BF16
    has_matrix = not matrix.lower().startswith("none")
    factors = _factors(matrix)
    lanes = _lanes(vector)
    if has_matrix:
        unit = _unit(matrix, factors) or matrix_cells / (factors or [1.0])[0]
        begins_with_shape = re.match(r"\s*\d+x\d", matrix)  # not with the number of units
        constructed = prod(factors) if len(factors) > 1 and not begins_with_shape else None
    else:  # lanes of 32 bits, two of 16 each
        unit, constructed = 2.0, None if lanes is None else 2 * lanes
    if vector.lower().startswith("same"):
        lanes = 0.0
    cache = row.number("l2_MiB", 0.0) * MIB
    sram = row.number("onchip_sram_MiB", 0.0) * MIB
    dram = parse_dram(row.text("hbm_gen"))
    dram_Bps = row.number("hbm_TBps", 0.0) * _TERA if dram else 0.0
    units = 0.0 if dram is None else dram_Bps / dram.bandwidth_Bps
    stacked = dram is not None and dram.stacked
    if units > _MOST_CHANNELS and not stacked:
        raise ValueError(
            f"hbm_TBps: {dram_Bps / _TERA:g} TB/s of {row.text('hbm_gen')} are {units:,.0f} "
            f"channels of 64 bits, and no package has more than {_MOST_CHANNELS}; state what the "
            "chip's own interface has"
        )
    words = row.text("hbm_stacks")
    stack_count = (_factors(words) or [0.0])[0] if words != "0" else 0.0
    package = row.text("packaging").lower()
    on_wafer = "sow" in package or "wafer" in package
    chip = PhysicalChip(
        process_nm=row.number("process_nm"),
        clock_Hz=clock,
        bf16_cells=per_clock["bf16"],
        fp8_cells=per_clock["fp8"],
        fp4_cells=per_clock["fp4"],
        unit_cells=max(unit, 1.0),
        matrix_units=has_matrix,
        cores=_cores(vector, factors),
        lanes=matrix_cells * _USUAL_LANES_PER_CELL if lanes is None else lanes,
        threaded=cache > 0,
        spare=_spare(f"{matrix}; {vector}"),
        scratchpad_bytes=max(sram - cache, 0.0) if sram else matrix_cells * _USUAL_BYTES_PER_CELL,
        cache_bytes=cache,
        stacks=(stack_count or max(round(units), 1)) if stacked else 0.0,
        stack_mm2=dram.phy_mm2 + dram.controller_mm2 if dram else 0.0,
        channels=0.0 if stacked else units,
        dram_Bps=dram_Bps,
        dram_energy=dram.energy if dram else 1.0,
        link_Bps=row.number("link_GBps_total", 0.0) * _GIGA,
        on_wafer=on_wafer,
        dies=1.0 if on_wafer else _dies(row.text("dies")),
        year=row.number("year", USUAL_YEAR),
    )
    return chip, constructed and 2 * constructed * clock


def _plain(words: str) -> str:
    """Return the words without parentheses, and with products as `8 x 8`."""
    return re.sub(r"(?<=[\d?])x(?=[\d?])", " x ", re.sub(r"\([^)]*\)", "", words))


def _factors(words: str) -> list[float]:
    """Return the factors of a product up to `+` or `;`; a total behind `=` must match."""
    product, *stated = re.split(r"[+;]", _plain(words))[0].split("=")
    factors = _numbers(product)
    totals = _numbers(stated[0]) if stated else []
    if factors and totals and abs(prod(factors) / totals[0] - 1) > _ROUNDING:
        raise ValueError(
            f"{words[:60]!r}: the product is {prod(factors):,.0f}, not {totals[0]:,.0f}"
        )
    return factors


def _numbers(words: str) -> list[float]:
    scale = {"k": 1e3, "M": 1e6, "": 1.0}
    width = {"B": 1 / 4, "-bit": 1 / 32, "": 1.0}
    return [_count(n) * scale[k] * width[unit] for n, k, unit, _ in _NUMBER.findall(words)]


def _unit(words: str, factors: list[float]) -> float:
    """Return the cells of a unit: of its array's shape, else of the factors; 0 if not stated."""
    shape = re.search(r"\d+(?:x\d+)+", re.sub(r"\([^)]*\)", "", words))
    if shape:
        return prod(map(_count, shape[0].split("x")))
    return prod(factors[1:]) if len(factors) > 1 else 0.0


def _lanes(words: str) -> float | None:
    """Return the 32-bit lanes of vector units, None if not stated."""
    matches = _NUMBER.findall(re.split(r"[+;=]", _plain(words))[0])
    factors = _factors(words)
    if not matches:
        return None
    *_, unit_name = matches[-1]
    last_word = unit_name.lower()
    if len(factors) == 1 and not ("alu" in words.lower() or last_word in ("lanes", "fp32")):
        return None
    return prod(factors) if not last_word or last_word in _LANES else None


def _cores(vector: str, factors: list[float]) -> float:
    """Return the number of vector units or of matrix units, whichever are more."""
    vector_factors = _factors(vector)
    has_count = vector_factors and (len(vector_factors) > 1 or _lanes(vector) is None)
    return max((vector_factors if has_count else [1.0])[0], (factors or [1.0])[0])


def _spare(words: str) -> float:
    match = _SPARED.search(words)
    if not match:
        return 1.0
    used, on_die = map(_count, match.groups())
    return max(on_die / used, 1.0)


def _dies(words: str) -> float:
    """Return the number of logic dies: "8 XCD + 4 IOD" are 12; memory and dummies do not count."""
    matches = [re.match(r"\s*(\d+)\s*(\w*)", part) for part in words.split("+")]
    logic = (m for m in matches if m and m[2].lower() not in ("hbm", "dummy", "bridge", "memory"))
    dies = sum(_count(m[1]) for m in logic) or 1.0
    if words.startswith("-") or dies > _MOST_DIES:
        raise ValueError(f"dies is {words[:40]!r}, expected 1 to {_MOST_DIES:,}")
    return dies


def _count(text: str) -> float:
    """Parse a count above 0."""
    value = float(text.replace(",", ""))
    if not 0 < value < _LIMIT:
        raise ValueError(f"expected a count from 1 up to {_LIMIT:.0e}, got {text[:40]!r}")
    return value


def _check_limits(chip: PhysicalChip) -> None:
    """Refuse a chip larger than its dies can be, or with a power that cannot be cooled."""
    column = columns([chip])
    areas, powers = area_parts_mm2(column), power_parts_W(column)
    area_mm2, power_W = (float(total(parts.values())[0]) for parts in (areas, powers))
    most_mm2 = _WAFER_MM2 if chip.on_wafer else RETICLE_MM2 * chip.dies
    what = "a wafer" if chip.on_wafer else counted(round(chip.dies), "die")
    if area_mm2 > _MARGIN * most_mm2:
        part = max(areas, key=lambda name: float(areas[name][0]))
        raise ValueError(
            f"{area_mm2:,.0f} mm2 would be predicted, more than {what} can have ({most_mm2:,.0f}); "
            f"most are {part} ({float(areas[part][0]):,.0f}): look at {_SOURCE_COLUMNS[part]}"
        )
    if power_W > _MOST_W_PER_MM2 * area_mm2:
        part = max(powers, key=lambda name: float(powers[name][0]))
        raise ValueError(
            f"{power_W / area_mm2:,.0f} W/mm2 would be predicted, and no chip is cooled above "
            f"{_MOST_W_PER_MM2:g}; most are {part}: look at {_SOURCE_COLUMNS[part]}"
        )
