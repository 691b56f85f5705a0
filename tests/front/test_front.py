"""Modules of the front end: what they import is there, and a report has them as one script."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from atoll.front import assets, bundle

MODULES = {path: source.decode() for path, source in assets().items() if path.endswith(".js")}
_IMPORTED = re.compile(r'^import .* from "(.+)";$', re.MULTILINE)


@pytest.mark.parametrize("path", MODULES)
def test_imports_lead_to_modules(path: str) -> None:
    root = Path("/front")
    for target in _IMPORTED.findall(MODULES[path]):
        found = (root / path).parent.joinpath(target).resolve().relative_to(root)
        assert found.as_posix() in MODULES, target


@pytest.mark.parametrize("path", [path for path in MODULES if not path.startswith("explorer/")])
def test_what_a_report_has_knows_nothing_of_the_explorer(path: str) -> None:
    assert not [t for t in _IMPORTED.findall(MODULES[path]) if "explorer/" in t]
    assert path.startswith("views/") or path == "report.js" or "views/" not in MODULES[path]


def test_a_bundle_has_every_module_once_and_imports_nothing(tmp_path: Path) -> None:
    script = bundle("report.js")
    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)
    shared = [path for path in MODULES if not path.startswith("explorer/")]
    for path in shared:
        assert script.count(f"const {re.sub(r'[^a-z]', '_', path)} = (() => {{") == 1, path
    assert "</script" not in script
    node = shutil.which("node")
    if node:
        (tmp_path / "report.js").write_text(script, encoding="utf-8")
        subprocess.run([node, "--check", tmp_path / "report.js"], check=True)


def test_styles_are_set_as_the_content_security_policy_allows() -> None:
    """An attribute `style` would be refused by browsers: styles are objects, or classes."""
    for path, source in MODULES.items():
        assert not re.search(r"""style: ["'`]|setAttribute\("style""", source), path
    assert not re.search(rb"<style|style=|<script>", assets()["explorer/index.html"])
