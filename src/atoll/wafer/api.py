"""What Python callers use of this room: search a wafer, price one mapping, save a result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from atoll.questions import WaferQuestion
from atoll.questions.ask import ask
from atoll.wafer.answer.result import WaferResult
from atoll.wafer.estimate import WaferEstimate, estimate_job
from atoll.wafer.job import completed
from atoll.wafer.run import run_wafer_search
from atoll.wafer.search import Progress
from atoll.wholefile import write_folder

RESULT = "result.json"
MAPPING = "mapping.json"


Asked = WaferQuestion | str | Path | None
"""A question, or a job file; fields given beside it override its own."""


def search_wafer(
    job: Asked = None, *, progress: Progress | None = None, **fields: Any
) -> WaferResult:
    """The best mapping of a model on a wafer (or on the best wafer of a space), with its bound."""
    return run_wafer_search(completed(ask({"wafer": WaferQuestion}, job, fields)), progress)


def estimate_wafer(job: Asked = None, **fields: Any) -> WaferEstimate:
    """Price the one mapping that a question names."""
    return estimate_job(completed(ask({"wafer": WaferQuestion}, job, fields)))


def write_wafer_result(result: WaferResult, folder: Path) -> None:
    """result.json and mapping.json, whole or not at all."""
    contents = {
        RESULT: json.dumps(result.to_dict(), indent=1, allow_nan=False) + "\n",
        MAPPING: result.best.mapping.to_json() + "\n",
    }
    write_folder(folder, contents)
