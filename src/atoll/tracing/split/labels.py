"""Where tensor parallelism cuts a value: a label on its storage, read through any view.

A label says that the byte at flat position p lies in piece (p // stride) % units. Reshapes,
transposes, slices and pairs that are read as complex numbers are views of one storage, so a label
survives them without a rule for each: only the dimension that carries it differs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from atoll.tracing.record.trace import TensorView

_PACKED = 3  # queries, keys and values of a joint projection as one dimension: not heads


class ConflictError(Exception):
    """The division of these weights cannot be propagated; they must stay undivided."""

    def __init__(self, origins: frozenset[int]) -> None:
        super().__init__(origins)
        self.origins = origins


@dataclass(frozen=True, slots=True)
class Label:
    stride: int
    """Bytes from one piece to the next."""
    units: int
    loose: bool
    """Columns that belong to no head: any part of them may be cut again."""
    origins: frozenset[int]
    """Weights whose division caused this label."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A label seen through a view: the dimension, and the pieces along it."""

    dim: int
    units: int
    loose: bool
    origins: frozenset[int]
    block: int = 1
    """Size of one piece along the dimension."""


def view_cut(label: Label, view: TensorView) -> Cut:
    """The dimension of a view that carries the label."""
    span = label.stride * label.units
    dims = [
        (stride * view.element_bytes, size, index)
        for index, (size, stride) in enumerate(zip(view.shape, view.strides, strict=True))
        if size > 1 and stride
    ]
    for stride, size, index in dims:
        reach = stride * size
        if stride <= label.stride and reach >= span and reach % span == 0:
            loose = label.loose and reach == span
            return Cut(index, label.units, loose, label.origins, label.stride // stride)
    inside = sorted((d for d in dims if label.stride <= d[0] < span), reverse=True)
    if not inside:
        raise ConflictError(label.origins)
    stride, size, index = inside[0]
    if len(inside) > 1 and size == _PACKED and label.loose:
        stride, size, index = inside[1]
    if not label.loose and (stride != label.stride or size != label.units):
        raise ConflictError(label.origins)
    return Cut(index, size, label.loose and stride == label.stride, label.origins)


def storage_label(cut: Cut, view: TensorView, dim: int) -> Label:
    """The label of the storage behind a view that is cut along `dim`."""
    size, stride = view.shape[dim], view.strides[dim] * view.element_bytes
    if cut.loose:
        return Label(stride, size, True, cut.origins)
    if size % (cut.units * cut.block):
        raise ConflictError(cut.origins)
    return Label(stride * cut.block, cut.units, False, cut.origins)


def merged_cut(a: Cut, b: Cut) -> Cut:
    """Two cuts of one dimension: the coarser one, with the origins of both."""
    coarse = a if (a.loose, a.units) <= (b.loose, b.units) else b
    return replace(coarse, loose=a.loose and b.loose, origins=a.origins | b.origins)
