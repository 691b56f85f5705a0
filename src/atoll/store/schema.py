"""Tables and version of a run's file, and error messages for damaged files.

Columns that users filter by are plain; bounds of a chip are little-endian doubles, plans are JSON.
Times are seconds since 1970. Records end with their checksum.

A job's fingerprint is a hash of its content, independent of formatting.
"""

from __future__ import annotations

import hashlib
import json
import math
import sqlite3
import struct
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atoll.answers.answer import checked
from atoll.answers.designs import ChipJob, Identity, ShownParameter
from atoll.base.errors import AtollError
from atoll.files.atomic_file import STORE

FILE = STORE
APPLICATION = 0x61746F6C  # "atol"
SCHEMA_VERSION = 2

FIGURES = ("score", "area_mm2", "power_W", "energy_per_token_J")
PLAN = ("model", "samples_per_s", "step_time_s", "microbatch", "tensor", "pipeline", "data")
"""Plan columns of the first model; `plans` has those of all models."""

UNBOUNDED = sys.float_info.max  # stored as the bound while nothing is bounded
_SUM = "crc INTEGER NOT NULL"


def record_sum(values: Sequence[Any]) -> int:
    """Return the CRC-32 of a record; 1.0 and 1 are equal, as SQLite may store either."""
    numbers = [_number(value) for value in values if not isinstance(value, str | bytes)]
    checksum = zlib.crc32(struct.pack(f"<{len(numbers)}d", *numbers))
    for value in values:
        if isinstance(value, str | bytes):
            checksum = zlib.crc32(value.encode() if isinstance(value, str) else value, checksum)
    return checksum


def _number(value: float | None) -> float:
    return math.nan if value is None else value + 0.0  # SQLite keeps -0.0 as 0


def check_record(row: Sequence[Any], path: Path) -> None:
    """Refuse a record whose checksum differs."""
    *values, recorded = row
    if record_sum(values) != recorded:
        raise AtollError(
            f"{path}: damaged (a record is not as it was written: its checksum differs); move it "
            "away to start afresh."
        )


def check_pages(connection: sqlite3.Connection) -> None:
    """Refuse a file with damaged pages, indexes or table definitions."""
    problem = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if problem == "ok":
        recorded = connection.execute("SELECT value FROM meta WHERE key = 'layout'").fetchone()
        if recorded == (str(_layout(connection)),):
            return
        problem = "its tables are not as they were made"
    raise sqlite3.DatabaseError(f"malformed: {problem.splitlines()[-1]}")


def _layout(connection: sqlite3.Connection) -> int:
    rows = connection.execute("SELECT sql FROM sqlite_master ORDER BY rowid")
    return record_sum([sql for (sql,) in rows])


def job_parameters(job: Identity, where: str = "job") -> tuple[ShownParameter, ...]:
    """Return the parameters of a job's chips, which have columns."""
    parameters = checked(job, ChipJob, where).parameters
    for parameter in parameters:
        if not parameter.name.isidentifier():
            raise AtollError(f"{where}: parameter {parameter.name!r} is no name for a column.")
    return parameters


