"""Bytes on the fullest device by part, at the peak of a caching allocator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from atoll.base.arrays import Bools, Floats
from atoll.hardware.gpu import SCALED
from atoll.step.layout import Layout
from atoll.step.parts import MEMORY_PARTS
from atoll.training.operators.layers import LayerCost, Layers
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
    cached: float = 0.0
    """Bytes that the allocator keeps for reuse, where memory is not short."""

    @property
    def allocated(self) -> float:
        """Peak that the allocator reports."""
        return sum(self.parts().values())

    @property
    def reserved(self) -> float:
        """Allocated bytes with the blocks that the allocator keeps for reuse."""
        return self.allocated + self.cached

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
    at_end_bytes: Floats,
    shared_parameters: Floats,
    accumulates: Bools,
    roots_bytes: Floats,
) -> PeakParts:
    """Return the parts at the peak of a step, from the largest bytes of each; `at_end_bytes`:
    temporaries when all activations are freed; `accumulates`: gradients exist before the last
    microbatch; `roots_bytes`: square roots of all second moments, in fp32.

    The loss ends before the first block's temporaries are allocated. With late gradients, these are
    allocated layer by layer as activations are freed, so the peak is at either end; with
    accumulation they exist from the second microbatch on. An update that copies gradients to fp32
    comes when activations are free. A tied embedding's two gradients are
    summed into a third tensor; a foreach optimizer has a temporary copy of all.
    """
    gradients, activations, logits, transient = parts
    beyond_loss = np.maximum(transient, logits) - logits
    if not run.stack.late_gradients:
        parameters = gradients / max(run.states.gradient, 1.0)
        copied = FLOAT * np.minimum(parameters, run.stack.update_parameters)
        if run.stack.optimizer == "foreach":
            copied = np.maximum(copied, roots_bytes)
        copied = copied - (activations + logits + beyond_loss)
        return PeakParts(gradients, activations, logits, beyond_loss + np.maximum(copied, 0.0))
    tied = 0 if run.adapters else shared_parameters
    early = np.where(accumulates, gradients, 0.0)
    summed = np.maximum(at_end_bytes, 2 * run.states.gradient * tied)
    if run.stack.optimizer == "foreach":  # square roots of the second moments, like gradients
        summed = np.maximum(summed, gradients)
    at_end = gradients + summed > early + activations + logits + beyond_loss
    return PeakParts(
        np.where(at_end, gradients, early),
        np.where(at_end, 0.0, activations),
        np.where(at_end, 0.0, logits),
        np.where(at_end, summed, beyond_loss),
    )


def losses_in_flight(layout: Layout, microbatches: int) -> int:
    """Return the microbatches between loss and its backward pass: one, except in GPipe."""
    return microbatches if layout.schedule == "gpipe" else 1


Parameters = tuple[float, float]


def stage_parameters(run: Run, layers: Layers, shared: int) -> tuple[Parameters, Parameters]:
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


def logits_bytes(run: Run, layout: Layout, layers: Layers, microbatches: int) -> float:
    """Return the logits at the peak of the loss, with those kept for other microbatches."""
    heads = [cost for cost, n in layers for _ in range(n) if cost.logits_bytes]
    if not heads:
        return 0.0
    stack, losses = run.stack, losses_in_flight(layout, microbatches)
    head = max(heads, key=lambda cost: cost.logits_bytes)
    logits = head.logits_bytes / 2  # 16-bit elements
    half = head.half_loss or run.half_logits
    loss_bytes = stack.half_loss_bytes if half else stack.loss_bytes
    loss_bytes += stack.parallel_loss_bytes if layout.tp > 1 else 0.0
    peak = logits * loss_bytes / stack.loss_chunks
    if not stack.vocabulary_parallel:
        peak *= layout.tp
    if stack.adds_first:  # the head's gradient in 16 bits, beside that of the logits
        peak = max(peak, logits * 2 + head.parameters * 2)
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
    if run.autocast:
        return 2.0 * _trained(cost) if cost.is_block or cost.name == "head" else 0.0
    has_copies = run.precision in SCALED and cost.is_block
    parameters = cost.frozen if run.adapters else (cost.parameters, cost.expert_parameters)
    return run.stack.fp8_copies * sum(parameters) if has_copies else 0


def buffers_bytes(run: Run, layers: Layers, zero: int) -> float:
    """Return the bytes of gathered tensors that exist both during the loss and during a block's
    backward pass, and of workspaces of matrix libraries.
    """
    links = [link for cost, _ in layers for link in cost.forward_links if link.kind == "all_gather"]
    gathered = max((link.bytes for link in links), default=0) * run.stack.keeps_gather_buffer
    return _common_bytes(run, layers, zero) + workspace_bytes(run) + gathered


def loss_bytes(run: Run, layers: Layers, zero: int) -> float:
    """Return the further bytes of gathered tensors during the loss. FSDP keeps the weights of its
    outermost group from the forward to the backward pass, and starts to gather the last block's
    where the loss is part of the model (`Stack.gathered_at_loss`).
    """
    if not _is_sharded(run, zero):
        return 0.0
    return _gathered_at_loss(run, layers, zero) - _common_bytes(run, layers, zero)


def padded_loss_bytes(run: Run, layers: Layers, zero: int) -> float:
    """Return the bytes of a gathered block's experts during the loss."""
    if not _is_sharded(run, zero) or "block" not in run.stack.gathered_at_loss:
        return 0.0
    groups = ShardedGroups.of(run, layers, zero)
    return groups.gathered * groups.expert


