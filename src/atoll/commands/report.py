"""Looking at answers: `atoll report` and `atoll trace`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from atoll.commands.common import JsonFlag, print_json
from atoll.errors import AtollError

Folder = Annotated[
    Path, typer.Argument(help="Folder that `atoll search --out` or `atoll plan --out` wrote.")
]


def report(
    folder: Folder,
    out: Annotated[
        Path | None, typer.Option(help="The file to write; default: report.html in the folder.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Draw an answer: one HTML file that opens offline in any browser.

    The answer with its proof, the chip to scale, every chip of the space, where the time goes,
    schedules, the pipeline, memory, and what a little more of each part would be worth.
    """
    from atoll.report import write_report

    _wrote(write_report(folder, out), as_json)


def trace(
    folder: Folder,
    out: Annotated[Path | None, typer.Option(help="Default: trace.json in the folder.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Write a step as a Chrome trace, which Perfetto and chrome://tracing open."""
    from atoll.report import open_folder, plan_trace, search_trace, write_trace
    from atoll.report.trace import check_trace_path

    source = open_folder(folder)
    path = folder / "trace.json" if out is None else out
    check_trace_path(path)
    with source.read_whole():
        planned = source.kind in ("plan", "estimate")
        made = plan_trace(source.content) if planned else search_trace(source.content)
    if not made["traceEvents"]:
        raise AtollError(f"{folder}: nothing on record to trace; run the search again.")
    _wrote(write_trace(made, path), as_json)


def _wrote(path: Path, as_json: bool) -> None:
    size = path.stat().st_size
    if as_json:
        print_json({"file": str(path), "bytes": size})
    else:
        print(f"atoll: wrote {path} ({size / 1e6:.1f} MB)", file=sys.stderr)
