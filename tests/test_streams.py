"""Outputs that cannot be written, and encodings without some characters: no traceback."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

ASKED = "models llama2-7b"
WRONG = "estimate --model none"


def shell(words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = f'"$0" -m atoll {words}'
    return subprocess.run(
        ["sh", "-c", command, sys.executable],
        capture_output=True,
        text=True,
        env=os.environ | environment,
    )


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (f"{ASKED} > /dev/full", 2, "standard output cannot be written (No space left on device)"),
        ("--version > /dev/full", 2, "standard output cannot be written"),
        (f"{ASKED} >&-", 0, ""),
        (f"{ASKED} 2>&-", 0, ""),
        (f"{ASKED} <&- >&- 2>&-", 0, ""),
        (f"{WRONG} 2>&-", 2, ""),
        (f"{WRONG} 2> /dev/full", 2, ""),
        (f"{WRONG} >&-", 2, "--device: missing"),
        ("estimate --modell x 2> /dev/full", 2, ""),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_outputs_that_cannot_be_written(
    words: str, code: int, sentence: str, unbuffered: str
) -> None:
    ended = shell(words, PYTHONUNBUFFERED=unbuffered)
    assert ended.returncode == code, ended.stderr
    assert "Traceback" not in ended.stderr
    assert sentence in ended.stderr
    assert "atoll: " not in ended.stdout  # errors never go to standard output


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "ascii"])
def test_bars_are_ascii_where_the_encoding_has_no_blocks(encoding: str) -> None:
    words = "estimate --model gpt2-xl --device h100 --devices 8 --batch 8 --explain"
    ended = shell(words, PYTHONIOENCODING=encoding)
    assert ended.returncode == 0, ended.stderr
    assert "  ####" in ended.stdout
