"""A placement's pipeline replayed event by event: what the step formula leaves out, measured.

Transfers run beside the computation (`step.replay`). Under 1F1B the placement estimates the same
pipeline as

    estimate = (M - 1) max load + sum load,    load = forward + backward + incoming transfers.

With p stages, M microbatches, and F, B and C the longest forward pass, backward pass and transfer,

    estimate - (sum load after the slowest stage) - (transfers of the slowest stage) M
        <= simulated
        <= estimate + max(0, min(p - 2, M - 1)) max(0, max(F, C) + max(B, C) - max load).

So the estimate is an upper bound with up to two stages, and wherever one stage has both the longest
forward and the longest backward pass and no transfer is longer than those: always when stages
differ in size but not in kind. It is none in general: with three stages, three microbatches, free
transfers, forward passes of (1, 0, 0) s and backward passes of (0, 1, 0) s, the second stage runs
two forward passes before its first backward pass, which waits until 2 s for it and then needs 3 s:
5 s against an estimate of 4 s.

Why: follow the chain of events that each waited for, from the last backward pass to the first
forward pass. Every detour into later stages and back visits as many forward as backward passes of
each stage; what is left over are steps from forward to forward pass in the warm-up and from
backward to backward pass in the cool-down (or along a busy link), at most min(p - 2, M - 1) of each
that are not already paid by a stage's full load.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atoll.errors import AtollError
from atoll.placement.plan import Placement, Stage
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


def stage_times(stages: Sequence[Stage]) -> list[list[PassTime]]:
    """Passes of one microbatch without transfers. Recomputation runs before the data gradients;
    weight gradients are told apart where the placement knows them.
    """
    found = []
    for stage in stages:
        if stage.chunks:
            found.append([PassTime(*chunk) for chunk in stage.chunks])
            continue
        if stage.forward_s is None:
            raise AtollError(
                "A placement is replayed from forward and backward times; describe it with "
                "the forward times of its layers."
            )
        weight_s = stage.weight_s or 0.0
        backward_s = stage.compute_s + stage.recompute_s - stage.forward_s - weight_s
        found.append([PassTime(stage.forward_s, backward_s, weight_s)])
    return found


def replay_placement(placement: Placement) -> ReplayedPlacement:
    """Simulate a placement."""
    transfer_s: float | list[float] = [stage.receive_s for stage in placement.stages[1:]]
    if placement.stages[0].chunks:  # which may come from any stage
        transfer_s = placement.stages[0].receive_s
    found = replay(
        placement.schedule, stage_times(placement.stages), placement.microbatches, transfer_s
    )
    parts_s = placement.time_parts_s
    tail_s = sum(parts_s.get(name, 0.0) for name in TAIL)
    return ReplayedPlacement(found, tail_s, placement.step_time_s)
