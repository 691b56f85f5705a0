"""Looking at answers: `atoll report`, `atoll compare`, `atoll trace` and `atoll serve`."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from atoll.base.streams import say
from atoll.commands.common import answer, print_json
from atoll.printing import tables
from atoll.questions.verbs import CompareQuestion, ReportQuestion, ServeQuestion, TraceQuestion


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


def serve(question: ServeQuestion) -> None:
    from atoll.serve.server import Explorer

    if question.token is None and (secret := os.environ.get("ATOLL_TOKEN")):
        question = question.changed(token=secret)
    explorer = Explorer(
        question.folders,
        host=question.host,
        port=question.port,
        token=question.token,
        allow_hosts=question.allow_host,
    )
    explorer.warm()
    for folder in explorer.left_out:
        say(folder.reason)
    print(explorer.address, flush=True)
    if sys.stderr.isatty():
        print("Ctrl-C ends it.", file=sys.stderr)
    if question.open:
        import webbrowser

        webbrowser.open(explorer.address)
    with suppress(KeyboardInterrupt):
        explorer.serve_forever()


def _wrote(path: Path, as_json: bool) -> None:
    size = path.stat().st_size
    if as_json:
        print_json({"file": str(path), "bytes": size})
    else:
        say(f"wrote {path} ({size / 1e6:.1f} MB)")
