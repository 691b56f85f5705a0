"""CSV tables: reading, also gzipped; atomic writing; and appending one line."""

from __future__ import annotations

import csv
import io
import os
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path

from atoll.base.errors import AtollError
from atoll.files.atomic_file import atomic_files
from atoll.files.inputs import read_input

with suppress(ImportError):  # POSIX
    import fcntl

MOST_BYTES, MOST_COLUMNS, MOST_CELLS = 2**27, 1_000, 10**7
"""Largest table, unpacked: about 1 GB of memory as cells by column."""
LOCK_WAIT_S = 60.0
"""Time after which an append gives up on a locked table."""


@dataclass(frozen=True, slots=True)
class CsvLine:
    """One line of a table: cells by column, and the problem of a damaged line."""

    number: int
    cells: dict[str, str]
    trouble: str = ""


def read_csv(path: str | Path | Traversable) -> tuple[list[str], list[CsvLine]]:
    """Return column names and non-empty lines; a damaged line has a `trouble`."""
    return _parsed(path, read_input(path, MOST_BYTES))


def _parsed(path: object, content: bytes) -> tuple[list[str], list[CsvLine]]:
    # decoded piece by piece: io.StringIO takes four bytes per character
    text = io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", errors="replace", newline="")
    reader = csv.reader(text)
    try:
        header = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise AtollError(f"{path}: cannot be read as CSV ({error})") from None
    if any("\ufffd" in name for name in header):
        raise AtollError(f"{path}: cannot be read as CSV (not UTF-8 text)")
    if repeated := [name for name, count in Counter(header).items() if name and count > 1]:
        raise AtollError(f"{path}:1: column {repeated[0]!r:.80} is there twice")
    if len(header) > MOST_COLUMNS:
        raise AtollError(f"{path}: {len(header):,} columns, but at most {MOST_COLUMNS:,} are read")
    lines: list[CsvLine] = []
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            lines.append(CsvLine(number, {}, str(error)))
            continue
        if cells is None:
            return header, lines
        if not any(cell.strip() for cell in cells):
            continue
        if (len(lines) + 1) * max(1, len(header)) > MOST_CELLS:
            raise AtollError(f"{path}: more than {MOST_CELLS:,} cells; divide the table")
        trouble = "not UTF-8 text" if any("\ufffd" in cell for cell in cells) else ""
        if len(cells) != len(header):
            trouble = f"expected {len(header)} cells, got {len(cells)}"
        cell_by_column = {name: cell.strip() for name, cell in zip(header, cells, strict=False)}
        lines.append(CsvLine(number, cell_by_column, trouble))


def write_csv(path: str | Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table atomically."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows([header, *rows])
    with atomic_files(lambda why: f"{path}: cannot be written ({why})", Path(path)) as (part,):
        part.write_text(text.getvalue(), encoding="utf-8", newline="")


def append_csv(
    path: Path,
    header: Sequence[str],
    align: Callable[[Sequence[str]], Mapping[str, str]],
    needed: Sequence[str] = (),
    kind: str = "runs",
) -> None:
    """Add one line to a table, in place and under an exclusive lock; a new table gets `header`.

    `align` returns the cells of the new line for the columns of the table, or refuses the table.
    A table without the columns `needed` is not one of this `kind` ("runs") and is refused.
    After a refusal or an error the file holds the bytes that it held before.
    """
    with _locked(path) as file:
        content = b"".join(iter(lambda: os.read(file, 2**20), b""))
        columns, lines = _parsed(path, content) if content else (list(header), [])
        if missing := [name for name in needed if name not in columns]:
            raise AtollError(
                f"{path}: not a table of {kind} (no column {', '.join(missing)}), and left as it "
                "is; give another file"
            )
        cells = align(columns)
        text = io.StringIO(newline="")
        crlf = b"\r\n" in content or not content
        writer = csv.writer(text, lineterminator="\r\n" if crlf else "\n")
        if not content:
            writer.writerow(columns)
        elif not content.endswith((b"\n", b"\r")):
            text.write("\r\n" if crlf else "\n")
        writer.writerow([cells.get(column, "") for column in columns])
        added = text.getvalue().encode()
        if [line.cells for line in _parsed(path, content + added)[1]] != [
            *(line.cells for line in lines),
            {column: cells.get(column, "").strip() for column in columns},
        ]:
            raise AtollError(f"{path}: a line added to it would not read back; give another file")
        try:
            if os.write(file, added) < len(added):
                raise OSError("no space is left")
        except OSError:
            os.ftruncate(file, len(content))
            raise


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    """Open a regular file for reading and appending, and hold its exclusive lock."""
    if "fcntl" not in globals():
        raise AtollError(f"{path}: appending needs file locks of POSIX, which this system lacks")
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o666)
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise AtollError(f"{path}: not a regular file; give a table (CSV)")
            _lock(file, path)
            yield file
        finally:
            os.close(file)
    except OSError as error:
        why = error.strerror or str(error)
        raise AtollError(f"{path}: cannot be appended to ({why}); give another file") from None


def _lock(file: int, path: Path) -> None:
    until_s = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until_s:
                raise AtollError(
                    f"{path}: another process has kept it locked for {LOCK_WAIT_S:g} s; end that "
                    "process, or give another file"
                ) from None
            time.sleep(0.02)
        except OSError as error:
            raise AtollError(
                f"{path}: its file system has no locks ({error.strerror}), without which rows of "
                "concurrent appends are lost; give a file on a local disk"
            ) from None
