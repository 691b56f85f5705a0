"""Where tensor parallelism cuts the values of one captured layer, for the rules and the emission.

A label on the storage of a value says that the byte at flat position p lies in piece
(p // stride) % units. Reshapes, transposes, slices and pairs that are read as complex numbers are
views of one storage, so a label survives them without a rule for each: only the dimension that
carries it differs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from atoll.tracing.record.node import CallNode, VectorPass
from atoll.tracing.record.trace import TensorView, Value, ValueSource
from atoll.workload.modelfile import PassSplit, ProductSplit, SplitEntry, Uneven

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


class Splits:
    """The division of one layer: labels of values, partial sums, divided products."""

    def __init__(self, values: Sequence[Value], banned: frozenset[int] = frozenset()) -> None:
        self.values = values
        self.banned = banned
        self.labels: dict[int, Label] = {}
        self.partial: dict[int, frozenset[int]] = {}
        self.reduced: set[int] = set()
        self.sums: dict[int, tuple[int, ...]] = {}
        """Partial sums -> the partial sums that they were computed from."""
        self.units: dict[int, int] = {}
        self.products: dict[int, list[ProductSplit]] = {}
        self.rows_summed: set[int] = set()
        """Nodes that all-reduce a few numbers per row (a softmax over cut columns)."""
        self.padded: set[int] = set()
        self.scarce: set[int] = set()
        self.constant: set[int] = set()
        self.zeros: set[int] = set()
        self.readers: Counter[int] = Counter()
        """Number of operators of the same pass that read a value."""
        self.tables: frozenset[int] = frozenset()
        """Look-up tables that may be cut: the largest one of the layer."""
        self.backward = False

    # --- for the rules ---------------------------------------------------------------------------

    def is_weight(self, view: TensorView) -> bool:
        return self.values[view.value].source is ValueSource.WEIGHT

    def may_cut(self, view: TensorView) -> bool:
        free = view.value not in self.banned and view.value not in self.labels
        return self.is_weight(view) and free and not self.backward

    def cut(self, view: TensorView) -> Cut | None:
        if (label := self.labels.get(view.value)) is None:
            return None
        cut = view_cut(label, view)
        units = self.units.get(view.value, cut.units)
        self.units[view.value] = min(units, cut.units)
        return cut

    def put(self, view: TensorView, dim: int, cut: Cut) -> None:
        self.labels[view.value] = storage_label(cut, view, dim)

    def cut_weight(self, view: TensorView, dim: int, origins: frozenset[int] = frozenset()) -> Cut:
        """Divide a weight along a dimension of the view through which it is read."""
        return self.cut_bias(view, dim, origins | {view.value})

    def cut_bias(self, view: TensorView, dim: int, origins: frozenset[int]) -> Cut:
        """Divide a weight that follows others (a bias), without making it an origin."""
        cut = Cut(dim, view.shape[dim], True, origins)
        self.put(view, dim, cut)
        return cut

    def put_partial(self, view: TensorView, operands: Sequence[TensorView]) -> None:
        """Mark a value as a partial sum computed from partial sums."""
        self.partial[view.value] = frozenset().union(*(self.partial[v.value] for v in operands))
        self.sums[view.value] = tuple(v.value for v in operands)

    def reduce_partial(self, view: TensorView) -> None:
        """Reduce a partial sum before an operator that needs its total: at the value with the
        fewest bytes among it and those it was computed from."""
        if not self.is_partial(view.value):
            return
        chain = [view.value]
        while len(self.sums.get(chain[-1], ())) == 1 and chain[-1] not in self.reduced:
            chain.append(self.sums[chain[-1]][0])
        self.reduced.add(min(chain, key=lambda value: self.values[value].bytes))
        for value in sorted(self.sums):  # what was made of whole tensors only is whole
            if not any(map(self.is_partial, self.sums[value])):
                self.partial.pop(value, None)
                self.reduced.discard(value)

    def reduce_partials(self, views: Iterable[TensorView]) -> None:
        for view in views:
            self.reduce_partial(view)

    def is_partial(self, value: int) -> bool:
        return value in self.partial and value not in self.reduced

    # --- for the emission ------------------------------------------------------------------------

    def value_split(
        self, value: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> SplitEntry | None:
        label = self.labels.get(value)
        if label is None:
            return None
        view = TensorView(value, shape, strides, 0, self.values[value].element_bytes, True)
        try:
            cut = view_cut(label, view)
        except ConflictError:  # the rest of a value of which only pieces are read
            return None
        units = min(cut.units, self.units.get(value, cut.units))
        units = units if shape[cut.dim] % units == 0 else cut.units
        uneven: Uneven = "replicate" if frozenset() < label.origins <= self.scarce else "refuse"
        uneven = "pad" if frozenset() < label.origins <= self.padded else uneven
        return SplitEntry(dim=cut.dim, units=units, uneven=uneven)

    def lookup_split(self, table: TensorView) -> SplitEntry | None:
        cut = table.value in self.labels
        return SplitEntry(dim=0, units=1, uneven="pad") if cut else None

    def product_split(self, node: CallNode, index: int) -> ProductSplit:
        splits = self.products.get(id(node), [])
        return splits[index] if index < len(splits) else ""

    def pass_split(self, work: VectorPass) -> PassSplit:
        view = work.over
        label = self.labels.get(view.value)
        if label is None:
            return ""
        if not any(view.strides):  # the scores of fused attention: heads are rows
            return "rows"
        try:
            dim = view_cut(label, view).dim
        except ConflictError:
            return ""
        return "rows" if dim < len(view.shape) - work.inner else "cols"
