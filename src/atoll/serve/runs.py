"""The runs that are served: searches, watched while they are written, and plans."""

from __future__ import annotations

import math
import os
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Self

from atoll.answers.answer import checked, dumped
from atoll.answers.plan import PlanAnswer
from atoll.answers.search import SearchAnswer
from atoll.answers.wafer import WaferAnswer
from atoll.base.errors import AtollError
from atoll.files.atomic_file import as_written
from atoll.front import ScriptData
from atoll.report.folder import SWEEP, StoredAnswer, open_folder, read_plan, read_sweep
from atoll.report.page import make_view
from atoll.serve.columns import Columns, Gatherer
from atoll.serve.query import Mask, histograms, parse_filters, passing_mask
from atoll.serve.whatif import Change
from atoll.serve.whatif_chip import ChipWhatIf
from atoll.serve.whatif_plan import PlanWhatIf
from atoll.store import FILE, ProgressPoint, RunReader, StoredDesign
from atoll.training.planner.problem import PLAN

WAFER = ("result.json", "mapping.json")
"""Files that remain of a wafer search whose store is missing."""
LOOK_S = 0.5
"""Interval between two checks of a store for changes."""
MOST_PROGRESS = 600


@dataclass(frozen=True, slots=True)
class ModelJob:
    """Fields of a wafer's or a plan's stored job that the explorer reads."""

    devices: int
    model: str


