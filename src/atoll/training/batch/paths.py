"""Lower bounds on the replay of many pipelines at once: paths through their passes.

A replay takes as long as the longest path through its passes, each of which waits for the one
before on its stage and for its input. So every path is a lower bound; `planner.bounds.floor` lists
those that are used.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from atoll.step.orders import LATE, ORDERS, TWO_CHUNKS
from atoll.training.operators.tables import (
    COPIES,
    MICROBATCHES,
    PIPE,
    STAGES,
    Floats,
    Ints,
    Tables,
)
from atoll.training.run import Run

Triple = tuple[Floats, Floats, Floats]
"""(places, choices): seconds of forward passes, backward passes and weight passes."""
_LATE = np.array([LATE.get(order, 0) for order in ORDERS])
_FIRST = ORDERS.index("1f1b")
_TURNED = ORDERS.index("zb-v")  # whose model ends on the first stage
_TWO_CHUNKS = [ORDERS.index(order) for order in TWO_CHUNKS]


class Pipelines(Protocol):
    """What `sums.Sums` has of its rows."""

    @property
    def t(self) -> Tables: ...
    @property
    def run(self) -> Run: ...
    @property
    def rows(self) -> Ints: ...
    @property
    def row(self) -> Ints: ...
    @property
    def place(self) -> Ints: ...
    @property
    def starts(self) -> Ints: ...
    @property
    def order(self) -> Ints: ...
    @property
    def m(self) -> Floats: ...
    @property
    def arriving_s(self) -> Floats: ...
    @property
    def chunk_stage(self) -> Ints: ...
    @property
    def chunk_starts(self) -> Ints: ...
    def most(self, values: Floats) -> Floats: ...
    def total(self, values: Floats) -> Floats: ...


def path_s(sums: Pipelines, stages: Triple, chunks: Triple) -> Floats:
    """(rows, choices): no more than a replay takes, which is the longest path through its
    passes of rows with one stage exactly that.
    """
    shown_s = (1.0 - sums.run.stack.overlap.pipeline) * sums.arriving_s
    f, b, w = stages[0] + shown_s[:, :1], stages[1] + shown_s[:, 1:], stages[2]
    all_s = f + b + w
    rows, t = sums.rows, sums.t
    order, at = sums.order, rows[sums.row]
    m, p, place = at[:, MICROBATCHES, None], at[:, STAGES, None], sums.place[:, None]
    found_s = m * all_s
    single = (t.chunks[rows[:, PIPE]] == 1)[sums.row]
    late = _LATE[order][sums.row][:, None]
    plain = (single & (late[:, 0] == 0))[:, None]
    first = (order == _FIRST)[sums.row][:, None]
    # All passes of a stage, what leads to its first and what follows its last.
    before_s = _before(sums, np.where(plain, all_s, np.where(late > 0, f + b, 0.0)))
    found_s += np.where(plain, before_s, 0.0)
    ahead = np.minimum(p - place, m) - 1
    around_s = sums.total(all_s)[sums.row] + (m - 1) * all_s - ahead * f
    found_s = np.maximum(found_s, np.where(first & (p > 1), around_s, 0.0))
    if (late > 0).any():
        but_late_s = before_s + m * (f + b) + np.maximum(0, m - 1 - late * place) * w
        behind_s = sums.total(f + b)[sums.row] - before_s - (f + b)
        ahead = np.minimum(late * (p - place - 1) + 1, m) - 1
        around_s = m * all_s + behind_s - ahead * f
        found_s = np.maximum(found_s, np.where(late > 0, np.maximum(but_late_s, around_s), 0))
    if len(sums.chunk_stage):
        found_s = np.maximum(found_s, _chunked_s(sums, chunks, m * all_s, f + b))
    return sums.most(found_s)


def _chunked_s(sums: Pipelines, chunks: Triple, busy_s: Floats, both_s: Floats) -> Floats:
    """(stages, choices): paths through pipelines of several chunks per stage: interleaved ones
    as others, of the stages before through their first chunks; in two chunks as if all were as
    the least of them.
    """
    t, rows = sums.t, sums.rows
    per_stage = np.bincount(sums.chunk_stage, minlength=len(sums.row))
    held = np.flatnonzero(per_stage)
    starts = np.cumsum(per_stage[held]) - per_stage[held]
    heads_s = np.zeros_like(busy_s)
    heads_s[held] = sum(chunks, np.zeros(()))[starts]
    two = np.isin(sums.order, _TWO_CHUNKS) & (rows[:, STAGES] > 1)
    found_s = busy_s + np.where(two[sums.row, None], 0.0, _before(sums, heads_s))
    # All of the first and of the last microbatch, and those between in the model's last chunk.
    ends = np.flatnonzero(per_stage[sums.starts] > 0)
    at = sums.starts[ends]
    turned = sums.order[ends] == _TURNED
    final = sums.chunk_starts[ends] + np.where(turned, 1, per_stage[at] * rows[ends, STAGES] - 1)
    final -= rows[ends, COPIES] - 1  # the one of the first direction
    last_s, apart = chunks[0][final] + chunks[1][final], two[ends, None]
    last_s = last_s + np.where(apart, 0.0, chunks[2][final])
    one_s = np.where(apart, sums.total(both_s)[ends], sums.total(busy_s)[ends] / sums.m[ends])
    through_s = one_s + (sums.m[ends] / rows[ends, COPIES, None] - 1) * last_s
    found_s[at] = np.maximum(found_s[at], through_s)
    pairs = np.flatnonzero(two)
    if pairs.size:
        least = np.zeros((3, len(sums.row), busy_s.shape[1]))
        for part, values in enumerate(chunks):
            least[part, held] = np.minimum.reduceat(values, starts, axis=0)
        rows_s = np.stack([np.minimum.reduceat(x, sums.starts, axis=0)[pairs] for x in least])
        rows_s *= (2 / rows[pairs, COPIES])[:, None]
        ways = t.bubbles[rows[pairs, PIPE]].transpose(1, 2, 0)[..., None]
        steps_s = ((sums.m[pairs] + ways) * rows_s).sum(axis=1).max(axis=0)
        at = sums.starts[pairs]
        found_s[at] = np.maximum(found_s[at], steps_s)
    return found_s


def _before(sums: Pipelines, values: Floats) -> Floats:
    """Of every stage the sum of those before it."""
    summed = np.cumsum(values, axis=0) - values
    return np.asarray(summed - summed[sums.starts][sums.row])
