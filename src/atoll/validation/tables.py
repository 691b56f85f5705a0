"""Tables of measurements: rows that check their cells, and training runs and steps among them.

`columns.yaml` declares every column once; missing columns count as empty. A table of steps of
Hugging Face models on one device has `step_ms` instead of the measured columns of runs
(`benchmarks/measure_steps.py` writes such files).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from atoll.base.errors import AtollError
from atoll.files.csvfile import read_csv, write_csv
from atoll.files.yamlfile import shipped_table, suggestion

T = TypeVar("T")
RUN_COLUMNS = ("id", "layers", "hidden", "seq", "device", "devices", "global_batch", "tp", "pp")
STEP_COLUMNS = ("family", "layers", "hidden", "heads", "ffn", "vocab", "mbs", "seq", "step_ms")
OUT_OF_MEMORY = "OOM"
"""Word instead of a step's time."""
HOST_SHARE = 0.9
"""Share of a rank's step from which on the host limits it."""
TIMES_S = 1e-9, 1e9
PEAKS_BYTES = 1.0, 1e15
"""Ranges of measurements; outside, errors would not be finite."""


class Column(NamedTuple):
    """Type, limits, unit and meaning of the cells of a column."""

    type: str
    low: float
    high: float
    unit: str
    means: str
    table: str


@lru_cache(maxsize=1)
def columns() -> Mapping[str, Column]:
    """Return all columns by name."""
    declared: dict[str, Column] = {}
    for table, groups in shipped_table("atoll.validation", "columns.yaml").items():
        for group in groups:
            kind = group.get("type", "text")
            high = {"flag": 1, "text": 0}[kind] if kind in ("flag", "text") else group["high"]
            limits = group.get("low", 0), high
            column = Column(kind, *limits, group.get("unit", ""), group["means"], table)
            declared |= dict.fromkeys(group["names"].split(), column)
    return declared


@dataclass(frozen=True)
class Row:
    """A line of a table; cells are checked when they are read."""

    line: int
    values: Mapping[str, str]
    trouble: str = ""
    """Reason why it could not be read, if any."""

    @property
    def id(self) -> str:
        return self.values.get("id", "")

    @property
    def where(self) -> str:
        return f"line {self.line} ({self.id})" if self.id else f"line {self.line}"

    def check(self) -> None:
        """Refuse a row that could not be read."""
        if self.trouble:
            raise AtollError(self.trouble)

    def text(self, name: str, default: str = "") -> str:
        return self.values.get(name, "").strip() or default

    def number(self, name: str, default: float | None = None) -> float:
        """Return a number within its column's limits; without a default it must be stated."""
        text, column = self.text(name), columns()[name]
        try:
            value = float(text or math.nan)
        except ValueError:
            raise AtollError(f"{self.where}: {name} is {text[:40]!r}, expected a number") from None
        if math.isnan(value):  # some tools write nan for nothing
            if default is None:
                raise AtollError(f"{self.where}: {name} is empty")
            return default
        if not column.low <= value <= column.high or (column.type == "flag" and value % 1):
            limits = "0 or 1" if column.type == "flag" else f"{column.low:g} to {column.high:g}"
            expected = f"{limits} {column.unit}".strip()
            raise AtollError(f"{self.where}: {name} is {text[:40]!r}, expected {expected}")
        return value

    def integer(self, name: str, default: int | None = None) -> int:
        return round(self.number(name, default))


