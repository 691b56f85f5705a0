"""Plausibility of an estimate: its MFU beside published ones, and effects that are not priced."""

from __future__ import annotations

import math
from functools import lru_cache
from importlib.resources import files
from typing import Literal

from pydantic import Field

from atoll.base.units import format_seconds
from atoll.files.yamlfile import Count, Factor, FileModel, read_shipped
from atoll.hardware.gpu import Gpu
from atoll.tools.arguments import ArgumentAccount
from atoll.training.run import Run

PUBLISHED_MFU = files("atoll") / "data" / "published_mfu.yaml"
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


@lru_cache(maxsize=1)
def _published() -> tuple[PublishedMfu, ...]:
    text = PUBLISHED_MFU.read_text(encoding="utf-8")
    return read_shipped(text, PublishedMfus, PUBLISHED_MFU.name).highest


def beyond_published(run: Run, mfu: float, step_s: float) -> tuple[str, ...]:
    """Return a note if the MFU is above all published runs; none for chips that do not exist."""
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


def unpriced_doubt(arguments: ArgumentAccount | None) -> float:
    """Return the half width of logarithms that arguments which are not priced add to intervals."""
    if arguments is None:
        return 0.0
    effects = len(set(arguments.not_modelled.values()))
    unknown = UNKNOWN_ARGUMENTS if arguments.not_understood else 0.0
    return math.hypot(math.sqrt(effects) * NOT_MODELLED, unknown)
