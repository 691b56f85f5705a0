"""A die of a wafer as a device: operators one after another, each on all of its cores."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from atoll.arrays import FloatArray, IntArray
from atoll.cost.chips import chips_of_accelerator, pick
from atoll.cost.model import map_products
from atoll.cost.pricer import Cost, LayerTimes, total
from atoll.cost.vector import vector_cycles
from atoll.hardware.accelerator import Accelerator
from atoll.hardware.template.cores import Shape
from atoll.profiles import DEFAULT
from atoll.wafer.encoding.block_parts import Pass, Product, Unit
from atoll.wafer.encoding.codes import Parts, by_tag
from atoll.workload.graph.layer import Layer
from atoll.workload.graph.operator import Operator, VectorWork

Cuts = Mapping[str, int] | Mapping[str, IntArray]
"""By tag, in how many parts: of one split, or of many."""


def split(size: Any, parts: Any) -> Any:
    """The largest share when `size` is cut in `parts`."""
    return -(-size // parts)


def operator_s(products_s: Any, vectors_s: Any, memory_s: Any, beside: bool) -> Any:
    """Seconds, of one operator or of arrays of them: products and vector work one after the other;
    or beside each other and memory, where nothing between them leaves the chip. (The mapper and the
    passes know their own traffic.)
    """
    if not beside:
        return products_s + vectors_s
    return np.maximum(np.maximum(products_s, vectors_s), memory_s)


class DiePricer:
    """Prices products and vector passes on a die, each distinct product once."""

    fusion = "none"
    schedules_links = False
    operand_share = 1.0

    def __init__(self, chip: Accelerator) -> None:
        self.chip = chip
        configs = chips_of_accelerator(chip, DEFAULT).tensor_configs
        self._config = pick(configs, np.array([configs.cores.argmax()]))
        self._known: dict[Shape, float] = {}
        self.rows: WeakKeyDictionary[Unit, dict[tuple[object, ...], list[float]]] = (
            WeakKeyDictionary()
        )
        """Seconds of the passes of operators by pieces and split (`passes_of`)."""

    def prepare(self, shapes: Iterable[Shape]) -> None:
        """Map all shapes that are not yet known, on all cores."""
        fresh = sorted({shape for shape in shapes if shape not in self._known})
        if fresh:
            seconds = map_products(fresh, self._config)[0][:, 0]
            self._known |= zip(fresh, seconds.tolist(), strict=True)

    def product_s(self, shape: Shape) -> float:
        if shape not in self._known:
            self.prepare([shape])
        return self._known[shape]

    def pass_s(self, work: Pass, parts: Cuts) -> Any:
        """A vector pass on a die's share: lanes or memory, whichever takes longer."""
        rows, columns = _share(parts, work.rows), _share(parts, work.columns)
        local = VectorWork(
            work.work.function, split(work.work.rows, rows), split(work.work.cols, columns)
        )
        chip = self.chip
        cycles = vector_cycles(local, chip.vector_cores, chip.vector_width)
        moved = work.bytes / (rows * columns)
        return np.maximum(cycles / chip.clock_Hz, moved / chip.hbm.bandwidth_Bps)

    def passes_s(self, works: Iterable[Pass], parts: Cuts) -> Any:
        return sum(self.pass_s(work, parts) for work in works)

    # -- whole layers, as every device prices them (`cost.pricer`) -----------------------------

    def layer(self, layer: Layer, ring: int, samples: int) -> LayerTimes:
        costs = {op.name: self._cost(layer, op, ring) for op in (*layer.forward, *layer.backward)}
        data = total(costs[op.name] for op in layer.backward if not op.weighs)
        weight = total(costs[op.name] for op in layer.backward if op.weighs)
        forward = total(costs[op.name] for op in layer.forward)
        return LayerTimes(costs, forward, data + weight, data, weight)

    def kept_bytes(self, layer: Layer, dropped: Set[str] = frozenset()) -> float:
        return 0.0

    def _cost(self, layer: Layer, op: Operator, ring: int) -> Cost:
        """One operator alone, on one die."""
        shapes = [
            Shape(p.batch, p.m, p.n, p.k, float(p.fraction), 0.0, op.on_chip) for p in op.matmuls
        ]
        self.prepare(shapes)
        products = sum(self.product_s(shape) for shape in shapes)
        moved = float(layer.traffic_bytes(op)) if not op.matmuls or op.on_chip else 0.0
        # An epilogue (a bias) runs beside its product, as softmax does in attention.
        beside = bool(op.matmuls)
        share = 0.0 if beside else moved / max(1, len(op.vectors))
        vectors = self.passes_s([Pass(work, "", "", share) for work in op.vectors], {})
        memory = moved / self.chip.hbm.bandwidth_Bps
        seconds = float(operator_s(products, vectors, memory, beside))
        if op.on_chip:  # attention, whose keys and values go round a ring
            return Cost(attention_s=ring * seconds)
        return Cost(matrix_s=seconds) if beside else Cost(vector_s=seconds)


