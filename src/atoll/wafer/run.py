"""The whole road of a wafer search in one function: job to answer."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from atoll.errors import AtollError
from atoll.explore.result import Certificate
from atoll.wafer.baselines import Baseline, run_baselines
from atoll.wafer.detailed import replay_mapping
from atoll.wafer.evaluate import Evaluation
from atoll.wafer.files import load_wafers
from atoll.wafer.job import WaferJob
from atoll.wafer.result import WaferResult
from atoll.wafer.search import Found, Progress, WaferSearch
from atoll.wafer.template import Wafer

TOLERANCE = 0.01
STREAMED = "weight-streaming"


def run_wafer_search(job: WaferJob, progress: Progress | None = None) -> WaferResult:
    """Find the best mapping (and wafer, where a space is given), and lay baselines beside it."""
    began = time.monotonic()
    phases: dict[str, float] = {}
    wafers = load_wafers(job.wafer)
    if len(wafers) > 1:
        raise AtollError(f"wafer {job.wafer}: spaces of wafers are not supported yet.")
    wafer = wafers[0]
    _check_faults(job, wafer)
    baselines: dict[str, Baseline | None] = {}
    if job.baselines:
        baselines = run_baselines(wafer, job.model, job.batch, job.tokens)
        phases["baselines"] = time.monotonic() - began
    mark = time.monotonic()
    found = search_one(job, wafer, baselines, progress)
    phases["search"] = time.monotonic() - mark
    mark = time.monotonic()
    detailed = replay_mapping(wafer, found.best)
    phases["replay"] = time.monotonic() - mark
    return WaferResult(
        job=job,
        wafer=wafer,
        best=found.best,
        certificate=Certificate(
            gap=found.gap, tolerance=TOLERANCE, architectures=1, evaluated=1, pruned={},
            tightened=found.solved,
        ),
        baselines=baselines,
        detailed=detailed,
        designs=[design_row(wafer, found.best)],
        runners_up=found.runners_up,
        phases_s=phases,
        wall_time_s=time.monotonic() - began,
    )  # fmt: skip


def search_one(
    job: WaferJob, wafer: Wafer, baselines: dict[str, Baseline | None], progress: Progress | None
) -> Found:
    options = job.options
    if wafer.parameter_store:
        options = replace(options, homes=(*options.homes, "external"))
    search = WaferSearch(
        wafer, job.model, job.batch, job.tokens, options, job.microbatches, progress
    )
    # Baselines are points of the same space. Ablations ask what a part of it is worth: then nothing
    # from outside may help.
    seeds = [
        b.evaluation
        for name, b in baselines.items()
        if b is not None and not job.ablations and (name != STREAMED or wafer.parameter_store)
    ]
    return search.run(seeds)


def design_row(wafer: Wafer, found: Evaluation) -> dict[str, Any]:
    return wafer.to_dict() | {
        "samples_per_s": found.samples_per_s,
        "microbatch": found.mapping.microbatch,
        "stages": len(found.mapping.stages),
        "memory_GiB_used": found.memory_bytes / 2**30,
    }


def _check_faults(job: WaferJob, wafer: Wafer) -> None:
    dies = [*job.dead_dies, *(die for link in job.dead_links for die in link)]
    for x, y in dies:
        if x >= wafer.columns or y >= wafer.rows:
            raise AtollError(
                f"job: dead_dies: ({x}, {y}) is not on the wafer of {wafer.columns} columns and "
                f"{wafer.rows} rows."
            )


def with_job(job: WaferJob, **changes: Any) -> WaferJob:
    """The job with some fields changed; None leaves a field alone."""
    return replace(job, **{name: v for name, v in changes.items() if v is not None})
