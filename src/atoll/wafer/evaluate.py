"""Evaluator: time and memory of a mapping on a wafer, for searched mappings and baselines alike.

    load of a stage = layers x block + ends (embedding, head) + transfers in, with block >= time of
                      the ports if layer inputs wait outside the wafer
    step            = (microbatches - 1) x largest load + sum of the loads + fixed time     (1F1B)
    memory of a die = layers x (states + kept x microbatches in flight) + transient (rebuilt for one
                      layer) + states and logits of the ends + buffers + guests (tensors offloaded
                      by other stages)

where a stage that is w-th from the end holds min(w, microbatches) microbatches. Work done once per
step (gradient sums, the optimizer) is spread over the microbatches. The zero-bubble schedule's step
is in `step.bubbles`; a delayed weight pass holds the inputs of its operators and the gradients of
their outputs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import NamedTuple

import numpy as np

from atoll.fabric.digits import Digits
from atoll.fabric.mesh import Link, Rectangle
from atoll.fabric.mesh_collectives import wires
from atoll.fabric.routes import Boundary, boundaries, journeys
from atoll.hardware.wafer import Wafer
from atoll.step.bubbles import microbatches_in_flight, peak_activation_bytes, step_s
from atoll.step.replay import PassTime
from atoll.step.states import States, load_states
from atoll.wafer.costs import block_kernels as kernels
from atoll.wafer.costs.die_pricer import die_pricer
from atoll.wafer.costs.layer_cost import block_cost
from atoll.wafer.costs.tables import BlockTables, CostSetting
from atoll.wafer.costs.weight_placement import home_bytes, home_cost
from atoll.wafer.encoding import role_kernels as roles
from atoll.wafer.encoding.block_parts import BlockCost, HelperPath, WaferBlock
from atoll.wafer.encoding.codes import legal, parts_of, stream_layout
from atoll.wafer.encoding.mapping import WaferMapping


@dataclass(frozen=True)
class EndsCost:
    """Cost of embedding or head in a stage: seconds per microbatch, bytes per die."""

    time_s: float
    weight_s: float
    """The head's weight pass, part of `time_s`."""
    states: tuple[float, ...]
    logits_bytes: float

    @property
    def bytes(self) -> float:
        return sum(self.states) + self.logits_bytes


class EndsChoice(NamedTuple):
    cost: EndsCost
    head_code: str
    streaming: bool
    """Whether the head's collectives overlap with it."""


@dataclass(frozen=True)
class StageCost:
    """Cost of one stage for one microbatch."""

    block: BlockCost
    parts_s: Mapping[str, float]
    """Seconds of one layer by cause."""
    ports_s: float
    """Lower bound on a layer's time: its weights and inputs come through the ports."""
    ends: EndsCost
    transfer_s: float
    load_s: float
    forward_s: float
    weight_s: float
    """Weight gradients, part of `load_s`."""
    memory_bytes: Mapping[str, float]
    """By part (`step.parts`)."""

    @property
    def total_bytes(self) -> float:
        return sum(self.memory_bytes.values())

    @property
    def passes(self) -> PassTime:
        """The load as passes of one microbatch; transfers count in the backward pass."""
        backward_s = self.load_s - self.forward_s - self.weight_s
        return PassTime(self.forward_s, backward_s, self.weight_s)


@dataclass(frozen=True)
class MappingCost:
    """Time and memory of a mapping."""

    mapping: WaferMapping
    stages: tuple[StageCost, ...]
    step_s: float
    fixed_s: float
    """Time per step independent of the mapping, part of `step_s`."""
    samples_per_s: float
    fits: bool

    @property
    def memory_bytes(self) -> float:
        return max(stage.total_bytes for stage in self.stages)


