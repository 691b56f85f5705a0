"""CSV tables: those of others, plain or packed (.gz), and ours, there whole or not at all."""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path

from atoll.errors import AtollError
from atoll.files.wholefile import whole_files

MOST_BYTES = 2**28
"""Of a table, unpacked."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a table: its cells by column, and what is wrong with it."""

    number: int
    cells: dict[str, str]
    trouble: str = ""


def read_csv(path: str | Path | Traversable) -> tuple[list[str], list[Line]]:
    """Names of the columns and all lines that hold something; one that cannot be read says why."""
    source = Path(path) if isinstance(path, str) else path
    try:
        with source.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            stream = gzip.GzipFile(fileobj=file) if packed else file
            content = stream.read(MOST_BYTES + 1)
    except FileNotFoundError:
        raise AtollError(f"{path}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        raise AtollError(f"{path}: cannot be read as CSV ({error})") from None
    if len(content) > MOST_BYTES:
        raise AtollError(f"{path}: more than {MOST_BYTES:,} bytes of table")
    text = content.decode("utf-8-sig", errors="replace")
    reader = csv.reader(io.StringIO(text, newline=""))
    try:
        header = [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise AtollError(f"{path}: cannot be read as CSV ({error})") from None
    if any("\ufffd" in name for name in header):
        raise AtollError(f"{path}: cannot be read as CSV (not UTF-8 text)")
    repeated = [name for name in header if name and header.count(name) > 1]
    if repeated:
        raise AtollError(f"{path}:1: column {repeated[0]!r} is there twice")
    lines: list[Line] = []
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            lines.append(Line(number, {}, str(error)))
            continue
        if cells is None:
            return header, lines
        if not any(cell.strip() for cell in cells):
            continue
        trouble = ""
        if len(cells) != len(header):
            trouble = f"expected {len(header)} cells, got {len(cells)}"
        elif any("\ufffd" in cell for cell in cells):
            trouble = "not UTF-8 text"
        found = {name: cell.strip() for name, cell in zip(header, cells, strict=False)}
        lines.append(Line(number, found, trouble))


def write_csv(path: str | Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table; a failure leaves what was there before."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(header)
    writer.writerows(rows)
    with whole_files(lambda why: f"{path}: cannot be written ({why})", Path(path)) as (part,):
        part.write_text(text.getvalue(), encoding="utf-8", newline="")
