"""Designing chips: `atoll search`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from atoll.commands.common import answer, interruptible, leave_if_interrupted, swept
from atoll.printing import search as printing
from atoll.questions import SearchQuestion, WaferQuestion


def search(
    question: SearchQuestion | WaferQuestion, as_json: bool, explain: bool, began: float
) -> None:
    from atoll.api import search as run

    if isinstance(question, SearchQuestion) and swept(question, as_json):
        return
    noun = "chips"
    show_result: Callable[..., None] = printing.print_result
    if isinstance(question, WaferQuestion):
        from atoll.printing.wafer import print_wafer_result

        noun, show_result = "candidates", print_wafer_result
        question = question.changed(explain=True) if explain else question
    with interruptible(began, noun) as (stop, show):
        result = run(question, stop=stop, progress=show)
    answer(result, as_json, partial(show_result, explain=explain))
    leave_if_interrupted(stop, question.out)
