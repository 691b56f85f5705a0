"""Replay of a step's pipeline pass by pass, for timelines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atoll.answers.layout import PassParts, StepPasses
from atoll.step.layout import Layout
from atoll.step.orders import arrivals
from atoll.step.replay import Replay, pipeline_s, replay
from atoll.training.estimate import (
    Estimate,
    Estimator,
    boundary_bytes,
    messages_s,
    pipelines_s,
)
from atoll.training.operators.tables import Floats
from atoll.training.run import Run
from atoll.training.step import PassSeconds, StageTime, StepTime

MOST_PASSES = 60_000  # of all stages in a timeline; more only repeat the steady state


@dataclass(frozen=True)
class ReplayedStep:
    """A step with its single passes."""

    step: StepPasses
    pipeline: Replay

    @property
    def unreplayed_s(self) -> float:
        """Seconds of the microbatches that are not replayed."""
        step = self.step
        if step.replayed == step.microbatches:
            return 0.0
        arrays = (np.array([values]) for values in (step.passes, *step.messages_s))
        passes_s, *messages = arrays
        (all_s,) = pipeline_s(step.schedule, passes_s, step.microbatches, *messages)
        return max(0.0, float(all_s) - self.pipeline.time_s)

    @property
    def time_s(self) -> float:
        after_s = sum(seconds for _, seconds in self.step.after)
        return (self.pipeline.time_s + self.unreplayed_s + after_s) * self.step.slack

    @property
    def difference(self) -> float:
        """Estimated over replayed step time, minus 1."""
        return self.step.step_time_s / self.time_s - 1


def step_passes(estimate: Estimate) -> StepPasses:
    """Return the passes of an estimate's step; gradients, optimizer and accumulation after the
    pipeline are as estimated.
    """
    run, layout = estimate.run, estimate.layout
    stepper, shares = Estimator(run).shares(layout)
    send_s = stepper.send_s(boundary_bytes(shares))
    counts = arrivals(layout.schedule, layout.pp, len(shares[0]))
    arriving_s = [(n * send_s, k * send_s) for n, k in counts]
    return stage_passes(run, layout, estimate.step, estimate.stages, arriving_s)


def stage_passes(
    run: Run,
    layout: Layout,
    step: StepTime,
    stages: Sequence[StageTime],
    arriving_s: Sequence[tuple[float, float]],
) -> StepPasses:
    """Return the same for stages with these seconds of (activations, gradients) into each."""
    order, total = layout.schedule, layout.microbatches(run.global_batch)
    most = max(4 * layout.pp, MOST_PASSES // (3 * layout.pp * layout.rounds))
    chunks = [stage.chunks or (stage,) for stage in stages]
    message_s = messages_s(order, len(chunks[0]), arriving_s)
    shown = 1.0 - run.stack.overlap.pipeline
    waits_s, delays_s = shown * message_s, (1.0 - shown) * message_s
    paces_s = pipelines_s(order, stages, total, waits_s, delays_s)
    slower = paces_s.index(max(paces_s))
    return StepPasses(
        schedule=order,
        passes=tuple(tuple(chunk.paces(order)[slower] for chunk in row) for row in chunks),
        microbatches=total,
        replayed=total if total <= most else most - most % layout.pp,
        send_s=float(message_s.max()),
        waits_s=_pairs(waits_s),
        delays_s=_pairs(delays_s),
        after=(
            ("gradient accumulation", step.accumulate_s),
            ("gradient reduction", step.gradient_s),
            ("optimizer", step.optimizer_s),
            ("host", run.stack.step_s),
        ),
        slack=run.slack,
        step_time_s=step.time_s,
        parts=tuple(
            PassParts(
                forward=_parts(stage.forward),
                backward=_parts(stage.backward + stage.recompute),
                host=stage.host_s,
            )
            for stage in stages
        ),
    )


def _pairs(values: Floats) -> tuple[tuple[float, float], ...]:
    return tuple((activation, gradient) for activation, gradient in values.tolist())


def _parts(spent: PassSeconds) -> dict[str, float]:
    named = {
        "compute": spent.compute_s,
        "tensor parallel": spent.tensor_s,
        "context parallel": spent.context_s,
        "expert parallel": spent.expert_s,
        "sharded weights": spent.sharded_s,
    }
    return {name: seconds for name, seconds in named.items() if seconds > 0.0}


def replay_step(step: StepPasses) -> ReplayedStep:
    return ReplayedStep(step, replay(step.schedule, step.passes, step.replayed, *step.messages_s))


def replay_estimate(estimate: Estimate) -> ReplayedStep:
    """Replay the pipeline of an estimate."""
    return replay_step(step_passes(estimate))
