"""Lower bounds on the replay of many pipelines at once: paths through their passes.

A replay takes as long as the longest path through its passes, where each pass depends on the
previous one of its stage and on its input. `planner/bounds/family_bounds.py` lists the paths used.
"""

from __future__ import annotations

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.step.orders import ORDERS, TWO_CHUNKS, WEIGHT_DELAY
from atoll.training.batch.cost_arrays import StagePasses, StateCosts, Triple
from atoll.training.batch.sums import Sums
from atoll.training.operators.tables import COPIES, MICROBATCHES, PIPE, STAGES

_LATE = np.array([WEIGHT_DELAY.get(order, 0) for order in ORDERS])
_FIRST = ORDERS.index("1f1b")
_ZB_V = ORDERS.index("zb-v")  # its model ends on the first stage
_TWO_CHUNKS = [ORDERS.index(order) for order in TWO_CHUNKS]


def step_bound_s(
    sums: Sums,
    states: StateCosts,
    passes: StagePasses,
    *,
    least: bool = False,
    pipelines: tuple[Sums, Ints] | None = None,
) -> Floats:
    """Return a lower bound on the step; with `least` for all choices whose layers take at least
    as long, even if one waits less for its host in forward passes. The passes are those of
    `pipelines` (`Sums.distinct_pipelines`), or of all rows.
    """
    pipes, number = pipelines or (sums, np.arange(len(sums.rows)))
    stages, chunks = passes.stages, passes.chunks
    shown_s = (1.0 - sums.stack.overlap.pipeline) * pipes.arriving_s.sum(axis=1)
    busy_s = pipes.m * pipes.max_over_stages(sum(stages.counted, shown_s[:, None]))
    counted = (stages.device, chunks.device) if least else (stages.counted, chunks.counted)
    passes_s = np.maximum(busy_s, _path_s(pipes, *counted))
    host_s = passes_s
    if pipes.hosts_apart.any():
        host_s = pipes.m * pipes.max_over_stages(sum(stages.host, np.zeros(())))
        if not least:
            host_s = np.maximum(host_s, _path_s(pipes, stages.host, chunks.host))
    if not least:
        after_s, device_s, hosts_s = (part[number] for part in pipes.behind_s(passes))
        behind_s = after_s, device_s, hosts_s
        reduced_s = sums.with_gradients_s(states, behind_s, passes_s[number], host_s[number])
        return sums.with_update_s(states, reduced_s)
    passes_s = np.where(pipes.hosts_apart, np.maximum(passes_s, host_s), passes_s)[number]
    hidden = sums.hidden
    last_s, before_s = states.last_s[:, None], states.before_s[:, None]
    passes_s = passes_s + (1 - hidden) * (last_s + (sums.m - 1) * before_s)
    return sums.with_update_s(states, passes_s)


def _path_s(sums: Sums, stages: Triple, chunks: Triple) -> Floats:
    """Return (rows, choices): lower bounds on the replay, exact for rows with one stage."""
    shown_s = (1.0 - sums.run.stack.overlap.pipeline) * sums.arriving_s
    forward_s, backward_s, w = stages
    f, b = forward_s + shown_s[:, :1], backward_s + shown_s[:, 1:]
    all_s = f + b + w
    rows, t = sums.rows, sums.tables
    order, stage_rows = sums.order, rows[sums.row]
    m, p = stage_rows[:, MICROBATCHES, None], stage_rows[:, STAGES, None]
    place = sums.stage_position[:, None]
    bound_s = m * all_s
    single = (t.chunks[rows[:, PIPE]] == 1)[sums.row]
    late = _LATE[order][sums.row][:, None]
    plain = (single & (late[:, 0] == 0))[:, None]
    first = (order == _FIRST)[sums.row][:, None]
    # All passes of a stage, and the passes before its first and after its last.
    before_s = _before(sums, np.where(plain, all_s, np.where(late > 0, f + b, 0.0)))
    bound_s += np.where(plain, before_s, 0.0)
    warmup = np.minimum(p - place, m) - 1
    around_s = sums.total(all_s)[sums.row] + (m - 1) * all_s - warmup * f
    bound_s = np.maximum(bound_s, np.where(first & (p > 1), around_s, 0.0))
    if (late > 0).any():
        but_late_s = before_s + m * (f + b) + np.maximum(0, m - 1 - late * place) * w
        behind_s = sums.total(f + b)[sums.row] - before_s - (f + b)
        warmup = np.minimum(late * (p - place - 1) + 1, m) - 1
        around_s = m * all_s + behind_s - warmup * f
        bound_s = np.maximum(bound_s, np.where(late > 0, np.maximum(but_late_s, around_s), 0))
    if len(sums.chunk_stage):
        bound_s = np.maximum(bound_s, _chunked_s(sums, chunks, m * all_s, f + b))
    return sums.max_over_stages(bound_s)


