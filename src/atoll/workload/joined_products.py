"""Products that read one tensor, side by side as one: queries, keys and values; gate and up.

Frameworks with fused kernels store such weights next to one another and run one wider product; the
backward pass then has one data gradient, already summed, and one weight gradient. A captured
module has them apart: `joined` is the same layer as such a framework would run it. Built layers
have their products joined from the start.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from atoll.workload.graph.layer import Layer
from atoll.workload.graph.operator import (
    Operator,
    Role,
    VectorWork,
    once,
    pass_over,
    replaced,
    single,
)

JOINT_FAMILIES = ("gpt2", "gpt_neox", "bloom", "phi3", "modernbert", "qwen")
"""Families whose modules compute queries, keys and values in one product (transformers 5.17)."""
CONCATENATED_FAMILIES = ("gpt_neox", "phi3", "phi", "nemotron")
"""Families whose modules concatenate the part of a head that positions rotate with the rest
(transformers 5.17; the first two were measured)."""
WEIGHTS = (Role.WEIGHT, Role.WEIGHT_GRADIENT)
Pass = tuple[Operator, ...]
Readers = dict[str, list[Operator]]


def joined(layer: Layer) -> Layer:
    """The layer with its products of one tensor joined, where both passes allow it."""
    for group in _groups(layer):
        layer = _join(layer, group)
    return layer


def one_projection(layer: Layer) -> Layer:
    """Return the layer with one weight for queries, keys and values, as modules have it that
    compute them in one product (GPT-2's c_attn); their gradients are joined by a copy."""
    tensors = dict(layer.tensors)
    names: dict[str, str] = {}
    for op in (*layer.forward, *layer.backward):
        for side in (op.reads, op.writes) if op.name.partition(".")[0] == "qkv" else ():
            sides = [layer.tensors[name] for name in side]
            first, *others = [t for t in sides if t.role in WEIGHTS and len(t.shape) > 1] or sides
            if others and first.role in WEIGHTS:
                columns = first.shape[1] + sum(t.shape[1] for t in others)
                tensors[first.name] = replace(first, shape=(first.shape[0], columns))
                names |= {t.name: first.name for t in others}

    def renamed(op: Operator) -> Operator:
        reads, writes = (once(names.get(n, n) for n in side) for side in (op.reads, op.writes))
        copies: tuple[VectorWork, ...] = ()
        if op.kind == "linear_dgrad" and reads != op.reads:
            copies = (VectorWork("sequence_copy", op.matmuls[0].m, op.matmuls[0].k),)
        return replace(op, reads=reads, writes=writes, vectors=(*op.vectors, *copies))

    forward, backward = tuple(map(renamed, layer.forward)), tuple(map(renamed, layer.backward))
    kept = {name: tensor for name, tensor in tensors.items() if name not in names}
    return replace(layer, tensors=kept, forward=forward, backward=backward)


def views_of_projection(layer: Layer) -> Layer:
    """Return the layer with the outputs of every product as views of one tensor: while values are
    kept, so are queries and keys without positions."""
    return replace(layer, views=tuple(op.writes for op in layer.forward if op.kind == "linear"))


def copied_heads(layer: Layer) -> Layer:
    """Return the layer with a copy of attention's output, which the projection reads: concatenated
    queries lie head by head, and so does what fused attention writes and keeps."""
    attention = single(op for op in layer.forward if op.kind == "attention")
    if attention is None:
        return layer
    heads = layer.tensors[attention.writes[0]]
    rows = heads.like(f"{heads.name}.rows", heads.role)
    work = pass_over("sequence_copy", heads)
    copy = Operator(f"{attention.name}.rows", "copy", (heads.name,), (rows.name,), vectors=(work,))

    def renamed(op: Operator) -> Operator:
        if not op.kind.startswith("linear"):
            return op
        return replace(op, reads=once(rows.name if n == heads.name else n for n in op.reads))

    at = layer.forward.index(attention) + 1
    forward = (*layer.forward[:at], copy, *map(renamed, layer.forward[at:]))
    backward = tuple(map(renamed, layer.backward))
    tensors = {**layer.tensors, rows.name: rows}
    return replace(layer, tensors=tensors, forward=forward, backward=backward)


def _groups(layer: Layer) -> list[list[Operator]]:
    """Linears of one module and one activation, each with one product of the same rows and depth:
    the branches of a parallel block are modules of their own, and stay apart."""
    groups: dict[tuple[object, ...], list[Operator]] = {}
    for op in layer.forward:
        if op.kind != "linear" or len(op.matmuls) != 1 or op.matmuls[0].batch != 1:
            continue
        activations = [n for n in op.reads if layer.tensors[n].role is not Role.WEIGHT]
        product = op.matmuls[0]
        if len(activations) == 1 and product.n > 1:  # one column is a gate, not a projection
            module = op.name.rpartition(".")[0]
            key = module, activations[0], product.m, product.k, product.split, product.fraction
            groups.setdefault(key, []).append(op)
    return [group for group in groups.values() if len(group) > 1]


def _join(layer: Layer, group: list[Operator]) -> Layer:
    """Join one group; return the layer unchanged if its backward pass has another form."""
    back, dgrads, wgrads = layer.backward, list[Operator](), list[Operator]()
    for op in group:
        w = _weight(layer, op)
        data = single(o for o in back if o.kind == "linear_dgrad" and w in o.reads)
        weight = single(o for o in back if o.kind == "linear_wgrad" and f"d{w}" in o.writes)
        if data is None or weight is None or not len(data.matmuls) == len(weight.matmuls) == 1:
            return layer
        dgrads.append(data)
        wgrads.append(weight)
    outs = [op.matmuls[0].m for op in wgrads]
    side = "m" if outs == [op.matmuls[0].n for op in group] else "n"
    summed = _summed(replaced(back, wgrads, _side_by_side(wgrads, side)), dgrads)
    if summed is None:
        return layer
    forward = replaced(layer.forward, group, _side_by_side(group, "n"), first=True)
    return replace(layer, forward=forward, backward=_bias_sums(layer, summed, group))


def _bias_sums(layer: Layer, operators: Pass, group: Sequence[Operator]) -> Pass:
    """Join the bias gradients of a group into one sum over the tokens."""
    vectors = [n for op in group for n in op.reads if len(layer.tensors[n].shape) == 1]
    biases = {f"d{n}" for n in vectors if layer.tensors[n].role is Role.WEIGHT}
    sums = [op for op in operators if not op.matmuls and op.writes and biases.issuperset(op.writes)]
    if len(sums) < 2:
        return operators
    return replaced(operators, sums, _together(sums))


def _weight(layer: Layer, op: Operator) -> str | None:
    """The matrix of a linear; its bias is a vector."""
    weights = [layer.tensors[n] for n in op.reads if layer.tensors[n].role is Role.WEIGHT]
    matrices = [tensor.name for tensor in weights if len(tensor.shape) == 2]
    return matrices[0] if len(matrices) == 1 else None


def _side_by_side(group: Sequence[Operator], dim: str) -> Operator:
    """Return one product with the summed width of the group."""
    total = sum(getattr(op.matmuls[0], dim) for op in group)
    product = replace(group[0].matmuls[0], **{dim: total})
    return replace(_together(group), matmuls=(product,))


def _together(group: Sequence[Operator]) -> Operator:
    """Merge reads, writes and passes of a group into one operator like the first."""
    return replace(
        group[0],
        name="+".join(op.name for op in group),
        reads=once(n for op in group for n in op.reads),
        writes=once(n for op in group for n in op.writes),
        vectors=tuple(v for op in group for v in op.vectors),
    )


def _summed(operators: Pass, group: Sequence[Operator]) -> Pass | None:
    """Replace the group's data gradients by one that computes their sum, and drop the additions.
    None if they are not summed."""
    parts = [op.writes[0] for op in group]
    if any(len(op.writes) != 1 for op in group):
        return None
    readers: Readers = {}
    for op in operators:
        for name in op.reads:
            readers.setdefault(name, []).append(op)
    root = _root(parts[0], readers)
    if root is None or any(_root(part, readers) is not root for part in parts[1:]):
        return _read_together(operators, group, parts, readers)
    leaves, additions = _tree(root, operators, readers)
    others = tuple(n for n in leaves if n not in parts)
    result = parts[0] if others else root.writes[0]
    placed = replaced(operators, group, _product(group, result))
    if not others:
        return tuple(op for op in placed if op.name not in additions)
    adds = root.vectors[:1] * len(others)
    addition = replace(root, reads=(*others, result), vectors=adds)
    remaining = [op for op in placed if op.name not in additions - {root.name}]
    return tuple(addition if op.name == root.name else op for op in remaining)


def _product(group: Sequence[Operator], result: str) -> Operator:
    return replace(_side_by_side(group, "k"), writes=(result,))


def _read_together(
    operators: Pass, group: Sequence[Operator], parts: Sequence[str], readers: Readers
) -> Pass | None:
    """If one kernel sums the parts, let it read their sum instead."""
    users = [readers.get(part, []) for part in parts]
    if any(len(ops) != 1 for ops in users) or len({ops[0].name for ops in users}) != 1:
        return None
    user = users[0][0]
    adds = [v for v in user.vectors if v.function == "add"]
    if user.matmuls or user.collective is not None or len(adds) < len(parts) - 1:
        return None
    reads = tuple(n for n in user.reads if n not in parts[1:])
    placed = replaced(operators, group, _product(group, parts[0]))
    return tuple(replace(op, reads=reads) if op.name == user.name else op for op in placed)


def _adds(op: Operator) -> bool:
    return bool(op.vectors) and not op.matmuls and {v.function for v in op.vectors} == {"add"}


def _root(name: str, readers: Readers) -> Operator | None:
    """Return the last addition that a tensor goes through; None if it is not only added."""
    root = None
    while len(adders := readers.get(name, [])) == 1 and _adds(adders[0]):
        root = adders[0]
        if len(root.writes) != 1:
            return None
        name = root.writes[0]
    return root


def _tree(root: Operator, operators: Pass, readers: Readers) -> tuple[list[str], set[str]]:
    """Return the summands of a tree of additions, and the names of the additions."""
    makers = {name: op for op in operators for name in op.writes}
    leaves: list[str] = []
    pending, names = list(root.reads), {root.name}
    while pending:
        name = pending.pop()
        maker = makers.get(name)
        if maker is not None and _adds(maker) and len(readers.get(name, [])) == 1:
            names.add(maker.name)
            pending.extend(maker.reads)
        else:
            leaves.append(name)
    return [*once(leaves)], names
