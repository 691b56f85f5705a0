"""Errors of estimates by kind of run, and the interval of 90 % of such runs.

`data/errors.yaml` holds the quantiles of measured over predicted values by kind of run, over rows
not used in any fit; `benchmarks/error_classes.py` writes it (docs/accuracy.md, "Intervals").
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Literal

from pydantic import Field

from atoll.answers.layout import ExpectedError, Interval, ValueRange
from atoll.base.units import format_seconds
from atoll.files.yamlfile import Count, Factor, FileModel, Share, read_shipped
from atoll.hardware.gpu import Gpu
from atoll.step.layout import Layout
from atoll.tools.arguments import ArgumentAccount
from atoll.training.run import Run

ERRORS = files("atoll") / "data" / "errors.yaml"
PUBLISHED_MFU = files("atoll") / "data" / "published_mfu.yaml"
LONG = 65536  # tokens from which measured ring attention is slower than estimated
DIGITS, FEW_DIGITS = 4, 2
NOT_MODELLED = 0.10
"""Half width, as a logarithm, that each effect known not to be priced adds to an interval: 37 runs
of MLPerf 5.1 whose files have one or more (8-bit attention, fused operators, clocks) are 8.0 % off,
those without 4.8 % (root mean square); 90 % of the additional errors are below 10 %."""
UNKNOWN_ARGUMENTS = 0.34
"""Half width that unknown arguments add: mechanisms that were not modelled when a blind test met
them moved a step by 8 to 135 %, 40 % in the median."""
UNSURE = 0.15  # mean error from which times are shown with few digits

Kind = Literal["dense", "experts", "fine-tuning"]


class ErrorClass(FileModel):
    """Measured over predicted values of one kind of run."""

    kind: Kind
    measured: bool = True
    """Whether operators of the devices were timed; otherwise they are extrapolated."""
    rows: Count
    runs: Count
    """Distinct measurements; several rows may interpret one."""
    cells: Count
    """Combinations of model, device, method and precision."""
    sources: Count
    mean: Factor
    """Mean absolute error of predictions."""
    low: Factor
    high: Factor
    margin: Factor
    """Widening of the quantiles' logarithms to `low` and `high`, which keeps the coverage of
    held-out cells and sources."""
    cell_coverage: Share
    """Coverage of rows whose cell was held out."""
    coverage: Share
    """Coverage of rows whose source was held out."""


class BetweenLayouts(FileModel):
    """Relative errors between pairs of layouts of one run with similar predictions."""

    groups: Count
    rows: Count
    median: Factor


class ErrorClasses(FileModel):
    share: Share
    devices: tuple[str, ...] = Field(min_length=1)
    """Devices with timed operators, by the first part of their names."""
    step_time: tuple[ErrorClass, ...]
    memory: tuple[ErrorClass, ...]
    between_layouts: BetweenLayouts


class PublishedMfu(FileModel):
    """Highest MFU of published runs on devices with the same silicon."""

    devices: tuple[str, ...]
    """Empty: all devices without an entry."""
    precisions: tuple[str, ...] = Field(min_length=1)
    mfu: Factor
    runs: Count
    run: str
    """Model and devices of that run."""
    source: str


class PublishedMfus(FileModel):
    highest: tuple[PublishedMfu, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Mean error of a kind of run, and the 90 % range of measured over predicted values."""

    expected: ExpectedError
    share: float
    step_time: tuple[float, float]
    memory: tuple[float, float]
    between: float
    """Median relative error between two layouts of one run."""

    def widened(self, half_width: float) -> Accuracy:
        """Return wider ranges: independent errors of logarithms add as sqrt(a^2 + b^2)."""
        if not half_width:
            return self
        return replace(
            self,
            step_time=_wider(self.step_time, half_width),
            memory=_wider(self.memory, half_width),
        )

    def interval(self, step_time_s: float, memory_bytes: float) -> Interval:
        """Return the interval of an estimate."""
        return Interval(
            share=self.share,
            step_time_s=_times(step_time_s, self.step_time),
            memory_bytes=_times(memory_bytes, self.memory),
        )


def _wider(ratios: tuple[float, float], half_width: float) -> tuple[float, float]:
    low, high = map(math.log, ratios)
    wider = math.hypot((high - low) / 2, half_width) - (high - low) / 2
    return math.exp(low - wider), math.exp(high + wider)


