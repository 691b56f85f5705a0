"""One HTML file that opens offline: the view's data, the styles and the scripts inside it."""

from __future__ import annotations

import html
import json
from importlib.resources import files
from pathlib import Path

from atoll.answers.answer import dumped
from atoll.answers.search import SearchAnswer
from atoll.answers.wafer import WaferAnswer
from atoll.files.wholefile import check_place, whole_files
from atoll.identity import VERSION
from atoll.report.folder import Source, open_folder
from atoll.report.plan_view import plan_view
from atoll.report.search_view import search_view
from atoll.report.view import View
from atoll.report.wafer_view import wafer_view

REPORT = "report.html"
SCRIPTS = (
    "base.js", "space.js", "chip.js", "bars.js", "gantt.js", "pipeline.js", "cluster.js",
    "wafer.js", "main.js",
)  # fmt: skip
# Nothing may be fetched: not even by a mistake of ours.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def draw(source: Source) -> str:
    """The page of an answer."""
    found = source.answer
    if isinstance(found, SearchAnswer):
        return render(search_view(source.folder, found, source.status))
    return render(wafer_view(found) if isinstance(found, WaferAnswer) else plan_view(found))


def render(view: View) -> str:
    """The whole page."""
    assets = files("atoll.report") / "assets"
    style = (assets / "report.css").read_text(encoding="utf-8")
    scripts = "\n".join((assets / name).read_text(encoding="utf-8") for name in SCRIPTS)
    # A closing tag inside the data would end the script element.
    shown = {name: value for name, value in dumped(view).items() if value is not None}
    data = json.dumps(shown, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    title = html.escape(f"{view.title} - Atoll")
    return (
        "<!doctype html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        f'<meta name="generator" content="atoll {VERSION}">\n'
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        '<main id="page"><noscript>This report draws itself with a script of its own; '
        "allow scripts for this file.</noscript></main>\n"
        f'<script type="application/json" id="data">{data}</script>\n'
        f"<script>\n'use strict';\n{scripts}</script>\n</body>\n</html>\n"
    )


def write_report(folder: Path, out: Path | None = None) -> Path:
    """Read a folder, draw it, and write the page, whole or not at all."""
    source = open_folder(folder)
    path = folder / REPORT if out is None else out

    def refusal(why: str) -> str:
        return f"out: {path} cannot be written ({why}); give a file such as report.html."

    check_place(refusal, path)
    text = draw(source)
    with whole_files(refusal, path) as (part,):
        part.write_text(text, encoding="utf-8")
    return path
