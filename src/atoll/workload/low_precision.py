"""Products in 8 or 4 bits: what a device computes where several values stand in a 16-bit word.

Cells that take two fp8 or four fp4 multiply-adds in the time and the energy of one of 16 bits (an
H200 takes about half of bf16's joules for a FLOP in fp8, measured there; a B200's peaks are as 1 to
2 to 4) do a product of (m x k) by (k x n) as one of 16 bits with k / 2 or k / 4 words. Linear
layers of blocks run so, forward and both gradients, as training recipes have it (arXiv:2209.05433,
section 3; arXiv:2412.19437, section 3.3.1; nvfp4: arXiv:2509.25149) and as runs on GPUs are priced;
all else, attention, routers, embedding, head and loss, stays in 16 bits. Activations and gradients
are cast before a product, and kept as they were cast; weights are kept narrow both ways round, in
no more than the two bytes that the 16-bit weight had, and cast by the optimizer. Collectives stay
in 16 bits.

nvfp4 has a scale of 8 bits for 16 values along the inner dimension of a product. A tensor that a
weight gradient reads as well, along its tokens, is cast in both orders; weights have scales of
blocks of 16 x 16, which serve both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from atoll.base.errors import AtollError
from atoll.workload.fuse import CAST
from atoll.workload.graph.layer import Layer, Model, is_end
from atoll.workload.graph.operator import Names, Operator, Role, Tensor, once, pass_over
from atoll.workload.stored import StoredModel


@dataclass(frozen=True, slots=True)
class PackedFormat:
    """A number format of fewer than 16 bits."""

    name: str
    packed: int
    """Values per 16-bit word."""
    element_bytes: float
    """Including the value's share of its block scale."""
    ordered: bool
    """Whether block scales follow the inner dimension, so that each operand order needs a cast."""


FORMATS = {"fp8": PackedFormat("fp8", 2, 1, False), "nvfp4": PackedFormat("nvfp4", 4, 9 / 16, True)}
_PRODUCTS = frozenset({"linear", "linear_dgrad", "linear_wgrad", "linear_grad"})
_WEIGHTS = "linear_wgrad"
_ROUTER = "router"
Casts = Mapping[str, Names]


def narrowed(model: Model, precision: str) -> Model:
    """The model with products in this precision; its operators are not yet fused."""
    if precision in ("bf16", "fp16"):
        return model
    form = FORMATS[precision]
    return model.map(lambda layer: layer if is_end(layer.name) else _narrowed(layer, form))


def check_precision(model: object, name: str, precision: str) -> None:
    if precision != "bf16" and isinstance(model, StoredModel):
        raise AtollError(f"{name} was captured: its products are those of its file; leave bf16")


def _narrowed(layer: Layer, form: PackedFormat) -> Layer:
    tensors = dict(layer.tensors)
    casts = _casts((*layer.forward, *layer.backward), form)
    forward = _with_casts(layer.forward, tensors, casts, form)
    backward = _with_casts(layer.backward, tensors, casts, form)
    return replace(layer, tensors=tensors, forward=forward, backward=backward)


def _is_narrow(op: Operator) -> bool:
    return op.kind in _PRODUCTS and bool(op.matmuls) and op.name.split(".")[0] != _ROUTER


def _cast(name: str, op: Operator, form: PackedFormat) -> str:
    """Name the cast of an operand that a product reads."""
    turned = form.ordered and op.kind == _WEIGHTS
    return f"{name}.{form.name}{'.turned' if turned else ''}"


def _casts(operators: Sequence[Operator], form: PackedFormat) -> Casts:
    """Return, per tensor, all formats that it is cast to in one pass."""
    casts: dict[str, Names] = {}
    for op in operators:
        for name in op.reads if _is_narrow(op) else ():
            casts[name] = once((*casts.get(name, ()), _cast(name, op, form)))
    return casts


def _with_casts(
    pass_: Sequence[Operator],
    tensors: dict[str, Tensor],
    casts: Mapping[str, Names],
    form: PackedFormat,
) -> tuple[Operator, ...]:
    """A pass whose linear products are narrow, each operand cast once before its first use; casts
    are added to the tensors, and one of the forward pass serves the backward pass as well."""
    done: list[Operator] = []
    for op in pass_:
        if not _is_narrow(op):
            done.append(op)
            continue
        reads = []
        for name in op.reads:
            tensor = tensors[name]
            if len(tensor.shape) < 2:  # a bias, added in 16 bits
                reads.append(name)
            elif tensor.role is Role.WEIGHT:
                tensors[name] = replace(tensor, element_bytes=form.element_bytes)
                reads.append(name)
            else:
                operand = _cast(name, op, form)
                if operand not in tensors:
                    wanted = casts[name]
                    for cast in wanted:
                        tensors[cast] = replace(tensor, name=cast, element_bytes=form.element_bytes)
                    work = (pass_over(f"{CAST}_{form.name}", tensor),) * len(wanted)
                    done.append(Operator(f"{name}.{form.name}", CAST, (name,), wanted, (), work))
                reads.append(operand)
        products = tuple(replace(m, k=-(-m.k // form.packed)) for m in op.matmuls)
        done.append(replace(op, reads=once(reads), matmuls=products))
    return tuple(done)
