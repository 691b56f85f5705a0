"""Replay the pipeline of a placement event by event (`step.replay`): devices wait for what they
receive, as in plans of chips.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from atoll.base.errors import AtollError
from atoll.placement.plan import Placement, PlacementStage
from atoll.step.replay import PassTime, Replay, replay

TAIL = ("gradient_accumulation", "gradient_reduction", "optimizer", "host")
"""Parts of a step that follow the pipeline, or are added to it by every microbatch."""


@dataclass(frozen=True, eq=False)
class ReplayedPlacement:
    """A placement's pipeline, beside its estimate."""

    pipeline: Replay
    tail_s: float
    """Gradient reduction, optimizer and what a step takes whatever runs, after the last pass."""
    estimate_s: float
    """The step time that the placement was chosen by."""

    @property
    def step_time_s(self) -> float:
        return self.pipeline.time_s + self.tail_s

    @property
    def difference(self) -> float:
        """How much longer the simulated step is, as a part of the estimate."""
        return self.step_time_s / self.estimate_s - 1.0


class Received(Protocol):
    """A stage, as far as its messages are concerned."""

    @property
    def receive_s(self) -> float: ...
    @property
    def chunks(self) -> Sequence[object]: ...


def stage_times(stages: Sequence[PlacementStage]) -> list[list[PassTime]]:
    """Passes of one microbatch without transfers. Recomputation runs before the data gradients;
    weight gradients are told apart where the placement knows them.
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


def messages_s(stages: Sequence[Received]) -> list[tuple[float, float]]:
    """Seconds of one activation and of one gradient into each stage."""
    received = [stage.receive_s for stage in stages]
    if stages[0].chunks:  # which may come from any stage
        return [(receive_s, receive_s) for receive_s in received]
    return list(zip(received, [*received[1:], 0.0], strict=True))


def replay_placement(placement: Placement) -> ReplayedPlacement:
    """Simulate a placement."""
    times, messages = stage_times(placement.stages), messages_s(placement.stages)
    pipeline = replay(placement.schedule, times, placement.microbatches, messages)
    parts_s = placement.time_parts_s
    tail_s = sum(parts_s.get(name, 0.0) for name in TAIL)
    return ReplayedPlacement(pipeline, tail_s, placement.step_time_s)
