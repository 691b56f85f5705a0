"""Benchmarks remember, and the docs show what they remember."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from docs.records import PAGES_WITH_RECORDS, RESULTS, with_records
from docs.written import ROOT

PARTS = (
    "record", "fault_cluster", "fault_doors", "fault_forks", "fault_runs", "fuzz_changes",
    "fuzz_kinds", "fuzz_launch", "fuzz_seeds", "operator_repeats",
)  # fmt: skip
"""Of benchmarks, which are none themselves."""


@pytest.mark.parametrize("page", PAGES_WITH_RECORDS, ids=lambda page: page.name)
def test_tables_of_benchmarks_are_those_on_record(page: Path) -> None:
    """After a new record: python tests/docs/records.py"""
    text = page.read_text(encoding="utf-8")
    assert with_records(text) == text


def test_every_benchmark_can_be_recorded() -> None:
    for file in (ROOT / "benchmarks").glob("*.py"):
        if file.stem not in PARTS:
            assert "sys.exit(recorded(main))" in file.read_text(encoding="utf-8"), file


def test_records_say_where_they_come_from() -> None:
    for path in RESULTS.glob("*.json"):
        told = json.loads(path.read_text(encoding="utf-8"))
        # A benchmark may have several records, told apart by what follows its name.
        assert path.stem.startswith(told["benchmark"])
        assert (ROOT / "benchmarks" / f"{told['benchmark']}.py").exists()
        assert {"atoll", "python", "processor", "numpy", "numba"} <= told["machine"].keys()
        assert told["commit"] and told["date"] and told["processor_s"] > 0
        assert told["exit_code"] == 0
