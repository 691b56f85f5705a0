"""Select the forward tensors that the backward pass saves, as a fusing compiler would.

Eager autograd keeps every operand that a derivative mentions: of a norm in single precision the
input twice, of a gated activation three tensors. A compiler keeps a tensor's origin instead and
runs the element-wise operators in between again, inside the backward kernel that wants it. Here a
kept tensor is replaced when only vector operators want it and its origins take fewer bytes. What
products read is left alone: whether to recompute that is for the search to decide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from atoll.tracing.record.node import CallNode, NodeKind, Nodes
from atoll.tracing.record.trace import TensorView, Value

_RANDOM = ("native_dropout", "_fused_dropout", "bernoulli", "rand_like", "uniform", "normal")
_DEEPEST = 8


@dataclass
class _SavedValues:
    """Forward makers, and the values saved for the backward pass."""

    makers: dict[int, CallNode]
    stored: set[int]
    """Values that cost memory to keep: made in this layer, or entering it."""
    value_bytes: Callable[[int], int]
    saved: set[int]

    def cheap(self, value: int) -> bool:
        node = self.makers.get(value)
        return (
            node is not None
            and node.kind is NodeKind.ELEMENTWISE
            and len(node.outs) == 1
            and node.op.rstrip("_") not in _RANDOM
        )

    def cost(self, origins: set[int]) -> int:
        return sum(self.value_bytes(v) for v in origins if v in self.stored and v not in self.saved)

    def origins(self, value: int) -> set[int] | None:
        """Find the cheapest set of values to recompute this one from, if it saves bytes."""
        best, least = None, self.value_bytes(value)
        level = {value}
        for _ in range(_DEEPEST):
            deeper: set[int] = set()
            for item in level:
                stop = item != value and (item in self.saved or item not in self.stored)
                if stop or not self.cheap(item):
                    deeper.add(item)
                else:
                    deeper.update(view.value for view in self.makers[item].ins)
            if deeper == level or value in deeper:
                break
            level = deeper
            cost = self.cost(level)
            if cost < least:
                best, least = level, cost
        return best


def rematerialise(
    forward: Nodes, backward: Nodes, values: list[Value], entering: set[int]
) -> list[CallNode]:
    """The backward pass with element-wise operators run again where that saves memory."""
    makers = {view.value: node for node in forward for view in node.outs}
    stored = set(makers) | entering
    wanted = {view.value for node in backward for view in node.ins} & stored
    state = _SavedValues(makers, stored, lambda v: values[v].bytes, set(wanted))
    vectors = (NodeKind.ELEMENTWISE, NodeKind.ROWS)
    by_products = {v.value for n in backward if n.kind not in vectors for v in n.ins}
    for _ in range(3):
        changed = False
        for value in sorted(state.saved & set(makers), reverse=True):
            if value in by_products or not state.cheap(value):
                continue
            origins = state.origins(value)
            if origins is not None:
                state.saved.discard(value)
                state.saved |= origins & stored
                changed = True
        if not changed:
            break
    return _with_reruns(backward, state, values)


def _with_reruns(backward: Nodes, state: _SavedValues, values: list[Value]) -> list[CallNode]:
    result: list[CallNode] = []
    rerun_numbers: dict[tuple[int, str], int] = {}
    backward_outputs = {view.value for node in backward for view in node.outs}

    def remade(value: int, scope: CallNode) -> int:
        if value in state.saved or value not in state.makers or value in backward_outputs:
            return value
        # Each module call has its own: what one kernel makes again, no other reads from memory.
        key = value, scope.call.scope
        if key not in rerun_numbers:
            source = state.makers[value]
            ins = [replace(v, value=remade(v.value, scope)) for v in source.ins]
            number = len(values)
            values.append(replace(values[value], number=number))
            rerun_numbers[key] = number
            outs = [replace(v, value=number) for v in source.outs]
            # It runs where its first reader runs, so that the two may fuse.
            call = replace(source.call, scope=scope.call.scope, path=scope.call.path, backward=True)
            result.append(replace(_moved(source, ins, outs), call=call, recomputed=True))
        return rerun_numbers[key]

    for node in backward:
        ins = [replace(v, value=remade(v.value, node)) for v in node.ins]
        result.append(_moved(node, ins, node.outs))
    return result


def _moved(node: CallNode, ins: list[TensorView], outs: list[TensorView]) -> CallNode:
    """Return the node on other views; its passes follow their tensors."""
    views = zip((*node.ins, *node.outs), (*ins, *outs), strict=True)
    after = dict(reversed(list(views)))  # of equal ones the first counts
    passes = tuple(replace(p, over=after.get(p.over, p.over)) for p in node.passes)
    return replace(node, ins=ins, outs=outs, passes=passes)