def _is_sharded(run: Run, zero: int) -> bool:
    """Return whether PyTorch's FSDP divides gradients."""
    return bool(run.stack.gathered_at_loss) and zero >= 2


def _common_bytes(run: Run, layers: Layers, zero: int) -> float:
    if _is_sharded(run, zero):
        groups = ShardedGroups.of(run, layers, zero)
        return min(_gathered_at_loss(run, layers, zero), groups.gathered * groups.block)
    if zero < 2:
        return 0.0
    buffers = run.states.reduced * max(_trained(cost) for cost, _ in layers)
    return _gathered_bytes(run, layers) if zero == 3 else buffers


def _gathered_at_loss(run: Run, layers: Layers, zero: int) -> float:
    groups = ShardedGroups.of(run, layers, zero)
    if not any(cost.logits_bytes for cost, _ in layers):
        return groups.gathered * groups.block
    names = run.stack.gathered_at_loss
    return groups.gathered * float(sum(getattr(groups, name) for name in names))


SHARDED_PHASES = 10
"""Phases of a backward pass under FSDP: of the head, two of four blocks, and its end."""
Phase = tuple[float, float, float]
"""Bytes; parameters whose gradients are reduced by then; bytes per padding of experts' weights,
over 1 (`Run.expert_padding`)."""


class ShardedGroups(NamedTuple):
    """Parameters of the groups that FSDP gathers and reduces, in a stage."""

    embedding: float
    block: float
    head: float
    trained_embedding: float
    trained_block: float
    trained_head: float
    expert: float
    """Those of a block's experts."""
    gathered: float
    """Bytes per gathered weight; 0 where all weights stay gathered (ZeRO 2)."""

    @classmethod
    def of(cls, run: Run, layers: Layers, zero: int) -> ShardedGroups:
        """Return the groups of a stage's layers."""
        counted = {"embedding": (0.0, 0.0), "head": (0.0, 0.0)}
        counted |= {
            c.name: (sum(resident_parameters(run, c)), float(_trained(c))) for c, _ in layers
        }
        blocks = [counted[cost.name] for cost, _ in layers if cost.is_block] or [(0.0, 0.0)]
        widest, trained = (max(column) for column in zip(*blocks, strict=True))
        (embedding, trained_embedding), (head, trained_head) = counted["embedding"], counted["head"]
        expert = max(resident_parameters(run, c)[1] for c, _ in layers)
        gathered = run.gathered_bytes if zero == 3 else 0.0
        trained_groups = trained_embedding, trained, trained_head
        return cls(embedding, widest, head, *trained_groups, expert, gathered)


