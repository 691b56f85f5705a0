"""Products through two buffers: tiles of the second one, each mapped by Atoll's mapper.

A product is cut into tiles whose operands (double buffered, 2 bytes) and sums (4 bytes) lie in the
second buffer; the reduction of a tile of outputs runs to its end before the next. Where the
reduction is not cut, a panel of A or of B stays while the other streams past. A tile is a product
of its own for the mapper, with the second buffer in HBM's place. Time is the larger of all tiles
one after another and of the traffic with HBM: the next tile's operands come meanwhile.

Cuts are powers of two. Batches are cut first; a batch of one is cut by rows and columns up to 64
times each, and the reduction as little as makes it fit. The fastest of these is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from atoll.plugins import FloatArray, ProductCosts, ProductShape, TensorConfigs, map_products

MOST_CUTS = 64


class Cut(NamedTuple):
    """Into how many parts each dimension goes."""

    batch: int
    m: int
    n: int
    k: int

    @property
    def tiles(self) -> int:
        return self.batch * self.m * self.n * self.k

    def tile(self, shape: ProductShape) -> ProductShape:
        sizes = (-(-size // parts) for size, parts in zip(shape[:4], self, strict=True))
        return ProductShape(*sizes, shape.fraction, shape.extra_bytes / self.tiles, shape.on_chip)


WHOLE = Cut(1, 1, 1, 1)


def products(shapes: Sequence[ProductShape], configs: TensorConfigs) -> ProductCosts:
    """Seconds and bytes of products on configurations with one further buffer."""
    size = (len(shapes), len(configs))
    found = ProductCosts(
        np.full(size, np.inf), np.zeros(size), np.zeros(size), np.zeros((*size, 1))
    )
    budgets = configs.level_budget_bytes[:, 0]
    for budget in np.unique(budgets):
        own = np.flatnonzero(budgets == budget)
        part = _pick(configs, own)
        tried = [(row, cut) for row, shape in enumerate(shapes) for cut in cuts(shape, budget)]
        for (row, _), costs in zip(tried, _nested(shapes, tried, part), strict=True):
            better = costs.seconds < found.seconds[row, own]
            for table, values in zip(found, costs, strict=True):
                table[row, own[better]] = values[better]
    return found


def cuts(shape: ProductShape, budget_bytes: float) -> Iterator[Cut]:
    """The ways to cut a product into tiles that fit."""
    if shape.on_chip:
        yield WHOLE  # its operands are on the chip already
        return
    parts = 1
    while parts < shape.batch:
        if _held_bytes(Cut(parts, 1, 1, 1).tile(shape)) <= budget_bytes:
            yield Cut(parts, 1, 1, 1)
        parts *= 2
    for m in _powers(shape.m):
        for n in _powers(shape.n):
            k = 1
            while _held_bytes(Cut(shape.batch, m, n, k).tile(shape)) > budget_bytes and k < shape.k:
                k *= 2
            cut = Cut(shape.batch, m, n, k)
            if _held_bytes(cut.tile(shape)) <= budget_bytes:
                yield cut


def _held_bytes(tile: ProductShape) -> float:
    operands = tile.m * tile.k + tile.k * tile.n
    return float(tile.batch * (2 * 2 * operands + 4 * tile.m * tile.n))


def _powers(size: int) -> list[int]:
    return [1 << i for i in range(MOST_CUTS.bit_length()) if 1 << i <= size]


def _nested(
    shapes: Sequence[ProductShape], tried: Sequence[tuple[int, Cut]], configs: TensorConfigs
) -> Iterator[ProductCosts]:
    """Each cut of each product, its tiles priced by the mapper: arrays of one value a
    configuration."""
    none = np.zeros((len(configs), 0))
    second_Bps = configs.level_Bps[:, 0]
    inner = replace(configs, hbm_Bps=second_Bps, level_budget_bytes=none, level_Bps=none)
    distinct = list(dict.fromkeys(cut.tile(shapes[row]) for row, cut in tried))
    mapped = map_products(distinct, inner)
    place = {tile: at for at, tile in enumerate(distinct)}
    for row, cut in tried:
        shape, at = shapes[row], place[cut.tile(shapes[row])]
        outputs = shape.batch * shape.m * shape.n * shape.fraction
        sums = 2.0 * 4.0 * outputs * (cut.k - 1)  # written and read again for each further part
        moved = cut.tiles * mapped.hbm_bytes[at] + sums
        hbm = np.full(len(configs), 0.0 if shape.on_chip else _hbm_bytes(shape, cut, outputs))
        seconds = np.maximum(cut.tiles * mapped.seconds[at], moved / second_Bps)
        yield ProductCosts(
            np.maximum(seconds, hbm / configs.hbm_Bps),
            hbm,
            cut.tiles * mapped.glb_bytes[at],
            moved[:, None],
        )


def _hbm_bytes(shape: ProductShape, cut: Cut, outputs: float) -> float:
    a, b = shape.batch * shape.m * shape.k, shape.batch * shape.k * shape.n
    again = a * cut.n + b * cut.m
    if cut.k == 1:
        again = min(a + b * cut.m, a * cut.n + b)
    return 2.0 * (again + outputs) + shape.extra_bytes


def _pick(configs: TensorConfigs, rows: FloatArray) -> TensorConfigs:
    return replace(configs, **{f: getattr(configs, f)[rows] for f in configs.__dataclass_fields__})
