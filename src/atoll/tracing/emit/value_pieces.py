"""Values that are read in pieces: one tensor for each piece, so that bytes are counted right.

The output of a joint projection is read as queries, keys and values; a rotation reads the two
halves of each head. A value that is not read by columns stays one tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.typing import NDArray

from atoll.tracing.record.node import Nodes
from atoll.tracing.record.trace import TensorView, Value, ValueSource

Region = tuple[int, tuple[tuple[int, int], ...]]
"""Offset, and (stride, size) of each dimension, the widest stride first."""


def view_region(view: TensorView) -> Region:
    dims = [(s, n) for n, s in zip(view.shape, view.strides, strict=True) if n > 1 and s]
    dims.sort(reverse=True)
    merged: list[tuple[int, int]] = []
    for stride, size in dims:
        if merged and merged[-1][0] == stride * size:
            merged[-1] = (stride, merged[-1][1] * size)
        else:
            merged.append((stride, size))
    return view.offset, tuple(merged)


@dataclass(frozen=True)
class Piece:
    """Columns of a value that are always read together."""

    elements: int
    regions: frozenset[Region]
    """The regions that contain it."""
    view: TensorView | None
    """A view of exactly this piece, where there is one."""


class Parts:
    """The pieces of every value of a layer."""

    def __init__(self, nodes: Nodes, values: Sequence[Value], undivided: set[int]) -> None:
        self._values = values
        partial_regions: dict[int, dict[Region, TensorView]] = {}
        self._shapes: dict[int, TensorView] = {}
        for node in nodes:
            for view in (*node.outs, *node.ins):
                self._shapes.setdefault(view.value, view)
                value = values[view.value]
                if value.source is ValueSource.COMPUTED and view.value not in undivided:
                    region = view_region(view)
                    if prod(n for _, n in region[1]) < value.elements:
                        partial_regions.setdefault(view.value, {}).setdefault(region, view)
        self.pieces: dict[int, list[Piece]] = {}
        """The pieces of the values that are not one tensor."""
        for number, regions in partial_regions.items():
            pieces = _pieces(values[number].elements, self._shapes[number], regions)
            if len(pieces) > 1:
                self.pieces[number] = pieces

    def covered(self, view: TensorView) -> list[int]:
        """Indices of the pieces that a view reads: those in its region, or all of them."""
        pieces, region = self.pieces[view.value], view_region(view)
        inside = [i for i, piece in enumerate(pieces) if region in piece.regions]
        return inside or [*range(len(pieces))]

    def shape(self, value: int, part: int | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape and strides of a piece, or of a whole value."""
        size = self._values[value].elements
        if part is not None:
            piece = self.pieces[value][part]
            return ((piece.elements,), (1,)) if piece.view is None else _drop_expanded(piece.view)
        view = self._shapes.get(value)
        if view is None or view.distinct != size:
            return (size,), (1,)
        return _drop_expanded(view)


def _pieces(size: int, shape: TensorView, regions: dict[Region, TensorView]) -> list[Piece]:
    """Columns that the same regions contain, if every region takes all rows of some columns."""
    row = shape.shape[-1] if shape.shape and shape.strides[-1] == 1 else 0
    if not row or size % row or len(regions) > 62:
        return []
    masks = np.zeros(row, np.int64)
    region_list = list(regions)
    region_columns = []
    for bit, region in enumerate(region_list):
        columns = _columns(region, row, size // row)
        if columns is None:
            return []
        region_columns.append(columns)
        masks[columns] |= 1 << bit
    result = []
    for mask in dict.fromkeys(masks.tolist()):
        columns = np.flatnonzero(masks == mask)
        inside = [i for i in range(len(region_list)) if mask >> i & 1]
        exact = [regions[region_list[i]] for i in inside if len(region_columns[i]) == len(columns)]
        containing = frozenset(region_list[i] for i in inside)
        result.append(Piece(len(columns) * (size // row), containing, next(iter(exact), None)))
    return result


def _columns(region: Region, row: int, rows: int) -> NDArray[np.int64] | None:
    """The columns of a region that takes all rows of the value; None for any other region."""
    offset, dims = region
    inner: list[tuple[int, int]] = []
    outer = 1
    for stride, size in dims:
        if stride % row == 0:
            outer *= size
        elif stride < row and stride * size > row and row % stride == 0:
            steps = row // stride  # the rest of this dimension runs over rows
            inner.append((stride, steps))
            outer *= size // steps
        else:
            inner.append((stride, size))
    if outer != rows or offset >= row:
        return None
    columns = np.array([offset], np.int64)
    for stride, size in inner:
        columns = (columns[:, None] + stride * np.arange(size)).ravel()
    return columns if columns.max() < row else None


def _drop_expanded(view: TensorView) -> tuple[tuple[int, ...], tuple[int, ...]]:
    dims = [(n, s) for n, s in zip(view.shape, view.strides, strict=True) if s or n == 1]
    dims = dims or [(1, 1)]
    return tuple(n for n, _ in dims), tuple(s for _, s in dims)
