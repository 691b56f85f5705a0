"""Lower bounds on time and memory for all layouts of a space at once.

A step is never shorter than the mean stage's microbatches and the fill and drain of mean stages;
a device never holds less than the mean stage's states and the first stage's activations. Both
follow from the estimate by leaving terms out or replacing a maximum by a mean, so that a layout
whose bound exceeds a known estimate need not be estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.training.layers import LayerCost
from atoll.training.layout import Layout
from atoll.training.memory import CONTEXT_BYTES, FRAGMENTATION
from atoll.training.run import Run
from atoll.training.space import Block
from atoll.training.step import Stepper

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Figures:
    """What the bounds need of one variant."""

    microbatch_s: Floats
    """All layers on one microbatch, by recomputation policy."""
    least_kept: Floats
    """Fewest bytes that a block keeps of a microbatch, by recomputation policy."""
    blocks: int
    dense: float
    expert: float


def figures(run: Run, block: Block, costs: Sequence[LayerCost]) -> Figures:
    """Price one variant for the bounds."""
    v = block.variant
    shared = -(-run.model.vocab // v.tp) * run.model.word_width
    blocks = [c for c in costs if c.is_block]
    return Figures(
        microbatch_s=np.array([_microbatch_s(run, block, costs, p) for p in block.names]),
        least_kept=np.array(
            [
                min(c.kept("full" if p == "optimal" else p).bytes for c in blocks)
                for p in block.names
            ]
        ),
        blocks=sum(c.repeat for c in blocks),
        dense=sum(c.parameters * c.repeat for c in costs)
        - (shared if run.model.tied_embeddings else 0),
        expert=sum(c.expert_parameters * c.repeat for c in costs),
    )


def _least_kept(blocks: Sequence[LayerCost], policy: str) -> float:
    name = "full" if policy == "optimal" else policy
    return min(cost.kept(name).bytes for cost in blocks)


def _microbatch_s(run: Run, block: Block, costs: Sequence[LayerCost], policy: str) -> float:
    """All layers on one microbatch, with the communication that no layout of the block avoids."""
    v = block.variant
    policy = "none" if policy == "optimal" else policy
    alone = Layout(
        dp=1, tp=v.tp, cp=v.cp, ep=v.ep, microbatch=v.microbatch, sp=v.sp, zero=0, recompute=policy
    )
    stepper = Stepper(run, alone)
    total_s = 0.0
    for cost in costs:
        forward, backward, again = stepper.layer_passes(cost)
        total_s += cost.repeat * (forward.total_s + backward.total_s + again.total_s)
    return total_s


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
        self.ranks = np.concatenate([b.dp * b.variant.cp for b in blocks])
        self.ep = np.repeat([b.variant.ep for b in blocks], sizes)
        self.microbatch_s = np.array([f.microbatch_s for f in known])
        self.least_kept = np.array([f.least_kept for f in known])
        self.blocks = np.array([f.blocks for f in known])
        self.dense = np.array([f.dense for f in known])
        self.expert = np.array([f.expert for f in known])

    def __len__(self) -> int:
        return int(self.pp.size)


def time_bounds_s(run: Run, table: Table) -> Floats:
    """Seconds that no layout can beat."""
    whole_s = table.microbatch_s[table.owner, table.recompute]
    mean_s = whole_s / table.pp
    zero_bubble = np.array([s.startswith("zb") for s in table.schedules])[table.schedule]
    bubble_s = np.where(zero_bubble, 0.0, (whole_s - mean_s) / table.vpp)
    return np.asarray((table.microbatches * mean_s + bubble_s) * run.stack.slack)


def memory_bounds_bytes(run: Run, table: Table) -> Floats:
    """Bytes that the fullest device of each layout needs at least."""
    states = run.states
    dense, expert = table.dense[table.owner] / table.pp, table.expert[table.owner] / table.pp
    expert_ranks = np.maximum(1, table.ranks // table.ep)

    def share(stage: int) -> Floats:
        divided = table.zero >= stage
        own = dense / np.where(divided, table.ranks, 1) + expert / np.where(
            divided, expert_ranks, 1
        )
        return np.asarray(own, dtype=np.float64)

    held = states.weight * share(3) + states.optimizer * share(1)
    if not run.stack.late_gradients:  # else they come as activations go
        held = held + states.gradient * share(2) + _least_activations(table)
    return np.asarray(held * (1 + FRAGMENTATION) + CONTEXT_BYTES, dtype=np.float64)


def _least_activations(table: Table) -> Floats:
    """The first stage's blocks, at least so many, of the microbatches that it must hold."""
    pp, vpp, m = table.pp, table.vpp, table.microbatches
    per_stage = (table.blocks[table.owner] // (pp * vpp)) * vpp
    chunks = np.minimum((pp - 1) * 2 + (vpp - 1) * pp + 1, m * vpp)
    flying = np.where(vpp > 1, chunks / vpp, np.minimum(pp, m))
    kept = table.least_kept[table.owner, table.recompute]
    return np.asarray(kept * per_stage * flying, dtype=np.float64)
