"""Recomputation policies of one layer: the tensors that each keeps and the operators it reruns.

"none" keeps every saved tensor; "selective" drops attention's core (Korthikanti et al.,
arXiv:2205.05198); "alternate" keeps the output of every second product outside of experts
(torchtitan's selective checkpointing); "full" keeps the layer's input only; "optimal-n" are the
sets of tensors on the convex hull of bytes and seconds, from keeping all to keeping least. Modules
of a block have Megatron-Core's names ("mla_up_proj+mlp").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from atoll.cost.pricer import Cost, Pricer, total
from atoll.placement.recompute import hull_choices
from atoll.step.layout import HOST, HOSTED_INPUTS
from atoll.workload.graph.layer import Layer
from atoll.workload.graph.operator import CollectiveKind, Operator, Role

CORE_ATTENTION = frozenset({"attention", "attention_scores", "softmax", "attention_values"})


EXPERT_OPERATORS = ("router", "choose", "dispatch", "fc1", "act", "fc2", "combine")
MODULE_OPERATORS = {
    "core_attn": ("attention", "scores", "softmax", "values"),
    "layernorm": ("norm1", "norm2"),
    "mla_up_proj": ("q_b", "kv_b", "rotary", "keys"),
    "mlp": ("fc1", "act", "fc2"),  # in blocks without experts
    "moe": EXPERT_OPERATORS,
    "moe_act": ("act",),
    "shared_experts": ("shared1", "shared_act", "shared2"),
}
HOSTED_OPERATORS = {
    "attn_norm": ("norm1",),
    "attn_proj": ("proj",),
    "core_attn": MODULE_OPERATORS["core_attn"],
    "expert_fc1": ("fc1",),
    "mlp_norm": ("norm2",),
    "moe_act": ("act",),
    "qkv_linear": ("qkv", "q_a", "kv_a"),
}
IN_TRANSFER = 2
"""Blocks whose tensors are on the device on their way to or from the host."""
DISCARDING = ("layernorm", "mla_up_proj", "moe_act")
"""Modules whose outputs are dropped too, and recomputed before their readers' backward pass
(Megatron-Core's CheckpointWithoutOutput)."""


class TensorLink(NamedTuple):
    """A collective over the tensor-parallel group (tp, or etp of experts)."""

    kind: str
    bytes: int
    group: int


@dataclass(frozen=True, slots=True)
class PolicyCost:
    """Costs of one policy on one layer: kept bytes and recomputation."""

    bytes: float
    again: Cost = Cost()  # noqa: RUF009  (frozen)
    links: tuple[TensorLink, ...] = ()
    """Recomputed collectives over the tensor group."""
    rerun: tuple[str, ...] = ()
    """Names of the recomputed operators."""
    attention: bool = False
    """Whether attention is recomputed, with the sends of a ring."""
    exchange: bool = False
    """Whether tokens are sent to their experts again."""
    share: float = 1.0
    """Share of the blocks that are recomputed; `again` is the mean over all blocks."""


def keep_all(layer: Layer, pricer: Pricer) -> PolicyCost:
    """Return the policy without recomputation."""
    return PolicyCost(float(layer.saved_bytes) + pricer.kept_bytes(layer))


def policies(
    layer: Layer, pricer: Pricer, costs: Mapping[str, Cost]
) -> tuple[tuple[str, PolicyCost], ...]:
    """Return the named policies of a block with these operator costs."""
    none = keep_all(layer, pricer)
    core, dropped = _core(layer)
    entry = _entry(layer)
    return (
        ("none", none),
        ("selective", policy_cost(layer, none.bytes - dropped, core, pricer, costs)),
        ("alternate", _alternate(layer, costs)),
        ("full", policy_cost(layer, entry, layer.forward, pricer, costs)),
    )


def rerun_shares(layer: Layer) -> dict[str, tuple[float, tuple[float, ...]]]:
    """Return, per named policy that recomputes, the saved bytes that it keeps and the recomputed
    share of each forward operator.
    """
    core, dropped = _core(layer)
    kept, shares = _alternate_shares(layer)
    return {
        "selective": (
            layer.saved_bytes - dropped,
            tuple(float(op in core) for op in layer.forward),
        ),
        "alternate": (kept, tuple(shares.get(op.name, 0.0) for op in layer.forward)),
        "full": (_entry(layer), (1.0,) * len(layer.forward)),
    }


def _core(layer: Layer) -> tuple[list[Operator], float]:
    """Return the operators of attention's core, and the bytes saved inside it."""
    core = [op for op in layer.forward if op.kind in CORE_ATTENTION or _inside_core(op)]
    outputs = {name for op in core for name in op.writes}
    leaving = {n for op in layer.forward if op not in core for n in op.reads}
    inside = (name for name in layer.saved if name in outputs and name not in leaving)
    return core, float(sum(layer.tensors[name].bytes for name in inside))


def partial_blocks(
    name: str, blocks: int, block_policies: Mapping[str, PolicyCost]
) -> tuple[str, PolicyCost]:
    """Return the mean policy of a stage's blocks where a number of them is recomputed, or keeps its
    tensors in host memory (except the block in transfer), or all are recomputed from inputs there.
    """
    policy, _, number = name.partition("@")
    none, full = block_policies["none"], block_policies["full"]
    if policy == HOST:
        host_share = min(1.0, max(0, int(number or 0) - 1) / blocks)
        return name, replace(none, bytes=none.bytes * (1 - host_share))
    if name == HOSTED_INPUTS:
        return name, replace(full, bytes=full.bytes * min(1.0, IN_TRANSFER / blocks))
    share = min(1.0, int(number) / blocks)
    kept = none.bytes + share * (full.bytes - none.bytes)
    return name, replace(full, bytes=kept, again=full.again.times(share), share=share)


def module_policy(
    layer: Layer, modules: str, blocks: int, pricer: Pricer, costs: Mapping[str, Cost]
) -> tuple[str, PolicyCost]:
    """Return the policy that recomputes modules of a stage's blocks, or keeps their tensors in host
    memory; transfers take no time, as they overlap with other layers.
    """
    rerun: list[Operator] = []
    dropped: set[str] = set()
    has_experts = any(op.kind == "dispatch" for op in layer.forward)
    names = modules.split("+")
    for module in names:
        if module == HOST:
            continue
        if module.endswith("@host"):
            dropped |= _hosted(layer, HOSTED_OPERATORS[module.removesuffix("@host")])
            continue
        if module == "core_attn":
            module_operators = [
                op for op in layer.forward if op.kind in CORE_ATTENTION or _inside_core(op)
            ]
        elif has_experts == (module == "mlp") and module in ("mlp", "moe", "moe_act"):
            module_operators = []
        else:
            parts = MODULE_OPERATORS[module]
            module_operators = [op for op in layer.forward if op.name.rpartition(".")[2] in parts]
        outside = {n for op in layer.forward if op not in module_operators for n in op.reads}
        outputs = {name for op in module_operators for name in op.writes}
        dropped |= outputs if module in DISCARDING else outputs - outside
        rerun += [op for op in module_operators if op not in rerun]
    kept = float(sum(layer.tensors[name].bytes for name in layer.saved if name not in dropped))
    kept += pricer.kept_bytes(layer, dropped)
    if HOST in names:
        kept *= min(1.0, IN_TRANSFER / blocks)
    return modules, policy_cost(layer, kept, rerun, pricer, costs)


def _hosted(layer: Layer, names: Sequence[str]) -> set[str]:
    """Return the saved tensors that only the backward passes of these operators read."""
    host_operators = {op.name for op in layer.forward if op.name.rpartition(".")[2] in names}
    if "attention" in names:
        host_operators |= {
            op.name for op in layer.forward if op.kind in CORE_ATTENTION or _inside_core(op)
        }
    hosted = set()
    for name in layer.saved:
        readers = [op.name.rpartition(".")[0] for op in layer.backward if name in op.reads]
        if readers and set(readers) <= host_operators:
            hosted.add(name)
    return hosted


def by_operator(layer: Layer, pricer: Pricer, costs: Mapping[str, Cost]) -> tuple[PolicyCost, ...]:
    """Return the convex hull of kept bytes and recomputed seconds over all sets of saved tensors,
    from keeping all to keeping least.
    """
    choices = hull_choices(layer, np.array([costs[op.name].total_s for op in layer.forward]))
    entry = _entry(layer)
    beyond = max(1, layer.saved_bytes - entry)
    extra = pricer.kept_bytes(layer)
    hull = []
    for choice in reversed(choices):
        share = min(1.0, max(0.0, (choice.kept_bytes - entry) / beyond))
        rerun = [layer.forward[i] for i in choice.rerun]
        hull.append(policy_cost(layer, choice.kept_bytes + extra * share, rerun, pricer, costs))
    return tuple(hull)


def _entry(layer: Layer) -> float:
    """Return the bytes of the layer's inputs, which every policy keeps."""
    return float(sum(layer.tensors[name].bytes for name in layer.entering))


def policy_cost(
    layer: Layer,
    bytes_: float,
    rerun: Sequence[Operator],
    pricer: Pricer,
    costs: Mapping[str, Cost],
) -> PolicyCost:
    """Return the policy that keeps these bytes and recomputes these operators."""
    return PolicyCost(
        bytes_,
        total(costs[op.name] for op in rerun),
        () if pricer.schedules_links else links(rerun),
        tuple(op.name for op in rerun),
        attention=any(op.kind in CORE_ATTENTION for op in rerun),
        exchange=_exchanged(layer, rerun),
    )


def _exchanged(layer: Layer, rerun: Sequence[Operator]) -> bool:
    """Return whether tokens are sent to their experts again."""
    return any(op in rerun for op in exchanging(layer))


def exchanging(layer: Layer) -> list[Operator]:
    """Return the operators that send tokens to experts: dispatches or, in a captured layer without
    any, the experts' products.
    """
    dispatches = [op for op in layer.forward if op.kind == "dispatch"]
    products = (op for op in layer.forward if op.kind == "linear")
    return dispatches or [op for op in products if op.matmuls[0].batch > 1]


def _inside_core(op: Operator) -> bool:
    return op.kind == "dropout" and ".probabilities." in f".{op.name}."


def _alternate(layer: Layer, costs: Mapping[str, Cost]) -> PolicyCost:
    """Return the policy that keeps attention's and every second product's output."""
    kept, shares = _alternate_shares(layer)
    again = Cost()
    for name, share in shares.items():
        again += costs[name].times(share)
    rerun = [op for op in layer.forward if shares.get(op.name, 0.0) > 0.0]
    exchange = _exchanged(layer, rerun)
    return PolicyCost(kept, again, (), tuple(op.name for op in rerun), exchange=exchange)


def _alternate_shares(layer: Layer) -> tuple[float, dict[str, float]]:
    """Return the kept bytes, and the recomputed share per operator without collectives."""
    saved = {name: float(layer.tensors[name].bytes) for name in layer.saved}
    kept = _entry(layer)
    shares: dict[str, float] = {}
    count = 0
    for op in layer.forward:
        if op.kind == "attention":
            kept += sum(saved.get(name, 0.0) for name in op.writes)
            continue
        if op.collective is not None:
            if op.collective.kind is CollectiveKind.REDUCE_SCATTER:
                kept += sum(float(layer.tensors[name].bytes) for name in op.writes)
            continue
        share = 0.0
        # torchtitan counts plain products only: grouped ones of experts and routers run again.
        if op.kind == "linear" and op.matmuls[0].batch == 1 and op.name != "router":
            widths = _output_widths(layer, op)
            for width in widths:
                count += 1
                if count % 2:
                    share += width / sum(widths)
            # also where no gradient needs them
            outputs = sum(float(layer.tensors[name].bytes) for name in op.writes)
            kept += share * outputs
        shares[op.name] = 1 - share
    return kept, shares


def _output_widths(layer: Layer, op: Operator) -> list[int]:
    weights = [layer.tensors[n] for n in op.reads if layer.tensors[n].role is Role.WEIGHT]
    widths = [t.shape[-1] for t in weights if len(t.shape) > 1]
    if op.name == "fc1" and any(len(o.vectors) == 2 for o in layer.forward if o.name == "act"):
        return [widths[0] // 2] * 2
    return widths


def links(operators: Iterable[Operator]) -> tuple[TensorLink, ...]:
    """Return the collectives of these operators."""
    return tuple(
        TensorLink(str(op.collective.kind), op.collective.bytes, op.collective.group)
        for op in operators
        if op.collective is not None
    )
