"""Why this layout: the best of the space with another value on each axis, and what it costs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from atoll.step.layout import Layout
from atoll.training.estimate import Estimate
from atoll.training.search import Bools, Space
from atoll.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from atoll.training.plan import Plan

AXES = (
    "tp", "pp", "cp", "ep", "vpp", "microbatch", "zero", "hsdp", "recompute", "sp", "schedule",
)  # fmt: skip
MOST_TRIED = 20  # layouts looked at for how much memory is missing


def reasons(plan: Plan) -> list[dict[str, str]]:
    """One sentence an axis that the space leaves open: the best layout with another value on it,
    all other axes free, and what it costs.
    """
    found = []
    for axis in AXES:
        sentence = _reason(plan, axis)
        if sentence:
            found.append({"axis": axis, "why": sentence})
    return found


def _reason(plan: Plan, axis: str) -> str:
    best, space = plan.best, plan.space
    rows = _others(space, best.layout, axis)
    if not rows.any():
        return ""
    name = f"{axis} {_value(best.layout, axis)}"
    chosen = best.recomputed if axis == "recompute" else ""
    nearest = space.search(1, rows, lambda other: other.recomputed != chosen).best
    if nearest:
        other = nearest[0]
        slower = other.step.time_s / best.step.time_s - 1
        value = f"{axis} {_value(other.layout, axis)}"
        if slower == 0:
            return f"{name}: {value} takes as long, as {other.layout}"
        return f"{name}: {value} takes {slower:+.1%} as {other.layout}, {_where(best, other)}"
    least = _least(space, rows)
    if least.fits:  # fits, but cannot be used
        return ""
    over = least.worst.needed - plan.run.gpu.hbm_bytes
    return (
        f"{name}: no other fits, {axis} {_value(least.layout, axis)} needs {format_bytes(over)} "
        f"more memory than there is, as {least.layout}"
    )


def _others(space: Space, layout: Layout, axis: str) -> Bools:
    """Rows with another value; sequence parallelism only where there is a tensor group, schedules
    only where there is a pipeline.
    """
    table = space.table
    none = np.zeros(len(space), dtype=np.bool_)
    if axis in ("tp", "cp", "ep", "microbatch", "sp"):
        if axis == "sp" and layout.tp == 1:
            return none
        known = [getattr(block.variant, axis) for block in space.blocks]
        rows = np.asarray(np.array(known)[table.owner] != getattr(layout, axis))
        if axis == "sp":
            rows &= np.array([block.variant.tp > 1 for block in space.blocks])[table.owner]
        return rows
    if axis == "recompute":
        return np.asarray(np.array(table.names)[table.recompute] != layout.recompute)
    if axis == "schedule":
        if layout.pp == 1:
            return none
        names = ["1f1b" if name == "interleaved" else name for name in table.schedules]
        mine = "1f1b" if layout.schedule == "interleaved" else layout.schedule
        return np.asarray((np.array(names)[table.schedule] != mine) & (table.pp > 1))
    return np.asarray(getattr(table, axis) != getattr(layout, axis))


def _least(space: Space, rows: Bools) -> Estimate:
    """Of some rows, the layout that needs least memory, as far as bounds tell."""
    listed = np.flatnonzero(rows)
    order = listed[np.argsort(space.needed[listed], kind="stable")][:MOST_TRIED]
    return min((space.estimate(int(at)) for at in order), key=lambda e: e.worst.needed)


def _where(best: Estimate, other: Estimate) -> str:
    """The part of the step that grows most."""
    mine, theirs = best.step.breakdown(), other.step.breakdown()
    grown = max(mine, key=lambda name: theirs[name] - mine[name])
    more = format_seconds(theirs[grown] - mine[grown], best.digits)
    return f"mostly {grown.replace('_', ' ')} (+{more})"


def _value(layout: Layout, axis: str) -> str:
    value = getattr(layout, axis)
    if isinstance(value, bool):
        return "on" if value else "off"
    return "1f1b" if value == "interleaved" else str(value)
