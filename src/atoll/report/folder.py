"""What a folder holds: a search's answer, a wafer's, or a plan's; or why it cannot be shown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atoll.errors import AtollError
from atoll.explore.files import RESULT, read_result
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
    status: RunStatus | None = None
    """Of the store beside it, where there is one."""

    @contextmanager
    def read_whole(self) -> Iterator[None]:
        """Turn a field that is missing, or of another kind, into a sentence."""
        try:
            yield
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            name = PLAN if self.kind in ("plan", "estimate") else RESULT
            raise AtollError(
                f"{self.folder / name}: a field is missing or of another kind ({error}); it was "
                "damaged or written by another version of atoll: run it again."
            ) from error


def open_folder(folder: Path) -> Source:
    """The answer in a folder that search, plan or estimate wrote."""
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise AtollError(
            f"{folder}: {what}; give a folder that atoll search --out or atoll plan --out wrote."
        )
    if (folder / PLAN).exists():
        content = read_plan(folder / PLAN)
        return Source(folder, content["kind"], content)
    status = _status(folder)
    if not (folder / RESULT).exists():
        raise AtollError(_no_result(folder, status))
    content = read_result(folder)
    _check_result(folder / RESULT, content)
    return Source(folder, "wafer" if "wafer" in content else "search", content, status)


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
    best = content["best"]
    wanted = (
        ("best.accelerator", isinstance(best, dict) and "accelerator" in best),
        ("best.models", isinstance(best, dict) and bool(best.get("models"))),
        ("score", "score" in content),
        ("baselines", "baselines" in content),
    )
    for name, present in wanted:
        if not present:
            raise AtollError(f"{path}: {name} is missing; run the search again.")
