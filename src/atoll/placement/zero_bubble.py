"""The zero-bubble schedules: their orders and memory; of ZB-H1 the step time and a replay.

Source: Qi et al., "Zero Bubble Pipeline Parallelism", arXiv:2401.10241. The backward pass is split
into data gradients (B), which the stage before waits for, and weight gradients (W), which nobody
waits for. ZB-H1 warms up as 1F1B does and runs a stage's weight passes later, by as many
microbatches as there are stages before it:

    bubble of 1F1B    (p - 1) (F + B + W)
    bubble of ZB-H1   (p - 1) (F + B - W)
    bubble of ZB-H2   (p - 1) (F + B - 2 W)

ZB-H2 runs w - 1 more forward passes ahead on the w-th stage from the end, and weight passes twice
as late. A stage with i stages before it holds the activations of min(w, M) microbatches as in 1F1B
(ZB-H2: min(2 w - 1, M)), and for i more (2 i), if there are as many, what their weight passes need.

For unequal stages the slowest one (d) is busy all the time, and every other adds its forward and
data passes, less a weight pass that the slowest runs meanwhile:

    step = M load_d + sum over i != d of max(0, load_i - W_i - min(W_i, W_d))

With fewer microbatches than stages only M - 1 weight passes can be delayed; the shortest count.
The replay below is the oracle: equal for equal stages, and the formula is the slower one otherwise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ONE_F_ONE_B = "1f1b"
ZB_H1 = "zb-h1"
ZB_H2 = "zb-h2"
SCHEDULES = (ONE_F_ONE_B, ZB_H1)
SPLIT = (ZB_H1, ZB_H2)
"""Schedules whose weight gradients are passes of their own."""
LATE = {ONE_F_ONE_B: 0, ZB_H1: 1, ZB_H2: 2}
"""Weight passes that a stage puts off, for every stage before it."""


@dataclass(frozen=True, slots=True)
class PassEvent:
    """One pass of one microbatch through one stage: F, B or W."""

    stage: int
    microbatch: int
    kind: str
    start_s: float
    end_s: float


def step_s(
    schedule: str, load_s: Sequence[float], weight_s: Sequence[float], microbatches: int
) -> float:
    """Seconds of a step by formula."""
    slowest = int(np.argmax(load_s))
    rest = [i for i in range(len(load_s)) if i != slowest]
    total = microbatches * load_s[slowest] + sum(load_s[i] for i in rest)
    if schedule == ONE_F_ONE_B:
        return float(total)
    saved = sorted(
        min(load_s[i], weight_s[i] + min(weight_s[i], weight_s[slowest])) for i in rest
    )
    delayed = max(0, microbatches - 1)
    # What cannot be delayed any more still leaves the way of the gradients: it runs at the end.
    late = sorted(weight_s[i] for i in rest)[: max(0, len(rest) - delayed)]
    return float(total - sum(saved[:delayed]) - sum(late))


def held(schedule: str, stage: int, stages: int, microbatches: int) -> int:
    """Microbatches whose activations a stage holds at most: forward passes ahead of backward."""
    depth = max(1, LATE[schedule])
    return min(depth * (stages - stage - 1) + 1, microbatches)


def delayed(schedule: str, stage: int, stages: int, microbatches: int) -> int:
    """Weight passes that a stage has put off while it holds the most activations."""
    rest = microbatches - held(schedule, stage, stages, microbatches)
    return min(LATE[schedule] * stage, rest)


def most_delayed(schedule: str, stage: int, stages: int, microbatches: int) -> int:
    """Weight passes that a stage has put off at most: after a backward pass, when as many fewer
    microbatches are held, so that both together stay the same.
    """
    if not LATE[schedule]:
        return 0
    both = held(schedule, stage, stages, microbatches)
    both += delayed(schedule, stage, stages, microbatches)
    return min(LATE[schedule] * stage + 1, both)


def order(schedule: str, stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """(kind, microbatch) in the order in which a stage runs them."""
    ahead = held(schedule, stage, stages, microbatches)
    lag = min(LATE[schedule] * stage, microbatches)
    passes = [("F", m) for m in range(ahead)]
    for m in range(microbatches):
        passes.append(("B", m))
        if m >= lag:
            passes.append(("W", m - lag))
        if m + ahead < microbatches:
            passes.append(("F", m + ahead))
    return passes + [("W", m) for m in range(microbatches - lag, microbatches)]


def simulate_zero_bubble(
    forward_s: Sequence[float],
    data_s: Sequence[float],
    weight_s: Sequence[float],
    transfer_s: Sequence[float],
    microbatches: int,
) -> tuple[PassEvent, ...]:
    """Run ZB-H1 event by event; transfers run beside, one message at a time in each direction.

    `transfer_s` are those of one message between each stage and the next.
    """
    stages = len(forward_s)
    spent = {"F": forward_s, "B": data_s, "W": weight_s}
    orders = [order(ZB_H1, i, stages, microbatches) for i in range(stages)]
    arrived: dict[tuple[int, str, int], float] = {(0, "F", m): 0.0 for m in range(microbatches)}
    clock = [0.0] * stages
    link_free = {(i, kind): 0.0 for i in range(stages) for kind in "FB"}
    done = [0] * stages
    events: list[PassEvent] = []
    awake = deque(range(stages))
    while awake:
        i = awake.popleft()
        while done[i] < len(orders[i]):
            kind, m = orders[i][done[i]]
            ready = 0.0 if kind == "W" else arrived.get((i, kind, m))
            if ready is None:
                break
            done[i] += 1
            start = max(clock[i], ready)
            clock[i] = start + spent[kind][i]
            events.append(PassEvent(i, m, kind, start, clock[i]))
            if kind == "W":
                continue
            to = i + 1 if kind == "F" else i - 1
            if to == stages:
                arrived[i, "B", m] = clock[i]
            elif to >= 0:
                link_free[i, kind] = max(clock[i], link_free[i, kind]) + transfer_s[min(i, to)]
                arrived[to, kind, m] = link_free[i, kind]
                awake.append(to)
    return tuple(events)
