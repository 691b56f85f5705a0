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

from atoll.step.bubbles import bubble, by_chunk, held_bytes
from atoll.step.layout import Layout
from atoll.step.orders import arrivals, chunks_of, holds_both_ends
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
    """Bounds of one variant's layouts, by layout and choice of recomputation of any policy."""

    passes_s: Floats
    """The slowest stage's microbatches and what the others add."""
    needed: Floats
    """Bytes of the fullest device; infinite for choices of another policy than the layout's."""
    beside_s: Floats
    """By layout: accumulation and the optimizer, in one step."""


def figures(run: Run, block: Block, costs: Sequence[LayerCost]) -> Figures:
    """Price one variant for the bounds."""
    shared = 0
    if run.model.tied_embeddings:  # one stage with both ends holds them once
        shared = max((c.parameters for c in costs if not c.is_block), default=0)
    sizes = np.array([(c.parameters, c.expert_parameters) for c in costs], dtype=np.float64)
    whole = np.array([c.repeat for c in costs]) @ sizes - (shared, 0)
    priced = any(c.optimal for c in costs)
    choices = [_bounding(costs, policy, priced) for policy in block.names]
    listed = [choice for found in choices for choice in found]
    timed = _Passes(run, block, costs, [as_timed for as_timed, _ in listed])
    kept = np.array([[_least_kept(cost, held) for _, held in listed] for cost in costs])
    structure = tuple((c.is_block, c.repeat) for c in costs)
    rows = np.stack([block.pp, block.vpp, block.schedule, block.zero, block.hsdp], axis=1)
    distinct, which = np.unique(rows, axis=0, return_inverse=True)
    passes_s = np.zeros((len(block), kept.shape[1]))
    needed, beside_s = np.zeros_like(passes_s), np.zeros(len(block))
    at: tuple[str, int, int, int, int] | None = None
    for index in range(len(distinct)):
        here = np.flatnonzero(which.reshape(-1) == index)
        layout, m = block.layout(int(here[0])), int(block.microbatches[here[0]])
        if at != (layout.schedule, layout.pp, 0, m, layout.vpp):
            at = layout.schedule, layout.pp, 0, m, layout.vpp
            chunks = _counts(structure, layout.schedule, layout.pp, layout.vpp)
            stages = chunks.sum(axis=1)
            kept_bytes = by_chunk(at, list(chunks[0] @ kept))
            activations = held_bytes(*at, kept_bytes=kept_bytes, waiting_bytes=0.0)
            once = shared if holds_both_ends(layout.schedule, layout.pp, 0) else 0
            first, mean = stages[0] @ sizes - (once, 0), whole * layout.copies / layout.pp
            sends_s = _sends_s(run, layout, costs)
            plain_s = _passes_s(run, layout, m, stages, timed.plain(layout), sends_s)
        passes_s[here] = plain_s
        if layout.zero >= 3:
            passes_s[here] = _passes_s(run, layout, m, stages, timed.sharded(layout), sends_s)
        needed[here] = _needed_bytes(run, layout, mean, first, activations)
        beside_s[here] = m * accumulation_s(run, layout, m, *mean) + update_s(run, layout, *mean)
    owner = np.repeat(np.arange(len(choices)), [len(found) for found in choices])
    needed[block.recompute[:, None] != owner] = np.inf  # choices of other policies
    return Figures(passes_s, needed, beside_s)


def _sends_s(run: Run, layout: Layout, costs: Sequence[LayerCost]) -> Floats:
    """(stages, forward, backward and weight passes): transfers into a stage for one microbatch."""
    boundary = max((cost.boundary_bytes for cost in costs if cost.is_block), default=0)
    came = arrivals(layout.schedule, layout.pp, chunks_of(layout.schedule, layout.vpp))
    return Stepper(run, layout).send_s(boundary) * np.array([(*n, 0.0) for n in came])


def _passes_s(
    run: Run, layout: Layout, m: int, stages: Floats, timed_s: Floats, sends_s: Floats
) -> Floats:
    """By choice: the slowest stage's microbatches, and the bubble of the others, whichever of them
    is the slowest once host time is added; of the first microbatch all but the slowest stage wait
    for all of what they are sent.
    """
    hidden = run.stack.overlap.pipeline
    stages_s = np.tensordot(stages, timed_s, axes=1) / layout.copies
    stages_s += (1.0 - hidden) * sends_s[:, None]
    into_s = sends_s.sum(axis=1)
    slowest_s = stages_s.sum(axis=2).max(axis=0)
    others_s = (stages_s.sum(axis=0) - stages_s) / max(1, layout.pp - 1)
    idle_s = bubble(
        layout.schedule,
        layout.pp,
        m,
        layout.vpp,
        forward_s=others_s[..., 0],
        backward_s=others_s[..., 1],
        weight_s=others_s[..., 2],
    )
    return np.asarray(m * slowest_s + idle_s.min(axis=0) + hidden * (into_s.sum() - into_s.max()))


def _bounding(costs: Sequence[LayerCost], policy: str, priced: bool) -> tuple[tuple[str, str], ...]:
    """(as timed, as held) of every choice that a policy may come to."""
    if policy == "optimal" and not priced:
        return (("none", "full"),)
    return tuple((choice, choice) for choice in choices_of(costs, policy))