def _sharded_phases(run: Run, layers: Layers, zero: int, policy: str) -> list[Phase]:
    """Return the phases of a backward pass under FSDP (`transient_bytes`).

    As in torch's FSDPParamGroup: a group's backward pass has its gathered weights and those of the
    group before it (prefetched), its 16-bit gradients, and the reduction's buffer of the group
    behind it, which is freed when its own reduction starts. That has the group's gradients in both
    formats, and its weights no longer. Where the loss is part of the model, embedding and head are
    the outermost group: gathered and with unreduced gradients until the end. The peak is at one of
    the last or first two blocks.
    """
    groups = ShardedGroups.of(run, layers, zero)
    gathered, reduced, half = groups.gathered, run.states.reduced, run.gathered_bytes
    rooted = "block" in run.stack.gathered_at_loss
    alone = 0 if rooted else 1  # embedding and head are groups of their own
    blocks = [(cost, n) for cost, n in layers if cost.is_block]
    count = sum(n for _, n in blocks)
    freed = sum(kept_bytes(run, c, policy) for c, _ in layers if c.name == "head")
    head, embedding = groups.trained_head, groups.trained_embedding
    root = gathered * (groups.embedding + groups.head) + half * head if rooted else 0.0
    # The head's reduction, while the last block is gathered.
    in_head = gathered * groups.block + alone * (half + reduced) * head - freed
    in_head -= alone * (half - gathered) * groups.head
    phases = [(in_head, 0.0, gathered * groups.expert)]
    for number in sorted({1, min(2, count), max(1, count - 1), count}) if count else ():
        done = count - number
        before = groups.block if number > 1 else alone * groups.embedding
        behind = groups.trained_block if done else alone * head
        fixed = root + gathered * before - freed
        fixed -= (half - gathered) * (done * groups.block + alone * groups.head)
        passed = max(_passed(run, cost, policy, done) for cost, _ in blocks)
        least_kept = min(kept_bytes(run, cost, policy) for cost, _ in blocks)
        expert_before, expert_behind = (number > 1) * groups.expert, bool(done) * groups.expert
        parameters = done * groups.trained_block + alone * head
        phases += [
            (fixed + gathered * groups.block + reduced * behind + passed, parameters,
             gathered * (groups.expert + expert_before) + reduced * expert_behind),
            (fixed + (half + reduced) * groups.trained_block - (half - gathered) * groups.block
             - (done + 1) * least_kept, parameters,
             gathered * expert_before + reduced * groups.expert),
        ]  # fmt: skip
    last = (half + reduced) * (embedding + rooted * head)
    if alone and embedding:
        # DTensor computes the gradient of all rows of a table that tensor ranks divide.
        rows = run.model.vocab * run.model.hidden
        table = embedding + (rows if rows > 1.5 * embedding else 0)
        waiting = groups.trained_block if count else head
        last = max(last, half * table + gathered * groups.embedding + reduced * waiting)
    last -= (half - gathered) * (count * groups.block + groups.embedding + groups.head)
    padding = phases[-1:] * (SHARDED_PHASES - 1 - len(phases))
    return [*phases, *padding, (last, 0.0, 0.0)]


def _passed(run: Run, cost: LayerCost, policy: str, done: int) -> float:
    """Return a block's bytes in its backward pass beyond kept ones, less those of done blocks."""
    kept, share = kept_bytes(run, cost, policy), cost.kept(policy).share
    return (kept_bytes(run, cost, "none") - kept) / share + cost.backward_bytes - done * kept


def workspace_bytes(run: Run) -> float:
    handles = run.stack.workspaces + (run.stack.expert_workspaces if run.model.experts else 0)
    return float(handles * WORKSPACE_BYTES)


def _gathered_bytes(run: Run, layers: Layers) -> float:
    """Return the bytes of gathered weights of fully sharded layers, and of their gradients."""
    widest = max((sum(resident_parameters(run, c)) for c, _ in layers if c.is_block), default=0.0)
    ends = max((sum(resident_parameters(run, c)) for c, _ in layers if not c.is_block), default=0.0)
    gathered = max(run.stack.gathered_layers * widest, ends)
    summed = max((_trained(c) for c, _ in layers if c.is_block), default=0)
    return gathered * run.gathered_bytes + min(gathered, summed) * run.states.reduced


def kept_bytes(run: Run, cost: LayerCost, recompute: str) -> float:
    """Return the bytes that a layer keeps per microbatch until its backward pass, without loss."""
    if cost.name == "loss" and run.stack.loss_bytes:
        return 0.0
    policy_cost = cost.kept(recompute)
    kept = policy_cost.bytes - cost.loss_bytes
    if run.stack.keeps_gathered:
        not_recomputed = 1.0
        if cost.is_block and recompute.startswith("full"):
            not_recomputed -= policy_cost.share
        elif cost.is_block and recompute == "alternate":
            not_recomputed = 0.0
        # Composed norms also keep what is gathered.
        counted = 0.0 if "rmsnorm" in run.stack.kept else 1.0
        gathers = (link for link in cost.forward_links if link.kind == "all_gather")
        kept += not_recomputed * sum(link.bytes * (1 - counted / link.group) for link in gathers)
    return kept


def transient_bytes(run: Run, layers: Layers, zero: int, recompute: str) -> list[Phase]:
    """Return the temporaries of blocks' backward passes, with recomputed tensors, beyond kept
    tensors; the last phase is the end of the backward pass, without kept tensors. All are without
    `buffers_bytes`.
    """
    if _is_sharded(run, zero):
        common = _common_bytes(run, layers, zero)
        phases = _sharded_phases(run, layers, zero, recompute)
        return [(bytes_ - common, reduced, padded) for bytes_, reduced, padded in phases]
    most = 0.0
    for cost in (cost for cost, _ in layers if cost.is_block):
        rebuilt = cost.kept("none").bytes - cost.kept(recompute).bytes
        widest = run.stack.temporaries * cost.transient_bytes
        most = max(most, widest, rebuilt + 0.5 * widest)
    return [(most, 0.0, 0.0)] * (SHARDED_PHASES if run.stack.gathered_at_loss else 2)
