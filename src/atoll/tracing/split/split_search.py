"""Tensor parallelism for a captured layer: which weights to cut, and what follows from it.

Every product with a weight is cut by columns first (Megatron-LM, arXiv:1909.08053). The cut then
follows the data through both passes: through heads, element-wise operators and attention, to a
second product, whose weight it cuts by rows and whose output is a partial sum, reduced where it is
first needed whole. Where an operator needs whole what is cut (a norm over the cut columns, a
residual addition), the weights that led there stay whole and the walk begins anew.
"""

from __future__ import annotations

from atoll.tracing.record.node import Nodes
from atoll.tracing.record.segment import Segment
from atoll.tracing.record.trace import ModuleTrace, ValueSource
from atoll.tracing.split.division import ConflictError, Splits
from atoll.tracing.split.products import unknown
from atoll.tracing.split.rules import RULES, elementwise


def find_splits(
    forward: Nodes, backward: Nodes, trace: ModuleTrace, segment: Segment, outside: set[int]
) -> Splits:
    """Find the division of a layer that keeps the most weights cut."""
    banned: frozenset[int] = frozenset()
    leaving = {*outside, *segment.leaving} - set(trace.gradient_weights)
    nodes = (*forward, *backward)
    outputs = {v.value for node in nodes for v in node.outs}
    # Weights, what enters, and what is computed from them; the rest (masks, rotations) is constant.
    live = {v.number for v in trace.values if v.source is ValueSource.WEIGHT} | {*segment.entering}
    constant = {v.value for node in nodes for v in node.ins} - outputs - live
    for node in forward:
        affected = live if any(view.value in live for view in node.ins) else constant
        affected.update(view.value for view in node.outs)
    tables = [n.lookup_table.value for n in forward if n.lookup_table is not None]
    while True:
        splits = Splits(trace.values, banned)
        splits.constant = {*constant}
        for pass_ in (forward, backward):
            pass_outputs = {v.value for node in pass_ for v in node.outs}
            splits.readers.update(
                value for n in pass_ for value in {v.value for v in n.ins} if value in pass_outputs
            )
        splits.tables = frozenset(sorted(tables, key=lambda v: trace.values[v].elements)[-1:])
        try:
            _walk(splits, forward, backward, leaving)
            return splits
        except ConflictError as conflict:
            if conflict.origins <= banned:  # nothing left to blame: everything stays whole
                return Splits(trace.values)
            banned |= conflict.origins


def _walk(splits: Splits, forward: Nodes, backward: Nodes, leaving: set[int]) -> None:
    """Propagate cuts through both passes; values that leave the layer are complete."""
    for nodes, splits.backward in ((forward, False), (backward, True)):
        for node in nodes:
            rule = RULES.get(node.op.rstrip("_"), RULES.get(node.op))
            if rule is None:
                rule = elementwise if node.kind == "elementwise" else unknown
            rule(splits, node)
            for view in (view for view in node.outs if view.value in leaving):
                if (label := splits.labels.get(view.value)) is not None:
                    raise ConflictError(label.origins)
                splits.reduce_partial(view)
