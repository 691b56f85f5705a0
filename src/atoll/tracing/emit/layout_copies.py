"""Copies that only suit this machine's kernels: fused attention writes any layout it is asked for.

On the CPU torch's fused attention writes its output as (batch, heads, sequence, width) when its
inputs lie so; the copy to (batch, sequence, heads, width) that follows is the kernel's own choice
of layout elsewhere, and is left out here.
"""

from __future__ import annotations

from dataclasses import replace

from atoll.tracing.record.node import CallNode, NodeKind, Nodes
from atoll.tracing.record.trace import TensorView


def without_layout_copies(forward: Nodes, backward: Nodes) -> tuple[list[CallNode], list[CallNode]]:
    """Drop layout copies of attention outputs: attention writes to the target of the copy."""
    attention = (node for node in forward if node.kind is NodeKind.ATTENTION and node.outs)
    attention_nodes = {node.outs[0].value: node for node in attention}
    moved: dict[int, TensorView] = {}
    dropped: set[int] = set()
    for node in forward:
        source = attention_nodes.get(node.ins[0].value) if node.op == "clone" and node.ins else None
        if source is None or source.outs[0].value in moved:
            continue
        strides = _permuted(source.outs[0], node.ins[0], node.outs[0])
        if strides is not None:
            target = node.outs[0]
            moved[source.outs[0].value] = replace(
                source.outs[0], value=target.value, strides=strides, offset=target.offset
            )
            dropped.add(id(node))

    def redirect(node: CallNode) -> CallNode:
        def view(old: TensorView) -> TensorView:
            new = moved.get(old.value)
            return new if new is not None and new.shape == old.shape else old

        return replace(node, ins=[view(v) for v in node.ins], outs=[view(v) for v in node.outs])

    remaining = [node for node in forward if id(node) not in dropped]
    reads = (v for n in (*remaining, *backward) for v in n.ins if v.value in moved)
    if any(v.shape != moved[v.value].shape for v in reads):  # in another way: the copy is real
        return list(forward), list(backward)
    return [redirect(n) for n in remaining], [redirect(n) for n in backward]


def _permuted(out: TensorView, read: TensorView, copy: TensorView) -> tuple[int, ...] | None:
    """Strides of the attention output (in its own order of dimensions) inside the copy."""
    if sorted(read.shape) != sorted(out.shape) or read.shape != copy.shape:
        return None
    result = []
    for size, stride in zip(out.shape, out.strides, strict=True):
        matches = [
            i for i, (n, s) in enumerate(zip(read.shape, read.strides, strict=True))
            if (n, s) == (size, stride)
        ]  # fmt: skip
        if not matches:
            return None
        result.append(copy.strides[matches[0]])
    return tuple(result)
