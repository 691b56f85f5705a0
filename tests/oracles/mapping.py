"""The mapper's answer for one product, with the mapping that it chose."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.base.errors import AtollError
from atoll.base.jit import entry
from atoll.cost import gemm_kernels as kernels
from atoll.hardware.accelerator import KIB, Accelerator
from atoll.hardware.silicon.chip import chip_stalls
from atoll.workload.graph.operator import Matmul

ORDERS = ("A panel", "B panel", "C tile")


@entry
def _map_alone(p: Any, c: Any, out: Any) -> Any:
    return kernels.map_product(p, c, out)


@dataclass(frozen=True, slots=True)
class Mapping:
    """One mapping with its cost; `atoll.cost.gemm_kernels` defines the sizes."""

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
    time_s = _map_alone(
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
