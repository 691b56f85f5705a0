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
from atoll.several.figures import Figures, asked_of, figures_of

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
    return CompareAnswer(
        runs=tuple(names),
        asked=_rows([asked_of(one) for one in runs]),
        figures=_rows([figures_of(one) for one in runs]),
    )


def _rows(columns: Sequence[Figures]) -> tuple[ComparedRow, ...]:
    names = dict.fromkeys(name for column in columns for name in column)
    return tuple(_row(name, [column.get(name) for column in columns]) for name in names)


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
