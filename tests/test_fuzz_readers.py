"""The short form of benchmarks/fuzz_readers.py: broken files end in sentences."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import pytest

from serve.serve_runs import random_designs, write_designs, write_plan

ROOT = Path(__file__).parent.parent
EACH = 10
SLOW = ("calibrate", "chip")


@contextmanager
def campaign() -> Iterator[ModuleType]:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import fuzz_readers

        yield fuzz_readers
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("answers")
    write_designs(folder / "search", random_designs(5))
    write_plan(folder / "plan")
    return folder


@pytest.mark.slow
def test_no_reader_ends_in_a_traceback_or_answers_nonsense(made: Path, tmp_path: Path) -> None:
    with campaign() as fuzz:
        wrong = []
        for reader in fuzz.readers(made):
            for number in range(0 if reader.name in SLOW else EACH):
                content = fuzz.changed_input(reader, 1, number)
                found, words = fuzz.outcome(
                    reader, fuzz.place_input(reader, content, tmp_path / "x")
                )
                if found not in ("accepted", "refused"):
                    wrong.append(f"{reader.name} {number}: {found} {words}")
    assert not wrong
