"""Outputs in the README and the docs are those of the commands above them.

A block of a page that stands below `<!-- run -->` holds a command after `$` and what it prints. The
commands of a page run one after the other in a folder of their own, which has the repository's
examples, sources and tests; a block below `<!-- file NAME -->` is a file there. A picture below
`<!-- picture runs/mine #chip -->` is that section of the report in that folder, or of a page;
`<!-- picture runs/mine 390x844 -->` its top in a window of that size, and
`<!-- picture runs?run=mine 1400x900 -->` that of the explorer of a folder, at an address.
`PYTHONPATH=tests python tests/docs/written.py [PAGE...]` runs them, writes what they print and
takes the pictures; a test compares the outputs, wall times aside.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from atoll.cli import app
from browser import find_chromium, start_browser

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
WIDTH = 900
"""Of the window in which pictures are taken."""
_RUN = re.compile(r"(<!-- run -->\n```\w*\n\$ )([^\n]+)\n(.*?)(```)", re.DOTALL)
_FILE = re.compile(r"<!-- file ([\w./-]+) -->\n```\w*\n(.*?)```", re.DOTALL)
_PICTURE = re.compile(
    r"<!-- picture ([\w./?=&,-]+) (#[\w-]+|\d+x\d+) -->\n!\[[^\]]*\]\(([\w./-]+)\)"
)
DRAWN = "document.querySelectorAll('main section h2').length > 1"
_WALL = re.compile(r"\d[\d.,]* s$", re.MULTILINE)


def blocks(page: Path) -> list[tuple[str, str]]:
    """Commands of a page and what it says that they print."""
    return [(found[2], found[3]) for found in _RUN.finditer(page.read_text(encoding="utf-8"))]


@dataclass(frozen=True)
class Workplace:
    """A folder in which a page's commands run."""

    folder: Path

    def printed(self, command: str) -> str:
        """What a command prints; those of Atoll run in this process."""
        name, *words = shlex.split(command)
        if name == "atoll":
            with chdir(self.folder):
                ran = CliRunner().invoke(app, words, prog_name=name, catch_exceptions=False)
            assert ran.exit_code == 0, f"{command}\n{ran.output}"
            return ran.stdout
        run = [sys.executable if name == "python" else name, *words]
        done = subprocess.run(run, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        return done.stdout


@contextmanager
def workplace(page: Path) -> Iterator[Workplace]:
    """A folder with the files of a page, and the repository's examples, sources and tests."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for shared in ("examples", "src", "tests"):
            (folder / shared).symlink_to(ROOT / shared)
        for path, content in _FILE.findall(page.read_text(encoding="utf-8")):
            (folder / path).write_text(content, encoding="utf-8")
        yield Workplace(folder)


def take_pictures(page: Path, folder: Path) -> None:
    """Sections of the reports that a page's commands wrote."""
    wanted = _PICTURE.findall(page.read_text(encoding="utf-8"))
    if not wanted or find_chromium() is None:
        return
    from serve.serve_runs import serving

    with start_browser() as browser, ExitStack() as stack:
        for run, place, target in wanted:
            name, _, query = run.partition("?")
            width, _, height = place.partition("x") if place[0] != "#" else (str(WIDTH), "", "900")
            if query:
                explorer = stack.enter_context(serving(folder / name))
                address = f"{explorer.address}?{query}"
            else:
                file = folder / name if name.endswith(".html") else folder / name / "report.html"
                address = file.as_uri()
            with browser.page(int(width), int(height)) as tab:
                tab.goto(address)
                tab.wait_for(DRAWN if query else "document.documentElement.dataset.ready === 'yes'")
                scale = min(1.0, WIDTH / int(width))
                picture = tab.picture(place) if place[0] == "#" else tab.window(scale)
            path = page.parent / target
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(picture)


def without_wall_times(text: str) -> str:
    return _WALL.sub("... s", text)


def main() -> None:
    for page in [Path(name).resolve() for name in sys.argv[1:]] or PAGES:
        text = page.read_text(encoding="utf-8")
        with workplace(page) as work:
            written = _RUN.sub(
                lambda m, work=work: f"{m[1]}{m[2]}\n{work.printed(m[2])}{m[4]}", text
            )
            take_pictures(page, work.folder)
        page.write_text(written, encoding="utf-8")


if __name__ == "__main__":
    main()