class RunRow(Row):
    """A measured training run, or a step of one device."""

    @property
    def source(self) -> str:
        return self.text("source")

    @property
    def device(self) -> str:
        return self.text("device")

    @property
    def quality(self) -> str:
        return self.text("quality")

    @property
    def is_step(self) -> bool:
        return "step_ms" in self.values

    @property
    def is_rank(self) -> bool:
        """Whether it is one rank of a layout, measured without communication."""
        return self.is_step and bool(self.text("world"))

    @property
    def ran_out_of_memory(self) -> bool:
        return self.text("step_ms") == OUT_OF_MEMORY

    @property
    def time_s(self) -> float | None:
        """Measured step time, else derived from tokens per second; None for a rank whose host
        limits it, as stand-ins for collectives take it longer than collectives do.
        """
        if self.is_step:
            if self.ran_out_of_memory:
                return None
            step_ms = self.number("step_ms")
            limited_by_host = self.is_rank and self.number("host_ms", 0.0) > HOST_SHARE * step_ms
            return None if limited_by_host else step_ms / 1e3
        if value := self.number("measured_iter_time_s", 0.0):
            return value
        rate = self.number("measured_tokens_per_s_per_device", 0.0)
        sizes = [self.integer(n) for n in ("global_batch", "seq", "devices")] if rate else []
        return sizes[0] * sizes[1] / rate / sizes[2] if rate else None

    @property
    def peak_bytes(self) -> float | None:
        if self.is_step:
            return (not self.ran_out_of_memory and self.number("peak_bytes", 0.0)) or None
        return self.number("measured_peak_mem_GB", 0.0) * 1e9 or None

    def check(self) -> None:
        """Refuse a row that could not be read, or with impossible measurements."""
        super().check()
        for name, value, (low, high) in (
            ("step time", self.time_s, TIMES_S),
            ("peak memory", self.peak_bytes, PEAKS_BYTES),
        ):
            if value is not None and not low < value < high:
                raise AtollError(f"{self.where}: a {name} of {value:g} was never measured")


R = TypeVar("R", bound=Row)


def read_rows(
    path: str | Path | Traversable, required: Sequence[str], row: type[R]
) -> tuple[R, ...]:
    """Read all rows of a file; refuse a file without the required columns."""
    header, lines = read_csv(path)
    missing = [name for name in required if name not in header]
    if missing:
        near = suggestion(missing[0], header) if len(missing) == 1 else ""
        raise AtollError(f"{path}: the columns {', '.join(missing)} are missing{near}")
    return tuple(
        row(line.number, line.cells, f"line {line.number}: {line.trouble}" if line.trouble else "")
        for line in lines
    )


def is_step_table(header: Sequence[str]) -> bool:
    """Return whether a table's columns are those of steps of one device."""
    return set(STEP_COLUMNS) <= set(header)


def read_runs(
    path: str | Path | Traversable, device: str = "h200", required: Sequence[str] = RUN_COLUMNS
) -> tuple[RunRow, ...]:
    """Read the runs of a file, or the steps of one device."""
    if not is_step_table(read_csv(path)[0]):
        return read_rows(path, required, RunRow)
    return tuple(with_run(r, str(path), device) for r in read_rows(path, STEP_COLUMNS, RunRow))


def with_run(row: RunRow, path: str, device: str) -> RunRow:
    """Return a step with the columns of a run on one device, or on all of a rank's world."""
    sizes = row.text("model") or row.text("family"), row.text("mbs"), row.text("seq")
    cells = {"id": row.id or "-".join(sizes), "source": path, "device": device}
    row = replace(row, values={**row.values, **cells, "quality": "A"})
    try:
        least = 1 if row.ran_out_of_memory else None  # such rows may state nothing but their model
        world, model_ranks = (row.integer("world", 1), row.integer("tp", 1) * row.integer("pp", 1))
        sequences = row.integer("mbs", least) * row.integer("accum", row.integer("microbatches", 1))
        batch = str(sequences * (world // model_ranks))
    except AtollError as error:
        return replace(row, trouble=row.trouble or str(error))
    added = {"devices": str(world), "micro_batch": row.text("mbs", "1"), "global_batch": batch}
    values = {**row.values, **added}
    return replace(row, values=values)


def read_each(rows: Iterable[R], read: Callable[[R], T]) -> tuple[list[T], dict[str, int]]:
    """Read every row; return the results, and the number of skipped rows by reason."""
    results, skipped = [], Counter[str]()
    for row in rows:
        try:
            row.check()
            results.append(read(row))
        except AtollError as error:
            skipped[str(error)] += 1
        except ValueError as error:
            skipped[f"{row.where}: {error}"] += 1
    return results, dict(skipped.most_common())


def write_records(path: str | Path | None, header: Sequence[str], records: Sequence[Any]) -> None:
    """Write a line per record, an object or a mapping, if there is a path."""
    if path is not None:
        write_csv(path, header, [[_cell(record, name) for name in header] for record in records])


def _cell(record: Any, name: str) -> object:
    """Return a field: numbers to nine digits, nothing for None and nan, flags as 0 or 1."""
    value = record.get(name) if isinstance(record, Mapping) else getattr(record, name)
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.9g}"
    return "" if value is None else value
