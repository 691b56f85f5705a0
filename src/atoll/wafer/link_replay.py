"""Detailed mode: replay a mapping on links that are queues.

1. Every transition of a block is run as messages of all its groups at once, on the stage's dies.
2. Streamed collectives run in pieces that overlap with their operator: gathers, compute and
   scatters of the pieces compete for the links and the cores, event by event.
3. Offloaded tensors of all stages travel at once, in packets.
4. The pipeline is replayed microbatch by microbatch (`placement.simulate`), in the order of its
   schedule.
The difference from the fast model is what the fast model neglects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate
from typing import Any

from atoll.answers.wafer import DetailedStep
from atoll.base.arrays import Ints
from atoll.fabric.mesh import Link, both_directions
from atoll.fabric.mesh_collectives import simulate_exchange, simulate_pass
from atoll.fabric.mesh_events import LinkMessage, simulate
from atoll.fabric.routes import flows, route
from atoll.hardware.wafer import Wafer
from atoll.placement.replay import replay_placement
from atoll.wafer.costs import block_kernels as kernels
from atoll.wafer.costs.layer_cost import (
    NO_COST,
    EdgeTransfer,
    TransitionCost,
    collectives_between,
    edge_transfers,
    mapping_tables,
    stored_layout,
)
from atoll.wafer.encoding.block_parts import OFFLOAD, RECOMPUTE
from atoll.wafer.evaluate import MappingCost, setting_of

_PIECES = int(kernels.CHUNKS)
_PACKETS = 16  # in which an offloaded tensor travels


def streamed_s(gather_s: float, compute_s: float, scatter_s: float, pieces: int) -> float:
    """Return the time of gather, compute and scatter in pieces on one link and one core."""
    arrived = [*accumulate([gather_s / pieces] * pieces)]
    link_free, core_free, end = arrived[-1], 0.0, 0.0
    for ready in arrived:
        core_free = max(core_free, ready) + compute_s / pieces
        link_free = max(link_free, core_free) + scatter_s / pieces
        end = max(core_free, link_free if scatter_s else core_free)
    return end


def _layer_s(wafer: Wafer, evaluation: MappingCost, number: int, offload_Bps: float) -> float:
    """Return the time of a stage's layer, forward and backward, with links simulated."""
    stage = evaluation.mapping.stages[number]
    setting, stage_s = setting_of(wafer, evaluation.mapping), evaluation.stages[number].parts_s
    tables = mapping_tables(evaluation.mapping.blocks(), stage.digits, setting, stage.block)

    @cache
    def transition(
        total: float, have: tuple[int, ...], want: tuple[int, ...], scatter: str, gather: str
    ) -> TransitionCost:
        """Return the simulated seconds of scatter, exchange and gather."""
        digits, mesh = stage.digits, wafer.mesh
        passes = collectives_between(digits, total, have, want)
        return TransitionCost(
            sum(simulate_pass(digits, *collective, mesh, scatter) for collective in passes.scatter),
            sum(simulate_exchange(digits, *collective, mesh) for collective in passes.exchange),
            sum(simulate_pass(digits, *collective, mesh, gather) for collective in passes.gather),
            passes.stored_bytes,
        )

    def move(
        total: float, source: Ints, via: Ints, target: Ints, *algorithms: str
    ) -> TransitionCost:
        return transition(total, stored_layout(source, via), tuple(target.tolist()), *algorithms)

    layer_s = tables.stream_s(stage.block.stream) + stage_s["sharded_weights"]
    for chain in edge_transfers(tables, stage.block, move):
        start = chain[0].reader, chain[0].writer
        previous = EdgeTransfer(*start, NO_COST, NO_COST, NO_COST, None, 0.0)
        for crossing in chain:
            forward, backward = crossing.forward, crossing.backward
            layer_s += forward.exchange_s + backward.exchange_s + crossing.fetch.exchange_s
            layer_s += _operator_s(previous, forward.scatter_s, backward.gather_s, offload_Bps)
            if crossing.fate == RECOMPUTE:
                scatter = forward.scatter_s, crossing.writer.streams
                layer_s += forward.exchange_s + _pass_s(0.0, crossing.recompute_s, *scatter)
            previous = crossing
        layer_s += _operator_s(previous, 0.0, 0.0, offload_Bps)
    return layer_s


