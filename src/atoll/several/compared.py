"""Runs side by side: what was asked of each, and what came out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pydantic import JsonValue

from atoll.answers.answer import Answer, read_answer
from atoll.answers.designs import CompareAnswer, ComparedRow
from atoll.answers.plan import EstimateAnswer, PlanAnswer
from atoll.answers.search import SearchAnswer
from atoll.answers.wafer import MappingAnswer, WaferAnswer
from atoll.errors import AtollError
from atoll.report.folder import open_folder
from atoll.several.figures import Figures, asked_of, figures_of, shape_of, unasked_of

KINDS = (PlanAnswer, EstimateAnswer, SearchAnswer, WaferAnswer, MappingAnswer)


def opened(path: Path) -> Answer:
    """The answer of a folder, or of a file that `save` or `--json` wrote."""
    found: Answer = read_answer(path, *KINDS) if path.is_file() else open_folder(path).answer
    return found


def compared(runs: Sequence[Path]) -> CompareAnswer:
    """All that is known of several runs, a column for each."""
    return beside(list(map(str, runs)), list(map(opened, runs)))


def beside(names: Sequence[str], runs: Sequence[Answer]) -> CompareAnswer:
    """The same of answers."""
    if len(runs) < 2:
        raise AtollError("runs: give two or more folders or files to compare")
    asked = _rows(list(map(asked_of, runs)), list(map(unasked_of, runs)))
    return CompareAnswer(
        runs=tuple(names),
        asked=(*asked, *_shapes(asked, runs)),
        figures=_rows(list(map(figures_of, runs))),
    )


def _rows(
    columns: Sequence[Figures], otherwise: Sequence[Figures] | None = None
) -> tuple[ComparedRow, ...]:
    """A row for each name of a column; `otherwise` has the values of columns without it."""
    names = dict.fromkeys(name for column in columns for name in column)
    full = (
        columns if otherwise is None else [u | c for u, c in zip(otherwise, columns, strict=True)]
    )
    return tuple(_row(name, [column.get(name) for column in full]) for name in names)


def _shapes(asked: Sequence[ComparedRow], runs: Sequence[Answer]) -> list[ComparedRow]:
    """Where models of one name have several shapes, what they differ in."""
    shapes = list(map(shape_of, runs))
    if not all(shapes) or any(row.name == "model" and row.differs for row in asked):
        return []
    return [row for row in _rows(shapes) if row.differs]


def _row(name: str, values: Sequence[JsonValue]) -> ComparedRow:
    first = values[0]
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    ratios = (
        tuple(float(v) / float(first) for v in numbers)  # type: ignore[arg-type]
        if len(numbers) == len(values) and first
        else ()
    )
    differs = any(value != first for value in values)
    return ComparedRow(name=name, values=tuple(values), ratios=ratios, differs=differs)
