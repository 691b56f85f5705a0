"""Looking at answers: `atoll report` and `atoll trace`."""

from __future__ import annotations

from pathlib import Path

from atoll.base.streams import say
from atoll.commands.common import answer, print_json
from atoll.printing import tables
from atoll.questions.verbs import CompareQuestion, ReportQuestion, TraceQuestion


def report(question: ReportQuestion, as_json: bool) -> None:
    from atoll.report.page import write_report

    _wrote(write_report(question.folder, question.out), as_json)


def compare(question: CompareQuestion, as_json: bool) -> None:
    from atoll.several import compare as run

    comparison = run(*question.runs)
    answer(comparison, as_json, tables.print_compared)
    if question.out is not None:
        say(f"wrote {comparison.report(question.out)}")


def trace(question: TraceQuestion, as_json: bool) -> None:
    from atoll.report.folder import open_folder

    answer = open_folder(question.folder).answer
    _wrote(answer.trace(question.out or question.folder / "trace.json"), as_json)


def _wrote(path: Path, as_json: bool) -> None:
    size = path.stat().st_size
    if as_json:
        print_json({"file": str(path), "bytes": size})
    else:
        say(f"wrote {path} ({size / 1e6:.1f} MB)")
