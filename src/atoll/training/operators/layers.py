"""Costs of one layer on one device: time of each pass, collectives, bytes kept.

A variant of a model is one microbatch on one device for one choice of tp, cp and ep. The step
decides how often layers run and which times overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from itertools import pairwise

from atoll.cost.pricer import Cost, Pricer
from atoll.step.layout import FULL_BLOCKS, HOST, Layout
from atoll.step.orders import SPLIT
from atoll.training.operators.policies import (
    PolicyCost,
    TensorLink,
    by_operator,
    keep_all,
    links,
    module_policy,
    partial_blocks,
    policies,
)
from atoll.training.operators.roles import map_operators
from atoll.workload.adapters import trained_weights
from atoll.workload.graph.layer import Layer, Model, block_names
from atoll.workload.graph.operator import Operator, Role, Tensor

HALF = 2  # bytes


@dataclass(frozen=True)
class LayerCost:
    """One layer on one device for one microbatch."""

    name: str
    repeat: int
    is_block: bool
    forward: Cost
    backward: Cost
    data: Cost
    weight: Cost
    forward_links: tuple[TensorLink, ...]
    backward_links: tuple[TensorLink, ...]
    hidden_links: tuple[TensorLink, ...]
    """Backward collectives that can overlap with a weight gradient."""
    policies: tuple[tuple[str, PolicyCost], ...]
    parameters: int
    """Trained parameters without those of experts."""
    expert_parameters: int
    frozen: tuple[float, float]
    """Dense and expert parameters without gradients."""
    modules: int
    """Modules with weights: linear layers, norms, embeddings, adapters."""
    tensors: int
    """Trained weights and biases."""
    boundary_bytes: int
    exchange_bytes: float
    """Bytes that this device sends per all-to-all of tokens; 0 without experts."""
    experts: int
    """Expert networks on this device."""
    expert_forward_s: float
    """The experts' products in the forward pass."""
    expert_backward_s: float
    ring_bytes: float
    """Keys and values that ring attention sends per step; 0 without context parallelism."""
    heads_bytes: float
    """Queries, keys, values and outputs of attention, where heads are exchanged instead."""
    kv_heads: int
    """Key heads of a sequence on this device."""
    transient_bytes: float
    """The largest operator's temporaries."""
    waiting_bytes: float
    """Inputs and output gradients of its weight gradients, kept until a delayed weight pass."""
    logits_bytes: float
    """16-bit logits of the loss; 0 for layers without."""
    half_loss: bool
    """Whether the layer's loss takes 16-bit logits."""
    loss_bytes: float
    """Kept bytes that belong to the layer's loss; the stack may keep fewer."""
    by_operator: Callable[[], tuple[PolicyCost, ...]] = field(default=tuple, compare=False)
    """Computes `optimal`, which is slow."""
    backward_peak: Callable[[], float] = field(default=float, compare=False)
    """Computes `backward_bytes`, likewise."""

    def given_bytes(self, cp: int) -> float:
        """Return the bytes of an exchange of heads; fewer key heads than ranks are repeated."""
        repeats = max(1.0, cp / max(1, self.kv_heads))
        return self.heads_bytes + (repeats - 1) * self.ring_bytes

    def kept(self, policy: str) -> PolicyCost:
        """Return a policy by name; "optimal-n" is the n-th of `optimal`, or the last. Layers other
        than blocks keep everything under every policy.
        """
        policy = policy if self.is_block else "none"
        if policy in self._named:
            return self._named[policy]
        level = min(int(policy.removeprefix("optimal-")), len(self.optimal) - 1)
        return self.optimal[level]

    @cached_property
    def _named(self) -> dict[str, PolicyCost]:
        return dict(self.policies)

    @cached_property
    def optimal(self) -> tuple[PolicyCost, ...]:
        """Choices per operator, from keeping everything to keeping least."""
        return self.by_operator()

    @cached_property
    def backward_bytes(self) -> float:
        """Most bytes of the backward pass with gradients of all weights, beyond kept tensors."""
        return self.backward_peak()

    def backwards(self, order: str) -> Cost:
        """Return the backward pass of a pipeline order: fused, or with separate weight passes."""
        return self.data + self.weight if order in SPLIT else self.backward


