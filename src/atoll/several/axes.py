"""One question asked for every value of some of its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from atoll import api
from atoll.answers.answer import Answer
from atoll.answers.designs import SweepAnswer, SweptRow
from atoll.errors import AtollError
from atoll.files.wholefile import check_folder, write_folder
from atoll.files.yamlfile import suggestion
from atoll.questions import EstimateQuestion, PlanQuestion, Question, SearchQuestion
from atoll.questions.devices import SAID_OF
from atoll.questions.options import read_text
from atoll.report.folder import SWEEP
from atoll.several.figures import figures_of

TABLE = "sweep.csv"
MOST = 10_000
"""Questions of one sweep."""
_ONCE = ("out", "trace", "export_to", "messages", "sweep", "layouts")
"""Fields that say where one answer goes."""


def axes_of(question: Question, texts: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Fields and their values from "devices=64", "128", "tp=1": a text without a name belongs to
    the field before it.
    """
    found: dict[str, list[str]] = {}
    name = ""
    for text in texts:
        before, equals, value = text.partition("=")
        name = before.strip().replace("-", "_") if equals else name
        if not name:
            raise AtollError(f"sweep: expected NAME=VALUE,..., got {text!r}")
        found.setdefault(name, []).append((value if equals else text).strip())
    fields = type(question).model_fields
    for name in found:
        if name not in fields or fields[name].exclude or name in _ONCE:
            raise AtollError(
                f"sweep: {name!r} is no field that could differ{suggestion(name, fields)}"
            )
    return {
        name: tuple(read_text(fields[name], v) for v in values) for name, values in found.items()
    }


def _answered(question: Question) -> Answer:
    """What one question of a sweep answers."""
    if isinstance(question, SearchQuestion):
        return api.search(question).answer
    if isinstance(question, PlanQuestion):
        return api.plan(job=question).answer
    assert isinstance(question, EstimateQuestion)
    return api.estimate(job=question).answer


def swept(question: Question, axes: Mapping[str, Sequence[Any]]) -> SweepAnswer:
    """Answers for every combination of values; one that has none keeps the reason."""
    alone = {
        **{name: None for name in _ONCE if getattr(question, name, None) and name != "sweep"},
        **({"sweep": ()} if getattr(question, "sweep", ()) else {}),
    }
    combinations = list(product(*axes.values()))
    if not axes or len(combinations) > MOST:
        raise AtollError(f"sweep: {len(combinations):,} questions, expected 1 to {MOST:,}")
    rows = []
    for values in combinations:
        given = dict(zip(axes, values, strict=True))
        shown = {name: value if isinstance(value, int | float) else str(value)
                 for name, value in given.items()}  # fmt: skip
        try:
            one = question.changed(**alone | _unsaid(question, given) | given)
            figures = figures_of(_answered(one))
            rows.append(SweptRow(asked=shown, figures=figures))
        except AtollError as error:
            rows.append(SweptRow(asked=shown, figures={}, problem=str(error)))
    if not any(row.figures for row in rows):
        raise AtollError(f"sweep: no value has an answer; {rows[0].problem}")
    return SweepAnswer(
        axes=tuple(axes), given=_given(question, {**axes, **alone}), rows=tuple(rows)
    )


def _unsaid(question: Question, given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that say more of another one than its value in this question of the sweep has."""
    fields = type(question).model_fields
    lost = (names for of, value, names in SAID_OF if value and given.get(of, value) != value)
    return {name: fields[name].default for names in lost for name in names if name in fields}


def _given(question: Question, axes: Mapping[str, Any]) -> str:
    """What all of them share, in words."""
    asked = {n: v for n, v in question.asked().items() if n not in axes and v not in (None, ())}
    told = question.to_dict()
    return ", ".join(f"{name} {told.get(name, value)}" for name, value in sorted(asked.items()))


def keep(found: SweepAnswer, folder: Path) -> None:
    """The answer and its table, for `atoll report`."""
    check_folder(folder)
    write_folder(folder, {SWEEP: found.to_json(), TABLE: found.to_csv()})
