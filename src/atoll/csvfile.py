"""Tables for other programs: a CSV file that is there whole, or not at all."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from atoll.errors import AtollError


def write_csv(path: str | Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table; a failure leaves what was there before."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(header)
    writer.writerows(rows)
    target = Path(path)
    # A pipe or a terminal takes what comes; only a file can be replaced.
    special = target.exists() and not target.is_file()
    part = target if special else target.with_name(f".{target.name}.part")
    try:
        part.write_text(text.getvalue(), encoding="utf-8", newline="")
        if part is not target:
            part.replace(target)
    except OSError as error:
        if part is not target:
            with suppress(OSError):
                part.unlink(missing_ok=True)
        raise AtollError(f"{path}: cannot be written ({error.strerror})") from None
