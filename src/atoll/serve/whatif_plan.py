"""A training layout under other conditions (devices, links, memory, compute, sequence, batch), or
the best layout under them."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

from atoll.answers.answer import checked
from atoll.answers.plan import EstimateAnswer, PlanAnswer
from atoll.base.errors import AtollError
from atoll.base.stopping import Stop, StoppedError
from atoll.front import ScriptData
from atoll.questions import EstimateQuestion, PlanQuestion
from atoll.questions.devices import LaunchQuestion
from atoll.serve.whatif import (
    CAPACITIES_GIB,
    GIB,
    Change,
    NoEstimate,
    StepFigures,
    cache_put,
    doublings,
    job_sliders,
    link_slider,
    slider,
)
from atoll.step.layout import Layout
from atoll.step.parts import in_words
from atoll.training.estimate import Estimate, Estimator
from atoll.training.planner.plan import plan
from atoll.training.planner.space import Axes
from atoll.training.request import run_from_question
from atoll.training.run import Run
from atoll.workload.families.model_config import ModelConfig

CACHE_SIZE = 32
AGAIN_S = 30.0
"""Time limit of a new plan."""
SAME = 1e-9  # relative, of two step times
_MODEL_FIELDS = ("model", "from_", *LaunchQuestion.model_fields)
"""Question fields that name files describing the model."""


class PlanWhatIf:
    """Estimates the layouts of one plan under changed conditions."""

    def __init__(self, answer: PlanAnswer | EstimateAnswer) -> None:
        self._answer = answer
        self._lock, self._planning = threading.Lock(), threading.Lock()
        self._run: Run | None = None
        self._estimators: dict[tuple[Any, ...], Estimator] = {}

    def layouts(self) -> list[Layout]:
        """Return the best layout and the runners-up."""
        answer = self._answer
        runners_up = answer.runners_up if isinstance(answer, PlanAnswer) else ()
        return [answer.layout, *(runner_up.axes for runner_up in runners_up)]

    def options(self, number: int) -> ScriptData:
        with self._lock:
            run, layout = self._open(), self._layout(number)
            ranks = layout.model_ranks
            counts = [ranks * round(c) for c in doublings(layout.dp, 1) if c.is_integer()]
            rate = run.gpu.hbm_Bps / 1e9
            microbatches = [2**power for power in range(7) if 2**power <= run.global_batch]
            sliders = [
                slider("devices", "Devices", "", counts, run.devices),
                link_slider(run.network),
                slider("hbm_GiB", "HBM capacity", "GiB", CAPACITIES_GIB, run.gpu.hbm_bytes / GIB),
                slider("hbm_GBps", "HBM bandwidth", "GB/s", doublings(rate)[1:-1], rate),
                slider("microbatch", "Microbatch", "", microbatches, layout.microbatch),
                *job_sliders(run.sequence, run.global_batch),
            ]
            note = self._note(run) if number == 0 else ""
            return {"sliders": sliders, "note": note, "global_batch": run.global_batch}

    def estimate(self, number: int, change: Change) -> StepFigures | NoEstimate:
        """Estimate the step under the change, or return the reason why there is none."""
        with self._lock:
            base, layout = self._open(), self._layout(number)
            devices = change.devices or base.devices
            if devices % layout.model_ranks:
                return NoEstimate(
                    problem=f"{devices} devices are not a multiple of the {layout.model_ranks} "
                    "that hold one copy of the model."
                )
            dp, microbatch = devices // layout.model_ranks, change.microbatch or layout.microbatch
            layout = replace(layout, dp=dp, microbatch=microbatch)
            try:
                estimate = self._estimator(base, devices, change).estimate(layout)
            except AtollError as error:
                return NoEstimate(problem=f"{str(error).rstrip('.')}.")
        return step_figures(estimate)

    def plan_again(self, change: Change) -> StepFigures | NoEstimate:
        """Plan the best layout under the change; with the change's microbatch if it is set."""
        if not self._planning.acquire(blocking=False):
            return NoEstimate(problem="A plan is being made; ask again when it is there.")
        try:
            return self._plan_again(change)
        except AtollError as error:
            return NoEstimate(problem=f"{str(error).rstrip('.')}.")
        except StoppedError:
            return NoEstimate(problem=f"No layout was found within {AGAIN_S:g} s; use atoll plan.")
        finally:
            self._planning.release()

    def _plan_again(self, change: Change) -> StepFigures:
        with self._lock:
            base = self._open()
            run = self._estimator(base, change.devices or base.devices, change).run
        axes = Axes(microbatch=(change.microbatch,)) if change.microbatch else None
        planned = plan(run, axes, runners_up=0, stop=Stop(AGAIN_S))
        proof = "proven best" if planned.certificate.proven else "best known"
        words = f"{proof} of {planned.certificate.items:,} layouts"
        return replace(step_figures(planned.best), schedules=words)

    def _note(self, run: Run) -> str:
        """Return a note if the estimate of the best layout differs from that of the plan."""
        now_s = self._estimator(run, run.devices, Change()).estimate(self._layout(0)).step.time_s
        off = now_s / self._answer.step_time_s - 1.0
        if abs(off) < SAME:
            return ""
        return f"Estimated again the plan takes {off:+.2%}: something it depends on has changed."

    def _layout(self, number: int) -> Layout:
        layouts = self.layouts()
        if not 0 <= number < len(layouts):
            raise AtollError(f"layout: the plan has {len(layouts)}, counted from 0; got {number}.")
        return layouts[number]

    def _open(self) -> Run:
        if self._run is None:
            answer, shape = self._answer, self._answer.configuration
            if not answer.question:
                raise AtollError("plan.json keeps no question: plan it again with this atoll.")
            model = checked(shape, ModelConfig, "plan.json") if shape else None
            dropped = _MODEL_FIELDS if model else ()
            fields = {name: v for name, v in answer.question.items() if name not in dropped}
            kind = PlanQuestion if isinstance(answer, PlanAnswer) else EstimateQuestion
            self._run = run_from_question(kind.of(**fields), model)
        return self._run

    def _estimator(self, base: Run, devices: int, change: Change) -> Estimator:
        job = change.sequence or base.sequence, change.batch or base.global_batch
        key = devices, change.link, change.hbm_GiB, change.hbm_GBps, change.compute, job
        if key not in self._estimators:
            gpu = base.gpu.with_compute(change.compute or 1.0)
            if change.hbm_GiB:
                gpu = gpu.with_hbm(hbm_bytes=round(change.hbm_GiB * GIB))
            if change.hbm_GBps:
                gpu = gpu.with_hbm(hbm_Bps=change.hbm_GBps * 1e9)
            run = replace(base, gpu=gpu, network=base.network.faster(change.link or 1.0))
            run = replace(run, devices=devices, sequence=job[0], global_batch=job[1])
            if base.model.positions == "learned" and job[0] > base.model.max_sequence:
                raise AtollError(f"the position table ends at {base.model.max_sequence} tokens")
            if base.stored is not None and job[0] != base.sequence:
                raise AtollError(f"the model was captured with {base.sequence} tokens")
            cache_put(self._estimators, key, Estimator(run), CACHE_SIZE)
        return self._estimators[key]


def step_figures(estimate: Estimate) -> StepFigures:
    """Return the figures of an estimate in the form shared with searched chips."""
    worst, capacity = estimate.worst, estimate.run.capacity_bytes
    warning = f"Needs {worst.needed / GIB:.1f} GiB of {capacity / GIB:.1f} GiB: does not fit."
    return StepFigures(
        step_time_s=estimate.step.time_s,
        samples_per_s=estimate.run.global_batch / estimate.step.time_s,
        tokens_per_s_per_device=estimate.tokens_per_s_per_device,
        mfu=estimate.mfu,
        parts_s=in_words(estimate.step.breakdown()),
        memory_bytes=worst.parts() | {"reserve": worst.needed - worst.allocated},
        memory_capacity_bytes=capacity,
        pipeline=estimate.layout.pp,
        tensor=estimate.layout.tp,
        data=estimate.layout.dp,
        devices=estimate.run.devices,
        microbatch=estimate.layout.microbatch,
        microbatches=estimate.layout.microbatches(estimate.run.global_batch),
        recompute=estimate.layout.recompute,
        layout=str(estimate.layout),
        warning="" if estimate.fits else warning,
    )
