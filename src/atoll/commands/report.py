"""Looking at answers: `atoll report` and `atoll trace`."""

from __future__ import annotations

import sys
from pathlib import Path

from atoll.commands.common import print_json
from atoll.errors import AtollError
from atoll.questions.verbs import ReportQuestion, TraceQuestion


def report(question: ReportQuestion, as_json: bool) -> None:
    from atoll.report import write_report

    _wrote(write_report(question.folder, question.out), as_json)


def trace(question: TraceQuestion, as_json: bool) -> None:
    from atoll.answers.search import SearchAnswer
    from atoll.answers.wafer import WaferAnswer
    from atoll.report import open_folder, plan_trace, search_trace, write_trace
    from atoll.report.trace import check_trace_path

    folder = question.folder
    found = open_folder(folder).answer
    path = question.out or folder / "trace.json"
    check_trace_path(path)
    if isinstance(found, SearchAnswer | WaferAnswer):
        made = search_trace(found)
    else:
        made = plan_trace(found)
    if not made["traceEvents"]:
        raise AtollError(f"{folder}: nothing on record to trace; run the search again.")
    _wrote(write_trace(made, path), as_json)


def _wrote(path: Path, as_json: bool) -> None:
    size = path.stat().st_size
    if as_json:
        print_json({"file": str(path), "bytes": size})
    else:
        print(f"atoll: wrote {path} ({size / 1e6:.1f} MB)", file=sys.stderr)
