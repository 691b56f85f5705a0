"""Attention that a captured module computes step by step, as the one kernel that it could be.

The pattern: a product of two activations (scores), softmax, a second product (values); backwards
four products around the derivative of the softmax. Fused attention (Dao, arXiv:2307.08691) keeps
the squares in between on chip, takes 16-bit operands in any layout, and computes the scores once
more. Builders have it by default ("flash"); here a stored layer gets the same form.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from atoll.workload.graph.operator import once, replaced, single
from atoll.workload.graph.products import attention_fraction
from atoll.workload.modelfile import (
    LayerEntry,
    MatmulEntry,
    OperatorEntry,
    TensorEntry,
    VectorEntry,
    evaluated_size,
)

_HALF = 2
_PROBE = 3  # any number of samples: sizes are compared at it
_BETWEEN = 3  # vector operators between a product and the softmax
Entries = tuple[OperatorEntry, ...]


@dataclass(frozen=True)
class _Core:
    """The operators of one attention."""

    scores: OperatorEntry
    between: Entries
    """Forward vector operators, the one with the softmax last."""
    values: OperatorEntry
    values_gradient: OperatorEntry
    probabilities_gradient: OperatorEntry
    back: Entries
    """Backward vector operators."""
    left_gradient: OperatorEntry
    right_gradient: OperatorEntry

    @property
    def forward(self) -> Entries:
        return (self.scores, *self.between, self.values)

    @property
    def backward(self) -> Entries:
        first = self.values_gradient, self.probabilities_gradient
        return (*first, *self.back, self.left_gradient, self.right_gradient)


def with_fused_attention(layer: LayerEntry) -> LayerEntry:
    """Replace every recognised attention by one operator per pass."""
    number = 0
    while (core := _find(layer)) is not None:
        layer = _fused(layer, core, number)
        number += 1
    return _without_copies(layer) if number else layer


def _functions(op: OperatorEntry) -> set[str]:
    return {work.function for work in op.vectors}


def _find(layer: LayerEntry) -> _Core | None:
    uses = _Uses(layer)
    softmaxes = (op for op in layer.forward if "softmax" in _functions(op) and not op.matmuls)
    return next((core for op in softmaxes if (core := _core(uses, op)) is not None), None)


class _Uses:
    """Writers and readers of each tensor of a layer."""

    def __init__(self, layer: LayerEntry) -> None:
        self.layer = layer
        self.maker: dict[str, OperatorEntry] = {}
        self.forward: dict[str, list[OperatorEntry]] = {}
        self.backward: dict[str, list[OperatorEntry]] = {}
        for operators, readers in ((layer.forward, self.forward), (layer.backward, self.backward)):
            for op in operators:
                self.maker.update(dict.fromkeys(op.writes, op))
                for name in op.reads:
                    readers.setdefault(name, []).append(op)

    def elements(self, name: str) -> int:
        return prod(evaluated_size(size, _PROBE) for size in self.layer.tensors[name].shape)

    def products(self, readers: Iterable[OperatorEntry]) -> list[OperatorEntry]:
        return [op for op in readers if op.kind == "product" and len(op.matmuls) == 1]

    def inside(self, name: str) -> bool:
        """Return whether a tensor stays inside the layer."""
        return name not in (*self.layer.inputs, *self.layer.outputs)


def _core(uses: _Uses, softmax: OperatorEntry) -> _Core | None:
    before = _scores(uses, softmax)
    if before is None:
        return None
    scores, between = before
    square = uses.elements(scores.writes[0])
    probabilities = [n for n in softmax.writes if uses.elements(n) == square]
    readers = [op for n in probabilities for op in uses.forward.get(n, [])]
    values = single(uses.products(readers))
    if values is None or len(readers) != 1 or len(values.writes) != 1:
        return None
    back_readers = _distinct(op for n in probabilities for op in uses.backward.get(n, []))
    values_gradient = single(uses.products(back_readers))
    derivative = single(op for op in back_readers if "softmax_bwd" in _functions(op))
    if values_gradient is None or derivative is None or len(back_readers) != 2:
        return None
    upstream = [uses.maker.get(n) for n in derivative.reads if uses.elements(n) == square]
    probabilities_gradient = single(uses.products(op for op in upstream if op is not None))
    after = _scores_gradients(uses, derivative, square)
    if probabilities_gradient is None or after is None:
        return None
    back, (left, right) = after
    core = _Core(
        scores, between, values, values_gradient, probabilities_gradient, back, left, right
    )
    return core if _closed(uses, core, square) else None


def _scores(uses: _Uses, softmax: OperatorEntry) -> tuple[OperatorEntry, Entries] | None:
    """The product whose result the softmax reads, and the vector operators on the way."""
    chain = [softmax]
    for _ in range(_BETWEEN):
        makers = [uses.maker[n] for n in chain[0].reads if n in uses.maker]
        product = single(uses.products(makers))
        if product is not None and len(product.writes) == 1:
            return product, tuple(chain)
        vectors = [op for op in makers if not op.matmuls and op.collective is None]
        before = single(op for op in vectors if len(op.writes) == 1 and op in uses.layer.forward)
        if before is None:
            return None
        chain.insert(0, before)
    return None


def _scores_gradients(
    uses: _Uses, derivative: OperatorEntry, square: int
) -> tuple[Entries, list[OperatorEntry]] | None:
    """The vector operators behind the softmax's derivative, and the two products that end it."""
    chain = [derivative]
    for _ in range(_BETWEEN):
        squares = [n for n in chain[-1].writes if uses.elements(n) == square]
        if len(squares) != 1:
            return None
        readers = uses.backward.get(squares[0], [])
        if len(readers) == 2 and len(uses.products(readers)) == 2:
            return tuple(chain), readers
        if len(readers) != 1 or readers[0].matmuls or readers[0].collective is not None:
            return None
        chain.append(readers[0])
    return None


