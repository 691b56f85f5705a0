"""Kernels of plain PyTorch modules that a layer's graph does not show one by one.

Counted in profiles of steps on one H200 (benchmarks/h200, half `fit`).
"""

from __future__ import annotations

from atoll.workload.graph.layer import Layer
from atoll.workload.graph.operator import Operator, Role, VectorWork

SUM_BYTES = 6  # per element of a sum of two 16-bit tensors
EMBEDDING_BYTES = 64
"""Per element of the gradient that is added to rows of the table, which are sorted first:
compute_grad_weight and sum_and_scatter reach 1 to 1.2 TB/s each."""
FP32_TABLE = 6
"""Bytes moved over those of a 16-bit table: fp32 zeros, then read, added and written in 16 bits."""
NORM_COLUMNS = 450
"""Columns by which the time of a row exceeds its bytes in the forward kernel."""
WEIGHT_COLUMNS = 2560
"""Columns below which gradients of a layer norm's weights leave the device partly idle: the time
depends on the rows alone (GammaBetaBackward, half of the backward pass)."""


def split_gradient_bytes(op: Operator, parts: int) -> float:
    """Return the bytes of sums of input gradients of products that share their input."""
    if op.kind != "linear_dgrad" or parts < 2:
        return 0.0
    return sum((parts - 1) * SUM_BYTES * p.batch * p.m * p.n for p in op.matmuls)


def embedding_gradient_bytes(layer: Layer, op: Operator, fp32_table: bool) -> float:
    """Return the bytes of an embedding's backward pass: a table of zeros, and rows added to it. An
    fp32 table is written, read and cast; its rows are added in any order.
    """
    added = max(layer.tensors[name].elements for name in op.reads)
    table = max(tensor.bytes for tensor in layer.tensors.values() if tensor.role is Role.WEIGHT)
    if fp32_table:
        return FP32_TABLE * table + SUM_BYTES * added
    return table + EMBEDDING_BYTES * added


def norm_elements(work: VectorWork) -> float:
    """Return the elements whose bytes take as long as a layer norm's kernels."""
    columns = float(work.cols)
    if work.function == "layernorm":
        columns += NORM_COLUMNS
    elif work.function == "layernorm_bwd":
        columns = (columns + max(columns, WEIGHT_COLUMNS)) / 2
    return work.elements / work.cols * columns
