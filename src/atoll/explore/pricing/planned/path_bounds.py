"""Lower bounds on the step times of layouts on a chip: from paths through their pipeline passes,
and from the slowest stage with the recomputation that the chip's memory requires. They need a small
part of the time of an estimate, and rule out most layouts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from atoll.base.arrays import Bools, Floats, Ints
from atoll.explore.pricing.planned.recompute_choices import Chosen, with_kept_bytes
from atoll.placement.chain import BACKWARD, FORWARD, PlacementProblem, StepFloors, VariantTimes
from atoll.step.orders import ORDERS, WEIGHT_DELAY
from atoll.training.batch.choices import SLACK
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


@dataclass(frozen=True, eq=False)
class LoadBounds:
    """Lower bounds from the slowest stage: the step takes at least

        m * load + exposed gradient collectives + update,  load = max over stages of
        forward + backward + least recomputation that fits + messages,

    where m is the number of microbatches. The collectives overlap with the backward passes of a
    stage, which take at most load - (shortest forward pass) per microbatch. The bound grows with
    load and forward pass, so that lower bounds on the passes give one on the step.
    """

    sums: Sums  # all layouts, without the times of layers
    states: StateCosts  # with a memory of 1 byte per second
    kind: Ints  # distinct layer of each layer; `block`: its kind of block, or -1
    block: Ints
    apart: Bools  # whether weight passes run separately, shape (sides,)
    _needed: dict[tuple[int, ...], Floats] = field(default_factory=dict)
    """Bytes of each stage by choice, shape (stages,)."""

    def step_s(
        self, problem: PlacementProblem, times: VariantTimes, chosen: Chosen, rows: Ints
    ) -> Floats:
        """Return the bounds on a chip of the layouts `rows`, in ascending order, shape (rows,);
        infinite where no choice fits."""
        sums, tables, states = self.sums, self.sums.tables, self.states
        is_chosen = np.zeros(len(sums.rows), np.bool_)
        is_chosen[rows] = True
        stage = np.flatnonzero(is_chosen[sums.row])
        row, mix = sums.row[stage], sums.mix[stage]
        starts = np.searchsorted(row, rows)
        static_s = tables.passes[:, :, 0]
        layers_s = times.pass_s[self.kind]
        forward_s = static_s[..., PassColumn.FORWARD_S] + layers_s[:, FORWARD]
        backward_s = static_s[..., PassColumn.BACKWARD_S] + layers_s[:, BACKWARD]
        if self.apart.any():
            halves_s = times.halves_s.sum(axis=1)[self.kind]
            backward_s[self.apart] += halves_s - layers_s[:, BACKWARD]
        side, copies = sums.rows[row, SIDE], sums.rows[row, COPIES]
        forwards_s = (tables.counts @ forward_s.T)[mix, side] / copies
        both_s = forwards_s + (tables.counts @ backward_s.T)[mix, side] / copies
        blocks = np.flatnonzero(self.block >= 0)
        again_s = tables.counts[:, blocks] @ chosen.again_s[self.block[blocks]]
        fits = self._bytes(chosen, stage) <= problem.memory_bytes * (1.0 + SLACK)
        rerun_s = np.where(fits, again_s[mix], np.inf).min(axis=1) / copies
        load_s = np.maximum.reduceat(both_s + rerun_s + sums.arriving_s[stage].sum(axis=1), starts)
        behind_s = load_s - np.minimum.reduceat(forwards_s, starts)
        m, hidden = sums.m[rows, 0], self._hidden[rows]
        last_s, before_s = states.last_s[rows], states.before_s[rows]
        exposed_s = last_s - hidden * np.minimum(last_s, behind_s)
        earlier_s = before_s - hidden * np.minimum(before_s, behind_s)
        update_s = states.optimizer_s[rows] / problem.hbm_Bps
        return np.asarray(m * load_s + exposed_s + (m - 1.0) * earlier_s + update_s)

    @cached_property
    def _hidden(self) -> Floats:
        """Return the share of each layout's gradient collectives that may overlap."""
        return self.sums.hidden[:, 0]

    def _bytes(self, chosen: Chosen, stage: Ints) -> Floats:
        """Return the bytes that stages need with each choice, shape (stages, choices)."""
        choices = [tuple(column) for column in chosen.choice.T.tolist()]
        new = [i for i, choice in enumerate(choices) if choice not in self._needed]
        if new:
            tables = with_kept_bytes(self.sums.tables, self.block, chosen.bytes[:, new])
            needed = Sums(tables, tables.rows).memory(self.states)
            self._needed.update(zip([choices[i] for i in new], needed.T.copy(), strict=True))
        return np.stack([self._needed[choice][stage] for choice in choices], axis=1)
