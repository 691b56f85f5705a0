"""Designing chips: `atoll search` and `atoll explain`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    from atoll.explore.answer.why import explain_result
    from atoll.report import open_folder

    source = open_folder(question.folder)
    if source.kind == "estimate":
        raise AtollError(
            f"{question.folder}: holds the estimate of one layout, which was compared with none; "
            "`atoll report` draws it, `atoll plan` finds the best one and says why."
        )
    show: Callable[[Mapping[str, Any]], None] = printing.print_explanation
    explained: Callable[[dict[str, Any]], dict[str, Any]] = explain_result
    if source.kind == "wafer":
        from atoll.printing.wafer import print_wafer_explanation
        from atoll.wafer.answer.explain import explain_wafer_result

        show, explained = print_wafer_explanation, explain_wafer_result
    elif source.kind == "plan":
        from atoll.printing.training import print_plan_explanation
        from atoll.report.plan_file import explain_plan

        show, explained = print_plan_explanation, explain_plan
    with source.read_whole():
        shown = explained(source.content)
    answer(shown, as_json, show)