Share = tuple[tuple[LayerCost, int], ...]
"""Layers of one chunk of a stage, and how often each occurs."""
Layers = Sequence[tuple[LayerCost, int]]
"""Layers of a stage, and how often each occurs."""


def recompute_choices(costs: Iterable[LayerCost], policy: str) -> tuple[str, ...]:
    """Return the choices per stage of a recomputation policy: for "optimal" those by operator and
    the named policies, which need not lie on their hull.
    """
    if policy != "optimal":
        return (policy,)
    levels = max((len(cost.optimal) for cost in costs), default=0)
    by_operator = (f"optimal-{level}" for level in range(levels))
    return ("none", *by_operator, "selective", "alternate", "full")


def layer_costs(
    model: Model,
    pricer: Pricer,
    cp: int = 1,
    ep: int = 1,
    *,
    modules: str = "",
    stages: int = 1,
    stored: bool = False,
    frozen: bool = False,
) -> tuple[LayerCost, ...]:
    """Return the costs of a prepared (unfused) model's layers. Blocks also have the policy of
    `modules`, or of a number of blocks per stage; with `frozen` only adapters are trained.
    """
    blocks, inside, samples = block_names(model), pricer.schedules_links, model.microbatch
    stage_blocks = max(1, sum(n for layer, n in model.layers if layer.name in blocks) // stages)

    def cost_of(layer: Layer) -> LayerCost:
        is_block, times = layer.name in blocks, pricer.layer(spread_experts(layer, ep), cp, samples)
        costs, routed = times.operators, _has_experts(layer)
        (dense, expert), (frozen_dense, frozen_expert) = _parameters(layer, frozen)
        logits_bytes, half_loss, loss_bytes = _loss(layer, stored)
        return LayerCost(
            name=layer.name,
            repeat=1,
            is_block=is_block,
            forward=times.forward,
            backward=times.backward,
            data=times.data,
            weight=times.weight,
            forward_links=() if inside else links(layer.forward),
            backward_links=() if inside else links(layer.backward),
            hidden_links=() if inside else _hidden(layer.backward),
            policies=_policies(layer, pricer, costs, modules, stage_blocks if is_block else 0),
            parameters=dense,
            expert_parameters=expert // ep,
            frozen=(frozen_dense, frozen_expert / ep),
            modules=_modules(layer),
            tensors=_tensors(layer, frozen),
            boundary_bytes=layer.boundary_bytes,
            exchange_bytes=_exchange(layer),
            experts=expert_count(layer) // ep if routed else 0,
            expert_forward_s=_expert_s(layer, layer.forward, costs) if routed else 0.0,
            expert_backward_s=_expert_s(layer, layer.backward, costs) if routed else 0.0,
            ring_bytes=_moved(layer, slice(1, 3)) if cp > 1 else 0.0,
            heads_bytes=_moved(layer, slice(0, 4)) if cp > 1 else 0.0,
            kv_heads=_kv_heads(layer) // samples,
            transient_bytes=max((_written(layer, op) for op in layer.backward), default=0),
            waiting_bytes=_waiting(layer) * (pricer.operand_share if is_block else 1.0),
            logits_bytes=logits_bytes,
            half_loss=half_loss,
            loss_bytes=loss_bytes,
            by_operator=cache(partial(by_operator, layer, pricer, costs)) if is_block else tuple,
            backward_peak=partial(_backward_peak, layer, pricer, ep) if is_block else float,
        )

    priced = {id(layer): cost_of(layer) for layer, _ in model.kinds}
    return tuple(
        priced[id(layer)] if repeat == 1 else replace(priced[id(layer)], repeat=repeat)
        for layer, repeat in model.layers
    )


def _policies(
    layer: Layer, pricer: Pricer, costs: Mapping[str, Cost], modules: str, blocks: int
) -> tuple[tuple[str, PolicyCost], ...]:
    """Return the policies of one of `blocks` blocks of a stage, or of a layer that is none (0)."""
    if not blocks:
        return (("none", keep_all(layer, pricer)),)
    named = policies(layer, pricer, costs)
    if modules.startswith(FULL_BLOCKS) or modules.partition("@")[0] == HOST:
        return *named, partial_blocks(modules, blocks, dict(named))
    return (*named, module_policy(layer, modules, blocks, pricer, costs)) if modules else named


def _loss(layer: Layer, stored: bool) -> tuple[float, bool, float]:
    """Return 16-bit logits of a layer's loss, whether it takes 16 bits, and bytes it keeps."""
    if not stored and not layer.name.startswith("mtp"):
        return float(layer.boundary_bytes) if layer.name == "head" else 0.0, False, 0.0
    for op in layer.forward:
        for work in op.vectors:
            if work.function == "cross_entropy":
                # The log-softmax; other tensors of this size belong to a cap on the logits.
                outputs = [layer.tensors[n] for n in layer.saved if n in op.writes]
                kept = [t for t in outputs if t.elements >= work.elements]
                widest = max(kept, key=lambda t: t.bytes, default=None)
                if widest is None:
                    return float(HALF * work.elements), False, 0.0
                half = widest.element_bytes <= HALF
                return float(HALF * work.elements), half, float(widest.bytes)
    return 0.0, False, 0.0


def operator_costs(layer: Layer, pricer: Pricer, layout: Layout) -> Mapping[str, Cost]:
    """Return the cost of each operator by name; collectives are priced by the step and cost 0."""
    return pricer.layer(spread_experts(layer, layout.ep), layout.cp, layout.microbatch).operators


def spread_experts(layer: Layer, ep: int) -> Layer:
    """Spread experts over `ep` devices: fewer products per device, each of more tokens."""
    if ep == 1:
        return layer

    def spread(op: Operator) -> Operator:
        if not op.matmuls or _expert_weight(layer, op) == 0:
            return op
        tokens = "k" if op.kind == "linear_wgrad" else "m"
        changed = (
            replace(p, batch=p.batch // ep, **{tokens: getattr(p, tokens) * ep}) for p in op.matmuls
        )
        return replace(op, matmuls=tuple(changed))

    return map_operators(layer, spread)


def _has_experts(layer: Layer) -> bool:
    return any(t.role is Role.WEIGHT and len(t.shape) == 3 for t in layer.tensors.values())


def _expert_weight(layer: Layer, op: Operator) -> int:
    """Return the experts in the weight that an operator reads or whose gradient it writes, or 0.

    Weights of experts are multiplied as a batch; a convolution's kernel has three dimensions too.
    """
    roles = (Role.WEIGHT, Role.WEIGHT_GRADIENT)
    for name in (*op.reads, *op.writes):
        tensor = layer.tensors[name]
        if tensor.role in roles and _bundled(tensor, op):
            return tensor.shape[0]
    return 0


def _bundled(tensor: Tensor, op: Operator) -> bool:
    """Return whether a weight holds a matrix for each of the products of an operator."""
    several = any(product.batch == tensor.shape[0] > 1 for product in op.matmuls)
    return len(tensor.shape) == 3 and several


def _expert_s(layer: Layer, operators: Sequence[Operator], costs: Mapping[str, Cost]) -> float:
    return sum(costs[op.name].matrix_s for op in operators if _expert_weight(layer, op))


def expert_count(layer: Layer) -> int:
    """Return the number of expert networks in a layer."""
    if not _has_experts(layer):
        return 0
    return max((_expert_weight(layer, op) for op in layer.forward), default=0)


def _parameters(layer: Layer, frozen: bool) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the (dense, expert) parameters that are trained, and those that are frozen."""
    weights = {n: t for n, t in layer.tensors.items() if t.role is Role.WEIGHT}
    expert_names = {
        n for op in layer.forward for n in op.reads if n in weights and _bundled(weights[n], op)
    }
    trained = trained_weights(layer) if frozen else frozenset(weights)

    def count(kept: bool) -> tuple[int, int]:
        sizes = {n: t.elements for n, t in weights.items() if (n in trained) == kept}
        expert = sum(size for name, size in sizes.items() if name in expert_names)
        return sum(sizes.values()) - expert, expert

    return count(True), count(False)


def _modules(layer: Layer) -> int:
    """Return the weights of a layer; biases belong to the module of their weight."""
    weights = [name for name, t in layer.tensors.items() if t.role is Role.WEIGHT]
    return sum(not name.endswith(".bias") for name in weights)


def _tensors(layer: Layer, frozen: bool) -> int:
    """Return the trained weights and biases."""
    trained = trained_weights(layer) if frozen else layer.tensors
    return sum(t.role is Role.WEIGHT for n, t in layer.tensors.items() if n in trained)


def _hidden(operators: tuple[Operator, ...]) -> tuple[TensorLink, ...]:
    """Return collectives whose result the next operator does not read."""
    return links(op for op, after in pairwise(operators) if not set(op.writes) & set(after.reads))


def _exchange(layer: Layer) -> float:
    """Return bytes of tokens sent to experts: a dispatch's or, captured, a product's input."""
    for op in layer.forward:
        if op.kind == "dispatch":
            return float(sum(layer.tensors[name].bytes for name in op.writes))
    for op in layer.forward if _has_experts(layer) else ():
        if _expert_weight(layer, op):
            read = [layer.tensors[name] for name in op.reads]
            return float(max(t.bytes for t in read if t.role is not Role.WEIGHT))
    return 0.0


def _moved(layer: Layer, which: slice) -> float:
    """Return the bytes of a selection of attention's queries, keys, values and outputs."""
    for op in layer.forward:
        if op.kind == "attention":
            names = (*op.reads[:3], op.writes[0])
            return float(sum(layer.tensors[name].bytes for name in names[which]))
    return 0.0


def _kv_heads(layer: Layer) -> int:
    return next((op.matmuls[0].batch for op in layer.forward if op.kind == "attention"), 0)


def _waiting(layer: Layer) -> float:
    """Return the bytes of distinct tensors that weight gradients read. For a tensor gathered only
    for them, the part before the gather counts.
    """
    waiting = {n for op in layer.backward if op.weighs for n in op.reads}
    read_elsewhere = {n for op in layer.backward if not op.weighs for n in op.reads}
    gathers = {n: op for op in layer.backward if op.collective is not None for n in op.writes}
    for name in sorted(waiting & gathers.keys() - read_elsewhere):
        waiting.remove(name)
        waiting.update(gathers[name].reads)
    tensors = [layer.tensors[name] for name in sorted(waiting)]
    return float(sum(t.bytes for t in tensors if t.role is not Role.WEIGHT))


def _backward_peak(layer: Layer, pricer: Pricer, ep: int) -> float:
    """Return the most bytes at any operator of the backward pass, less those kept for it. Kept
    tensors and gradients of activations are freed after their last use, gradients of weights stay.

    A product whose input has several consumers adds up their gradients: two summands and the sum.
    """
    last_use = {name: i for i, op in enumerate(layer.backward) for name in op.reads}
    saved = {name: float(layer.tensors[name].bytes) for name in layer.saved}
    outputs = {name for op in layer.forward for name in op.writes}
    for op in layer.forward:  # what functions keep besides their inputs and outputs
        reader = next((i for i, b in enumerate(layer.backward) if b.name == f"{op.name}.bwd"), -1)
        saved[f"{op.name} kept"] = pricer.kept_bytes(layer, outputs - set(op.writes))
        last_use[f"{op.name} kept"] = reader
    alive, most = dict(saved), 0.0
    for i, op in enumerate(layer.backward):
        spread = ep if _expert_weight(layer, op) else 1  # of experts' gradients
        written = {
            n: layer.tensors[n].bytes / (spread if _is_weight_gradient(layer, n) else 1)
            for n in op.writes
        }
        entering = [n for n in op.reads if layer.tensors[n].role is Role.ACTIVATION_GRADIENT]
        alive |= written | {n: float(layer.tensors[n].bytes) for n in entering}
        products = 2 if op.kind == "linear_dgrad" and len(op.matmuls) > 1 else 0
        most = max(most, sum(alive.values()) + products * sum(written.values()))
        alive = {
            n: bytes_
            for n, bytes_ in alive.items()
            if last_use.get(n, -1) > i or _is_weight_gradient(layer, n)
        }
    return most - sum(saved.values())


def _is_weight_gradient(layer: Layer, name: str) -> bool:
    return name in layer.tensors and layer.tensors[name].role is Role.WEIGHT_GRADIENT


def _written(layer: Layer, op: Operator) -> int:
    tensors = (layer.tensors[name] for name in (*op.reads, *op.writes))
    return sum(t.bytes for t in tensors if t.role in (Role.ACTIVATION, Role.ACTIVATION_GRADIENT))