@lru_cache(maxsize=16)
def pricer(chip: Accelerator) -> DiePricer:
    return DiePricer(chip)


def _share(parts: Cuts, tags: str) -> Any:
    share: Any = 1
    for tag in tags:
        share = share * parts.get(tag, 1)
    return share


def _local_shapes(
    unit: Unit, item: Product, parts: Mapping[str, IntArray], chunks: int
) -> tuple[IntArray, ...]:
    """A die's share of a product under every split: batch, rows, columns and reduction; `chunks`
    cuts its rows further, for streaming.
    """
    p, one = item.matmul, np.ones_like(parts["b"])
    if unit.kind != "attention":
        sizes = (p.batch, item.batch), (p.m, item.m), (p.n, item.n), (p.k, item.k)
        batch, m, n, k = (split(size, one * _share(parts, tags)) for size, tags in sizes)
        return batch, split(m, chunks), n, k
    samples = unit.sizes["b"]
    kv_heads = p.batch // samples
    heads = parts.get("h", one)
    kv_parts = np.minimum(heads, kv_heads)
    # Heads beyond the key/value heads cut the rows of queries that share one.
    more = {"s": split(heads, kv_parts)}
    local = [split(samples, parts["b"]) * split(kv_heads, kv_parts)]
    for size, tag in ((p.m, item.m), (p.n, item.n), (p.k, item.k)):
        local.append(split(size, (parts.get(tag, one) if tag else one) * more.get(tag, one)))
    return tuple(local)


def _products_s(
    price: DiePricer, unit: Unit, items: Sequence[Product], parts: Mapping[str, IntArray],
    chunks: int = 1,
) -> FloatArray:  # fmt: skip
    """Seconds of the products of a pass under every split."""
    more = (1.0, 0.0, False)
    found = np.zeros(len(parts["b"]))
    for item in items:
        if unit.kind == "attention":
            more = (float(item.matmul.fraction), 0.0, True)
        batch, m, n, k = (c.tolist() for c in _local_shapes(unit, item, parts, chunks))
        shapes = [Shape(*sizes, *more) for sizes in zip(batch, m, n, k, strict=True)]
        price.prepare(shapes)
        found += chunks * np.array([price.product_s(shape) for shape in shapes])
    return found


def passes_of(price: DiePricer, unit: Unit, among: Sequence[Parts], pieces: int) -> FloatArray:
    """Seconds of forward, data and weight pass (splits, 3); `pieces`: of a streamed product."""
    chunks = pieces if unit.kind == "linear" else 1
    # Codes that cut alike, by other digits or on other shapes, are priced once.
    known = price.rows.setdefault(unit, {})
    keys = [(chunks, *sorted(parts.items())) for parts in among]
    fresh = {key: parts for key, parts in zip(keys, among, strict=True) if key not in known}
    if fresh:
        rows = _priced(price, unit, list(fresh.values()), chunks)
        known |= zip(fresh, rows.tolist(), strict=True)
    return np.array([known[key] for key in keys]).reshape(-1, 3)


def _priced(price: DiePricer, unit: Unit, among: Sequence[Parts], chunks: int) -> FloatArray:
    parts = by_tag(among)
    dies = np.prod(list(parts.values()), axis=0)
    memory_s = unit.traffic_bytes / dies / price.chip.hbm.bandwidth_Bps
    found = np.zeros((len(among), 3))
    both = (unit.forward, unit.forward_passes), (unit.data_gradient, unit.backward_passes)
    for column, (items, works) in enumerate(both):
        products_s = _products_s(price, unit, items, parts, chunks)
        vectors_s, moved_s = price.passes_s(works, parts), (1 + column) * memory_s
        found[:, column] = operator_s(products_s, vectors_s, moved_s, unit.on_chip)
    found[:, 2] = _products_s(price, unit, unit.weight_gradient, parts)
    return found
