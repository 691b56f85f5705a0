"""What one layer of a model costs one device: time of each pass, collectives, bytes kept.

A variant of a model is one microbatch on one device under given tensor, context and expert
degrees. Everything that a layout needs of a layer is here; how often layers run and what hides
what is decided by the step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from atoll.placement.recompute import frontier, keep_choices
from atoll.training.pricing import Cost, Pricer
from atoll.workload.layer import Layer, Model
from atoll.workload.operator import Operator, Role

CORE_ATTENTION = frozenset({"attention", "attention_scores", "softmax", "attention_values"})


NOTHING = Cost()


@dataclass(frozen=True, slots=True)
class TensorLink:
    """A collective over the tensor group."""

    kind: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Kept:
    """One recomputation policy on one layer: what it keeps, and what it runs again."""

    bytes: float
    again: Cost = NOTHING
    links: tuple[TensorLink, ...] = ()
    operators: int = 0
    rerun: tuple[str, ...] = ()
    """Names of the operators that run again, where they were chosen one by one."""


@dataclass(frozen=True)
class LayerCost:
    """One layer on one device for one microbatch."""

    name: str
    repeat: int
    is_block: bool
    forward: Cost
    data: Cost
    weight: Cost
    forward_links: tuple[TensorLink, ...]
    backward_links: tuple[TensorLink, ...]
    hidden_links: tuple[TensorLink, ...]
    """Of the backward ones, those that a weight gradient can run beside."""
    policies: tuple[tuple[str, Kept], ...]
    parameters: int
    expert_parameters: int
    boundary_bytes: int
    exchange_bytes: float
    """Bytes that one all-to-all of tokens sends from this device; 0 without experts."""
    experts: int
    """Expert networks on this device."""
    ring_bytes: float
    """Keys and values that ring attention passes on in one turn; 0 without context parallelism."""
    transient_bytes: float
    """The largest operator's temporaries."""

    def kept(self, policy: str) -> Kept:
        """A policy by its name; "optimal-n" is the n-th of the chosen ones, or the last."""
        found = dict(self.policies)
        if policy in found:
            return found[policy]
        level = min(int(policy.removeprefix("optimal-")), len(self.optimal) - 1)
        return self.optimal[level]

    @property
    def optimal(self) -> tuple[Kept, ...]:
        """Per-operator choices, from keeping everything to keeping least."""
        return tuple(kept for name, kept in self.policies if name.startswith("optimal-"))

    @cached_property
    def backward(self) -> Cost:
        return self.data + self.weight


def layer_costs(
    model: Model, pricer: Pricer, cp: int = 1, ep: int = 1, *, optimal: bool = False
) -> tuple[LayerCost, ...]:
    """Every distinct layer of a prepared (unfused) model.

    With `optimal`, blocks also get the per-operator recomputation choices that no other beats.
    """
    blocks = _block_names(model)
    found = []
    for layer, repeat in model.layers:
        is_block = layer.name in blocks
        cost = _layer_cost(layer, repeat, pricer, cp, ep, is_block)
        if optimal and is_block:
            cost = replace(cost, policies=(*cost.policies, *_optimal(layer, pricer, cp, ep)))
        found.append(cost)
    return tuple(found)


def _optimal(layer: Layer, pricer: Pricer, cp: int, ep: int) -> tuple[tuple[str, Kept], ...]:
    """The convex hull of bytes kept and seconds run again over all sets of saved tensors."""
    choices = keep_choices(layer)
    costs = [pricer.cost(layer, _spread(layer, op, ep), cp) for op in layer.forward]
    again = [_total(costs[i] for i in choice.rerun) for choice in choices]
    kept_bytes = np.array([float(choice.kept_bytes) for choice in choices])
    _, _, hull = frontier(kept_bytes, np.array([cost.total_s for cost in again]))
    extra = _extra(layer, pricer)
    found = []
    for level, index in enumerate(reversed(hull.tolist())):
        choice = choices[index]
        rerun = [layer.forward[i] for i in choice.rerun]
        share = choice.kept_bytes / max(1, layer.saved_bytes)
        kept = Kept(
            choice.kept_bytes + extra * min(1.0, share),
            again[index],
            _links(rerun),
            len(rerun),
            tuple(op.name for op in rerun),
        )
        found.append((f"optimal-{level}", kept))
    return tuple(found)


