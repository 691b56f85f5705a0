"""How a cut passes through each kind of operator."""

from __future__ import annotations

from collections.abc import Callable

from atoll.tracing.record.aten import ZEROS
from atoll.tracing.record.node import CallNode
from atoll.tracing.record.trace import TensorView
from atoll.tracing.split.division import ConflictError, Cut, Splits, merged_cut
from atoll.tracing.split.products import attention, convolution, grouped, product, unknown

Rule = Callable[[Splits, CallNode], None]

# Linear in one operand: a partial sum passes through as a partial sum. So it does through products
# and sums: gates that weigh experts, whose outputs are then added up; and the gates' gradients.
_WEIGHING = ("mul", "div", "sum", "mean")
_PASSING = """
    neg clone _to_copy index index_select gather cat slice_backward select_backward constant_pad_nd
    index_put index_add scatter_add scatter copy
"""
_LINEAR = frozenset(_PASSING.split())


def _pass_partial(splits: Splits, node: CallNode) -> bool:
    """Return whether the output is a partial sum because its operands are."""
    partial = [view for view in node.ins if splits.is_partial(view.value)]
    if not partial:
        return False
    name, rest = node.op.rstrip("_"), (v for v in node.ins if not splits.is_partial(v.value))
    others = [view for view in rest if view.floating and view.value not in splits.zeros]
    same = all(splits.cut(view) is None for view in node.ins)
    linear = len(partial) == 1 and (name in _WEIGHING or (name in _LINEAR and not others))
    # What several operators read is reduced once, before the first of them.
    once = all(splits.readers[view.value] == 1 for view in partial)
    # A complete operand is added on one device of the group, and the sum stays partial.
    summed = name == "add" or (name == "cat" and len(partial) == len(node.ins))
    if same and once and (linear or summed):
        for view in node.outs:
            splits.put_partial(view, partial)
        return True
    splits.reduce_partials(partial)
    return False


def elementwise(splits: Splits, node: CallNode) -> None:
    if not node.ins:  # zeros and the like
        splits.constant.update(view.value for view in node.outs)
        if node.op in ZEROS:
            splits.zeros.update(view.value for view in node.outs)
        return
    if _pass_partial(splits, node):
        return
    out = node.outs[0]
    cuts: dict[int, Cut] = {}
    for view in node.ins:
        if (cut := splits.cut(view)) is None:
            continue
        dim = _dim_after(node, view, out, cut)
        if out.shape[dim] != view.shape[cut.dim]:  # joined or padded along the cut
            cut = Cut(cut.dim, out.shape[dim], True, cut.origins)
        cuts[dim] = merged_cut(cuts[dim], cut) if dim in cuts else cut
    if not cuts:
        return
    origins = frozenset().union(*(cut.origins for cut in cuts.values()))
    if len(cuts) > 1:
        raise ConflictError(origins)
    ((dim, cut),) = cuts.items()
    for view in node.ins:
        if view.value in splits.labels:
            continue
        at = dim - (len(out.shape) - len(view.shape))
        if at < 0 or at >= len(view.shape) or view.shape[at] == 1:
            continue
        if splits.is_weight(view):
            if splits.backward:
                raise ConflictError(origins)
            splits.cut_bias(view, at, cut.origins)
        elif view.value not in splits.constant and view.floating and view.strides[at]:
            raise ConflictError(origins)
    for view in node.outs:
        if len(view.shape) == len(out.shape) and view.shape[dim] == out.shape[dim]:
            splits.put(view, dim, cut)


def _dim_after(node: CallNode, view: TensorView, out: TensorView, cut: Cut) -> int:
    """Return the output dimension to which the cut of an operand maps."""
    if node.op in ("select_backward", "stack"):  # a dimension more
        arguments = node.call.args
        which = arguments[2 if node.op == "select_backward" else 1] if len(arguments) > 1 else 0
        at = int(str(which)) % len(out.shape)
        return cut.dim if cut.dim < at else cut.dim + 1
    dim = cut.dim + len(out.shape) - len(view.shape)
    if dim < 0:
        raise ConflictError(cut.origins)
    along = node.op in ("cat", "slice_backward", "constant_pad_nd")
    if out.shape[dim] != view.shape[cut.dim] and not along:
        raise ConflictError(cut.origins)
    return dim


