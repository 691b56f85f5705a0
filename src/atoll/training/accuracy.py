"""How far estimates of a kind of run were from measured ones, and where 90 % of such runs lie.

`data/errors.yaml` holds the quantiles of measured over predicted values by kind of run, over rows
that nothing was fitted on; `benchmarks/error_classes.py` writes it (docs/accuracy.md, "Intervals").
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from typing import Literal

from pydantic import Field

from atoll.answers.layout import Expected, Interval, Range
from atoll.files.yamlfile import Count, Factor, FileModel, Share, read_shipped
from atoll.hardware.gpu import Gpu
from atoll.step.layout import Layout
from atoll.training.run import Run
from atoll.units import format_seconds

ERRORS = files("atoll") / "data" / "errors.yaml"
PUBLISHED_MFU = files("atoll") / "data" / "published_mfu.yaml"
LONG = 65536  # tokens from which rings were measured to be slower than estimated
DIGITS, FEW_DIGITS = 4, 2
UNSURE = 0.15  # mean error from which times are shown to few digits

Kind = Literal["dense", "experts", "fine-tuning"]


class ErrorClass(FileModel):
    """Of one kind of run, measured values over predicted ones."""

    kind: Kind
    measured: bool = True
    """Whether operators of such devices were timed; else they are extrapolated."""
    rows: Count
    runs: Count
    """Rows, each measurement counted once: some were read with facts and without."""
    cells: Count
    """Of model, device, method and precision."""
    sources: Count
    mean: Factor
    """Mean absolute error of predictions."""
    low: Factor
    high: Factor
    margin: Factor
    """By which the logarithms of low and high lie beyond the quantiles, as cells and sources that
    were left out would not be covered as often otherwise."""
    cell_coverage: Share
    """Of rows whose cell was left out."""
    coverage: Share
    """Of rows whose source was left out."""


class BetweenLayouts(FileModel):
    """Pairs of layouts of one run, predicted to be near each other: how far measured over predicted
    values of the one are from those of the other."""

    groups: Count
    rows: Count
    median: Factor


class ErrorClasses(FileModel):
    share: Share
    devices: tuple[str, ...] = Field(min_length=1)
    """Whose operators were timed, by the first part of their names."""
    step_time: tuple[ErrorClass, ...]
    memory: tuple[ErrorClass, ...]
    between_layouts: BetweenLayouts


class PublishedMfu(FileModel):
    """The highest MFU of published runs on devices of one silicon."""

    devices: tuple[str, ...]
    """None: all devices without an entry of their own."""
    precisions: tuple[str, ...] = Field(min_length=1)
    mfu: Factor
    runs: Count
    run: str
    """Which one: model, devices."""
    source: str


class PublishedMfus(FileModel):
    highest: tuple[PublishedMfu, ...] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Mean error of a kind of run, and measured over predicted values of 90 % of them."""

    expected: Expected
    share: float
    step_time: tuple[float, float]
    memory: tuple[float, float]
    between: float
    """How far two layouts of one run are off from each other, half of the time."""

    def interval(self, step_time_s: float, memory_bytes: float) -> Interval:
        """Of an estimate."""
        return Interval(
            share=self.share,
            step_time_s=_times(step_time_s, self.step_time),
            memory_bytes=_times(memory_bytes, self.memory),
        )


def _times(value: float, ratios: tuple[float, float]) -> Range:
    low, high = ratios
    return Range(value * low, value * high)


@lru_cache(maxsize=1)
def error_classes() -> ErrorClasses:
    return read_shipped(ERRORS.read_text(encoding="utf-8"), ErrorClasses, ERRORS.name)


@lru_cache(maxsize=1)
def _published() -> tuple[PublishedMfu, ...]:
    text = PUBLISHED_MFU.read_text(encoding="utf-8")
    return read_shipped(text, PublishedMfus, PUBLISHED_MFU.name).highest


def beyond_published(run: Run, mfu: float, step_s: float) -> tuple[str, ...]:
    """What is said of an MFU above all published runs of the device, or of any where too few are on
    record; nothing of a chip that does not exist.
    """
    if not isinstance(run.gpu, Gpu):
        return ()
    alike = [entry for entry in _published() if run.precision in entry.precisions]
    own = (entry for entry in alike if run.gpu.name in entry.devices)
    best = next(own, None) or next(entry for entry in alike if not entry.devices)
    if mfu <= best.mfu:
        return ()
    few = f"all devices (too few on {run.gpu.name} are on record)"
    which = f"{best.runs} published dense runs on {', '.join(best.devices) or few}"
    return (
        f"not credible: MFU {mfu:.1%} is above {best.mfu:.1%}, the highest of {which} ({best.run}; "
        f"{best.source}); at that MFU a step takes {format_seconds(step_s * mfu / best.mfu, 3)}",
    )


def kind_of(run: Run) -> Kind:
    if run.fine_tuned:
        return "fine-tuning"
    return "experts" if run.model.experts else "dense"


def is_measured(run: Run, layout: Layout) -> bool:
    """Whether operators of the device were timed at its clock, and no part of the layout is
    extrapolated.
    """
    beyond = (layout.cp > 1 and run.sequence >= LONG) or run.gpu.cap_W is not None
    return run.gpu.name.partition("-")[0] in error_classes().devices and not beyond


def accuracy(run: Run, layout: Layout) -> Accuracy:
    """Of a run's kind; at a site of its own runs, theirs."""
    known = error_classes()
    kind, measured = kind_of(run), is_measured(run, layout)
    times = _classes(known.step_time, kind, measured)
    peaks = _classes(known.memory, kind, True)
    device = "measured" if measured else "extrapolated"
    found = Accuracy(
        Expected(
            of=f"{kind}, {device} device",
            mean=max(c.mean for c in times),
            runs=sum(c.runs for c in times),
            sources=sum(c.sources for c in times),
            extrapolated=not measured,
        ),
        known.share,
        _hull(times),
        _hull(peaks),
        known.between_layouts.median,
    )
    site = run.site
    if site is None or site.error is None or site.reach is None:
        return found
    low, high = found.step_time
    reach = min(math.exp(site.reach), math.sqrt(high / low))
    own = Expected(of=f"at {site.name}", mean=site.error, runs=site.runs, sources=1)
    return replace(found, expected=own, step_time=(1 / reach, reach))


def _classes(classes: tuple[ErrorClass, ...], kind: Kind, measured: bool) -> list[ErrorClass]:
    """The class; where too few such runs were measured, those that share either property."""
    own = [c for c in classes if (c.kind, c.measured) == (kind, measured)]
    return own or [
        c for c in classes if c.kind == kind or (c.kind, c.measured) == ("dense", measured)
    ]


def _hull(classes: list[ErrorClass]) -> tuple[float, float]:
    return min(c.low for c in classes), max(c.high for c in classes)
