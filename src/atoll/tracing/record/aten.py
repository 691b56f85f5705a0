"""What each operator of torch (its ATen library) does: products, passes of vector functions, bytes.

Names of element-wise operators, copies and the like are in `aten_names.yaml`. An operator that is
not in these tables counts as one operation for each element that it reads or writes, and is named
in the capture's notes: nothing is dropped in silence.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

from atoll.files.yamlfile import shipped_table
from atoll.tracing.record.node import CallNode, NodeKind, VectorPass
from atoll.tracing.record.trace import OperatorCall, TensorView
from atoll.workload.graph.operator import Matmul
from atoll.workload.graph.products import (
    attention_fraction,
    data_gradient,
    keys_gradient,
    scores_product,
    values_product,
    weight_gradient,
)

_READ = shipped_table("atoll.tracing.record", "aten_names.yaml")
ELEMENTWISE: dict[str, str] = {
    name: function for function, names in _READ["elementwise"].items() for name in names.split()
}
"""The vector function of each."""
COPIES, FILLS, ZEROS, SUMS, LOSSES, GATHERS, SCATTERS, ADDING_SCATTERS, MOVES = (
    frozenset(_READ[kind].split())
    for kind in (
        "copies", "fills", "zeros", "sums", "losses", "gathers", "scatters", "adding_scatters",
        "moves",
    )
)  # fmt: skip
_WITHOUT_WORK = (
    (COPIES, NodeKind.ELEMENTWISE),
    (GATHERS, NodeKind.GATHER),
    (MOVES, NodeKind.MOVE),
    (SCATTERS, NodeKind.SCATTER),
    (LOSSES, NodeKind.ROWS),
)


def call_node(call: OperatorCall) -> CallNode:
    """Return the node of a call, with its work."""
    name = call.op.rstrip("_") if call.op.rstrip("_") in ELEMENTWISE else call.op
    if name in _SPECIAL:
        return _SPECIAL[name](call)
    for names, kind in _WITHOUT_WORK:
        if name in names:
            return _node(call, kind)
    if name in FILLS:
        return replace(_node(call, NodeKind.ELEMENTWISE), ins=[])
    if name in SUMS:
        return _row("add")(call)
    if name in ADDING_SCATTERS:
        return _node(call, NodeKind.SCATTER, passes=(VectorPass("add", call.ins[-1]),))
    over = max((*call.outs, *call.ins), key=lambda view: view.elements)
    if name in ELEMENTWISE:
        floating = over.floating or call.outs[0].floating
        work = (VectorPass(ELEMENTWISE[name], over),) if floating else ()
        return _node(call, NodeKind.ELEMENTWISE, passes=work)
    return _node(call, NodeKind.ROWS, passes=(VectorPass("add", over),), in_table=False)


def _node(call: OperatorCall, kind: NodeKind, **work: Any) -> CallNode:
    """Return a node; `work`: further fields of `CallNode`."""
    ins, outs = ([view for view in views if view.elements] for views in (call.ins, call.outs))
    return CallNode(call, kind, ins, outs, **work)


# --- products -------------------------------------------------------------------------------------


def _mm(call: OperatorCall) -> CallNode:
    a, b = call.ins[-2:]
    batch, m, k = a.shape if len(a.shape) == 3 else (1, *a.shape)
    plus = "add" if len(a.shape) == 3 else "bias"
    passes = (VectorPass(plus, call.outs[0]),) if len(call.ins) == 3 else ()
    return _node(call, NodeKind.PRODUCT, matmuls=(Matmul(batch, m, b.shape[-1], k),), passes=passes)


def _mv(call: OperatorCall) -> CallNode:
    a, b = call.ins[-2:]
    m, k = (1, a.shape[0]) if len(a.shape) == 1 else a.shape
    n = b.shape[1] if len(b.shape) == 2 else 1
    return _node(call, NodeKind.PRODUCT, matmuls=(Matmul(1, m, n, k),))


def _grouped(call: OperatorCall) -> CallNode:
    """Experts: rows of the left operand are dealt out to the groups, evenly for the estimate.

    (rows, k) by (groups, k, n); and its weight gradient, (m, rows) by (rows, n).
    """
    a, b = call.ins[:2]
    dealt: tuple[str, int] | None = None
    if len(a.shape) == 2 and len(b.shape) == 3:
        groups, k, n = b.shape
        product, dealt = Matmul(groups, -(-a.shape[0] // groups), n, k), ("m", a.shape[0])
    elif len(a.shape) == 2 and len(b.shape) == 2:
        groups = call.outs[0].shape[0]
        rows = a.shape[1]
        product, dealt = Matmul(groups, a.shape[0], b.shape[1], -(-rows // groups)), ("k", rows)
    elif len(a.shape) == 3 and len(b.shape) == 3:
        product = Matmul(a.shape[0], a.shape[1], b.shape[2], a.shape[2])
    else:
        groups, m, k = a.shape
        product, dealt = Matmul(groups, m, -(-b.shape[1] // groups), k), ("n", b.shape[1])
    return _node(call, NodeKind.PRODUCT, matmuls=(product,), grouped_rows=dealt)


def _convolution(call: OperatorCall) -> CallNode:
    """A convolution, or its gradients, as products over unfolded patches; depth-wise ones run on
    vector cores."""
    back = call.op.endswith("_backward")  # whose first operand is the gradient
    x, weight = call.ins[back : back + 2]
    y = call.ins[0] if back else call.outs[0]
    transposed, groups = bool(call.args[6 + back]), int(str(call.args[8 + back]))
    mask = call.args[10] if back else None
    computed = tuple(map(bool, mask)) if isinstance(mask, tuple) else (True, True, True)
    source, target = (y, x) if transposed else (x, y)
    kernel, rows = prod(weight.shape[2:]), target.shape[0] * prod(target.shape[2:])
    inner, outer = source.shape[1] // groups, target.shape[1] // groups
    biased = computed[2:3] == (True,) if back else len(call.ins) > 2
    bias = (VectorPass("bias_grad" if back else "bias", y),) if biased else ()
    if inner == 1 and outer == 1:
        times = kernel * (sum(computed[:2]) if back else 1)
        return _node(call, NodeKind.ROWS, passes=(VectorPass("mul", target, times=times), *bias))
    n, k = (inner * kernel, outer) if transposed else (outer, inner * kernel)
    matmuls: tuple[Matmul, ...] = (Matmul(groups, rows, n, k),)
    if back:
        gradients = zip(computed, (data_gradient, weight_gradient), strict=False)
        matmuls = tuple(gradient(matmuls[0]) for wanted, gradient in gradients if wanted)
    return _node(call, NodeKind.PRODUCT, matmuls=matmuls, passes=bias)


def _attention(call: OperatorCall) -> CallNode:
    """Two products; backwards five: the scores once more, then dV, dP, dQ and dK
    (arXiv:2307.08691)."""
    back = call.op.endswith("_backward")  # whose first operand is the gradient
    q, k, v = call.ins[back : back + 3]
    batch, heads, queries, width = q.shape
    kv_heads, keys = k.shape[1:3]
    fraction = 1.0
    if queries == keys:
        causal = any(a is True for a in (call.args[5:] if back else call.args[3:6]))
        share = call.unmasked_share
        fraction = attention_fraction(queries, causal, 0) if share is None else share
    scores = scores_product(batch, queries, heads, kv_heads, width, fraction, keys)
    values = values_product(scores, v.shape[-1])
    shape = batch, heads, queries, max(1, round(fraction * keys))
    over = TensorView(q.value, shape, (0, 0, 0, 0), 0, 2, True)
    passes = (VectorPass("softmax_bwd" if back else "softmax", over),)
    products: tuple[Matmul, ...] = (scores, values)
    if back:
        gradients = weight_gradient(values), data_gradient(values), data_gradient(scores)
        products = (scores, *gradients, keys_gradient(scores))
    node = _node(call, NodeKind.ATTENTION, matmuls=products, passes=passes)
    if not back:
        node.outs = [o for o in node.outs if o.elements > 1]
    return node


# --- norms, softmax, loss, look-ups ---------------------------------------------------------------


def _row(function: str) -> Callable[[OperatorCall], CallNode]:
    return lambda call: _node(call, NodeKind.ROWS, passes=(VectorPass(function, call.ins[0]),))


def _layer_norm(call: OperatorCall) -> CallNode:
    back = call.op.endswith("_backward")  # whose first operand is the gradient
    shape = call.args[1 + back]
    inner = len(shape) if isinstance(shape, tuple) else 1
    function = ("rmsnorm" if "rms" in call.op else "layernorm") + ("_bwd" if back else "")
    return _node(call, NodeKind.ROWS, passes=(VectorPass(function, call.ins[back], inner),))


def _embedding(call: OperatorCall) -> CallNode:
    table = call.outs[0] if call.op.endswith("_backward") else call.ins[0]
    return _node(call, NodeKind.MOVE, lookup_table=table)


_SPECIAL: dict[str, Callable[[OperatorCall], CallNode]] = {
    "mm": _mm, "addmm": _mm, "bmm": _mm, "baddbmm": _mm, "mv": _mv, "addmv": _mv, "dot": _mv,
    "_grouped_mm": _grouped,
    "convolution": _convolution, "convolution_backward": _convolution,
    "_scaled_dot_product_flash_attention_for_cpu": _attention,
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention,
    "native_layer_norm": _layer_norm, "native_layer_norm_backward": _layer_norm,
    "_fused_rms_norm": _layer_norm, "_fused_rms_norm_backward": _layer_norm,
    "native_group_norm": _row("layernorm"), "native_group_norm_backward": _row("layernorm_bwd"),
    "native_batch_norm": _row("layernorm"), "native_batch_norm_backward": _row("layernorm_bwd"),
    "_native_batch_norm_legit": _row("layernorm"),
    "_softmax": _row("softmax"), "_softmax_backward_data": _row("softmax_bwd"),
    "_safe_softmax": _row("softmax"),
    "_log_softmax": _row("cross_entropy"),
    "_log_softmax_backward_data": _row("cross_entropy_bwd"),
    "embedding": _embedding, "embedding_dense_backward": _embedding,
    "topk": _row("topk"), "sort": _row("topk"), "argsort": _row("topk"),
}  # fmt: skip
