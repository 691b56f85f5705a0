"""Pipeline schedules replayed pass by pass: who runs what, in which order, and when it ends.

Fixed orders (GPipe, 1F1B, interleaved) are lists of passes per stage, as Megatron-LM runs them
(Narayanan et al., SC 2021). Zero-bubble schedules (Qi et al., arXiv:2401.10241) split the backward
pass into activation gradients (B) and weight gradients (W) and are made here as their authors'
heuristic makes them: B before F before W, no idling while something may run, and no more
microbatches in flight than the memory limit allows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


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
    events: tuple[Event, ...]
    in_flight: tuple[int, ...]
    """The most microbatch-chunks that each stage held at once."""


def replay(
    schedule: str,
    passes: Sequence[Sequence[StagePass]],
    microbatches: int,
    send_s: float = 0.0,
    limits: Sequence[int] | None = None,
) -> Replay:
    """Run `passes[stage][chunk]` for so many microbatches.

    `limits` bounds the microbatches in flight on each stage of a zero-bubble schedule.
    """
    if schedule in ("zb-h1", "zb-h2"):
        stages = len(passes)
        if limits is None:
            factor = 1 if schedule == "zb-h1" else 2
            limits = [factor * stages] * stages
        return _zero_bubble([stage[0] for stage in passes], microbatches, send_s, limits)
    orders = [
        _order(schedule, stage, len(passes), len(passes[0]), microbatches)
        for stage in range(len(passes))
    ]
    return _fixed(orders, passes, send_s)


def _order(
    schedule: str, stage: int, stages: int, chunks: int, microbatches: int
) -> list[tuple[str, int, int]]:
    """(kind, chunk, microbatch) in the order in which a stage runs them."""
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


def _fixed(
    orders: Sequence[Sequence[tuple[str, int, int]]],
    passes: Sequence[Sequence[StagePass]],
    send_s: float,
) -> Replay:
    stages, chunks = len(passes), len(passes[0])
    last = stages * chunks - 1
    done: dict[tuple[str, int, int], float] = {}  # kind, position in the model, microbatch
    clock = [0.0] * stages
    at = [0] * stages
    held = [0] * stages
    most = [0] * stages
    events: list[Event] = []
    waiting = deque(range(stages))
    idle = 0
    while waiting:
        stage = waiting.popleft()
        ran = False
        while at[stage] < len(orders[stage]):
            kind, chunk, m = orders[stage][at[stage]]
            position = chunk * stages + stage
            if kind == "F":
                needs = None if position == 0 else ("F", position - 1, m)
            else:
                needs = ("F", last, m) if position == last else ("B", position + 1, m)
            if needs is not None and needs not in done:
                break
            here = needs is None or (needs[1] % stages == stage)
            ready = 0.0 if needs is None else done[needs] + (0.0 if here else send_s)
            spent = passes[stage][chunk]
            length = spent.forward_s if kind == "F" else spent.backward_s + spent.weight_s
            start = max(clock[stage], ready)
            clock[stage] = start + length
            done[kind, position, m] = clock[stage]
            events.append(Event(stage, chunk, m, kind, start, clock[stage]))
            held[stage] += 1 if kind == "F" else -1
            most[stage] = max(most[stage], held[stage])
            at[stage] += 1
            ran = True
        idle = 0 if ran else idle + 1
        if at[stage] < len(orders[stage]):
            if idle > len(waiting) + 1:
                raise RuntimeError("the schedule waits for itself")
            waiting.append(stage)
    return Replay(max(clock), tuple(events), tuple(most))


def _zero_bubble(
    passes: Sequence[StagePass], microbatches: int, send_s: float, limits: Sequence[int]
) -> Replay:
    stages = len(passes)
    clock = [0.0] * stages
    forward_at = [[0.0] * microbatches] + [[-1.0] * microbatches for _ in range(stages - 1)]
    backward_at = [[-1.0] * microbatches for _ in range(stages)]
    next_f, next_b, next_w = [0] * stages, [0] * stages, [0] * stages
    most = [0] * stages
    events: list[Event] = []
    remaining = 3 * microbatches * stages
    while remaining:
        choice = min(
            (option for s in range(stages) if (option := _choose(
                s, clock[s], next_f, next_b, next_w, forward_at, backward_at, limits, microbatches,
            )) is not None),
            default=None,
        )  # fmt: skip
        if choice is None:
            raise RuntimeError("the schedule waits for itself")
        start, s, kind = choice
        spent = passes[s]
        if kind == 0:  # B
            m, length, name = next_b[s], spent.backward_s, "B"
            next_b[s] += 1
        elif kind == 1:  # F
            m, length, name = next_f[s], spent.forward_s, "F"
            next_f[s] += 1
            most[s] = max(most[s], next_f[s] - next_w[s])
        else:
            m, length, name = next_w[s], spent.weight_s, "W"
            next_w[s] += 1
        end = start + length
        clock[s] = end
        if kind == 1 and s + 1 < stages:
            forward_at[s + 1][m] = end + send_s
        if kind == 1 and s + 1 == stages:
            backward_at[s][m] = end
        if kind == 0 and s > 0:
            backward_at[s - 1][m] = end + send_s
        events.append(Event(s, 0, m, name, start, end))
        remaining -= 1
    return Replay(max(clock), tuple(events), tuple(most))


def _choose(
    s: int,
    now: float,
    next_f: list[int],
    next_b: list[int],
    next_w: list[int],
    forward_at: list[list[float]],
    backward_at: list[list[float]],
    limits: Sequence[int],
    microbatches: int,
) -> tuple[float, int, int] | None:
    """(start, stage, kind) of what a stage would run next: of what can start first, B, F, then W.

    A weight gradient fills a gap only where nothing else can start at once.
    """
    options = []
    b, f, w = next_b[s], next_f[s], next_w[s]
    if b < microbatches and backward_at[s][b] >= 0:
        options.append((max(now, backward_at[s][b]), s, 0))
    if f < microbatches and forward_at[s][f] >= 0 and f - w < limits[s]:
        options.append((max(now, forward_at[s][f]), s, 1))
    if w < b:
        options.append((now, s, 2))
    if not options:
        return None
    return min(options, key=lambda option: (option[0], option[2]))


def check_replay(result: Replay, stages: int) -> None:
    """No stage runs two passes at once (a test's and a doubter's tool)."""
    for stage in range(stages):
        spans = sorted((e.start_s, e.end_s) for e in result.events if e.stage == stage)
        for (_, end), (start, _) in pairwise(spans):
            if start < end - 1e-12:
                raise AssertionError(f"stage {stage} runs two passes at {start}")
