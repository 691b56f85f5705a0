"""One question asked for every value of some of its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from atoll import api
from atoll.answers.answer import Answer
from atoll.answers.designs import SweepAnswer, SweptRow
from atoll.answers.plan import PlanAnswer
from atoll.base.errors import AtollError
from atoll.files.atomic_file import check_folder, write_folder
from atoll.files.yamlfile import suggestion
from atoll.questions import EstimateQuestion, PlanQuestion, Question, SearchQuestion
from atoll.questions.ask import ask
from atoll.questions.devices import DEPENDENT_FIELDS
from atoll.questions.sweeps import ONCE, sweep_axes
from atoll.report.folder import SWEEP
from atoll.several.figures import result_figures

Swept = PlanQuestion | EstimateQuestion | SearchQuestion
KINDS = (PlanQuestion, EstimateQuestion, SearchQuestion)
TABLE = "sweep.csv"
MOST = 10_000  # most questions of a sweep


def shared_question(
    question: Swept | type[Swept], fields: Mapping[str, Any]
) -> tuple[Swept, dict[str, Sequence[Any]]]:
    """Return the question that all of a sweep share, and the values of its axes. The question of a
    class takes the first value of every axis.
    """
    axes: dict[str, Sequence[Any]]
    if isinstance(question, type) and issubclass(question, KINDS):
        for name in fields:
            if name not in question.model_fields:
                names = suggestion(name, question.model_fields)
                raise AtollError(f"sweep: {name}: unknown field{names}")
        axes = {n: v for n, v in fields.items() if isinstance(v, list | tuple | range) and v}
        shared = {n: v for n, v in fields.items() if n not in axes}
        first = {n: axes[n][0] for n in question.needed(shared) if n in axes}
        question = ask({question.__name__: question}, None, shared | first)
    else:
        axes = {n: _values(n, v) for n, v in fields.items()}
    if not isinstance(question, KINDS):
        kinds = ", ".join(kind.__name__ for kind in KINDS)
        raise AtollError(f"sweep: expected one of {kinds}, or its class, got {question!r:.80}")
    return question, axes or dict(sweep_axes(type(question), question.sweep))


def _values(name: str, values: Any) -> Sequence[Any]:
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise AtollError(f"sweep: {name}: expected a list of values, got {values!r:.80}")
    return values


def _answer(question: Question) -> Answer:
    """Return the answer to a question of a sweep."""
    if isinstance(question, SearchQuestion):
        return api.search(question).answer
    if isinstance(question, PlanQuestion):
        return api.plan(job=question).answer
    assert isinstance(question, EstimateQuestion)
    return api.estimate(job=question).answer


def run_sweep(question: Question, axes: Mapping[str, Sequence[Any]]) -> SweepAnswer:
    """Answer every combination of values; where there is no answer, state the reason."""
    unswept = {
        **{name: None for name in ONCE if getattr(question, name, None) and name != "sweep"},
        **({"sweep": ()} if getattr(question, "sweep", ()) else {}),
    }
    combinations = list(product(*axes.values()))
    if not axes:
        raise AtollError("sweep: no field has a list of values; give one, as in devices=[8, 16]")
    if len(combinations) > MOST:
        raise AtollError(f"sweep: {len(combinations):,} combinations, at most {MOST:,} are asked")
    rows = []
    for values in combinations:
        changes = dict(zip(axes, values, strict=True))
        shown = {name: value if isinstance(value, int | float) else str(value)
                 for name, value in changes.items()}  # fmt: skip
        try:
            combination = question.changed(**unswept | _reset_fields(question, changes) | changes)
            answer = _answer(combination)
            figures = result_figures(answer)
            if isinstance(answer, PlanAnswer) and combination.asked().get("devices") is None:
                rate, *others = figures.items()
                figures = dict([rate, ("devices", answer.devices), *others])
            rows.append(SweptRow(asked=shown, figures=figures))
        except AtollError as error:
            rows.append(SweptRow(asked=shown, figures={}, problem=str(error)))
    if not any(row.figures for row in rows):
        raise AtollError(f"sweep: no value has an answer; {rows[0].problem}")
    return SweepAnswer(
        axes=tuple(axes), given=_shared_words(question, {**axes, **unswept}), rows=tuple(rows)
    )


def _reset_fields(question: Question, new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the defaults of fields that only apply to another value of a swept field."""
    fields = type(question).model_fields
    lost = (
        names
        for field, value, names in DEPENDENT_FIELDS
        if value and new.get(field, value) != value
    )
    return {name: fields[name].default for names in lost for name in names if name in fields}


def _shared_words(question: Question, axes: Mapping[str, Any]) -> str:
    """Describe what all questions share."""
    shared = {n: v for n, v in question.asked().items() if n not in axes and v not in (None, ())}
    words = question.to_dict()
    return ", ".join(f"{name} {words.get(name, value)}" for name, value in sorted(shared.items()))


def write_sweep(answer: SweepAnswer, folder: Path) -> None:
    """Write the answer and its table, for `atoll report`."""
    check_folder(folder)
    write_folder(folder, {SWEEP: answer.to_json(), TABLE: answer.to_csv()})
