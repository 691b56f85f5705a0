"""Outputs in the README and the docs are those of the commands above them.

A block of a page that stands below `<!-- run -->` holds a command after `$` and what it prints.
`python tests/docs/written.py` runs them all and writes what they print; a test compares, wall times
aside.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
_BLOCK = re.compile(r"(<!-- run -->\n```\w*\n\$ )([^\n]+)\n(.*?)(```)", re.DOTALL)
_WALL = re.compile(r"\d[\d.,]* s$", re.MULTILINE)


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """Commands of a page and what it says that they print."""
    for found in _BLOCK.finditer(page.read_text(encoding="utf-8")):
        yield found[2], found[3]


def printed(command: str) -> str:
    """What a command prints, run in the repository."""
    name, *options = shlex.split(command)
    assert name == "atoll", command
    run = [sys.executable, "-m", "atoll", *options]
    return subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def without_wall_times(text: str) -> str:
    return _WALL.sub("... s", text)


def main() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        page.write_text(
            _BLOCK.sub(lambda m: f"{m[1]}{m[2]}\n{printed(m[2])}{m[4]}", text), encoding="utf-8"
        )


if __name__ == "__main__":
    main()
