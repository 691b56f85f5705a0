"""Several operators as one kernel: what it is called, and which passes are left in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from atoll.tracing.record.node import CallNode, NodeKind, VectorPass
from atoll.workload.modelfile import StepsEntry

# A product's epilogue works on its own tile: it cannot join or pad what lies in others.
_SHUFFLES = frozenset(("cat", "stack", "slice_backward", "select_backward", "roll", "flip"))


def kernel_kind(
    group: Sequence[CallNode], backward: bool, weights: Collection[int], gradients: Collection[int]
) -> str:
    """Name the kind of a kernel as `fuse` knows it.

    `weights` and `gradients` are the values that are weights, and their gradients.
    """
    first = group[0]
    if first.kind is NodeKind.PRODUCT:
        return _product_kind(first, backward, weights, gradients)
    if first.kind is NodeKind.ATTENTION:
        return "attention_bwd" if backward else "attention"
    if first.kind is NodeKind.MOVE:
        return "move"
    if any(node.kind in (NodeKind.GATHER, NodeKind.SCATTER) for node in group):
        return "move" if len(group) == 1 else "shuffle"
    if any(node.op in _SHUFFLES and node.outs[0].elements > 1 for node in group):
        return "shuffle"
    rows = any(node.kind is NodeKind.ROWS for node in group)
    return ("norm" if rows else "activation") + ("_bwd" if backward else "")


def _product_kind(
    node: CallNode, backward: bool, weights: Collection[int], gradients: Collection[int]
) -> str:
    if backward and any(view.value in gradients for view in node.outs):
        # A convolution's backward operator makes both gradients at once.
        return "linear_wgrad" if len(node.matmuls) == 1 else "linear_grad"
    if any(view.value in weights and len(view.shape) > 1 for view in node.ins):
        return "linear_dgrad" if backward else "linear"
    return "product"  # of two activations


def kernel_passes(group: Sequence[CallNode]) -> list[VectorPass]:
    """List the passes of all nodes, without those that cost nothing.

    An addition after a product in the same kernel is one multiply-add; the derivative of an
    activation already computes its recomputed forward value.
    """
    makers = {view.value: node for node in group for view in node.outs}
    derived = {
        (work.function.removesuffix("_bwd"), work.over.elements)
        for node in group
        for work in node.passes
        if work.function in ("silu_bwd", "gelu_bwd")
    }
    used: set[int] = set()
    result = []
    for node in group:
        for work in node.passes:
            factor = _factor(node, work, makers, used) if work.function == "add" else None
            if factor is not None:
                used.add(id(factor))
            elif (work.function, work.over.elements) not in derived:
                result.append(work)
    return result


def eager_steps(group: Sequence[CallNode], divided: Collection[int]) -> dict[str, StepsEntry]:
    """Return the kernels of the group in an eager framework, one per node, by vector function."""
    kernels: Counter[str] = Counter()
    sizes: dict[tuple[str, bool], list[int]] = {}
    for node in group:
        if node.recomputed or "empty" in node.op or not node.outs:
            continue
        function = node.passes[0].function if node.passes else "copy"
        kernels[function] += 1
        for view in (*node.ins, *node.outs):
            sizes.setdefault((function, view.value in divided), []).append(view.bytes)
    return {
        function: StepsEntry(
            kernels=n,
            bytes=tuple(sizes.get((function, False), ())),
            divided=tuple(sizes.get((function, True), ())),
        )
        for function, n in kernels.items()
    }


def _factor(
    node: CallNode, work: VectorPass, makers: dict[int, CallNode], used: set[int]
) -> CallNode | None:
    """A product of the same kernel that this addition follows."""
    for view in node.ins:
        maker = makers.get(view.value)
        if maker is None or id(maker) in used or [p.function for p in maker.passes] != ["mul"]:
            continue
        if maker.passes[0].over.elements == work.over.elements:
            return maker
    return None
