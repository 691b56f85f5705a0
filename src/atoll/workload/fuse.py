"""Fusion: operators that run as one kernel, with the tensors between them kept on chip.

A fused operator is the union of the work of its parts. It reads what they read from outside, and
writes what someone outside still needs: a tensor that the other pass reads is written even though
its consumer is now inside.
"""

from __future__ import annotations

from dataclasses import replace

from atoll.base.errors import AtollError
from atoll.workload.graph.layer import Layer, LayerOrModel, Model
from atoll.workload.graph.operator import Operator, Role, once

LEVELS = ("default", "phaze", "none")

CAST = "cast"
ELEMENTWISE = frozenset(
    (CAST, "bias", "activation", "glu", "dropout", "scale", "add", "table_add", "activation_bwd",
     "glu_bwd", "dropout_bwd")
)  # fmt: skip
NORMS = frozenset({"norm", "norm_bwd"})
# What the released PHAZE lets follow a product, or an element-wise operator.
_AFTER_PRODUCT = ELEMENTWISE | NORMS | {"rotary", "rotary_bwd"}
_AFTER_ELEMENTWISE = ELEMENTWISE | NORMS | {"softmax", "softmax_bwd"}


def fuse(workload: LayerOrModel, level: str = "default") -> LayerOrModel:
    """The layer or model with its operators fused.

    "default": a product takes along its element-wise epilogue (bias, activation, dropout, residual
    addition; in the backward pass their derivatives), element-wise chains become one operator, and
    a norm takes in an element-wise operator before it and a cast behind it. "phaze": pairs only,
    and only where the second operator has no other predecessor. "none": every operator apart.
    """
    if level not in LEVELS:
        raise AtollError(
            f"{workload.name}: fusion is {level!r}, but must be one of {', '.join(LEVELS)}"
        )
    if isinstance(workload, Model):
        return workload.map(lambda layer: _fused(layer, level))
    return _fused(workload, level)


def _fused(layer: Layer, level: str) -> Layer:
    if level == "none":
        return layer
    weights = {n for n, t in layer.tensors.items() if t.role is Role.WEIGHT_GRADIENT}
    outputs = {layer.output, *layer.more_outputs}
    forward = _fuse_pass(layer.forward, {*layer.saved, *outputs}, level)
    inputs = {layer.input, *layer.more_inputs}
    backward = _fuse_pass(layer.backward, {*(f"d{name}" for name in inputs), *weights}, level)
    used = {name for op in (*forward, *backward) for name in (*op.reads, *op.writes)}
    used |= inputs | outputs
    tensors = {
        name: tensor
        for name, tensor in layer.tensors.items()
        if name in used or tensor.role in (Role.WEIGHT, Role.WEIGHT_GRADIENT)
    }
    return replace(layer, tensors=tensors, forward=forward, backward=backward)


def _fuse_pass(operators: tuple[Operator, ...], keep: set[str], level: str) -> tuple[Operator, ...]:
    """Walk the pass in order; each operator joins a predecessor where the level allows it.

    The fused operator stands where its first part stood, or its second, if that reads something
    written in between. Either keeps the order topological, because everything that the first part
    wrote for this pass was for the second part alone.
    """
    readers: dict[str, set[str]] = {}
    for op in operators:
        for name in op.reads:
            readers.setdefault(name, set()).add(op.name)
    done: list[Operator] = []
    paired: set[str] = set()
    for op in operators:
        first = _partner(op, done, readers, paired, level)
        if first is None:
            done.append(op)
            continue
        place = done.index(first)
        fused = _join(first, op, keep)
        for name in fused.reads:
            readers[name] = {fused.name if r in (first.name, op.name) else r for r in readers[name]}
        paired.add(fused.name)
        between = {name for later in done[place + 1 :] for name in later.writes}
        if between & set(op.reads):
            del done[place]
            done.append(fused)
        else:
            done[place] = fused
    return tuple(done)


def _partner(
    op: Operator, done: list[Operator], readers: dict[str, set[str]], paired: set[str], level: str
) -> Operator | None:
    """The predecessor that `op` joins: the latest product if one may be joined, else the latest."""
    before = [first for first in reversed(done) if set(first.writes) & set(op.reads)]
    fits = _fits_default if level == "default" else _fits_phaze
    allowed = [
        first
        for first in before
        if not _alone(first)
        and not _alone(op)
        and fits(first, op)
        # `op` is the only reader.
        and all(readers.get(name, {op.name}) == {op.name} for name in first.writes)
        and (level == "default" or (len(before) == 1 and first.name not in paired))
    ]
    return next(iter([first for first in allowed if first.matmuls] or allowed), None)


def _alone(op: Operator) -> bool:
    """Return whether an operator fuses with nothing: collectives and flash attention."""
    return op.collective is not None or op.on_chip


def _elementwise(op: Operator) -> bool:
    """Return whether an operator, or a fused chain, is element-wise."""
    return ELEMENTWISE.issuperset(op.kind.split("+"))


def _fits_default(first: Operator, second: Operator) -> bool:
    if second.kind in NORMS:
        return _elementwise(first)
    normed = second.kind == CAST and first.kind.split("+")[-1] in NORMS
    return second.kind in ELEMENTWISE and (bool(first.matmuls) or _elementwise(first) or normed)


def _fits_phaze(first: Operator, second: Operator) -> bool:
    if second.matmuls:
        return False
    if first.matmuls:
        return second.kind in _AFTER_PRODUCT
    return first.kind in ELEMENTWISE and second.kind in _AFTER_ELEMENTWISE


def _join(first: Operator, second: Operator, keep: set[str]) -> Operator:
    inside = set(first.writes)
    wanted = (name for name in first.writes if name in keep or name not in second.reads)
    return Operator(
        name=f"{first.name}+{second.name}",
        kind=f"{first.kind}+{second.kind}",
        reads=once((*first.reads, *(n for n in second.reads if n not in inside))),
        # `second` is the only reader in this pass: what the other pass does not want is gone.
        writes=once((*wanted, *second.writes)),
        matmuls=(*first.matmuls, *second.matmuls),
        vectors=(*first.vectors, *second.vectors),
    )
