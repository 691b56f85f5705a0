"""Queries over designs: filters, pages, histograms, scatter plot and Pareto front."""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO

import numpy as np
from numpy.typing import NDArray

from atoll.answers.answer import build_from
from atoll.base.arrays import Ints
from atoll.base.errors import AtollError
from atoll.serve.columns import TEXTS, Columns, Row

Mask = NDArray[np.bool_]

MOST_POINTS = 1500
"""Up to this many designs are drawn as points; more are counted in cells."""
CELLS = (96, 60)
HIGHER_IS_BETTER = ("score", "samples_per_s")
LOWER_IS_BETTER = ("area_mm2", "power_W", "energy_per_token_J", "step_time_s")


@dataclass(frozen=True)
class Filters:
    """Ranges by column and values of text columns, in column order; hashable."""

    ranges: tuple[tuple[str, float, float], ...] = ()
    texts: tuple[tuple[str, str], ...] = ()


def parse_filters(query: Mapping[str, Sequence[str]], names: Sequence[str]) -> Filters:
    """`area_mm2=100..200`, `width=128`, `score=1000..`, `model=gpt2-xl`; others are ignored."""
    ranges: list[tuple[str, float, float]] = []
    texts: list[tuple[str, str]] = []
    for name, text in ((name, query[name][-1]) for name in names if query.get(name)):
        if name in TEXTS:
            texts.append((name, text))
            continue
        low, dots, high = text.partition("..")
        first = _parse_number(name, low, -np.inf)
        ranges.append((name, first, _parse_number(name, high, np.inf) if dots else first))
    return Filters(tuple(ranges), tuple(texts))


def _parse_number(name: str, text: str, missing: float) -> float:
    if not text:
        return missing
    try:
        value = float(text)
    except ValueError:
        value = np.nan
    if np.isnan(value):
        raise AtollError(f"{name}: expected a number or a range such as 100..200, got {text!r}.")
    return value


def check_column(name: str, names: Collection[str]) -> str:
    if name not in names:
        raise AtollError(f"no column {name!r}; there are {', '.join(names)}.")
    return name


def failing_designs(columns: Columns, filters: Filters) -> Mask:
    """Return (filters, designs): whether a design fails a filter; ranges first, then texts."""
    fails = np.zeros((len(filters.ranges) + len(filters.texts), len(columns)), np.bool_)
    for i, (name, low, high) in enumerate(filters.ranges):
        values = columns.numbers[name]
        np.logical_not((values >= low) & (values <= high), out=fails[i])  # no value fails, too
    for i, (name, wanted) in enumerate(filters.texts, len(filters.ranges)):
        codes, labels = columns.texts[name]
        np.not_equal(codes, labels.index(wanted) if wanted in labels else -1, out=fails[i])
    return fails


def passing_mask(columns: Columns, filters: Filters) -> Mask:
    """Return the mask of the designs that pass all filters."""
    mask: Mask = np.logical_not(np.logical_or.reduce(failing_designs(columns, filters), axis=0))
    return mask


def ordered(columns: Columns, mask: Mask, sort: str, descending: bool) -> Ints:
    """Return positions of the designs that pass, sorted by a column; missing values last."""
    order = columns.order(check_column(sort, columns.names), descending)
    return order if mask.all() else order[mask[order]]