def _closed(uses: _Uses, core: _Core, square: int) -> bool:
    """Return whether only this attention reads its (queries x keys) tensors."""
    names = [op.name for op in core.forward]
    back_names = [op.name for op in core.backward]
    for op in (*core.forward[:-1], core.probabilities_gradient, *core.back):
        for name in op.writes:
            if uses.elements(name) != square:
                continue
            readers = {r.name for r in uses.forward.get(name, [])}
            late = {r.name for r in uses.backward.get(name, [])}
            if not uses.inside(name) or readers - {*names} or late - {*back_names}:
                return False
    return len({*names}) == len(names) and len({*back_names}) == len(back_names)


def _distinct(operators: Iterable[OperatorEntry]) -> list[OperatorEntry]:
    return list({op.name: op for op in operators}.values())


# --- the fused form -------------------------------------------------------------------------------


def _fused(layer: LayerEntry, core: _Core, number: int) -> LayerEntry:
    uses = _Uses(layer)
    causal = any(op.causal for op in core.between)
    keys = evaluated_size(core.scores.matmuls[0].n, _PROBE)
    fraction = attention_fraction(keys, True, 0) if causal else 1.0
    inner = {n for op in (*core.forward, *core.backward) for n in op.writes}
    out = core.values.writes[0]
    name = core.scores.name
    name = name if name.endswith("attention") else f"{name}.attention"
    statistics = f"{name}.lse{number or ''}"
    operands = once(
        n for op in (core.scores, core.values, *core.between) for n in op.reads if n not in inner
    )
    forward = OperatorEntry(
        name=name,
        kind="attention",
        reads=operands,
        writes=(out, statistics),
        matmuls=_products((core.scores, core.values), fraction),
        vectors=_vectors((*core.between,), fraction),
        on_chip=True,
    )
    products = (core.scores, core.values_gradient, core.probabilities_gradient,
                core.left_gradient, core.right_gradient)  # fmt: skip
    gradients = once(n for op in core.backward for n in op.reads if n not in inner or n == out)
    backward = OperatorEntry(
        name=f"{name}.bwd",
        kind="attention_bwd",
        reads=once((*gradients, *operands, out, statistics)),
        writes=once(n for op in core.backward for n in op.writes if _leaves(uses, n, core)),
        matmuls=_products(products, fraction),
        vectors=_vectors(core.back, fraction),
        on_chip=True,
    )
    tensors = {n: t for n, t in layer.tensors.items() if n not in inner}
    for written in (*forward.writes[:1], *backward.writes):
        tensors[written] = layer.tensors[written]
    # Kernels for fused attention take and give 16-bit tensors.
    for narrow in (*_operands(core), out, *backward.writes):
        if narrow in tensors and tensors[narrow].element_bytes > _HALF:
            tensors[narrow] = tensors[narrow].model_copy(update={"element_bytes": _HALF})
    # One fp32 log-sum-exp per row of the output.
    rows = layer.tensors[out]
    split = None if rows.split is None or rows.split.dim == len(rows.shape) - 1 else rows.split
    tensors[statistics] = TensorEntry(shape=rows.shape[:-1], element_bytes=4, split=split)
    passes = {
        "forward": replaced(layer.forward, core.forward, forward),
        "backward": replaced(layer.backward, core.backward, backward),
    }
    return layer.model_copy(update={"tensors": tensors, **passes})


