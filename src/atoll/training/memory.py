"""Bytes on the fullest device by part, at the peak of a caching allocator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.base.arrays import Floats
from atoll.hardware.gpu import SCALED
from atoll.step.layout import Layout
from atoll.step.parts import MEMORY_PARTS
from atoll.training.operators.layers import LayerCost
from atoll.training.run import Run
from atoll.training.step import FLOAT, resident_parameters

PARTS = tuple(part for part in MEMORY_PARTS if part != "guests")  # guests exist on wafers only
RESERVED = 0.12  # share of allocated bytes that the allocator keeps if memory is not short
WORKSPACE_BYTES = 32 << 20  # per handle of a matrix library, in PyTorch since Hopper


@dataclass(frozen=True, slots=True)
class Memory:
    """Peak memory of one device by part, in bytes."""

    stage: int
    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    transient: float
    buffers: float
    fragmentation: float = 0.0
    """Share of allocated bytes lost between blocks."""
    context_bytes: float = 0.0
    """Bytes outside of the allocator."""
    resting: float = 0.0
    """Bytes allocated between two steps."""

    @property
    def allocated(self) -> float:
        """Peak that the allocator reports."""
        return sum(self.parts().values())

    @property
    def reserved(self) -> float:
        """Allocated bytes with the blocks that the allocator keeps for reuse."""
        return self.allocated * (1 + RESERVED)

    @property
    def needed(self) -> float:
        """Bytes that the device must have, with fragmentation and the driver's share."""
        return self.allocated * (1 + self.fragmentation) + self.context_bytes

    def parts(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in PARTS}


class PeakParts(NamedTuple):
    """Bytes of a device that change in the course of a step."""

    gradients: Floats
    activations: Floats
    logits: Floats
    transient: Floats


def peak_parts(
    run: Run,
    parts: PeakParts,
    shared_parameters: Floats,
    undivided: NDArray[np.bool_],
    accumulates: NDArray[np.bool_],
) -> PeakParts:
    """Return the parts at the peak of a step, from the largest bytes of each; `undivided`: every
    rank has all gradients (ZeRO 0 and 1), `accumulates`: there are several microbatches.

    The loss ends before the first block's temporaries are allocated. With late gradients, these are
    allocated layer by layer as activations are freed, so the peak is at either end; with
    accumulation they exist from the second microbatch on. An update that copies gradients to fp32
    comes when activations are free. A tied embedding's two gradients are
    summed into a third tensor; a foreach optimizer has a temporary copy of all.
    """
    gradients, activations, logits, transient = parts
    beyond_loss = np.maximum(transient, logits) - logits
    if not run.stack.late_gradients:
        copied = _updated_bytes(run, gradients) - (activations + logits + beyond_loss)
        return PeakParts(gradients, activations, logits, beyond_loss + np.maximum(copied, 0.0))
    tied = 0 if run.adapters else shared_parameters
    early = np.where(accumulates, gradients, 0.0)
    summed = np.maximum(transient, 2 * run.states.gradient * tied)
    if run.stack.optimizer == "foreach":  # square roots of the second moments, like gradients
        summed = np.maximum(summed, gradients)
    at_end = undivided & (gradients + summed > early + activations + logits + beyond_loss)
    return PeakParts(
        np.where(undivided & ~at_end, early, gradients),
        np.where(at_end, 0.0, activations),
        np.where(at_end, 0.0, logits),
        np.where(at_end, summed, beyond_loss),
    )


def _updated_bytes(run: Run, gradients: Floats) -> Floats:
    """Return the fp32 copies of the gradients that a step of the optimizer takes at a time."""
    parameters = gradients / max(run.states.gradient, 1.0)
    return FLOAT * np.minimum(parameters, run.stack.update_parameters)


def losses_in_flight(layout: Layout, microbatches: int) -> int:
    """Return the microbatches between loss and its backward pass: one, except in GPipe."""
    return microbatches if layout.schedule == "gpipe" else 1


Parameters = tuple[float, float]


def stage_parameters(
    run: Run, layers: Sequence[tuple[LayerCost, int]], shared: int
) -> tuple[Parameters, Parameters]:
    """Return the (dense, expert) parameters of a stage that are trained, and those resident
    (`held_parameters`); parameters shared by several layers count once.
    """
    dense = sum(cost.parameters * n for cost, n in layers)
    expert = sum(cost.expert_parameters * n for cost, n in layers)
    if not run.adapters:
        dense -= shared
    resident = [(resident_parameters(run, cost), n) for cost, n in layers]
    resident_dense = sum(d * n for (d, _), n in resident) - shared
    return (float(dense), float(expert)), (resident_dense, sum(e * n for (_, e), n in resident))


