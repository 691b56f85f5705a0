"""A die of a wafer as a device: operators one after another, each on all of its cores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.cost.chips import chips_of_accelerator, pick
from atoll.cost.model import map_products
from atoll.cost.vector import vector_cycles
from atoll.hardware.accelerator import Accelerator
from atoll.hardware.template.cores import ProductShape
from atoll.profiles import DEFAULT
from atoll.wafer.encoding.block_parts import TaggedMatmul, TaggedVector, Unit
from atoll.wafer.encoding.codes import Parts, by_tag
from atoll.workload.graph.operator import VectorWork

Cuts = Mapping[str, int] | Mapping[str, Ints]
"""Parts by tag, of one split or of many."""


def split(size: Any, parts: Any) -> Any:
    """Return the largest share of `size` divided into `parts`."""
    return -(-size // parts)


def operator_s(products_s: Any, vectors_s: Any, memory_s: Any, overlapped: bool) -> Any:
    """Return products + vectors, or if `overlapped` (nothing between them leaves the chip)
    max(products, vectors, memory). Products and vector passes include their own memory traffic.
    """
    if not overlapped:
        return products_s + vectors_s
    return np.maximum(np.maximum(products_s, vectors_s), memory_s)


class DiePricer:
    """Prices products and vector passes on a die, each distinct product once."""

    def __init__(self, chip: Accelerator) -> None:
        self.chip = chip
        configs = chips_of_accelerator(chip, DEFAULT).tensor_configs
        self._config = pick(configs, np.array([configs.cores.argmax()]))
        self._product_times_s: dict[ProductShape, float] = {}
        self.pass_times_s: WeakKeyDictionary[Unit, dict[tuple[object, ...], list[float]]] = (
            WeakKeyDictionary()
        )
        """Cache of the function `pass_times_s`: seconds by pieces and split."""

    def prepare(self, shapes: Iterable[ProductShape]) -> None:
        """Map all shapes that have no time yet, on all cores."""
        fresh = sorted({shape for shape in shapes if shape not in self._product_times_s})
        if fresh:
            seconds = map_products(fresh, self._config)[0][:, 0]
            self._product_times_s |= zip(fresh, seconds.tolist(), strict=True)

    def product_s(self, shape: ProductShape) -> float:
        if shape not in self._product_times_s:
            self.prepare([shape])
        return self._product_times_s[shape]

    def pass_s(self, work: TaggedVector, parts: Cuts) -> Any:
        """Return the seconds of a vector pass on a die's share: max(lanes, memory)."""
        rows, columns = _share(parts, work.rows), _share(parts, work.columns)
        local = VectorWork(
            work.work.function, split(work.work.rows, rows), split(work.work.cols, columns)
        )
        chip = self.chip
        cycles = vector_cycles(local, chip.vector_cores, chip.vector_width)
        moved_bytes = work.bytes / (rows * columns)
        return np.maximum(cycles / chip.clock_Hz, moved_bytes / chip.hbm.bandwidth_Bps)

    def passes_s(self, works: Iterable[TaggedVector], parts: Cuts) -> Any:
        return sum(self.pass_s(work, parts) for work in works)


@lru_cache(maxsize=16)
def die_pricer(chip: Accelerator) -> DiePricer:
    return DiePricer(chip)


def _share(parts: Cuts, tags: str) -> Any:
    share: Any = 1
    for tag in tags:
        share = share * parts.get(tag, 1)
    return share


def _local_shapes(
    unit: Unit, product: TaggedMatmul, parts: Mapping[str, Ints], chunks: int
) -> tuple[Ints, ...]:
    """Return a die's batch, rows (in `chunks`), columns and reduction under every split."""
    matmul, ones = product.matmul, np.ones_like(parts["b"])
    if unit.kind != "attention":
        sizes = matmul.batch, matmul.m, matmul.n, matmul.k
        pairs = zip(sizes, (product.batch, product.m, product.n, product.k), strict=True)
        batch, m, n, k = (split(size, ones * _share(parts, tags)) for size, tags in pairs)
        return batch, split(m, chunks), n, k
    samples = unit.sizes["b"]
    kv_heads = matmul.batch // samples
    heads = parts.get("h", ones)
    kv_parts = np.minimum(heads, kv_heads)
    # Heads beyond the key/value heads cut the rows of queries that share one.
    row_parts = {"s": split(heads, kv_parts)}
    local = [split(samples, parts["b"]) * split(kv_heads, kv_parts)]
    for size, tag in ((matmul.m, product.m), (matmul.n, product.n), (matmul.k, product.k)):
        tag_parts = parts.get(tag, ones) if tag else ones
        local.append(split(size, tag_parts * row_parts.get(tag, ones)))
    return tuple(local)


def _products_s(
    pricer: DiePricer, unit: Unit, products: Sequence[TaggedMatmul], parts: Mapping[str, Ints],
    chunks: int = 1,
) -> Floats:  # fmt: skip
    """Return the seconds of the products of a pass under every split."""
    mapping = (1.0, 0.0, False)
    seconds = np.zeros(len(parts["b"]))
    for product in products:
        if unit.kind == "attention":
            mapping = (float(product.matmul.fraction), 0.0, True)
        batch, m, n, k = (c.tolist() for c in _local_shapes(unit, product, parts, chunks))
        shapes = [ProductShape(*sizes, *mapping) for sizes in zip(batch, m, n, k, strict=True)]
        pricer.prepare(shapes)
        seconds += chunks * np.array([pricer.product_s(shape) for shape in shapes])
    return seconds


def pass_times_s(pricer: DiePricer, unit: Unit, cuts: Sequence[Parts], pieces: int) -> Floats:
    """Return seconds of forward, data and weight pass (splits, 3), products in `pieces`."""
    chunks = pieces if unit.kind == "linear" else 1
    # Codes of the same split, by other digits or on other shapes, are priced once.
    times = pricer.pass_times_s.setdefault(unit, {})
    keys = [(chunks, *sorted(parts.items())) for parts in cuts]
    fresh = {key: parts for key, parts in zip(keys, cuts, strict=True) if key not in times}
    if fresh:
        rows = _compute_pass_times_s(pricer, unit, list(fresh.values()), chunks)
        times |= zip(fresh, rows.tolist(), strict=True)
    return np.array([times[key] for key in keys]).reshape(-1, 3)


def _compute_pass_times_s(
    pricer: DiePricer, unit: Unit, cuts: Sequence[Parts], chunks: int
) -> Floats:
    parts = by_tag(cuts)
    dies = np.prod(list(parts.values()), axis=0)
    memory_s = unit.traffic_bytes / dies / pricer.chip.hbm.bandwidth_Bps
    times = np.zeros((len(cuts), 3))
    passes = (unit.forward, unit.forward_passes), (unit.data_gradient, unit.backward_passes)
    for column, (products, works) in enumerate(passes):
        products_s = _products_s(pricer, unit, products, parts, chunks)
        vectors_s, traffic_s = pricer.passes_s(works, parts), (1 + column) * memory_s
        times[:, column] = operator_s(products_s, vectors_s, traffic_s, unit.on_chip)
    times[:, -1] = _products_s(pricer, unit, unit.weight_gradient, parts)
    return times
