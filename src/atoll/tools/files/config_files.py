"""Size-limited reading of TOML, JSON, YAML and Python files; nothing in them is run."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atoll.base.errors import AtollError
from atoll.files.inputs import may_read, read_input_text
from atoll.files.jsonfile import parse_object
from atoll.files.yamlfile import AnyFields, parse_yaml

MOST_BYTES = 100_000
LITERALS = ("SETTINGS", "MODEL", "RUN")


def read_content(path: Path) -> Mapping[str, Any]:
    """Parse a file by its suffix."""
    text = read_input_text(path, MOST_BYTES)
    if path.suffix == ".toml":
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # also integers of more than 4,300 digits
            raise AtollError(f"{path}: not valid TOML ({error})") from None
    if path.suffix == ".py":
        return _literals(text, path)
    if path.suffix == ".json":
        return parse_object(text, str(path))
    return parse_yaml(text, AnyFields, str(path)).model_extra or {}


def named_file(file: Path, name: str) -> Path | None:
    """Return the path of a file that another one names, None if there is none.

    A relative path counts from the file's folder or from one above it, up to the working directory
    and the root of its repository, and stays below that folder.
    """
    folder, working = file.absolute().parent.resolve(), Path.cwd()
    folders = [folder, *folder.parents][:-1]
    ends = [i for i, f in enumerate(folders) if f == working or (f / ".git").exists()]
    for start in folders[: max(ends, default=0) + 1]:
        try:
            path = (start / name).resolve()
            if path.is_relative_to(start) and may_read(path) and path.is_file():
                return path
        except (OSError, ValueError):  # no name of a file
            return None
    return None


def imported_as(path: Path, alias: str) -> str:
    """Return the name of what a Python script imports under an alias, "" if nothing."""
    pattern = rf"^from \S+ import (\w+) as {alias}$"
    match = re.search(pattern, read_input_text(path, MOST_BYTES), re.M)
    return match[1] if match else ""


def editable_lines(path: Path) -> dict[str, str]:
    """Return lines of Atoll's script that a user may change, by the variable that they set."""
    text = read_input_text(path, MOST_BYTES)
    lines: dict[str, str] = {}
    for node in ast.parse(text).body:
        name = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
        if name in LITERALS or not isinstance(node, ast.Assign | ast.FunctionDef | ast.ClassDef):
            continue
        parts = [line.partition("  #")[0].strip() for line in
                 text.split("\n")[node.lineno - 1 : node.end_lineno]]  # fmt: skip
        lines |= {name or parts[0]: parts[0]} if len(parts) == 1 else {p: p for p in parts if p}
    return lines


def _literals(text: str, path: Path) -> dict[str, Any]:
    """Return the literals SETTINGS, MODEL and RUN of a script that Atoll wrote."""
    literals = {}
    try:
        for node in ast.parse(text).body:
            name = ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""
            if isinstance(node, ast.Assign) and name in LITERALS:
                literals[name] = ast.literal_eval(node.value)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise AtollError(f"{path}: its settings are not plain values ({error})") from None
    if not all(isinstance(value, dict) for value in literals.values()):
        raise AtollError(f"{path}: SETTINGS, MODEL and RUN must be dictionaries")
    return literals
