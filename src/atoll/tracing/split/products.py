"""How a cut passes through products, attention and convolutions."""

from __future__ import annotations

from atoll.tracing.record.node import CallNode, NodeKind
from atoll.tracing.record.trace import TensorView
from atoll.tracing.split.division import ConflictError, Cut, Splits
from atoll.workload.modelfile import ProductSplit


def unknown(splits: Splits, node: CallNode) -> None:
    """Handle an operator without a rule: all inputs must be undivided."""
    for view in node.ins:
        if (cut := splits.cut(view)) is not None:
            raise ConflictError(cut.origins)
        splits.reduce_partial(view)


def product(splits: Splits, node: CallNode) -> None:
    a, b = node.ins[-2:]
    if len(a.shape) == 3 or len(b.shape) == 3:
        _contract(splits, node, a, b, ("bmk", "bkn", "bmn"))
    elif len(a.shape) == 2 and len(b.shape) == 2:
        _contract(splits, node, a, b, ("mk", "kn", "mn"))
    else:
        unknown(splits, node)


def grouped(splits: Splits, node: CallNode) -> None:
    a, b = node.ins[:2]
    roles = {(2, 3): ("mk", "bkn", "mn"), (2, 2): ("mr", "rn", "bmn")}
    chosen = roles.get((len(a.shape), len(b.shape)))
    if chosen is None:
        unknown(splits, node)
    else:
        _contract(splits, node, a, b, chosen)


_WIDE = 4  # columns over rows beyond which a weight is not cut by rows: its sums would be large
_NAMES: dict[str, ProductSplit] = {"b": "batch", "m": "m", "n": "n", "k": "k"}


def _contract(
    splits: Splits, node: CallNode, a: TensorView, b: TensorView, roles: tuple[str, str, str]
) -> None:
    """Cut a product; `roles` names the dimensions of a, b and the output by letters."""
    roles_a, roles_b, roles_out = roles
    splits.reduce_partials(node.ins)
    left, right = splits.cut(a), splits.cut(b)
    if left is None and right is None:
        if splits.may_cut(b):
            right = splits.cut_weight(b, roles_b.index("n"))
        elif splits.may_cut(a):
            left = splits.cut_weight(a, roles_a.index("m"))
        else:
            return
    cuts = [c for c in (left, right) if c is not None]
    origins, cut = frozenset().union(*(c.origins for c in cuts)), cuts[0]
    role_a = roles_a[left.dim] if left is not None else ""
    role_b = roles_b[right.dim] if right is not None else ""
    role, (other, roles_other) = role_a or role_b, (b, roles_b) if role_a else (a, roles_a)
    # Where the other operand has this dimension too, a weight is cut along, a constant is sliced.
    follows = not (role_a and role_b) and role in roles_other
    if follows and splits.may_cut(other):
        wide = b.shape[roles_b.index("n")] > _WIDE * b.shape[-2]
        if role_a and role not in roles_out and wide:
            raise ConflictError(origins)  # better this one by columns (a head), and those whole
        followed = splits.cut_weight(other, roles_other.index(role), origins)
        cut = cut if role_a else followed
    elif (follows and other.value not in splits.constant) or role_b not in ("", role):
        raise ConflictError(origins)
    splits.products[id(node)] = [_NAMES.get(role, "")]
    out = node.outs[0]
    if role not in roles_out:
        splits.partial[out.value] = origins
        return
    dim = roles_out.index(role)
    splits.put(out, dim, Cut(dim, cut.units, cut.loose, origins, cut.block))
    for bias in node.ins[: len(node.ins) - 2] if node.op.startswith("add") else []:
        at = dim - (len(out.shape) - len(bias.shape))
        if at >= 0 and bias.shape[at] > 1 and splits.is_weight(bias):
            splits.cut_bias(bias, at, origins)


def attention(splits: Splits, node: CallNode) -> None:
    """Heads are divided; key and value heads may be fewer, and are then shared."""
    splits.reduce_partials(node.ins)
    cuts = [(view, splits.cut(view)) for view in node.ins if len(view.shape) >= 3]
    head_cuts = [cut for _, cut in cuts if cut is not None]
    if not head_cuts:
        return
    origins = frozenset().union(*(cut.origins for cut in head_cuts))
    heads = max(view.shape[1] for view, _ in cuts)
    for view, cut in cuts:
        if cut is None and (view.shape[1] == 1 or view.value in splits.constant):
            continue  # the one key head is on every device
        if view.shape[1] == 1 and cut is not None:
            raise ConflictError(cut.origins)
        if cut is None or cut.dim != 1:
            raise ConflictError(origins)
        if view.shape[1] < heads:
            splits.scarce |= cut.origins
    splits.products[id(node)] = ["batch"] * len(node.matmuls)
    for out in node.outs:
        if len(out.shape) >= 3 and out.shape[1] == 1 < heads:
            splits.partial[out.value] = origins  # each device's heads give a share
        elif len(out.shape) >= 3:
            sets = [c.origins for v, c in cuts if c is not None and v.shape[1] == out.shape[1]]
            head_origins = frozenset().union(*sets) if out.shape[1] < heads else origins
            splits.put(out, 1, Cut(1, out.shape[1], False, head_origins))


def convolution(splits: Splits, node: CallNode) -> None:
    """Output channels are cut like columns, input channels like rows, depth-wise ones as heads."""
    back = node.op == "convolution_backward"
    splits.reduce_partials(node.ins)
    x, weight = node.ins[back : back + 2]
    deep = node.kind is not NodeKind.PRODUCT
    left, right = splits.cut(x), splits.cut(weight)
    if node.matmuls and node.matmuls[0].batch > 1:
        unknown(splits, node)
        return
    if not back:
        if left is not None and left.dim != 1:
            raise ConflictError(left.origins)
        if left is None and right is None:
            if deep or not splits.may_cut(weight):
                return
            right = splits.cut_weight(weight, 0)
        elif left is not None and right is None:
            if not splits.may_cut(weight):
                raise ConflictError(left.origins)
            right = splits.cut_weight(weight, 0 if deep else 1, left.origins)
    if right is None:
        if left is not None:
            raise ConflictError(left.origins)
        return
    if not back and not deep and left is None and right.dim == 1:
        raise ConflictError(right.origins)
    _convolution_outputs(splits, node, right, back, deep)


def _convolution_outputs(splits: Splits, node: CallNode, cut: Cut, back: bool, deep: bool) -> None:
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
    wanted: list[ProductSplit] = ["k", "n"] if columns else ["n", "m"]
    splits.products[id(node)] = wanted[-len(node.matmuls) :]
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
