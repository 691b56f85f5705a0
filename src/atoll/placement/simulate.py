"""A pipeline replayed event by event: what the step formula leaves out, measured.

One forward, one backward (1F1B): the stage that is w-th from the end runs w forward passes, then
one backward and one forward pass in turn, then its last w backward passes, each as soon as its
input is there. Transfers run beside the computation; each link carries one message at a time in
each direction.

The placement estimates the same pipeline as

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

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from atoll.errors import AtollError
from atoll.placement.plan import Placement
from atoll.placement.zero_bubble import ZB_H1, simulate_zero_bubble

FloatArray = NDArray[np.float64]
Direction = Literal["forward", "backward"]
_DIRECTIONS: tuple[Direction, Direction] = ("forward", "backward")


@dataclass(frozen=True, slots=True)
class Event:
    """One pass of one microbatch through one stage."""

    stage: int
    microbatch: int
    direction: Direction
    start_s: float
    end_s: float


@dataclass(frozen=True, eq=False)
class Timeline:
    """When every pass runs: arrays of (stages, microbatches, forward and backward)."""

    start_s: FloatArray
    end_s: FloatArray

    @property
    def makespan_s(self) -> float:
        return float(self.end_s.max())

    @property
    def bubble_s(self) -> FloatArray:
        """Idle time of each stage between the first start and the last end of all."""
        busy_s: FloatArray = (self.end_s - self.start_s).sum(axis=(1, 2))
        return self.makespan_s - busy_s

    def events(self) -> Iterator[Event]:
        """Every pass, stage by stage in the order in which they run."""
        stages, microbatches, _ = self.start_s.shape
        for stage in range(stages):
            for microbatch, way in one_forward_one_backward(stages - stage, microbatches):
                yield Event(
                    stage,
                    microbatch,
                    _DIRECTIONS[way],
                    float(self.start_s[stage, microbatch, way]),
                    float(self.end_s[stage, microbatch, way]),
                )


def one_forward_one_backward(from_end: int, microbatches: int) -> list[tuple[int, int]]:
    """(microbatch, 0 forward or 1 backward) in order; `from_end` = 1 for the last stage."""
    ahead = min(from_end, microbatches)
    order = [(m, 0) for m in range(ahead)]
    for m in range(microbatches):
        order.append((m, 1))
        if m + ahead < microbatches:
            order.append((m + ahead, 0))
    return order


def simulate_pipeline(
    forward_s: Sequence[float],
    backward_s: Sequence[float],
    transfer_s: Sequence[float],
    microbatches: int,
) -> Timeline:
    """Run a 1F1B pipeline.

    `forward_s` and `backward_s` are the seconds of one microbatch in each stage, `transfer_s` those
    of one message, an activation or its gradient, between each stage and the next.
    """
    stages = len(forward_s)
    duration_s = (forward_s, backward_s)
    orders = [one_forward_one_backward(stages - i, microbatches) for i in range(stages)]
    start_s = np.zeros((stages, microbatches, 2))
    end_s = np.zeros((stages, microbatches, 2))
    # When the input of a pass is there; unknown (infinite) until its sender has run.
    input_s = np.full((stages, microbatches, 2), np.inf)
    input_s[0, :, 0] = 0.0
    clock_s = [0.0] * stages
    link_free_s = np.zeros((stages, 2))
    done = [0] * stages
    awake = deque(range(stages))
    while awake:
        i = awake.popleft()
        while done[i] < len(orders[i]):
            m, way = orders[i][done[i]]
            if input_s[i, m, way] == np.inf:
                break
            done[i] += 1
            start_s[i, m, way] = max(clock_s[i], input_s[i, m, way])
            clock_s[i] = start_s[i, m, way] + duration_s[way][i]
            end_s[i, m, way] = clock_s[i]
            to = i + 1 if way == 0 else i - 1
            if to == stages:
                input_s[i, m, 1] = clock_s[i]
            elif to >= 0:
                departure_s = max(clock_s[i], link_free_s[i, way])
                link_free_s[i, way] = departure_s + transfer_s[min(i, to)]
                input_s[to, m, way] = link_free_s[i, way]
                awake.append(to)
    return Timeline(start_s, end_s)


@dataclass(frozen=True, eq=False)
class Replay:
    """A placement's pipeline simulated, beside its estimate."""

    timeline: Timeline
    tail_s: float
    """Gradient reduction and optimizer, after the last backward pass."""
    estimate_s: float
    """The step time that the placement was chosen by."""

    @property
    def step_time_s(self) -> float:
        return self.timeline.makespan_s + self.tail_s

    @property
    def difference(self) -> float:
        """How much longer the simulated step is, as a part of the estimate."""
        return self.step_time_s / self.estimate_s - 1.0


def replay(placement: Placement) -> Replay:
    """Simulate a placement. Recomputation runs at the start of a backward pass."""
    if placement.schedule == ZB_H1:
        return _replay_zero_bubble(placement)
    forward_s, backward_s = [], []
    for stage in placement.stages:
        if stage.forward_s is None:
            raise AtollError(
                "A placement is replayed from forward and backward times; describe it with "
                "the forward times of its layers."
            )
        forward_s.append(stage.forward_s)
        backward_s.append(stage.compute_s - stage.forward_s + stage.recompute_s)
    timeline = simulate_pipeline(
        forward_s,
        backward_s,
        [stage.receive_s for stage in placement.stages[1:]],
        placement.microbatches,
    )
    parts_s = placement.time_parts_s
    tail_s = parts_s.get("gradient reduction", 0.0) + parts_s.get("optimizer", 0.0)
    return Replay(timeline, tail_s, placement.step_time_s)


def _replay_zero_bubble(placement: Placement) -> Replay:
    """Data gradients, and with them recomputation, are what a backward pass is here."""
    forward_s, data_s, weight_s = [], [], []
    for stage in placement.stages:
        if stage.forward_s is None or stage.weight_s is None:
            raise AtollError(
                "A zero-bubble placement is replayed from forward and weight times; describe it "
                "with those of its stages."
            )
        forward_s.append(stage.forward_s)
        weight_s.append(stage.weight_s)
        data_s.append(stage.compute_s + stage.recompute_s - stage.forward_s - stage.weight_s)
    events = simulate_zero_bubble(
        forward_s, data_s, weight_s, [stage.receive_s for stage in placement.stages[1:]],
        placement.microbatches,
    )  # fmt: skip
    shape = len(forward_s), placement.microbatches, 2
    start_s, end_s = np.zeros(shape), np.zeros(shape)
    for event in events:
        if event.kind != "W":
            way = int(event.kind == "B")
            start_s[event.stage, event.microbatch, way] = event.start_s
            end_s[event.stage, event.microbatch, way] = event.end_s
    timeline = Timeline(start_s, end_s)
    # Weight passes that run after the last data gradient.
    tail_s = max(event.end_s for event in events) - timeline.makespan_s
    return Replay(timeline, tail_s, placement.step_time_s)
