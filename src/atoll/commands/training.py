"""Runs on existing hardware: `atoll estimate` and `atoll plan`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from atoll import questions
from atoll.commands.common import answer, interruptible, leave_if_interrupted, swept
from atoll.printing import training as printing_training

if TYPE_CHECKING:
    from atoll.questions import EstimateQuestion, PlanQuestion, WaferQuestion
    from atoll.training.estimate import Estimate
    from atoll.training.mixed.plan import MixedPlan
    from atoll.training.planner.plan import Plan

_LATER: dict[str, Any] = {"launch_file": None}
"""The launch file is written after the answer is printed: its target may refuse the layout."""


def estimate(question: EstimateQuestion | WaferQuestion, as_json: bool, explain: bool) -> None:
    from atoll.api import estimate as run
    from atoll.training.estimate import Estimate

    if not isinstance(question, questions.EstimateQuestion):
        from atoll.printing.wafer import print_wafer_estimate

        answer(run(job=question), as_json, partial(print_wafer_estimate, explain=explain))
    elif not swept(question, as_json):
        result = run(job=question.model_copy(update=_LATER))
        assert isinstance(result, Estimate)
        answer(result, as_json, partial(printing_training.print_estimate, explain=explain))
        _write_launch_file(question, result)


def plan(question: PlanQuestion, as_json: bool, explain: bool, began: float) -> None:
    from atoll.api import plan as run
    from atoll.training.planner.plan import Plan

    if swept(question, as_json):
        return
    shown, later = printing_training, question.model_copy(update=_LATER)
    with interruptible(began, "layouts", kernels=False) as (stop, show):
        if question.measure is None:
            result = run(job=later, stop=stop, progress=show)
        else:
            from atoll.measurement.measure import plan_measured

            result = plan_measured(
                later,
                lambda again: run(job=again, stop=stop, progress=show),
                None if as_json else shown.print_measured,
            )
        if isinstance(result, Plan) and (as_json or explain):
            _ = result.reasons, result.unrestricted  # while Ctrl-C ends with what there is
    planned = partial(shown.print_plan, question=question)
    printed = planned if isinstance(result, Plan) else shown.print_mixed
    answer(result, as_json, partial(printed, explain=explain))
    leave_if_interrupted(stop, question.out)
    _write_launch_file(question, result)


def _write_launch_file(
    question: PlanQuestion | EstimateQuestion, result: Estimate | Plan | MixedPlan
) -> None:
    """Write the launch file that was asked for."""
    if question.launch_file is not None or question.export is not None:
        file = result.export(result.tool.name)
        printing_training.write_launch_file(file, question.launch_file)
