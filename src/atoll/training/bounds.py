"""Lower bounds on time and memory for all layouts of a space at once.

A step is never shorter than the slowest stage's microbatches, the fill and drain of the others,
the sends between them, and what the mean stage's parameters take to accumulate and update; the
fullest device never holds less than the mean stage's states, nor than the first stage's states and
activations. All follow from the estimate by leaving terms out or replacing a maximum by a mean or
by one of its members, so that a layout whose bound exceeds a known estimate need not be estimated.

Recomputation by operator ("optimal") comes to one of several choices: its bound is that of the
fastest one whose bound on memory fits. Until its choices are priced (which takes longer than all
else) it is bounded as if it kept least and ran nothing again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from atoll.step.layout import Layout
from atoll.step.orders import arrivals
from atoll.step.stages import stage_counts
from atoll.training.estimate import accumulation_s, update_s
from atoll.training.layers import LayerCost, choices_of
from atoll.training.run import Run
from atoll.training.space import Block
from atoll.training.step import Stepper

Floats = NDArray[np.float64]

ROUNDING = 1e-12  # of a bound: sums in another order than the estimate's


@dataclass(frozen=True)
class Figures:
    """What the bounds need of one variant; all but the last two by layout."""

    slowest_s: Floats
    """(layouts, choices): the slowest stage on one microbatch."""
    whole_s: Floats
    """(layouts, choices): all stages together."""
    beside_s: Floats
    """Sends, accumulation and the optimizer, in one step."""
    first_kept: Floats
    """(layouts, choices): bytes that the first stage keeps of one microbatch; infinite where a
    policy has fewer choices."""
    first_dense: Floats
    """Parameters of the first stage."""
    first_expert: Floats
    dense: float
    """Parameters of the whole model on one tensor (and expert) rank."""
    expert: float


def figures(run: Run, block: Block, costs: Sequence[LayerCost]) -> Figures:
    """Price one variant for the bounds."""
    shared = 0
    if run.model.tied_embeddings:  # one stage with both ends holds them once
        shared = max((c.parameters for c in costs if not c.is_block), default=0)
    dense = sum(c.parameters * c.repeat for c in costs) - shared
    expert = sum(c.expert_parameters * c.repeat for c in costs)
    priced = any(c.optimal for c in costs)
    choices = [_bounding(costs, policy, priced) for policy in block.names]
    most = max(len(found) for found in choices)
    held_as = {held for found in choices for _, held in found}
    least = {held: np.array([_least_kept(cost, held) for cost in costs]) for held in held_as}
    passes = _Passes(run, block, costs)
    structure = tuple((c.is_block, c.repeat) for c in costs)
    shape = len(block), most
    slowest_s, whole_s = np.zeros(shape), np.zeros(shape)
    kept = np.full(shape, np.inf)
    first = np.zeros((len(block), len(costs)))
    beside_s = np.zeros(len(block))
    rows = np.stack([block.pp, block.vpp, block.zero], axis=1)
    distinct, which = np.unique(rows, axis=0, return_inverse=True)
    for index, (pp, vpp, zero) in enumerate(distinct.tolist()):
        here = np.flatnonzero(which.reshape(-1) == index)
        counts = _counts(structure, pp, vpp)
        first[here] = counts[0]
        dp, m = int(block.dp[here[0]]), int(block.microbatches[here[0]])
        layout = block.variant.layout(dp=dp, pp=pp, vpp=vpp, zero=zero)
        beside_s[here] = _beside_s(run, layout, m, costs, dense / pp, expert / pp)
        for policy, found in enumerate(choices):
            same = here[block.recompute[here] == policy]
            if not len(same):
                continue
            for c, (timed, held) in enumerate(found):
                stages_s = counts @ passes.of(layout, timed)
                slowest_s[same, c], whole_s[same, c] = stages_s.max(), stages_s.sum()
                kept[same, c] = counts[0] @ least[held]
    alone = np.where(block.pp == 1, shared, 0)
    return Figures(
        slowest_s,
        whole_s,
        beside_s,
        kept,
        first @ np.array([c.parameters for c in costs]) - alone,
        first @ np.array([c.expert_parameters for c in costs]),
        dense,
        expert,
    )


def _bounding(costs: Sequence[LayerCost], policy: str, priced: bool) -> tuple[tuple[str, str], ...]:
    """(as timed, as held) of every choice that a policy may come to."""
    if policy == "optimal" and not priced:
        return (("none", "full"),)
    return tuple((choice, choice) for choice in choices_of(costs, policy))


@lru_cache(maxsize=4096)
def _counts(structure: tuple[tuple[bool, int], ...], pp: int, vpp: int) -> Floats:
    """(stages, kinds of layer): how many of each a stage holds."""
    counts = np.zeros((pp, len(structure)))
    for stage, chunks in enumerate(stage_counts(structure, pp, vpp)):
        for chunk in chunks:
            for kind, n in chunk:
                counts[stage, kind] += n
    return counts


def _least_kept(cost: LayerCost, policy: str) -> float:
    """No more than a layer keeps of a microbatch: what a stack adds is left out."""
    if cost.name == "loss":
        return 0.0
    return cost.kept(policy if cost.is_block else "none").bytes - cost.loss_bytes


class _Passes:
    """Seconds of every kind of layer on one microbatch, host apart; equal ones are priced once."""

    def __init__(self, run: Run, block: Block, costs: Sequence[LayerCost]) -> None:
        self.run, self.block, self.costs = run, block, costs
        self._known: dict[tuple[str, bool], list[tuple[float, float, float]]] = {}
        self._wires: dict[int, list[tuple[float, float]]] = {}

    def of(self, layout: Layout, choice: str) -> Floats:
        plain = self._plain(layout, choice)
        if layout.zero < 3:
            return np.array([total for total, _, _ in plain])
        if layout.dp not in self._wires:
            stepper = Stepper(self.run, layout)
            self._wires[layout.dp] = [stepper.sharded_s(cost) for cost in self.costs]
        stepper = Stepper(self.run, layout)
        return np.array(
            [
                total
                + stepper.exposed_s(gather_s, forward_s)
                + stepper.exposed_s(gather_s + scatter_s, backward_s)
                for (total, forward_s, backward_s), (gather_s, scatter_s) in zip(
                    plain, self._wires[layout.dp], strict=True
                )
            ]
        )

    def _plain(self, layout: Layout, choice: str) -> list[tuple[float, float, float]]:
        """Without divided weights: all passes, and the compute of forward and of backward."""
        # Experts lie through the context group or outside it, depending on dp.
        outside = layout.dp % layout.ep == 0
        if (choice, outside) not in self._known:
            dp = layout.ep if outside else 1
            stepper = Stepper(self.run, self.block.variant.layout(dp=dp, zero=0, recompute=choice))
            found = []
            for cost in self.costs:
                passes = stepper.layer_passes(cost)
                forward_s, backward_s, again_s = (part.compute_s for part in passes)
                whole_s = sum(part.total_s for part in passes)
                found.append((whole_s, forward_s, backward_s + again_s))
            self._known[choice, outside] = found
        return self._known[choice, outside]


def _beside_s(
    run: Run, layout: Layout, m: int, costs: Sequence[LayerCost], dense: float, expert: float
) -> float:
    """What a step takes beside its passes, where the mean stage has so many parameters."""
    boundary = max((cost.boundary_bytes for cost in costs if cost.is_block), default=0)
    one_way_s = Stepper(run, layout).send_s(boundary)
    # No stage gets less than the least; of the first microbatch all get theirs but the slowest.
    came = [sum(n) for n in arrivals(layout.schedule, layout.pp, layout.vpp)]
    shown = 1 - run.stack.overlap.pipeline
    sends_s = one_way_s * ((m - 1) * shown * min(came) + (1 - shown) * (sum(came) - max(came)))
    parameters_s = m * accumulation_s(run, layout, m, dense, expert)
    return sends_s + parameters_s + update_s(run, layout, dense, expert) + run.stack.step_s


class Table:
    """The layouts of all variants side by side."""

    def __init__(self, blocks: Sequence[Block], known: Sequence[Figures]) -> None:
        sizes = [len(b) for b in blocks]
        self.owner = np.repeat(np.arange(len(blocks)), sizes)
        self.inside = np.concatenate([np.arange(n) for n in sizes])
        self.pp = np.concatenate([b.pp for b in blocks])
        self.vpp = np.concatenate([b.vpp for b in blocks])
        self.zero = np.concatenate([b.zero for b in blocks])
        self.microbatches = np.concatenate([b.microbatches for b in blocks])
        self.recompute = np.concatenate([b.recompute for b in blocks])
        self.schedule = np.concatenate([b.schedule for b in blocks])
        self.schedules = blocks[0].schedules
        self.names = blocks[0].names
        self.ranks = np.concatenate([b.dp * b.variant.cp for b in blocks])
        self.ep = np.repeat([b.variant.ep for b in blocks], sizes)
        self.slowest_s = _side_by_side([f.slowest_s for f in known])
        self.whole_s = _side_by_side([f.whole_s for f in known])
        self.first_kept = _side_by_side([f.first_kept for f in known], np.inf)
        self.beside_s = np.concatenate([f.beside_s for f in known])
        self.first_dense = np.concatenate([f.first_dense for f in known])
        self.first_expert = np.concatenate([f.first_expert for f in known])
        self.dense = np.array([f.dense for f in known])
        self.expert = np.array([f.expert for f in known])

    def __len__(self) -> int:
        return int(self.pp.size)


def _side_by_side(parts: Sequence[Floats], beyond: float = 0.0) -> Floats:
    """Rows under one another, filled up to the widest."""
    most = max(part.shape[1] for part in parts)
    return np.concatenate(
        [
            np.pad(part, ((0, 0), (0, most - part.shape[1])), constant_values=beyond)
            for part in parts
        ]
    )


def time_bounds_s(run: Run, table: Table) -> Floats:
    """Seconds that no layout can beat that fits; infinite where none of its choices does."""
    zero_bubble = np.array([s.startswith("zb") for s in table.schedules])[table.schedule]
    filled = np.where(zero_bubble, 0.0, 1.0 / table.vpp)
    steady = (table.microbatches - filled)[:, None] * table.slowest_s
    passes_s = steady + np.where(zero_bubble[:, None], 0.0, table.whole_s / table.vpp[:, None])
    fits = _needed_bytes(run, table) <= run.gpu.hbm_bytes
    least_s = np.where(fits, passes_s, np.inf).min(axis=1)
    return np.asarray((least_s + table.beside_s) * run.stack.slack * (1 - ROUNDING))


def memory_bounds_bytes(run: Run, table: Table) -> Floats:
    """Bytes that the fullest device of each layout needs at least."""
    return np.asarray(_needed_bytes(run, table).min(axis=1) * (1 - ROUNDING))


def _needed_bytes(run: Run, table: Table) -> Floats:
    """By choice: bytes of the mean stage's states, and of the first stage's states and activations,
    whichever are more.
    """
    mean_states, mean_gradients = _states_bytes(
        run, table, table.dense[table.owner] / table.pp, table.expert[table.owner] / table.pp
    )
    states, gradients = _states_bytes(run, table, table.first_dense, table.first_expert)
    activations = table.first_kept * _in_flight(table)[:, None]
    together = gradients[:, None] + activations
    if run.stack.late_gradients:  # gradients come as activations go, unless they are divided
        either = np.maximum(gradients[:, None], activations)
        together = np.where(table.zero[:, None] < 2, either, together)
    held = np.maximum((mean_states + mean_gradients)[:, None], states[:, None] + together)
    needed = held * (1 + run.stack.fragmentation) + run.stack.context_bytes
    return np.asarray(needed, dtype=np.float64)


def _states_bytes(run: Run, table: Table, dense: Floats, expert: Floats) -> tuple[Floats, Floats]:
    """Weights and optimizer, and gradients, of so many parameters a stage."""
    divided = dense / table.ranks + expert / np.maximum(1, table.ranks // table.ep)
    held, gradients = np.empty(len(table)), np.empty(len(table))
    for zero in np.unique(table.zero):
        rows = table.zero == zero
        whole = (dense + expert)[rows]
        weights, gradients[rows], optimizer = run.states.parts(whole, divided[rows], int(zero))
        held[rows] = weights + optimizer
    return held, gradients


def _in_flight(table: Table) -> Floats:
    """Microbatches whose activations the first stage holds (`memory.in_flight`)."""
    pp, vpp, m = table.pp, table.vpp, table.microbatches
    chunks = np.minimum((pp - 1) * 2 + (vpp - 1) * pp + 1, m * vpp)
    names = np.array(table.schedules)[table.schedule]
    ahead = np.where(names == "zb-h2", 2, 1) * (pp - 1) + 1
    whole = np.where(names == "gpipe", m, np.minimum(ahead, m))
    return np.asarray(np.where(vpp > 1, chunks / vpp, whole), dtype=np.float64)
