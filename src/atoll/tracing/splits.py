"""Tensor parallelism for a captured layer: which weights to cut, and what follows from it.

Every product with a weight is cut by columns first (Megatron-LM, arXiv:1909.08053). The cut then
follows the data through both passes: through heads, element-wise operators and attention, to a
second product, whose weight it cuts by rows and whose output is a partial sum, reduced where it is
first needed whole. Where an operator needs whole what is cut (a norm over the cut columns, a
residual addition), the weights that led there stay whole and the walk begins anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from atoll.tracing.labels import ConflictError, Cut, Label, placed, seen
from atoll.tracing.node import Node, Pass
from atoll.tracing.segment import Segment
from atoll.tracing.split_products import unknown
from atoll.tracing.split_rules import RULES, elementwise
from atoll.tracing.trace import Source, Trace, Value, View
from atoll.workload.modelfile import OperatorEntry, PassSplit, ProductSplit, SplitEntry, Uneven

if TYPE_CHECKING:
    from atoll.tracing.emit import Emission


class Splits:
    """The division of one layer: labels of values, partial sums, divided products."""

    def __init__(self, values: Sequence[Value], banned: frozenset[int] = frozenset()) -> None:
        self.values = values
        self.banned = banned
        self.labels: dict[int, Label] = {}
        self.partial: dict[int, frozenset[int]] = {}
        self.reduced: set[int] = set()
        self.sums: dict[int, tuple[int, ...]] = {}
        """Of a partial sum, the partial sums that it was made of."""
        self.units: dict[int, int] = {}
        self.products: dict[int, list[ProductSplit]] = {}
        self.rows_summed: set[int] = set()
        """Nodes that sum a few numbers a row over the group (a softmax over cut columns)."""
        self.padded: set[int] = set()
        self.scarce: set[int] = set()
        self.constant: set[int] = set()
        self.zeros: set[int] = set()
        self.readers: Counter[int] = Counter()
        """How many operators of its own pass read a value."""
        self.tables: frozenset[int] = frozenset()
        """Look-up tables that may be cut: the largest one of the layer."""
        self.backward = False

    # --- for the rules ---------------------------------------------------------------------------

    def is_weight(self, view: View) -> bool:
        return self.values[view.value].source is Source.WEIGHT

    def may_cut(self, view: View) -> bool:
        free = view.value not in self.banned and view.value not in self.labels
        return self.is_weight(view) and free and not self.backward

    def cut(self, view: View) -> Cut | None:
        label = self.labels.get(view.value)
        if label is None:
            return None
        found = seen(label, view)
        known = self.units.get(view.value, found.units)
        self.units[view.value] = min(known, found.units)
        return found

    def put(self, view: View, dim: int, cut: Cut) -> None:
        self.labels[view.value] = placed(cut, view, dim)

    def cut_weight(self, view: View, dim: int, origins: frozenset[int]) -> Cut:
        """Divide a weight along a dimension of the view through which it is read."""
        return self.cut_bias(view, dim, origins | {view.value})

    def cut_bias(self, view: View, dim: int, origins: frozenset[int]) -> Cut:
        """The same for a weight that only follows others (a bias)."""
        cut = Cut(dim, view.shape[dim], True, origins)
        self.put(view, dim, cut)
        return cut

    def put_partial(self, view: View, made_of: Sequence[View]) -> None:
        """A partial sum because its operands are."""
        self.partial[view.value] = frozenset().union(*(self.partial[v.value] for v in made_of))
        self.sums[view.value] = tuple(v.value for v in made_of)

    def whole(self, view: View) -> None:
        """The operator needs all of the tensor: a partial sum is reduced before, itself or the
        one that it was made of that has the fewest bytes.
        """
        if not self.is_partial(view):
            return
        chain = [view.value]
        while len(self.sums.get(chain[-1], ())) == 1 and chain[-1] not in self.reduced:
            chain.append(self.sums[chain[-1]][0])
        self.reduced.add(min(chain, key=lambda value: self.values[value].bytes))
        for value in sorted(self.sums):  # what was made of whole tensors only is whole
            if not any(self._open(part) for part in self.sums[value]):
                self.partial.pop(value, None)
                self.reduced.discard(value)

    def _open(self, value: int) -> bool:
        return value in self.partial and value not in self.reduced

    def is_partial(self, view: View) -> bool:
        return self._open(view.value)

    # --- for the emission ------------------------------------------------------------------------

    def of_value(
        self, value: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> SplitEntry | None:
        label = self.labels.get(value)
        if label is None:
            return None
        view = View(value, shape, strides, 0, self.values[value].element_bytes, True)
        try:
            found = seen(label, view)
        except ConflictError:  # the rest of a value of which only pieces are read
            return None
        units = min(found.units, self.units.get(value, found.units))
        units = units if shape[found.dim] % units == 0 else found.units
        return SplitEntry(dim=found.dim, units=units, uneven=self._uneven(label.origins))

    def _uneven(self, origins: frozenset[int]) -> Uneven:
        if origins and origins <= self.padded:
            return "pad"
        return "replicate" if origins and origins <= self.scarce else "refuse"

    def of_rows(self, table: View) -> SplitEntry | None:
        if table.value not in self.labels:
            return None
        return SplitEntry(dim=0, units=1, uneven="pad")

    def of_product(self, node: Node, index: int) -> ProductSplit:
        splits = self.products.get(id(node), [])
        return splits[index] if index < len(splits) else ""

    def of_pass(self, work: Pass) -> PassSplit:
        view = work.over
        label = self.labels.get(view.value)
        if label is None:
            return ""
        if not any(view.strides):  # the scores of fused attention: heads are rows
            return "rows"
        try:
            dim = seen(label, view).dim
        except ConflictError:
            return ""
        return "rows" if dim < len(view.shape) - work.inner else "cols"

    def collective(self, view: View, emission: Emission) -> OperatorEntry | None:
        """The reduction behind the operator that writes a partial sum, if there is one."""
        if view.value not in self.reduced:
            return None
        total = emission.names[view.value]
        partial = f"{total}.partial"
        emission.tensors[partial] = emission.tensors[total]
        return OperatorEntry(
            name=f"{total}.reduce",
            kind="all_reduce",
            reads=(partial,),
            writes=(total,),
            collective="all_reduce",
        )


def find_splits(
    forward: Sequence[Node], backward: Sequence[Node], trace: Trace, segment: Segment,
    outside: set[int],
) -> Splits:  # fmt: skip
    """The division of one layer that keeps the most weights cut."""
    banned: frozenset[int] = frozenset()
    while True:
        splits = Splits(trace.values, banned)
        own = {v.value for node in (*forward, *backward) for v in node.outs}
        read = {v.value for node in (*forward, *backward) for v in node.ins}
        splits.constant = {
            v for v in read if v not in own and v not in segment.entering and not _weight(trace, v)
        } | _without_gradient(forward, trace, segment)
        for nodes in (forward, backward):
            made = {v.value for node in nodes for v in node.outs}
            splits.readers.update(
                value for n in nodes for value in {v.value for v in n.ins} if value in made
            )
        tables = [n.rows_of.value for n in forward if n.rows_of is not None]
        splits.tables = frozenset(sorted(tables, key=lambda v: trace.values[v].elements)[-1:])
        try:
            _walk(splits, forward, backward, segment, outside, trace)
        except ConflictError as conflict:
            new = conflict.origins - banned
            if not new:  # nothing left to blame: everything stays whole
                return Splits(trace.values)
            banned |= new
            continue
        return splits


def _weight(trace: Trace, value: int) -> bool:
    return trace.values[value].source is Source.WEIGHT


def _without_gradient(forward: Sequence[Node], trace: Trace, segment: Segment) -> set[int]:
    """Values made here of constants alone (masks, rotations)."""
    live = set(segment.entering) | {v.number for v in trace.values if v.source is Source.WEIGHT}
    constant: set[int] = set()
    for node in forward:
        if any(view.value in live for view in node.ins):
            live.update(view.value for view in node.outs)
        else:
            constant.update(view.value for view in node.outs)
    return constant


def _walk(
    splits: Splits,
    forward: Sequence[Node],
    backward: Sequence[Node],
    segment: Segment,
    outside: set[int],
    trace: Trace,
) -> None:
    final = set(trace.gradient_of)
    for nodes, splits.backward in ((forward, False), (backward, True)):
        for node in nodes:
            rule = RULES.get(node.op.rstrip("_"), RULES.get(node.op))
            if rule is None:
                rule = elementwise if node.kind == "elementwise" else unknown
            rule(splits, node)
            for view in node.outs:
                if view.value in final:
                    continue
                if view.value in outside or view.value in segment.leaving:
                    label = splits.labels.get(view.value)
                    if label is not None:
                        raise ConflictError(label.origins)
                    splits.whole(view)
