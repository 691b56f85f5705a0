"""What one layer of a model costs one device: time of each pass, collectives, bytes kept.

A variant of a model is one microbatch on one device under given tensor, context and expert
degrees. Everything that a layout needs of a layer is here; how often layers run and what hides
what is decided by the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial

from atoll.cost.pricer import Cost, Pricer
from atoll.step.layout import HOST, SOME, Layout
from atoll.step.orders import SPLIT
from atoll.training.operators.policies import (
    Kept,
    TensorLink,
    by_operator,
    kept_whole,
    links,
    module_policy,
    policies,
    some_blocks,
)
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
    """Of the backward ones, those that a weight gradient can run beside."""
    policies: tuple[tuple[str, Kept], ...]
    parameters: int
    """That are trained, those of experts apart."""
    expert_parameters: int
    frozen: tuple[float, float]
    """Weights without gradients, and those of experts."""
    boundary_bytes: int
    exchange_bytes: float
    """Bytes that one all-to-all of tokens sends from this device; 0 without experts."""
    experts: int
    """Expert networks on this device."""
    expert_forward_s: float
    """Of the forward pass, the experts' products."""
    expert_backward_s: float
    ring_bytes: float
    """Keys and values that ring attention passes on in one turn; 0 without context parallelism."""
    heads_bytes: float
    """Queries, keys, values and outputs of attention, where heads are exchanged instead."""
    kv_heads: int
    """Key heads of a sequence on this device."""
    transient_bytes: float
    """The largest operator's temporaries."""
    waiting_bytes: float
    """Inputs and output gradients of its weight gradients: held for as long as they are put off."""
    logits_bytes: float
    """16-bit logits that this layer hands to the loss, or to its own; 0 for others."""
    half_loss: bool
    """Its own loss takes them as they are, in 16 bit."""
    loss_bytes: float
    """Of what it keeps, what belongs to its own loss: the stack says how much that is."""
    by_operator: Callable[[], tuple[Kept, ...]] = field(default=tuple, compare=False)
    """What `optimal` finds, which takes longer than all else here."""

    def kept(self, policy: str) -> Kept:
        """A policy by its name; "optimal-n" is the n-th of the chosen ones, or the last."""
        if policy in self._named:
            return self._named[policy]
        level = min(int(policy.removeprefix("optimal-")), len(self.optimal) - 1)
        return self.optimal[level]

    @cached_property
    def _named(self) -> dict[str, Kept]:
        return dict(self.policies)

    @cached_property
    def optimal(self) -> tuple[Kept, ...]:
        """Per-operator choices, from keeping everything to keeping least."""
        return self.by_operator()

    def backwards(self, order: str) -> Cost:
        """The backward pass as a pipeline order runs it: at once, or weight gradients apart."""
        return self._apart if order in SPLIT else self.backward

    @cached_property
    def _apart(self) -> Cost:
        return self.data + self.weight


Share = tuple[tuple[LayerCost, int], ...]
"""Layers of one chunk of a stage, and how often each occurs there."""


