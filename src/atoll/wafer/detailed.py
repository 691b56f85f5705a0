"""The detailed mode: a found mapping replayed on links that are queues.

1. Every transition of a block is run as messages of all its groups at once, on the stage's dies.
2. Streamed collectives run in pieces beside their operator: gathers, compute and scatters of the
   pieces compete for the links and the cores, event by event.
3. Offloaded tensors of all stages travel at once, in packets.
4. The pipeline is replayed microbatch by microbatch (`placement.simulate`), in the order of its
   schedule.
The difference from the fast model is what the fast model leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from atoll.answers.wafer import Detailed
from atoll.arrays import IntArray
from atoll.fabric.digits import Digits
from atoll.fabric.events import Message, simulate
from atoll.fabric.mesh import Link, Mesh, both_ways
from atoll.fabric.mesh_collectives import simulate_exchange, simulate_pass
from atoll.fabric.routes import flows, route
from atoll.hardware.wafer import Wafer
from atoll.placement.replay import replay_placement
from atoll.wafer.costs import block_kernels as kernels
from atoll.wafer.costs.layer import Crossing, Moved, tables_of, walk
from atoll.wafer.costs.transition import passes_between, stored_layout
from atoll.wafer.encoding.genes import AGAIN, OFFLOAD
from atoll.wafer.evaluate import Evaluation, setting_of

_NOTHING = Moved(0.0, 0.0, 0.0, 0.0)
_PIECES = int(kernels.CHUNKS)
_PACKETS = 16  # in which an offloaded tensor travels


def streamed_s(gather_s: float, compute_s: float, scatter_s: float, pieces: int) -> float:
    """Pieces of gather, compute and scatter on one link resource and one core resource."""
    link_free = core_free = 0.0
    arrived = []
    for _ in range(pieces):
        link_free += gather_s / pieces
        arrived.append(link_free)
    end = 0.0
    for ready in arrived:
        core_free = max(core_free, ready) + compute_s / pieces
        link_free = max(link_free, core_free) + scatter_s / pieces
        end = max(core_free, link_free if scatter_s else core_free)
    return end


def _layer_s(wafer: Wafer, found: Evaluation, number: int, journey_Bps: float) -> float:
    """One layer of a stage, forward and backward, with links simulated."""
    stage = found.mapping.stages[number]
    setting = setting_of(wafer, found.mapping)
    tables = tables_of(found.mapping.blocks(), stage.digits, setting, stage.block)

    @cache
    def transition(
        total: float, have: tuple[int, ...], want: tuple[int, ...], scatter: str, gather: str
    ) -> Moved:
        return _transition(stage.digits, wafer.mesh, total, have, want, scatter, gather)

    def move(
        total: float, source: IntArray, via: IntArray, target: IntArray, scatter: str, gather: str
    ) -> Moved:
        return transition(
            total, stored_layout(source, via), tuple(target.tolist()), scatter, gather
        )

    total = tables.stream_s(stage.block.stream) + found.stages[number].parts_s["sharded_weights"]
    for chain in walk(tables, stage.block, move):
        before = Crossing(chain[0].reader, chain[0].writer, _NOTHING, _NOTHING, _NOTHING, None, 0.0)
        for crossing in chain:
            visit, there, back = crossing.writer, crossing.there, crossing.back
            total += there.exchange_s + back.exchange_s + crossing.fetch.exchange_s
            total += _operator_s(before, there.scatter_s, back.gather_s, journey_Bps)
            if crossing.fate == AGAIN:
                own = crossing.again_s
                total += there.exchange_s + _beside(0.0, own, there.scatter_s, visit.streams)
            before = crossing
        total += _operator_s(before, 0.0, 0.0, journey_Bps)
    return total


def _operator_s(into: Crossing, scatter_s: float, gather_s: float, journey_Bps: float) -> float:
    """All passes of the operator that a crossing leads to, with what it hides."""
    visit = into.reader
    forward, data, weight = visit.passes_s
    away = into.there.held_bytes / journey_Bps if into.fate == OFFLOAD else 0.0
    return (
        _beside(into.there.gather_s + away, forward, scatter_s, visit.streams)
        + _beside(gather_s, data, into.back.scatter_s + away, visit.streams)
        + _beside(into.fetch.gather_s, weight, 0.0, visit.streams)
    )


def _beside(gather: float, compute: float, scatter: float, streams: bool) -> float:
    if not streams:
        return gather + compute + scatter
    return streamed_s(gather, compute, scatter, _PIECES)


def _transition(
    digits: Digits, mesh: Mesh, total: float, have: Sequence[int], want: Sequence[int],
    scatter_way: str, gather_way: str,
) -> Moved:  # fmt: skip
    """Simulated seconds of scatter, exchange and gather."""
    passes = passes_between(digits, total, have, want)
    return Moved(
        sum(simulate_pass(digits, *one, mesh, scatter_way) for one in passes.scatter),
        sum(simulate_exchange(digits, *one, mesh) for one in passes.exchange),
        sum(simulate_pass(digits, *one, mesh, gather_way) for one in passes.gather),
        passes.held_bytes,
    )


def journey_rates_Bps(
    wafer: Wafer, found: Evaluation, dead_links: Sequence[Link] = ()
) -> list[float]:
    """Bytes a second that a die of each stage sends to its helper, all senders' tensors of a layer
    on the links at once, out and back, in packets.
    """
    broken = both_ways(dead_links)
    messages: list[Message] = []
    owner: list[int] = []
    stages = found.mapping.stages
    for number, (stage, cost) in enumerate(zip(stages, found.stages, strict=True)):
        if stage.helper is None or not cost.block.away_bytes:
            continue
        total = cost.block.away_bytes * stage.rectangle.size
        helper = stages[stage.helper].rectangle
        for source, target, share in flows(stage.rectangle, helper):
            for way in ((source, target), (target, source)):
                path = route(*way, wafer.mesh, broken)
                messages += [Message(path, share * total / _PACKETS)] * _PACKETS
                owner += [number] * _PACKETS
    arrival = simulate(messages, wafer.mesh).arrival_s
    rates = [float("inf")] * len(stages)
    for number in set(owner):
        last = max(t for t, who in zip(arrival, owner, strict=True) if who == number)
        rates[number] = found.stages[number].block.away_bytes / last
    return rates


def replay_mapping(wafer: Wafer, found: Evaluation, dead_links: Sequence[Link] = ()) -> Detailed:
    """The step with links as queues and the pipeline event by event, beside the fast model's."""
    from atoll.wafer.answer.result import placement_of

    placement = placement_of(found)
    layer_s: dict[tuple[Any, ...], float] = {}
    stages = []
    rates = journey_rates_Bps(wafer, found, dead_links)
    for number, (stage, plan, cost) in enumerate(
        zip(found.mapping.stages, placement.stages, found.stages, strict=True)
    ):
        key = (stage.digits, stage.block, rates[number])
        if key not in layer_s:
            layer_s[key] = _layer_s(wafer, found, number, rates[number])
        fast_s = max(cost.block.time_s, cost.ports_s)
        change = stage.layers * (max(layer_s[key], cost.ports_s) - fast_s)
        scale = (plan.compute_s + change) / plan.compute_s
        stages.append(
            replace(
                plan,
                compute_s=plan.compute_s + change,
                forward_s=None if plan.forward_s is None else plan.forward_s * scale,
                weight_s=None if plan.weight_s is None else plan.weight_s * scale,
            )
        )
    replayed = replay_placement(replace(placement, stages=tuple(stages)))
    return Detailed(
        step_time_s=replayed.step_time_s,
        difference=replayed.step_time_s / found.step_s - 1.0,
        fast_step_time_s=found.step_s,
    )