def _operator_s(
    crossing: EdgeTransfer, scatter_s: float, gather_s: float, offload_Bps: float
) -> float:
    """Return the time of all passes of the crossing's reader, with overlapped transfers."""
    reader = crossing.reader
    forward, data, weight = reader.passes_s
    offload_s = crossing.forward.stored_bytes / offload_Bps if crossing.fate == OFFLOAD else 0.0
    return (
        _pass_s(crossing.forward.gather_s + offload_s, forward, scatter_s, reader.streams)
        + _pass_s(gather_s, data, crossing.backward.scatter_s + offload_s, reader.streams)
        + _pass_s(crossing.fetch.gather_s, weight, 0.0, reader.streams)
    )


def _pass_s(gather_s: float, compute_s: float, scatter_s: float, streams: bool) -> float:
    if not streams:
        return gather_s + compute_s + scatter_s
    return streamed_s(gather_s, compute_s, scatter_s, _PIECES)


def offload_rates_Bps(
    wafer: Wafer, evaluation: MappingCost, dead_links: Sequence[Link] = ()
) -> list[float]:
    """Return the rate at which a die of each stage sends to its helper, with the tensors of a layer
    of all senders on the links at once, out and back, in packets.
    """
    broken = both_directions(dead_links)
    messages: list[LinkMessage] = []
    senders: list[int] = []
    stages = evaluation.mapping.stages
    for number, (stage, cost) in enumerate(zip(stages, evaluation.stages, strict=True)):
        if stage.helper is None or not cost.block.away_bytes:
            continue
        stage_bytes = cost.block.away_bytes * stage.rectangle.size
        helper_rectangle = stages[stage.helper].rectangle
        for source, target, share in flows(stage.rectangle, helper_rectangle):
            for endpoints in ((source, target), (target, source)):
                path = route(*endpoints, wafer.mesh, broken)
                messages += [LinkMessage(path, share * stage_bytes / _PACKETS)] * _PACKETS
                senders += [number] * _PACKETS
    arrivals_s = simulate(messages, wafer.mesh).arrival_s
    rates_Bps = [float("inf")] * len(stages)
    for number in set(senders):
        last_s = max(t for t, sender in zip(arrivals_s, senders, strict=True) if sender == number)
        rates_Bps[number] = evaluation.stages[number].block.away_bytes / last_s
    return rates_Bps


def replay_mapping(
    wafer: Wafer, evaluation: MappingCost, dead_links: Sequence[Link] = ()
) -> DetailedStep:
    """Replay the step with links as queues; compare it with the fast model's."""
    from atoll.wafer.answer.result import placement_of

    placement = placement_of(evaluation)
    layer_s: dict[tuple[Any, ...], float] = {}
    stages = []
    rates_Bps = offload_rates_Bps(wafer, evaluation, dead_links)
    for number, (stage, plan, cost) in enumerate(
        zip(evaluation.mapping.stages, placement.stages, evaluation.stages, strict=True)
    ):
        key = (stage.digits, stage.block, rates_Bps[number])
        if key not in layer_s:
            layer_s[key] = _layer_s(wafer, evaluation, number, rates_Bps[number])
        fast_s = max(cost.block.time_s, cost.ports_s)
        change_s = stage.layers * (max(layer_s[key], cost.ports_s) - fast_s)
        scale = (plan.compute_s + change_s) / plan.compute_s
        stages.append(
            replace(
                plan,
                compute_s=plan.compute_s + change_s,
                forward_s=None if plan.forward_s is None else plan.forward_s * scale,
                weight_s=None if plan.weight_s is None else plan.weight_s * scale,
            )
        )
    replayed = replay_placement(replace(placement, stages=tuple(stages)))
    return DetailedStep(
        step_time_s=replayed.time_s,
        difference=replayed.time_s / evaluation.step_s - 1.0,
        fast_step_time_s=evaluation.step_s,
    )
