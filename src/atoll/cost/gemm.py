"""The GEMM mapper: the fastest way through HBM, the shared buffer, core buffers and the arrays.

Model. A product (batch x) m x k by k x n runs on some number of tensor cores, each a weight-
stationary systolic array of `depth` rows (reduction) by `width` columns (outputs):

* Orientation: the rows of A stream past resident tiles of B, or the columns of B past tiles of A.
* Cores split the batch, the streamed rows and the output columns by powers of two. What does not
  divide is padded: each core takes the ceiling of its share.
* Core: rows stream in chunks that fit its buffer (double-buffered 2-byte inputs and 4-byte
  accumulators: 4 depth + 4 width bytes a row). Each resident tile takes max(rows, depth) cycles:
  the next tile of weights loads meanwhile, a row a cycle. Accumulation over k stays in the core.
  Filling and draining the array costs 2 depth + width cycles once per operator.
* Shared buffer (GLB): the streamed operand is read once per round of columns, the resident one
  once per chunk of rows; cores that need the same data share one read (multicast).
* HBM: macro tiles in the buffer, in one of three orders: a panel of A or of B stays while the
  other operand streams (partial sums of a split reduction spill to HBM), or a tile of C stays in
  4-byte partial sums while slices of both stream (partial sums then pass through the GLB). Tiles
  are whole rounds of the cores, so tiling adds no padding; the reduction is cut in powers of two.

Time is the largest of compute, GLB and HBM time: all levels are double buffered. The mapper is
exact over this space: for each split it finds the best macro tile in closed form or by enumerating
every distinct tile count. Among equally fast mappings it takes the one with the least HBM traffic.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from atoll.cost import gemm_kernels as kernels
from atoll.hardware.accelerator import Accelerator
from atoll.workload.operator import Matmul

ORDERS = ("A panel", "B panel", "C tile")


@dataclass(frozen=True, slots=True)
class Mapping:
    """One mapping with its cost; sizes as in the module's description."""

    time_s: float
    compute_cycles: float
    hbm_bytes: float
    glb_bytes: float
    streams: str  # "m" or "n": the dimension that streams through the arrays
    cores_batch: int
    cores_rows: int
    cores_columns: int
    rows_per_chunk: int
    order: str
    k_parts: int
    tiles_rows: int
    tiles_columns: int


def map_matmul(
    product: Matmul,
    chip: Accelerator,
    cores: int | None = None,
    *,
    glb_share: float = 0.5,
    extra_bytes: float = 0.0,
) -> Mapping:
    """The fastest mapping of a product on at most `cores` tensor cores (default: all).

    `extra_bytes` is HBM traffic that rides along (a fused epilogue's operands).
    """
    limit = chip.tensor_cores if cores is None else cores
    best: tuple[float, NDArray[np.float64]] | None = None
    for count in core_counts(limit):
        record = np.zeros(kernels.RECORD)
        time_s = kernels.map_one(
            product.batch, product.m, product.n, product.k, product.fraction, extra_bytes, False,
            count, chip.width, chip.depth, float(chip.core_buffer_bytes),
            chip.glb_bytes * glb_share, chip.hbm.bandwidth_Bps,
            chip.glb_bandwidth_Bpc * chip.clock_Hz, chip.clock_Hz, record,
        )  # fmt: skip
        if best is None or time_s < best[0]:
            best = (time_s, record)
    assert best is not None
    time_s, record = best
    return Mapping(
        time_s=time_s,
        compute_cycles=float(record[kernels.COMPUTE]),
        hbm_bytes=float(record[kernels.HBM]),
        glb_bytes=float(record[kernels.GLB]),
        streams="n" if record[kernels.STREAM_N] else "m",
        cores_batch=int(record[kernels.SPLIT_BATCH]),
        cores_rows=int(record[kernels.SPLIT_M]),
        cores_columns=int(record[kernels.SPLIT_N]),
        rows_per_chunk=int(record[kernels.ROWS]),
        order=ORDERS[int(record[kernels.ORDER])],
        k_parts=int(record[kernels.K_PARTS]),
        tiles_rows=int(record[kernels.TILES_M]),
        tiles_columns=int(record[kernels.TILES_N]),
    )


def core_counts(limit: int) -> tuple[int, ...]:
    """The spreads that an operator may take: powers of two, and all cores."""
    counts = [1 << i for i in range(limit.bit_length()) if 1 << i <= limit]
    return tuple(counts) if counts[-1] == limit else (*counts, limit)
