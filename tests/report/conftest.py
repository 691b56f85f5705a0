"""Answers on disk, made once: a search of a few chips, of PHAZE's space, plans, a wafer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import atoll
from atoll.report.folder import write_plan

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search over a handful of chips with two kinds of HBM, baselines included."""
    folder = tmp_path_factory.mktemp("report") / "tiny"
    atoll.search(ROOT / "examples" / "jobs" / "tiny.yaml", pareto=True, out=folder)
    return folder


@pytest.fixture(scope="session")
def seed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All 29,360 chips of PHAZE, for a small job."""
    folder = tmp_path_factory.mktemp("report") / "seed"
    atoll.search(
        model="bert-large", devices=64, batch=256, microbatch=[4], tp=[1],
        space="phaze", baselines=False, out=folder,
    )  # fmt: skip
    return folder


@pytest.fixture(scope="session")
def plan_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan with a pipeline."""
    folder = tmp_path_factory.mktemp("report") / "plan"
    found = atoll.plan(
        "gpt3-175b", "a100-80", 128, batch=64, tp=[8], pp=[8], vpp=[1], microbatch=[1],
        zero=[1], recompute=["none", "selective", "full"], order=["1f1b"],
    )  # fmt: skip
    write_plan(found, folder)
    return folder


@pytest.fixture(scope="session")
def wafer_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The answer of a search on a wafer (llama2-70b, one dead die and link), as it was written."""
    folder = tmp_path_factory.mktemp("report") / "wafer"
    folder.mkdir()
    kept = Path(__file__).parent.parent / "data" / "report" / "wafer-result.json"
    shutil.copy(kept, folder / "result.json")
    return folder
