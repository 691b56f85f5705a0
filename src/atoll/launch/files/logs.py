"""Logs of training runs: step times and peak memory, as each framework writes them.

Lines are known by their words, wherever they stand in a line: time stamps, ranks and colours around
them differ from site to site. Only lines that match are kept, so that logs of any size are read.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import IO, cast

import numpy as np

from atoll.errors import AtollError

NUMBER = r"([0-9][0-9,]*\.?[0-9]*(?:[eE][-+]?[0-9]+)?)"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
LONGEST_LINE = 2**16
MOST_STEPS = 10**6
COUNT = r"\s*([0-9]{1,12})"
STEPS = (
    re.compile(rf"\bglobal_step[\"=:]+{COUNT}"),
    re.compile(
        rf"\biteration\s{COUNT}\s*/|\bstep[\"=:]+{COUNT}|\bsteps:{COUNT}|"
        r"[0-9]{1,9}/([0-9]{1,9}), RunningAvg"
    ),
)
"""The number of a step, in the words that come first in this list."""
BATCH = re.compile(
    r"(?<![A-Za-z_])(?:global[ _]batch[ _]size|train_batch_size)(?:\", \"value)?"
    r"[\"=:.\s]+([0-9]{1,12})"
)
CONSUMED = re.compile(rf"\bconsumed[ _]samples[\"=:]+{COUNT}")
RANK = re.compile(r"^\s*([0-9]{1,9}):|\[(?:rank|default)\s*([0-9]{1,9})\]", re.IGNORECASE)
"""Before a line of one of several processes: `srun --label`, PyTorch, torchrun."""


@dataclass(frozen=True, slots=True)
class Format:
    """How one framework writes a step: the words before a figure, and what the figure is."""

    software: str
    time_s: tuple[str, float] | None = None
    """Words, and seconds in a unit of the figure."""
    tokens_per_s: str | None = None
    """Words before tokens per second and device."""
    samples_per_s: str | None = None
    """Words before samples per second of all devices."""
    memory: tuple[str, float, str] | None = None
    """Words, bytes in a unit of the figure, and what it counts (allocated or reserved)."""
    rank: str = r"\[rank"
    """Words before the rank that reports its memory."""
    stage: str = "first"
    """The pipeline stage of the rank that writes, where the line names none."""


GIB, MIB = float(2**30), float(2**20)
FORMATS = (
    # The last rank writes times, every rank that is the first of its replicas its memory.
    Format(
        "megatron",
        time_s=(r"elapsed time per iteration \(ms\):", 1e-3),
        memory=(r"max reserved:", MIB, "reserved"),
        rank=r"\[Rank",
    ),
    Format("nemo", time_s=(r"train_step_timing in s[:=]", 1.0)),
    Format("nemo", time_s=(r"Step Time :", 1.0)),
    # torchtitan's metrics come from the rank that has the loss: the last stage's.
    Format(
        "torchtitan",
        tokens_per_s=r"\btps:",
        memory=(r"memory:", GIB, "reserved"),
        stage="last",
    ),
    Format(
        "deepspeed",
        samples_per_s=r"CurrSamplesPerSec=",
        memory=(r"MaxMemAllocated=", GIB, "allocated"),
    ),
    Format("deepspeed", time_s=(r"iter time \(s\):", 1.0)),
    Format("mlperf", time_s=(r"\"train_step_time\":", 1.0)),
    Format("mlperf", samples_per_s=r"\"throughput\":"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Log:
    """What a log says of its steps; one of the three tuples is filled.

    Lines of several ranks about one step count as that step, with the median of their figures.
    """

    file: str
    software: str
    times_s: tuple[float, ...] = ()
    tokens_per_s: tuple[float, ...] = ()
    """Per device."""
    samples_per_s: tuple[float, ...] = ()
    peaks: tuple[tuple[int | None, float], ...] = ()
    """Rank, where it is named, and bytes."""
    counts: str = ""
    """What a peak counts: allocated or reserved."""
    stage: str = "first"
    batch: int | None = None
    """Sequences in a step; where they change in the log, those of its last step, and only steps of
    as many are listed."""

    def step_times_s(self, batch: int, sequence: int, devices: int) -> tuple[float, ...]:
        """Times of its steps, from rates where these are what it has."""
        if self.times_s:
            return self.times_s
        if self.tokens_per_s:
            return tuple(batch * sequence / devices / rate for rate in self.tokens_per_s)
        return tuple(batch / rate for rate in self.samples_per_s)


@dataclass(slots=True)
class _Lines:
    """What the lines of one format say, by step."""

    values: dict[object, list[float]] = field(default_factory=dict)
    batches: dict[object, int] = field(default_factory=dict)
    consumed: dict[int, int] = field(default_factory=dict)
    """Sequences since the beginning of the run, by number of the step."""
    peaks: list[tuple[int | None, float]] = field(default_factory=list)
    lines: Counter[str] = field(default_factory=Counter)
    """By the ranks that stand before them."""

    def add(self, line: str, value: float) -> None:
        ranks = str(RANK.findall(line))
        self.lines[ranks] += 1
        matches = (pattern.search(line) for pattern in STEPS)
        found = next((int(m[m.lastindex or 1]) for m in matches if m), None)
        # Without a number the nth line of every rank is about the same step.
        step: object = f"line {self.lines[ranks]}" if found is None else found
        self.values.setdefault(step, []).append(value)
        if batch := BATCH.search(line):
            self.batches[step] = int(batch[1])
        if found is not None and (samples := CONSUMED.search(line)):
            self.consumed[found] = int(samples[1])

    def batch(self, told: int | None) -> int | None:
        """Sequences in a step: of the last one, as the log says elsewhere, or as they add up."""
        if self.batches:
            return self.batches[next(reversed(self.batches))]
        if told or len(self.consumed) < 2:
            return told
        (first, before), *_, (last, after) = sorted(self.consumed.items())
        return round((after - before) / (last - first)) or None


def read_run_log(path: Path) -> Log:
    """The steps of a log (plain or .gz), by the words of the framework that it matches most."""
    patterns = [_patterns(known) for known in FORMATS]
    told = [_Lines() for _ in FORMATS]
    batch = None
    for line in _lines(path):
        if "batch" in line and (said := BATCH.search(line)):
            batch = int(said[1])
        for k, (step, memory, rank) in enumerate(patterns):
            if (found := step.search(line)) and (value := _value(found)):
                told[k].add(line, value)
            if memory and (found := memory.search(line)) and (value := _value(found)):
                who = rank.search(line)
                told[k].peaks.append((int(who[1]) if who else None, value))
        if max(len(lines.values) for lines in told) > MOST_STEPS:
            raise AtollError(f"{path}: more than {MOST_STEPS:,} steps; give a part of the log")
    best = max(range(len(FORMATS)), key=lambda k: sum(map(len, told[k].values.values())))
    if not told[best].values:
        raise AtollError(
            f"{path}: no line has a step's time or throughput as Megatron-LM, NeMo, torchtitan, "
            "DeepSpeed or MLPerf logs write it"
        )
    known, lines = FORMATS[best], told[best]
    scale, quantity = _quantity(known)
    batch = lines.batch(batch)
    values = tuple(
        median(figures) * scale
        for step, figures in lines.values.items()
        if lines.batches.get(step, batch) == batch
    )
    unit, counts = known.memory[1:] if known.memory else (1.0, "")
    found_peaks = tuple((rank, value * unit) for rank, value in lines.peaks)
    return Log(
        file=str(path),
        software=known.software,
        peaks=found_peaks,
        counts=counts if found_peaks else "",
        stage=known.stage,
        batch=batch,
        **{quantity: values},
    )


def _quantity(known: Format) -> tuple[float, str]:
    if known.time_s:
        return known.time_s[1], "times_s"
    return 1.0, "tokens_per_s" if known.tokens_per_s else "samples_per_s"


def _patterns(
    known: Format,
) -> tuple[re.Pattern[str], re.Pattern[str] | None, re.Pattern[str]]:
    words = known.time_s[0] if known.time_s else known.tokens_per_s or known.samples_per_s or ""
    memory = re.compile(rf"{known.memory[0]}\s*{NUMBER}") if known.memory else None
    return re.compile(rf"{words}\s*{NUMBER}"), memory, re.compile(rf"{known.rank}\s*(\d{{1,9}})")


def _value(found: re.Match[str]) -> float:
    """The figure, 0 where it is none that a step can have."""
    value = float(found[1].replace(",", ""))
    return value if 0 < value < 1e12 else 0.0


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            stream = cast(IO[bytes], gzip.GzipFile(fileobj=raw) if packed else raw)
            with io.TextIOWrapper(stream, encoding="utf-8", errors="replace") as text:
                while line := text.readline(LONGEST_LINE):
                    yield COLOURS.sub("", line)
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise AtollError(f"{path}: cannot be read ({why})") from None


def steady(times_s: Sequence[float]) -> tuple[float, ...]:
    """The steps of a run once it is warm, without outliers (checkpoints, evaluations, profiles).

    The first tenth, of two steps at least, compiles and fills caches; an outlier lies farther from
    the median than five times the median distance from it, and than a twentieth of it.
    """
    warm = np.array(times_s[min(len(times_s) - 1, max(2, len(times_s) // 10)) :])
    middle = np.median(warm)
    away = np.abs(warm - middle)
    near = away <= max(5 * float(np.median(away)), 0.05 * float(middle))
    return tuple(warm[near].tolist())
