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
from atoll.cost.table import drained_bytes, masked_fraction, overlapped_s, tail_flops
from atoll.cost.vector import vector_cycles
from atoll.hardware.accelerator import Accelerator
from atoll.hardware.template.cores import ProductShape
from atoll.profiles import DEFAULT
from atoll.wafer.encoding.block_parts import TaggedMatmul, TaggedVector, Unit
from atoll.wafer.encoding.codes import Parts, by_tag
from atoll.workload.graph.operator import Matmul, VectorWork

Cuts = Mapping[str, int] | Mapping[str, Ints]
"""Parts by tag, of one split or of many."""


def split(size: Any, parts: Any) -> Any:
    """Return the largest share of `size` divided into `parts`."""
    return -(-size // parts)


class DiePricer:
    """Prices products and vector passes on a die, each distinct product once.

    A die loses what its kind of chip loses (`hardware.template.stalls`), by the rules of searched
    chips (`cost.table`).
    """

    def __init__(self, chip: Accelerator) -> None:
        self.chip = chip
        chips = chips_of_accelerator(chip, DEFAULT)
        self.stalls = chips.stalls
        self.stream_Bps = float(chips.stream_Bps[0])
        """HBM bandwidth that streams reach."""
        self.glb_Bps = float(chips.glb_Bps[0])
        configs = chips.tensor_configs
        self._config = pick(configs, np.array([configs.cores.argmax()]))
        self._product_times_s: dict[ProductShape, float] = {}
        self.pass_times_s: WeakKeyDictionary[Unit, dict[tuple[object, ...], list[float]]] = (
            WeakKeyDictionary()
        )
        """Cache of the function `pass_times_s`: seconds by pieces and split."""

    def products_s(self, shapes: Sequence[ProductShape]) -> Floats:
        """Return the seconds of products on all cores; those that have no time yet are mapped."""
        fresh = sorted({shape for shape in shapes if shape not in self._product_times_s})
        if fresh:
            seconds = map_products(fresh, self._config)[0][:, 0]
            self._product_times_s |= zip(fresh, seconds.tolist(), strict=True)
        return np.array([self._product_times_s[shape] for shape in shapes])

    def pass_s(self, work: TaggedVector, parts: Cuts) -> Any:
        """Return the seconds of a pass's share of a start and of lanes, which overlap memory."""
        rows, columns = _share(parts, work.rows), _share(parts, work.columns)
        local = VectorWork(
            work.work.function, split(work.work.rows, rows), split(work.work.cols, columns)
        )
        chip, stalls = self.chip, self.stalls
        operations = stalls.operations or DEFAULT.vector_operations
        cycles = vector_cycles(local, chip.vector_cores, chip.vector_width, operations)
        moved_bytes = work.bytes / (rows * columns)
        lanes_s = np.maximum(cycles / chip.clock_Hz, moved_bytes / self.glb_Bps)
        busy_s = overlapped_s(lanes_s, moved_bytes / self.stream_Bps, stalls)
        return work.starts * stalls.start_s + busy_s

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
    """Return the seconds of the products of a pass under every split, each with its start."""
    seconds = np.zeros(len(parts["b"]))
    for product in products:
        sizes = (column.tolist() for column in _local_shapes(unit, product, parts, chunks))
        shapes = [ProductShape(*shape) for shape in zip(*sizes, strict=True)]
        seconds += chunks * (pricer.stalls.start_s + pricer.products_s(shapes))
    return seconds


def _attention_s(
    pricer: DiePricer, unit: Unit, products: Sequence[TaggedMatmul], parts: Mapping[str, Ints],
    vectors_s: Floats, memory_s: Floats,
) -> Floats:  # fmt: skip
    """Return the seconds of fused attention under every split: nothing between its products and
    vector passes leaves the chip, and memory traffic overlaps both.
    """
    stalls, chip, matmuls = pricer.stalls, pricer.chip, [product.matmul for product in products]
    local: list[list[Matmul]] = [[] for _ in memory_s]
    core_s = np.zeros(len(memory_s))
    for product in products:
        batch, m, n, k = (c.tolist() for c in _local_shapes(unit, product, parts, 1))
        rows = [
            Matmul(*shape, fraction=product.matmul.fraction)
            for shape in zip(batch, m, n, k, strict=True)
        ]
        # A mask cuts as many blocks on all dies together as on one.
        share = float(masked_fraction(product.matmul, matmuls[0].n, stalls))
        shapes = [ProductShape(p.batch, p.m, p.n, p.k, share, 0.0, True) for p in rows]
        core_s += pricer.products_s(shapes)
        for die_products, row in zip(local, rows, strict=True):
            die_products.append(row)
    core_flops = 2.0 * chip.width * chip.depth * chip.clock_Hz * stalls.array
    core_s += [tail_flops(row, stalls) / core_flops for row in local]
    core_s += [drained_bytes(row, stalls) / pricer.glb_Bps for row in local]
    busy_s = overlapped_s(overlapped_s(core_s, memory_s, stalls), vectors_s, stalls)
    return np.asarray(stalls.start_s + busy_s)


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
    memory_s = unit.traffic_bytes / dies / pricer.stream_Bps
    times = np.zeros((len(cuts), 3))
    passes = (unit.forward, unit.forward_passes), (unit.data_gradient, unit.backward_passes)
    for column, (products, works) in enumerate(passes):
        vectors_s, traffic_s = pricer.passes_s(works, parts), (1 + column) * memory_s
        if unit.on_chip:
            seconds = _attention_s(pricer, unit, products, parts, vectors_s, traffic_s)
        else:
            seconds = _products_s(pricer, unit, products, parts, chunks) + vectors_s
        times[:, column] = seconds
    times[:, -1] = _products_s(pricer, unit, unit.weight_gradient, parts)
    return times
