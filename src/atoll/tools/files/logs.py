"""Logs of training runs: step times and peak memory, as each framework writes them.

Lines are recognised by their words at any place of a line: time stamps, ranks and colours differ
from site to site. Only matching lines are stored, so logs of up to 1 GiB can be read.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple

import numpy as np
from pydantic import TypeAdapter

from atoll.base.errors import AtollError
from atoll.files.inputs import open_input
from atoll.files.yamlfile import FileModel, shipped_table

NUMBER = r"([0-9][0-9,]*\.?[0-9]*(?:[eE][-+]?[0-9]+)?)"
COLOURS = re.compile(r"\x1b\[[0-9;]*m")
LONGEST_LINE, MOST_BYTES = 2**16, 2**30
MOST_STEPS = 10**6
COUNT = r"\s*([0-9]{1,12})"
STEPS = (
    re.compile(rf"\bglobal_step[\"=:]+{COUNT}"),
    re.compile(
        rf"\biteration\s{COUNT}\s*/|\bstep[\"=:]+{COUNT}|\bsteps:{COUNT}|"
        r"[0-9]{1,9}/([0-9]{1,9}), RunningAvg"
    ),
)
"""Patterns of a step's number; the first that matches counts."""
BATCH = re.compile(
    r"(?<![A-Za-z_])(?:global[ _]batch[ _]size|train_batch_size)(?:\", \"value)?"
    r"[\"=:.\s]+([0-9]{1,12})"
)
CONSUMED = re.compile(rf"\bconsumed[ _]samples[\"=:]+{COUNT}")
JOB = {
    name: re.compile(rf"(?:(?<![A-Za-z_-])|(?<=--)){words}[\"':=.\s]+([0-9]{{1,9}})\b")
    for name, words in {
        "devices": "world[-_ ]size",
        "tp": "tensor[-_](?:model[-_])?parallel[-_ ]size",
        "pp": "pipeline[-_](?:model[-_])?parallel[-_ ]size",
        "cp": "context[-_]parallel[-_ ]size",
        "microbatch": "micro[-_ ]batch[-_ ]size",
        "sequence": "seq[-_]length",
    }.items()
}
"""Patterns of a run's layout, which logs print before their steps."""
RANK = re.compile(r"^\s*([0-9]{1,9}):|\[(?:rank|default)\s*([0-9]{1,9})\]", re.IGNORECASE)
"""Prefix of a line of one of several processes: `srun --label`, PyTorch, torchrun."""


class RankPeak(NamedTuple):
    """Peak memory of a rank, None if the line names no rank."""

    rank: int | None
    peak_bytes: float


class FigurePattern:
    """Pattern of a figure after words, tried only on lines with their longest literal text."""

    def __init__(self, words: str, unit: float) -> None:
        self.pattern, self.unit = re.compile(rf"{words}\s*{NUMBER}"), unit
        self.literal = max(re.split(r"\\.|\[.*?\]", words), key=len)

    def value(self, line: str) -> float:
        """Return the figure of a line, 0 if it has none or one that no step can have."""
        match = self.pattern.search(line) if self.literal in line else None
        value = float(match[1].replace(",", "")) if match else 0.0
        return value * self.unit if 0 < value < 1e12 else 0.0


class LogFormat(FileModel):
    """How a framework logs a step (`logs.yaml`)."""

    software: str
    words: str
    """Words before the figure of a step."""
    quantity: Literal["times_s", "tokens_per_s", "samples_per_s"] = "times_s"
    """Seconds, tokens per second per device, or samples per second of all devices."""
    unit: float = 1.0
    memory: str = ""
    """Words before the peak memory of a rank."""
    memory_unit: float = 1.0
    counts: str = ""
    """What memory counts: allocated or reserved."""
    rank: str = r"\[rank"
    """Words before the rank that reports its memory."""
    stage: str = "first"
    """Pipeline stage of the rank that writes, if the line names no rank."""

    @cached_property
    def step_figure(self) -> FigurePattern:
        return FigurePattern(self.words, self.unit)

    @cached_property
    def memory_figure(self) -> FigurePattern | None:
        return FigurePattern(self.memory, self.memory_unit) if self.memory else None

    def peak(self, line: str) -> RankPeak | None:
        """Return the peak memory that a line reports."""
        peak_bytes = self.memory_figure.value(line) if self.memory_figure else 0.0
        if not peak_bytes:
            return None
        rank = re.search(rf"{self.rank}\s*(\d{{1,9}})", line)
        return RankPeak(int(rank[1]) if rank else None, peak_bytes)


FORMATS = TypeAdapter(tuple[LogFormat, ...]).validate_python(
    shipped_table("atoll.tools.files", "logs.yaml")
)