def _block_names(model: Model) -> set[str]:
    """Everything between the first layer and the head is a block."""
    ends = {"embedding", "head", "loss"}
    return {layer.name for layer, _ in model.layers if layer.name not in ends}


def _layer_cost(
    layer: Layer, repeat: int, pricer: Pricer, cp: int, ep: int, is_block: bool
) -> LayerCost:
    costs = {
        op.name: pricer.cost(layer, _spread(layer, op, ep), cp)
        for op in (*layer.forward, *layer.backward)
    }
    weight_ops = [op for op in layer.backward if op.kind == "linear_wgrad"]
    data_ops = [op for op in layer.backward if op.kind != "linear_wgrad"]
    expert, dense = _parameters(layer)
    backward_links = _links(layer.backward)
    return LayerCost(
        name=layer.name,
        repeat=repeat,
        is_block=is_block,
        forward=_total(costs[op.name] for op in layer.forward),
        data=_total(costs[op.name] for op in data_ops),
        weight=_total(costs[op.name] for op in weight_ops),
        forward_links=_links(layer.forward),
        backward_links=backward_links,
        hidden_links=_hidden(layer.backward),
        policies=_policies(layer, pricer, costs),
        parameters=dense,
        expert_parameters=expert // ep,
        boundary_bytes=layer.boundary_bytes,
        exchange_bytes=_exchange(layer),
        experts=_experts(layer) // ep,
        ring_bytes=_ring(layer) if cp > 1 else 0.0,
        transient_bytes=max((_written(layer, op) for op in layer.backward), default=0),
    )


def operator_costs(
    layer: Layer, operators: Iterable[Operator], pricer: Pricer, cp: int, ep: int
) -> list[Cost]:
    """Each operator's own cost on one device; collectives cost nothing here."""
    return [pricer.cost(layer, _spread(layer, op, ep), cp) for op in operators]


