"""What is asked of the designs: filters, pages, distributions, the scatter and its front."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.errors import AtollError
from atoll.serve.columns import NUMBERS, TEXTS, Columns, IntArray
from atoll.store import DESIGN_COLUMNS

Mask = NDArray[np.bool_]

MOST_POINTS = 1500
"""Up to here every design is a point of its own; beyond, designs are counted in cells."""
CELLS = (96, 60)
HIGHER_IS_BETTER = ("score", "samples_per_s")
LOWER_IS_BETTER = ("area_mm2", "power_W", "energy_per_token_J", "step_time_s")


@dataclass(frozen=True)
class Filters:
    """Ranges by column, and values of text columns; hashable, in the order of the columns."""

    ranges: tuple[tuple[str, float, float], ...] = ()
    texts: tuple[tuple[str, str], ...] = ()

    def without(self, name: str) -> Filters:
        return Filters(tuple(r for r in self.ranges if r[0] != name), self.texts)


def parse_filters(query: Mapping[str, Sequence[str]]) -> Filters:
    """`area_mm2=100..200`, `width=128`, `score=1000..`, `model=gpt2-xl`; other names are left."""
    ranges: list[tuple[str, float, float]] = []
    texts: list[tuple[str, str]] = []
    for name in DESIGN_COLUMNS:
        for text in query.get(name, ())[-1:]:
            if name in TEXTS:
                texts.append((name, text))
                continue
            low, dots, high = text.partition("..")
            first = _number(name, low, -np.inf)
            ranges.append((name, first, _number(name, high, np.inf) if dots else first))
    return Filters(tuple(ranges), tuple(texts))


def _number(name: str, text: str, missing: float) -> float:
    if not text:
        return missing
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if np.isnan(value):
        raise AtollError(f"{name}: expected a number or a range such as 100..200, got {text!r}.")
    return value


def column(name: str, among: Sequence[str] = DESIGN_COLUMNS) -> str:
    if name not in among:
        raise AtollError(f"no column {name!r}; there are {', '.join(among)}.")
    return name


def mask_of(columns: Columns, filters: Filters) -> Mask:
    """Which designs pass."""
    mask = np.ones(len(columns), np.bool_)
    for name, low, high in filters.ranges:
        values = columns.numbers[name]
        if low > -np.inf:
            mask &= values >= low
        if high < np.inf:
            mask &= values <= high
        if low == -np.inf and high == np.inf:
            mask &= ~np.isnan(values)
    for name, wanted in filters.texts:
        codes, labels = columns.texts[name]
        mask &= codes == (labels.index(wanted) if wanted in labels else -1)
    return mask


def ordered(columns: Columns, mask: Mask, sort: str, descending: bool) -> IntArray:
    """Positions of the designs that pass, by a column; those without a value are last."""
    order = columns.order(column(sort), descending)
    return order if mask.all() else order[mask[order]]


def page(columns: Columns, positions: IntArray, offset: int, limit: int) -> list[dict[str, Any]]:
    return [columns.row(int(at)) for at in positions[offset : offset + limit]]


def histograms(columns: Columns, filters: Filters) -> list[dict[str, Any]]:
    """Of each column with more than one value: how many designs each bar holds.

    `counts` are of the designs that pass every filter but the column's own, so that one sees where
    its range could be moved to.
    """
    found = []
    everywhere = mask_of(columns, filters)
    for name in NUMBERS:
        if name in ("chip", "design", "at"):
            continue
        bins = columns.bins(name)
        own = any(name == filtered for filtered, _, _ in filters.ranges)
        if bins.bars < 2 and not own:
            continue
        mask = mask_of(columns, filters.without(name)) if own else everywhere
        counts = np.bincount(bins.code[mask], minlength=bins.bars + 1)[: bins.bars]
        found.append(
            {
                "column": name,
                "values": list(bins.values),
                "exact": bins.exact,
                "counts": counts.tolist(),
            }
        )
    return found


def scatter(columns: Columns, mask: Mask, x: str, y: str) -> dict[str, Any]:
    """Every design as a point, or, where they are many, the cells of a grid with their counts.

    A cell names its best design by score.
    """
    across, up = columns.numbers[column(x, NUMBERS)], columns.numbers[column(y, NUMBERS)]
    shown = mask & np.isfinite(across) & np.isfinite(up)
    # Ascending by score: of several designs in a cell the last one written is the best.
    chosen = ordered(columns, shown, "score", descending=False)
    chips = columns.numbers["chip"]
    answer: dict[str, Any] = {"x": x, "y": y, "shown": len(chosen), "mode": "points"}
    if len(chosen) == 0:
        return answer | {"points": [], "front": []}

    def points(positions: IntArray) -> list[list[float]]:
        return [[int(chips[at]), float(across[at]), float(up[at])] for at in positions]

    answer["domain"] = [[float(a[chosen].min()), float(a[chosen].max())] for a in (across, up)]
    answer["front"] = points(front(columns, shown, x, y))
    if len(chosen) <= MOST_POINTS:
        return answer | {"points": points(chosen)}
    (x0, x1), (y0, y1) = answer["domain"]
    wide, high = CELLS
    cell = _cell(across[chosen], x0, x1, wide) * high + _cell(up[chosen], y0, y1, high)
    counts = np.bincount(cell, minlength=wide * high)
    best = np.full(wide * high, -1, np.int64)
    best[cell] = chosen
    filled = np.flatnonzero(counts)
    cells = [filled // high, filled % high, counts[filled], chips[best[filled]].astype(np.int64)]
    return answer | {
        "mode": "cells",
        "grid": [wide, high],
        "cells": np.column_stack(cells).tolist(),
    }


def _cell(values: NDArray[np.float64], low: float, high: float, cells: int) -> IntArray:
    if high <= low:
        return np.zeros(len(values), np.int64)
    share = (values - low) / (high - low)
    return np.minimum(share * cells, cells - 1).astype(np.int64)


def front(columns: Columns, mask: Mask, x: str, y: str) -> IntArray:
    """Positions that no other beats in both columns; none where a column has no better end."""
    nothing = np.empty(0, np.int64)
    if not {x, y} <= {*HIGHER_IS_BETTER, *LOWER_IS_BETTER} or x == y:
        return nothing
    chosen = ordered(columns, mask, y, descending=y in HIGHER_IS_BETTER)
    if len(chosen) == 0:
        return nothing
    cost = columns.numbers[x][chosen] * (-1.0 if x in HIGHER_IS_BETTER else 1.0)
    least = np.minimum.accumulate(cost)
    kept = chosen[np.concatenate([[True], cost[1:] < least[:-1]])]
    # Of designs that are equal in y only the last, and cheapest, stays.
    gain = columns.numbers[y][kept]
    last: IntArray = kept[np.concatenate([gain[1:] != gain[:-1], [True]])]
    return last


def csv_lines(columns: Columns, positions: IntArray) -> Iterator[bytes]:
    """The designs as CSV, in pieces."""
    yield (",".join(DESIGN_COLUMNS) + "\r\n").encode()
    for start in range(0, len(positions), 2000):
        rows = page(columns, positions, start, 2000)
        lines = (",".join(_cell_text(row[name]) for name in DESIGN_COLUMNS) for row in rows)
        yield ("\r\n".join(lines) + "\r\n").encode()


def _cell_text(value: Any) -> str:
    if value is None:
        return ""
    text = str(value)
    return f'"{text.replace(chr(34), chr(34) * 2)}"' if set(text) & set(',"\r\n') else text


def json_lines(columns: Columns, positions: IntArray) -> Iterator[bytes]:
    """The designs as one JSON list, in pieces."""
    yield b"["
    for start in range(0, len(positions), 2000):
        rows = page(columns, positions, start, 2000)
        joined = ",\n".join(json.dumps(row, allow_nan=False) for row in rows)
        yield ((",\n" if start else "\n") + joined).encode()
    yield b"\n]\n"
