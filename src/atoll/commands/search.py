"""Designing chips: `atoll search` and `atoll explain`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import typer

from atoll.commands.common import answer
from atoll.errors import AtollError
from atoll.printing import console
from atoll.printing import search as printing
from atoll.questions import SearchQuestion, WaferQuestion
from atoll.questions.verbs import ExplainQuestion


def search(question: SearchQuestion | WaferQuestion, as_json: bool, began: float) -> None:
    """`began`: when the command did, by the monotonic clock, from which its time limit counts."""
    from atoll.api import search as run
    from atoll.stopping import Stop

    noun = "chips"
    show_result: Callable[[Any], None] = printing.print_result
    if isinstance(question, WaferQuestion):
        from atoll.printing.wafer import print_wafer_result

        noun, show_result = "candidates", print_wafer_result
    stop = Stop(began=began)
    with stop.on_interrupt(), console.progress(noun) as show:
        result = run(question, stop=stop, progress=show)
    answer(result, as_json, show_result)
    if stop.interrupted:
        again = "" if question.out is None else "; the same command continues"
        print(f"atoll: interrupted{again}", file=sys.stderr)
        raise typer.Exit(128 + stop.signal)


def explain(question: ExplainQuestion, as_json: bool) -> None:
    from atoll.explore.answer.why import explain_result
    from atoll.report import open_folder

    source = open_folder(question.folder)
    if source.kind in ("plan", "estimate"):
        raise AtollError(
            f"{question.folder}: holds a training layout, whose reasons `atoll plan` prints with "
            "it; `atoll report` draws them."
        )
    show: Callable[[Mapping[str, Any]], None] = printing.print_explanation
    explained: Callable[[dict[str, Any]], dict[str, Any]] = explain_result
    if source.kind == "wafer":
        from atoll.printing.wafer import print_wafer_explanation
        from atoll.wafer.answer.explain import explain_wafer_result

        show, explained = print_wafer_explanation, explain_wafer_result
    with source.read_whole():
        shown = explained(source.content)
    answer(shown, as_json, show)
