"""The short form of benchmarks/faults.py: nothing is lost, redone, changed or unsaid."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
@pytest.mark.parametrize("question", ["plan", "wafer"])
def test_after_faults_the_answer_is_the_same_and_nothing_is_lost(question: str) -> None:
    kinds = ("kills", "local", "together", "clock", "damage", "signals", "outputs", "locks")
    ended = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "faults.py"), "--cases", "4", "--jobs", "2",
         "--ask", question, "--only", *kinds],
        capture_output=True, text=True, env=os.environ,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr[-4000:]
    assert "| all |" in ended.stdout