def logits_bytes(
    run: Run, layout: Layout, layers: Sequence[tuple[LayerCost, int]], microbatches: int
) -> float:
    """Return the logits at the peak of the loss, with those kept for other microbatches."""
    heads = [cost for cost, n in layers for _ in range(n) if cost.logits_bytes]
    if not heads:
        return 0.0
    stack, losses = run.stack, losses_in_flight(layout, microbatches)
    head = max(heads, key=lambda cost: cost.logits_bytes)
    logits = head.logits_bytes / 2  # 16-bit elements
    half = head.half_loss or run.half_logits
    peak = logits * (stack.half_loss_bytes if half else stack.loss_bytes) / stack.loss_chunks
    if not stack.vocabulary_parallel:
        peak *= layout.tp
    deferred = min(stack.deferred_heads, microbatches) * logits * 2
    every = sum(cost.logits_bytes / 2 for cost in heads)
    kept = 0.0 if stack.loss_chunks > 1 else stack.loss_kept
    return peak + (every * losses - logits) * kept + deferred


def _trained(cost: LayerCost) -> int:
    return cost.parameters + cost.expert_parameters


def fp8_bytes(run: Run, cost: LayerCost) -> float:
    """Return the bytes of fp8 copies of a layer's undivided 16-bit weights, or of the 16-bit copies
    of fp32 weights that autocast keeps for a step.
    """
    if run.stack.autocast:
        return 2.0 * _trained(cost) if cost.is_block or cost.name == "head" else 0.0
    has_copies = run.precision in SCALED and cost.is_block
    parameters = cost.frozen if run.adapters else (cost.parameters, cost.expert_parameters)
    return run.stack.fp8_copies * sum(parameters) if has_copies else 0


def buffers_bytes(run: Run, layers: Sequence[tuple[LayerCost, int]], zero: int) -> float:
    """Return the bytes of gathered tensors, and of workspaces of matrix libraries."""
    buffers = _gathered_bytes(run, layers) if zero >= 3 else 0.0
    if zero == 2:  # a layer's full gradient, until it is reduced
        buffers = run.states.reduced * max(_trained(cost) for cost, _ in layers)
    return buffers + workspace_bytes(run)


def workspace_bytes(run: Run) -> float:
    handles = run.stack.workspaces + (run.stack.expert_workspaces if run.model.experts else 0)
    return float(handles * WORKSPACE_BYTES)


def _gathered_bytes(run: Run, layers: Sequence[tuple[LayerCost, int]]) -> float:
    """Return the bytes of gathered weights of fully sharded layers, and of their gradients."""
    widest = max((sum(resident_parameters(run, c)) for c, _ in layers if c.is_block), default=0.0)
    ends = max((sum(resident_parameters(run, c)) for c, _ in layers if not c.is_block), default=0.0)
    gathered = max(run.stack.gathered_layers * widest, ends)
    summed = max((_trained(c) for c, _ in layers if c.is_block), default=0)
    return gathered * run.states.weight + min(gathered, summed) * run.states.reduced


def kept_bytes(run: Run, cost: LayerCost, recompute: str) -> float:
    """Return the bytes that a layer keeps per microbatch until its backward pass, without loss."""
    if cost.name == "loss" and run.stack.loss_bytes:
        return 0.0
    policy = recompute if cost.is_block else "none"
    policy_cost = cost.kept(policy)
    kept = policy_cost.bytes - cost.loss_bytes
    if run.stack.keeps_gathered:
        not_recomputed = 1 - policy_cost.share if policy.startswith("full") else 1.0
        kept += not_recomputed * sum(
            link.bytes for link in cost.forward_links if link.kind == "all_gather"
        )
    return kept


def transient_bytes(run: Run, layers: Sequence[tuple[LayerCost, int]], recompute: str) -> float:
    """Return the temporaries of a block's backward pass, with recomputed tensors."""
    most = 0.0
    for cost in (cost for cost, _ in layers if cost.is_block):
        rebuilt = cost.kept("none").bytes - cost.kept(recompute).bytes
        widest = run.stack.temporaries * cost.transient_bytes
        most = max(most, widest, rebuilt + 0.5 * widest)
    return most