def _spread(layer: Layer, op: Operator, ep: int) -> Operator:
    """Experts spread over `ep` devices: fewer products here, each of more tokens."""
    if ep == 1 or not op.matmuls or _expert_weight(layer, op) == 0:
        return op
    tokens = "k" if op.kind == "linear_wgrad" else "m"
    changed = tuple(
        replace(p, batch=p.batch // ep, **{tokens: getattr(p, tokens) * ep}) for p in op.matmuls
    )
    return replace(op, matmuls=changed)


def _expert_weight(layer: Layer, op: Operator) -> int:
    """Experts in the weight that an operator reads or whose gradient it writes; 0 for none."""
    roles = (Role.WEIGHT, Role.WEIGHT_GRADIENT)
    for name in (*op.reads, *op.writes):
        tensor = layer.tensors[name]
        if tensor.role in roles and len(tensor.shape) == 3:
            return tensor.shape[0]
    return 0


def _experts(layer: Layer) -> int:
    return max((_expert_weight(layer, op) for op in layer.forward), default=0)


def _parameters(layer: Layer) -> tuple[int, int]:
    """Expert parameters, and all others."""
    weights = [t for t in layer.tensors.values() if t.role is Role.WEIGHT]
    expert = sum(t.elements for t in weights if len(t.shape) == 3)
    return expert, sum(t.elements for t in weights) - expert


def _links(operators: Iterable[Operator]) -> tuple[TensorLink, ...]:
    return tuple(
        TensorLink(str(op.collective.kind), op.collective.bytes)
        for op in operators
        if op.collective is not None
    )


def _hidden(operators: tuple[Operator, ...]) -> tuple[TensorLink, ...]:
    """Collectives whose result no operator needs before the next weight gradient has run."""
    found = []
    for index, op in enumerate(operators):
        if op.collective is None:
            continue
        following = operators[index + 1] if index + 1 < len(operators) else None
        if following is not None and not set(op.writes) & set(following.reads):
            found.append(TensorLink(str(op.collective.kind), op.collective.bytes))
    return tuple(found)


def _exchange(layer: Layer) -> float:
    """Tokens that leave for their experts: what the dispatch of this device's tokens writes."""
    for op in layer.forward:
        if op.kind == "dispatch":
            return float(sum(layer.tensors[name].bytes for name in op.writes))
    return 0.0


def _ring(layer: Layer) -> float:
    for op in layer.forward:
        if op.kind == "attention":
            return float(sum(layer.tensors[name].bytes for name in op.reads[1:3]))
    return 0.0


def _written(layer: Layer, op: Operator) -> int:
    activations = (Role.ACTIVATION, Role.ACTIVATION_GRADIENT)
    return sum(
        layer.tensors[n].bytes
        for n in (*op.reads, *op.writes)
        if layer.tensors[n].role in activations
    )


def _policies(layer: Layer, pricer: Pricer, costs: dict[str, Cost]) -> tuple[tuple[str, Kept], ...]:
    saved = {name: float(layer.tensors[name].bytes) for name in layer.saved}
    extra = _extra(layer, pricer)
    everything = sum(saved.values()) + extra
    core = [op for op in layer.forward if op.kind in CORE_ATTENTION or _inside_core(op)]
    made = {name for op in core for name in op.writes}
    leaving = {n for op in layer.forward if op not in core for n in op.reads}
    dropped = sum(size for name, size in saved.items() if name in made and name not in leaving)
    entry = float(layer.tensors[layer.input].bytes)
    return (
        ("none", Kept(everything)),
        (
            "selective",
            Kept(everything - dropped, _total(costs[op.name] for op in core), (), len(core)),
        ),
        ("alternate", _alternate(layer, pricer, costs, saved)),
        (
            "full",
            Kept(
                entry,
                _total(costs[op.name] for op in layer.forward),
                _links(layer.forward),
                len(layer.forward),
            ),
        ),
    )  # fmt: skip


def _inside_core(op: Operator) -> bool:
    return op.kind == "dropout" and op.name.startswith("probabilities")


def _alternate(
    layer: Layer, pricer: Pricer, costs: dict[str, Cost], saved: dict[str, float]
) -> Kept:
    """Every second product's output and attention's are kept; all else is run again."""
    kept = float(layer.tensors[layer.input].bytes)
    again = Cost()
    count = 0
    for op in layer.forward:
        if op.kind == "attention":
            kept += sum(saved.get(name, 0.0) for name in op.writes)
        elif op.kind == "linear":
            widths = _output_widths(layer, op)
            share = 0.0
            for width in widths:
                count += 1
                if count % 2:
                    share += width / sum(widths)
            outputs = sum(saved.get(name, 0.0) for name in op.writes)
            rotated = sum(saved.get(f"{name}.rotated", 0.0) for name in op.writes)
            kept += share * (outputs + rotated)
            again += costs[op.name].times(1 - share)
        elif op.collective is None:
            again += costs[op.name]
    return Kept(kept, again, (), len(layer.forward))


def _output_widths(layer: Layer, op: Operator) -> list[int]:
    weights = [layer.tensors[n] for n in op.reads if layer.tensors[n].role is Role.WEIGHT]
    widths = [t.shape[-1] for t in weights if len(t.shape) > 1]
    if op.name == "fc1" and any(len(o.vectors) == 2 for o in layer.forward if o.name == "act"):
        return [widths[0] // 2] * 2
    return widths


def _extra(layer: Layer, pricer: Pricer) -> float:
    """Bytes that the stack keeps beyond the graph's tensors."""
    kept = pricer.stack.kept
    total = 0.0
    for op in layer.forward:
        for work in op.vectors:
            function = pricer.alias.get(work.function, work.function)
            total += kept.get(function, 0.0) * work.elements
        if op.kind == "activation" and len(op.vectors) == 2:
            total += kept.get("gate", 0.0) * op.vectors[0].elements
    return total


def _total(costs: Iterable[Cost]) -> Cost:
    total = Cost()
    for cost in costs:
        total += cost
    return total