def _chunked_s(sums: Sums, chunks: Triple, busy_s: Floats, both_s: Floats) -> Floats:
    """Return (stages, choices): paths through pipelines with several chunks per stage. Interleaved
    ones pass the first chunks of the stages before; orders of two chunks use the bubble formula
    with the shortest chunks.
    """
    t, rows = sums.tables, sums.rows
    per_stage = np.bincount(sums.chunk_stage, minlength=len(sums.row))
    chunked = np.flatnonzero(per_stage)
    starts = np.cumsum(per_stage[chunked]) - per_stage[chunked]
    heads_s = np.zeros_like(busy_s)
    heads_s[chunked] = sum(chunks, np.zeros(()))[starts]
    two = np.isin(sums.order, _TWO_CHUNKS) & (rows[:, STAGES] > 1)
    bound_s = busy_s + np.where(two[sums.row, None], 0.0, _before(sums, heads_s))
    # The first and the last microbatch in full, those between in the model's last chunk.
    ends = np.flatnonzero(per_stage[sums.starts] > 0)
    at = sums.starts[ends]
    ends_first = sums.order[ends] == _ZB_V
    last_chunk = np.where(ends_first, 1, per_stage[at] * rows[ends, STAGES] - 1)
    final = sums.chunk_starts[ends] + last_chunk
    final -= rows[ends, COPIES] - 1  # the last chunk of the first direction
    last_s, apart = chunks[0][final] + chunks[1][final], two[ends, None]
    last_s = last_s + np.where(apart, 0.0, chunks[2][final])
    microbatch_s = np.where(
        apart, sums.total(both_s)[ends], sums.total(busy_s)[ends] / sums.m[ends]
    )
    through_s = microbatch_s + (sums.m[ends] / rows[ends, COPIES, None] - 1) * last_s
    bound_s[at] = np.maximum(bound_s[at], through_s)
    pairs = np.flatnonzero(two)
    if pairs.size:
        least = np.zeros((3, len(sums.row), busy_s.shape[1]))
        for part, values in enumerate(chunks):
            least[part, chunked] = np.minimum.reduceat(values, starts, axis=0)
        rows_s = np.stack(
            [np.minimum.reduceat(times_s, sums.starts, axis=0)[pairs] for times_s in least]
        )
        rows_s *= (2 / rows[pairs, COPIES])[:, None]
        terms = t.bubbles[rows[pairs, PIPE]].transpose(1, 2, 0)[..., None]
        steps_s = ((sums.m[pairs] + terms) * rows_s).sum(axis=1).max(axis=0)
        at = sums.starts[pairs]
        bound_s[at] = np.maximum(bound_s[at], steps_s)
    return bound_s


def _before(sums: Sums, values: Floats) -> Floats:
    """Return per stage the sum over the stages before it."""
    summed = np.cumsum(values, axis=0) - values
    return np.asarray(summed - summed[sums.starts][sums.row])
