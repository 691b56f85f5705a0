"""Event-by-event replay of the pipeline of a placement or of a planned layout (`step.replay`).
Devices of a placement wait for the messages that they receive, as in plans on chips.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atoll.answers.design import PlacedStageAnswer, PlacementAnswer
from atoll.answers.layout import MOST_PASSES, StepPasses
from atoll.base.errors import AtollError
from atoll.step.replay import PassTime, Replay, pipeline_s, replay

TAIL = ("gradient_accumulation", "gradient_reduction", "optimizer", "host")
"""Parts of a step that follow the pipeline, or are added to it by every microbatch."""


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


def replay_step(step: StepPasses) -> ReplayedStep:
    """Replay the pipeline of a step."""
    return ReplayedStep(step, replay(step.schedule, step.passes, step.replayed, *step.messages_s))


def placement_passes(placement: PlacementAnswer) -> StepPasses:
    """Return all that the step of a placement is replayed from."""
    stages, parts_s = placement.stages, placement.time_parts_s
    received = [stage.receive_s for stage in stages]
    # One activation and one gradient; those of several chunks may come from any stage.
    gradients = received if stages[0].chunks else [*received[1:], 0.0]
    return StepPasses(
        schedule=placement.schedule,
        passes=tuple(map(_stage_passes, stages)),
        microbatches=placement.microbatches,
        replayed=min(placement.microbatches, MOST_PASSES // len(stages)),
        send_s=max(received[1:], default=0.0),
        waits_s=tuple(zip(received, gradients, strict=True)),
        after=tuple((name.replace("_", " "), parts_s.get(name, 0.0)) for name in TAIL),
        step_time_s=placement.step_time_s,
    )


def _stage_passes(stage: PlacedStageAnswer) -> tuple[PassTime, ...]:
    """Return the pass times of one microbatch per chunk, without transfers. Recomputation counts
    as part of the backward pass; weight passes are separate if their times are known.
    """
    if stage.chunks:
        return tuple(PassTime(*chunk) for chunk in stage.chunks)
    if stage.forward_s is None:
        raise AtollError(
            "A placement is replayed from forward and backward times; describe it with "
            "the forward times of its layers."
        )
    weight_s = stage.weight_s or 0.0
    backward_s = stage.compute_s + stage.recompute_s - stage.forward_s - weight_s
    return (PassTime(stage.forward_s, backward_s, weight_s),)


def replay_placement(placement: PlacementAnswer) -> ReplayedStep:
    """Replay the pipeline of a placement."""
    return replay_step(placement_passes(placement))


def replay_difference(placement: PlacementAnswer) -> float:
    """Return replayed over estimated step time, minus 1."""
    return replay_placement(placement).time_s / placement.step_time_s - 1.0
