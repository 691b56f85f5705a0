"""Writer of a run's store, used by the search.

Each `put_*` is one transaction: once it returns, the record survives the process, and readers see
it completely or not at all. Records have keys, so that none is counted twice. The file is
synchronised with the disk every few seconds.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.answers.designs import Identity, StoredPlan
from atoll.base.errors import AtollError, InfeasibleError
from atoll.base.identity import code_words
from atoll.base.stopping import StoppedError
from atoll.files.atomic_file import as_written, record_file, record_sums
from atoll.step.certificate import Certificate
from atoll.store import schema
from atoll.store.lock import FolderLock

PROGRESS_S = 0.5
PROGRESS_SECONDS, DESIGN_AT, NOTE_VALUE = 2, -3, 1  # columns of their tables (schema._tables)
SYNC_S = 2.0  # work lost at most on a power failure; nothing is lost when a process dies


@dataclass(frozen=True)
class EvaluationRow:
    """One finished evaluation, as plain data."""

    phase: str
    chip: int
    variant: int
    effort: str
    score: float | None
    lower_s: bytes
    plans: Sequence[StoredPlan]


@dataclass(frozen=True)
class DesignRow:
    """One evaluated design with its best plans so far."""

    chip: int
    design: int
    figures: Mapping[str, float | None]  # score, area_mm2, power_W, energy_per_token_J
    parameters: Mapping[str, float]
    plan: StoredPlan  # of the first model
    phase: str
    plans: Sequence[StoredPlan]


@contextmanager
def open_store(folder: Path, job: Identity, executor: str) -> Iterator[RunStore]:
    """Open the store of a folder for one job, locked while its search runs.

    An infeasible job leaves no new folder behind.
    """
    store = RunStore(folder, job, executor, str(job["version"]))
    try:
        yield store
    except InfeasibleError:
        store.discard_if_new()
        raise
    except BaseException as error:
        stopped = isinstance(error, KeyboardInterrupt | StoppedError)
        store.abandon("stopped" if stopped else "failed")
        raise
    store.close(store.ending)


class RunStore:
    """Opens or creates the store of a folder for one job; the only writer until closed."""

    def __init__(self, folder: Path, job: Identity, executor: str, version: str) -> None:
        self.folder = folder
        self.path = folder / schema.FILE
        self._created = not folder.exists()
        self._parameters = tuple(parameter.name for parameter in schema.job_parameters(job))
        self.ending = "failed"
        """Final status of the run."""
        self._progress_s, self._progress_score = 0.0, -1.0
        """Time and score of the last recorded progress."""
        self._synced = self._began = time.monotonic()
        with schema.in_sentences(self.path):
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = FolderLock(folder)
        try:
            intact = as_written(self.path)
            with schema.in_sentences(self.path):
                record_sums(folder, {schema.FILE: None})  # it changes from now on
                self._connection = self._open(intact)
                self._claim(job)
                self.run = self._begin_run(executor, version)
        except BaseException:
            self._lock.release()
            raise

    def _open(self, as_written: bool) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=10.0)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
            schema.create(connection, self._parameters)
        schema.check_version(connection, self.path)
        if not as_written:
            schema.check_pages(connection)
        return connection

    def _claim(self, job: Identity) -> None:
        """Record the job of a new folder, or refuse another job."""
        meta = {key: value for key, value, _ in self._records("meta")}
        fingerprint = schema.fingerprint(job)
        if "fingerprint" not in meta:
            records = [("fingerprint", fingerprint), ("job", schema.canonical_json(job))]
            with self._transaction():
                self._insert("INSERT", "meta", records)
        elif meta["fingerprint"] != fingerprint:
            self._connection.close()
            raise AtollError(self._refusal(job, json.loads(meta["job"])))

    def _refusal(self, job: Identity, stored: Identity) -> str:
        # Fields that only one job has come from another version.
        shared = (job.keys() & stored.keys()) - set(schema.CODE)
        if all(job[name] == stored[name] for name in shared):
            return (
                f"out: {self.folder} was begun by {code_words(stored)}, this is {code_words(job)}, "
                "and what the two compute must not be mixed; give another folder, or continue "
                "with the atoll that began it."
            )
        changes = "; ".join(schema.differences(job, stored)[:3])
        return f"out: {self.folder} holds another job ({changes}); give another folder."

    def _begin_run(self, executor: str, version: str) -> int:
        last = next(self._records("progress", "ORDER BY seconds DESC LIMIT 1"), None)
        self._elapsed_before = 0.0 if last is None else float(last[PROGRESS_SECONDS])
        newest = next(self._records("designs", "ORDER BY at DESC LIMIT 1"), None)
        self._latest = 0.0 if newest is None else float(newest[DESIGN_AT])
        count = self._connection.execute("SELECT count(DISTINCT chip) FROM evaluations").fetchone()
        self._evaluated = int(count[0])
        with self._transaction():
            # A killed process did not write its end.
            self._connection.execute(
                "UPDATE runs SET status = 'killed', ended = coalesce("
                "(SELECT max(at) FROM progress WHERE progress.run = runs.run), started) "
                "WHERE status = 'running'"
            )
            query = (
                "INSERT INTO runs (pid, host, version, executor, started, status) "
                "VALUES (?, ?, ?, ?, ?, 'running')"
            )
            row = (os.getpid(), socket.gethostname(), version, executor, time.time())
            return int(self._connection.execute(query, row).lastrowid or 0)

    # --- What is on record ----------------------------------------------------------------------

    def _records(self, table: str, which: str = "", *values: Any) -> Iterator[tuple[Any, ...]]:
        """Yield records after checking their checksums."""
        with schema.in_sentences(self.path):
            for row in self._connection.execute(f"SELECT * FROM {table} {which}", values):
                schema.check_record(row, self.path)
                yield row

    def bounds(self, batch: int) -> dict[int, bytes]:
        """Return the bounds of one batch by chip."""
        rows = self._records("bounds", "WHERE batch = ?", batch)
        return {chip: lower for _, chip, _, lower, _ in rows}

    def evaluation(
        self, phase: str, chip: int, variant: int, effort: str
    ) -> tuple[bytes, Sequence[StoredPlan]] | None:
        which = "WHERE phase = ? AND chip = ? AND variant = ? AND effort = ?"
        row = next(self._records("evaluations", which, phase, chip, variant, effort), None)
        return None if row is None else (row[-3], json.loads(row[-2]))

    def note(self, key: str) -> Any:
        """Return the JSON value recorded under a key, or None."""
        record = next(self._records("notes", "WHERE key = ?", key), None)
        return None if record is None else json.loads(record[NOTE_VALUE])

    # --- What is new ----------------------------------------------------------------------------

    def put_bounds(self, batch: int, rows: Iterable[tuple[int, float, bytes]]) -> None:
        records = ((batch, chip, score, lower) for chip, score, lower in rows)
        with self._transaction():
            self._insert("INSERT OR IGNORE", "bounds", records)

    def put_evaluation(self, row: EvaluationRow, design: DesignRow | None) -> None:
        """Record an evaluation and the design after it."""
        now = self._now()
        with self._transaction():
            query = "SELECT 1 FROM evaluations WHERE chip = ? LIMIT 1"
            if self._connection.execute(query, (row.chip,)).fetchone() is None:
                self._evaluated += 1
            record = (
                row.phase, row.chip, row.variant, row.effort, self.run, now, row.score,
                row.lower_s, json.dumps(row.plans),
            )  # fmt: skip
            self._insert("INSERT OR IGNORE", "evaluations", [record])
            if design is not None:
                self.add_designs([design], now)

    def add_designs(self, designs: Iterable[DesignRow], now: float) -> None:
        """Insert or replace designs inside the current transaction."""
        records = (
            (
                row.chip,
                row.design,
                *(row.figures[name] for name in schema.FIGURES),
                *(row.parameters[name] for name in self._parameters),
                *(dict(row.plan)[name] for name in schema.PLAN),
                row.phase,
                now,
                json.dumps(row.plans),
            )
            for row in designs
        )
        self._insert("INSERT OR REPLACE", "designs", records)

    def put_designs(self, designs: Iterable[DesignRow]) -> None:
        """Many designs in one transaction."""
        with self._transaction():
            self.add_designs(designs, self._now())

    def put_progress(
        self, phase: str, left: int, total: int, chip: int | None, score: float, bound: float
    ) -> None:
        """Record progress, and the incumbent if it is new."""
        now = self._now()
        seconds = self._elapsed_before + time.monotonic() - self._began
        with self._transaction():
            record = (self.run, now, seconds, phase, left, total, self._evaluated, score, bound)
            self._insert("INSERT", "progress", [record])
            if chip is not None:
                best = (chip, score, self.run, now, seconds, bound)
                self._insert("INSERT OR IGNORE", "incumbents", [best])

    def report_progress(
        self, phase: str, left: int, total: int, chip: int | None, score: float, bound: float
    ) -> None:
        """Record progress when the score changes, else at most every PROGRESS_S seconds."""
        now = time.monotonic()
        if now - self._progress_s > PROGRESS_S or score != self._progress_score:
            self._progress_s, self._progress_score = now, score
            self.put_progress(phase, left, total, chip, score, min(bound, schema.UNBOUNDED))

    def end(self, answer: Identity, proof: Certificate, early: bool) -> None:
        """Record the answer and the final status."""
        self._check_exists()
        self.put_note("result", answer)
        self.ending = "stopped" if early else "finished"
        self.put_progress(self.ending, 0, proof.items, None, proof.score, proof.bound)

    def put_note(self, key: str, value: Any) -> None:
        with self._transaction():
            self._insert("INSERT OR REPLACE", "notes", [(key, json.dumps(value, allow_nan=False))])

    def _now(self) -> float:
        """Return the time, never earlier than that of the last record."""
        self._latest = max(self._latest, time.time())
        return self._latest

    def _insert(self, how: str, table: str, records: Iterable[tuple[Any, ...]]) -> None:
        """Insert records with their checksums inside the current transaction."""
        rows = [(*record, schema.record_sum(record)) for record in records]
        if rows:
            marks = ", ".join("?" * len(rows[0]))
            self._connection.executemany(f"{how} INTO {table} VALUES ({marks})", rows)

    # --- Transactions and the end ---------------------------------------------------------------

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit the block, or roll it back."""
        connection = self._connection
        with schema.in_sentences(self.path):
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # some errors have rolled back already
                    connection.execute("ROLLBACK")
                raise
            self.sync()

    def sync(self) -> None:
        """Synchronise with the disk every SYNC_S seconds."""
        if time.monotonic() - self._synced > SYNC_S:
            self._check_exists()
            self._connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
            self._synced = time.monotonic()

    def _check_exists(self) -> None:
        if not self.path.exists():
            raise AtollError(f"{self.path}: {schema.REMOVED}")

    def close(self, status: str) -> None:
        """End the run and merge the write-ahead log into the file."""
        try:
            with self._transaction():
                self._connection.execute(
                    "UPDATE runs SET status = ?, ended = ? WHERE run = ?",
                    (status, time.time(), self.run),
                )
        finally:
            self._connection.close()
            with suppress(OSError):
                if not Path(f"{self.path}-wal").exists():  # a reader may keep the log in use
                    record_file(self.path)
            self._lock.release()

    def abandon(self, status: str = "failed") -> None:
        """End after an error; record the status if possible."""
        with suppress(AtollError):
            self.close(status)

    def discard_if_new(self) -> None:
        """Remove the folder of an infeasible job if this run created it."""
        empty = self._created and next(self._records("evaluations", "LIMIT 1"), None) is None
        self._connection.close()
        self._lock.release()
        if empty:
            shutil.rmtree(self.folder, ignore_errors=True)
