"""Commands that only answer and print: the functions that answer and print each question."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from atoll import api, several
from atoll.answers.answer import Explanation
from atoll.base.errors import AtollError
from atoll.commands.common import answer, print_json
from atoll.commands.environment import environment
from atoll.printing import search, tables, training
from atoll.questions import Question
from atoll.questions.verbs import (
    CheckQuestion,
    ExplainQuestion,
    HardwareQuestion,
    SchemaQuestion,
)

if TYPE_CHECKING:
    from atoll.answers.validation import OperatorsValidation


def _explained(question: ExplainQuestion) -> Explanation:
    """Explain the answer of a folder."""
    from atoll.answers.plan import EstimateAnswer
    from atoll.answers.search import SearchAnswer
    from atoll.answers.wafer import WaferAnswer
    from atoll.report.folder import open_folder

    answer = open_folder(question.folder).answer
    if isinstance(answer, EstimateAnswer):
        raise AtollError(
            f"{question.folder}: holds the estimate of one layout, which was compared with none; "
            "`atoll report` draws it, `atoll plan` finds the best one and says why."
        )
    if isinstance(answer, SearchAnswer):
        if question.zigzag is not None:
            from atoll.export.zigzag import write_zigzag

            write_zigzag(answer, question.zigzag)
        if not question.ablate:
            return answer.explain(question.beside)
    elif name := "zigzag" if question.zigzag else "beside" if question.beside else "":
        raise AtollError(f"{question.folder}: {name} is for searches of chips, and holds none.")
    if not question.ablate:
        return answer.explain()
    if isinstance(answer, WaferAnswer):
        return answer.explain(ablate=True)
    raise AtollError(f"{question.folder}: ablate is for mappings on a wafer, and holds none.")


ANSWERED: dict[str, Callable[[Any], Any]] = {
    "bench": lambda question: several.bench(**question.asked()),
    "calibrate": lambda question: api.calibrate(**question.asked()),
    "check": lambda question: api.check(**question.asked()),
    "compare": lambda question: several.compare(*question.runs),
    "env": lambda question: environment(),
    "estimate": lambda question: api.estimate(job=question),
    "explain": _explained,
    "hardware": lambda question: api.describe_hardware(question.name),
    "measure": lambda question: several.measure(job=question),
    "models": lambda question: (
        api.list_models() if question.name is None else api.describe_model(**question.asked())
    ),
    "place": lambda question: api.place(**question.asked()),
    "plan": lambda question: api.plan(job=question),
    "search": lambda question: api.search(question),
    "validate": lambda question: api.validate(**question.asked()),
}
"""Functions from a command's question to its result."""


def _print_operators(shown: OperatorsValidation) -> None:
    tables.print_validation(shown)
    for name, steps in shown.steps.items():
        print(f"\nwhole steps ({name}):")
        training.print_runs(steps)


_BY_KIND: dict[str, Callable[[Any], None]] = {
    "models": tables.print_models,
    "model": tables.print_model,
    "calibration": tables.print_calibration,
    "site-calibration": tables.print_site,
    "measured-ranks": training.print_measured,
    "chips-validation": tables.print_chips,
    "nodes-validation": tables.print_nodes,
    "figures-validation": tables.print_figures,
    "runs-validation": training.print_runs,
    "operators-validation": _print_operators,
}


def _by_kind(answer: Any) -> None:
    _BY_KIND[answer.kind](answer)


PRINTED: dict[str, Callable[[Any], None]] = {
    "bench": tables.print_bench,
    "calibrate": _by_kind,
    "env": tables.print_fields,
    "explain": Explanation.show,
    "hardware": tables.print_hardware,
    "measure": _by_kind,
    "models": _by_kind,
    "place": search.print_table_plan,
    "validate": _by_kind,
}
"""Functions that print an answer, by command."""


def _plain(name: str, question: Question, as_json: bool) -> None:
    answer(ANSWERED[name](question), as_json, PRINTED[name])


def _schema(question: SchemaQuestion) -> None:
    from atoll.answers.kinds import answer_schema
    from atoll.questions.texts import schema as question_schema

    print_json(question_schema(question.command) | {"answer": answer_schema(question.command)})


def _check(question: CheckQuestion, as_json: bool, explain: bool) -> None:
    show = partial(training.print_checked, question=question, explain=explain)
    answer(ANSWERED["check"](question), as_json, show)


def _hardware(question: HardwareQuestion, as_json: bool) -> None:
    if not question.yaml:
        _plain("hardware", question, as_json)
        return
    from atoll.catalogue import describe_file

    if question.name is None or as_json:
        raise AtollError("--yaml needs a name, and no --json: atoll hardware h100 --yaml")
    print(describe_file(question.name), end="")


PLAIN: dict[str, Callable[..., None]] = {name: partial(_plain, name) for name in PRINTED}
PLAIN |= {"check": _check, "hardware": _hardware, "schema": _schema}
