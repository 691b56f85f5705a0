"""One mapping on one wafer, priced: what `atoll estimate` does with a wafer job.

The mapping is given whole (a file as `atoll search --out` writes it), or by its stages alone; the
exact part then finds the best block mapping of each stage.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from atoll.errors import AtollError, InfeasibleError
from atoll.fabric.mesh import snake
from atoll.hardware.accelerator import accelerator_dict
from atoll.hardware.wafer import Wafer
from atoll.hardware.wafer_files import load_wafers
from atoll.placement.plan import Placement
from atoll.questions import WaferQuestion
from atoll.wafer.answer.draw import text_map, wafer_object
from atoll.wafer.answer.result import placement_of, running_power_W, wafer_mfu
from atoll.wafer.detailed import replay_mapping
from atoll.wafer.encoding.mapping import WaferMapping, read_mapping, validate
from atoll.wafer.evaluate import Evaluation, evaluate
from atoll.wafer.job import options_of, tokens_of
from atoll.wafer.search import best_plan
from atoll.wafer.stages import Planner


@dataclass(frozen=True)
class WaferEstimate:
    """What a mapping costs."""

    wafer: Wafer
    evaluation: Evaluation
    detailed: Mapping[str, Any]
    """The replay with links as queues: its difference from the fast model."""

    @cached_property
    def placement(self) -> Placement:
        return placement_of(self.evaluation)

    @cached_property
    def picture(self) -> dict[str, Any]:
        return wafer_object(self.wafer, self.evaluation)

    @property
    def mfu(self) -> float:
        return wafer_mfu(self.wafer, self.evaluation)

    def to_dict(self) -> dict[str, Any]:
        found = self.evaluation
        return {
            "model": found.mapping.model,
            "step_time_s": found.step_s,
            "samples_per_s": found.samples_per_s,
            "tokens_per_s": found.samples_per_s * found.mapping.sequence,
            "mfu": self.mfu,
            "power_W": running_power_W(self.wafer, found),
            "fits": found.fits,
            "memory_bytes_per_die": found.memory_bytes,
            "placement": self.placement.to_dict(),
            "accelerator": accelerator_dict(self.wafer.chip),
            "wafer": self.wafer.to_dict(),
            "picture": self.picture,
            "detailed": dict(self.detailed),
            "mapping": found.mapping.to_dict(),
        }

    def text_map(self) -> str:
        return text_map(self.picture)


def estimate_mapping(wafer: Wafer, mapping: WaferMapping) -> WaferEstimate:
    """Price a mapping; one that breaks a rule of the encoding or of the wafer is refused."""
    validate(mapping, wafer.rows, wafer.columns)
    found = evaluate(wafer, mapping)
    return WaferEstimate(wafer, found, replay_mapping(wafer, found))


def given_mapping(job: WaferQuestion, wafer: Wafer) -> WaferMapping | None:
    """The mapping that a job names, or the one that its layout leads to."""
    if job.mapping is not None:
        mapping = read_mapping(job.mapping)
        asked = {"model": job.model, "batch": job.batch, "sequence": tokens_of(job),
                 "optimizer": options_of(job).states.name}  # fmt: skip
        for name, ours in asked.items():
            theirs = getattr(mapping, name)
            if theirs != ours:
                raise AtollError(f"{job.mapping}: its {name} is {theirs}, but the job's is {ours}.")
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
    planner = Planner(wafer, job.model, job.batch, tokens_of(job), options_of(job))
    planned = best_plan(planner, rectangles, microbatch)
    if planned is None:
        raise InfeasibleError(
            f"job: layout: {job.model} on {stages} stages of {width} x {height} dies does not fit "
            "their memory, even with everything recomputed; use larger rectangles, more stages or "
            "a smaller microbatch."
        )
    return planned.mapping


def estimate_job(job: WaferQuestion) -> WaferEstimate:
    """Price the mapping of a job."""
    wafers = load_wafers(job.wafer)
    if len(wafers) != 1:
        raise AtollError(
            f"job: wafer: {job.wafer} is a space of {len(wafers)} wafers; an estimate takes one."
        )
    mapping = given_mapping(job, wafers[0])
    if mapping is None:
        raise AtollError(
            "job: atoll estimate prices one mapping: give `mapping`, a file as atoll search --out "
            "writes it, or `layout` (rectangle, stages, microbatch); atoll search finds one."
        )
    return estimate_mapping(wafers[0], mapping)
