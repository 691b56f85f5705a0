"""What a folder holds: a search's answer, a wafer's, or a plan's; or why it cannot be shown."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.errors import AtollError
from atoll.explore.answer.files import RESULT
from atoll.files.jsonfile import faults_of, read_object
from atoll.files.wholefile import as_written
from atoll.report.plan_file import PLAN, read_plan
from atoll.store import FILE, RunReader, RunStatus
from atoll.units import counted


@dataclass(frozen=True)
class Source:
    """An answer on disk."""

    folder: Path
    kind: str
    """"search", "wafer", "plan" or "estimate"."""
    content: dict[str, Any]
    """Of result.json or plan.json."""
    as_written: bool
    """Whether it is known to be as we wrote it, so that what cannot be read is our fault."""
    status: RunStatus | None = None
    """Of the store beside it, where there is one."""

    def read_whole(self) -> AbstractContextManager[None]:
        """Turn a field that is missing, or of another kind, into a sentence."""
        name = PLAN if self.kind in ("plan", "estimate") else RESULT
        return faults_of(self.folder / name, self.as_written)


def open_folder(folder: Path) -> Source:
    """The answer in a folder that search, plan or estimate wrote."""
    if not os.path.isdir(folder):  # noqa: PTH112  (no raise)
        what = "is a file" if os.path.exists(folder) else "does not exist"  # noqa: PTH110
        raise AtollError(
            f"{folder}: {what}; give a folder that atoll search --out or atoll plan --out wrote."
        )
    if (folder / PLAN).exists():
        content = read_plan(folder / PLAN)
        return Source(folder, content["kind"], content, as_written(folder / PLAN))
    status = _status(folder)
    if not (folder / RESULT).exists():
        raise AtollError(_no_result(folder, status))
    genuine = as_written(folder / RESULT)
    content = read_object(folder / RESULT)
    _check_result(folder / RESULT, content)
    kind = "wafer" if "wafer" in content else "search"
    return Source(folder, kind, content, genuine, status)


def _status(folder: Path) -> RunStatus | None:
    if not (folder / FILE).exists():
        return None
    with RunReader(folder) as reader:
        return reader.status()


def _no_result(folder: Path, status: RunStatus | None) -> str:
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


def _check_result(path: Path, content: dict[str, Any]) -> None:
    """The fields that every view needs, before any of them is drawn."""
    best = content.get("best")
    wanted = (
        ("best", best is not None),
        ("certificate", isinstance(content.get("certificate"), dict)),
        ("best.accelerator", isinstance(best, dict) and "accelerator" in best),
        ("best.models", isinstance(best, dict) and bool(best.get("models"))),
        ("score", "score" in content),
        ("baselines", isinstance(content.get("baselines"), dict)),
    )
    for name, present in wanted:
        if not present:
            raise AtollError(f"{path}: {name} is missing; run the search again.")
