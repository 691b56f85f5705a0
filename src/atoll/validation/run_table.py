"""Table of measured training runs: a line per run with model, devices, layout and measurements.

The schema is that of `published_runs.csv`; missing columns count as empty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from atoll.base.errors import AtollError
from atoll.files.csvfile import read_csv
from atoll.workload.families.config_fields import MOST

REQUIRED = ("id", "layers", "hidden", "seq", "device", "devices", "global_batch", "tp", "pp")


TIMES_S = 1e-9, 1e9
PEAKS_BYTES = 1.0, 1e15
"""Ranges of measurements; outside, errors would not be finite."""


@dataclass(frozen=True)
class RunRow:
    """One measured run."""

    line: int
    id: str
    source: str
    device: str
    quality: str
    values: Mapping[str, str]
    trouble: str = ""
    """Reason why it could not be read, if any."""

    def check(self) -> None:
        """Refuse a row that could not be read, or with impossible measurements."""
        if self.trouble:
            raise AtollError(self.trouble)
        for name, value, (low, high) in (
            ("step time", self.time_s, TIMES_S),
            ("peak memory", self.peak_bytes, PEAKS_BYTES),
        ):
            if value is not None and not low < value < high:
                raise AtollError(
                    f"line {self.line} ({self.id}): a {name} of {value:g} was never measured"
                )

    def number(self, name: str, default: float = math.nan) -> float:
        text = self.values.get(name, "").strip()
        if not text:
            return default
        try:
            value = float(text)
        except ValueError:
            value = math.inf
        if math.isinf(value) or value < 0:
            raise AtollError(f"line {self.line} ({self.id}): {name} is {text!r}, expected a number")
        return default if math.isnan(value) else value  # some tools write nan for nothing

    def integer(self, name: str, default: int = 1, least: int = 0, most: int = MOST) -> int:
        """Return an integer, `default` if the cell is empty."""
        value = self.number(name, default)
        if not least <= value <= most:
            raise AtollError(
                f"line {self.line} ({self.id}): {name} is {value:g}, expected {least} to {most}"
            )
        return round(value)

    def count(self, name: str, default: int | None = None, most: int = MOST) -> int:
        """Return an integer above 0; without a default the cell must not be empty."""
        if default is None and math.isnan(self.number(name)):
            raise AtollError(f"line {self.line} ({self.id}): {name} is empty")
        return self.integer(name, default or 1, 1, most)

    def text(self, name: str, default: str = "") -> str:
        return self.values.get(name, "").strip() or default

    @property
    def time_s(self) -> float | None:
        """Measured step time, else derived from tokens per second."""
        value = self.number("measured_iter_time_s")
        if not math.isnan(value) and value > 0:
            return value
        rate = self.number("measured_tokens_per_s_per_device")
        if math.isnan(rate) or rate <= 0:
            return None
        return self.count("global_batch") * self.count("seq") / rate / self.count("devices")

    @property
    def peak_bytes(self) -> float | None:
        value = self.number("measured_peak_mem_GB")
        return None if math.isnan(value) or value <= 0 else value * 1e9


def read_runs(path: str | Path, required: Sequence[str] = REQUIRED) -> tuple[RunRow, ...]:
    """Read the file's rows; refuse a file without the required columns."""
    header, lines = read_csv(path)
    missing = [name for name in required if name not in header]
    if missing:
        raise AtollError(f"{path}: the columns {', '.join(missing)} are missing")
    return tuple(
        RunRow(
            line=line.number,
            id=line.cells.get("id", ""),
            source=line.cells.get("source", ""),
            device=line.cells.get("device", ""),
            quality=line.cells.get("quality", ""),
            values=line.cells,
            trouble=f"line {line.number}: {line.trouble}" if line.trouble else "",
        )
        for line in lines
    )