@dataclass(frozen=True, slots=True)
class Log:
    """Steps of a log (medians over ranks); one of the three tuples is filled."""

    file: str
    software: str
    times_s: tuple[float, ...] = ()
    tokens_per_s: tuple[float, ...] = ()
    """Per device."""
    samples_per_s: tuple[float, ...] = ()
    peaks: tuple[RankPeak, ...] = ()
    counts: str = ""
    """What a peak counts: allocated or reserved."""
    stage: str = "first"
    job: Mapping[str, int] = field(default_factory=dict)
    """Fields of `JOB` that it says, and as `batch` sequences per step; if these change, those of
    the last step, and only its steps are listed."""

    def step_times_s(self, batch: int, sequence: int, devices: int) -> tuple[float, ...]:
        """Return the times of its steps, computed from rates if it has no times."""
        if self.times_s:
            return self.times_s
        if self.tokens_per_s:
            return tuple(batch * sequence / devices / rate for rate in self.tokens_per_s)
        return tuple(batch / rate for rate in self.samples_per_s)


@dataclass(slots=True)
class _Lines:
    """Figures of the lines of one format, by step."""

    values: dict[object, list[float]] = field(default_factory=dict)
    batches: dict[object, int] = field(default_factory=dict)
    consumed: dict[int, int] = field(default_factory=dict)
    """Sequences since the beginning of the run, by step number."""
    peaks: list[RankPeak] = field(default_factory=list)
    lines: Counter[str] = field(default_factory=Counter)
    """Number of lines by the ranks they are prefixed with."""

    def add(self, line: str, value: float) -> None:
        ranks = str(RANK.findall(line))
        self.lines[ranks] += 1
        matches = (pattern.search(line) for pattern in STEPS)
        step_number = next((int(m[m.lastindex or 1]) for m in matches if m), None)
        # Without a number, the n-th line of every rank is the same step.
        step: object = f"line {self.lines[ranks]}" if step_number is None else step_number
        self.values.setdefault(step, []).append(value)
        if batch := BATCH.search(line):
            self.batches[step] = int(batch[1])
        if step_number is not None and (samples := CONSUMED.search(line)):
            self.consumed[step_number] = int(samples[1])

    def batch(self, logged_batch: int | None) -> int | None:
        """Return sequences per step: of the last step, as logged elsewhere, or from totals."""
        if self.batches:
            return self.batches[next(reversed(self.batches))]
        if logged_batch or len(self.consumed) < 2:
            return logged_batch
        (first, before), *_, (last, after) = sorted(self.consumed.items())
        return round((after - before) / (last - first)) or None


def read_run_log(path: Path) -> Log:
    """Read the steps of a log (plain or .gz) in the format that matches most lines."""
    lines_by_format = [_Lines() for _ in FORMATS]
    batch, job, started = None, dict[str, int](), False
    for line in _lines(path):
        if not started and ("size" in line or "seq" in line):
            matches = {name: pattern.search(line) for name, pattern in JOB.items()}
            job = {name: int(match[1]) for name, match in matches.items() if match} | job
        if "batch" in line and (batch_match := BATCH.search(line)):
            batch = int(batch_match[1])
        for log_format, lines in zip(FORMATS, lines_by_format, strict=True):
            if value := log_format.step_figure.value(line):
                lines.add(line, value)
                started = True
            if peak := log_format.peak(line):
                lines.peaks.append(peak)
        if max(len(lines.values) for lines in lines_by_format) > MOST_STEPS:
            raise AtollError(f"{path}: more than {MOST_STEPS:,} steps; give a part of the log")
    pairs = zip(FORMATS, lines_by_format, strict=True)
    log_format, lines = max(pairs, key=lambda pair: sum(map(len, pair[1].values.values())))
    if not lines.values:
        raise AtollError(
            f"{path}: no line has a step's time or throughput as Megatron-LM, NeMo, torchtitan, "
            "DeepSpeed or MLPerf logs write it"
        )
    batch = lines.batch(batch)
    values = tuple(
        median(figures)
        for step, figures in lines.values.items()
        if lines.batches.get(step, batch) == batch
    )
    return Log(
        file=str(path),
        software=log_format.software,
        peaks=tuple(lines.peaks),
        counts=log_format.counts if lines.peaks else "",
        stage=log_format.stage,
        job=job | ({} if batch is None else {"batch": batch}),
        **{log_format.quantity: values},
    )


def _lines(path: Path) -> Iterator[str]:
    """Yield the lines of a log, each without what is beyond its longest length."""
    characters, starts_line = 0, True
    with (
        open_input(path, MOST_BYTES) as file,
        io.TextIOWrapper(file, encoding="utf-8", errors="replace") as text,
    ):
        while line := text.readline(LONGEST_LINE):
            characters += len(line)
            if characters > MOST_BYTES:
                raise AtollError(f"{path}: more than {MOST_BYTES:,} characters; give fewer steps")
            if starts_line:
                yield COLOURS.sub("", line)
            starts_line = line.endswith("\n")


def steady_times(times_s: Sequence[float]) -> tuple[float, ...]:
    """Return step times without warm-up and outliers (checkpoints, evaluations, profiles).

    Warm-up is the first tenth, at least two steps. With m the median and d the median distance
    from it, an outlier is farther from m than max(5 d, 0.05 m).
    """
    warm = np.array(times_s[min(len(times_s) - 1, max(2, len(times_s) // 10)) :])
    median_s = np.median(warm)
    distance_s = np.abs(warm - median_s)
    is_regular = distance_s <= max(5 * float(np.median(distance_s)), 0.05 * float(median_s))
    return tuple(warm[is_regular].tolist())
