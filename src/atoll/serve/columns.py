"""The designs of a run as arrays in memory, so that a million of them answer at once.

A `Columns` is an immutable snapshot, sorted by chip, replaced when the search has written more.
Sort orders and bins are computed once per snapshot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import Floats, Ints
from atoll.store.schema import design_columns

TEXTS = ("model", "phase")
FIGURES = design_columns(())
"""Columns that every run has."""
MOST_VALUES = 32
"""Parameters with at most this many values have one bar per value; others have ranges."""
MEASURED = ("score", "area_mm2", "power_W", "energy_per_token_J", "samples_per_s", "step_time_s")
"""Continuous columns: always shown in ranges."""
RANGES = 40
Codes = tuple[NDArray[np.int16], tuple[str, ...]]
"""Of a column of texts: the code per design, and the label per code."""
WIDE = 50.0
"""Values that span more than this factor have logarithmic ranges."""


@dataclass(frozen=True, eq=False)
class Bins:
    """Bars of a column's histogram: one per value, or one per range."""

    values: tuple[float, ...]
    """The values, or the edges of the ranges (bars + 1)."""
    exact: bool
    logarithmic: bool = False
    """Whether the ranges have equal width in their logarithms."""

    @property
    def bars(self) -> int:
        return len(self.values) if self.exact else len(self.values) - 1


@dataclass(frozen=True, eq=False)
class Columns:
    """Snapshot of all designs of a run, sorted by chip."""

    numbers: Mapping[str, Floats]
    texts: Mapping[str, Codes]
    version: int = 0
    bins: Mapping[str, Bins] = field(default_factory=dict)
    """Bins of the figures, parameters and plan columns."""
    codes: NDArray[np.int8] = field(default_factory=lambda: np.empty((0, 0), np.int8))
    """(binned columns, designs): index of the bar; designs without a value have index `bars`."""
    _orders: dict[tuple[str, bool], Ints] = field(default_factory=dict)

    @staticmethod
    def of(numbers: Mapping[str, Floats], texts: Mapping[str, Codes], version: int = 0) -> Columns:
        binned = [name for name in numbers if name not in ("chip", "design", "at")]
        codes = np.empty((len(binned), len(numbers["chip"])), np.int8)
        bins = {
            name: _cut(numbers[name], code, 1 if name in MEASURED else MOST_VALUES)
            for name, code in zip(binned, codes, strict=True)
        }
        return Columns(numbers, texts, version, bins, codes)

    @staticmethod
    def empty(names: Sequence[str] = FIGURES) -> Columns:
        """Return columns of these names without rows."""
        numbers = {name: np.empty(0) for name in names if name not in TEXTS}
        return Columns.of(numbers, {name: (np.empty(0, np.int16), ()) for name in TEXTS})

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all columns, in the store's order."""
        return design_columns([n for n in self.numbers if n not in FIGURES])

    def __len__(self) -> int:
        return len(self.numbers["chip"])

    def order(self, name: str, descending: bool = False) -> Ints:
        """Return positions sorted by value, then by chip; designs without a value come last."""
        key = name, descending
        if key not in self._orders:
            values = self.texts[name][0] if name in self.texts else self.numbers[name]
            # Two threads may compute the same; both results are right.
            self._orders[key] = np.argsort(-values if descending else values, kind="stable")
        return self._orders[key]

    def position(self, chip: int) -> int | None:
        """Return the position of a chip, or None."""
        chips = self.numbers["chip"]
        position = int(np.searchsorted(chips, chip))
        return position if position < len(chips) and chips[position] == chip else None

    def row(self, position: int) -> Row:
        """Return one design; integers as int, missing values as None."""
        row: Row = {}
        for name in self.names:
            if name in self.texts:
                codes, labels = self.texts[name]
                row[name] = labels[codes[position]]
            else:
                row[name] = plain(self.numbers[name][position])
        return row


Row = dict[str, int | float | str | None]
"""A design by the names of its columns."""


class Gatherer:
    """Collects rows in batches and joins them to a snapshot."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = tuple(names)
        self._numbers: dict[str, list[Floats]] = {n: [] for n in names if n not in TEXTS}
        self._texts: dict[str, list[tuple[Any, ...]]] = {name: [] for name in TEXTS}
        self.rows = 0

    def add(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Add rows whose values are in the order of the columns."""
        self.rows += len(rows)
        for name, values in zip(self._names, zip(*rows, strict=True), strict=True):
            if name in TEXTS:
                self._texts[name].append(values)
            else:
                self._numbers[name].append(np.array(values, np.float64))  # None becomes NaN

    def joined(self, base: Columns) -> Columns:
        """Return a snapshot with these rows; a chip's later row replaces its earlier one."""
        if not self.rows:
            return base
        chips = np.concatenate([base.numbers["chip"], *self._numbers["chip"]])
        # np.unique keeps the first of equal chips: in the reversed list that is the last row.
        _, last = np.unique(chips[::-1], return_index=True)
        kept_rows = len(chips) - 1 - last
        numbers = {
            name: np.concatenate([base.numbers[name], *self._numbers[name]])[kept_rows]
            for name in self._numbers
        }
        texts = {name: _texts(base.texts[name], self._texts[name], kept_rows) for name in TEXTS}
        return Columns.of(numbers, texts, base.version + 1)


def plain(value: float) -> float | int | None:
    """Return a number for JSON: int where exact, None where not finite."""
    number = float(value)
    if not np.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _texts(base: Codes, added: Sequence[tuple[Any, ...]], kept_rows: Ints) -> Codes:
    codes, labels = base
    number = {label: code for code, label in enumerate(labels)}
    parts = [codes]
    for piece in added:
        names = ["" if value is None else str(value) for value in piece]
        for label in dict.fromkeys(names):
            number.setdefault(label, len(number))
        parts.append(np.fromiter((number[label] for label in names), np.int16, len(names)))
    return np.concatenate(parts)[kept_rows], tuple(number)


def _cut(values: Floats, code: NDArray[np.int8], most_values: int) -> Bins:
    """Return the bars of a column and fill `code` with the bar index per design."""
    finite = np.isfinite(values)
    sample = values[:: max(1, len(values) // 20_000)]
    if len(np.unique(sample[np.isfinite(sample)])) <= most_values:
        distinct = np.unique(values[finite])
        if len(distinct) <= most_values:
            code[:] = np.searchsorted(distinct, values)
            code[~finite] = len(distinct)
            return Bins(tuple(float(v) for v in distinct), True)
    low, high = float(values[finite].min()), float(values[finite].max())
    logarithmic = low > 0.0 and high > WIDE * low
    spacing = np.geomspace if logarithmic else np.linspace
    edges = spacing(low, high, RANGES + 1)
    code[:] = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, RANGES - 1)
    code[~finite] = RANGES
    return Bins(tuple(float(v) for v in edges), False, logarithmic)
