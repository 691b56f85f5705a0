"""Kernels of one rank around its shards: FSDP's copies, and fused updates of small shards."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.training.operators.layers import LayerCost, Share
from atoll.training.step import Stepper, resident_parameters

COPY_IN_BYTES = {4: 33.0, 2: 16.0}
COPY_OUT_BYTES = 4.5
REDUCED_BYTES = {4: 13.6, 2: 6.8}
"""Bytes that take as long as FSDP2's copies at the rate of plain streams (profiles of ranks on one
H200, benchmarks/h200, half `fit`): per weight of a shard into the gather's buffer, by its bytes (a
cast and a copy); per gathered weight out of it; per gradient into the reduction's buffer, by its
bytes there (chunk_cat)."""

FUSED_TENSORS, CHUNK_ELEMENTS, CHUNK_S = 36, 65536, 64e-6
CLIP_TENSORS, CLIP_CHUNK_S, CLIP_FIXED_S = 110, 25e-6, 15e-6
"""Tensors of one launch of multi_tensor_apply, elements that one of its blocks goes through, and
the seconds that this takes in AdamW's kernel; tensors and seconds of a norm and a scaling in
clipping, and the seconds of its dozen small kernels."""


def update_floor_s(stepper: Stepper, chunks: Sequence[Share]) -> float:
    """Return the least seconds of the optimizer's fused kernels: small shards have too few blocks
    to fill the device.
    """
    run, layout = stepper.run, stepper.layout
    if run.stack.optimizer != "fused" or run.adapters is not None:
        return 0.0
    pairs = [pair for chunk in chunks for pair in chunk]
    tensors = sum(n * cost.modules for cost, n in pairs)
    divided = layout.divided(1.0, 0.0) if layout.zero else 1.0
    widest = max(
        divided * (cost.parameters + cost.expert_parameters) / max(1, cost.modules)
        for cost, _ in pairs
    )
    filled = min(1.0, widest / CHUNK_ELEMENTS)
    floor_s = -(-tensors // FUSED_TENSORS) * CHUNK_S * filled
    if run.stack.clips:
        floor_s += -(-tensors // CLIP_TENSORS) * CLIP_CHUNK_S * filled + CLIP_FIXED_S
    return floor_s


def shard_copies_s(stepper: Stepper, chunks: Sequence[Share]) -> float:
    """Return the seconds per step of copies in and out of FSDP's buffers on a stage. Estimates of
    steps count them as part of communication.
    """
    run, layout, microbatches = stepper.run, stepper.layout, stepper.microbatches
    if not run.stack.gathered_at_loss or not layout.zero or layout.dp == layout.hsdp:
        return 0.0
    shards = layout.divided(1.0, 0.0)
    piped, kept = layout.pp > 1, layout.zero < 3
    reductions = 1 if piped or run.stack.delays_reduction else microbatches

    def gathers(cost: LayerCost) -> int:
        once = kept or cost.name in run.stack.gathered_at_loss
        return (1 if piped and kept else microbatches) * (1 if once else 2)

    in_bytes = COPY_IN_BYTES.get(round(run.states.weight), 0.0) * shards
    bytes_ = 0.0
    for cost, n in (pair for chunk in chunks for pair in chunk):
        gathered = gathers(cost) * sum(resident_parameters(run, cost))
        bytes_ += n * gathered * (COPY_OUT_BYTES + in_bytes)
        trained = cost.parameters + cost.expert_parameters
        bytes_ += n * reductions * trained * REDUCED_BYTES.get(round(run.states.reduced), 0.0)
    return bytes_ / run.gpu.stream_Bps
