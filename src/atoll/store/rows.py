"""Rows of a run that are not chips (layouts, wafers), with the queries of a store's designs, and
all designs of a run as one Parquet file, for pandas, DuckDB and the like.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import JsonValue

from atoll.answers.designs import Row
from atoll.base.errors import AtollError
from atoll.files.atomic_file import atomic_files
from atoll.store.reader import Filters, RunReader


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


# --- Parquet --------------------------------------------------------------------------------------


_TEXT = ("model", "phase", "plans")
_INTEGERS = ("chip", "design", "microbatch", "tensor", "pipeline", "data")


def export_parquet(reader: RunReader | Rows, path: Path) -> int:
    """Write every design atomically, best first, and return their number."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise AtollError(
            "parquet: needs pyarrow, which is not installed; pip install 'atoll[parquet]'."
        ) from None
    if isinstance(reader, Rows):
        schema = pa.Table.from_pylist(next(reader.batches())).schema
    else:
        columns = (*reader.columns, "plans")
        integers = {*_INTEGERS, *(p.name for p in reader.parameters if p.whole)}
        kinds = [
            pa.string() if name in _TEXT else pa.int64() if name in integers else pa.float64()
            for name in columns
        ]
        schema = pa.schema(list(zip(columns, kinds, strict=True)))
    count = 0
    with (
        atomic_files(lambda why: f"{path}: cannot be written ({why}).", path) as (part,),
        pq.ParquetWriter(part, schema, compression="zstd") as writer,
    ):
        for rows in reader.batches():
            writer.write_table(pa.Table.from_pylist([*map(dict, rows)], schema=schema))
            count += len(rows)
    return count
