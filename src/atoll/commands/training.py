"""Runs on existing hardware: `atoll estimate` and `atoll plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from atoll import questions
from atoll.commands.common import answer, interruptible, leave_if_interrupted, swept
from atoll.printing import training as printing_training

if TYPE_CHECKING:
    from atoll.questions import EstimateQuestion, PlanQuestion, WaferQuestion

_LATER: dict[str, Any] = {"export_to": None}
"""The launch file is written after the answer is printed: its target may refuse the layout."""


def estimate(question: EstimateQuestion | WaferQuestion, as_json: bool) -> None:
    from atoll.api import estimate as run
    from atoll.training.estimate import Estimate

    if isinstance(question, questions.EstimateQuestion) and swept(question, as_json):
        return
    job = (
        question.model_copy(update=_LATER)
        if isinstance(question, questions.EstimateQuestion)
        else question
    )
    result = run(job=job)
    if not isinstance(result, Estimate):
        from atoll.printing.wafer import print_wafer_estimate

        answer(result, as_json, print_wafer_estimate)
        return
    answer(result, as_json, printing_training.print_estimate)
    if isinstance(question, questions.EstimateQuestion) and question.export is not None:
        printing_training.write_launch_file(result.export(question.export), question.export_to)


def plan(question: PlanQuestion, as_json: bool, began: float) -> None:
    from atoll.api import plan as run
    from atoll.training.planner.plan import Plan
    from atoll.training.planner.search import UnusableError
    from atoll.training.request import tool_settings

    if swept(question, as_json):
        return
    refused = None
    with interruptible(began, "layouts", kernels=False) as (stop, show):
        try:
            result = run(job=question.model_copy(update=_LATER), stop=stop, progress=show)
        except UnusableError as error:  # print the plan without a launch file
            tool = tool_settings(question)  # the same run for any tool
            without = question.model_copy(update=_LATER | tool | {"export": None})
            refused, result = error, run(job=without, stop=stop, progress=show)
    shown = printing_training
    answer(result, as_json, shown.print_plan if isinstance(result, Plan) else shown.print_mixed)
    leave_if_interrupted(stop, question.out)
    if refused is not None:
        raise refused
    if question.export is not None:
        printing_training.write_launch_file(result.export(question.export), question.export_to)