class SearchRun:
    """A folder of `atoll search --out`; a background thread keeps its columns up to date.

    Of kind "search", or without designs to explore: "wafer", mappings on one, or "planning", a
    plan until it is there.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        with RunReader(folder) as reader:
            self.identity = reader.job()
            self.parameters, self._names = reader.parameters, reader.columns
            self._plan: PlanRun | None = None
            job_source = f"{folder / FILE}: the job"
            self.kind = reader.kind().replace("plan", "planning")
            if self.kind == "search":
                self.whatif = ChipWhatIf(self.identity, job_source)
                self.models = tuple(model.name for model in self.whatif.facts.models)
                self.devices = self.whatif.facts.devices
            else:
                job = checked(self.identity, ModelJob, job_source)
                self.models, self.devices = (job.model,), job.devices
            self._read_status(reader)
        self.columns = Columns.empty(self._names)
        self.read = 0
        """Designs read so far while `columns` are being extended; 0 otherwise."""
        self.trouble = ""
        self._read_version: int | None = None
        self._read_until_s = -math.inf
        self._asleep = threading.Event()
        self.mask = lru_cache(maxsize=8)(passing_mask)
        self.bars = lru_cache(maxsize=8)(histograms)

    def shown(self) -> Run:
        """Return the run to show: the plan once a planning run has finished, else this run."""
        return self._plan or self

    def start(self) -> None:
        threading.Thread(target=self._watch, name=f"watch {self.name}", daemon=True).start()

    def stop(self) -> None:
        self._asleep.set()

    def warm(self) -> None:
        """Estimate the best design once under a change, so that kernels are compiled."""
        try:
            with RunReader(self.folder) as reader:
                best = reader.designs(limit=1)
                design = reader.design(best[0]["chip"]) if best else None
            if design is not None:
                self.whatif.options(design, 0)
                self.whatif.estimate(design, 0, Change(link=0.5))
        except AtollError:
            return  # reported when a user requests it

    def summary(self) -> ScriptData:
        """Return the run as one line of the list of runs."""
        status: ScriptData = dumped(self._status)
        return status | {
            "id": self.name,
            "kind": self.kind,
            "folder": str(self.folder),
            "models": self.models,
            "devices": self.devices,
            "parameters": self.parameters,
            "loaded": len(self.columns),
            "reading": self.read,
            "version": self.columns.version,
            "trouble": self.trouble,
        }

    def details(self) -> ScriptData:
        """Return the run with its job and, once available, its answer without large parts."""
        job = {k: v for k, v in self.identity.items() if k != "space_content"}
        return self.summary() | {"job": job, "result": self._answer_summary}

    def result(self) -> SearchAnswer | WaferAnswer | PlanAnswer | None:
        with RunReader(self.folder) as reader:
            return reader.result()

    def design(self, chip: int) -> StoredDesign | None:
        """Return one design with its plans from the store."""
        with RunReader(self.folder) as reader:
            return reader.design(chip)

    def picture(self, query: Mapping[str, Sequence[str]]) -> tuple[Columns, Mask]:
        """Return the current designs and the mask of those that pass; recent masks are cached."""
        columns = self.columns
        return columns, self.mask(columns, parse_filters(query, columns.names))

    # --- Watching ---------------------------------------------------------------------------------

    def _watch(self) -> None:
        pause = 0.0
        while not self._asleep.wait(pause):
            began = time.monotonic()
            try:
                with RunReader(self.folder) as reader:
                    while not self._asleep.wait(pause):
                        began = time.monotonic()
                        self.look(reader)
                        # Reading a large store takes long: leave 80% of the time to requests.
                        pause = max(LOOK_S, 4.0 * (time.monotonic() - began))
            except AtollError as error:
                self.trouble = str(error)
                pause = max(2.0, 4.0 * (time.monotonic() - began))

    def look(self, reader: RunReader) -> None:
        """Read what was written since the last look."""
        version = reader.version()
        if version == self._read_version and self._status.state != "running":
            return
        if version != self._read_version:
            self._read_designs(reader)
        self._read_status(reader)
        if self._status.designs < len(self.columns):
            # Another store is in its place.
            self.columns, self._read_until_s = Columns.empty(self._names), -math.inf
            self._read_designs(reader)
        self._read_version, self.trouble = version, ""

    def _read_designs(self, reader: RunReader) -> None:
        gathered = Gatherer(self._names)
        for rows in reader.since(self._read_until_s):
            gathered.add(rows)
            self.read = len(self.columns) + gathered.rows
        columns = gathered.joined(self.columns)
        if columns is not self.columns:
            self._read_until_s = float(columns.numbers["at"].max())
            self.columns = columns
        self.read = 0

    def _read_status(self, reader: RunReader) -> None:
        self._status, self.progress = reader.status(), thinned(reader.progress())
        self._answer_summary: ScriptData | None = None
        if self.kind == "planning":
            done = self._status.state != "running" and _is_file(self.folder / PLAN)
            self._plan = PlanRun(self.name, self.folder) if done else None
        elif isinstance(answer := reader.result(), SearchAnswer | WaferAnswer):
            shown = {n: getattr(answer, n) for n in ("summary", "certificate", "baselines")}
            remarks = answer.baseline_remarks if isinstance(answer, SearchAnswer) else {}
            self._answer_summary = shown | {"baseline_remarks": remarks}


class FinishedRun:
    """A folder whose answer does not change."""

    kind: str

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder

    def shown(self) -> Self:
        return self

    def start(self) -> None:
        """Watch nothing."""

    def stop(self) -> None:
        """Stop nothing."""

    def summary(self) -> ScriptData:
        """Return the run as one line of the list of runs."""
        folder = str(self.folder)
        return {"id": self.name, "kind": self.kind, "folder": folder, "state": "finished"}


class PlanRun(FinishedRun):
    """A folder with a plan.json."""

    kind = "plan"

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder)
        as_written(folder / PLAN)
        self.content = read_plan(folder / PLAN)
        self.whatif = PlanWhatIf(self.content)

    def summary(self) -> ScriptData:
        answer = self.content
        return super().summary() | {
            "models": (answer.model,),
            "devices": answer.devices,
            "device": answer.device,
            "step_time_s": answer.step_time_s,
            "mfu": answer.mfu,
            "layouts": len(self.whatif.layouts()),
        }

    def details(self) -> ScriptData:
        return self.summary() | {"plan": self.content}


class SweepRun(FinishedRun):
    """A folder with a sweep.json; its models and devices may be axes."""

    kind = "sweep"

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name, folder)
        self.content = read_sweep(folder)

    def summary(self) -> ScriptData:
        more = {"axes": self.content.axes, "questions": len(self.content.rows)}
        return super().summary() | more

    details = summary


Run = SearchRun | PlanRun | SweepRun


class Reports:
    """Cache of the last report per folder; a report takes seconds, so one is made at a time."""

    def __init__(self) -> None:
        self._views: dict[Path, tuple[StoredAnswer, ScriptData]] = {}
        self._making = threading.Lock()

    def view(self, folder: Path) -> ScriptData:
        """Return the page view of the answer that a folder holds."""
        if (folder / SWEEP).exists():
            return make_view(read_sweep(folder), None, None)
        source = open_folder(folder)
        with self._making:
            cached = self._views.get(folder)
            if cached is None or cached[0] != source:
                view = make_view(source.answer, source.folder, source.status)
                cached = self._views[folder] = source, view
        return cached[1]


@dataclass(frozen=True)
class LeftOut:
    """A folder with an answer that the explorer cannot show, and why."""

    folder: Path
    reason: str

    @property
    def name(self) -> str:
        return self.folder.resolve().name


def open_runs(folders: Sequence[Path]) -> tuple[dict[str, Run], list[LeftOut]]:
    """The runs in these folders, or in the folders right inside them, by their names.

    A folder that cannot be read is left out and keeps none of the others; without any run, the
    first reason is raised.
    """
    runs: dict[str, Run] = {}
    left_out: list[LeftOut] = []
    run_folders: dict[Path, None] = {}
    for root in folders:
        try:
            run_folders |= dict.fromkeys(path.resolve() for path in _run_folders(root))
        except AtollError as error:
            left_out.append(LeftOut(root, str(error)))
    for folder in run_folders:
        if not _is_run(folder):
            words = "a wafer search without its records, which the explorer needs"
            draws = f"`atoll report {folder}` draws it."
            left_out.append(LeftOut(folder, f"{folder} holds the answer of {words}; {draws}"))
            continue
        name = _free_name(folder, runs)
        kind: Callable[[str, Path], Run] = SearchRun if _is_file(folder / FILE) else PlanRun
        kind = SweepRun if _is_file(folder / SWEEP) else kind
        try:
            runs[name] = kind(name, folder)
        except AtollError as error:
            left_out.append(LeftOut(folder, str(error)))
    if not runs:
        raise AtollError(left_out[0].reason)
    return runs, left_out


def _run_folders(folder: Path) -> list[Path]:
    """Return the folder itself, or its direct subfolders that hold an answer."""
    if not os.path.exists(folder):  # noqa: PTH110  (no raise)
        raise AtollError(f"{folder}: no such folder; give one that atoll search --out wrote.")
    if not folder.is_dir():
        raise AtollError(f"{folder}: is a file; give the folder of a run.")
    try:
        inside = [folder] if _has_answer(folder) else sorted(filter(_has_answer, folder.iterdir()))
    except OSError as error:
        raise AtollError(f"{folder}: cannot be read ({error.strerror}).") from None
    if not inside:
        raise AtollError(
            f"{folder}: none of {FILE}, {PLAN} and {SWEEP} in it, nor in a folder inside it; give "
            "a folder that atoll search --out or atoll plan --out wrote."
        )
    return inside


def _has_answer(folder: Path) -> bool:
    return _is_run(folder) or all(_is_file(folder / name) for name in WAFER)


def _is_run(folder: Path) -> bool:
    return any(_is_file(folder / name) for name in (FILE, PLAN, SWEEP))


def _is_file(path: Path) -> bool:
    return os.path.isfile(path)  # noqa: PTH113  (no raise)


def _free_name(folder: Path, runs: Mapping[str, Run]) -> str:
    base = re.sub(r"[^A-Za-z0-9._-]+", "-", folder.name).strip("-.") or "run"
    names = [base, *(f"{base}-{number}" for number in range(2, len(runs) + 3))]
    return next(name for name in names if name not in runs)


def thinned(points: Sequence[ProgressPoint]) -> list[ProgressPoint]:
    """Thin progress to every change of the best score and about MOST_PROGRESS even samples."""
    count = len(points)
    changes = [i for i in range(1, count) if points[i].score != points[i - 1].score]
    even = range(0, count, count // MOST_PROGRESS + 1)
    last = range(count)[-1:]
    return [points[i] for i in sorted({*even, *changes[-MOST_PROGRESS:], *last})]