def design_columns(parameters: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of designs."""
    return ("chip", "design", *FIGURES, *parameters, *PLAN, "phase", "at")


def _tables(parameters: Sequence[str]) -> str:
    """Return the SQL of all tables; an index covers queries on figures and parameters."""
    covered = ", ".join((*FIGURES[1:], *parameters))
    return f"""
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL, {_SUM}) WITHOUT ROWID;
CREATE TABLE runs (
    run INTEGER PRIMARY KEY, pid INTEGER NOT NULL, host TEXT NOT NULL, version TEXT NOT NULL,
    executor TEXT NOT NULL, started REAL NOT NULL, ended REAL, status TEXT NOT NULL
);
CREATE TABLE bounds (
    batch INTEGER NOT NULL, chip INTEGER NOT NULL, score REAL NOT NULL, lower_s BLOB NOT NULL,
    {_SUM}, PRIMARY KEY (batch, chip)
) WITHOUT ROWID;
CREATE TABLE evaluations (
    phase TEXT NOT NULL, chip INTEGER NOT NULL, variant INTEGER NOT NULL, effort TEXT NOT NULL,
    run INTEGER NOT NULL, at REAL NOT NULL, score REAL, lower_s BLOB NOT NULL, plans TEXT NOT NULL,
    {_SUM}, PRIMARY KEY (chip, phase, variant, effort)
) WITHOUT ROWID;
CREATE TABLE designs (
    chip INTEGER PRIMARY KEY, design INTEGER NOT NULL,
    {", ".join(f"{name} REAL" for name in FIGURES)},
    {"".join(f"{name} NUMERIC NOT NULL, " for name in parameters)}
    {", ".join(f"{name} {'TEXT' if name == 'model' else 'NUMERIC'}" for name in PLAN)},
    phase TEXT NOT NULL, at REAL NOT NULL, plans TEXT NOT NULL, {_SUM}
);
CREATE INDEX designs_by_score ON designs ({FIGURES[0]} DESC, {covered});
CREATE TABLE progress (
    run INTEGER NOT NULL, at REAL NOT NULL, seconds REAL NOT NULL, phase TEXT NOT NULL,
    left INTEGER NOT NULL, total INTEGER NOT NULL, evaluated INTEGER NOT NULL,
    score REAL NOT NULL, bound REAL NOT NULL, {_SUM}
);
CREATE TABLE incumbents (
    chip INTEGER NOT NULL, score REAL PRIMARY KEY, run INTEGER NOT NULL, at REAL NOT NULL,
    seconds REAL NOT NULL, bound REAL NOT NULL, {_SUM}
) WITHOUT ROWID;
CREATE TABLE notes (key TEXT PRIMARY KEY, value TEXT NOT NULL, {_SUM}) WITHOUT ROWID;
"""


def create(connection: sqlite3.Connection, parameters: Sequence[str]) -> None:
    """Create all tables in one transaction."""
    connection.executescript(
        f"BEGIN IMMEDIATE; {_tables(parameters)} PRAGMA application_id = {APPLICATION}; "
        f"PRAGMA user_version = {SCHEMA_VERSION};"
    )
    layout = ("layout", str(_layout(connection)))
    connection.execute("INSERT INTO meta VALUES (?, ?, ?)", (*layout, record_sum(layout)))
    connection.execute("COMMIT")


def check_version(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file of another kind or version."""
    application = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0:
        raise AtollError(f"{path}: nothing on record yet: the search has only begun.")
    if application != APPLICATION:
        raise AtollError(f"{path}: not a store of atoll search; give another folder.")
    if version != SCHEMA_VERSION:
        age = "an older" if version < SCHEMA_VERSION else "a newer"
        raise AtollError(
            f"{path}: written by {age} atoll (schema {version}, this one reads {SCHEMA_VERSION}); "
            "use the version that wrote it, or give another folder."
        )


@contextmanager
def in_sentences(path: Path) -> Iterator[None]:
    """Convert errors of SQLite and the system to one AtollError."""
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise AtollError(f"{path}: {_reason(error, path)}") from None
    except OSError as error:
        raise AtollError(f"{path}: cannot be written ({error.strerror}).") from None


REMOVED = "was removed while the search wrote to it; run it again, in a folder that stays."
"""For a file that was removed while it was open."""


def _reason(error: Exception, path: Path) -> str:
    text = str(error)
    if ("disk I/O" in text or "readonly" in text) and not path.exists():
        return REMOVED
    if "full" in text:
        return (
            "the disk is full; everything finished so far is kept: make room, and run the same "
            "command again."
        )
    if "disk I/O" in text:
        return (
            f"the system cannot write there ({text}); everything finished so far is kept: make "
            "room or mend the disk, and run the same command again."
        )
    if "readonly" in text or "unable to open" in text:
        return f"cannot be opened ({text}); check the folder's permissions, or give another one."
    if isinstance(error, sqlite3.OperationalError) and "no such" in text:
        text = f"another layout than this version's: {text}"
    if any(word in text for word in ("malformed", "not a database", "decode", "another layout")):
        return (
            f"damaged ({text}); `sqlite3 {path.name} .recover` may still read it: move it away to "
            "start afresh."
        )
    if "locked" in text:
        return "another program keeps the file locked; close it, and run the same command again."
    return f"{text}."


CODE = ("version", "sources")
"""Fields of a stored job that identify the Atoll that computed its records."""


def canonical_json(content: Identity) -> str:
    """Return the same text for the same content: sorted keys, no spaces, exact floats."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def fingerprint(content: Identity) -> str:
    return hashlib.blake2b(canonical_json(content).encode(), digest_size=16).hexdigest()


def differences(current: Identity, stored: Identity) -> list[str]:
    """Return the fields in which two jobs differ, in words."""
    lines = []
    for name in sorted(set(current) | set(stored)):
        ours, theirs = current.get(name), stored.get(name)
        if ours != theirs:
            short = len(str(ours)) + len(str(theirs)) <= 120
            lines.append(f"{name} {theirs} there, {ours} here" if short else name)
    return lines
