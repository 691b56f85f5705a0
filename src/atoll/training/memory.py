"""Bytes on the fullest device, by part, as a caching allocator would see them at its peak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atoll.hardware.gpu import SCALED
from atoll.step.bubbles import chunk_weights, held_bytes
from atoll.step.layout import Layout
from atoll.step.parts import MEMORY_PARTS
from atoll.training.operators.layers import LayerCost, Share
from atoll.training.run import Run
from atoll.training.step import held_parameters

PARTS = tuple(part for part in MEMORY_PARTS if part != "guests")  # which a wafer has
RESERVED = 0.12  # of what is allocated, held back by the allocator when memory is not short
WORKSPACE_BYTES = 32 << 20  # of a matrix library's handle, as PyTorch asks for since Hopper


@dataclass(frozen=True, slots=True)
class Memory:
    """One device's peak, by part."""

    stage: int
    weights: float
    gradients: float
    optimizer: float
    activations: float
    logits: float
    transient: float
    buffers: float
    fragmentation: float = 0.0
    """Of what is allocated, lost between blocks."""
    context_bytes: float = 0.0
    """Outside the allocator."""
    resting: float = 0.0
    """What stays allocated between two steps."""

    @property
    def allocated(self) -> float:
        """What the allocator reports as its peak."""
        return sum(self.parts().values())

    @property
    def reserved(self) -> float:
        """With the blocks that the allocator holds back between uses."""
        return self.allocated * (1 + RESERVED)

    @property
    def needed(self) -> float:
        """What the device must have free: with fragmentation and the driver's own share."""
        return self.allocated * (1 + self.fragmentation) + self.context_bytes

    def parts(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in PARTS}


def losses_in_flight(layout: Layout, microbatches: int) -> int:
    """Microbatches whose loss waits for its backward pass: it follows at once, except in GPipe."""
    return microbatches if layout.schedule == "gpipe" else 1


def stage_memory(
    run: Run,
    layout: Layout,
    stage: int,
    chunks: Sequence[Share],
    microbatches: int,
    recompute: str,
    *,
    shared_parameters: int = 0,
    entering_bytes: float = 0.0,
) -> Memory:
    """The peak of one stage that holds so many of each layer in its chunks, and that gets so many
    bytes of each microbatch from another stage.
    """
    layers = [pair for chunk in chunks for pair in chunk]
    trained, held = stage_parameters(run, layers, shared_parameters)
    states = run.states
    _, gradients, optimizer = states.parts(sum(trained), layout.divided(*trained), layout.zero)
    weights, _, _ = states.parts(sum(held), layout.divided(*held), layout.zero)
    where = layout.schedule, layout.pp, stage, microbatches, layout.vpp
    kept = sum(
        weight * n * kept_bytes(run, cost, recompute)
        for weight, chunk in zip(chunk_weights(*where), chunks, strict=True)
        for cost, n in chunk
    )
    late = sum(cost.waiting_bytes * n for cost, n in layers) / layout.copies
    activations = float(held_bytes(*where, kept_bytes=kept, waiting_bytes=late))
    logits = logits_bytes(run, layout, layers, microbatches)
    transient = transient_bytes(run, layers, recompute)
    buffers = buffers_bytes(run, layers, layout.zero)
    if layout.zero < 3:
        weights += sum(fp8_bytes(run, cost) * n for cost, n in layers)
    buffers += run.stack.sends_held * entering_bytes
    resting = weights + optimizer + workspace_bytes(run)
    if not run.stack.late_gradients:
        resting += gradients
    lost = run.stack.fragmentation, run.stack.context_bytes, resting
    if run.stack.late_gradients and layout.zero < 2:
        # Gradients appear layer by layer as activations go, so that the peak is at either end;
        # with accumulation they are there from the second microbatch on. A tied embedding's two
        # gradients are summed into a third tensor.
        early = gradients if microbatches > 1 else 0.0
        tied = 0 if run.adapters else shared_parameters
        summed = max(transient, 2 * states.gradient * tied)
        at_loss = Memory(stage, weights, early, optimizer, activations, logits, 0.0, buffers, *lost)
        at_end = Memory(stage, weights, gradients, optimizer, 0.0, 0.0, summed, buffers, *lost)
        return max(at_loss, at_end, key=lambda memory: memory.allocated)
    # The loss is over before the first block's temporaries appear.
    transient = max(transient, logits) - logits
    return Memory(
        stage, weights, gradients, optimizer, activations, logits, transient, buffers, *lost
    )


Parameters = tuple[float, float]


