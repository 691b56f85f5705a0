"""One search and one plan for all tests of the explorer."""

from __future__ import annotations

from pathlib import Path

import pytest
from serve_runs import write_plan, write_search


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_search(tmp_path_factory.mktemp("runs") / "tiny")


@pytest.fixture(scope="session")
def plan_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_plan(tmp_path_factory.mktemp("plans") / "gpt2")
