"""Lower bounds on the step times of layouts, from paths through their pipeline passes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atoll.placement.chain import StepFloors
from atoll.step.orders import ORDERS, WEIGHT_DELAY
from atoll.training.batch.cost_arrays import StateCosts
from atoll.training.batch.sums import Sums
from atoll.training.operators.layers import LayerCost
from atoll.training.operators.tables import (
    COPIES,
    GROUP,
    MICROBATCHES,
    PIPE,
    SIDE,
    SPLIT,
    STAGES,
    ZERO,
    KindColumn,
    PassColumn,
)

TURNED = ORDERS.index("zb-v")  # its last chunk is on the first stage
LATE_BY_ORDER = np.array([WEIGHT_DELAY.get(order, 0) for order in ORDERS])
WAYS = StepFloors._fields[-6:]


def path_floors(sums: Sums, states: StateCosts, costs: Sequence[LayerCost]) -> StepFloors:
    """Return the terms of the lower bounds on the step times, each of shape (layouts,)."""
    tables, rows = sums.tables, sums.rows
    repeats = np.array([cost.repeat for cost in costs])
    stages, pipe, side = rows[:, STAGES], rows[:, PIPE], rows[:, SIDE]
    dense, expert = tables.kinds[:, [KindColumn.DENSE, KindColumn.EXPERT]].T
    gathers_s, divided = np.zeros(len(rows)), np.flatnonzero(rows[:, ZERO] == 3)
    for n, dense_parameters, expert_parameters in zip(repeats, dense, expert, strict=True):
        gather_s, reduce_s = sums.shared_s(
            rows[divided, GROUP],
            np.full(len(divided), dense_parameters),
            np.full(len(divided), expert_parameters),
        )
        gathers_s[divided] += n * (2.0 * gather_s + reduce_s)
    both_s = tables.passes[..., [PassColumn.FORWARD_S, PassColumn.BACKWARD_S]]
    links_s = (both_s.sum(axis=3).min(axis=2) * repeats).sum(axis=1)
    blocks = np.array([cost.is_block for cost in costs])
    stage_blocks = tables.counts[:, blocks].sum(axis=1)[sums.mix]
    last, all_, least = (
        stage_blocks[sums.starts + stages - 1],
        sums.total(stage_blocks),
        stage_blocks.copy(),
    )
    end, heads = last.copy(), all_ - last
    chunked = tables.chunks[pipe] > 1
    if len(sums.chunk_stage):
        chunk = tables.chunk_counts[:, blocks].sum(axis=1)[sums.chunk_mix]
        first = sums.chunk_starts[chunked]
        per_stage, p = tables.chunks[pipe[chunked]], stages[chunked]
        final = np.where(sums.order[chunked] == TURNED, 1, per_stage * p - 1)
        end[chunked] = chunk[first + final - (rows[chunked, COPIES] - 1)]
        heads[chunked] = [
            chunk[at : at + n * (q - 1) : n].sum()
            for at, n, q in zip(first.tolist(), per_stage.tolist(), p.tolist(), strict=True)
        ]
        least[sums.starts[chunked]] = np.minimum.reduceat(chunk, first) * per_stage
    fewest = np.minimum.reduceat(least, sums.starts) / rows[:, COPIES]
    m, split = rows[:, MICROBATCHES].astype(np.float64), rows[:, SPLIT] > 0
    pipes, late = stages > 1, LATE_BY_ORDER[sums.order]
    fused = (pipes & ~split).astype(np.float64)
    apart = (pipes & split).astype(np.float64)
    inner = np.where(late > 0, (m - 1) * last, (m / rows[:, COPIES] - 1) * end)
    ways = (m[:, None, None] + tables.bubbles[pipe]) * (apart * fewest)[:, None, None]
    return StepFloors(
        stages=stages.copy(),
        copies=rows[:, COPIES].copy(),
        loads=m,
        transfer_s=sums.total(sums.arriving_s.sum(axis=1)) + gathers_s + links_s[side],
        fixed_s=np.zeros(len(rows)),
        through=fused,
        through_ends=fused * (m - 1),
        end_blocks=end,
        stage_ends=fused * m,
        stage_blocks=last,
        head_blocks=fused * heads,
        apart=apart,
        apart_blocks=apart * inner,
        apart_weights=apart * (late > 0) * np.maximum(0.0, m - 1 - late * (stages - 1)) * last,
        last_s=states.last_s,
        before_s=states.before_s,
        shown=1.0 - sums.hidden[:, 0],
        **dict(zip(WAYS, ways.reshape(len(rows), 6).T, strict=True)),
    )
