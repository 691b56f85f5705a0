"""Which vector operators run as one kernel: neighbours of one module call, and copies anywhere.

Two rules. An operator joins the kernel that makes one of its operands; operators that read the
same tensor side by side join as well. Both only within one module call (or one inside the other,
for purely element-wise ones), and never where a third operator would have to run in between.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from atoll.tracing.record.node import CallNode, NodeKind

_INDEXED = (NodeKind.GATHER, NodeKind.SCATTER)
_FUSIBLE = (NodeKind.ELEMENTWISE, NodeKind.ROWS, *_INDEXED)


class _Clusters:
    """A partition of the nodes of one pass whose quotient graph has no cycle."""

    def __init__(self, nodes: Sequence[CallNode], barriers: Collection[int]) -> None:
        self.nodes = nodes
        self.barriers = barriers
        self.cluster_ids = list(range(len(nodes)))
        self.members = {i: [i] for i in range(len(nodes))}
        self.makers = makers = {view.value: i for i, n in enumerate(nodes) for view in n.outs}
        self.before = [
            {makers[v.value] for v in node.ins if makers.get(v.value, i) != i}
            for i, node in enumerate(nodes)
        ]

    def parents(self, cluster: int) -> set[int]:
        return {
            self.cluster_ids[p] for m in self.members[cluster] for p in self.before[m]
        } - {cluster}  # fmt: skip

    def reaches(self, start: int, goal: int) -> bool:
        """Whether a path leads from start to goal through some third cluster."""
        pending = [p for p in self.parents(goal) if p != start]
        visited = set(pending)
        while pending:
            cluster = pending.pop()
            if cluster == start:
                return True
            for parent in self.parents(cluster) - visited:
                visited.add(parent)
                pending.append(parent)
        return False

    def pure(self, cluster: int) -> bool:
        kinds = (NodeKind.ELEMENTWISE, *_INDEXED)
        return all(self.nodes[m].kind in kinds for m in self.members[cluster])

    def related(self, a: int, b: int, nested: bool) -> bool:
        left, right = (self.nodes[self.members[c][0]].call.scope for c in (a, b))
        if left == right or not nested:
            return left == right
        short, long = sorted((scope.partition("#")[0] for scope in (left, right)), key=len)
        inside = not short or long.startswith(f"{short}.")
        return inside and self.pure(a) and self.pure(b)

    def barred(self, a: int, b: int) -> bool:
        """Return whether a result of one cluster must leave the chip before the other reads it."""
        if not self.barriers:
            return False
        members = [self.nodes[m] for c in (a, b) for m in self.members[c]]
        barred_values = {view.value for node in members for view in node.outs} & set(self.barriers)
        return any(view.value in barred_values for node in members for view in node.ins)

    def merge(self, a: int, b: int, nested: bool) -> None:
        if a == b or self.barred(a, b) or not self.related(a, b, nested):
            return
        if self.reaches(a, b) or self.reaches(b, a):
            return
        keep, drop = sorted((a, b))
        for member in self.members.pop(drop):
            self.cluster_ids[member] = keep
            self.members[keep].append(member)


def cluster(nodes: Sequence[CallNode], barriers: Collection[int] = ()) -> list[list[CallNode]]:
    """Group the nodes of one pass into kernels, in topological order.

    Values in `barriers` are never passed inside a kernel (partial sums: a reduction follows), nor
    are values that are read or written by index.
    """
    anywhere = {node.ins[0].value for node in nodes if node.kind in _INDEXED}
    anywhere |= {v.value for node in nodes if node.kind is NodeKind.SCATTER for v in node.outs}
    state = _Clusters(nodes, {*barriers, *anywhere})
    fusible = [node.kind in _FUSIBLE for node in nodes]
    readers: dict[int, list[int]] = {}
    for i, node in enumerate(nodes):
        if fusible[i]:
            for view in node.ins:
                readers.setdefault(view.value, []).append(i)
    for nested in (False, True):
        for i in range(len(nodes)):
            if fusible[i]:
                for parent in sorted(state.before[i]):
                    if fusible[parent]:
                        state.merge(state.cluster_ids[parent], state.cluster_ids[i], nested)
        for value, group in readers.items():
            if value in state.makers:
                for reader in group[1:]:
                    state.merge(state.cluster_ids[group[0]], state.cluster_ids[reader], nested)
    # Ties in the order in which operators ran.
    parents = {c: state.parents(c) for c in state.members}
    done: dict[int, None] = {}
    waiting = sorted(state.members)
    while waiting:
        ready = next(c for c in waiting if parents[c] <= done.keys())
        waiting.remove(ready)
        done[ready] = None
    return [[nodes[m] for m in sorted(state.members[ready])] for ready in done]
