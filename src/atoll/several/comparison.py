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
from atoll.base.errors import AtollError
from atoll.files.inputs import check_readable
from atoll.hardware.silicon.physical import GPU
from atoll.report.folder import open_folder
from atoll.several import figures

KINDS_DIFFER = (
    "the model of GPU-like chips has losses of launches, waits and uneven work that systolic chips "
    "do not have: compare GPU-like chips with each other (docs/chips.md)"
)
KINDS = (PlanAnswer, EstimateAnswer, SearchAnswer, WaferAnswer, MappingAnswer)


def read_run(path: Path) -> Answer:
    """Read the answer of a folder, or of a file that `save` or `--json` wrote."""
    check_readable(path)
    answer: Answer = read_answer(path, *KINDS) if path.is_file() else open_folder(path).answer
    return answer


def compare_runs(runs: Sequence[Path]) -> CompareAnswer:
    """Compare runs, one column per run."""
    return compare_answers(list(map(str, runs)), list(map(read_run, runs)))


def compare_answers(names: Sequence[str], runs: Sequence[Answer]) -> CompareAnswer:
    """Compare answers, one column per answer."""
    if len(runs) < 2:
        raise AtollError("runs: give two or more folders or files to compare")
    asked = _rows(list(map(figures.question_fields, runs)), list(map(figures.default_fields, runs)))
    return CompareAnswer(
        runs=tuple(names),
        asked=(*asked, *_shapes(asked, runs)),
        figures=_rows(list(map(figures.result_figures, runs))),
        notes=_notes(runs),
    )


def _notes(runs: Sequence[Answer]) -> tuple[str, ...]:
    """Return why chips of two kinds are not compared as chips of one kind are."""
    templates = [
        run.best.accelerator.template or "" for run in runs if isinstance(run, SearchAnswer)
    ]
    kinds = {name.startswith(GPU) for name in templates}
    return (KINDS_DIFFER,) if len(kinds) > 1 else ()


def _rows(
    columns: Sequence[figures.Figures], otherwise: Sequence[figures.Figures] | None = None
) -> tuple[ComparedRow, ...]:
    """Return a row for every name of a column; `otherwise` has the default values."""
    names = dict.fromkeys(name for column in columns for name in column)
    if otherwise is not None:
        columns = [usual | column for usual, column in zip(otherwise, columns, strict=True)]
    return tuple(_row(name, [column.get(name) for column in columns]) for name in names)


def _shapes(asked: Sequence[ComparedRow], runs: Sequence[Answer]) -> list[ComparedRow]:
    """Return how the shapes of models with the same name differ."""
    shapes = list(map(figures.model_shape, runs))
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
