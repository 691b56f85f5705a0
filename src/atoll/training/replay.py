"""A planned step replayed pass by pass, and how far the closed form is from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atoll.step.orders import copies_of
from atoll.step.replay import PassTime, Replay, replay
from atoll.step.stages import stage_shares
from atoll.training.estimate import Estimate, Estimator
from atoll.training.step import Stepper

MOST_PASSES = 60_000  # of all stages; more microbatches only repeat the steady state


@dataclass(frozen=True)
class StepPasses:
    """All that a step is replayed from; plan.json keeps it, so that whoever draws or prints a plan
    replays the same.
    """

    schedule: str
    passes: tuple[tuple[PassTime, ...], ...]
    """Of every stage, its chunks on one microbatch."""
    microbatches: int
    replayed: int
    """Of the microbatches, those run one by one; the others are more of the same steady state."""
    send_s: float
    after: tuple[tuple[str, float], ...]
    """What follows the pipeline, or is added to it by every microbatch on all stages alike."""
    slack: float
    """Time of a step over what its parts explain."""
    step_time_s: float
    """As estimated."""

    @property
    def rest_s(self) -> float:
        """The microbatches that are not replayed one by one."""
        slowest_s = max(sum(p.total_s for p in row) for row in self.passes)
        slowest_s /= copies_of(self.schedule)
        return (self.microbatches - self.replayed) * slowest_s

    def to_dict(self) -> dict[str, Any]:
        return {
            "schedule": self.schedule,
            "microbatches": self.microbatches,
            "replayed": self.replayed,
            "send_s": self.send_s,
            "passes": [[[c.forward_s, c.backward_s, c.weight_s] for c in r] for r in self.passes],
            "after": [list(part) for part in self.after],
            "slack": self.slack,
            "step_time_s": self.step_time_s,
        }


def read_passes(record: Mapping[str, Any]) -> StepPasses:
    """What `StepPasses.to_dict` wrote."""
    return StepPasses(
        schedule=record["schedule"],
        passes=tuple(tuple(PassTime(*c) for c in row) for row in record["passes"]),
        microbatches=record["microbatches"],
        replayed=record["replayed"],
        send_s=record["send_s"],
        after=tuple((name, seconds) for name, seconds in record["after"]),
        slack=record.get("slack", 1.0),
        step_time_s=record["step_time_s"],
    )


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

    def to_dict(self) -> dict[str, Any]:
        return {
            "time_s": self.time_s,
            "difference": self.difference,
            "microbatches": self.step.replayed,
        }


def stage_passes(estimate: Estimate) -> list[list[PassTime]]:
    """Seconds of every chunk of every stage on one microbatch, host time spread over both ways."""
    run, layout = estimate.run, estimate.layout
    costs = Estimator(run).costs(layout)
    stepper = Stepper(run, layout)
    shares = stage_shares(costs, layout.schedule, layout.pp, layout.vpp, layout.blocks)
    return [
        [stepper.stage_time([chunk], policy).passes for chunk in chunks]
        for chunks, policy in zip(shares, estimate.policies, strict=True)
    ]


def step_passes(estimate: Estimate) -> StepPasses:
    """An estimate's step as it is replayed: what follows the pipeline (gradients, optimizer) and
    what each microbatch adds to all stages alike (accumulation) are as estimated.
    """
    run, layout, step = estimate.run, estimate.layout, estimate.step
    total = layout.microbatches(run.global_batch)
    most = max(4 * layout.pp, MOST_PASSES // (3 * layout.pp * layout.rounds))
    return StepPasses(
        schedule=layout.schedule,
        passes=tuple(tuple(row) for row in stage_passes(estimate)),
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
    )


def replay_step(step: StepPasses) -> ReplayedStep:
    return ReplayedStep(step, replay(step.schedule, step.passes, step.replayed, step.send_s))


def replay_estimate(estimate: Estimate) -> ReplayedStep:
    """Replay the pipeline of an estimate."""
    return replay_step(step_passes(estimate))
