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
from atoll.step.layout import Layout
from atoll.training.run import Run

ERRORS = files("atoll") / "data" / "errors.yaml"
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
