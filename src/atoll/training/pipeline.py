"""Pipeline schedules replayed pass by pass: who runs what, in which order, and when it ends.

Every schedule is a list of passes per stage: GPipe, 1F1B and interleaved as Megatron-LM runs them
(Narayanan et al., SC 2021); the zero-bubble schedules H1 and H2 (Qi et al., arXiv:2401.10241) split
the backward pass into activation gradients (B) and weight gradients (W).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from atoll.placement import zero_bubble


@dataclass(frozen=True, slots=True)
class StagePass:
    """Seconds of one chunk of one stage on one microbatch."""

    forward_s: float
    backward_s: float
    """Activation gradients, recomputation included; with `weight_s` the whole backward pass."""
    weight_s: float

    @property
    def total_s(self) -> float:
        return self.forward_s + self.backward_s + self.weight_s


@dataclass(frozen=True, slots=True)
class Event:
    """One pass on one stage."""

    stage: int
    chunk: int
    microbatch: int
    kind: str  # F, B (with W inside it, unless the schedule splits them) or W
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Replay:
    """A schedule in time."""

    time_s: float
    """From a stage's first pass to its last, on the stage where that takes longest.

    The first stage begins first; under all schedules but the zero-bubble ones it also ends last.
    Those are made for steps that follow one another without a barrier: a later stage that begins
    later may end later.
    """
    events: tuple[Event, ...]
    in_flight: tuple[int, ...]
    """The most microbatch-chunks that each stage held at once, until their last pass."""


def replay(
    schedule: str,
    passes: Sequence[Sequence[StagePass]],
    microbatches: int,
    send_s: float = 0.0,
) -> Replay:
    """Run `passes[stage][chunk]` for so many microbatches."""
    stages, chunks = len(passes), len(passes[0])
    orders = [_order(schedule, s, stages, chunks, microbatches) for s in range(stages)]
    return _run(orders, passes, send_s, split=schedule in zero_bubble.SPLIT)


def _order(
    schedule: str, stage: int, stages: int, chunks: int, microbatches: int
) -> list[tuple[str, int, int]]:
    """(kind, chunk, microbatch) in the order in which a stage runs them."""
    if schedule in zero_bubble.SPLIT:
        passes = zero_bubble.order(schedule, stage, stages, microbatches)
        return [(kind, 0, m) for kind, m in passes]
    total = microbatches * chunks
    if schedule == "gpipe":
        warm = total
    elif chunks > 1:
        warm = min(total, (stages - stage - 1) * 2 + (chunks - 1) * stages)
    else:
        warm = min(total, stages - stage - 1)
    forward = [_turn(i, stages, chunks, last_first=False) for i in range(total)]
    backward = [_turn(i, stages, chunks, last_first=True) for i in range(total)]
    order = [("F", chunk, m) for chunk, m in forward[:warm]]
    for ahead, behind in zip(forward[warm:], backward, strict=False):
        order += [("F", *ahead), ("B", *behind)]
    order += [("B", chunk, m) for chunk, m in backward[total - warm :]]
    return order


def _turn(index: int, stages: int, chunks: int, *, last_first: bool) -> tuple[int, int]:
    """Chunk and microbatch of a stage's n-th forward (or backward) pass: groups of as many
    microbatches as there are stages go through one chunk after the other.
    """
    if chunks == 1:
        return 0, index
    group, within = divmod(index, stages * chunks)
    chunk, member = divmod(within, stages)
    return (chunks - 1 - chunk if last_first else chunk), group * stages + member


def _run(
    orders: Sequence[Sequence[tuple[str, int, int]]],
    passes: Sequence[Sequence[StagePass]],
    send_s: float,
    *,
    split: bool,
) -> Replay:
    stages, chunks = len(passes), len(passes[0])
    last = stages * chunks - 1
    done: dict[tuple[str, int, int], float] = {}  # kind, position in the model, microbatch
    clock = [0.0] * stages
    at = [0] * stages
    held = [0] * stages
    most = [0] * stages
    begun: dict[int, float] = {}
    events: list[Event] = []
    waiting = deque(range(stages))
    idle = 0
    while waiting:
        stage = waiting.popleft()
        ran = False
        while at[stage] < len(orders[stage]):
            kind, chunk, m = orders[stage][at[stage]]
            position = chunk * stages + stage
            needs: tuple[str, int, int] | None
            if kind == "F":
                needs = None if position == 0 else ("F", position - 1, m)
            elif kind == "B":
                needs = ("F", last, m) if position == last else ("B", position + 1, m)
            else:
                needs = ("B", position, m)
            if needs is not None and needs not in done:
                break
            here = needs is None or (needs[1] % stages == stage)
            ready = 0.0 if needs is None else done[needs] + (0.0 if here else send_s)
            spent = passes[stage][chunk]
            length = _length_s(spent, kind, split=split)
            start = max(clock[stage], ready)
            begun.setdefault(stage, start)
            clock[stage] = start + length
            done[kind, position, m] = clock[stage]
            events.append(Event(stage, chunk, m, kind, start, clock[stage]))
            if kind == "F":
                held[stage] += 1
            elif kind == "W" or not split:
                held[stage] -= 1
            most[stage] = max(most[stage], held[stage])
            at[stage] += 1
            ran = True
        idle = 0 if ran else idle + 1
        if at[stage] < len(orders[stage]):
            if idle > len(waiting) + 1:
                raise RuntimeError("the schedule waits for itself")
            waiting.append(stage)
    spans = [clock[stage] - begun[stage] for stage in range(stages)]
    return Replay(max(spans), tuple(events), tuple(most))


def _length_s(spent: StagePass, kind: str, *, split: bool) -> float:
    """Seconds of one pass; where weight gradients are no pass of their own, B has them inside."""
    if kind == "F":
        return spent.forward_s
    if kind == "W":
        return spent.weight_s
    return spent.backward_s if split else spent.backward_s + spent.weight_s


def check_replay(result: Replay, stages: int) -> None:
    """No stage runs two passes at once (a test's and a doubter's tool)."""
    for stage in range(stages):
        spans = sorted((e.start_s, e.end_s) for e in result.events if e.stage == stage)
        for (_, end), (start, _) in pairwise(spans):
            if start < end - 1e-12:
                raise AssertionError(f"stage {stage} runs two passes at {start}")
