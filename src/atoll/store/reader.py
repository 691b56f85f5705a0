"""Read-only access to a run's store, also while the search is writing.

with RunReader(Path("runs/mine")) as run:
    run.status().gap
    run.designs({"width": 128, "area_mm2": (100, 200)}, sort="power_W", limit=20)
    run.front("area_mm2")
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, cast

from atoll.answers.answer import build_from, checked, parse_answer
from atoll.answers.designs import Identity, RunKind, ShownParameter, StatusAnswer, StoredDesign
from atoll.answers.plan import PlanAnswer
from atoll.answers.search import SearchAnswer
from atoll.answers.wafer import WaferAnswer
from atoll.base.errors import AtollError
from atoll.files.atomic_file import as_written
from atoll.files.inputs import check_readable
from atoll.files.jsonfile import parse_object
from atoll.step.certificate import relative_gap
from atoll.store import schema
from atoll.store.lock import lock_holder

TEXTS = ("model", "phase", "plans", "key", "value", "effort")

Filters = Mapping[str, float | str | tuple[float | None, float | None]]
"""By column: a value, or a range (low, high) with None for no limit."""


@dataclass(frozen=True)
class Incumbent:
    """A design that was the best when it was evaluated."""

    chip: int
    score: float
    bound: float
    seconds: float


@dataclass(frozen=True)
class ProgressPoint:
    """Progress of the search at one time."""

    run: int
    seconds: float
    phase: str
    left: int
    total: int
    evaluated: int
    score: float
    bound: float | None  # None where nothing is bounded yet


class RunReader:
    """Reads the store in a folder."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.path = self.folder / schema.FILE
        check_readable(self.path)
        if not os.path.exists(self.path):  # noqa: PTH110  (no raise)
            raise AtollError(
                f"{self.folder}: no {schema.FILE} in it; give a folder that atoll search --out or "
                "atoll plan --out wrote."
            )
        with schema.in_sentences(self.path):
            self._connection = _open(self.path)
            schema.check_version(self._connection, self.path)
        try:
            self.as_written = as_written(self.path)
            """Whether its checksum is recorded and matches."""
            if not self.as_written and lock_holder(self.folder) is None:  # killed, or copied
                _check_once(self.path, _state(self.path))
        except AtollError:
            self._connection.close()
            raise
        self._connection.row_factory = sqlite3.Row

    def __enter__(self) -> RunReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    # --- The run --------------------------------------------------------------------------------

    def job(self) -> Identity:
        """Return the job of the folder, as fingerprinted."""
        text = self._record("meta", "WHERE key = 'job'")["value"]
        return parse_object(text, f"{self.path}: the job")

    def kind(self) -> RunKind:
        """Return the kind of run: "search" (chips), "wafer" or "plan"."""
        job = self.job()
        return "wafer" if "wafer" in job else "plan" if "device" in job else "search"

    def fingerprint(self) -> str:
        return str(self._record("meta", "WHERE key = 'fingerprint'")["value"])

    def status(self) -> StatusAnswer:
        """Return the status of the latest run."""
        run = self._single_row("SELECT * FROM runs ORDER BY run DESC LIMIT 1")
        begun = ProgressPoint(int(run["run"]), 0.0, "", 0, 0, 0, 0.0, 0.0)
        last = next(self._points("ORDER BY rowid DESC LIMIT 1"), begun)
        state = str(run["status"])
        if state == "running" and lock_holder(self.folder) is None:
            state = "killed"
        return build_from(
            StatusAnswer,
            last,
            state=state,
            pid=run["pid"],
            host=run["host"],
            executor=run["executor"],
            bounded=int(self._single_row("SELECT count(*) FROM bounds")[0]),
            evaluated=int(self._single_row("SELECT count(DISTINCT chip) FROM evaluations")[0]),
            designs=self.count(),
            gap=relative_gap(last.score, last.bound) if last.score > 0.0 and last.bound else None,
        )

    def incumbents(self) -> list[Incumbent]:
        """Return the best designs over time, oldest first."""
        rows = self._records("incumbents", "ORDER BY score")
        return [Incumbent(row["chip"], row["score"], row["bound"], row["seconds"]) for row in rows]

    def progress(self) -> list[ProgressPoint]:
        """Return score and bound over time."""
        return list(self._points("ORDER BY rowid"))

    def _points(self, which: str) -> Iterator[ProgressPoint]:
        names = [field.name for field in fields(ProgressPoint)]
        for row in self._records("progress", which):
            point = ProgressPoint(*(row[name] for name in names))
            yield point if row["bound"] < schema.UNBOUNDED else replace(point, bound=None)

    def result(self) -> SearchAnswer | WaferAnswer | PlanAnswer | None:
        """Return the last recorded answer, or None."""
        source = f"{self.path}: the result"
        for row in self._records("notes", "WHERE key = 'result'"):
            content = parse_object(row["value"], source)
            answer = parse_answer(content, source, SearchAnswer, WaferAnswer, PlanAnswer)
            assert isinstance(answer, SearchAnswer | WaferAnswer | PlanAnswer)
            return answer
        return None

    def notes(self, prefix: str) -> list[Identity]:
        """Return notes whose keys begin with a prefix."""
        records = self._records("notes", "WHERE substr(key, 1, ?) = ?", len(prefix), prefix)
        return [parse_object(row["value"], f"{self.path}: {prefix}") for row in records]

    # --- Designs --------------------------------------------------------------------------------

    @cached_property
    def parameters(self) -> tuple[ShownParameter, ...]:
        """Parameters of the chips; each is a column."""
        return schema.job_parameters(self.job(), f"{self.path}: the job")

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns for filters and sorting."""
        return schema.design_columns([parameter.name for parameter in self.parameters])

    def _check_column(self, name: str) -> None:
        if name not in self.columns:
            raise AtollError(f"designs: no column {name!r}; there are {', '.join(self.columns)}.")

    def _source(self, columns: Filters) -> str:
        """Return the index if it covers these columns, else the table, as SQL. By default SQLite
        would look up rows one by one through the index."""
        covered = ("chip", *schema.FIGURES, *(parameter.name for parameter in self.parameters))
        index_covers = all(name in covered for name in columns)
        return "designs INDEXED BY designs_by_score" if index_covers else "designs NOT INDEXED"

    def count(self, filters: Filters | None = None) -> int:
        """Count evaluated designs that pass the filters."""
        where, values = self._where(filters)
        source = self._source(filters or {})
        return int(self._single_row(f"SELECT count(*) FROM {source}{where}", *values)[0])

    def designs(
        self,
        filters: Filters | None = None,
        *,
        sort: str = "score",
        descending: bool | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> list[StoredDesign]:
        """Return a page of designs, the best first, or sorted by any column."""
        self._check_column(sort)
        down = sort in ("score", "samples_per_s") if descending is None else descending
        where, values = self._where(filters)
        direction = "DESC" if down else "ASC"
        tie = "area_mm2, chip" if sort == "score" else "chip"
        chips = self._all(
            f"SELECT chip FROM {self._source({**(filters or {}), sort: 0.0})}{where} "
            f"ORDER BY {sort} {direction}, {tie} LIMIT ? OFFSET ?",
            *values, limit, offset,
        )  # fmt: skip
        return self._rows([row["chip"] for row in chips])

    def design(self, chip: int) -> StoredDesign | None:
        """Return one design with the plans of all its models."""
        source = f"{self.path}: design {chip}"
        for row in self._records("designs", "WHERE chip = ?", chip):
            figures = {name: row[name] for name in self.columns}
            plans = parse_object(f'{{"plans": {row["plans"]}}}', source)
            return checked(figures | plans, StoredDesign, source)
        return None

    def front(
        self, against: str = "area_mm2", filters: Filters | None = None
    ) -> list[StoredDesign]:
        """Return evaluated designs that none beats in both score and `against`, fastest first.

        Each step queries the next design by falling score that costs less than the last one: all
        steps together pass the index once.
        """
        if against in ("model", "phase") or against not in self.columns:
            self._check_column(against)
            raise AtollError(f"front: {against} is not a number.")
        where, values = self._where(filters, f"{against} < ? AND score <= ? AND score > 0")
        source = self._source({**(filters or {}), against: 0.0})
        query = (
            f"SELECT chip, score, {against} FROM {source}{where} "
            f"ORDER BY score DESC, {against} LIMIT 1"
        )
        chosen: list[int] = []
        cost, score = float("inf"), float("inf")
        while True:
            row = next(iter(self._all(query, *values, cost, score)), None)
            if row is None or (row["score"], row[against]) == (score, cost):
                break
            chosen.append(row["chip"])
            score, cost = row["score"], row[against]
        return self._rows(chosen)

    def _rows(self, chips: list[int]) -> list[StoredDesign]:
        """Return the columns of these designs, in this order."""
        return [
            cast(StoredDesign, {name: row[name] for name in self.columns})
            for chip in chips
            for row in self._records("designs", "WHERE chip = ?", chip)
        ]

    def _where(self, filters: Filters | None, *more: str) -> tuple[str, list[Any]]:
        """Return a WHERE clause and its values; the caller appends the values of `more`."""
        clauses: list[str] = []
        values: list[Any] = []
        for name, wanted in (filters or {}).items():
            self._check_column(name)
            if isinstance(wanted, tuple):
                for limit, sign in zip(wanted, (">=", "<="), strict=True):
                    if limit is not None:
                        clauses.append(f"{name} {sign} ?")
                        values.append(limit)
            else:
                clauses.append(f"{name} = ?")
                values.append(wanted)
        clauses.extend(more)
        return (f" WHERE {' AND '.join(clauses)}" if clauses else ""), values

    def bound_scores(self) -> dict[int, float]:
        """Return by chip the upper bound on its score from schedule bounds."""
        return {row["chip"]: row["score"] for row in self._records("bounds", "ORDER BY score DESC")}

    def placed_bounds_s(self) -> Iterator[tuple[int, bytes]]:
        """Yield (chip, lower bounds per variant in seconds as little-endian doubles)."""
        for row in self._records("evaluations"):
            yield row["chip"], row["lower_s"]

    def batches(self, size: int = 50_000) -> Iterator[list[sqlite3.Row]]:
        """Yield all designs in batches, best first; their plans as JSON."""
        rows = self._records("designs", "ORDER BY score DESC, area_mm2")
        while piece := list(islice(rows, size)):
            yield piece

    def version(self) -> int:
        """Return a number that changes with every write by another connection."""
        return int(self._single_row("PRAGMA data_version")[0])

    def since(self, at: float, size: int = 20_000) -> Iterator[list[tuple[Any, ...]]]:
        """Yield designs recorded at that time or later, as unordered rows of `columns` in batches.

        A design recorded again replaces the earlier one.
        """
        columns = len(self.columns)
        with schema.in_sentences(self.path):
            cursor = self._connection.execute("SELECT * FROM designs WHERE at >= ?", (at,))
            cursor.row_factory = None
            while rows := cursor.fetchmany(size):
                if not self.as_written:
                    for row in rows:
                        schema.check_record(row, self.path)
                yield [row[:columns] for row in rows]

    def _records(self, table: str, which: str = "", *values: Any) -> Iterator[sqlite3.Row]:
        """Yield records after checking their checksums."""
        with schema.in_sentences(self.path):
            for row in self._connection.execute(f"SELECT * FROM {table} {which}", values):
                if not self.as_written:
                    schema.check_record(row, self.path)
                yield self._checked(row)

    def _record(self, table: str, which: str) -> sqlite3.Row:
        return self._existing(next(self._records(table, which), None))

    def _all(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with schema.in_sentences(self.path):
            return [self._checked(row) for row in self._connection.execute(query, values)]

    def _checked(self, row: sqlite3.Row) -> sqlite3.Row:
        """Check column types, which SQLite does not enforce, and that numbers are finite."""
        for name, value in dict(row).items():
            kind = str if name in TEXTS else bytes if name == "lower_s" else int | float
            right = value is None or isinstance(value, kind)
            endless = isinstance(value, float) and not math.isfinite(value) and name != "bound"
            if not right or endless:
                raise AtollError(
                    f"{self.path}: damaged ({name} is {str(value)[:40]!r}); move it away to start "
                    "afresh."
                )
        return row

    def _single_row(self, query: str, *values: Any) -> sqlite3.Row:
        with schema.in_sentences(self.path):
            return self._existing(self._connection.execute(query, values).fetchone())

    def _existing(self, row: sqlite3.Row | None) -> sqlite3.Row:
        if row is None:
            raise AtollError(f"{self.path}: nothing on record yet: the search has only begun.")
        return row


def _open(path: Path) -> sqlite3.Connection:
    uri = path.absolute().as_uri()
    # Readers of a read-only folder cannot create shared files; without a write-ahead log nobody
    # writes there, and the file contains all records.
    quiet = not os.access(path.parent, os.W_OK) and not Path(f"{path}-wal").exists()
    mode = "immutable=1" if quiet else "mode=ro"
    return sqlite3.connect(f"{uri}?{mode}", uri=True, timeout=10.0, check_same_thread=False)


def _state(path: Path) -> tuple[int, ...]:
    """Return sizes and modification times, which change with every write."""
    stats = [file.stat() for file in (path, Path(f"{path}-wal")) if file.exists()]
    return tuple(number for file in stats for number in (file.st_mtime_ns, file.st_size))


@lru_cache(maxsize=64)
def _check_once(path: Path, state: tuple[int, ...]) -> None:
    """Check the pages of a store once per state."""
    with schema.in_sentences(path), closing(_open(path)) as connection:
        schema.check_pages(connection)
