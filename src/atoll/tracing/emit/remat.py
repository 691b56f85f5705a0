"""What the backward pass keeps of the forward pass, as a fusing compiler would have it.

Eager autograd keeps every operand that a derivative mentions: of a norm in single precision the
input twice, of a gated activation three tensors. A compiler keeps a tensor's origin instead and
runs the element-wise operators in between again, inside the backward kernel that wants it. Here a
kept tensor is replaced when only vector operators want it and its origins take fewer bytes. What
products read is left alone: whether to recompute that is for the search to decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from atoll.tracing.record.node import Kind, Node
from atoll.tracing.record.trace import Value, View

_RANDOM = ("native_dropout", "_fused_dropout", "bernoulli", "rand_like", "uniform", "normal")
_DEEPEST = 8


@dataclass
class _Kept:
    """The forward pass, and the values that the backward pass reads of it."""

    makers: dict[int, Node]
    own: set[int]
    """Values that cost memory to keep: made in this layer, or entering it."""
    bytes_of: Callable[[int], int]
    kept: set[int]

    def cheap(self, value: int) -> bool:
        node = self.makers.get(value)
        return (
            node is not None
            and node.kind is Kind.ELEMENTWISE
            and len(node.outs) == 1
            and node.op.rstrip("_") not in _RANDOM
        )

    def cost(self, origins: set[int]) -> int:
        return sum(self.bytes_of(v) for v in origins if v in self.own and v not in self.kept)

    def origins(self, value: int) -> set[int] | None:
        """The cheapest set of values from which this one can be made again, if it saves bytes."""
        best, least = None, self.bytes_of(value)
        level = {value}
        for _ in range(_DEEPEST):
            deeper: set[int] = set()
            for item in level:
                stop = item != value and (item in self.kept or item not in self.own)
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
    forward: Sequence[Node], backward: Sequence[Node], values: list[Value], entering: set[int]
) -> list[Node]:
    """The backward pass with element-wise operators run again where that saves memory."""
    makers = {view.value: node for node in forward for view in node.outs}
    own = set(makers) | entering
    wanted = {view.value for node in backward for view in node.ins} & own
    state = _Kept(makers, own, lambda v: values[v].bytes, set(wanted))
    by_products = {
        view.value
        for node in backward
        if node.kind not in (Kind.ELEMENTWISE, Kind.ROWS)
        for view in node.ins
    }
    for _ in range(3):
        changed = False
        for value in sorted(state.kept & set(makers), reverse=True):
            if value in by_products or not state.cheap(value):
                continue
            origins = state.origins(value)
            if origins is not None:
                state.kept.discard(value)
                state.kept |= origins & own
                changed = True
        if not changed:
            break
    return _with_reruns(backward, state, values)


def _with_reruns(backward: Sequence[Node], state: _Kept, values: list[Value]) -> list[Node]:
    result: list[Node] = []
    again: dict[tuple[int, str], int] = {}
    made_here = {view.value for node in backward for view in node.outs}

    def remade(value: int, scope: Node) -> int:
        if value in state.kept or value not in state.makers or value in made_here:
            return value
        # Each module call has its own: what one kernel makes again, no other reads from memory.
        key = value, scope.call.scope
        if key not in again:
            source = state.makers[value]
            ins = [replace(v, value=remade(v.value, scope)) for v in source.ins]
            number = len(values)
            values.append(replace(values[value], number=number))
            again[key] = number
            outs = [replace(v, value=number) for v in source.outs]
            # It runs where its first reader runs, so that the two may fuse.
            call = replace(source.call, scope=scope.call.scope, path=scope.call.path, backward=True)
            result.append(replace(_moved(source, ins, outs), call=call, again=True))
        return again[key]

    for node in backward:
        ins = [replace(v, value=remade(v.value, node)) for v in node.ins]
        result.append(_moved(node, ins, node.outs))
    return result


def _moved(node: Node, ins: list[View], outs: list[View]) -> Node:
    """The node on other values; its passes follow their tensors."""
    views = zip((*node.ins, *node.outs), (*ins, *outs), strict=True)
    after = dict(reversed(list(views)))  # of equal ones the first counts
    passes = tuple(replace(p, over=after.get(p.over, p.over)) for p in node.passes)
    return replace(node, ins=ins, outs=outs, passes=passes)
