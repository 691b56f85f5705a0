"""Kernels of one rank around its shards: FSDP's copies, and fused updates."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

from atoll.hardware.gpu import Gpu
from atoll.training.operators.layers import HALF, Share
from atoll.training.operators.roles import widths
from atoll.training.step import Stepper, resident_parameters
from atoll.workload.adapters import trained_weights
from atoll.workload.graph.layer import Layer
from atoll.workload.graph.operator import Role

COPY_IN_BYTES = {4: 15.0, 2: 6.3}
COPY_IN_S = 10e-6
COPY_OUT_BYTES = 4.5
REDUCED_BYTES = {4: 13.6, 2: 5.3}
"""FSDP2's copies as bytes that take as long at the rate of plain streams (profiles of ranks with
collectives in line on one H200, h200_ranks_3.csv, half `fit`): per weight of a shard into the
gather's buffer, by its bytes (a cast and a copy), with the launches of a gather; per gathered
weight out of it; per gradient into the reduction's buffer, by its bytes there (chunk_cat)."""

CHUNK_ELEMENTS, MOST_BLOCKS = 65536, 320
"""Elements that a block of torch's multi_tensor_apply goes through, and blocks of one launch."""


class FusedKernel(NamedTuple):
    """Kernel over a list of tensors (multi_tensor_apply in torch's MultiTensorApply.cuh)."""

    tensors: int
    """Most tensors of one launch."""
    launch_s: float
    chunk_s: float
    """Seconds of a block for its chunk, and for one of an embedding's gradient, which is mostly
    zeros unless the head shares its weights: roots and divisions of zeros take a slow path.
    """
    table_s: float
    blocks: int
    """Blocks that a multiprocessor runs at a time; more run in waves."""
    crowded: float
    """Time of a block beside others over its time alone."""
    stream_share: float
    """Share of the rate of plain streams that it reaches."""


ADAMW = FusedKernel(36, 8e-6, 33e-6, 66e-6, 2, 1.5, 0.85)
NORM = FusedKernel(110, 4e-6, 12e-6, 12e-6, 3, 1.0, 0.95)
SCALE = FusedKernel(110, 2e-6, 9e-6, 9e-6, 2, 1.5, 0.87)
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
    dense_names = {n for layer, _ in pairs if layer.name != "embedding" for n in layer.tensors}
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
                is_table = name.startswith("word") and name not in dense_names
                sizes += [(size, is_table)] * count * parts
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
            work_s += part / CHUNK_ELEMENTS * chunk_s
            if blocks == MOST_BLOCKS or (not left and (tensors == kernel.tensors or last)):
                stream_s = elements * moved_bytes / (kernel.stream_share * gpu.stream_Bps)
                waves = ceil(blocks / (kernel.blocks * gpu.sms))
                waves_s = waves * work_s / blocks * (kernel.crowded if blocks > gpu.sms else 1.0)
                total_s += kernel.launch_s + max(longest_s, waves_s, stream_s)
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
    piped, kept = layout.pp > 1, layout.zero < 3
    reductions = 1 if piped or run.stack.delays_reduction else microbatches
    padding = run.expert_padding(layout)
    # A loss outside of the model finds the head gathered; after one inside, all are divided again.
    gathered_once = run.stack.gathered_at_loss if layout.zero == 3 else ()
    gathered_once = () if "block" in gathered_once else gathered_once
    in_bytes = COPY_IN_BYTES.get(round(run.states.weight), 0.0) * layout.divided(1.0, 0.0)
    reduced_bytes = REDUCED_BYTES.get(round(run.states.reduced), 0.0)
    if layout.zero == 2:  # `accumulation_s` counts a plain copy
        reduced_bytes -= HALF + run.states.reduced
    bytes_ = launches_s = 0.0
    for cost, n in (pair for chunk in chunks for pair in chunk):
        once = kept or cost.name in gathered_once
        gathers = (1 if piped and kept else microbatches) * (1 if once else 2)
        dense, expert = resident_parameters(run, cost)
        trained = cost.parameters + padding * cost.expert_parameters
        bytes_ += n * gathers * (dense + padding * expert) * (COPY_OUT_BYTES + in_bytes)
        bytes_ += n * reductions * trained * reduced_bytes
        launches_s += n * gathers * COPY_IN_S
    return bytes_ / run.gpu.stream_Bps + launches_s
