"""Replay of a step's pipeline pass by pass, for timelines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atoll.answers.layout import PassParts, StepPasses
from atoll.step.layout import Layout
from atoll.step.replay import Replay, pipeline_s, replay
from atoll.training.estimate import Estimate
from atoll.training.run import Run
from atoll.training.step import PassSeconds, StageTime, StepTime

PART_NAMES = "compute", "tensor parallel", "context parallel", "expert parallel", "sharded weights"
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
    estimated = estimate.step, estimate.stages, estimate.messages_s
    return stage_passes(estimate.run, estimate.layout, *estimated)


def stage_passes(
    run: Run,
    layout: Layout,
    step: StepTime,
    stages: Sequence[StageTime],
    messages_s: Sequence[tuple[float, float]],
) -> StepPasses:
    """Return the same for these stages and seconds of one (activation, gradient) into each."""
    total = layout.microbatches(run.global_batch)
    most = max(4 * layout.pp, MOST_PASSES // (3 * layout.pp * layout.rounds))
    shown = 1.0 - run.stack.overlap.pipeline
    after = step.scaled(1 / run.slack)
    return StepPasses(
        schedule=layout.schedule,
        passes=tuple(stage.passes for stage in stages),
        microbatches=total,
        replayed=total if total <= most else most - most % layout.pp,
        send_s=max(max(pair_s) for pair_s in messages_s),
        waits_s=tuple((shown * a, shown * g) for a, g in messages_s),
        delays_s=tuple(((1.0 - shown) * a, (1.0 - shown) * g) for a, g in messages_s),
        after=(
            ("gradient accumulation", after.accumulate_s),
            ("gradient reduction", after.gradient_s),
            ("optimizer", after.optimizer_s),
            ("host", run.stack.step_s),
        ),
        slack=run.slack,
        step_time_s=step.time_s,
        parts=tuple(
            PassParts(
                forward=_parts(stage.forward),
                backward=_parts(stage.backward, stage.recompute),
                host=stage.host_s,
            )
            for stage in stages
        ),
    )


def _parts(*passes: PassSeconds) -> dict[str, float]:
    parts_s = zip(PART_NAMES, map(sum, zip(*passes, strict=True)), strict=True)
    return {name: seconds for name, seconds in parts_s if seconds > 0.0}


def replay_step(step: StepPasses) -> ReplayedStep:
    return ReplayedStep(step, replay(step.schedule, step.passes, step.replayed, *step.messages_s))


def replay_estimate(estimate: Estimate) -> ReplayedStep:
    """Replay the pipeline of an estimate."""
    return replay_step(step_passes(estimate))