def choices_of(costs: Iterable[LayerCost], policy: str) -> tuple[str, ...]:
    """What a recomputation policy may come to on a stage: "optimal" to the choices by operator, and
    to the named policies, which need not lie on the hull of those.
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
    """Every distinct layer of a prepared (unfused) model; with `modules`, blocks also get the
    recomputation choice of these modules, or of some blocks of each of the `stages`; of `frozen`
    weights only adapters are trained.
    """
    blocks = block_names(model)
    priced = {
        id(layer): _layer_cost(
            layer,
            pricer,
            cp,
            ep,
            layer.name in blocks,
            model.microbatch,
            modules=modules,
            blocks=max(1, sum(n for x, n in model.layers if x.name in blocks) // stages),
            stored=stored,
            frozen=frozen,
        )
        for layer in {id(layer): layer for layer, _ in model.layers}.values()
    }
    return tuple(
        priced[id(layer)] if repeat == 1 else replace(priced[id(layer)], repeat=repeat)
        for layer, repeat in model.layers
    )


def _layer_cost(
    layer: Layer,
    pricer: Pricer,
    cp: int,
    ep: int,
    is_block: bool,
    samples: int,
    *,
    modules: str,
    blocks: int,
    stored: bool,
    frozen: bool,
) -> LayerCost:
    times = pricer.layer(spread_experts(layer, ep), cp, samples)
    costs = times.operators
    routed = _has_experts(layer)
    (dense, expert), (still, still_expert) = _parameters(layer, frozen)
    own_loss = stored or layer.name.startswith("mtp")
    logits = _loss(layer) if own_loss else (_head(layer), False, 0.0)
    inside = pricer.schedules_links
    # What is no block keeps all, whatever is asked for.
    whole = (("none", kept_whole(layer, pricer)),)
    known = policies(layer, pricer, costs) if is_block else whole
    if modules.startswith((SOME, HOST)) and is_block:
        known += (some_blocks(modules, blocks, dict(known)),)
    elif modules and is_block:
        known += (module_policy(layer, modules, pricer, costs),)
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
        policies=known,
        parameters=dense,
        expert_parameters=expert // ep,
        frozen=(still, still_expert / ep),
        boundary_bytes=layer.boundary_bytes,
        exchange_bytes=_exchange(layer),
        experts=experts_of(layer) // ep if routed else 0,
        expert_forward_s=_expert_s(layer, layer.forward, costs) if routed else 0.0,
        expert_backward_s=_expert_s(layer, layer.backward, costs) if routed else 0.0,
        ring_bytes=_moved(layer, slice(1, 3)) if cp > 1 else 0.0,
        heads_bytes=_moved(layer, slice(0, 4)) if cp > 1 else 0.0,
        kv_heads=_kv_heads(layer) // samples,
        transient_bytes=max((_written(layer, op) for op in layer.backward), default=0),
        waiting_bytes=_waiting(layer) * (pricer.operand_share if is_block else 1.0),
        logits_bytes=logits[0],
        half_loss=logits[1],
        loss_bytes=logits[2],
        by_operator=cache(partial(by_operator, layer, pricer, costs)) if is_block else tuple,
    )


def _head(layer: Layer) -> float:
    return float(layer.boundary_bytes) if layer.name == "head" else 0.0


def _loss(layer: Layer) -> tuple[float, bool, float]:
    """Of a layer with its own loss: 16-bit logits, whether it takes them so, bytes it keeps."""
    for op in layer.forward:
        for work in op.vectors:
            if work.function == "cross_entropy":
                # The log-softmax; what else of this size is kept belongs to a cap on the logits.
                made = [layer.tensors[n] for n in layer.saved if n in op.writes]
                kept = [t for t in made if t.elements >= work.elements]
                widest = max(kept, key=lambda t: t.bytes, default=None)
                if widest is None:
                    return float(HALF * work.elements), False, 0.0
                half = widest.element_bytes <= HALF
                return float(HALF * work.elements), half, float(widest.bytes)
    return 0.0, False, 0.0


def operator_costs(layer: Layer, pricer: Pricer, layout: Layout) -> Mapping[str, Cost]:
    """Each operator alone on one device, by name; collectives that the step prices cost nothing."""
    return pricer.layer(spread_experts(layer, layout.ep), layout.cp, layout.microbatch).operators


def spread_experts(layer: Layer, ep: int) -> Layer:
    """Experts spread over `ep` devices: fewer products here, each of more tokens."""
    if ep == 1:
        return layer

    def own(op: Operator) -> Operator:
        if not op.matmuls or _expert_weight(layer, op) == 0:
            return op
        tokens = "k" if op.kind == "linear_wgrad" else "m"
        changed = tuple(
            replace(p, batch=p.batch // ep, **{tokens: getattr(p, tokens) * ep}) for p in op.matmuls
        )
        return replace(op, matmuls=changed)

    return replace(
        layer,
        forward=tuple(own(op) for op in layer.forward),
        backward=tuple(own(op) for op in layer.backward),
    )


def _has_experts(layer: Layer) -> bool:
    return any(t.role is Role.WEIGHT and len(t.shape) == 3 for t in layer.tensors.values())


def _expert_weight(layer: Layer, op: Operator) -> int:
    """Experts in the weight that an operator reads or whose gradient it writes; 0 for none.

    Weights of experts lie side by side and are multiplied as a batch; a kernel of a convolution
    has three dimensions too.
    """
    roles = (Role.WEIGHT, Role.WEIGHT_GRADIENT)
    for name in (*op.reads, *op.writes):
        tensor = layer.tensors[name]
        if tensor.role in roles and _bundled(tensor, op):
            return tensor.shape[0]
    return 0


def _bundled(tensor: Tensor, op: Operator) -> bool:
    """Whether a weight holds a matrix for each of the products of an operator."""
    several = any(product.batch == tensor.shape[0] > 1 for product in op.matmuls)
    return len(tensor.shape) == 3 and several


def _expert_s(layer: Layer, operators: Sequence[Operator], costs: Mapping[str, Cost]) -> float:
    return sum(costs[op.name].matrix_s for op in operators if _expert_weight(layer, op))


def experts_of(layer: Layer) -> int:
    """Expert networks in a layer; 0 for none."""
    if not _has_experts(layer):
        return 0
    return max((_expert_weight(layer, op) for op in layer.forward), default=0)


def _parameters(layer: Layer, frozen: bool) -> tuple[tuple[int, int], tuple[int, int]]:
    """Dense and expert parameters that are trained, and those that are frozen."""
    weights = {n: t for n, t in layer.tensors.items() if t.role is Role.WEIGHT}
    own = {n for op in layer.forward for n in op.reads if n in weights and _bundled(weights[n], op)}
    trained = trained_weights(layer) if frozen else frozenset(weights)

    def count(kept: bool) -> tuple[int, int]:
        sizes = {n: t.elements for n, t in weights.items() if (n in trained) == kept}
        expert = sum(size for name, size in sizes.items() if name in own)
        return sum(sizes.values()) - expert, expert

    return count(True), count(False)


def _hidden(operators: tuple[Operator, ...]) -> tuple[TensorLink, ...]:
    """Collectives whose result no operator needs before the next weight gradient has run."""
    found: list[TensorLink] = []
    for index, op in enumerate(operators):
        if op.collective is None:
            continue
        following = operators[index + 1] if index + 1 < len(operators) else None
        if following is not None and not set(op.writes) & set(following.reads):
            found += links([op])
    return tuple(found)


def _exchange(layer: Layer) -> float:
    """Tokens that leave for their experts: what the dispatch of this device's tokens writes; of a
    captured layer, what its first expert product reads.
    """
    for op in layer.forward:
        if op.kind == "dispatch":
            return float(sum(layer.tensors[name].bytes for name in op.writes))
    for op in layer.forward if _has_experts(layer) else ():
        if _expert_weight(layer, op):
            read = [layer.tensors[name] for name in op.reads]
            return float(max(t.bytes for t in read if t.role is not Role.WEIGHT))
    return 0.0


def _moved(layer: Layer, which: slice) -> float:
    """Bytes of attention's queries, keys, values and outputs, or of some of them."""
    for op in layer.forward:
        if op.kind == "attention":
            names = (*op.reads[:3], op.writes[0])
            return float(sum(layer.tensors[name].bytes for name in names[which]))
    return 0.0


def _kv_heads(layer: Layer) -> int:
    return next((op.matmuls[0].batch for op in layer.forward if op.kind == "attention"), 0)


def _waiting(layer: Layer) -> float:
    """Bytes that weight gradients read, each tensor once. One that is gathered for them alone is
    gathered when they run: until then its part waits.
    """
    wanted = {n for op in layer.backward if op.weighs for n in op.reads}
    beside = {n for op in layer.backward if not op.weighs for n in op.reads}
    made = {n: op for op in layer.backward if op.collective is not None for n in op.writes}
    for name in sorted(wanted & made.keys() - beside):
        wanted.remove(name)
        wanted.update(made[name].reads)
    tensors = [layer.tensors[name] for name in sorted(wanted)]
    return float(sum(t.bytes for t in tensors if t.role is not Role.WEIGHT))


def _written(layer: Layer, op: Operator) -> int:
    activations = (Role.ACTIVATION, Role.ACTIVATION_GRADIENT)
    return sum(
        layer.tensors[n].bytes
        for n in (*op.reads, *op.writes)
        if layer.tensors[n].role in activations
    )
