"""Page view of several answers: a sweep's table and plot, or compared runs."""

from __future__ import annotations

import re

from pydantic import JsonValue

from atoll.answers.designs import CompareAnswer, ComparedRow, SweepAnswer
from atoll.base.units import format_value
from atoll.report.view import PageView, PlotView, TableView

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?) ?([A-Za-z%/]*)")


def table_view(answer: SweepAnswer | CompareAnswer) -> PageView:
    return _sweep(answer) if isinstance(answer, SweepAnswer) else _compared(answer)


def _sweep(sweep: SweepAnswer) -> PageView:
    rows, columns = sweep.lines(), sweep.columns
    table = TableView(
        title="Every value",
        heads=columns,
        rows=tuple(tuple(format_value(row[name]) for name in columns) for row in rows),
    )
    figure = next(iter(next(row.figures for row in sweep.rows if row.figures)))
    failed = sum(1 for row in sweep.rows if row.problem)
    return PageView(
        kind=sweep.kind,
        title=f"{', '.join(sweep.axes)} swept",
        sentence=f"{len(rows)} questions, one for every combination of {', '.join(sweep.axes)}.",
        certificate="Each is answered on its own, with its own proof where it has one.",
        given=sweep.given,
        notes=(f"{failed} of them have no answer; the last column says why.",) if failed else (),
        tables=(table,),
        plot=_plot(sweep, figure),
    )


def _plot(sweep: SweepAnswer, figure: str) -> PlotView | None:
    """Plot the first figure against the first axis, one line per value of the other axes."""
    axis, *line_axes = sweep.axes
    units = {_amount(row.asked[axis])[1] for row in sweep.rows}
    if len(units) > 1:
        return None
    unit = units.pop()
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in sweep.rows:
        axis_value, figure_value = _amount(row.asked[axis])[0], row.figures.get(figure)
        if axis_value is not None and isinstance(figure_value, int | float):
            name = ", ".join(f"{line_axis} {row.asked[line_axis]}" for line_axis in line_axes)
            lines.setdefault(name, []).append((axis_value, float(figure_value)))
    if not lines:
        return None
    return PlotView(
        x=f"{axis} ({unit})" if unit else axis,
        y=figure,
        lines={name: tuple(sorted(points)) for name, points in lines.items()},
    )


def _amount(value: JsonValue) -> tuple[float | None, str]:
    """Split "500 W" into number and unit; the number is None for other texts."""
    quantity = _QUANTITY.fullmatch(str(value))
    return (float(quantity[1]), quantity[2]) if quantity else (None, "")


def _compared(comparison: CompareAnswer) -> PageView:
    return PageView(
        kind=comparison.kind,
        title=f"{len(comparison.runs)} runs side by side",
        sentence=", ".join(comparison.runs),
        certificate="Ratios are to the first; what differs is marked.",
        tables=(
            _side_by_side("What was asked", comparison.runs, comparison.asked),
            _side_by_side("What came out", comparison.runs, comparison.figures),
        ),
    )


def _side_by_side(title: str, runs: tuple[str, ...], rows: tuple[ComparedRow, ...]) -> TableView:
    shown = tuple(("≠" if row.differs else "", row.name, *row.cells()) for row in rows)
    return TableView(title=title, heads=("", "", *runs), rows=shown)
