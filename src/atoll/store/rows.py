"""Rows of a run that are not chips (layouts, wafers), with the queries of a store's designs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import JsonValue

from atoll.answers.designs import Row
from atoll.base.errors import AtollError
from atoll.store.reader import Filters


class Rows:
    """At most a few thousand rows in memory, each with a `score`."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = sorted(rows, key=lambda row: -_number("score", row["score"]))

    def count(self, filters: Filters) -> int:
        return len(self._passing(filters))

    def designs(self, filters: Filters, *, sort: str, limit: int, offset: int) -> list[Row]:
        """Return a page, the best first, or sorted by any column."""
        self._check(sort)
        down = sort in ("score", "samples_per_s")
        matching = sorted(self._passing(filters), key=lambda row: _key(row[sort]), reverse=down)
        return matching[offset : offset + limit]

    def front(self, against: str, filters: Filters) -> list[Row]:
        """Return rows that none beats in both score and `against`, fastest first."""
        self._check(against)
        front_rows: list[Row] = []
        least = math.inf
        for row in self._passing(filters):
            cost = _number(against, row[against])
            if cost < least:
                least = cost
                front_rows.append(row)
        return front_rows

    def batches(self) -> Iterator[list[Row]]:
        yield self._rows

    def _passing(self, filters: Filters) -> list[Row]:
        for name in filters:
            self._check(name)
        return [row for row in self._rows if all(_passes(row[n], w) for n, w in filters.items())]

    def _check(self, column: str) -> None:
        columns = list(self._rows[0]) if self._rows else [column]
        if column not in columns:
            raise AtollError(f"designs: no column {column!r}; there are {', '.join(columns)}.")


def _number(name: str, value: JsonValue) -> float:
    if not isinstance(value, int | float):
        raise AtollError(f"front: {name} is not a number.")
    return value


def _key(value: Any) -> Any:
    return value if isinstance(value, int | float) else str(value)


def _passes(value: Any, wanted: Any) -> bool:
    if not isinstance(wanted, tuple):
        return bool(value == wanted)
    low, high = wanted
    number = isinstance(value, int | float)
    return number and (low is None or value >= low) and (high is None or value <= high)
