"""Packages and files that one can hold in the head; who may import whom is in pyproject.toml."""

from __future__ import annotations

import ast
from pathlib import Path

import atoll

PACKAGE = Path(atoll.__file__).parent
MOST_FILES, MOST_LINES, MOST_PARAMETERS = 13, 520, 10
WIDE = {".": 8, "hardware": 14}
LONG: dict[str, int] = {}
"""Packages and files still to be divided: these numbers may only shrink."""


def test_packages_have_about_a_dozen_files() -> None:
    for folder in (PACKAGE, *(p for p in PACKAGE.rglob("*") if p.is_dir())):
        name = folder.relative_to(PACKAGE).as_posix()
        assert len(list(folder.glob("*.py"))) <= WIDE.get(name, MOST_FILES), name


def test_files_are_short() -> None:
    for file in PACKAGE.rglob("*.py"):
        name = file.relative_to(PACKAGE).as_posix()
        lines = len(file.read_text(encoding="utf-8").splitlines())
        assert lines <= LONG.get(name, MOST_LINES), name


def test_only_kernels_take_many_parameters() -> None:
    for file in PACKAGE.rglob("*.py"):
        if file.name.endswith("_kernels.py"):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                named = [a.arg for a in given if a.arg not in ("self", "cls")]
                assert len(named) <= MOST_PARAMETERS, f"{file.name}: {node.name}"
