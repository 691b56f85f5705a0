"""What the page shows of several answers: a sweep's table and its plot, runs side by side."""

from __future__ import annotations

import re

from pydantic import JsonValue

from atoll.answers.designs import CompareAnswer, ComparedRow, SweepAnswer
from atoll.report.view import PlotView, TableView, View
from atoll.units import format_value

_QUANTITY = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?) ?([A-Za-z%/]*)")


def table_view(found: SweepAnswer | CompareAnswer) -> View:
    return _sweep(found) if isinstance(found, SweepAnswer) else _compared(found)


def _sweep(found: SweepAnswer) -> View:
    rows, columns = found.lines(), found.columns
    table = TableView(
        title="Every value",
        heads=columns,
        rows=tuple(tuple(format_value(row[name]) for name in columns) for row in rows),
    )
    figure = next(iter(next(row.figures for row in found.rows if row.figures)))
    failed = sum(1 for row in found.rows if row.problem)
    return View(
        kind=found.kind,
        title=f"{', '.join(found.axes)} swept",
        sentence=f"{len(rows)} questions, one for every combination of {', '.join(found.axes)}.",
        certificate="Each is answered on its own, with its own proof where it has one.",
        given=found.given,
        notes=(f"{failed} of them have no answer; the last column says why.",) if failed else (),
        tables=(table,),
        plot=_plot(found, figure),
    )


def _plot(found: SweepAnswer, figure: str) -> PlotView | None:
    """The first figure against the first axis, a line for each value of the others."""
    first, *others = found.axes
    units = {_amount(row.asked[first])[1] for row in found.rows}
    if len(units) > 1:
        return None
    unit = units.pop()
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in found.rows:
        x, y = _amount(row.asked[first])[0], row.figures.get(figure)
        if x is not None and isinstance(y, int | float):
            name = ", ".join(f"{other} {row.asked[other]}" for other in others)
            lines.setdefault(name, []).append((x, float(y)))
    if not lines:
        return None
    return PlotView(
        x=f"{first} ({unit})" if unit else first,
        y=figure,
        lines={name: tuple(sorted(points)) for name, points in lines.items()},
    )


def _amount(value: JsonValue) -> tuple[float | None, str]:
    """A number and its unit, as "500 W" has both; no number where it is a name."""
    told = _QUANTITY.fullmatch(str(value))
    return (float(told[1]), told[2]) if told else (None, "")


def _compared(found: CompareAnswer) -> View:
    return View(
        kind=found.kind,
        title=f"{len(found.runs)} runs side by side",
        sentence=", ".join(found.runs),
        certificate="Ratios are to the first; what differs is marked.",
        tables=(
            _side_by_side("What was asked", found.runs, found.asked),
            _side_by_side("What came out", found.runs, found.figures),
        ),
    )


def _side_by_side(title: str, runs: tuple[str, ...], rows: tuple[ComparedRow, ...]) -> TableView:
    shown = tuple(("≠" if row.differs else "", row.name, *row.cells()) for row in rows)
    return TableView(title=title, heads=("", "", *runs), rows=shown)
