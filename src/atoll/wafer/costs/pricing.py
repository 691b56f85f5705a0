"""Seconds of products and vector passes on one die, from the mapper and the vector model."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from atoll.cost import gemm_kernels
from atoll.cost.vector import vector_cycles
from atoll.hardware.accelerator import Accelerator
from atoll.jit import over_ranges
from atoll.profiles import DEFAULT
from atoll.wafer.encoding.block_parts import Pass, Product, Unit
from atoll.workload.graph.operator import VectorWork

Shape = tuple[int, int, int, int, float, bool]
Parts = dict[str, int]


def split(size: int, parts: int) -> int:
    """The largest share when `size` is cut in `parts`."""
    return -(-size // parts)


class Pricer:
    """Prices products on a die, each distinct shape once."""

    def __init__(self, chip: Accelerator) -> None:
        self.chip = chip
        self._known: dict[Shape, float] = {}

    def prepare(self, shapes: Iterable[Shape]) -> None:
        """Map all shapes that are not yet known, on all cores."""
        fresh = sorted({shape for shape in shapes if shape not in self._known})
        if not fresh:
            return
        columns = list(zip(*fresh, strict=True))
        chip = self.chip
        one = np.ones(1)
        times = tuple(np.zeros((len(fresh), 1)) for _ in range(3))
        arguments = (
            np.array(columns[:4], np.int64).T.copy(),
            np.array(columns[4], np.float64),
            np.zeros(len(fresh)),
            np.array(columns[5], np.bool_),
            np.array([chip.tensor_cores], np.int64),
            np.array([chip.width], np.int64),
            np.array([chip.depth], np.int64),
            chip.core_buffer_bytes * one,
            chip.glb_bytes * DEFAULT.glb_share * one,
            chip.hbm.bandwidth_Bps * one,
            chip.glb_bandwidth_Bpc * chip.clock_Hz * one,
            chip.clock_Hz * one,
        )
        over_ranges(lambda a, b: gemm_kernels.map_range(a, b, *arguments, *times), len(fresh))
        self._known |= {shape: float(t) for shape, t in zip(fresh, times[0][:, 0], strict=True)}

    def product_s(self, shape: Shape) -> float:
        if shape not in self._known:
            self.prepare([shape])
        return self._known[shape]

    def pass_s(self, work: Pass, parts: Parts) -> float:
        """A vector pass on a die's share: lanes or memory, whichever takes longer."""
        rows, columns = _share(parts, work.rows), _share(parts, work.columns)
        local = VectorWork(
            work.work.function, split(work.work.rows, rows), split(work.work.cols, columns)
        )
        chip = self.chip
        cycles = vector_cycles(local, chip.vector_cores, chip.vector_width)
        moved = work.bytes / (rows * columns)
        return max(cycles / chip.clock_Hz, moved / chip.hbm.bandwidth_Bps)

    def passes_s(self, works: Iterable[Pass], parts: Parts) -> float:
        return sum(self.pass_s(work, parts) for work in works)


@lru_cache(maxsize=16)
def pricer(chip: Accelerator) -> Pricer:
    return Pricer(chip)


def _share(parts: Parts, tags: str) -> int:
    share = 1
    for tag in tags:
        share *= parts.get(tag, 1)
    return share


def local_shape(unit: Unit, item: Product, parts: Parts, chunks: int = 1) -> Shape:
    """A die's share of a product; `chunks` cuts its rows further, for streaming."""
    p = item.matmul
    if unit.kind == "attention":
        batch = unit.sizes["b"]
        kv_heads = p.batch // batch
        heads = parts.get("h", 1)
        kv_parts = min(heads, kv_heads)
        local_batch = split(batch, parts.get("b", 1)) * split(kv_heads, kv_parts)
        # Heads beyond the key/value heads cut the rows of queries that share one.
        rows_more = split(heads, kv_parts)
        sizes = []
        for size, tag in ((p.m, item.m), (p.n, item.n), (p.k, item.k)):
            cut = parts.get(tag, 1) if tag else 1
            if tag == "s":
                cut *= rows_more
            sizes.append(split(size, cut))
        return (local_batch, sizes[0], sizes[1], sizes[2], float(p.fraction), True)
    batch = split(p.batch, _share(parts, item.batch))
    m = split(p.m, _share(parts, item.m))
    n = split(p.n, _share(parts, item.n))
    k = split(p.k, _share(parts, item.k))
    if chunks > 1:
        m = split(m, chunks)
    return (batch, m, n, k, 1.0, False)
