"""Python entry points of the wafer package: search a wafer, price one mapping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atoll.base.stopping import Stop
from atoll.driver import Progress
from atoll.questions import WaferQuestion
from atoll.questions.ask import ask
from atoll.wafer.answer.result import WaferEstimate, WaferResult
from atoll.wafer.estimate import estimate_job
from atoll.wafer.job import completed
from atoll.wafer.run import run_wafer_search

JobSource = WaferQuestion | str | Path | None
"""A question or a job file; keyword fields override its fields."""


def search_wafer(
    job: JobSource = None,
    *,
    stop: Stop | None = None,
    progress: Progress | None = None,
    **fields: Any,
) -> WaferResult:
    """Find the best mapping of a model on a wafer (or on the best wafer of a space)."""
    return run_wafer_search(completed(ask({"wafer": WaferQuestion}, job, fields)), progress, stop)


def estimate_wafer(job: JobSource = None, **fields: Any) -> WaferEstimate:
    """Price the one mapping that a question names."""
    return estimate_job(completed(ask({"wafer": WaferQuestion}, job, fields)))
