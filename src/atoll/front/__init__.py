"""The front end that the report and the explorer share: JavaScript modules and style sheets.

`base/` has elements, units, colours, bars and plots, `views/` the sections of an answer,
`explorer/` what only `atoll serve` shows. Browsers load the modules of the explorer as they are;
a report is one file, for which `bundle` makes one script of them.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
ScriptData = dict[str, Any]
"""JSON data that only our scripts read."""
_FOLDERS = ("", "base", "views", "explorer")
_IMPORT = re.compile(r'^import (\{ [\w, ]+ \}|\* as \w+) from "([\w./]+)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)


def assets() -> dict[str, bytes]:
    """Return every file of the front end by its path, such as base/dom.js."""
    contents = {}
    for folder in _FOLDERS:
        for entry in (files("atoll.front") / folder).iterdir():
            path = PurePosixPath(folder, entry.name)
            if path.suffix in KINDS:
                contents[str(path)] = entry.read_bytes()
    return contents


def text(path: str) -> str:
    """Return a file of the front end."""
    return (files("atoll.front") / path).read_text(encoding="utf-8")


def bundle(entry: str) -> str:
    """Return a module and all its imports as one script.

    Every module becomes a function that is called once, after its imports, and returns its exports.
    Modules import and export only in the forms matched above, one statement per line.
    """
    parts: dict[str, str] = {}

    def add(path: str) -> str:
        name = re.sub(r"\W", "_", path)
        if path not in parts:
            source = _IMPORT.sub(lambda statement: bind(path, statement), text(path))
            exported = ", ".join(_EXPORT.findall(source))
            body = _EXPORT.sub("", source)
            parts[path] = f"const {name} = (() => {{\n{body}return {{ {exported} }};\n}})();\n"
        return name

    def bind(path: str, statement: re.Match[str]) -> str:
        name = add(_resolved(path, statement[2]))
        return f"const {statement[1].removeprefix('* as ')} = {name};\n"

    add(entry)
    return "".join(parts.values())


def _resolved(path: str, target: str) -> str:
    """Return the path of an import, from that of the importing module."""
    parts = list(PurePosixPath(path).parent.parts)
    for part in PurePosixPath(target).parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)
