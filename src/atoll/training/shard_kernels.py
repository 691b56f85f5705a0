"""Kernels of one rank around its shards: FSDP's copies, and fused updates."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from atoll.hardware.gpu import Gpu
from atoll.training.operators.layers import LayerCost, Share
from atoll.training.operators.roles import widths
from atoll.training.step import Stepper, resident_parameters
from atoll.workload.adapters import trained_weights
from atoll.workload.graph.layer import Layer
from atoll.workload.graph.operator import Role

COPY_IN_BYTES = {4: 33.0, 2: 16.0}
COPY_OUT_BYTES = 4.5
REDUCED_BYTES = {4: 13.6, 2: 6.8}
"""Bytes that take as long as FSDP2's copies at the rate of plain streams (profiles of ranks on one
H200, benchmarks/h200, half `fit`): per weight of a shard into the gather's buffer, by its bytes (a
cast and a copy); per gathered weight out of it; per gradient into the reduction's buffer, by its
bytes there (chunk_cat; the 16-bit figure is assumed as half of the fp32 one)."""

CHUNK_ELEMENTS, MOST_BLOCKS = 65536, 320
"""Elements that a block of torch's multi_tensor_apply goes through, and blocks of one launch."""


class FusedKernel(NamedTuple):
    """Kernel over a list of tensors (multi_tensor_apply in torch's MultiTensorApply.cuh)."""

    tensors: int
    """Most tensors of one launch."""
    launch_s: float
    chunk_s: float
    """Seconds of a block for its chunk, and for one of an embedding's gradient, which is mostly
    zeros: roots and divisions of zeros take a slow path.
    """
    table_s: float
    blocks: int
    """Blocks that a multiprocessor runs at the same time without slowing them down."""
    stream_share: float
    """Share of the rate of plain streams that it reaches."""


ADAMW = FusedKernel(36, 8e-6, 35e-6, 72e-6, 1, 0.85)
NORM = FusedKernel(110, 4e-6, 12e-6, 12e-6, 2, 0.8)
SCALE = FusedKernel(110, 2e-6, 9e-6, 9e-6, 1, 0.87)
CLIP_FIXED_S = 15e-6
"""Seconds of the dozen small kernels between norms and scaling. All of these from profiles of ranks
on one H200 (benchmarks/h200, half `fit`)."""


def update_s(stepper: Stepper, pairs: Sequence[tuple[Layer, int]], optimizer_s: float) -> float:
    """Return the seconds of clipping and a fused update of the tensors of these layers on a rank;
    `optimizer_s` where the optimizer has other kernels.
    """
    run, states = stepper.run, stepper.run.states
    if run.stack.optimizer != "fused" or not isinstance(run.gpu, Gpu):
        return optimizer_s
    sizes = _tensor_sizes(stepper, pairs)
    moved = 2 * states.weight + states.gradient + 2 * states.optimizer
    kernels = [(ADAMW, moved)]
    if run.stack.clips:
        kernels += [(NORM, states.gradient), (SCALE, 2 * states.gradient)]
    fused_s = (_fused_s(run.gpu, kernel, sizes, moved) for kernel, moved in kernels)
    return sum(fused_s) + run.stack.clips * CLIP_FIXED_S


def _tensor_sizes(stepper: Stepper, pairs: Sequence[tuple[Layer, int]]) -> list[tuple[float, bool]]:
    """Return the elements of each trained tensor on a rank, and whether it is a table."""
    run, layout = stepper.run, stepper.layout
    dense, expert = (layout.divided(1.0, 0.0), layout.divided(0.0, 1.0)) if layout.zero else (1, 1)
    expert *= run.expert_padding(layout) / layout.ep
    sizes: list[tuple[float, bool]] = []
    owners: dict[str, Layer] = {}  # a tied embedding is updated once
    for layer, count in pairs:
        trained = trained_weights(layer) if run.adapters else layer.tensors
        weights = {n: t for n, t in layer.tensors.items() if t.role is Role.WEIGHT and n in trained}
        split = {n: len(widths(layer, op)) for op in layer.forward for n in op.reads[1:2]}
        for name, tensor in weights.items():
            if owners.setdefault(name, layer) is layer:
                # Gate and up are two tensors where they are two products.
                is_split = run.stack.split_products and name.startswith("fc1")
                parts = max(1, split.get(name, 1)) if is_split else 1
                share = expert if len(tensor.shape) == 3 else dense
                size = tensor.elements * share / parts
                sizes += [(size, layer.name == "embedding")] * count * parts
    return sizes


def _fused_s(
    gpu: Gpu, kernel: FusedKernel, sizes: Sequence[tuple[float, bool]], moved_bytes: float
) -> float:
    """Return the seconds of the launches over tensors of these sizes, which may be of tables."""
    total_s, blocks, tensors = 0.0, 0, 0
    longest_s = work_s = elements = 0.0
    for index, (size, is_table) in enumerate(sizes):
        chunk_s = kernel.table_s if is_table else kernel.chunk_s
        left, last = size, index == len(sizes) - 1
        tensors += 1
        while left > 0:
            new = min(ceil(left / CHUNK_ELEMENTS), MOST_BLOCKS - blocks)
            part = min(left, new * CHUNK_ELEMENTS)
            blocks, elements, left = blocks + new, elements + part, left - part
            longest_s = max(longest_s, min(1.0, part / CHUNK_ELEMENTS) * chunk_s)
            work_s += part / CHUNK_ELEMENTS * chunk_s / (kernel.blocks * gpu.sms)
            if blocks == MOST_BLOCKS or (not left and (tensors == kernel.tensors or last)):
                stream_s = elements * moved_bytes / (kernel.stream_share * gpu.stream_Bps)
                total_s += kernel.launch_s + max(longest_s, work_s, stream_s)
                blocks, tensors = 0, int(left > 0)
                longest_s = work_s = elements = 0.0
    return total_s


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
