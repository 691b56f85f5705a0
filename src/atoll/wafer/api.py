"""What Python callers use of this room: search a wafer, price one mapping, save a result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from atoll.errors import AtollError
from atoll.hardware.wafer_files import load_wafer
from atoll.wafer.answer.result import WaferResult
from atoll.wafer.encoding.mapping import WaferMapping, read_mapping
from atoll.wafer.estimate import WaferEstimate, estimate_job, estimate_mapping
from atoll.wafer.job import WaferJob, load_wafer_job
from atoll.wafer.run import run_wafer_search, with_job
from atoll.wafer.search import Progress
from atoll.wholefile import write_folder

RESULT = "result.json"
MAPPING = "mapping.json"


def search_wafer(
    job: WaferJob | str | Path | None = None,
    *,
    wafer: str | None = None,
    model: str | None = None,
    batch: int | None = None,
    sequence: int | None = None,
    optimizer: str | None = None,
    microbatches: Sequence[int] | None = None,
    seed: int | None = None,
    pareto: bool | None = None,
    baselines: bool | None = None,
    progress: Progress | None = None,
) -> WaferResult:
    """The best mapping of a model on a wafer (or on the best wafer of a space), with its bound."""
    base = WaferJob() if job is None else job if isinstance(job, WaferJob) else load_wafer_job(job)
    changed = with_job(
        base, wafer=wafer, model=model, batch=batch, sequence=sequence, optimizer=optimizer,
        microbatches=None if microbatches is None else tuple(microbatches), seed=seed,
        pareto=pareto, baselines=baselines,
    )  # fmt: skip
    return run_wafer_search(changed, progress)


def estimate_wafer(
    job: WaferJob | str | Path | None = None,
    *,
    wafer: str | Path | None = None,
    mapping: WaferMapping | str | Path | None = None,
) -> WaferEstimate:
    """Price one mapping: that of a job, or a `WaferMapping` or mapping file on a wafer."""
    if job is not None:
        if mapping is not None:
            raise AtollError("estimate: give a job or a mapping, not both.")
        base = job if isinstance(job, WaferJob) else load_wafer_job(job)
        return estimate_job(with_job(base, wafer=None if wafer is None else str(wafer)))
    if mapping is None:
        raise AtollError(
            "estimate: give a wafer job file with a mapping or a layout, or --mapping with a file "
            "as atoll search --out writes it."
        )
    read = mapping if isinstance(mapping, WaferMapping) else read_mapping(mapping)
    return estimate_mapping(load_wafer(wafer or "default"), read)


def write_wafer_result(result: WaferResult, folder: Path) -> None:
    """result.json and mapping.json, whole or not at all."""
    contents = {
        RESULT: json.dumps(result.to_dict(), indent=1, allow_nan=False) + "\n",
        MAPPING: result.best.mapping.to_json() + "\n",
    }
    write_folder(folder, contents)
