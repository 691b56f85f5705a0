"""ZigZag as a cost model of Atoll.

Mei et al., "ZigZag: Enlarging Joint Architecture-Mapping Design Space Exploration for DNN
Accelerators", IEEE Trans. Computers 70(8), 2021; package zigzag-dse. A configuration of tensor
cores becomes one of its accelerators: weight-stationary arrays of `depth` rows (reduction) by
`width` columns, side by side as a third dimension; registers for weights and sums in every cell, a
buffer beside each core, the shared buffer (GLB) and HBM. Its LOMA engine searches the order of
temporal loops; the spatial mapping is one of four: the rows of A stream past tiles of B, or the
columns of B past tiles of A, and cores share the streamed dimension or the resident one.

Products of a batch run one after another. Masked products (a fraction of the outputs) take that
share of a full one. Bytes that ride along pass HBM once. Operands of fused attention lie in the GLB
already: HBM is then as fast as the GLB, and Atoll counts its traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np

from atoll import AtollError
from atoll.plugins import CostModel, ProductCosts, Shape, TensorConfigs


class Machine(NamedTuple):
    """One configuration of cores, in ZigZag's units: bits, and bits a cycle."""

    cores: int
    width: int
    depth: int
    core_bits: int
    glb_bits: int
    glb_bits_per_cycle: int
    hbm_bits_per_cycle: int


class Mapped(NamedTuple):
    """The fastest mapping of one product."""

    cycles: float
    hbm_bytes: float
    glb_bytes: float


def products(shapes: Sequence[Shape], configs: TensorConfigs) -> ProductCosts:
    """Seconds, HBM and GLB bytes of products on configurations; each distinct pair is mapped once
    in a process."""
    seconds, hbm, glb = (np.zeros((len(shapes), len(configs))) for _ in range(3))
    for c in range(len(configs)):
        clock_Hz, hbm_Bps = float(configs.clock_Hz[c]), float(configs.hbm_Bps[c])
        glb_Bps = float(configs.glb_Bps[c])
        for s, shape in enumerate(shapes):
            machine = Machine(
                int(configs.cores[c]),
                int(configs.width[c]),
                int(configs.depth[c]),
                int(8 * configs.core_buffer_bytes[c]),
                int(8 * configs.glb_budget_bytes[c]),
                int(8 * glb_Bps / clock_Hz),
                int(8 * (glb_Bps if shape.on_chip else hbm_Bps) / clock_Hz),
            )
            found = map_product(shape.m, shape.n, shape.k, machine)
            times = shape.batch * shape.fraction
            least = (
                2.0
                * shape.batch
                * (shape.m * shape.k + shape.k * shape.n + shape.m * shape.n * shape.fraction)
            )
            if not shape.on_chip:
                hbm[s, c] = max(found.hbm_bytes * times, least) + shape.extra_bytes
            glb[s, c] = found.glb_bytes * times + shape.extra_bytes
            # Epilogues, and bandwidths that are no whole number of bits.
            seconds[s, c] = max(
                found.cycles * times / clock_Hz, hbm[s, c] / hbm_Bps, glb[s, c] / glb_Bps
            )
    return ProductCosts(seconds, hbm, glb)


ZIGZAG = CostModel("zigzag", products)


@cache
def map_product(m: int, n: int, k: int, machine: Machine) -> Mapped:
    """The fastest of the spatial mappings."""
    try:
        from atoll_zigzag.engine import mapped
    except ImportError as error:
        raise AtollError(
            f"cost model zigzag needs ZigZag ({error}); pip install 'atoll-zigzag[zigzag]'."
        ) from None
    found = [
        each
        for rows, columns in ((m, n), (n, m))
        for on in (("rows", "columns") if machine.cores > 1 else ("rows",))
        if (each := mapped(rows, columns, k, on, machine)) is not None
    ]
    if not found:
        raise AtollError(f"ZigZag finds no mapping of a product {m} x {k} x {n} on {machine}.")
    return min(found)
