"""A die of a wafer as a device: operators one after another, each on all of its cores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from functools import lru_cache
from math import prod

import numpy as np

from atoll.arrays import FloatArray
from atoll.cost.chips import chips_of_accelerator, pick
from atoll.cost.model import map_products
from atoll.cost.pricer import Cost, LayerTimes, total
from atoll.cost.vector import vector_cycles
from atoll.hardware.accelerator import Accelerator
from atoll.hardware.template.cores import Shape
from atoll.profiles import DEFAULT
from atoll.wafer.encoding.block_parts import Pass, Product, Unit
from atoll.wafer.encoding.codes import Parts
from atoll.workload.graph.layer import Layer
from atoll.workload.graph.operator import Operator, VectorWork


def split(size: int, parts: int) -> int:
    """The largest share when `size` is cut in `parts`."""
    return -(-size // parts)


def operator_s(products_s: float, vectors_s: float, memory_s: float, beside: bool) -> float:
    """Products and vector work one after the other; or beside each other and memory, where nothing
    between them leaves the chip. (The mapper and the passes know their own traffic.)
    """
    return max(products_s, vectors_s, memory_s) if beside else products_s + vectors_s


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
        seconds = operator_s(products, vectors, memory, beside)
        if op.on_chip:  # attention, whose keys and values go round a ring
            return Cost(attention_s=ring * seconds)
        return Cost(matrix_s=seconds) if beside else Cost(vector_s=seconds)


@lru_cache(maxsize=16)
def pricer(chip: Accelerator) -> DiePricer:
    return DiePricer(chip)


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
        return Shape(local_batch, sizes[0], sizes[1], sizes[2], float(p.fraction), 0.0, True)
    batch = split(p.batch, _share(parts, item.batch))
    m = split(p.m, _share(parts, item.m))
    n = split(p.n, _share(parts, item.n))
    k = split(p.k, _share(parts, item.k))
    if chunks > 1:
        m = split(m, chunks)
    return Shape(batch, m, n, k)


def passes_of(price: DiePricer, unit: Unit, among: Sequence[Parts], pieces: int) -> FloatArray:
    """Seconds of forward, data and weight pass (splits, 3); `pieces`: of a streamed product."""
    chunks = pieces if unit.kind == "linear" else 1
    # Codes that cut alike, by other digits, are priced once.
    rows: dict[tuple[tuple[str, int], ...], int] = {}
    which = [rows.setdefault(tuple(sorted(parts.items())), len(rows)) for parts in among]
    among = [dict(parts) for parts in rows]
    every = [
        [[local_shape(unit, item, parts, cut) for item in items]
         for items, cut in ((unit.forward, chunks), (unit.data_gradient, chunks),
                            (unit.weight_gradient, 1))]
        for parts in among
    ]  # fmt: skip
    price.prepare(shape for passes in every for shapes in passes for shape in shapes)
    found = np.zeros((len(among), 3))
    for row, (parts, (ahead, back, weight)) in enumerate(zip(among, every, strict=True)):
        memory_s = unit.traffic_bytes / prod(parts.values()) / price.chip.hbm.bandwidth_Bps
        for column, (shapes, works) in enumerate(
            ((ahead, unit.forward_passes), (back, unit.backward_passes))
        ):
            products_s = sum(chunks * price.product_s(shape) for shape in shapes)
            vectors_s, moved_s = price.passes_s(works, parts), (1 + column) * memory_s
            found[row, column] = operator_s(products_s, vectors_s, moved_s, unit.on_chip)
        found[row, 2] = sum(price.product_s(shape) for shape in weight)
    return found[which]
