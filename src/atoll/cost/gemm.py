"""GEMM mapper: the fastest mapping of a product to HBM, shared buffer, core buffers and arrays.

Model. A product (batch x) m x k by k x n runs on some number of tensor cores, each a weight-
stationary systolic array of `depth` rows (reduction) by `width` columns (outputs):

* Orientation: the rows of A stream past resident tiles of B, or the columns of B past tiles of A.
  Below, A is the streaming operand and B the resident one.
* Cores split the batch and the streamed rows by powers of two (up to the first that leaves one
  each), the columns by a power of two or by all remaining cores that have columns to work on.
  Uneven shares are padded: each core takes the ceiling of its share.
* Core: its rows stream in chunks of even size that fit its buffer (double-buffered 2-byte inputs
  and 4-byte accumulators: 4 depth + 4 width bytes per row), in the fewest such chunks or two, four,
  ... times as many. A resident tile takes one cycle per row, but at least `depth` per chunk: the
  next tile of weights loads at one row per cycle. Accumulation over k stays in the core.
  Filling and draining the array costs 2 depth + width cycles once per product.
* Shared buffer (GLB): A is read once per round of columns, B once per chunk of rows; cores that
  need the same data share one read (multicast). Outputs and operands of a fused epilogue pass once.
* HBM: macro tiles in the buffer, in one of three orders. A panel of A, or of B, stays while the
  other operand streams; space for the next panel is reserved if one follows. Or a tile of C stays
  as 4-byte partial sums while slices of both operands stream. The reduction is cut into a power of
  two of parts of whole array depths, or into single depths; partial sums then pass the GLB, and in
  the panel orders HBM, once out and once in per additional part. Tiles are whole rounds of the
  cores (a chunk of rows, or an array's columns, on each), so tiling adds no padding. Concurrent
  products share the buffer.

Time is the largest of compute, GLB and HBM time: all levels are double buffered. If chips have
stalls (`hardware.template.stalls`), cores wait for the first operands of every round and for the
outputs to reach the GLB, and a share of the shorter of core and HBM time does not overlap. The
mapper is exact over this space. Among equally fast mappings with the fewest chunks and most cores
it takes one with the least HBM traffic. `docs/cost-model.md` has the formulas.
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
    """One mapping with its cost; sizes are defined in the module docstring."""

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
    """Return the fastest mapping of a product on at most `cores` tensor cores (default: all).

    `extra_bytes` is additional traffic (operands of a fused epilogue). The chip's own stalls apply;
    the start time of an operator is not included.
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
    """Return the core counts that an operator may use: powers of two, and all cores."""
    counts = [1 << i for i in range(limit.bit_length()) if 1 << i <= limit]
    return tuple(counts) if counts[-1] == limit else (*counts, limit)
