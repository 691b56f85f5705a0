"""Reads the answer of a folder (search, wafer or plan), or says why it cannot be shown."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from atoll.answers.answer import read_answer
from atoll.answers.designs import SweepAnswer
from atoll.answers.plan import EstimateAnswer, PlanAnswer
from atoll.answers.search import SearchAnswer
from atoll.answers.wafer import WaferAnswer
from atoll.base.errors import AtollError
from atoll.base.units import counted
from atoll.explore.answer.result import RESULT
from atoll.files.atomic_file import as_written, check_folder, write_folder
from atoll.files.inputs import check_readable
from atoll.store import FILE, RunReader, StatusAnswer
from atoll.training.estimate import Estimate
from atoll.training.planner.plan import Plan
from atoll.training.planner.problem import PLAN

SWEEP = "sweep.json"
ReportedAnswer = SearchAnswer | WaferAnswer | PlanAnswer | EstimateAnswer


@dataclass(frozen=True)
class StoredAnswer:
    """An answer read from a folder."""

    folder: Path
    answer: ReportedAnswer
    """Content of result.json or plan.json."""
    status: StatusAnswer | None = None
    """Status of the store in the same folder, if there is one."""


def open_folder(folder: Path) -> StoredAnswer:
    """Read the answer in a folder that search, plan or estimate wrote."""
    check_readable(folder)
    if not os.path.isdir(folder):  # noqa: PTH112  (no raise)
        what = "is a file" if os.path.exists(folder) else "does not exist"  # noqa: PTH110
        raise AtollError(
            f"{folder}: {what}; give a folder that atoll search --out or atoll plan --out wrote."
        )
    if (folder / PLAN).exists():
        as_written(folder / PLAN)
        return StoredAnswer(folder, read_plan(folder / PLAN))
    status = None
    if (folder / FILE).exists():
        with RunReader(folder) as reader:
            status = reader.status()
    if not (folder / RESULT).exists():
        raise AtollError(_no_result(folder, status))
    as_written(folder / RESULT)
    return StoredAnswer(folder, read_result(folder / RESULT), status)


def read_result(path: Path) -> SearchAnswer | WaferAnswer:
    """Read a result.json; AtollError if it cannot be read."""
    answer = read_answer(path, SearchAnswer, WaferAnswer)
    assert isinstance(answer, SearchAnswer | WaferAnswer)
    return answer


def write_plan(result: Plan | Estimate, folder: Path) -> Path:
    """Write plan.json into a folder atomically."""
    check_folder(folder)
    write_folder(folder, {PLAN: result.answer.to_json()})
    return folder / PLAN


def read_plan(path: Path) -> PlanAnswer | EstimateAnswer:
    """Read a plan.json; AtollError if it cannot be read."""
    answer = read_answer(path, PlanAnswer, EstimateAnswer)
    assert isinstance(answer, PlanAnswer | EstimateAnswer)
    return answer


def read_sweep(folder: Path) -> SweepAnswer:
    """Read the sweep in a folder; AtollError if it cannot be read."""
    as_written(folder / SWEEP)
    return read_answer(folder / SWEEP, SweepAnswer)


def _no_result(folder: Path, status: StatusAnswer | None) -> str:
    if (folder / SWEEP).exists():
        return f"{folder}: holds a sweep, which atoll report draws; give the folder of one answer."
    if status is None:
        return (
            f"{folder}: neither {RESULT} nor {PLAN} in it; give a folder that atoll search --out "
            "or atoll plan --out wrote."
        )
    if status.state == "running":
        return (
            f"{folder}: the search is still running (process {status.pid} on {status.host}, "
            f"{counted(status.designs, 'design')} so far); wait for its end, or look at it with "
            f"`atoll designs {folder}`."
        )
    return (
        f"{folder}: the search ended ({status.state}) before it reported; start the same search "
        "again with --out, and it continues."
    )
