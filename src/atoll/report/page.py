"""One HTML file that opens offline: the view's data, the styles and the scripts inside it."""

from __future__ import annotations

import html
import json
from pathlib import Path

from atoll.answers.answer import dumped
from atoll.answers.designs import CompareAnswer, SweepAnswer
from atoll.answers.search import SearchAnswer
from atoll.answers.wafer import WaferAnswer
from atoll.base.identity import VERSION
from atoll.files.atomic_file import atomic_files, check_place
from atoll.front import ScriptData, bundle, text
from atoll.report.folder import SWEEP, ReportedAnswer, open_folder, read_sweep
from atoll.report.plan_view import plan_view
from atoll.report.search_view import search_view, wafer_view
from atoll.report.table_view import table_view
from atoll.store import StatusAnswer

REPORT = "report.html"
DrawnAnswer = ReportedAnswer | SweepAnswer | CompareAnswer
# Forbids all network access of the page.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def make_view(answer: DrawnAnswer, folder: Path | None, status: StatusAnswer | None) -> ScriptData:
    """Return the page of an answer as its sections (`front/views/page.js` draws them); with a
    search's folder, of every evaluated design."""
    if isinstance(answer, SweepAnswer | CompareAnswer):
        return table_view(answer)
    if isinstance(answer, SearchAnswer):
        return search_view(folder, answer, status)
    return wafer_view(answer) if isinstance(answer, WaferAnswer) else plan_view(answer)


def view_json(view: ScriptData) -> str:
    """Return the view as JSON for the scripts, without fields that are None."""
    shown = {name: value for name, value in view.items() if value is not None}
    return json.dumps(shown, allow_nan=False, separators=(",", ":"), default=dumped)


def render(view: ScriptData) -> str:
    """Return the page as HTML."""
    style, script = text("base/style.css"), bundle("report.js")
    # A closing tag inside the data would end the script element.
    data = view_json(view).replace("<", "\\u003c")
    title = html.escape(f"{view['title']} - Atoll")
    return (
        "<!doctype html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="generator" content="atoll {VERSION}">\n'
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#page">Skip to the answer</a>\n'
        '<main id="page" tabindex="-1"><noscript>This report needs JavaScript; allow scripts '
        "for this file.</noscript></main>\n"
        f'<script type="application/json" id="data">{data}</script>\n'
        f"<script>\n'use strict';\n{script}</script>\n</body>\n</html>\n"
    )


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Read a folder, draw it, and write the page."""
    if (folder / SWEEP).exists():
        return write_page(read_sweep(folder), out or folder / REPORT)
    source = open_folder(folder)
    return write_page(source.answer, out or folder / REPORT, folder, source.status)


def write_page(
    answer: DrawnAnswer, path: Path, folder: Path | None = None, status: StatusAnswer | None = None
) -> Path:
    """Draw an answer and write the page atomically."""

    def refusal(why: str) -> str:
        return f"out: {path} cannot be written ({why}); give a file such as report.html."

    check_place(refusal, path)
    page = render(make_view(answer, folder, status))
    with atomic_files(refusal, path) as (part,):
        part.write_text(page, encoding="utf-8")
    return path
