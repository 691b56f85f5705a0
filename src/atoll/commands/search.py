"""Designing chips: `atoll search` and `atoll explain`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atoll.answers.answer import Explanation
from atoll.commands.common import answer, interruptible, leave_if_interrupted, swept
from atoll.errors import AtollError
from atoll.printing import search as printing
from atoll.questions import SearchQuestion, WaferQuestion
from atoll.questions.verbs import ExplainQuestion


def search(question: SearchQuestion | WaferQuestion, as_json: bool, began: float) -> None:
    from atoll.api import search as run

    if isinstance(question, SearchQuestion) and swept(question, as_json):
        return
    noun = "chips"
    show_result: Callable[[Any], None] = printing.print_result
    if isinstance(question, WaferQuestion):
        from atoll.printing.wafer import print_wafer_result

        noun, show_result = "candidates", print_wafer_result
    with interruptible(began, noun) as (stop, show):
        result = run(question, stop=stop, progress=show)
    answer(result, as_json, show_result)
    leave_if_interrupted(stop, question.out)


def explain(question: ExplainQuestion, as_json: bool) -> None:
    answer(explained(question), as_json, Explanation.show)


def explained(question: ExplainQuestion) -> Explanation:
    """Why the answer of a folder is as it is."""
    from atoll.answers.plan import EstimateAnswer
    from atoll.answers.wafer import WaferAnswer
    from atoll.report.folder import open_folder

    found = open_folder(question.folder).answer
    if isinstance(found, EstimateAnswer):
        raise AtollError(
            f"{question.folder}: holds the estimate of one layout, which was compared with none; "
            "`atoll report` draws it, `atoll plan` finds the best one and says why."
        )
    if not question.ablate:
        return found.explain()
    if isinstance(found, WaferAnswer):
        return found.explain(ablate=True)
    raise AtollError(f"{question.folder}: ablate is for mappings on a wafer, and holds none.")
