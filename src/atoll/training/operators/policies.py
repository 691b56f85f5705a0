"""Recomputation policies of one layer: what each keeps for the backward pass, what it runs again.

"none" keeps every saved tensor; "selective" drops attention's core (Korthikanti et al.,
arXiv:2205.05198); "alternate" keeps the output of every second product (torchtitan's selective
checkpointing); "full" keeps the layer's input only; "optimal-n" are the sets of tensors on the
convex hull of bytes and seconds, from keeping all to keeping least. Modules of a block, as
Megatron-Core names them, are run again one by one ("mla_up_proj+mlp").
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from atoll.cost.pricer import Cost, Pricer, total
from atoll.placement.recompute import hull_choices
from atoll.step.layout import HOST
from atoll.workload.graph.layer import Layer
from atoll.workload.graph.operator import Operator, Role

CORE_ATTENTION = frozenset({"attention", "attention_scores", "softmax", "attention_values"})


EXPERT_OPERATORS = ("router", "choose", "dispatch", "fc1", "act", "fc2", "combine")
MODULE_OPERATORS = {
    "core_attn": ("attention", "scores", "softmax", "values"),
    "layernorm": ("norm1", "norm2"),
    "mla_up_proj": ("q_b", "kv_b", "rotary", "keys"),
    "mlp": ("fc1", "act", "fc2"),  # of blocks without experts
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
DISCARDING = ("layernorm", "mla_up_proj", "moe_act")
"""Modules whose outputs are dropped too, and made again in front of their readers' backward pass
(Megatron-Core's CheckpointWithoutOutput)."""


class TensorLink(NamedTuple):
    """A collective over the tensor group, or over that of experts with a width of their own."""

    kind: str
    bytes: int
    group: int


@dataclass(frozen=True, slots=True)
class Kept:
    """One policy on one layer: the bytes that it keeps, and what it runs again."""

    bytes: float
    again: Cost = Cost()  # noqa: RUF009  (frozen)
    links: tuple[TensorLink, ...] = ()
    """Collectives over the tensor group that run again."""
    rerun: tuple[str, ...] = ()
    """Names of the operators that run again."""
    attention: bool = False
    """Attention is among them, and with it the turns of a ring."""
    exchange: bool = False
    """The exchange of tokens with their experts is among them."""
    share: float = 1.0
    """Of the blocks that a layer stands for, those that run anything again; `again` is of all."""


def kept_whole(layer: Layer, pricer: Pricer) -> Kept:
    """Nothing is run again."""
    return Kept(float(layer.saved_bytes) + pricer.kept_bytes(layer))


def policies(
    layer: Layer, pricer: Pricer, costs: Mapping[str, Cost]
) -> tuple[tuple[str, Kept], ...]:
    """The named policies of a block, given what each of its operators costs."""
    none = kept_whole(layer, pricer)
    core, dropped = _core(layer)
    entry = _entry(layer)
    return (
        ("none", none),
        ("selective", kept_of(layer, none.bytes - dropped, core, pricer, costs)),
        ("alternate", _alternate(layer, costs)),
        ("full", kept_of(layer, entry, layer.forward, pricer, costs)),
    )


def rerun_shares(layer: Layer) -> dict[str, tuple[float, tuple[float, ...]]]:
    """Of the named policies that run anything again: the bytes that they keep of a layer's saved
    ones, and the share of each forward operator that runs again.
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
    """The operators of attention's core, and the bytes saved inside it."""
    core = [op for op in layer.forward if op.kind in CORE_ATTENTION or _inside_core(op)]
    made = {name for op in core for name in op.writes}
    leaving = {n for op in layer.forward if op not in core for n in op.reads}
    inside = (name for name in layer.saved if name in made and name not in leaving)
    return core, float(sum(layer.tensors[name].bytes for name in inside))


def some_blocks(name: str, blocks: int, known: Mapping[str, Kept]) -> tuple[str, Kept]:
    """Some blocks of a stage that has so many run again, or keep their tensors in the host's memory
    but for one that is on its way: what one does on average.
    """
    policy, _, number = name.partition("@")
    none, full = known["none"], known["full"]
    if policy == HOST:
        away = min(1.0, max(0, int(number or 0) - 1) / blocks)
        return name, replace(none, bytes=none.bytes * (1 - away))
    share = min(1.0, int(number) / blocks)
    kept = none.bytes + share * (full.bytes - none.bytes)
    return name, replace(full, bytes=kept, again=full.again.times(share), share=share)


def module_policy(
    layer: Layer, modules: str, pricer: Pricer, costs: Mapping[str, Cost]
) -> tuple[str, Kept]:
    """Some modules of a block run again or keep what they need in the host's memory, which takes no
    time here: it goes there and back beside other layers.
    """
    rerun: list[Operator] = []
    dropped: set[str] = set()
    has_experts = any(op.kind == "dispatch" for op in layer.forward)
    for module in modules.split("+"):
        if module.endswith("@host"):
            dropped |= _hosted(layer, HOSTED_OPERATORS[module.removesuffix("@host")])
            continue
        if module == "core_attn":
            ours = [op for op in layer.forward if op.kind in CORE_ATTENTION or _inside_core(op)]
        elif has_experts == (module == "mlp") and module in ("mlp", "moe", "moe_act"):
            ours = []
        else:
            names = MODULE_OPERATORS[module]
            ours = [op for op in layer.forward if op.name.rpartition(".")[2] in names]
        outside = {n for op in layer.forward if op not in ours for n in op.reads}
        made = {name for op in ours for name in op.writes}
        dropped |= made if module in DISCARDING else made - outside
        rerun += [op for op in ours if op not in rerun]
    kept = sum(layer.tensors[name].bytes for name in layer.saved if name not in dropped)
    return modules, kept_of(layer, kept + pricer.kept_bytes(layer, dropped), rerun, pricer, costs)


def _hosted(layer: Layer, names: Sequence[str]) -> set[str]:
    """Saved tensors that only the backward passes of these operators read."""
    ours = {op.name for op in layer.forward if op.name.rpartition(".")[2] in names}
    if "attention" in names:
        ours |= {op.name for op in layer.forward if op.kind in CORE_ATTENTION or _inside_core(op)}
    found = set()
    for name in layer.saved:
        readers = [op.name.rpartition(".")[0] for op in layer.backward if name in op.reads]
        if readers and set(readers) <= ours:
            found.add(name)
    return found


def by_operator(layer: Layer, pricer: Pricer, costs: Mapping[str, Cost]) -> tuple[Kept, ...]:
    """The convex hull of bytes kept and seconds run again over all sets of saved tensors, from
    keeping all to keeping least.
    """
    choices = hull_choices(layer, np.array([costs[op.name].total_s for op in layer.forward]))
    entry = _entry(layer)
    beyond = max(1, layer.saved_bytes - entry)
    extra = pricer.kept_bytes(layer)
    found = []
    for choice in reversed(choices):
        share = min(1.0, max(0.0, (choice.kept_bytes - entry) / beyond))
        rerun = [layer.forward[i] for i in choice.rerun]
        found.append(kept_of(layer, choice.kept_bytes + extra * share, rerun, pricer, costs))
    return tuple(found)


def _entry(layer: Layer) -> float:
    """Bytes that every policy keeps: what the layer starts again from."""
    return float(sum(layer.tensors[name].bytes for name in layer.entering))


def kept_of(
    layer: Layer,
    bytes_: float,
    rerun: Sequence[Operator],
    pricer: Pricer,
    costs: Mapping[str, Cost],
) -> Kept:
    """A choice that keeps so many bytes and runs these operators again."""
    return Kept(
        bytes_,
        total(costs[op.name] for op in rerun),
        () if pricer.schedules_links else links(rerun),
        tuple(op.name for op in rerun),
        attention=any(op.kind in CORE_ATTENTION for op in rerun),
        exchange=_exchanged(layer, rerun),
    )


def _exchanged(layer: Layer, rerun: Sequence[Operator]) -> bool:
    """Whether tokens go to their experts again."""
    return any(op in rerun for op in exchanging(layer))


def exchanging(layer: Layer) -> list[Operator]:
    """The operators with which tokens go to their experts: a dispatch, or, where a captured layer
    has none, the experts' products.
    """
    found = [op for op in layer.forward if op.kind == "dispatch"]
    return found or [op for op in layer.forward if op.kind == "linear" and op.matmuls[0].batch > 1]


def _inside_core(op: Operator) -> bool:
    return op.kind == "dropout" and ".probabilities." in f".{op.name}."


def _alternate(layer: Layer, costs: Mapping[str, Cost]) -> Kept:
    """Every second product's output and attention's are kept; all else is run again."""
    kept, shares = _alternate_shares(layer)
    again = Cost()
    for name, share in shares.items():
        again += costs[name].times(share)
    rerun = [op for op in layer.forward if shares.get(op.name, 0.0) > 0.0]
    exchange = _exchanged(layer, rerun)
    return Kept(kept, again, (), tuple(op.name for op in rerun), exchange=exchange)


def _alternate_shares(layer: Layer) -> tuple[float, dict[str, float]]:
    """Bytes kept, and by operator the share that runs again; collectives do not."""
    saved = {name: float(layer.tensors[name].bytes) for name in layer.saved}
    kept = _entry(layer)
    shares: dict[str, float] = {}
    count = 0
    for op in layer.forward:
        if op.kind == "attention":
            kept += sum(saved.get(name, 0.0) for name in op.writes)
            continue
        if op.collective is not None:
            continue
        share = 0.0
        if op.kind == "linear":
            widths = _output_widths(layer, op)
            for width in widths:
                count += 1
                if count % 2:
                    share += width / sum(widths)
            outputs = sum(saved.get(name, 0.0) for name in op.writes)
            rotated = sum(saved.get(f"{name}.rotated", 0.0) for name in op.writes)
            kept += share * (outputs + rotated)
        shares[op.name] = 1 - share
    return kept, shares


def _output_widths(layer: Layer, op: Operator) -> list[int]:
    weights = [layer.tensors[n] for n in op.reads if layer.tensors[n].role is Role.WEIGHT]
    widths = [t.shape[-1] for t in weights if len(t.shape) > 1]
    if op.name == "fc1" and any(len(o.vectors) == 2 for o in layer.forward if o.name == "act"):
        return [widths[0] // 2] * 2
    return widths


def links(operators: Iterable[Operator]) -> tuple[TensorLink, ...]:
    """The collectives among some operators."""
    return tuple(
        TensorLink(str(op.collective.kind), op.collective.bytes, op.collective.group)
        for op in operators
        if op.collective is not None
    )
