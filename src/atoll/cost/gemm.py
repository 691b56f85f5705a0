"""The GEMM mapper: the fastest way through HBM, the shared buffer, core buffers and the arrays.

Model. A product (batch x) m x k by k x n runs on some number of tensor cores, each a weight-
stationary systolic array of `depth` rows (reduction) by `width` columns (outputs):

* Orientation: the rows of A stream past resident tiles of B, or the columns of B past tiles of A.
  Below, A is the operand that streams and B the one that rests.
* Cores split the batch and the streamed rows by powers of two (up to the first that leaves one
  each), the columns by a power of two or by all cores that are left and have columns to work on.
  What does not divide is padded: each core takes the ceiling of its share.
* Core: its rows stream in chunks of even size that fit its buffer (double-buffered 2-byte inputs
  and 4-byte accumulators: 4 depth + 4 width bytes a row), in the fewest such chunks or two, four,
  ... times as many. A resident tile takes a cycle a row, but at least `depth` a chunk: the next
  tile of weights loads meanwhile, a row a cycle. Accumulation over k stays in the core. Filling and
  draining the array costs 2 depth + width cycles once per product.
* Shared buffer (GLB): A is read once per round of columns, B once per chunk of rows; cores that
  need the same data share one read (multicast). Outputs, and what a fused epilogue moves, pass
  once.
* HBM: macro tiles in the buffer, in one of three orders. A panel of A, or of B, stays while the
  other operand streams; room for the next panel is kept where one follows. Or a tile of C stays in
  4-byte partial sums while slices of both operands stream. The reduction is cut into a power of two
  of parts of whole array depths, or into single depths; partial sums then pass the GLB, and in the
  panel orders HBM, once out and once in for each further part. Tiles are whole rounds of the cores
  (a chunk of rows, or an array's columns, on each), so that tiling adds no padding. Products that
  run side by side share the buffer.

Time is the largest of compute, GLB and HBM time: all levels are double buffered. Where a kind of
chip stalls (`hardware.template.stalls`), cores wait for the first operands of every round and for
the way of the outputs to the GLB, and a part of the shorter of cores' and HBM time is not hidden by
the longer. The mapper is exact over this space. Among equally fast mappings with the fewest chunks
and most cores it takes one with the least HBM traffic. `docs/cost-model.md` has the formulas.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atoll.base.errors import AtollError
from atoll.cost import gemm_kernels as kernels
from atoll.hardware.accelerator import KIB, Accelerator
from atoll.hardware.silicon.chip import chip_stalls
from atoll.workload.graph.operator import Matmul

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

    `extra_bytes` is traffic that rides along (a fused epilogue's operands). The chip loses what it
    says itself; an operator's start is none of its product's time.
    """
    stalls = chip_stalls(chip)
    record = np.zeros(kernels.RECORD)
    time_s = kernels.map_alone(
        kernels.Product(
            product.batch, product.m, product.n, product.k, float(product.fraction),
            float(extra_bytes), False,
        ),
        kernels.Cores(
            chip.tensor_cores if cores is None else cores, chip.width, chip.depth,
            float(chip.core_buffer_bytes), float(chip.glb_bytes * glb_share),
            float(chip.hbm.bandwidth_Bps * stalls.hbm),
            float(chip.glb_bandwidth_Bpc * chip.clock_Hz), float(chip.clock_Hz * stalls.array),
            stalls.fill_s, stalls.drained, stalls.exposed,
        ),
        record,
    )  # fmt: skip
    if not np.isfinite(time_s):
        raise AtollError(
            f"{chip.name or 'chip'}: no tile of a product {product.m} x {product.k} x {product.n} "
            f"fits {chip.glb_bytes * glb_share / KIB:g} KiB of the shared buffer beside arrays of "
            f"{chip.width} x {chip.depth}; enlarge the buffer."
        )
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
