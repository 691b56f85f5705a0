"""What is asked of the designs: filters, pages, distributions, the scatter and its front."""

from __future__ import annotations

import csv
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from io import StringIO

import numpy as np
from numpy.typing import NDArray

from atoll.answers.answer import made_of
from atoll.arrays import IntArray
from atoll.errors import AtollError
from atoll.serve.columns import MOST_VALUES, RANGES, TEXTS, Columns, Row
from atoll.serve.compiled import count_bars, extent, fill_cells, walk_front

Mask = NDArray[np.bool_]

MOST_POINTS = 1500
"""Up to here every design is a point of its own; beyond, designs are counted in cells."""
CELLS = (96, 60)
HIGHER_IS_BETTER = ("score", "samples_per_s")
FIGURES = ("area_mm2", "power_W", "score")
LOWER_IS_BETTER = ("area_mm2", "power_W", "energy_per_token_J", "step_time_s")


@dataclass(frozen=True)
class Filters:
    """Ranges by column, and values of text columns; hashable, in the order of the columns."""

    ranges: tuple[tuple[str, float, float], ...] = ()
    texts: tuple[tuple[str, str], ...] = ()


def parse_filters(query: Mapping[str, Sequence[str]], names: Sequence[str]) -> Filters:
    """`area_mm2=100..200`, `width=128`, `score=1000..`, `model=gpt2-xl`; other names are left."""
    ranges: list[tuple[str, float, float]] = []
    texts: list[tuple[str, str]] = []
    for name in names:
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


def column(name: str, names: Collection[str]) -> str:
    if name not in names:
        raise AtollError(f"no column {name!r}; there are {', '.join(names)}.")
    return name


def fails_of(columns: Columns, filters: Filters) -> Mask:
    """(filters, designs): who fails which; ranges first, then texts."""
    failing = np.zeros((len(filters.ranges) + len(filters.texts), len(columns)), np.bool_)
    for index, (name, low, high) in enumerate(filters.ranges):
        values = columns.numbers[name]
        np.logical_not((values >= low) & (values <= high), out=failing[index])  # no value fails, too
    for index, (name, wanted) in enumerate(filters.texts, len(filters.ranges)):
        codes, labels = columns.texts[name]
        np.not_equal(codes, labels.index(wanted) if wanted in labels else -1, out=failing[index])
    return failing


def mask_of(columns: Columns, filters: Filters) -> Mask:
    """Which designs pass."""
    mask: Mask = np.logical_not(np.logical_or.reduce(fails_of(columns, filters), axis=0))
    return mask


def compile_all() -> None:
    """Have everything compiled before the first question."""
    columns = Columns.empty()
    histograms(columns, Filters((("score", 0.0, 1.0),)))
    no_designs = mask_of(columns, Filters())
    scatter(columns, no_designs, "area_mm2", "score")
    front(columns, no_designs, "area_mm2", "score")
    no_counts = np.zeros(CELLS, np.int64)
    fill_cells(no_designs, *(columns.numbers[n] for n in FIGURES[:3]), np.zeros(4), no_counts, no_counts.copy())


def ordered(columns: Columns, mask: Mask, sort: str, descending: bool) -> IntArray:
    """Positions of the designs that pass, by a column; those without a value are last."""
    order = columns.order(column(sort, columns.names), descending)
    return order if mask.all() else order[mask[order]]