def _dims(node: CallNode) -> tuple[set[int], bool]:
    """Return the summed dimensions, and whether they are kept with size 1."""
    view = node.ins[0]
    over = node.call.args[1] if len(node.call.args) > 1 else None
    if isinstance(over, tuple) and over and all(isinstance(d, int) for d in over):
        dims = {int(str(d)) % len(view.shape) for d in over}
    elif isinstance(over, int) and not isinstance(over, bool) and view.shape:
        dims = {over % len(view.shape)}
    else:
        dims = set(range(len(view.shape)))
    return dims, len(node.outs[0].shape) == len(view.shape)


def reduction(splits: Splits, node: CallNode) -> None:
    if _pass_partial(splits, node):
        return
    splits.reduce_partials(node.ins)
    if (cut := splits.cut(node.ins[0])) is None:
        return
    dims, keeps_dims = _dims(node)
    if cut.dim in dims:
        norm = node.op == "mean" and not splits.backward  # what it scales would stay cut too
        if node.op not in ("sum", "mean") or norm:
            raise ConflictError(cut.origins)
        for view in node.outs:
            splits.partial[view.value] = cut.origins
        return
    dim = cut.dim if keeps_dims else cut.dim - len([d for d in dims if d < cut.dim])
    for view in node.outs:
        splits.put(view, dim, cut)


def rowwise(splits: Splits, node: CallNode) -> None:
    """Norms, softmax and their derivatives: only the dimensions of rows may be divided."""
    inner, main = (node.passes[0].inner, node.passes[0].over) if node.passes else (1, node.ins[0])
    splits.reduce_partials(node.ins)
    cut_views = [(view, cut) for view in node.ins if (cut := splits.cut(view)) is not None]
    if not cut_views:
        return
    loss = "log_softmax" in node.op
    for view, cut in cut_views:
        rows = cut.dim < len(view.shape) - inner or len(view.shape) < len(main.shape)
        if not rows and not loss:
            raise ConflictError(cut.origins)
        if not rows:
            splits.padded |= cut.origins
            splits.rows_summed.add(id(node))
    view, cut = cut_views[0]
    if any(c.dim != cut.dim for v, c in cut_views if len(v.shape) == len(view.shape)):
        raise ConflictError(cut.origins)
    for out in node.outs:
        if len(out.shape) == len(view.shape) and out.shape[cut.dim] == view.shape[cut.dim]:
            splits.put(out, cut.dim, cut)


def nll_loss(splits: Splits, node: CallNode) -> None:
    """Select one column per row; with cut columns, on the device that holds it."""
    splits.reduce_partials(node.ins)
    for view in node.ins:
        if (cut := splits.cut(view)) is not None:
            for out in (out for out in node.outs if out.shape == view.shape):
                splits.put(out, cut.dim, cut)


def lookup(splits: Splits, node: CallNode) -> None:
    """Look up rows of a table cut by rows: devices without the row contribute zero."""
    table = node.ins[0]
    if splits.may_cut(table) and table.value in splits.tables:
        splits.padded |= splits.cut_weight(table, 0).origins
    if (cut := splits.cut(table)) is None:
        return
    if cut.dim != 0:
        raise ConflictError(cut.origins)
    splits.partial[node.outs[0].value] = cut.origins


def gather(splits: Splits, node: CallNode) -> None:
    """Gather rows by index; columns may be divided."""
    if _pass_partial(splits, node):
        return
    splits.reduce_partials(node.ins)
    out = node.outs[0]
    for view in node.ins:
        if (cut := splits.cut(view)) is None:
            continue
        last = len(view.shape) - 1
        if cut.dim != last or view.shape[last] != out.shape[-1] or len(view.shape) < 2:
            raise ConflictError(cut.origins)
        splits.put(out, len(out.shape) - 1, cut)


_SUMS = "sum mean amax amin var std prod logsumexp any all"
_ROWS = """
    native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward _softmax
    _safe_softmax _softmax_backward_data _log_softmax _log_softmax_backward_data cumsum topk sort
"""
_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"

RULES: dict[str, Rule] = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm"), product),
    "_grouped_mm": grouped,
    **dict.fromkeys(("convolution", "convolution_backward"), convolution),
    **dict.fromkeys((_ATTENTION, f"{_ATTENTION}_backward"), attention),
    **dict.fromkeys(_SUMS.split(), reduction),
    **dict.fromkeys(_ROWS.split(), rowwise),
    **dict.fromkeys(("nll_loss_forward", "nll_loss_backward"), nll_loss),
    "embedding": lookup,
    "embedding_dense_backward": unknown,
    **dict.fromkeys(("index", "index_select", "gather", "index_put", "index_add"), gather),
}
