"""Table of published chips: each row as a chip of the physical model.

Columns (others are ignored): chip, vendor, year, process_nm, dies, tdp_W, clock_GHz,
matrix_units, vector_units, bf16_TFLOPs, fp8_TFLOPs, fp4_TFLOPs, onchip_sram_MiB, l2_MiB, hbm_gen,
hbm_stacks, hbm_TBps, link_GBps_total, packaging, silicon_mm2, die_q, tdp_q. Units are words such as
"432 TC x 256 FMA/clk (8x4x8)", "108 SM (128 on die) x 64 fp32 + 32 fp64" or "160 SM x 128 fp32 =
20,480": a count, then the size of each unit, as a product of numbers. Peak rates over the clock
give the number of multiply-adds; words give their grouping. Missing cells have the defaults
`_USUAL_*`. A row with numbers that no chip can have is refused, with the cells to look at.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from math import prod
from pathlib import Path

import numpy as np

from atoll.base.errors import AtollError
from atoll.base.units import counted
from atoll.files.csvfile import read_csv
from atoll.hardware.accelerator import MIB
from atoll.hardware.physical.area import area_parts_mm2, total
from atoll.hardware.physical.memories import parse_dram
from atoll.hardware.physical.nodes import RETICLE_MM2
from atoll.hardware.physical.physical_chip import USUAL_YEAR, PhysicalChip, columns
from atoll.hardware.physical.power import power_parts_W

REQUIRED_COLUMNS = ("chip", "vendor", "process_nm", "bf16_TFLOPs", "silicon_mm2", "tdp_W")
_USUAL_CLOCK_HZ = 1.2e9
_USUAL_LANES_PER_CELL = 1 / 32  # TPU v4 has 1/32, Ascend 910 1/64, D1 1/16
_USUAL_BYTES_PER_CELL = 1024.0  # A100 has 830, TPU v4 1,360, Ascend 910 510
_INT8_PER_BF16 = 4.0  # for chips without bf16, in the default number of lanes
_TERA, _GIGA = 1e12, 1e9
_ROUNDING = 0.01
"""Tolerated difference of a product from the total stated behind it."""
_LIMIT = 1e9
"""Limit of numbers in a table: with it all derived quantities are finite."""

_CLOCKS_GHZ = 0.01, 10.0
_MOST_CHANNELS = 64
"""Channels of 64 bits: 4,096 data pins. Memory of a host or a pool does not count."""
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
    header, lines = read_csv(path)
    for name in REQUIRED_COLUMNS:
        if name not in header:
            raise AtollError(f"{path}:1: column {name!r} is missing; a table of chips needs it")
    rows, skipped = [], dict[str, int]()
    for line in lines:
        try:
            if line.trouble:
                raise ValueError(line.trouble)
            rows.append(_row(line.number, line.cells))
        except ValueError as error:
            reason = f"line {line.number}: {error}"
            skipped[reason] = skipped.get(reason, 0) + 1
    if not rows:
        raise AtollError(f"{path}: no chip could be read" + "".join(f"; {r}" for r in skipped))
    return rows, skipped


def _row(line: int, cells: Mapping[str, str]) -> ChipRow:
    node = _number(cells, "process_nm")
    if not node:
        raise ValueError("process_nm: a chip needs it, got nothing")
    chip, constructed = _chip(cells, node)
    _check_limits(chip)
    bf16_tflops, fp8_tflops = (_number(cells, name) for name in ("bf16_TFLOPs", "fp8_TFLOPs"))
    peaks = [value * _TERA for value in (bf16_tflops, fp8_tflops) if value]
    # words may count cells of either precision: "4 x 320x320 int8 (fp16 at 1/4)"
    peak = min(peaks, key=lambda flops: abs(flops - (constructed or peaks[0])), default=None)
    silicon, tdp = (_number(cells, name) or None for name in ("silicon_mm2", "tdp_W"))
    return ChipRow(
        line=line,
        name=cells["chip"],
        family=cells["vendor"] or cells["chip"],
        chip=chip,
        silicon_mm2=silicon,
        tdp_W=tdp,
        area_counts=silicon is not None and _has_grade(cells.get("die_q", ""), "published"),
        power_counts=tdp is not None and _has_grade(cells.get("tdp_q", ""), "published", "vendor"),
        peak_flops=peak,
        constructed_flops=constructed,
    )


def _has_grade(words: str, *grades: str) -> bool:
    """Return whether a figure has one of the grades; a table without grades is published."""
    grade_text = words.lower().replace("not published", "")
    return not words or any(grade in grade_text for grade in grades)


def _chip(cells: Mapping[str, str], node: float) -> tuple[PhysicalChip, float | None]:
    matrix, vector = cells.get("matrix_units", ""), cells.get("vector_units", "")
    clock = _clock_Hz(cells)
    per_clock = {
        name: (_number(cells, f"{name}_TFLOPs") or 0.0) * _TERA / 2 / clock
        for name in ("bf16", "fp8", "fp4")
    }
    matrix_cells = per_clock["bf16"] or per_clock["fp8"] / _INT8_PER_BF16
    has_matrix = not matrix.lower().startswith("none")
    factors = _factors(matrix)
    lanes = _lanes(vector)
    if has_matrix:
        unit = _unit(matrix, factors) or matrix_cells / (factors or [1.0])[0]
        constructed = prod(factors) if len(factors) > 1 and _begins_with_count(matrix) else None
    else:  # lanes of 32 bits, two of 16 each
        unit, constructed = 2.0, None if lanes is None else 2 * lanes
    if vector.lower().startswith("same"):
        lanes = 0.0
    cache = (_number(cells, "l2_MiB") or 0.0) * MIB
    sram = (_number(cells, "onchip_sram_MiB") or 0.0) * MIB
    dram = parse_dram(cells.get("hbm_gen", ""))
    dram_Bps = (_number(cells, "hbm_TBps") or 0.0) * _TERA if dram else 0.0
    units = 0.0 if dram is None else dram_Bps / dram.bandwidth_Bps
    stacked = dram is not None and dram.stacked
    if units > _MOST_CHANNELS and not stacked:
        raise ValueError(
            f"hbm_TBps: {dram_Bps / _TERA:g} TB/s of {cells['hbm_gen']} are {units:,.0f} channels "
            f"of 64 bits, and no package has more than {_MOST_CHANNELS}; state what the chip's own "
            "interface has"
        )
    words = cells.get("hbm_stacks", "").strip()
    stack_count = (_factors(words) or [0.0])[0] if words != "0" else 0.0
    package = cells.get("packaging", "").lower()
    on_wafer = "sow" in package or "wafer" in package
    chip = PhysicalChip(
        process_nm=node,
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
        link_Bps=(_number(cells, "link_GBps_total") or 0.0) * _GIGA,
        on_wafer=on_wafer,
        dies=1.0 if on_wafer else _dies(cells.get("dies", "")),
        year=_year(cells),
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


def _begins_with_count(words: str) -> bool:
    """Return whether a product begins with the number of units, not with a unit's shape."""
    return not re.match(r"\s*\d+x\d", words)


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
    """Return the number of vector units, else of matrix units."""
    vector_factors = _factors(vector)
    has_count = vector_factors and (len(vector_factors) > 1 or _lanes(vector) is None)
    return (vector_factors if has_count else factors or [1.0])[0]


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
    return sum(_count(m[1]) for m in logic) or 1.0


def _count(text: str) -> float:
    """Parse a count above 0."""
    value = float(text.replace(",", ""))
    if not 0 < value < _LIMIT:
        raise ValueError(f"expected a count from 1 up to {_LIMIT:.0e}, got {text[:40]!r}")
    return value


def _clock_Hz(cells: Mapping[str, str]) -> float:
    clock_GHz = _number(cells, "clock_GHz") or _USUAL_CLOCK_HZ / _GIGA
    low, high = _CLOCKS_GHZ
    if not low <= clock_GHz <= high:
        raise ValueError(f"clock_GHz: expected {low:g} to {high:g} GHz, got {clock_GHz:g}")
    return clock_GHz * _GIGA


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


def _year(cells: Mapping[str, str]) -> float:
    year = _number(cells, "year") or USUAL_YEAR
    if not 1970 <= year <= 2100:
        raise ValueError(f"year: expected one from 1970 to 2100, got {year:g}")
    return year


def _number(cells: Mapping[str, str], name: str) -> float | None:
    text = cells.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{name}: expected a number, got {text[:40]!r}") from None
    if not 0 <= value < _LIMIT:
        raise ValueError(f"{name}: expected a number from 0 up to {_LIMIT:.0e}, got {text[:40]!r}")
    return value
