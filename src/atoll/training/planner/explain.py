"""Reasons for a layout: per axis, the best layout with another value and its slowdown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import numpy as np

from atoll.answers.layout import AxisReason
from atoll.base.arrays import Bools
from atoll.base.stopping import StoppedError
from atoll.base.units import format_bytes, format_seconds, format_slower
from atoll.step.layout import Layout
from atoll.training.estimate import Estimate
from atoll.training.planner.search import LayoutSpace
from atoll.training.planner.ties import why_not

AXES = (
    "tp", "pp", "cp", "ep", "etp", "vpp", "microbatch", "zero", "hsdp", "recompute", "sp",
    "schedule",
)  # fmt: skip


def reasons(space: LayoutSpace, best: Estimate, ties: float) -> tuple[tuple[AxisReason, ...], str]:
    """Return one reason per axis with several values: the best layout with another value, all other
    axes free, and its slowdown, or why it is not named if it is faster. Also return why reasons are
    missing, empty if none are.
    """
    reasons_by_axis: list[AxisReason] = []
    for axis in AXES:
        try:
            sentence, alternative = _reason(space, best, axis, ties)
        except StoppedError:
            return tuple(reasons_by_axis), space.stop.reason
        if sentence:
            slower = alternative.step.time_s / best.step.time_s - 1 if alternative.fits else None
            reasons_by_axis.append(
                AxisReason(axis=axis, why=sentence, axes=alternative.layout, slower=slower)
            )
    return tuple(reasons_by_axis), ""


def faster_layouts(
    space: LayoutSpace, layout: Layout, limit_s: float
) -> Iterator[tuple[float, Layout]]:
    """Yield, per axis, the fastest layout with another value below `limit_s`, with its time."""
    with suppress(StoppedError):
        for axis in AXES:
            rows, names = _others(space, layout, axis)
            estimate = space.nearest(rows, names, limit_s) if rows.any() and names.any() else None
            if estimate is not None:
                yield estimate.step.time_s, estimate.layout


def _reason(space: LayoutSpace, best: Estimate, axis: str, ties: float) -> tuple[str, Estimate]:
    """Return the slowdown of another value in words (empty if there is none), and its layout."""
    rows, names = _others(space, best.layout, axis)
    if not (rows.any() and names.any()):
        return "", best
    name = f"{axis} {_value(best.layout, axis)}"
    alternative = space.nearest(rows, names)
    if alternative is not None:
        slower = alternative.step.time_s / best.step.time_s - 1
        value, words = f"{axis} {_value(alternative.layout, axis)}", format_slower(slower, 1)
        if slower < 0:
            would = f"{value} would be {words} but {why_not(alternative, best, ties)}"
            return f"{name}: {would}, with {alternative.layout}", alternative
        part = f", {_where(best, alternative)}" if slower else ""
        return f"{name}: {value} is {words} with {alternative.layout}{part}", alternative
    least = space.smallest(rows, names)
    if least.fits:  # fits, but cannot be used
        return "", least
    over = format_bytes(least.worst.needed - space.run.capacity_bytes)
    needs = f"{axis} {_value(least.layout, axis)} needs {over} more memory than there is"
    return f"{name}: no other fits, {needs}, as {least.layout}", least


def _others(space: LayoutSpace, layout: Layout, axis: str) -> tuple[Bools, Bools]:
    """Return masks of the rows and recomputation policies with another value; for sp only rows with
    tp > 1, for schedule only rows with pp > 1.
    """
    every = np.ones(len(space.names), dtype=np.bool_)
    if axis == "recompute":
        return np.ones(len(space.slot), dtype=np.bool_), np.array(space.names) != layout.recompute
    if (axis == "etp" and not space.run.model.experts) or (axis == "schedule" and layout.pp == 1):
        return np.zeros(len(space.slot), dtype=np.bool_), every
    if axis in ("tp", "cp", "ep", "etp", "sp"):
        others = [
            getattr(block.family, axis) != getattr(layout, axis)
            and (axis != "sp" or min(layout.tp, block.family.tp) > 1)
            for block in space.blocks
        ]
        return np.repeat(others, [len(block) for block in space.blocks]), every
    if axis != "schedule":
        return space.column(axis) != getattr(layout, axis), every
    names = np.array(["1f1b" if n == "interleaved" else n for n in space.blocks[0].schedules])
    mine = "1f1b" if layout.schedule == "interleaved" else layout.schedule
    return (space.column("pp") > 1) & (names[space.column("schedule")] != mine), every


def _where(best: Estimate, alternative: Estimate) -> str:
    """Name the part of the step that grows most, or shrinks most if the alternative is faster."""
    mine, theirs = best.step.breakdown(), alternative.step.breakdown()
    sign = 1 if alternative.step.time_s >= best.step.time_s else -1
    part = max(mine, key=lambda name: sign * (theirs[name] - mine[name]))
    change = format_seconds(abs(theirs[part] - mine[part]), best.digits)
    return f"mostly {part.replace('_', ' ')} ({'+' if sign > 0 else '-'}{change})"


def _value(layout: Layout, axis: str) -> str:
    value = getattr(layout, axis)
    if isinstance(value, bool):
        return "on" if value else "off"
    return "1f1b" if value == "interleaved" else str(value)
