"""Why this layout: what each axis would cost at its next best value."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from atoll.errors import AtollError
from atoll.training.estimate import Estimate, Estimator
from atoll.training.layout import Layout
from atoll.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from atoll.training.plan import Plan


def reasons(plan: Plan) -> list[dict[str, str]]:
    """One sentence an axis: the best neighbour that differs in it, and what it costs."""
    estimator = Estimator(plan.run)
    found = []
    for axis in ("tp", "pp", "cp", "ep", "vpp", "microbatch", "zero", "recompute", "sp"):
        sentence = _reason(plan, estimator, axis)
        if sentence:
            found.append({"axis": axis, "why": sentence})
    return found


def _reason(plan: Plan, estimator: Estimator, axis: str) -> str:
    best = plan.best
    chosen = getattr(best.layout, axis)
    tried: list[Estimate] = []
    for layout in _neighbours(plan, axis):
        try:
            tried.append(estimator.estimate(layout))
        except AtollError:
            continue
    if not tried:
        return ""
    fitting = [e for e in tried if e.fits]
    name = f"{axis} {_shown(chosen)}"
    if fitting:
        nearest = min(fitting, key=lambda e: e.step.time_s)
        other = _shown(getattr(nearest.layout, axis))
        slower = nearest.step.time_s / best.step.time_s - 1
        if slower < 0:  # the space did not have it
            return f"{name}: {axis} {other} takes {slower:+.1%}, but was not among the values tried"
        return f"{name}: {axis} {other} takes {slower:+.1%}, {_where(best, nearest)}"
    least = min(tried, key=lambda e: e.worst.needed)
    other = _shown(getattr(least.layout, axis))
    over = least.worst.needed - plan.run.gpu.hbm_bytes
    return f"{name}: {axis} {other} needs {format_bytes(over)} more memory than there is"


def _neighbours(plan: Plan, axis: str) -> list[Layout]:
    """Layouts with another value on one axis; data parallelism takes up what changes."""
    base = plan.best.layout
    values: dict[str, tuple[Any, ...]] = {
        "zero": (0, 1, 2, 3),
        "recompute": ("none", "selective", "full"),
        "sp": (True, False),
    }
    chosen = getattr(base, axis)
    if axis in values:
        candidates = values[axis]
    else:
        candidates = tuple(v for v in (chosen // 2, chosen * 2) if v >= 1)
    found = []
    for value in candidates:
        if value == chosen or (axis == "sp" and base.tp == 1):
            continue
        layout = replace(base, **{axis: value})
        rest = layout.tp * layout.pp * layout.cp
        if plan.run.devices % rest:
            continue
        layout = replace(layout, dp=plan.run.devices // rest)
        if layout.pp == 1:
            layout = replace(layout, vpp=1)
        if layout.schedule in ("1f1b", "interleaved"):
            layout = replace(layout, schedule="interleaved" if layout.vpp > 1 else "1f1b")
        found.append(layout)
    return found


def _where(best: Estimate, other: Estimate) -> str:
    """The part of the step that grows most."""
    mine, theirs = best.step.breakdown(), other.step.breakdown()
    grown = max(mine, key=lambda name: theirs[name] - mine[name])
    return f"mostly {grown.replace('_', ' ')} (+{format_seconds(theirs[grown] - mine[grown])})"


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)
