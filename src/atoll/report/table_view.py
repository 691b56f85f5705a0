"""Page view of several answers, a sweep or compared runs: charts and tables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from atoll.answers.designs import CompareAnswer, ComparedRow, SweepAnswer
from atoll.base.units import format_value
from atoll.front import ScriptData

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?) ?([A-Za-z%/]*)")
STEP, INTERVAL = "step s", ("low s", "high s")
RATES = ("tokens/s per device", "MFU %")
"""Figures in inverse proportion to the step time."""


def table_view(answer: SweepAnswer | CompareAnswer) -> ScriptData:
    return _sweep(answer) if isinstance(answer, SweepAnswer) else _compared(answer)


def _sweep(sweep: SweepAnswer) -> ScriptData:
    rows, columns = sweep.lines(), sweep.columns
    cells = [[format_value(row[name]) for name in columns] for row in rows]
    return {
        "kind": sweep.kind,
        "title": f"Sweep of {', '.join(sweep.axes)}",
        "summary": sweep.summary(),
        "tables": [{"title": "All answers", "heads": columns, "rows": cells}],
        "charts": [*_swept_charts(sweep)],
    }


def _swept_charts(sweep: SweepAnswer) -> Iterator[ScriptData]:
    """Yield every figure against the first axis, one line per value of the other axes."""
    axis, *line_axes = sweep.axes
    amounts = [_amount(row.asked[axis]) for row in sweep.rows]
    units = {unit for _, unit in amounts}
    numeric = len(units) == 1 and None not in (value for value, _ in amounts)
    names = tuple(dict.fromkeys(str(row.asked[axis]) for row in sweep.rows))
    lines: dict[str, dict[str, list[ScriptData]]] = {}
    for row, (value, _) in zip(sweep.rows, amounts, strict=True):
        x = value if numeric and value is not None else names.index(str(row.asked[axis]))
        line = ", ".join(f"{name} {row.asked[name]}" for name in line_axes)
        for figure, point in _points(row.figures, x):
            lines.setdefault(figure, {}).setdefault(line, []).append(point)
    unit = f" ({min(units)})" if numeric and units != {""} else ""
    for figure, by_line in lines.items():
        yield {
            "figure": figure,
            "axis": f"{axis}{unit}",
            "categories": () if numeric else names,
            "lines": {n: sorted(p, key=lambda point: point["x"]) for n, p in by_line.items()},
        }


def _points(figures: Mapping[str, JsonValue], x: float) -> Iterator[tuple[str, ScriptData]]:
    """Yield a point for every figure that is a number, with the interval of the step time. `x`: the
    value of the axis, or the index of the category."""
    numbers = {
        name: float(value)
        for name, value in figures.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    low_s, high_s = (numbers.pop(name, None) for name in INTERVAL)
    for name, value in numbers.items():
        low, high = None, None
        if low_s is not None and high_s is not None and name in (STEP, *RATES):
            ends = (low_s / numbers[STEP], high_s / numbers[STEP])
            low, high = sorted(value * end if name == STEP else value / end for end in ends)
        yield name, {"x": x, "y": value, "low": low, "high": high}


def _amount(value: JsonValue) -> tuple[float | None, str]:
    """Split "500 W" into number and unit; the number is None for other texts."""
    quantity = _QUANTITY.fullmatch(str(value))
    return (float(quantity[1]), quantity[2]) if quantity else (None, "")


def _compared(comparison: CompareAnswer) -> ScriptData:
    return {
        "kind": comparison.kind,
        "title": f"{len(comparison.runs)} runs side by side",
        "summary": [
            ("Runs", ", ".join(comparison.runs)),
            ("Ratios", "to the first run; ≠ marks what differs"),
        ],
        "tables": [
            _side_by_side("Questions", comparison.runs, comparison.asked),
            _side_by_side("Figures", comparison.runs, comparison.figures),
        ],
        "charts": [*_compared_charts(comparison)],
    }


def _compared_charts(comparison: CompareAnswer) -> Iterator[ScriptData]:
    """Yield every figure that differs, with a bar for each run that has it."""
    points: dict[str, list[ScriptData]] = {}
    for index in range(len(comparison.runs)):
        figures = {row.name: row.values[index] for row in comparison.figures}
        for figure, point in _points(figures, index):
            points.setdefault(figure, []).append(point)
    differing = {row.name for row in comparison.figures if row.differs}
    for figure, bars in points.items():
        if figure in differing and len(bars) > 1:
            lines = {"": bars}
            yield {"figure": figure, "axis": "run", "categories": comparison.runs, "lines": lines}


def _side_by_side(title: str, runs: tuple[str, ...], rows: tuple[ComparedRow, ...]) -> ScriptData:
    shown = [(row.name, "≠" if row.differs else "", *row.cells()) for row in rows]
    return {"title": title, "heads": ("name", "differs", *runs), "rows": shown}