def stage_parameters(
    run: Run, layers: Sequence[tuple[LayerCost, int]], shared: int
) -> tuple[Parameters, Parameters]:
    """Dense and expert parameters of a stage that are trained, and those that it holds
    (`held_parameters`); of both what several layers have in common once.
    """
    dense = sum(cost.parameters * n for cost, n in layers)
    expert = sum(cost.expert_parameters * n for cost, n in layers)
    if not run.adapters:
        dense -= shared
    held = [(held_parameters(run, cost), n) for cost, n in layers]
    held_dense = sum(d * n for (d, _), n in held) - shared
    return (float(dense), float(expert)), (held_dense, sum(e * n for (_, e), n in held))


def logits_bytes(
    run: Run, layout: Layout, layers: Sequence[tuple[LayerCost, int]], microbatches: int
) -> float:
    """Logits at the peak of the loss, and what waits of other microbatches' losses."""
    heads = [cost for cost, n in layers for _ in range(n) if cost.logits_bytes]
    if not heads:
        return 0.0
    stack, losses = run.stack, losses_in_flight(layout, microbatches)
    head = max(heads, key=lambda cost: cost.logits_bytes)
    logits = head.logits_bytes / 2  # 16-bit elements
    # Modules of masked language models and of T5 hand 16-bit logits to the loss.
    half = head.half_loss or run.model.mlm_head or run.model.encoder_layers > 0
    peak = logits * (stack.half_loss_bytes if half else stack.loss_bytes)
    if not stack.vocabulary_parallel:
        peak *= layout.tp
    deferred = min(stack.deferred_heads, microbatches) * logits * 2
    every = sum(cost.logits_bytes / 2 for cost in heads)
    return peak + (every * losses - logits) * stack.loss_kept + deferred


def _trained(cost: LayerCost) -> int:
    return cost.parameters + cost.expert_parameters


def fp8_bytes(run: Run, cost: LayerCost) -> float:
    """Of a layer's weights, copies in fp8 beside the 16-bit ones, where these are not divided."""
    held = run.precision in SCALED and cost.is_block
    whole = cost.frozen if run.adapters else (cost.parameters, cost.expert_parameters)
    return run.stack.fp8_copies * sum(whole) if held else 0


def buffers_bytes(run: Run, layers: Sequence[tuple[LayerCost, int]], zero: int) -> float:
    """Divided tensors while they are whole, and workspaces of matrix libraries."""
    buffers = _gathered_bytes(run, layers) if zero >= 3 else 0.0
    if zero == 2:  # a layer's whole gradient, until it is reduced
        buffers = run.states.reduced * max(_trained(cost) for cost, _ in layers)
    return buffers + workspace_bytes(run)


def workspace_bytes(run: Run) -> float:
    handles = run.stack.workspaces + (run.stack.expert_workspaces if run.model.experts else 0)
    return float(handles * WORKSPACE_BYTES)


def _gathered_bytes(run: Run, layers: Sequence[tuple[LayerCost, int]]) -> float:
    """Of fully sharded layers, the weights that are whole at a time and the gradient of as many."""
    widest = max((sum(held_parameters(run, c)) for c, _ in layers if c.is_block), default=0.0)
    ends = max((sum(held_parameters(run, c)) for c, _ in layers if not c.is_block), default=0.0)
    gathered = max(run.stack.gathered_layers * widest, ends)
    summed = max((_trained(c) for c, _ in layers if c.is_block), default=0)
    return gathered * run.states.weight + min(gathered, summed) * run.states.reduced


def kept_bytes(run: Run, cost: LayerCost, recompute: str) -> float:
    """Bytes that one layer keeps of one microbatch until its backward pass, its loss apart."""
    if cost.name == "loss" and run.stack.loss_bytes:
        return 0.0
    policy = recompute if cost.is_block else "none"
    known = cost.kept(policy)
    kept = known.bytes - cost.loss_bytes
    if run.stack.keeps_gathered:
        whole = 1 - known.share if policy.startswith("full") else 1.0
        kept += whole * sum(x.bytes for x in cost.forward_links if x.kind == "all_gather")
    return kept


def transient_bytes(run: Run, layers: Sequence[tuple[LayerCost, int]], recompute: str) -> float:
    """Temporaries while a block's backward runs: with recomputation, the block's own tensors."""
    most = 0.0
    for cost in (cost for cost, _ in layers if cost.is_block):
        rebuilt = cost.kept("none").bytes - cost.kept(recompute).bytes
        widest = run.stack.temporaries * cost.transient_bytes
        most = max(most, widest, rebuilt + 0.5 * widest)
    return most
