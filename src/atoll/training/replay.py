"""Replay of a step's pipeline pass by pass, for timelines."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.answers.layout import PassParts, StepPasses
from atoll.placement.replay import ReplayedStep, replay_step
from atoll.step.layout import Layout
from atoll.training.estimate import Estimate
from atoll.training.run import Run
from atoll.training.step import PassSeconds, StageTime, StepTime

PART_NAMES = "compute", "tensor parallel", "context parallel", "expert parallel", "sharded weights"
MOST_PASSES = 60_000  # of all stages in a timeline; more only repeat the steady state


def step_passes(estimate: Estimate) -> StepPasses:
    """Return the passes of an estimate's step, and what follows the pipeline."""
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
        parts=tuple(map(_parts, stages)),
    )


def _parts(stage: StageTime) -> PassParts:
    """Return the seconds of a stage's passes by part."""

    def by_name(*passes: PassSeconds) -> dict[str, float]:
        parts_s = zip(PART_NAMES, map(sum, zip(*passes, strict=True)), strict=True)
        return {name: seconds for name, seconds in parts_s if seconds > 0.0}

    backward = by_name(stage.backward, stage.recompute)
    return PassParts(forward=by_name(stage.forward), backward=backward, host=stage.host_s)


def replay_estimate(estimate: Estimate) -> ReplayedStep:
    """Replay the pipeline of an estimate."""
    return replay_step(step_passes(estimate))
