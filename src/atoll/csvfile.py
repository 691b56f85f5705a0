"""Tables for other programs: a CSV file that is there whole, or not at all."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

from atoll.wholefile import whole_files


def write_csv(path: str | Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table; a failure leaves what was there before."""
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(header)
    writer.writerows(rows)
    with whole_files(lambda why: f"{path}: cannot be written ({why})", Path(path)) as (part,):
        part.write_text(text.getvalue(), encoding="utf-8", newline="")
