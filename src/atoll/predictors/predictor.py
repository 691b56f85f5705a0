"""What a predictor is: something that says of a run and its layout how long a step takes and how
much memory it needs. It is given no measurement.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from atoll.step.layout import Layout
from atoll.training.run import Run


@dataclass(frozen=True, slots=True)
class Asked:
    """A run that was measured, without its measurements."""

    run: Run
    layout: Layout
    counted: tuple[str, str] = ("allocated", "")
    """What its peak counts (`Facts.peak`), and on which rank: first, last, or nothing for the
    fullest."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """What is said of it; None where a predictor has no answer."""

    time_s: float | None = None
    peak_bytes: float | None = None
    """Of a device."""
    fits: bool | None = None
    order: tuple[float, ...] = ()
    """Of layouts that take equally long, which it would try first: the smallest."""


def _nothing() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Predictor:
    """A program or rule that predicts training steps."""

    name: str
    predict: Callable[[Asked], Predicted]
    """What it says of a run, or one AtollError with what it cannot express."""
    about: str = ""
    """What it is, in a sentence."""
    missing: Callable[[], str] = _nothing
    """Why it cannot be asked here, such as a package that is not installed; nothing if it can."""
