"""A planned step replayed pass by pass, and how far the closed form is from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atoll.answers.layout import PassParts, StepPasses
from atoll.step.bubbles import step_s
from atoll.step.layout import Layout
from atoll.step.replay import PassTime, Replay, replay
from atoll.step.stages import stage_shares
from atoll.training.estimate import Estimate, Estimator
from atoll.training.operators.layers import Share
from atoll.training.run import Run
from atoll.training.step import Pass, StageTime, Step, Stepper

MOST_PASSES = 60_000  # of all stages; more microbatches only repeat the steady state


@dataclass(frozen=True)
class ReplayedStep:
    """What the event-driven replay says of a step."""

    step: StepPasses
    pipeline: Replay

    @property
    def time_s(self) -> float:
        after_s = sum(seconds for _, seconds in self.step.after)
        return (self.pipeline.time_s + self.step.rest_s + after_s) * self.step.slack

    @property
    def difference(self) -> float:
        """Closed form over replay, less one."""
        return self.step.step_time_s / self.time_s - 1


def stage_passes(estimate: Estimate) -> list[list[PassTime]]:
    """Seconds of every chunk of every stage on one microbatch, at the pace that counts."""
    run, layout = estimate.run, estimate.layout
    costs = Estimator(run).costs(layout)
    stepper = Stepper(run, layout)
    shares = stage_shares(costs, layout.schedule, layout.pp, layout.vpp, layout.blocks)
    return chunk_passes([stepper] * layout.pp, shares, estimate.policies, estimate.stages)


def chunk_passes(
    steppers: Sequence[Stepper],
    shares: Sequence[Sequence[Share]],
    policies: Sequence[str],
    stages: Sequence[StageTime],
) -> list[list[PassTime]]:
    """The same of stages that each run on the devices of their stepper."""
    layout, m = steppers[0].layout, steppers[0].microbatches
    order = layout.schedule
    paces = list(zip(*(s.paces(order) for s in stages), strict=True))
    at = max(range(len(paces)), key=lambda i: step_s(order, paces[i], m, layout.vpp))
    return [
        [stepper.stage_time([chunk], policy).paces(order)[at] for chunk in chunks]
        for stepper, chunks, policy in zip(steppers, shares, policies, strict=True)
    ]


def step_passes(estimate: Estimate) -> StepPasses:
    """An estimate's step as it is replayed: what follows the pipeline (gradients, optimizer) and
    what each microbatch adds to all stages alike (accumulation) are as estimated.
    """
    return passes_of(
        estimate.run, estimate.layout, estimate.step, stage_passes(estimate), estimate.stages
    )


def passes_of(
    run: Run,
    layout: Layout,
    step: Step,
    passes: Sequence[Sequence[PassTime]],
    stages: Sequence[StageTime],
) -> StepPasses:
    """The same from the passes of all stages."""
    total = layout.microbatches(run.global_batch)
    most = max(4 * layout.pp, MOST_PASSES // (3 * layout.pp * layout.rounds))
    return StepPasses(
        schedule=layout.schedule,
        passes=tuple(tuple(row) for row in passes),
        microbatches=total,
        replayed=total if total <= most else most - most % layout.pp,
        send_s=step.send_s / max(1, 2 * layout.rounds * total),
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


def _parts(spent: Pass) -> dict[str, float]:
    named = {
        "compute": spent.compute_s,
        "tensor parallel": spent.tensor_s,
        "context parallel": spent.context_s,
        "expert parallel": spent.expert_s,
        "sharded weights": spent.sharded_s,
    }
    return {name: seconds for name, seconds in named.items() if seconds > 0.0}


def replay_step(step: StepPasses) -> ReplayedStep:
    return ReplayedStep(step, replay(step.schedule, step.passes, step.replayed, step.send_s))


def replay_estimate(estimate: Estimate) -> ReplayedStep:
    """Replay the pipeline of an estimate."""
    return replay_step(step_passes(estimate))