def page(columns: Columns, positions: Ints, offset: int, limit: int) -> list[Row]:
    return [columns.row(int(position)) for position in positions[offset : offset + limit]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Number of designs per bar of a column (`columns.Bins`)."""

    column: str
    counts: tuple[int, ...]
    values: tuple[float, ...]
    exact: bool
    logarithmic: bool


def histograms(columns: Columns, filters: Filters) -> tuple[int, list[Histogram]]:
    """Return the number of designs that pass, and a histogram per column with several values.

    A bar counts the designs that pass every filter except the column's own, which shows where its
    range could be moved to.
    """
    fails = failing_designs(columns, filters)
    failed = fails.sum(axis=0)
    failing = {name: mask for (name, *_), mask in zip(filters.ranges, fails, strict=False)}
    histograms = []
    for (name, bins), codes in zip(columns.bins.items(), columns.codes, strict=True):
        if bins.bars > 1 or name in failing:
            counted = failed <= failing[name] if name in failing else failed == 0
            counts = np.bincount(codes[counted], minlength=bins.bars)[: bins.bars]
            shown = tuple(counts.tolist())
            histograms.append(build_from(Histogram, bins, column=name, counts=shown))
    return int(np.count_nonzero(failed == 0)), histograms


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """Designs over two columns: points (chip, x, y), or cells (x, y, designs, best chip)."""

    x: str
    y: str
    shown: int
    total: int
    mode: str
    domain: tuple[tuple[float, float], tuple[float, float]] | None = None
    front: tuple[tuple[int, float, float], ...] = ()
    """Pareto front, sorted by x from its better end."""
    best: tuple[int, float, float] | None = None
    """Design with the highest score."""
    points: tuple[tuple[int, float, float], ...] = ()
    grid: tuple[int, int] | None = None
    cells: tuple[tuple[int, int, int, int], ...] = ()


def scatter(columns: Columns, mask: Mask, x: str, y: str) -> Scatter:
    """Return designs as points, or above MOST_POINTS as cells of a grid with their counts.

    A cell names its best design by score.
    """
    across, up = (columns.numbers[check_column(name, columns.numbers)] for name in (x, y))
    chips = columns.numbers["chip"]
    has_both = mask & ~np.isnan(across) & ~np.isnan(up)
    shown = int(np.count_nonzero(has_both))
    plot = Scatter(x=x, y=y, shown=shown, total=len(columns), mode="points")
    if shown == 0:
        return plot

    def points(positions: Ints) -> tuple[tuple[int, float, float], ...]:
        return tuple((int(chips[i]), float(across[i]), float(up[i])) for i in positions)

    ends = [(float(v[has_both].min()), float(v[has_both].max())) for v in (across, up)]
    best_last = columns.order("score", descending=True)[::-1]
    best_last = best_last[has_both[best_last]]
    edge = points(front(columns, mask, x, y))
    plot = replace(
        plot,
        domain=(ends[0], ends[1]),
        front=tuple(sorted(edge, key=lambda p: p[1], reverse=x in HIGHER_IS_BETTER)),
        best=next(iter(points(best_last[-1:]))),
    )
    if shown <= MOST_POINTS:
        return replace(plot, points=points(np.flatnonzero(has_both)))
    cell_x, cell_y = (
        np.minimum((values[best_last] - low) * (count / (high - low or 1.0)), count - 1)
        for values, (low, high), count in zip((across, up), ends, CELLS, strict=True)
    )
    place = cell_x.astype(np.int64) * CELLS[1] + cell_y.astype(np.int64)
    counts, best = np.bincount(place), np.zeros(CELLS[0] * CELLS[1], np.int64)
    best[place] = best_last  # of equal cells the last one stays
    full = np.flatnonzero(counts)
    a, b = np.divmod(full, CELLS[1])
    cells = np.column_stack([a, b, counts[full], chips[best[full]].astype(np.int64)])
    return replace(plot, mode="cells", grid=CELLS, cells=tuple(map(tuple, cells.tolist())))


def front(columns: Columns, mask: Mask, x: str, y: str) -> Ints:
    """Return the Pareto front as positions; empty if a column has no better direction."""
    if not {x, y} <= {*HIGHER_IS_BETTER, *LOWER_IS_BETTER} or x == y:
        return np.empty(0, np.int64)
    cost, gain = columns.numbers[x] * (-1 if x in HIGHER_IS_BETTER else 1), columns.numbers[y]
    order = columns.order(y, descending=y in HIGHER_IS_BETTER)
    order = order[(mask & ~np.isnan(cost) & ~np.isnan(gain))[order]]
    cheapest_before = np.minimum.accumulate(np.append(np.inf, cost[order]))[:-1]
    order = order[cost[order] < cheapest_before]
    last_of_gain = np.append(np.diff(gain[order]) != 0, True)  # which is the cheapest of them
    chosen: Ints = order[last_of_gain[: len(order)]]
    return chosen


def csv_lines(columns: Columns, positions: Ints) -> Iterator[bytes]:
    """Yield the designs as CSV in batches."""
    yield (",".join(columns.names) + "\r\n").encode()
    for start in range(0, len(positions), 2000):
        piece = StringIO()
        csv.DictWriter(piece, columns.names).writerows(page(columns, positions, start, 2000))
        yield piece.getvalue().encode()


def json_lines(columns: Columns, positions: Ints) -> Iterator[bytes]:
    """Yield the designs as one JSON list in batches."""
    yield b"["
    for start in range(0, len(positions), 2000):
        rows = page(columns, positions, start, 2000)
        joined = ",\n".join(json.dumps(row, allow_nan=False) for row in rows)
        yield ((",\n" if start else "\n") + joined).encode()
    yield b"\n]\n"
