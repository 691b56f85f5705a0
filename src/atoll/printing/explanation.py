"""Explanations of searches for people to read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from atoll.base.units import format_mfu, format_seconds, format_slower
from atoll.printing.console import Output, bar, print_bars, short

if TYPE_CHECKING:
    from atoll.answers.plan import Sensitivity
    from atoll.answers.search import DeviceComparison, SearchExplanation

_BAR = 24
_SHOWN = 1e-6
"""Least share of a step that a class is shown with."""


def print_explanation(shown: SearchExplanation) -> None:
    console = Output()
    chip = shown.best
    console.print(f"Chosen: {chip.device().describe()}, {chip.area_mm2:.1f} mm2")
    for model in shown.models:
        console.print(
            f"\n{model.model}: {model.samples_per_s:,.1f} samples/s, "
            f"MFU {format_mfu(model.mfu)}; a step by cause:"
        )
        print_bars(console, model.time_parts_s, sum(model.time_parts_s.values()))
        limits = ", ".join(f"{name} {share:.0%}" for name, share in model.limits.items())
        console.print(f"Operators are limited by: {limits} of their time.")
        console.print("Slowest operators of a block:")
        for row in model.slowest_operators:
            console.print(
                f"  {row.pass_:<9}{row.name:<34}{format_seconds(row.duration_s):>10}  "
                f"{row.core:<7} limited by {row.limit}"
            )
        if model.schedules:
            worst = max(model.schedules, key=lambda entry: entry.gap)
            console.print(
                f"Schedules: the loosest proof is {worst.layer} {worst.pass_}, gap "
                f"{worst.gap:.2%} (bound: {worst.bound})."
            )
    for number, runner_up in enumerate(shown.runners_up, start=1):
        pairs = runner_up.differs.items()
        differs = ", ".join(f"{name} {short(a)} -> {short(b)}" for name, (a, b) in pairs)
        words = differs or "the same chip with another memory"
        console.print(f"\nRunner-up {number}: {words}")
        for reason in runner_up.reasons:
            before, after = (format_seconds(value) for value in reason.part_s)
            part = reason.part.replace("_", " ")
            mostly = f", mostly {part} ({before} -> {after})" if before != after else ""
            console.print(
                f"  {reason.model}: {format_slower(reason.slower_by)}{mostly}; {reason.layout[1]}"
            )
    _print_steps(console, shown.steps)
    for device, comparison in shown.comparison.items():
        _print_comparison(console, device, comparison)
    for note in shown.notes:
        console.print(f"\n{note}")
    proof = shown.certificate.sentence
    console.print(f"\nProof: {proof[0].lower()}{proof[1:]}")


def _print_steps(console: Output, steps: Sequence[Sensitivity]) -> None:
    """Print the next smaller and larger value of each part, and which limit stops them."""
    if not steps:
        return
    console.print("\nThe next smaller and larger value of each part, all else unchanged:")
    rows: list[tuple[str, ...]] = []
    for step in steps:
        for part, gain in ((step.what, step.less), ("", step.more)):
            if gain.area_mm2 is None or gain.power_W is None:
                rows.append((part, "none smaller" if part else "none larger"))
                continue
            reason = gain.stopped_by
            if gain.capped_GHz is not None and gain.capped_gain is not None:
                reason += f"; {gain.capped_gain:+.1%} at {gain.capped_GHz:.3g} GHz"
            speed = "" if gain.gain is None else f"{gain.gain:+.1%}"
            more = f"{gain.area_mm2:+.0f}", f"{gain.power_W:+.0f}"
            rows.append((part, gain.change, speed, *more, reason))
    console.table(("part", "change", "throughput", "mm2", "W", "not chosen"), rows, (0, 1, -1))


def _print_comparison(console: Output, device: str, comparison: DeviceComparison) -> None:
    """Print figures, time by class and the waterfall of an existing device, in 20 lines."""
    device_s = comparison.step_time_s
    console.print(f"\nWhy not {device}? {_speed_words(comparison)}")
    figures = comparison.figures
    rows = [
        (device, *(_figure(figure.device) for figure in figures)),
        ("this chip", *(_figure(figure.answer) for figure in figures)),
    ]
    console.table(("", *(f"{figure.name} {figure.unit}" for figure in figures)), rows)
    if device_s is None:
        return
    classes = {
        name: pair for name, pair in comparison.classes_s.items() if max(pair) > _SHOWN * device_s
    }
    rows = [
        (name, *(format_seconds(both[number]) for both in classes.values()))
        for number, name in enumerate((device, "this chip"))
    ]
    console.table(("step by class", *classes), rows)
    if comparison.described:
        console.print(f"in the template, {device} is {comparison.described}")
    rows = [(device, format_seconds(device_s))]
    most_s = max(abs(change.added_s) for change in comparison.waterfall)
    for change in comparison.waterfall:
        share = abs(change.added_s) / most_s if most_s else 0.0
        sign = "-" if change.added_s < 0 else "+"
        cells = (
            f"{change.change}: {change.before} -> {change.after}",
            format_seconds(change.step_time_s),
            f"{sign}{format_seconds(abs(change.added_s))}",
            bar(share, _BAR) if share > 0.5 / _BAR else "",
        )
        rows.append(cells)
    console.table(("from one to the other", "step", "change", ""), rows, (0, -1))


def _speed_words(comparison: DeviceComparison) -> str:
    device_s, answer_s = comparison.step_time_s, comparison.answer_step_time_s
    if device_s is None:
        return f"The job does not fit: {comparison.remark}"
    described_s = comparison.described_step_time_s
    same = ""
    if described_s is not None:
        ratio = f"{described_s / answer_s:.2f} times"
        same = f" ({ratio} with the chip's software and cost model for both)"
    return (
        f"This chip is {device_s / answer_s:.2f} times as fast{same}: {format_seconds(answer_s)} "
        f"instead of {format_seconds(device_s)} per step. Each change keeps those above it."
    )


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:,.4g}"
