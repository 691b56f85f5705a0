"""Lower bounds on time and memory for all layouts of a space at once.

A step is never shorter than the mean stage's microbatches and the fill and drain of mean stages;
the fullest device never holds less than the mean stage's states, nor than the first stage's states
and activations. All follow from the estimate by leaving terms out or replacing a maximum by a mean
or by one of its members, so that a layout whose bound exceeds a known estimate need not be
estimated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from atoll.step.stages import stage_counts
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
    dense: float
    """Parameters of the whole model on one tensor (and expert) rank."""
    expert: float
    first_dense: Floats
    """Parameters of the first stage, by layout."""
    first_expert: Floats
    first_kept: Floats
    """Bytes that the first stage keeps of one microbatch, by layout."""


def figures(run: Run, block: Block, costs: Sequence[LayerCost]) -> Figures:
    """Price one variant for the bounds."""
    shared = 0
    if run.model.tied_embeddings:  # one stage with both ends holds them once
        shared = max((c.parameters for c in costs if not c.is_block), default=0)
    counts = _first_counts(tuple((c.is_block, c.repeat) for c in costs), block)
    kept = np.array([[_least_kept(c, p) for c in costs] for p in block.names])
    alone = np.where(block.pp == 1, shared, 0)
    return Figures(
        microbatch_s=np.array([_microbatch_s(run, block, costs, p) for p in block.names]),
        dense=sum(c.parameters * c.repeat for c in costs) - shared,
        expert=sum(c.expert_parameters * c.repeat for c in costs),
        first_dense=counts @ np.array([c.parameters for c in costs]) - alone,
        first_expert=counts @ np.array([c.expert_parameters for c in costs]),
        first_kept=(counts * kept[block.recompute]).sum(axis=1),
    )


def _first_counts(structure: tuple[tuple[bool, int], ...], block: Block) -> Floats:
    """(layouts, kinds of layer): how many of each the first stage holds."""
    pairs = np.stack([block.pp, block.vpp], axis=1)
    distinct, which = np.unique(pairs, axis=0, return_inverse=True)
    counts = [_first_stage(structure, int(pp), int(vpp)) for pp, vpp in distinct]
    return np.array(counts, dtype=np.float64)[which.reshape(-1)]


@lru_cache(maxsize=4096)
def _first_stage(structure: tuple[tuple[bool, int], ...], pp: int, vpp: int) -> tuple[int, ...]:
    counts = [0] * len(structure)
    for chunk in stage_counts(structure, pp, vpp)[0]:
        for kind, n in chunk:
            counts[kind] += n
    return tuple(counts)


def _least_kept(cost: LayerCost, policy: str) -> float:
    """No more than a layer keeps of a microbatch: what a stack adds is left out."""
    if cost.name == "loss":
        return 0.0
    if not cost.is_block:
        return cost.kept("none").bytes
    return cost.kept("full" if policy == "optimal" else policy).bytes


def _microbatch_s(run: Run, block: Block, costs: Sequence[LayerCost], policy: str) -> float:
    """All layers on one microbatch, with the communication that no layout of the block avoids."""
    v = block.variant
    policy = "none" if policy == "optimal" else policy
    alone = Layout(
        dp=1, tp=v.tp, cp=v.cp, ep=v.ep, microbatch=v.microbatch, sp=v.sp, zero=0, recompute=policy
    )
    # Experts lie through the context group or outside it, depending on dp.
    return min(
        sum(cost.repeat * _passes_s(stepper, cost) for cost in costs)
        for stepper in (Stepper(run, alone), Stepper(run, replace(alone, dp=v.ep)))
    )


def _passes_s(stepper: Stepper, cost: LayerCost) -> float:
    return sum(part.total_s for part in stepper.layer_passes(cost))


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
        self.first_dense = np.concatenate([f.first_dense for f in known])
        self.first_expert = np.concatenate([f.first_expert for f in known])
        self.first_kept = np.concatenate([f.first_kept for f in known])
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
    """Bytes that the fullest device of each layout needs at least: those of the mean stage's
    states, and those of the first stage's states and activations.
    """
    mean_states, mean_gradients = _states_bytes(
        run, table, table.dense[table.owner] / table.pp, table.expert[table.owner] / table.pp
    )
    states, gradients = _states_bytes(run, table, table.first_dense, table.first_expert)
    activations = table.first_kept * _in_flight(table)
    together = gradients + activations
    if run.stack.late_gradients:  # gradients come as activations go, unless they are divided
        together = np.where(table.zero < 2, np.maximum(gradients, activations), together)
    held = np.maximum(mean_states + mean_gradients, states + together)
    return np.asarray(held * (1 + FRAGMENTATION) + CONTEXT_BYTES, dtype=np.float64)


def _states_bytes(run: Run, table: Table, dense: Floats, expert: Floats) -> tuple[Floats, Floats]:
    """Weights and optimizer, and gradients, of so many parameters a stage."""
    expert_ranks = np.maximum(1, table.ranks // table.ep)

    def share(stage: int) -> Floats:
        divided = table.zero >= stage
        own = dense / np.where(divided, table.ranks, 1)
        return np.asarray(own + expert / np.where(divided, expert_ranks, 1), dtype=np.float64)

    states = run.states
    held = states.weight * share(3) + states.optimizer * share(1)
    return held, states.gradient * share(2)


def _in_flight(table: Table) -> Floats:
    """Microbatches whose activations the first stage holds (`memory.in_flight`)."""
    pp, vpp, m = table.pp, table.vpp, table.microbatches
    chunks = np.minimum((pp - 1) * 2 + (vpp - 1) * pp + 1, m * vpp)
    names = np.array(table.schedules)[table.schedule]
    ahead = np.where(names == "zb-h2", 2, 1) * (pp - 1) + 1
    whole = np.where(names == "gpipe", m, np.minimum(ahead, m))
    return np.asarray(np.where(vpp > 1, chunks / vpp, whole), dtype=np.float64)
