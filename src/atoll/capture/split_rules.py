"""How a cut passes through each kind of operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from atoll.capture.labels import Conflict, Cut, both
from atoll.capture.node import Kind, Node
from atoll.capture.trace import View

if TYPE_CHECKING:
    from atoll.capture.splits import Splits

Rule = Callable[["Splits", Node], None]

# Linear in one operand: a partial sum passes through as a partial sum. In the forward pass so it
# does through products and sums: gates that weigh experts, whose outputs are then added up.
_WEIGHING = ("mul", "div", "sum", "mean")
_LINEAR = frozenset(
    """neg clone _to_copy index index_select gather cat slice_backward
    select_backward constant_pad_nd index_put index_add scatter_add scatter copy""".split()
)


def unknown(splits: Splits, node: Node) -> None:
    """An operator without a rule: everything that it reads must be whole."""
    for view in node.ins:
        cut = splits.cut(view)
        if cut is not None:
            raise Conflict(cut.origins)
        splits.whole(view)


def _pass_partial(splits: Splits, node: Node) -> bool:
    """Whether the output is a partial sum because its operands are."""
    partial = [view for view in node.ins if splits.is_partial(view)]
    if not partial:
        return False
    name = node.op.rstrip("_")
    others = [view for view in node.ins if not splits.is_partial(view) and view.floating]
    same = all(splits.cut(view) is None for view in node.ins)
    weighing = name in _WEIGHING and not splits.backward
    linear = len(partial) == 1 and (weighing or (name in _LINEAR and not others))
    # What several operators read is reduced once, before the first of them.
    once = all(splits.readers[view.value] == 1 for view in partial)
    # What is whole is added on one device of the group, and the sum stays partial.
    summed = name == "add" or (name == "cat" and len(partial) == len(node.ins))
    if same and once and (linear or summed):
        origins = frozenset().union(*(splits.partial[v.value] for v in partial))
        for view in node.outs:
            splits.partial[view.value] = origins
        return True
    for view in partial:
        splits.whole(view)
    return False


def elementwise(splits: Splits, node: Node) -> None:
    if _pass_partial(splits, node):
        return
    out = node.outs[0]
    found: dict[int, Cut] = {}
    for view in node.ins:
        cut = splits.cut(view)
        if cut is None:
            continue
        dim = _dim_after(node, view, out, cut)
        if out.shape[dim] != view.shape[cut.dim]:  # joined or padded along the cut
            cut = Cut(cut.dim, out.shape[dim], True, cut.origins)
        found[dim] = both(found[dim], cut) if dim in found else cut
    if not found:
        return
    origins = frozenset().union(*(cut.origins for cut in found.values()))
    if len(found) > 1:
        raise Conflict(origins)
    ((dim, cut),) = found.items()
    for view in node.ins:
        if view.value in splits.labels:
            continue
        at = dim - (len(out.shape) - len(view.shape))
        if at < 0 or at >= len(view.shape) or view.shape[at] == 1:
            continue
        if splits.is_weight(view):
            if splits.backward:
                raise Conflict(origins)
            splits.cut_bias(view, at, cut.origins)
        elif view.value not in splits.constant and view.floating and view.strides[at]:
            raise Conflict(origins)
    for view in node.outs:
        if len(view.shape) == len(out.shape) and view.shape[dim] == out.shape[dim]:
            splits.put(view, dim, cut)


def _dim_after(node: Node, view: View, out: View, cut: Cut) -> int:
    """The dimension of the output to which a cut of one operand goes."""
    if node.op == "select_backward":
        at = node.call.args[2]
        at = int(str(at)) % len(out.shape)
        return cut.dim if cut.dim < at else cut.dim + 1
    if node.op == "stack":
        raise Conflict(cut.origins)
    dim = cut.dim + len(out.shape) - len(view.shape)
    if dim < 0:
        raise Conflict(cut.origins)
    if out.shape[dim] != view.shape[cut.dim]:
        along = node.op in ("cat", "slice_backward", "constant_pad_nd")
        if not along:
            raise Conflict(cut.origins)
    return dim


def _dims(node: Node) -> tuple[set[int], bool]:
    """Dimensions that a sum runs over, and whether they stay as ones."""
    view = node.ins[0]
    over = node.call.args[1] if len(node.call.args) > 1 else None
    if isinstance(over, tuple) and over and all(isinstance(d, int) for d in over):
        dims = {int(str(d)) % len(view.shape) for d in over}
    elif isinstance(over, int) and not isinstance(over, bool) and view.shape:
        dims = {over % len(view.shape)}
    else:
        dims = set(range(len(view.shape)))
    return dims, len(node.outs[0].shape) == len(view.shape)


def reduction(splits: Splits, node: Node) -> None:
    if _pass_partial(splits, node):
        return
    for view in node.ins:
        splits.whole(view)
    cut = splits.cut(node.ins[0])
    if cut is None:
        return
    dims, kept = _dims(node)
    if cut.dim in dims:
        if node.op not in ("sum", "mean"):
            raise Conflict(cut.origins)
        for view in node.outs:
            splits.partial[view.value] = cut.origins
        return
    dim = cut.dim if kept else cut.dim - len([d for d in dims if d < cut.dim])
    for view in node.outs:
        splits.put(view, dim, cut)


def rowwise(splits: Splits, node: Node) -> None:
    """Norms, softmax and their derivatives: rows may be divided, not what is in them."""
    work = node.passes[0] if node.passes else None
    inner = work.inner if work is not None else 1
    main = work.over if work is not None else node.ins[0]
    for view in node.ins:
        splits.whole(view)
    cuts = [(view, splits.cut(view)) for view in node.ins]
    found = [(view, cut) for view, cut in cuts if cut is not None]
    if not found:
        return
    loss = "log_softmax" in node.op
    for view, cut in found:
        rows = cut.dim < len(view.shape) - inner or len(view.shape) < len(main.shape)
        if not rows and not loss:
            raise Conflict(cut.origins)
        if not rows:
            splits.padded |= cut.origins
            splits.rows_summed.add(id(node))
    view, cut = found[0]
    if any(other.dim != cut.dim for v, other in found if len(v.shape) == len(view.shape)):
        raise Conflict(cut.origins)
    for out in node.outs:
        if len(out.shape) == len(view.shape) and out.shape[cut.dim] == view.shape[cut.dim]:
            splits.put(out, cut.dim, cut)


def nll_loss(splits: Splits, node: Node) -> None:
    """Picks one column a row: where the columns are cut, on the device that has it."""
    for view in node.ins:
        splits.whole(view)
        cut = splits.cut(view)
        if cut is not None:
            for out in node.outs:
                if out.shape == view.shape:
                    splits.put(out, cut.dim, cut)


def lookup(splits: Splits, node: Node) -> None:
    """Rows of a table, which is cut by rows: a device finds its own, the others give zero."""
    table = node.ins[0]
    if splits.may_cut(table) and table.value in splits.tables:
        cut = splits.cut_weight(table, 0, frozenset())
        splits.padded |= cut.origins
    found = splits.cut(table)
    if found is None:
        return
    if found.dim != 0:
        raise Conflict(found.origins)
    splits.partial[node.outs[0].value] = found.origins


def lookup_gradient(splits: Splits, node: Node) -> None:
    unknown(splits, node)


def gather(splits: Splits, node: Node) -> None:
    """Rows by index: columns may be divided."""
    if _pass_partial(splits, node):
        return
    for view in node.ins:
        splits.whole(view)
    out = node.outs[0]
    for view in node.ins:
        cut = splits.cut(view)
        if cut is None:
            continue
        last = len(view.shape) - 1
        if cut.dim != last or view.shape[last] != out.shape[-1] or len(view.shape) < 2:
            raise Conflict(cut.origins)
        splits.put(out, len(out.shape) - 1, cut)


def product(splits: Splits, node: Node) -> None:
    a, b = node.ins[-2:]
    if len(a.shape) == 3 or len(b.shape) == 3:
        _contract(splits, node, a, "bmk", b, "bkn", "bmn")
    elif len(a.shape) == 2 and len(b.shape) == 2:
        _contract(splits, node, a, "mk", b, "kn", "mn")
    else:
        unknown(splits, node)


def grouped(splits: Splits, node: Node) -> None:
    a, b = node.ins[:2]
    roles = {(2, 3): ("mk", "bkn", "mn"), (2, 2): ("mr", "rn", "bmn")}
    chosen = roles.get((len(a.shape), len(b.shape)))
    if chosen is None:
        unknown(splits, node)
    else:
        _contract(splits, node, a, chosen[0], b, chosen[1], chosen[2])


_NAMES = {"b": "batch", "m": "m", "n": "n", "k": "k"}


def _contract(splits: Splits, node: Node, a: View, ra: str, b: View, rb: str, ro: str) -> None:
    for view in node.ins:
        splits.whole(view)
    left, right = splits.cut(a), splits.cut(b)
    if left is None and right is None:
        if splits.may_cut(b):
            right = splits.cut_weight(b, rb.index("n"), frozenset())
        elif splits.may_cut(a):
            left = splits.cut_weight(a, ra.index("m"), frozenset())
        else:
            return
    origins = frozenset().union(*(c.origins for c in (left, right) if c is not None))
    role_a = ra[left.dim] if left is not None else ""
    role_b = rb[right.dim] if right is not None else ""
    if role_a and not role_b and role_a in rb:
        # The other operand has this dimension too: a weight is cut along, a constant is sliced.
        if splits.may_cut(b):
            right = splits.cut_weight(b, rb.index(role_a), origins)
        elif b.value not in splits.constant:
            raise Conflict(origins)
        role_b = role_a
    elif role_b and not role_a and role_b in ra:
        if splits.may_cut(a):
            left = splits.cut_weight(a, ra.index(role_b), origins)
        elif a.value not in splits.constant:
            raise Conflict(origins)
        role_a = role_b
    if role_a and role_b and role_a != role_b:
        raise Conflict(origins)
    role = role_a or role_b
    splits.products[id(node)] = [_NAMES.get(role, "")]
    out = node.outs[0]
    if role not in ro:
        splits.partial[out.value] = origins
        return
    known = [c for c in (left, right) if c is not None and c.dim >= 0]
    cut = known[0]
    dim = ro.index(role)
    splits.put(out, dim, Cut(dim, cut.units, cut.loose, origins, cut.block))
    for bias in node.ins[: len(node.ins) - 2] if node.op.startswith("add") else []:
        at = dim - (len(out.shape) - len(bias.shape))
        if at >= 0 and bias.shape[at] > 1 and splits.is_weight(bias):
            splits.cut_bias(bias, at, origins)


def attention(splits: Splits, node: Node) -> None:
    """Heads are divided; key and value heads may be fewer, and are then shared."""
    for view in node.ins:
        splits.whole(view)
    cuts = [(view, splits.cut(view)) for view in node.ins if len(view.shape) >= 3]
    found = [cut for _, cut in cuts if cut is not None]
    if not found:
        return
    origins = frozenset().union(*(cut.origins for cut in found))
    heads = max(view.shape[1] for view, _ in cuts)
    for view, cut in cuts:
        if cut is None and (view.shape[1] == 1 or view.value in splits.constant):
            continue  # the one key head is on every device
        if view.shape[1] == 1 and cut is not None:
            raise Conflict(cut.origins)
        if cut is None or cut.dim != 1:
            raise Conflict(origins)
        if view.shape[1] < heads:
            splits.scarce |= cut.origins
    splits.products[id(node)] = ["batch"] * len(node.matmuls)
    for out in node.outs:
        if len(out.shape) >= 3 and out.shape[1] == 1 < heads:
            splits.partial[out.value] = origins  # each device's heads give a share
        elif len(out.shape) >= 3:
            own = [c.origins for v, c in cuts if c is not None and v.shape[1] == out.shape[1]]
            few = frozenset().union(*own) if out.shape[1] < heads else origins
            splits.put(out, 1, Cut(1, out.shape[1], False, few))


def convolution(splits: Splits, node: Node) -> None:
    """Output channels are cut like columns, input channels like rows, depth-wise ones as heads."""
    back = node.op == "convolution_backward"
    for view in node.ins:
        splits.whole(view)
    x, weight = (node.ins[1], node.ins[2]) if back else (node.ins[0], node.ins[1])
    deep = node.kind is not Kind.PRODUCT
    left, right = splits.cut(x), splits.cut(weight)
    if node.matmuls and node.matmuls[0].batch > 1:
        unknown(splits, node)
        return
    if not back:
        if left is not None and left.dim != 1:
            raise Conflict(left.origins)
        if left is None and right is None:
            if deep or not splits.may_cut(weight):
                return
            right = splits.cut_weight(weight, 0, frozenset())
        elif left is not None and right is None:
            if not splits.may_cut(weight):
                raise Conflict(left.origins)
            right = splits.cut_weight(weight, 0 if deep else 1, left.origins)
    if right is None:
        if left is not None:
            raise Conflict(left.origins)
        return
    if not back and not deep and left is None and right.dim == 1:
        raise Conflict(right.origins)
    _convolution_outputs(splits, node, right, back, deep)


def _convolution_outputs(splits: Splits, node: Node, cut: Cut, back: bool, deep: bool) -> None:
    columns = cut.dim == 0 and not deep
    if not back:
        splits.products[id(node)] = ["n" if columns else "k"]
        if columns or deep:
            splits.put(node.outs[0], 1, Cut(1, cut.units, cut.loose, cut.origins))
            for bias in node.ins[2:]:
                if splits.is_weight(bias):
                    splits.cut_bias(bias, 0, cut.origins)
        else:
            splits.partial[node.outs[0].value] = cut.origins
        return
    wanted = ("k", "n") if columns else ("n", "m")
    splits.products[id(node)] = list(wanted[-len(node.matmuls) :])
    for out in node.outs:
        if out.shape == node.ins[1].shape:
            if columns:
                splits.partial[out.value] = cut.origins
            else:
                splits.put(out, 1, Cut(1, cut.units, cut.loose, cut.origins))
        elif out.shape == node.ins[2].shape:
            splits.put(out, cut.dim, cut)
        elif columns or deep:
            splits.put(out, 0, Cut(0, cut.units, cut.loose, cut.origins))


RULES: dict[str, Rule] = {
    **dict.fromkeys(("mm", "addmm", "bmm", "baddbmm"), product),
    "_grouped_mm": grouped,
    **dict.fromkeys(("convolution", "convolution_backward"), convolution),
    **dict.fromkeys(
        (
            "_scaled_dot_product_flash_attention_for_cpu",
            "_scaled_dot_product_flash_attention_for_cpu_backward",
        ),
        attention,
    ),
    **dict.fromkeys(
        ("sum", "mean", "amax", "amin", "var", "std", "prod", "logsumexp", "any", "all"), reduction
    ),
    **dict.fromkeys(
        """native_layer_norm native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward
        _softmax _safe_softmax _softmax_backward_data _log_softmax _log_softmax_backward_data cumsum
        topk sort""".split(),
        rowwise,
    ),
    **dict.fromkeys(("nll_loss_forward", "nll_loss_backward"), nll_loss),
    "embedding": lookup,
    "embedding_dense_backward": lookup_gradient,
    **dict.fromkeys(("index", "index_select", "gather", "index_put", "index_add"), gather),
}