def evaluate(wafer: Wafer, mapping: WaferMapping, dead_links: Sequence[Link] = ()) -> MappingCost:
    """Return time and memory of a legal mapping."""
    block = mapping.blocks()
    setting = setting_of(wafer, mapping)
    rectangles = [s.rectangle for s in mapping.stages]
    crossings = boundaries(wafer.mesh, rectangles, block.stream_bytes, dead_links)
    paths = helper_paths(wafer, rectangles, [s.helper for s in mapping.stages], dead_links)
    alone = tuple(
        _stage(mapping, number, block, setting, crossings, path)
        for number, path in enumerate(paths)
    )
    stages = _with_guests(mapping, alone)
    passes = [stage.passes for stage in stages]
    total_s = wafer.step_s + step_s(mapping.schedule, passes, mapping.microbatches)
    fits = all(stage.total_bytes <= wafer.memory_bytes for stage in stages)
    return MappingCost(mapping, stages, total_s, wafer.step_s, mapping.batch / total_s, fits)


def setting_of(wafer: Wafer, mapping: WaferMapping) -> CostSetting:
    return CostSetting(
        wafer, mapping.microbatches, mapping.streaming, mapping.algorithm,
        1.0 / len(mapping.stages), load_states(mapping.optimizer),
    )  # fmt: skip


def helper_paths(
    wafer: Wafer, rectangles: Sequence[Rectangle], helpers: Sequence[int | None],
    dead_links: Sequence[Link] = (),
) -> tuple[HelperPath | None, ...]:  # fmt: skip
    """Return each stage's bandwidth and latency to its helper, all sending at once."""
    return tuple(
        None
        if path is None
        else HelperPath(wafer.link_Bps / path.sharing, path.hops * wafer.link_latency_s)
        for path in journeys(wafer.mesh, rectangles, helpers, dead_links)
    )


def _with_guests(mapping: WaferMapping, stages: tuple[StageCost, ...]) -> tuple[StageCost, ...]:
    """Add the tensors offloaded by other stages to the memory of their helpers."""
    guests_bytes = [0.0] * len(stages)
    for number, (stage, cost) in enumerate(zip(mapping.stages, stages, strict=True)):
        if stage.helper is not None:
            offloaded_bytes = stage.layers * in_flight(mapping, number) * cost.block.away_bytes
            helper = mapping.stages[stage.helper].rectangle
            guests_bytes[stage.helper] += offloaded_bytes * stage.rectangle.size / helper.size
    return tuple(
        replace(cost, memory_bytes={**cost.memory_bytes, "guests": size}) if size else cost
        for cost, size in zip(stages, guests_bytes, strict=True)
    )


def in_flight(mapping: WaferMapping, stage: int) -> int:
    """Return the most microbatches whose activations a stage holds."""
    return int(
        microbatches_in_flight(mapping.schedule, len(mapping.stages), stage, mapping.microbatches)
    )


def _stage(
    mapping: WaferMapping, number: int, block: WaferBlock, setting: CostSetting,
    crossings: Boundary, away: HelperPath | None,
) -> StageCost:  # fmt: skip
    stage, count = mapping.stages[number], len(mapping.stages)
    layer = block_cost(block, stage.digits, setting, stage.block, away)
    cost = layer.cost
    external = "external" in stage.block.homes
    where = number == 0, number == count - 1, external
    ends = ends_cost(block, stage.digits, setting, stage.block.stream, stage.head, *where)
    transfer = 2.0 * crossings.into_s[number]
    weights, gradients, optimizer = (
        stage.layers * layers + end for layers, end in zip(layer.states, ends.states, strict=True)
    )
    buffers = layer.buffer_bytes
    if external:
        buffers += streamed_bytes(block, setting.states, stage.rectangle.size)
    memory = {
        "weights": weights,
        "gradients": gradients,
        "optimizer": optimizer,
        "activations": stage.layers * peak_activation_bytes(
            mapping.schedule, count, number, mapping.microbatches,
            kept_bytes=cost.kept_bytes, waiting_bytes=layer.delayed_bytes,
        ),
        "logits": ends.logits_bytes,
        "transient": cost.rebuilt_bytes,
        "buffers": buffers,
    }  # fmt: skip
    ports = setting.ports_s(block)
    load = stage.layers * max(cost.time_s, ports) + ends.time_s + transfer
    return StageCost(
        cost, layer.parts_s, ports, ends, transfer, load,
        stage.layers * layer.forward_s + ends.time_s / 3.0,
        stage.layers * layer.weight_s + ends.weight_s, memory,
    )  # fmt: skip


