"""Bringing one's own model: `atoll capture`."""

from __future__ import annotations

import time

from atoll.answers.answer import build_from
from atoll.base.streams import say
from atoll.commands.common import answer, leave_when_interrupted
from atoll.printing import tables
from atoll.questions.verbs import CaptureQuestion


def capture(question: CaptureQuestion, as_json: bool) -> None:
    from atoll.answers.models import CaptureAnswer
    from atoll.api import describe_model
    from atoll.tracing import capture_target
    from atoll.workload import StoredModel
    from atoll.workload.stored import check_target

    out = question.out
    check_target(out)
    start = time.perf_counter()
    with leave_when_interrupted():
        model: StoredModel = capture_target(
            question.target,
            list(question.inputs),
            name=question.name,
            sequence=question.sequence,
            batch_dim=None if question.batch_dim < 0 else question.batch_dim,
            dtype=None if question.dtype == "keep" else question.dtype,
            keep=question.keep,
        )
    seconds = time.perf_counter() - start
    model.save(out)
    shown = build_from(
        CaptureAnswer,
        describe_model(str(out), microbatch=model.file.microbatch or 1),
        kind="capture",
        file=str(out),
        notes=tuple(model.file.notes),
        seconds=seconds,
    )
    for words in model.file.warnings:
        say(f"warning: {words}")
    answer(shown, as_json, tables.print_model)
    if not as_json:
        for note in model.file.notes:
            print(f"note: {note}")
        print(f"{out}: written after {seconds:.1f} s")
