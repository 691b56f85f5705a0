"""Looking at answers: `atoll report` and `atoll trace`."""

from __future__ import annotations

import sys
from pathlib import Path

from atoll.commands.common import print_json
from atoll.questions.verbs import ReportQuestion, TraceQuestion


def report(question: ReportQuestion, as_json: bool) -> None:
    from atoll.report import write_report

    _wrote(write_report(question.folder, question.out), as_json)


def trace(question: TraceQuestion, as_json: bool) -> None:
    from atoll.report import open_folder

    found = open_folder(question.folder).answer
    _wrote(found.trace(question.out or question.folder / "trace.json"), as_json)


def _wrote(path: Path, as_json: bool) -> None:
    size = path.stat().st_size
    if as_json:
        print_json({"file": str(path), "bytes": size})
    else:
        print(f"atoll: wrote {path} ({size / 1e6:.1f} MB)", file=sys.stderr)
