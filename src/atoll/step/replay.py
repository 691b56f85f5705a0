"""Replay of a pipeline order event by event: the reference for the time of all microbatches.

A pass begins as soon as its stage is free and its input has arrived. The receiving device waits for
part of a message at the beginning of the pass; the remainder overlaps with passes, on a link that
carries one message at a time per direction.

Many microbatches reach a steady state: after several rounds of as many microbatches as stages
(`replayed_count`), every further round takes the mean time of the later half of these, and at least
the time of the busiest stage. For random stages this is within 1 % of the full replay, for
interleaved chunks that differ by a factor of four within 4 %.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import Floats, Ints
from atoll.step.orders import (
    BACKWARD,
    FORWARD,
    KINDS,
    SPLIT,
    WEIGHT,
    WEIGHT_DELAY,
    model_copies,
    pass_codes,
    route,
)
from atoll.step.replay_kernels import execution_order, replay_rows

FEWEST_ROUNDS, FEWEST_MICROBATCHES = 4, 64
"""Rounds (of as many microbatches as stages) and microbatches that are replayed at least: the
larger of the two counts."""
WORTH_COMPILING = 2_500_000
"""Replayed passes after which this process loads the compiler for its loops: loading takes as
long."""
WORTH_LOADING = 100_000
"""Replayed passes after which a process that has loaded the compiler loads the compiled loops."""
MOST_STEPS = 2_000
"""Replayed pipelines whose times are remembered, of some kB each."""


class PassTime(NamedTuple):
    """Seconds of one microbatch in one chunk of one stage."""

    forward_s: float
    backward_s: float
    """Data gradients and recomputation, without `weight_s`."""
    weight_s: float

    @property
    def total_s(self) -> float:
        return self.forward_s + self.backward_s + self.weight_s


@dataclass(frozen=True, slots=True)
class PassEvent:
    """One pass on one stage; B includes W unless the order splits them."""

    stage: int
    chunk: int
    microbatch: int
    kind: str
    start_s: float
    end_s: float


@dataclass(frozen=True)
class Replay:
    """Times of all passes of an order."""

    time_s: float
    """From the first pass to the last. For zb-h1 and zb-h2 that of the longest stage: steps follow
    one another without a barrier (their optimizer validates afterwards), so that a stage that
    begins later may end later.
    """
    events: tuple[PassEvent, ...]
    peak_before_backward: tuple[int, ...]
    """Per stage, the most chunk-microbatches between F and the end of B."""
    peak_before_weight: tuple[int, ...]
    """Per stage, the most chunk-microbatches between F and the end of W."""

    def idle_s(self, stage: int) -> float:
        """Return the idle time of a stage in the step."""
        return self.time_s - sum(e.end_s - e.start_s for e in self.events if e.stage == stage)


def replay(
    order: str,
    times: Sequence[Sequence[PassTime]],
    microbatches: int,
    waits_s: Sequence[tuple[float, float]] = (),
    delays_s: Sequence[tuple[float, float]] = (),
) -> Replay:
    """Run `times[stage][chunk]` for all microbatches, and record every pass.

    `waits_s` and `delays_s` are seconds per (activation, gradient) message into each stage: those
    that the device waits for, and those on the link.
    """
    shape = _shape(order, len(times), len(times[0]), microbatches)
    start_s, end_s = np.empty(shape.codes.size), np.empty(shape.codes.size)
    none = [(0.0, 0.0)] * shape.stages
    passes_s = np.array(times, dtype=np.float64)[None]
    waited_s, linked_s = np.array([waits_s or none]), np.array([delays_s or none])
    (time_s,) = _run(order, shape, passes_s, waited_s, linked_s, start_s, end_s)
    places, kinds = np.divmod(shape.codes, len(KINDS))
    numbers, chunks = np.divmod(places, len(times[0]))
    of_pass = (column.reshape(-1)[shape.ordered] for column in (chunks, numbers, kinds))
    columns = (shape.indices[0], *of_pass, start_s, end_s)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    events = [PassEvent(s, c, m, KINDS[k], start, end) for s, c, m, k, start, end in rows]
    freed = BACKWARD, WEIGHT if order in SPLIT else BACKWARD
    forward = (kinds == 0).astype(np.int64)
    waiting = ((forward - (kinds == kind)).cumsum(axis=1).max(axis=1) for kind in freed)
    before_backward, before_weight = (tuple(counts.tolist()) for counts in waiting)
    events.sort(key=lambda e: (e.start_s, e.end_s, e.stage))
    return Replay(float(time_s), tuple(events), before_backward, before_weight)


def pipeline_s(
    order: str, passes_s: Floats, microbatches: int, waits_s: Floats, delays_s: Floats
) -> Floats:
    """Return the seconds of all microbatches of pipelines that differ only in their times.

    `passes_s` (rows, stages, chunks, 3): forward, backward and weight passes; `waits_s` and
    `delays_s` (rows, stages, 2): one message (`replay`).
    """
    # Many layouts have the same passes: they differ in what follows them.
    times_s = [passes_s, waits_s, delays_s]
    rows = np.concatenate([part.reshape(len(part), -1) for part in times_s], axis=1)
    keys = [(order, passes_s.shape[1:], microbatches, row.tobytes()) for row in rows]
    steps_s = {key: step_s for key in keys if (step_s := _steps_s.get(key)) is not None}
    new = {key: row for row, key in enumerate(keys) if key not in steps_s}
    if new:
        chosen = [part[list(new.values())] for part in times_s]
        steps_s.update(zip(new, _new_pipelines_s(order, microbatches, *chosen), strict=True))
        if len(_steps_s) > MOST_STEPS:
            _steps_s.clear()
        _steps_s.update(steps_s)
    return np.array([steps_s[key] for key in keys])


_steps_s: dict[tuple[Any, ...], float] = {}
"""Seconds of replayed pipelines."""


def _new_pipelines_s(
    order: str, microbatches: int, passes_s: Floats, waits_s: Floats, delays_s: Floats
) -> Floats:
    _, stages, chunks, _ = passes_s.shape
    count = replayed_count(stages, microbatches)
    times_s = passes_s, waits_s, delays_s
    replayed_s = _run(order, _shape(order, stages, chunks, count), *times_s)
    if count == microbatches:
        return replayed_s
    later = _rounds(stages) // 2 * stages
    shorter_s = _run(order, _shape(order, stages, chunks, count - later), *times_s)
    busy_s = load_s(order, passes_s, waits_s).max(axis=1)
    microbatch_s = np.maximum((replayed_s - shorter_s) / later, busy_s)
    return np.asarray(replayed_s + (microbatches - count) * microbatch_s)


def replayed_count(stages: int, microbatches: int) -> int:
    """Return how many microbatches are replayed event by event."""
    rounds = -(-microbatches // stages)
    return microbatches - stages * max(0, rounds - _rounds(stages))


def _rounds(stages: int) -> int:
    return max(FEWEST_ROUNDS, -(-FEWEST_MICROBATCHES // stages))


def load_s(order: str, passes_s: Floats, waits_s: Floats) -> Floats:
    """Return (rows, stages): busy seconds of a stage per microbatch."""
    stages, chunks = passes_s.shape[1:3]
    following, before = _neighbours(order, stages, chunks)
    senders = np.stack([before, following], axis=-1)
    arriving = (senders >= 0) & (senders // chunks != np.arange(stages)[:, None, None])
    messages = arriving.sum(axis=1)
    total_s = passes_s.sum(axis=(2, 3)) + (messages * waits_s).sum(axis=-1)
    return np.asarray(total_s / model_copies(order))


@dataclass(frozen=True, eq=False)
class _ReplayIndices:
    """Indices of `replay_rows` and pass codes of pipelines of one order and size."""

    stages: int
    ordered: Ints
    indices: tuple[Ints, ...]
    arrivals: int
    codes: NDArray[Any]

    @cached_property
    def lists(self) -> list[list[int]]:
        """The indices for loops that are not compiled."""
        return [index.tolist() for index in self.indices]


@lru_cache(maxsize=256)
def _shape(order: str, stages: int, chunks: int, microbatches: int) -> _ReplayIndices:
    codes = pass_codes(order, stages, chunks, microbatches).astype(np.int64)
    number, kind = np.divmod(codes, len(KINDS))
    microbatch, chunk = np.divmod(number, chunks)
    stage = np.arange(stages)[:, None]
    place, places = stage * chunks + chunk, stages * chunks
    following, before = (to.reshape(-1)[place] for to in _neighbours(order, stages, chunks))
    source = np.where(kind == BACKWARD, following, before)
    target = np.where(kind == BACKWARD, before, following)
    crossing = (source >= 0) & (source // chunks != stage) & (kind != WEIGHT)
    needs = (kind == BACKWARD) | ((kind == FORWARD) & (before >= 0))
    # At the model's end, the backward pass follows its forward pass.
    ends_forward = (kind == FORWARD) & (target < 0)
    to = np.where(ends_forward, place, target)
    arrives_as = np.where(ends_forward, BACKWARD, kind)
    sends = (to >= 0) & (kind != WEIGHT)
    receiver = to // chunks
    linked = sends & (receiver != stage)
    link = np.where(receiver == stage + 1, stage, stages + stage)
    wrapped = np.abs(receiver - stage) > 1  # from the last stage to the first, and back
    link = np.where(wrapped, 2 * stages + (stage == 0), link)

    def arrival(kinds: Ints, at: Ints) -> Ints:
        return (kinds * microbatches + microbatch) * places + at

    arrivals = 2 * microbatches * places
    needed = np.where(needs, arrival(kind, place), arrivals).reshape(-1)
    sent = np.where(sends, arrival(arrives_as, to), arrivals + 1).reshape(-1)
    arrived = np.zeros(arrivals + 2, dtype=np.int64)
    arrived[arrivals] = 1
    ends = np.arange(1, stages + 1) * codes.shape[1]
    loop: Callable[..., int] = execution_order
    arrays: list[Any] = [needed, sent, arrived, ends - codes.shape[1], ends, needed * 0]
    if _compiles(codes.size):
        loop = _compiled(execution_order)
    else:
        arrays = [array.tolist() for array in arrays]
    if loop(*arrays) < codes.size:
        raise RuntimeError(f"order {order} with {stages} stages waits for itself")
    indices = (
        np.broadcast_to(stage, codes.shape),
        place * len(KINDS) + kind,
        needed,
        np.where(crossing, 2 * stage + kind, 2 * stages),
        sent,
        np.where(linked, link, -1),
        np.where(linked, 2 * receiver + kind, 0),
    )
    ordered = np.asarray(arrays[-1])
    flat = tuple(index.reshape(-1)[ordered] for index in indices)
    return _ReplayIndices(stages, ordered, flat, arrivals, codes)


@cache
def _neighbours(order: str, stages: int, chunks: int) -> tuple[Ints, Ints]:
    """Return two arrays (stages, chunks): the receiver of a forward pass's output and the sender of
    its input, as stage * chunks + chunk; -1 for none.
    """
    following, before = (np.full((stages, chunks), -1) for _ in range(2))
    for direction in range(model_copies(order)):
        for sender, receiver in pairwise(route(order, stages, chunks, direction)):
            following[sender] = receiver[0] * chunks + receiver[1]
            before[receiver] = sender[0] * chunks + sender[1]
    return following, before


_NONE = np.empty(0)
_replayed = [0]
"""Passes replayed by this process."""


def _run(
    order: str,
    shape: _ReplayIndices,
    passes_s: Floats,
    waits_s: Floats,
    delays_s: Floats,
    start_s: Floats = _NONE,
    end_s: Floats = _NONE,
) -> Floats:
    rows, stages = len(passes_s), shape.stages
    times_s = passes_s.copy()
    if order not in SPLIT:
        times_s[..., BACKWARD] += times_s[..., WEIGHT]
    step_s = np.empty(rows)
    waits_s = np.append(waits_s.reshape(rows, -1), np.zeros((rows, 1)), axis=1)
    times = times_s.reshape(rows, -1), waits_s, delays_s.reshape(rows, -1)
    sizes = shape.arrivals + 2, stages, stages, 2 * stages + 2
    written = [start_s, end_s, step_s]
    spans, work = order in WEIGHT_DELAY, [np.zeros(size) for size in sizes]
    if _compiles(rows * shape.codes.size):
        _compiled(replay_rows)(*shape.indices, *times, spans, *work, *written)
        return step_s
    lists = [[array.tolist() for array in arrays] for arrays in (times, work, written)]
    run: Callable[..., int] = replay_rows
    run(*shape.lists, *lists[0], spans, *lists[1], *lists[2])
    for array, values in zip(written, lists[2], strict=True):
        array[:] = values
    return step_s


def _compiles(passes: int) -> bool:
    """Return whether a loop over so many further passes is worth compiling."""
    _replayed[0] += passes
    compiler_loaded = "atoll.base.jit" in sys.modules
    return _replayed[0] >= (WORTH_LOADING if compiler_loaded else WORTH_COMPILING)


@cache
def _compiled(loop: Callable[..., int]) -> Any:
    from atoll.base.jit import entry

    return entry(loop)
