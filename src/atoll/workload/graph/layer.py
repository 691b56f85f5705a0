"""Layers and models: operator graphs, and the chain that they form.

Everything that can be derived is derived: edges from who writes what, saved tensors from what the
backward pass reads of the forward pass, parameters from the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import TypeVar, final

from atoll.workload.graph.operator import Operator, Role, Tensor

ENDS = frozenset({"embedding", "head", "loss"})  # layers that are no blocks
EXPERT_WEIGHTS = ("fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
"""Weights of a mixture of experts, whose first dimension counts the experts."""


@final
@dataclass(frozen=True)
class Layer:
    """One layer on one device: its tensors, its forward and its backward operators.

    `input` and `output` name the activations that cross to the neighbouring layers (the gradient
    of a tensor x is named "d" + x). Operators are listed in a topological order.
    """

    name: str
    tensors: Mapping[str, Tensor]
    forward: tuple[Operator, ...]
    backward: tuple[Operator, ...]
    input: str
    output: str
    more_inputs: tuple[str, ...] = ()
    """Further activations that enter from the layer before (a skip connection, an encoder's
    output on its way through the decoder)."""
    more_outputs: tuple[str, ...] = ()
    views: tuple[tuple[str, ...], ...] = ()
    """Tensors that are views of one: while one is kept, all are."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))

    @cached_property
    def parameters(self) -> int:
        """Elements of all weights on this device."""
        return sum(t.elements for t in self.tensors.values() if t.role is Role.WEIGHT)

    @cached_property
    def active_parameters(self) -> int:
        """Elements of the weights that one token uses, with only its chosen experts."""
        idle = 0
        for op in self.forward:
            if op.kind == "dispatch":
                experts = self.tensors[op.writes[0]].shape[0]
                chosen = self.tensors[op.reads[1]].shape[-1]
                prefix = op.name.removesuffix("dispatch")
                names = (f"{prefix}{part}" for part in EXPERT_WEIGHTS)
                expert_elements = sum(self.tensors[n].elements for n in names if n in self.tensors)
                idle += expert_elements // experts * (experts - chosen)
        return self.parameters - idle

    @property
    def entering(self) -> tuple[str, ...]:
        """Entering activations stored by this layer. An activation that passes through is stored
        where it was computed and where it ends, not in every layer between."""
        ending = (name for name in self.more_inputs if name not in self.more_outputs)
        return (self.input, *ending)

    @cached_property
    def saved(self) -> tuple[str, ...]:
        """Forward tensors (what enters included) that the backward pass reads."""
        forward_values = {name for op in self.forward for name in op.writes}
        forward_values |= set(self.entering)
        wanted = {name for op in self.backward for name in op.reads}
        wanted |= {name for views in self.views if wanted & set(views) for name in views}
        return tuple(name for name in self.tensors if name in forward_values and name in wanted)

    @cached_property
    def saved_bytes(self) -> int:
        """Bytes kept from the forward to the backward pass of one microbatch."""
        return sum(self.tensors[name].bytes for name in self.saved)

    @property
    def boundary_bytes(self) -> int:
        """Bytes of the activations that cross to the next layer, on this device."""
        return sum(self.tensors[name].bytes for name in (self.output, *self.more_outputs))

    def traffic_bytes(self, op: Operator) -> int:
        """HBM bytes of one operator: every tensor that it reads or writes, once."""
        return sum(self.tensors[name].bytes for name in (*op.reads, *op.writes))

    def moved_bytes(self, op: Operator) -> int:
        """HBM bytes of an operator, or link bytes of a collective."""
        return op.collective.bytes if op.collective is not None else self.traffic_bytes(op)

    @cached_property
    def flops_forward(self) -> int:
        return sum(op.flops for op in self.forward)

    @cached_property
    def flops_backward(self) -> int:
        return sum(op.flops for op in self.backward)


def is_end(name: str) -> bool:
    """Return whether a layer is no block: an end, or an extra prediction head."""
    return name in ENDS or name.startswith("mtp")


def predecessors(operators: tuple[Operator, ...]) -> tuple[tuple[int, ...], ...]:
    """For each operator, the indices of those whose output it reads."""
    writer: dict[str, int] = {}
    result: list[tuple[int, ...]] = []
    for index, op in enumerate(operators):
        result.append(tuple(sorted({writer[name] for name in op.reads if name in writer})))
        for name in op.writes:
            writer[name] = index
    return tuple(result)


@final
@dataclass(frozen=True)
class Model:
    """A chain of layers with repeats: embedding, n x block, head.

    `shared_parameters` are those that two layers hold in common (an output head tied to the input
    embedding): each layer lists them, the model counts them once.
    """

    name: str
    layers: tuple[tuple[Layer, int], ...]
    microbatch: int
    sequence: int
    tensor_parallel: int = 1
    sequence_parallel: bool = False
    shared_parameters: int = 0

    @property
    def parameters(self) -> int:
        """Distinct parameters on one tensor-parallel rank (tied weights counted once)."""
        total = sum(layer.parameters * repeat for layer, repeat in self.layers)
        return total - self.shared_parameters

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses (embeddings and head included)."""
        total = sum(layer.active_parameters * repeat for layer, repeat in self.layers)
        return total - self.shared_parameters

    def map(self, change: Callable[[Layer], Layer]) -> Model:
        """Apply `change` to every distinct layer of the chain."""
        changed = {id(layer): change(layer) for layer, _ in self.kinds}
        return replace(self, layers=tuple((changed[id(layer)], n) for layer, n in self.layers))

    @property
    def kinds(self) -> tuple[tuple[Layer, int], ...]:
        """The distinct layers, each with its number of occurrences."""
        counts: dict[int, int] = {}
        for layer, repeat in self.layers:
            counts[id(layer)] = counts.get(id(layer), 0) + repeat
        distinct = {id(layer): layer for layer, _ in self.layers}
        return tuple((layer, counts[key]) for key, layer in distinct.items())

    @property
    def depth(self) -> int:
        return sum(repeat for _, repeat in self.layers)

    @property
    def tokens(self) -> int:
        """Tokens in one microbatch."""
        return self.microbatch * self.sequence


def block_names(model: Model) -> frozenset[str]:
    """Layers that a pipeline divides. In a captured model: repeated layers and others of the same
    module lists, or without repeats all but the first and the last."""
    names = [layer.name for layer, _ in model.layers]
    if ENDS & set(names):
        return frozenset(n for n in names if not is_end(n))
    repeated = frozenset(layer.name for layer, repeat in model.layers if repeat > 1)
    lists = {_module_list(name) for name in repeated} - {""}
    list_items = frozenset(name for name in names if _module_list(name) in lists)
    return repeated | list_items or frozenset(names[1:-1] or names)


def _module_list(name: str) -> str:
    """The list of an item such as "decoder.layers.0" ("layers.0-1" for a period of two)."""
    path, _, item = name.rpartition(".")
    return path if item.partition("-")[0].isdigit() else ""


LayerOrModel = TypeVar("LayerOrModel", Layer, Model)
