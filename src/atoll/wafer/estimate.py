"""Price one mapping on one wafer, as `atoll estimate` does for a wafer job.

The mapping is a file that `atoll search --out` wrote, or only its stages are given; the exact
solver then finds the best block mapping of each stage.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from atoll.base.errors import AtollError, InfeasibleError
from atoll.base.units import counted
from atoll.fabric.mesh import snake
from atoll.hardware.wafer import Wafer
from atoll.hardware.wafer_files import load_wafers
from atoll.questions import WaferQuestion
from atoll.questions.ask import ask
from atoll.step.states import load_states
from atoll.wafer.answer.result import WaferEstimate
from atoll.wafer.encoding.mapping import WaferMapping, read_mapping, validate
from atoll.wafer.evaluate import evaluate
from atoll.wafer.job import completed, options_of, tokens_of
from atoll.wafer.link_replay import replay_mapping
from atoll.wafer.staging.planner import Planner


def estimate_mapping(wafer: Wafer, mapping: WaferMapping) -> WaferEstimate:
    """Price a mapping; one that breaks a rule of the encoding or of the wafer is refused."""
    validate(mapping, wafer.rows, wafer.columns)
    evaluation = evaluate(wafer, mapping)
    return WaferEstimate(wafer, evaluation, replay_mapping(wafer, evaluation))


def job_mapping(job: WaferQuestion, wafer: Wafer) -> WaferMapping | None:
    """Return the mapping that a job names, or the best one for its layout."""
    if job.mapping is not None:
        mapping = read_mapping(job.mapping)
        wanted = {"model": job.model, "batch": job.batch, "sequence": tokens_of(job),
                 "optimizer": load_states(job.optimizer).name}  # fmt: skip
        for name, want in wanted.items():
            stored = getattr(mapping, name)
            if stored != want:
                raise AtollError(f"{job.mapping}: its {name} is {stored}, but the job's is {want}.")
        return mapping
    if job.layout is None:
        return None
    width, height = job.layout.rectangle
    stages, microbatch = job.layout.stages, job.layout.microbatch
    rectangles = snake(wafer.rows, wafer.columns, width, height, stages)
    if rectangles is None:
        raise AtollError(
            f"job: layout: {stages} rectangles of {width} x {height} dies do not fit a wafer of "
            f"{wafer.columns} x {wafer.rows} (columns x rows)."
        )
    if microbatch > job.batch:
        raise AtollError(
            f"job: layout: microbatch {microbatch} is larger than the batch of {job.batch}."
        )
    planner = Planner(wafer, job.model, job.batch, tokens_of(job), options_of(job, wafer))
    planned = planner.best(rectangles, microbatch)
    if planned is None:
        raise InfeasibleError(
            f"job: layout: {job.model} on {counted(stages, 'stage')} of {width} x {height} dies "
            "does not fit their memory, even with everything recomputed; use larger rectangles, "
            "more stages or a smaller microbatch."
        )
    return planned.mapping


def estimate_wafer(job: WaferQuestion | str | Path | None = None, **fields: Any) -> WaferEstimate:
    """Price the one mapping that a question names; `fields` override those of a job file."""
    return estimate_job(completed(ask({"wafer": WaferQuestion}, job, fields)))


def estimate_job(job: WaferQuestion) -> WaferEstimate:
    """Price the mapping of a job."""
    wafers = load_wafers(job.wafer)
    if len(wafers) != 1:
        raise AtollError(
            f"job: wafer: {job.wafer} is a space of {len(wafers)} wafers; an estimate takes one."
        )
    mapping = job_mapping(job, wafers[0])
    if mapping is None:
        raise AtollError(
            "job: atoll estimate prices one mapping: give `mapping`, a file as atoll search --out "
            "writes it, or `layout` (rectangle, stages, microbatch); atoll search finds one."
        )
    return estimate_mapping(wafers[0], mapping)