def streamed_bytes(block: WaferBlock, states: States, dies: int) -> float:
    """Return bytes per die of the double buffer of one layer's external weights and gradients."""
    return 2.0 * (states.weight + states.reduced) * block.parameters / block.layers / dies


def delayed_bytes(block: WaferBlock, dies: int) -> float:
    """Lower bound on a layer's bytes per die for delayed weight passes: cut over all dies."""
    edges = (edge for chain in block.chains for edge in chain.edges)
    return sum(sum(edge.totals) for edge in edges) / dies


@lru_cache(maxsize=4096)
def ends_cost(
    block: WaferBlock, digits: Digits, setting: CostSetting, stream: str, head_code: str,
    first: bool, last: bool, external: bool = False,
) -> EndsCost:  # fmt: skip
    """Cost of the embedding on the first stage, head and loss on the last; the vocabulary is cut
    between dies. With `external`, the weights of the ends are outside the wafer too.
    """
    time = weight = logits = 0.0
    states = np.zeros(3)
    mesh = wires(digits, setting.wafer.mesh), 0, 0
    layout = stream_layout(stream)
    if first:
        sums = np.full(digits.count, roles.PARTIAL, np.int64)
        moved = kernels.single_transition(block.stream_bytes, sums, sums, layout, *mesh)
        time += 2.0 * sum(moved[:3])
        if not external:
            share = block.embedding_parameters / digits.size
            states += setting.states.parts(share, share, 0)
    if last and block.head is not None:
        tables = head_tables(block, digits, setting, head_code)
        nodes = tables.unit_nodes(block.head)
        target = np.where(nodes.reads[0, 0] == roles.COLUMNS, roles.REPLICATED, nodes.reads[0, 0])
        moved = kernels.single_transition(block.stream_bytes, layout, layout, target, *mesh)
        parts = parts_of(head_code, digits)
        logits = block.head_bytes / prod(parts.values())
        entry, placement = np.zeros(1, np.int64), "external" if external else "optimizer"
        home_s, _ = home_cost(nodes, placement, setting, entry, entry, entry)
        time += float(nodes.compute_s[0] + home_s[0]) + 3.0 * sum(moved[:3])
        weight = float(nodes.weight_s[0])
        states += np.concatenate(home_bytes(setting.states, placement, nodes, entry, entry))
    return EndsCost(time, weight, tuple(states.tolist()), logits)


@lru_cache(maxsize=512)
def head_tables(block: WaferBlock, digits: Digits, setting: CostSetting, code: str) -> BlockTables:
    assert block.head is not None
    codes = {block.head.name: (code,), "stream": ("r" * digits.count,)}
    return BlockTables(block, digits, setting, die_pricer(setting.wafer.chip), codes, units=False)


def head_codes(block: WaferBlock, digits: Digits, stream: str) -> tuple[str, ...]:
    """Return the head's legal codes, from vocabulary on all digits to most samples and rows."""
    assert block.head is not None
    tags = [("n", tag) if tag in "bs" else ("n",) for tag in stream]
    candidates = ("".join(chosen) for chosen in product(*tags))
    return tuple(c for c in candidates if legal(c, block.head.sizes, digits))


@lru_cache(maxsize=512)
def ends_by_time(
    block: WaferBlock, digits: Digits, setting: CostSetting, stream: str, ends: tuple[bool, bool],
    external: bool, modes: tuple[bool, ...],
) -> tuple[EndsChoice, ...]:  # fmt: skip
    """Return the choices for embedding or head, fastest first; `modes`: streaming values to try."""
    codes = head_codes(block, digits, stream)
    options = [
        EndsChoice(ends_cost(block, digits, replace(setting, streaming=streaming), stream, code,
                             *ends, external), code, streaming)
        for code in (codes if ends[1] else codes[:1])
        for streaming in modes
    ]  # fmt: skip
    return tuple(sorted(options, key=lambda o: (o.cost.time_s, o.head_code, not o.streaming)))
