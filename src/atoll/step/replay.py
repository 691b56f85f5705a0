"""A pipeline order replayed event by event: the reference for the time of all microbatches.

A pass begins as soon as its stage is free and its input has arrived. Of a message between two
stages a part may be waited for by the device that receives it, at the beginning of the pass; the
rest runs beside the passes, on a link that carries one message at a time in each direction.

Many microbatches reach a steady state: after some rounds of as many microbatches as there are
stages (`replayed_count`), every further round takes as long as the later half of these did on
average, and no less than the busiest stage needs. Stages drawn at random are so met within 1 % of
the whole replay, interleaved chunks that differ by a factor of four within 4 %.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.step.orders import (
    BACKWARD,
    FORWARD,
    KINDS,
    LATE,
    SPLIT,
    WEIGHT,
    copies_of,
    pass_codes,
    route,
)
from atoll.step.replay_kernels import NOT_YET, replay_rows

Floats = NDArray[np.float64]
FEWEST_ROUNDS, FEWEST_MICROBATCHES = 4, 64
"""Of pipelines that are cut short, rounds (of as many microbatches as stages) that are replayed,
and microbatches: the larger of the two."""
WORTH_COMPILING = 300_000
"""Passes that this process has replayed, from which on it loads the compiled loop: that takes as
long as these."""


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
    waits_s: Sequence[tuple[float, float]] = (),
    delays_s: Sequence[tuple[float, float]] = (),
) -> Replay:
    """Run `times[stage][chunk]` for so many microbatches, and record every pass.

    `waits_s` and `delays_s` are seconds of one message into each stage, an activation or a
    gradient: those that the device waits for, and those on the link.
    """
    shape = _shape(order, len(times), len(times[0]), microbatches)
    start_s, end_s = np.empty(shape.codes.size), np.empty(shape.codes.size)
    none = [(0.0, 0.0)] * shape.stages
    passes_s = np.array(times, dtype=np.float64)[None]
    waited_s, linked_s = (
        np.array(given or none).reshape(1, shape.stages, 2) for given in (waits_s, delays_s)
    )
    (time_s,) = _run(order, shape, passes_s, waited_s, linked_s, start_s, end_s)
    stage = np.repeat(np.arange(shape.stages), shape.codes.shape[1])
    places, kinds = np.divmod(shape.codes.reshape(-1), len(KINDS))
    numbers, chunks = np.divmod(places, len(times[0]))
    columns = (stage, chunks, numbers, kinds, start_s, end_s)
    events = [
        Event(s, c, m, KINDS[kind], start, end)
        for s, c, m, kind, start, end in zip(*(x.tolist() for x in columns), strict=True)
    ]
    freed = WEIGHT if order in SPLIT else BACKWARD
    kinds = kinds.reshape(shape.codes.shape)
    forward = (kinds == 0).astype(np.int64)
    held, kept = (
        tuple((forward - (kinds == kind)).cumsum(axis=1).max(axis=1).tolist())
        for kind in (BACKWARD, freed)
    )
    events.sort(key=lambda e: (e.start_s, e.end_s, e.stage))
    return Replay(float(time_s), tuple(events), held, kept)


def pipeline_s(
    order: str, passes_s: Floats, microbatches: int, waits_s: Floats, delays_s: Floats
) -> Floats:
    """Seconds of all microbatches of pipelines that differ in their times alone.

    `passes_s` (rows, stages, chunks, 3) are those of forward, backward and weight passes;
    `waits_s` and `delays_s` (rows, stages, 2) those of one message (`replay`).
    """
    _, stages, chunks, _ = passes_s.shape
    count = replayed_count(stages, microbatches)
    given = passes_s, waits_s, delays_s
    found_s = _run(order, _shape(order, stages, chunks, count), *given)
    if count == microbatches:
        return found_s
    later = _rounds(stages) // 2 * stages
    shorter_s = _run(order, _shape(order, stages, chunks, count - later), *given)
    busy_s = load_s(order, passes_s, waits_s).max(axis=1)
    each_s = np.maximum((found_s - shorter_s) / later, busy_s)
    return np.asarray(found_s + (microbatches - count) * each_s)


def replayed_count(stages: int, microbatches: int) -> int:
    """How many microbatches are replayed one by one."""
    rounds = -(-microbatches // stages)
    return microbatches - stages * max(0, rounds - _rounds(stages))


def _rounds(stages: int) -> int:
    return max(FEWEST_ROUNDS, -(-FEWEST_MICROBATCHES // stages))


def load_s(order: str, passes_s: Floats, waits_s: Floats) -> Floats:
    """(rows, stages): seconds for which one microbatch keeps a stage busy."""
    stages, chunks = passes_s.shape[1:3]
    following, before = _neighbours(order, stages, chunks)
    stage = np.arange(stages)[:, None]
    arriving = [(x >= 0) & (x // chunks != stage) for x in (before, following)]
    messages = np.stack(arriving, axis=-1).sum(axis=1)
    total_s = passes_s.sum(axis=(2, 3)) + (messages * waits_s).sum(axis=-1)
    return np.asarray(total_s / copies_of(order))


class _Shape(NamedTuple):
    """What pipelines of one order, depth and number of microbatches have in common: the sizes and
    indices that `replay_kernels.replay_rows` takes, and the codes of the passes.
    """

    stages: int
    length: int
    indices: tuple[NDArray[np.int64], ...]
    arrivals: int
    codes: NDArray[Any]


@lru_cache(maxsize=256)
def _shape(order: str, stages: int, chunks: int, microbatches: int) -> _Shape:
    codes = pass_codes(order, stages, chunks, microbatches).astype(np.int64)
    number, kind = np.divmod(codes, len(KINDS))
    microbatch, chunk = np.divmod(number, chunks)
    stage = np.arange(stages)[:, None]
    place, places = stage * chunks + chunk, stages * chunks
    following, before = (x.reshape(-1)[place] for x in _neighbours(order, stages, chunks))
    source = np.where(kind == BACKWARD, following, before)
    target = np.where(kind == BACKWARD, before, following)
    crossing = (source >= 0) & (source // chunks != stage) & (kind != WEIGHT)
    needs = (kind == BACKWARD) | ((kind == FORWARD) & (before >= 0))
    # Where the model ends, a backward pass follows its forward pass.
    turns = (kind == FORWARD) & (target < 0)
    to = np.where(turns, place, target)
    arrives_as = np.where(turns, BACKWARD, kind)
    sends = (to >= 0) & (kind != WEIGHT)
    receiver = to // chunks
    linked = sends & (receiver != stage)
    link = np.where(receiver == stage + 1, stage, stages + stage)
    wrapped = np.abs(receiver - stage) > 1  # from the last stage to the first, and back
    link = np.where(wrapped, 2 * stages + (stage == 0), link)

    def arrival(kinds: NDArray[np.int64], at: NDArray[np.int64]) -> NDArray[np.int64]:
        return (kinds * microbatches + microbatch) * places + at

    indices = (
        place * len(KINDS) + kind,
        np.where(needs, arrival(kind, place), -1),
        np.where(crossing, 2 * stage + kind, -1),
        np.where(sends, arrival(arrives_as, to), -1),
        np.where(linked, link, -1),
        np.where(linked, 2 * receiver + kind, 0),
    )
    flat = tuple(np.ascontiguousarray(x).reshape(-1) for x in indices)
    return _Shape(stages, codes.shape[1], flat, 2 * microbatches * places, codes)


@cache
def _neighbours(
    order: str, stages: int, chunks: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(stages, chunks): to which place a forward pass sends its output, and from which it gets its
    input, as stage * chunks + chunk; -1 where there is none.
    """
    following, before = (np.full((stages, chunks), -1) for _ in range(2))
    for direction in range(copies_of(order)):
        places = route(order, stages, chunks, direction)
        for one, two in pairwise(places):
            following[one] = two[0] * chunks + two[1]
            before[two] = one[0] * chunks + one[1]
    return following, before


