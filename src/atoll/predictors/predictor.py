"""Interface of predictors: step time and memory of a run and layout, without measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from atoll.step.layout import Layout
from atoll.training.run import Run


@dataclass(frozen=True, slots=True)
class Asked:
    """A measured run, without its measurements."""

    run: Run
    layout: Layout
    counted: tuple[str, str] = ("allocated", "")
    """What its peak counts (`RowSettings.peak`), and the rank: first, last, or "" (fullest)."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """Prediction of a run; None for what a predictor does not predict."""

    time_s: float | None = None
    peak_bytes: float | None = None
    """Per device."""
    fits: bool | None = None
    order: tuple[float, ...] = ()
    """Tie-breaker of layouts with equal times: the smallest ranks first."""


@dataclass(frozen=True, slots=True)
class Predictor:
    """A program or rule that predicts training steps."""

    name: str
    predict: Callable[[Asked], Predicted]
    """Return the prediction of a run, or raise an AtollError with what it cannot express."""
    about: str = ""
    """Description in a sentence."""
    missing: Callable[[], str] = lambda: ""
    """Return why it is not available, such as a missing package; "" if it is."""
