"""Products in 8 bits: what a device computes where two narrow values stand in a 16-bit word.

Cells that take two fp8 multiply-adds in the time and the energy of one of 16 bits (as an H200's do:
measured there, a FLOP in fp8 takes about half of bf16's joules) do a product of (m x k) by (k x n)
in fp8 as one of 16 bits with k / 2 words. Linear layers of blocks run so, forward and backward, as
training recipes have it (arXiv:2209.05433, section 3; arXiv:2412.19437, section 3.3.1); attention,
routers, embedding, head and loss stay in 16 bits. Activations and gradients are cast before a
product, and kept as they were cast; weights are kept in fp8 both ways round, in the two bytes that
the 16-bit weight had, and cast by the optimizer. Collectives stay in 16 bits.
"""

from __future__ import annotations

from dataclasses import replace

from atoll.errors import AtollError
from atoll.workload.fuse import CAST
from atoll.workload.graph.layer import Layer, Model, is_end
from atoll.workload.graph.operator import Matmul, Operator, Role, Tensor, once, pass_over
from atoll.workload.stored import StoredModel

_PACKED = 2  # values of fp8 in a word
_PRODUCTS = frozenset({"linear", "linear_dgrad", "linear_wgrad", "linear_grad"})
_ROUTER = "router"


def narrowed(model: Model, precision: str) -> Model:
    """The model with products in this precision; its operators are not yet fused."""
    if precision == "bf16":
        return model
    return model.map(lambda layer: layer if is_end(layer.name) else _narrowed(layer))


def check_precision(model: object, name: str, precision: str) -> None:
    if precision != "bf16" and isinstance(model, StoredModel):
        raise AtollError(f"{name} was captured: its products are those of its file; leave bf16")


def _narrowed(layer: Layer) -> Layer:
    tensors = dict(layer.tensors)
    forward = _with_casts(layer.forward, tensors, frozenset())
    kept = frozenset(name for op in forward if op.kind == CAST for name in op.writes)
    backward = _with_casts(layer.backward, tensors, kept)
    return replace(layer, tensors=tensors, forward=forward, backward=backward)


def _with_casts(
    operators: tuple[Operator, ...], tensors: dict[str, Tensor], kept: frozenset[str]
) -> tuple[Operator, ...]:
    """A pass whose linear products are narrow, each operand cast once before its first use."""
    made, done = set(kept), list[Operator]()
    for op in operators:
        if op.kind not in _PRODUCTS or not op.matmuls or op.name.split(".")[0] == _ROUTER:
            done.append(op)
            continue
        reads = []
        for name in op.reads:
            tensor = tensors[name]
            if len(tensor.shape) < 2:  # a bias, added in 16 bits
                reads.append(name)
            elif tensor.role is Role.WEIGHT:
                tensors[name] = replace(tensor, element_bytes=1)
                reads.append(name)
            else:
                cast = f"{name}.fp8"
                if cast not in made:
                    made.add(cast)
                    narrow = replace(tensor, name=cast, element_bytes=1)
                    tensors[cast] = narrow
                    work = pass_over(CAST, tensor)
                    done.append(Operator(cast, CAST, (name,), (cast,), vectors=(work,)))
                reads.append(cast)
        products = tuple(_packed(product) for product in op.matmuls)
        done.append(replace(op, reads=once(reads), matmuls=products))
    return tuple(done)


def _packed(product: Matmul) -> Matmul:
    return replace(product, k=-(-product.k // _PACKED))