_replayed = [0]
"""Passes that this process has replayed."""


def _run(
    order: str,
    shape: _Shape,
    passes_s: Floats,
    waits_s: Floats,
    delays_s: Floats,
    start_s: Floats | None = None,
    end_s: Floats | None = None,
) -> Floats:
    rows, stages = len(passes_s), shape.stages
    times_s = passes_s.copy()
    if order not in SPLIT:
        times_s[..., BACKWARD] += times_s[..., WEIGHT]
    none, step_s = np.empty(0), np.empty(rows)
    written = [*(none if x is None else x for x in (start_s, end_s)), step_s]
    read = [*shape.indices, *(x.reshape(-1) for x in (times_s, waits_s, delays_s))]
    work = [np.empty(n) for n in (shape.arrivals, stages, stages, 2 * stages + 2)]
    work.append(np.empty(stages, dtype=np.int64))
    sizes = rows, stages, shape.length
    _replayed[0] += rows * shape.codes.size
    if _replayed[0] >= WORTH_COMPILING:
        _compiled()(*sizes, *read, order in LATE, *work, *written)
    else:
        lists: list[list[Any]] = [x.tolist() for x in (*read, *work, *written)]
        run: Callable[..., Any] = replay_rows
        run(*sizes, *lists[: len(read)], order in LATE, *lists[len(read) :])
        for array, values in zip(written, lists[-3:], strict=True):
            array[:] = values
    if (step_s == NOT_YET).any():
        raise RuntimeError(f"order {order} with {stages} stages waits for itself")
    return step_s


@cache
def _compiled() -> Any:
    from atoll.jit import entry

    return entry(replay_rows)
