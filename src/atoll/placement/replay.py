"""Event-by-event replay of a placement's pipeline (`step.replay`). Devices wait for the messages
that they receive, as in plans on chips.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atoll.answers.design import PlacedStageAnswer, PlacementAnswer
from atoll.base.errors import AtollError
from atoll.step.replay import PassTime, Replay, replay

TAIL = ("gradient_accumulation", "gradient_reduction", "optimizer", "host")
"""Parts of a step that follow the pipeline, or are added to it by every microbatch."""


@dataclass(frozen=True, eq=False)
class ReplayedPlacement:
    """Replayed pipeline of a placement, with the estimated step time."""

    pipeline: Replay
    tail_s: float
    """Seconds after the last pass: gradient reduction, optimizer and fixed step overhead."""
    estimate_s: float
    """Estimated step time, by which the placement was chosen."""

    @property
    def step_time_s(self) -> float:
        return self.pipeline.time_s + self.tail_s

    @property
    def difference(self) -> float:
        """Return the relative difference: simulated step / estimated step - 1."""
        return self.step_time_s / self.estimate_s - 1.0


def stage_times(stages: Sequence[PlacedStageAnswer]) -> list[list[PassTime]]:
    """Return the pass times of one microbatch per stage and chunk, without transfers. Recomputation
    counts as part of the backward pass; weight passes are separate if their times are known.
    """
    times = []
    for stage in stages:
        if stage.chunks:
            times.append([PassTime(*chunk) for chunk in stage.chunks])
            continue
        if stage.forward_s is None:
            raise AtollError(
                "A placement is replayed from forward and backward times; describe it with "
                "the forward times of its layers."
            )
        weight_s = stage.weight_s or 0.0
        backward_s = stage.compute_s + stage.recompute_s - stage.forward_s - weight_s
        times.append([PassTime(stage.forward_s, backward_s, weight_s)])
    return times


def messages_s(stages: Sequence[PlacedStageAnswer]) -> list[tuple[float, float]]:
    """Return the seconds to receive one activation and one gradient, per stage."""
    received = [stage.receive_s for stage in stages]
    if stages[0].chunks:  # messages may come from any stage
        return [(receive_s, receive_s) for receive_s in received]
    return list(zip(received, [*received[1:], 0.0], strict=True))


def replay_placement(placement: PlacementAnswer) -> ReplayedPlacement:
    """Simulate the pipeline of a placement."""
    times, messages = stage_times(placement.stages), messages_s(placement.stages)
    pipeline = replay(placement.schedule, times, placement.microbatches, messages)
    parts_s = placement.time_parts_s
    tail_s = sum(parts_s.get(name, 0.0) for name in TAIL)
    return ReplayedPlacement(pipeline, tail_s, placement.step_time_s)