def _operands(core: _Core) -> tuple[str, ...]:
    """Queries, keys, values, and the gradient of the attention output."""
    inner = {n for op in core.forward for n in op.writes}
    pair = set(core.values_gradient.reads) & set(core.probabilities_gradient.reads)
    return once((*core.scores.reads[-2:], *(n for n in core.values.reads if n not in inner), *pair))


def _leaves(uses: _Uses, name: str, core: _Core) -> bool:
    """Return whether a result of the backward pass is used outside the attention."""
    inside = {op.name for op in core.backward}
    readers = {op.name for op in uses.backward.get(name, [])}
    return not uses.inside(name) or not readers or not readers <= inside


def _products(operators: Iterable[OperatorEntry], fraction: float) -> tuple[MatmulEntry, ...]:
    products = (product for op in operators for product in op.matmuls)
    return tuple(product.model_copy(update={"fraction": fraction}) for product in products)


def _vectors(operators: Entries, fraction: float) -> tuple[VectorEntry, ...]:
    """Vector work without masked columns; scale and mask are free in a product's epilogue."""
    works = (v for op in operators for v in op.vectors if v.function not in ("mul", "add"))

    def unmasked(v: VectorEntry) -> VectorEntry:
        cols = max(1, round(fraction * v.cols)) if isinstance(v.cols, int) else v.cols
        return v.model_copy(update={"cols": cols})

    return tuple(map(unmasked, works))


# --- copies around it -----------------------------------------------------------------------------


def _without_copies(layer: LayerEntry) -> LayerEntry:
    """Drop copies that only change a layout, as fused attention accepts any layout."""
    for op in (*layer.forward, *layer.backward):
        busy = op.matmuls or op.vectors or op.collective or not op.kind.startswith("activation")
        if busy or len(op.reads) != len(op.writes):
            continue
        for source, copy in zip(op.reads, op.writes, strict=True):
            layer = _without_copy(layer, op.name, source, copy)
    return layer


def _without_copy(layer: LayerEntry, name: str, source: str, copy: str) -> LayerEntry:
    uses = _Uses(layer)
    if not uses.inside(copy) or uses.elements(source) != uses.elements(copy):
        return layer
    users = [*uses.forward.get(copy, []), *uses.backward.get(copy, [])]
    if users and all(op.on_chip for op in users):
        return _renamed(layer, name, {copy: source}, drop=copy)
    maker = uses.maker.get(source)
    others = [*uses.forward.get(source, []), *uses.backward.get(source, [])]
    from_attention = maker is not None and maker.on_chip
    if from_attention and uses.inside(source) and all(o.on_chip or o.name == name for o in others):
        return _renamed(layer, name, {source: copy}, drop=source)
    return layer


def _renamed(layer: LayerEntry, name: str, names: dict[str, str], drop: str) -> LayerEntry:
    """Remove one pair of a copy and rename the tensor in operators that used it."""

    def renamed(op: OperatorEntry) -> OperatorEntry | None:
        if op.name == name:
            pairs = [pair for pair in zip(op.reads, op.writes, strict=True) if drop not in pair]
            reads, writes = zip(*pairs, strict=True) if pairs else ((), ())
        elif op.on_chip:
            reads, writes = (once(names.get(n, n) for n in side) for side in (op.reads, op.writes))
        else:
            return op
        return op.model_copy(update={"reads": reads, "writes": writes}) if reads else None

    update: dict[str, object] = {
        pass_: tuple(new for op in operators if (new := renamed(op)) is not None)
        for pass_, operators in (("forward", layer.forward), ("backward", layer.backward))
    }
    tensors = {n: t for n, t in layer.tensors.items() if n != drop}
    return layer.model_copy(update=update | {"tensors": tensors})
