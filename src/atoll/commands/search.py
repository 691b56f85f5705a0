"""Designing chips: `atoll search` and `atoll explain`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from atoll.commands.common import answer, interruptible, leave_if_interrupted
from atoll.errors import AtollError
from atoll.printing import search as printing
from atoll.questions import SearchQuestion, WaferQuestion
from atoll.questions.verbs import ExplainQuestion


def search(question: SearchQuestion | WaferQuestion, as_json: bool, began: float) -> None:
    from atoll.api import search as run

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
    from atoll.answers.plan import PlanAnswer
    from atoll.answers.search import SearchAnswer
    from atoll.answers.wafer import WaferAnswer
    from atoll.explore.answer.why import explain_result
    from atoll.report import open_folder

    found = open_folder(question.folder).answer
    if isinstance(found, SearchAnswer):
        answer(explain_result(found), as_json, printing.print_explanation)
    elif isinstance(found, WaferAnswer):
        from atoll.printing.wafer import print_wafer_explanation
        from atoll.wafer.answer.explain import explain_wafer_result

        answer(explain_wafer_result(found), as_json, print_wafer_explanation)
    elif isinstance(found, PlanAnswer):
        from atoll.printing.training import print_plan_explanation

        answer(found.explained(), as_json, print_plan_explanation)
    else:
        raise AtollError(
            f"{question.folder}: holds the estimate of one layout, which was compared with none; "
            "`atoll report` draws it, `atoll plan` finds the best one and says why."
        )
