"""What Python callers use of this room: search a wafer, price one mapping, save a result."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atoll.errors import AtollError
from atoll.wafer.encoding import WaferMapping, from_json, validate
from atoll.wafer.evaluate import evaluate
from atoll.wafer.files import load_wafer
from atoll.wafer.job import WaferJob, load_wafer_job
from atoll.wafer.result import WaferResult, placement_of
from atoll.wafer.run import run_wafer_search, with_job
from atoll.wafer.search import Progress

RESULT = "result.json"
MAPPING = "mapping.json"


def search_wafer(
    job: WaferJob | str | Path | None = None,
    *,
    wafer: str | None = None,
    model: str | None = None,
    batch: int | None = None,
    sequence: int | None = None,
    microbatches: Sequence[int] | None = None,
    seed: int | None = None,
    pareto: bool | None = None,
    baselines: bool | None = None,
    progress: Progress | None = None,
) -> WaferResult:
    """The best mapping of a model on a wafer (or on the best wafer of a space), with its bound."""
    base = WaferJob() if job is None else job if isinstance(job, WaferJob) else load_wafer_job(job)
    changed = with_job(
        base, wafer=wafer, model=model, batch=batch, sequence=sequence,
        microbatches=None if microbatches is None else tuple(microbatches), seed=seed,
        pareto=pareto, baselines=baselines,
    )  # fmt: skip
    return run_wafer_search(changed, progress)


def estimate_wafer(wafer: str | Path, mapping: WaferMapping | str | Path) -> dict[str, Any]:
    """Price one mapping (a `WaferMapping`, or a JSON file as `atoll search --out` writes it)."""
    chosen = load_wafer(wafer)
    if not isinstance(mapping, WaferMapping):
        try:
            text = Path(mapping).read_text(encoding="utf-8")
        except OSError as error:
            raise AtollError(f"{mapping}: cannot be read ({error.strerror}).") from None
        try:
            mapping = from_json(text)
        except AtollError as error:
            raise AtollError(f"{mapping}: {error}") from None
    validate(mapping, chosen.rows, chosen.columns)
    found = evaluate(chosen, mapping)
    return {
        "wafer": chosen.to_dict(),
        "step_time_s": found.step_s,
        "samples_per_s": found.samples_per_s,
        "fits": found.fits,
        "memory_bytes_per_die": found.memory_bytes,
        "placement": placement_of(found).to_dict(),
    }


def write_wafer_result(result: WaferResult, folder: Path) -> None:
    """result.json and mapping.json, each whole or not at all."""
    contents = {
        RESULT: json.dumps(result.to_dict(), indent=1, allow_nan=False) + "\n",
        MAPPING: result.best.mapping.to_json() + "\n",
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            part = folder / f".{name}.part"
            part.write_text(content, encoding="utf-8")
            part.replace(folder / name)
    except OSError as error:
        raise AtollError(f"out: {folder} cannot be written ({error.strerror}).") from None