def page(columns: Columns, positions: IntArray, offset: int, limit: int) -> list[Row]:
    return [columns.row(int(position)) for position in positions[offset : offset + limit]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """How many designs are in each bar of a column (`columns.Bins`)."""

    column: str
    counts: tuple[int, ...]
    values: tuple[float, ...]
    exact: bool
    logarithmic: bool


def histograms(columns: Columns, filters: Filters) -> tuple[int, list[Histogram]]:
    """How many designs pass; and of each column with more than one value, how many in each bar.

    A bar counts the designs that pass every filter but the column's own, so that one sees where
    its range could be moved to.
    """
    filter_columns = [columns.place(name) for name, _, _ in filters.ranges]
    filter_columns += [-1] * len(filters.texts)
    counts = np.zeros((len(columns.bins), max(RANGES, MOST_VALUES) + 1), np.int64)
    passed = count_bars(columns.codes, fails_of(columns, filters), np.array(filter_columns, np.int64), counts)
    histograms = []
    for index, (name, bins) in enumerate(columns.bins.items()):
        if bins.bars > 1 or index in filter_columns:
            shown = tuple(counts[index, : bins.bars].tolist())
            histograms.append(made_of(Histogram, bins, column=name, counts=shown))
    return int(passed), histograms


@dataclass(frozen=True, slots=True, kw_only=True)
class Scatter:
    """Designs over two columns: points as (chip, x, y), or cells as (across, up, designs, chip)."""

    x: str
    y: str
    shown: int
    total: int
    mode: str
    domain: tuple[tuple[float, float], tuple[float, float]] | None = None
    front: tuple[tuple[int, float, float], ...] = ()
    """Across from the end that is better, so that steps between them are what others reach."""
    best: tuple[int, float, float] | None = None
    """The design of the highest score."""
    points: tuple[tuple[int, float, float], ...] = ()
    grid: tuple[int, int] | None = None
    cells: tuple[tuple[int, int, int, int], ...] = ()


def scatter(columns: Columns, mask: Mask, x: str, y: str) -> Scatter:
    """Every design as a point, or, where they are many, the cells of a grid with their counts.

    A cell names its best design by score.
    """
    across, up = (columns.numbers[column(name, columns.numbers)] for name in (x, y))
    chips, score = columns.numbers["chip"], columns.numbers["score"]
    ends = np.zeros(4)
    shown = int(extent(mask, across, up, ends))
    plot = Scatter(x=x, y=y, shown=shown, total=len(columns), mode="points")
    if shown == 0:
        return plot

    def points(positions: IntArray) -> tuple[tuple[int, float, float], ...]:
        return tuple((int(chips[position]), float(across[position]), float(up[position])) for position in positions)

    left, right, low, high = ends.tolist()
    has_both = mask & ~np.isnan(across) & ~np.isnan(up)
    scores = np.where(has_both & ~np.isnan(score), score, -np.inf)
    front_points = points(front(columns, mask, x, y))
    plot = replace(
        plot,
        domain=((left, right), (low, high)),
        front=tuple(sorted(front_points, key=lambda point: point[1], reverse=x in HIGHER_IS_BETTER)),
        best=next(iter(points(np.array([scores.argmax()])))),
    )
    if shown <= MOST_POINTS:
        return replace(plot, points=points(np.flatnonzero(has_both)))
    counts, best = np.zeros(CELLS, np.int64), np.full(CELLS, -1, np.int64)
    fill_cells(mask, across, up, score, ends, counts, best)
    cell_x, cell_y = np.nonzero(counts)
    cells = np.column_stack([cell_x, cell_y, counts[cell_x, cell_y], chips[best[cell_x, cell_y]].astype(np.int64)])
    return replace(plot, mode="cells", grid=CELLS, cells=tuple(map(tuple, cells.tolist())))


def front(columns: Columns, mask: Mask, x: str, y: str) -> IntArray:
    """Positions that no other beats in both columns; none where a column has no better end."""
    if not {x, y} <= {*HIGHER_IS_BETTER, *LOWER_IS_BETTER} or x == y:
        return np.empty(0, np.int64)
    order = columns.order(y, descending=y in HIGHER_IS_BETTER)
    cost = columns.numbers[x]
    front_positions = np.empty(len(columns), np.int64)
    count = walk_front(
        order, mask, -cost if x in HIGHER_IS_BETTER else cost, columns.numbers[y], front_positions
    )
    return front_positions[:count]


def csv_lines(columns: Columns, positions: IntArray) -> Iterator[bytes]:
    """The designs as CSV, in pieces."""
    yield (",".join(columns.names) + "\r\n").encode()
    for start in range(0, len(positions), 2000):
        piece = StringIO()
        csv.DictWriter(piece, columns.names).writerows(page(columns, positions, start, 2000))
        yield piece.getvalue().encode()


def json_lines(columns: Columns, positions: IntArray) -> Iterator[bytes]:
    """The designs as one JSON list, in pieces."""
    yield b"["
    for start in range(0, len(positions), 2000):
        rows = page(columns, positions, start, 2000)
        joined = ",\n".join(json.dumps(row, allow_nan=False) for row in rows)
        yield ((",\n" if start else "\n") + joined).encode()
    yield b"\n]\n"
