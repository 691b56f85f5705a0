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
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from atoll.base.errors import AtollError
from atoll.files.inputs import open_input

Pattern = re.Pattern[str]
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


class LoggedFigure(NamedTuple):
    """The words before a figure of a log, and its unit in seconds or bytes."""

    words: str
    unit: float


class RankPeak(NamedTuple):
    """Peak memory of a rank, None if the line names no rank."""

    rank: int | None
    peak_bytes: float


@dataclass(frozen=True, slots=True)
class LogFormat:
    """How a framework logs a step: the words before each figure."""

    software: str
    time_s: LoggedFigure | None = None
    tokens_per_s: str | None = None
    """Words before tokens per second per device."""
    samples_per_s: str | None = None
    """Words before samples per second of all devices."""
    memory: LoggedFigure | None = None
    counts: str = ""
    """What memory counts: allocated or reserved."""
    rank: str = r"\[rank"
    """Words before the rank that reports its memory."""
    stage: str = "first"
    """Pipeline stage of the rank that writes, if the line names no rank."""


GIB, MIB = float(2**30), float(2**20)
FORMATS = (
    # The last rank writes times, the first rank of every replica group its memory.
    LogFormat("megatron", time_s=LoggedFigure(r"elapsed time per iteration \(ms\):", 1e-3),
              memory=LoggedFigure(r"max reserved:", MIB), counts="reserved", rank=r"\[Rank"),
    LogFormat("nemo", time_s=LoggedFigure(r"train_step_timing in s[:=]", 1.0)),
    LogFormat("nemo", time_s=LoggedFigure(r"Step Time :", 1.0)),
    # torchtitan's metrics come from the rank with the loss: the last stage.
    LogFormat("torchtitan", tokens_per_s=r"\btps:", stage="last",
              memory=LoggedFigure(r"memory:", GIB), counts="reserved"),
    LogFormat("deepspeed", samples_per_s=r"CurrSamplesPerSec=",
              memory=LoggedFigure(r"MaxMemAllocated=", GIB), counts="allocated"),
    LogFormat("deepspeed", time_s=LoggedFigure(r"iter time \(s\):", 1.0)),
    LogFormat("mlperf", time_s=LoggedFigure(r"\"train_step_time\":", 1.0)),
    LogFormat("mlperf", samples_per_s=r"\"throughput\":"),
)  # fmt: skip


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
    patterns = [_patterns(log_format) for log_format in FORMATS]
    lines_by_format = [_Lines() for _ in FORMATS]
    batch, job, started = None, dict[str, int](), False
    for line in _lines(path):
        if not started and ("size" in line or "seq" in line):
            matches = {name: pattern.search(line) for name, pattern in JOB.items()}
            job = {name: int(match[1]) for name, match in matches.items() if match} | job
        if "batch" in line and (batch_match := BATCH.search(line)):
            batch = int(batch_match[1])
        for k, (step, memory, rank) in enumerate(patterns):
            if value := step.value(line):
                lines_by_format[k].add(line, value)
                started = True
            if memory and (value := memory.value(line)):
                rank_match = rank.search(line)
                rank_number = int(rank_match[1]) if rank_match else None
                lines_by_format[k].peaks.append(RankPeak(rank_number, value))
        if max(len(lines.values) for lines in lines_by_format) > MOST_STEPS:
            raise AtollError(f"{path}: more than {MOST_STEPS:,} steps; give a part of the log")
    best = max(range(len(FORMATS)), key=lambda k: sum(map(len, lines_by_format[k].values.values())))
    if not lines_by_format[best].values:
        raise AtollError(
            f"{path}: no line has a step's time or throughput as Megatron-LM, NeMo, torchtitan, "
            "DeepSpeed or MLPerf logs write it"
        )
    log_format, lines = FORMATS[best], lines_by_format[best]
    scale, quantity = _quantity(log_format)
    batch = lines.batch(batch)
    values = tuple(
        median(figures) * scale
        for step, figures in lines.values.items()
        if lines.batches.get(step, batch) == batch
    )
    unit = log_format.memory.unit if log_format.memory else 1.0
    peaks = tuple(RankPeak(peak.rank, peak.peak_bytes * unit) for peak in lines.peaks)
    return Log(
        file=str(path),
        software=log_format.software,
        peaks=peaks,
        counts=log_format.counts if peaks else "",
        stage=log_format.stage,
        job=job | ({} if batch is None else {"batch": batch}),
        **{quantity: values},
    )


def _quantity(log_format: LogFormat) -> tuple[float, str]:
    if log_format.time_s:
        return log_format.time_s.unit, "times_s"
    return 1.0, "tokens_per_s" if log_format.tokens_per_s else "samples_per_s"


@dataclass(frozen=True, slots=True)
class FigurePattern:
    """The pattern of a figure; lines without its longest literal text are skipped quickly."""

    pattern: Pattern
    literal: str

    @classmethod
    def after(cls, words: str) -> FigurePattern:
        pieces = re.split(r"\\.|\[.*?\]", words)
        return cls(re.compile(rf"{words}\s*{NUMBER}"), max(pieces, key=len))

    def value(self, line: str) -> float:
        """Return the figure of a line, 0 if it has none or one that no step can have."""
        match = self.pattern.search(line) if self.literal in line else None
        value = float(match[1].replace(",", "")) if match else 0.0
        return value if 0 < value < 1e12 else 0.0


def _patterns(log_format: LogFormat) -> tuple[FigurePattern, FigurePattern | None, Pattern]:
    rate_words = log_format.tokens_per_s or log_format.samples_per_s or ""
    words = log_format.time_s.words if log_format.time_s else rate_words
    memory = FigurePattern.after(log_format.memory.words) if log_format.memory else None
    rank = re.compile(rf"{log_format.rank}\s*(\d{{1,9}})")
    return FigurePattern.after(words), memory, rank


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
