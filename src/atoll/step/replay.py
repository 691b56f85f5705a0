"""A pipeline order replayed event by event: when every pass runs, and what each stage holds.

A pass begins as soon as its stage is free and its input is there. Transfers run beside the passes;
a link between two stages carries one message at a time in each direction.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from atoll.step.orders import LATE, SPLIT, Pass, passes, route


class PassTime(NamedTuple):
    """Seconds of one microbatch in one chunk of one stage."""

    forward_s: float
    backward_s: float
    """Data gradients, recomputation included; with `weight_s` the whole backward pass."""
    weight_s: float

    @property
    def total_s(self) -> float:
        return self.forward_s + self.backward_s + self.weight_s


@dataclass(frozen=True, slots=True)
class Event:
    """One pass on one stage; B has W inside it, unless the order splits them."""

    stage: int
    chunk: int
    microbatch: int
    kind: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Replay:
    """An order in time."""

    time_s: float
    """From the first pass to the last. Under zb-h1 and zb-h2 those of one stage, the one that takes
    longest: they are made for steps that follow one another without a barrier (their authors'
    optimizer validates afterwards), and a stage that begins later may end later.
    """
    events: tuple[Event, ...]
    held: tuple[int, ...]
    """The most chunk-microbatches that each stage held at once, from F to the end of B."""
    kept: tuple[int, ...]
    """The same with those whose weight gradients are still to come, from F to the end of W."""

    def idle_s(self, stage: int) -> float:
        """Time of the step in which a stage does nothing."""
        return self.time_s - sum(e.end_s - e.start_s for e in self.events if e.stage == stage)


def replay(
    order: str,
    times: Sequence[Sequence[PassTime]],
    microbatches: int,
    transfer_s: Sequence[float] | float = 0.0,
) -> Replay:
    """Run `times[stage][chunk]` for so many microbatches.

    `transfer_s` is one message, an activation or its gradient, between each stage and the next (and
    from the last to the first where chunks are interleaved).
    """
    stages, chunks = len(times), len(times[0])
    link_s = [transfer_s] * stages if isinstance(transfer_s, (int, float)) else [*transfer_s, 0.0]
    split = order in SPLIT
    orders = [passes(order, s, stages, chunks, microbatches) for s in range(stages)]
    before, after = _neighbours(order, stages, chunks, microbatches)
    arrived: dict[tuple[int, Pass], float] = {}
    clock = [0.0] * stages
    free: dict[tuple[int, int], float] = {}
    at, held, kept = [0] * stages, [0] * stages, [0] * stages
    most_held, most_kept = [0] * stages, [0] * stages
    events: list[Event] = []
    awake = deque(range(stages))
    while awake:
        stage = awake.popleft()
        while at[stage] < len(orders[stage]):
            item = orders[stage][at[stage]]
            kind, chunk, m = item
            waits = kind == "B" or (kind == "F" and (stage, chunk, m % 2) in before)
            if waits and (stage, item) not in arrived:
                break
            at[stage] += 1
            spent = times[stage][chunk]
            length = {"F": spent.forward_s, "W": spent.weight_s, "B": spent.backward_s}[kind]
            if kind == "B" and not split:
                length += spent.weight_s
            start = max(clock[stage], arrived.pop((stage, item), 0.0))
            clock[stage] = end = start + length
            events.append(Event(stage, chunk, m, kind, start, end))
            held[stage] += {"F": 1, "B": -1, "W": 0}[kind]
            kept[stage] += {"F": 1, "B": 0 if split else -1, "W": -1}[kind]
            most_held[stage] = max(most_held[stage], held[stage])
            most_kept[stage] = max(most_kept[stage], kept[stage])
            if kind == "W":
                continue
            to = (after if kind == "F" else before).get((stage, chunk, m % 2))
            if to is None:
                if kind == "F":
                    arrived[stage, Pass("B", chunk, m)] = end
                continue
            if to[0] != stage:
                link = stage, to[0]
                slow = link_s[stages - 1 if abs(stage - to[0]) > 1 else min(link)]
                free[link] = end = max(end, free.get(link, 0.0)) + slow
                awake.append(to[0])
            arrived[to[0], Pass(kind, to[1], m)] = end
    if any(at[s] < len(orders[s]) for s in range(stages)):
        raise RuntimeError(f"order {order} with {stages} stages waits for itself")
    return Replay(_step_s(order, events, stages), tuple(events), tuple(most_held), tuple(most_kept))


def _step_s(order: str, events: Sequence[Event], stages: int) -> float:
    if order not in LATE:
        return max(e.end_s for e in events)
    own = [[e for e in events if e.stage == stage] for stage in range(stages)]
    return max(max(e.end_s for e in row) - min(e.start_s for e in row) for row in own)


Place = tuple[int, int, int]  # stage, chunk, microbatch modulo two


def _neighbours(
    order: str, stages: int, chunks: int, microbatches: int
) -> tuple[dict[Place, tuple[int, int]], dict[Place, tuple[int, int]]]:
    """Where each (stage, chunk) gets its input from, and where its output goes."""
    before: dict[Place, tuple[int, int]] = {}
    after: dict[Place, tuple[int, int]] = {}
    for parity in range(min(2, microbatches)):
        way = route(order, stages, chunks, parity)
        for one, two in pairwise(way):
            after[*one, parity] = two
            before[*two, parity] = one
    return before, after
