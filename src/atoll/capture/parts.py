"""Values that are read in pieces: one tensor for each piece, so that bytes are counted right.

The output of a joint projection is read as queries, keys and values; a rotation reads the two
halves of each head. Pieces that overlap are not told apart: the value is then one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

from atoll.capture.node import Node
from atoll.capture.trace import Source, Value, View

Region = tuple[int, tuple[tuple[int, int], ...]]
"""Offset, and (stride, size) of each dimension, the widest stride first."""


def region_of(view: View) -> Region:
    dims = [(s, n) for n, s in zip(view.shape, view.strides, strict=True) if n > 1 and s]
    dims.sort(reverse=True)
    merged: list[tuple[int, int]] = []
    for stride, size in dims:
        if merged and merged[-1][0] == stride * size:
            merged[-1] = (stride, merged[-1][1] * size)
        else:
            merged.append((stride, size))
    return view.offset, tuple(merged)


def _elements(region: Region) -> int:
    size = 1
    for _, n in region[1]:
        size *= n
    return size


class Parts:
    """The pieces of every value of a layer."""

    def __init__(self, nodes: Sequence[Node], values: Sequence[Value], whole: set[int]) -> None:
        self._values = values
        found: dict[int, dict[Region, View]] = {}
        self._shapes: dict[int, View] = {}
        for node in nodes:
            for view in (*node.outs, *node.ins):
                self._shapes.setdefault(view.value, view)
                value = values[view.value]
                if value.source is Source.MADE and view.value not in whole:
                    region = region_of(view)
                    if _elements(region) < value.elements:
                        found.setdefault(view.value, {}).setdefault(region, view)
        self._parts: dict[int, list[tuple[Region, View | None]]] = {}
        for number, regions in found.items():
            size = values[number].elements
            total = sum(_elements(region) for region in regions)
            if total <= size:
                parts: list[tuple[Region, View | None]] = list(regions.items())
                if total < size:
                    parts.append(((-1, ((1, size - total),)), None))
                self._parts[number] = parts

    def regions(self, value: int) -> list[Region]:
        return [region for region, _ in self._parts.get(value, [])]

    def covered(self, view: View) -> list[int]:
        """Indices of the pieces that a view reads: its own, or all of them."""
        regions = self.regions(view.value)
        own = region_of(view)
        return [regions.index(own)] if own in regions else list(range(len(regions)))

    def shape(self, value: int, part: int | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape and strides of a piece, or of a whole value."""
        size = self._values[value].elements
        if part is not None:
            region, view = self._parts[value][part]
            if view is None:
                return (_elements(region),), (1,)
            return _drop_expanded(view)
        view = self._shapes.get(value)
        if view is None or view.distinct != size:
            return (size,), (1,)
        return _drop_expanded(view)


def _drop_expanded(view: View) -> tuple[tuple[int, ...], tuple[int, ...]]:
    kept = [(n, s) for n, s in zip(view.shape, view.strides, strict=True) if s or n == 1]
    kept = kept or [(1, 1)]
    return tuple(n for n, _ in kept), tuple(s for _, s in kept)