def _times(value: float, ratios: tuple[float, float]) -> ValueRange:
    low, high = ratios
    return ValueRange(value * low, value * high)


@lru_cache(maxsize=1)
def error_classes() -> ErrorClasses:
    return read_shipped(ERRORS.read_text(encoding="utf-8"), ErrorClasses, ERRORS.name)


@lru_cache(maxsize=1)
def _published() -> tuple[PublishedMfu, ...]:
    text = PUBLISHED_MFU.read_text(encoding="utf-8")
    return read_shipped(text, PublishedMfus, PUBLISHED_MFU.name).highest


def beyond_published(run: Run, mfu: float, step_s: float) -> tuple[str, ...]:
    """Return a note if the MFU is above all published runs on the device (or on any device if too
    few are on record); none for chips that do not exist.
    """
    if not isinstance(run.gpu, Gpu):
        return ()
    entries = [entry for entry in _published() if run.precision in entry.precisions]
    of_device = (entry for entry in entries if run.gpu.name in entry.devices)
    best = next(of_device, None) or next(entry for entry in entries if not entry.devices)
    if mfu <= best.mfu:
        return ()
    few = f"all devices (too few on {run.gpu.name} are on record)"
    which = f"{best.runs} published dense runs on {', '.join(best.devices) or few}"
    return (
        f"not credible: MFU {mfu:.1%} is above {best.mfu:.1%}, the highest of {which} ({best.run}; "
        f"{best.source}); at that MFU a step takes {format_seconds(step_s * mfu / best.mfu, 3)}",
    )


def run_kind(run: Run) -> Kind:
    if run.fine_tuned:
        return "fine-tuning"
    return "experts" if run.model.experts else "dense"


def is_measured(run: Run, layout: Layout) -> bool:
    """Return whether operators of the device were timed at its clock and no part of the layout is
    extrapolated.
    """
    beyond = (layout.cp > 1 and run.sequence >= LONG) or run.gpu.cap_W is not None
    return run.gpu.name.partition("-")[0] in error_classes().devices and not beyond


def accuracy(run: Run, layout: Layout) -> Accuracy:
    """Return the accuracy of a run's kind, or of its site's measured runs."""
    classes = error_classes()
    kind, measured = run_kind(run), is_measured(run, layout)
    times = _classes(classes.step_time, kind, measured)
    peaks = _classes(classes.memory, kind, True)
    device = "measured" if measured else "extrapolated"
    shipped = Accuracy(
        ExpectedError(
            of=f"{kind}, {device} device",
            mean=max(c.mean for c in times),
            runs=sum(c.runs for c in times),
            sources=sum(c.sources for c in times),
            extrapolated=not measured,
        ),
        classes.share,
        _hull(times),
        _hull(peaks),
        classes.between_layouts.median,
    )
    shipped = shipped.widened(_doubt(run.arguments))
    site = run.site
    if site is None or site.error is None or site.reach is None:
        return shipped
    low, high = shipped.step_time
    reach = min(math.exp(site.reach), math.sqrt(high / low))
    site_expected = ExpectedError(of=f"at {site.name}", mean=site.error, runs=site.runs, sources=1)
    return replace(shipped, expected=site_expected, step_time=(1 / reach, reach))


def _doubt(arguments: ArgumentAccount | None) -> float:
    """Return the half width of logarithms that arguments which are not priced add to intervals."""
    if arguments is None:
        return 0.0
    effects = len(set(arguments.not_modelled.values()))
    unknown = UNKNOWN_ARGUMENTS if arguments.not_understood else 0.0
    return math.hypot(math.sqrt(effects) * NOT_MODELLED, unknown)


def _classes(classes: tuple[ErrorClass, ...], kind: Kind, measured: bool) -> list[ErrorClass]:
    """Return the matching class, or if too few runs were measured those that share a property."""
    matching = [c for c in classes if (c.kind, c.measured) == (kind, measured)]
    return matching or [
        c for c in classes if c.kind == kind or (c.kind, c.measured) == ("dense", measured)
    ]


def _hull(classes: list[ErrorClass]) -> tuple[float, float]:
    return min(c.low for c in classes), max(c.high for c in classes)