@lru_cache(maxsize=4096)
def _counts(structure: tuple[tuple[bool, int], ...], order: str, pp: int, vpp: int) -> Floats:
    """(stages, chunks, kinds of layer): how many of each a chunk holds."""
    counts = np.zeros((pp, chunks_of(order, vpp), len(structure)))
    for stage, chunks in enumerate(stage_counts(structure, order, pp, vpp)):
        for i, chunk in enumerate(chunks):
            for kind, n in chunk:
                counts[stage, i, kind] += n
    return counts


def _least_kept(cost: LayerCost, policy: str) -> float:
    """No more than a layer keeps of a microbatch: what a stack adds is left out."""
    if cost.name == "loss":
        return 0.0
    return cost.kept(policy if cost.is_block else "none").bytes - cost.loss_bytes


class _Passes:
    """Seconds of every kind of layer on one microbatch under each choice, host apart: (kinds of
    layer, choices, forward, backward and weight passes).
    """

    def __init__(
        self, run: Run, block: Block, costs: Sequence[LayerCost], choices: Sequence[str]
    ) -> None:
        self.run, self.block, self.costs, self.choices = run, block, costs, choices
        self._known: dict[bool, tuple[Floats, Floats]] = {}
        self._sharded: dict[tuple[int, int, int], Floats] = {}

    def plain(self, layout: Layout) -> Floats:
        """Of weights that are not divided."""
        return self._plain(layout)[0]

    def sharded(self, layout: Layout) -> Floats:
        """With gathers and scatters of divided weights, as far as they are not hidden."""
        key = layout.dp, layout.hsdp, layout.copies
        if key not in self._sharded:
            stepper = Stepper(self.run, layout)
            plain, compute_s = self._plain(layout)
            found = self._sharded[key] = plain.copy()
            for kind, cost in enumerate(self.costs):
                gather_s, scatter_s = stepper.sharded_s(cost)
                for choice, (f_s, b_s) in enumerate(compute_s[kind]):
                    found[kind, choice, 0] += stepper.exposed_s(gather_s, f_s)
                    found[kind, choice, 1] += stepper.exposed_s(gather_s + scatter_s, b_s)
        return self._sharded[key]

    def _plain(self, layout: Layout) -> tuple[Floats, Floats]:
        """Also the compute of forward and of backward."""
        outside = layout.experts_outside
        if outside not in self._known:
            dp = layout.ep if outside else 1
            shape = len(self.costs), len(self.choices)
            found, compute_s = np.zeros((*shape, 3)), np.zeros((*shape, 2))
            for choice, name in enumerate(self.choices):
                variant = self.block.variant.layout(dp=dp, zero=0, recompute=name)
                stepper = Stepper(self.run, variant)
                for kind, cost in enumerate(self.costs):
                    forward, backward, again = stepper.layer_passes(cost)
                    weight_s = cost.weight.total_s
                    back_s = backward.total_s + again.total_s - weight_s
                    found[kind, choice] = forward.total_s, back_s, weight_s
                    compute_s[kind, choice, 0] = forward.compute_s
                    compute_s[kind, choice, 1] = backward.compute_s + again.compute_s
            self._known[outside] = found, compute_s
        return self._known[outside]


def _needed_bytes(
    run: Run, layout: Layout, mean: Floats, first: Floats, activations: Floats
) -> Floats:
    """Bytes of the mean stage's states, and of the first stage's states and activations, whichever
    are more; stages by dense and expert parameters.
    """
    weights, gradients, optimizer = _states_bytes(run, layout, first)
    together = gradients + activations
    if run.stack.late_gradients and layout.zero < 2:  # gradients come as activations go
        together = np.maximum(gradients, activations)
    held = np.maximum(sum(_states_bytes(run, layout, mean)), weights + optimizer + together)
    return np.asarray(held * (1 + run.stack.fragmentation) + run.stack.context_bytes)


def _states_bytes(run: Run, layout: Layout, parameters: Floats) -> tuple[float, float, float]:
    dense, expert = parameters.tolist()
    return run.states.parts(dense + expert, layout.divided(dense, expert), layout.zero)


class Table:
    """The layouts of all variants side by side."""

    def __init__(self, blocks: Sequence[Block], known: Sequence[Figures]) -> None:
        sizes = [len(b) for b in blocks]
        self.owner = np.repeat(np.arange(len(blocks)), sizes)
        self.inside = np.concatenate([np.arange(n) for n in sizes])
        self.pp = np.concatenate([b.pp for b in blocks])
        self.vpp = np.concatenate([b.vpp for b in blocks])
        self.zero = np.concatenate([b.zero for b in blocks])
        self.hsdp = np.concatenate([b.hsdp for b in blocks])
        self.recompute = np.concatenate([b.recompute for b in blocks])
        self.schedule = np.concatenate([b.schedule for b in blocks])
        self.schedules = blocks[0].schedules
        self.names = blocks[0].names
        self.passes_s = _side_by_side([f.passes_s for f in known])
        self.needed = _side_by_side([f.needed for f in known], np.inf)
        self.beside_s = np.concatenate([f.beside_s for f in known])

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
    fits = table.needed <= run.gpu.hbm_bytes
    least_s = np.where(fits, table.passes_s, np.inf).min(axis=1)
    time_s = (least_s + table.beside_s + run.stack.step_s) * run.stack.slack
    return np.asarray(time_s * (1 - ROUNDING))


def memory_bounds_bytes(table: Table) -> Floats:
    """Bytes that the fullest device of each layout needs at least."""
    return np.asarray(table.needed.min(axis=1) * (1 - ROUNDING))
