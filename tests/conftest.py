"""Fixtures that several folders of tests share, and how Hypothesis draws its examples.

The default profile draws the same examples in every run, so that a change fails for what it
changed. `HYPOTHESIS_PROFILE=explore` draws fresh ones: run it to look for new counterexamples.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from browser import Browser

settings.register_profile("repeat", derandomize=True, deadline=None)
settings.register_profile("campaign", derandomize=True, deadline=None)
settings.register_profile("explore", derandomize=False, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeat"))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile kernels once, before workers start that would each compile them."""
    config = session.config
    if getattr(config.option, "numprocesses", 0) and not config.option.collectonly:
        subprocess.run([sys.executable, str(Path(__file__).with_name("kernels.py"))])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was left out, and how to run it."""
    skipped: dict[str, int] = {}
    for report in terminalreporter.stats.get("skipped", []):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        missing = re.search(r"could not import '(\w+)", why)
        name = why.removeprefix("Skipped: ") if missing is None else f"{missing[1]} is missing"
        skipped[name] = skipped.get(name, 0) + 1
    for name, count in sorted(skipped.items()):
        terminalreporter.write_line(f"skipped {count}: {name}")
    if any(name.endswith("is missing") for name in skipped):
        terminalreporter.write_line("to run them: .ci/run, or install what is missing")
    if "not slow" in terminalreporter.config.option.markexpr:
        terminalreporter.write_line(
            "tests marked slow were left out; to run them: pytest -m 'not campaign'"
        )


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One headless Chromium for all tests; see tests/browser.py."""
    from browser import start_browser

    with start_browser() as started:
        yield started
