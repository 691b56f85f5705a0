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

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from atoll.fabric.events import Message, simulate
from atoll.fabric.mesh import Link, both_ways
from atoll.fabric.mesh_collectives import simulate_exchange, simulate_pass
from atoll.fabric.routes import flows, route
from atoll.hardware.wafer import Wafer
from atoll.placement.replay import replay_placement
from atoll.wafer.costs import block_kernels as kernels
from atoll.wafer.encoding.genes import AGAIN, KEEP, OFFLOAD
from atoll.wafer.evaluate import Evaluation, setting_of, tables_of

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


class _Replayer:
    """One stage's block, transition by transition."""

    def __init__(
        self, wafer: Wafer, found: Evaluation, number: int, journey_Bps: float
    ) -> None:
        self.wafer, self.stage = wafer, found.mapping.stages[number]
        self.journey_Bps = journey_Bps
        mapping = found.mapping
        self.block = mapping.blocks()
        genes = self.stage.block
        setting = setting_of(wafer, mapping)
        self.tables = tables_of(self.block, self.stage.digits, setting, genes)
        self.homes_s = found.stages[number].parts_s["sharded_weights"]
        same = (mapping.streaming, mapping.algorithm)
        self.ways = genes.collectives or (same,) * len(genes.codes)
        self.stream_way = same
        self._memory: dict[tuple[Any, ...], tuple[float, float, float]] = {}

    def layer_s(self) -> float:
        """One layer, forward and backward, with links simulated."""
        total = self.tables.stream_s(self.stage.block.stream) + self.homes_s
        keep = iter(self.stage.block.keep)
        passes, ways = iter(self.stage.block.passes), iter(self.ways)
        for index, chain in enumerate(self.block.chains):
            taken = [next(passes) for _ in chain.units]
            own = [next(ways) for _ in chain.units]
            total += self._chain_s(index, taken, own, keep)
        return total

    def _chain_s(
        self, index: int, passes: list[tuple[str, str, str]], ways: list[tuple[bool, str]],
        keep: Iterator[int],
    ) -> float:  # fmt: skip
        chain = self.block.chains[index]
        nodes = self.tables.chain_nodes(index)
        ways = [self.stream_way, *ways, self.stream_way]
        entries = [(0, 0, 0)]
        for node, codes, (streams, _) in zip(nodes[1:-1], passes, ways[1:-1], strict=True):
            f, d, w = (node.find(code, streams) for code in codes)
            entries.append((f, d, w))
        entries.append((0, 0, 0))
        forward_in, forward_out, back_in, back_out, fetch = (
            [0.0] * len(nodes) for _ in range(5)
        )
        total = 0.0
        for e, edge in enumerate(chain.edges):
            (a, b), way = (nodes[e], nodes[e + 1]), (ways[e][1], ways[e + 1][1])
            (f_a, d_a, _), (f_b, d_b, w_b) = entries[e], entries[e + 1]
            there = self._edge(edge.totals, a.writes[f_a], b.reads[f_b], *way)
            back = self._edge(
                edge.totals, b.gradient_writes[d_b], a.gradient_reads[d_a], *way[::-1]
            )
            forward_out[e] += there[0]
            forward_in[e + 1] += there[2]
            back_out[e + 1] += back[0]
            back_in[e] += back[2]
            total += there[1] + back[1]
            fetch[e + 1] = there[2]
            if w_b != f_b:
                layouts = [
                    _stored(*pair) for pair in zip(a.writes[f_a], b.reads[f_b], strict=False)
                ]
                moved = self._edge(edge.totals, layouts, b.reads[w_b], way[1], way[1])
                fetch[e + 1] = moved[2]
                total += moved[1]
            have, want = (d_b, w_b) if b.parameters.any() else (f_b, d_b)
            if have != want and b.unit is not None and (b.parameters.any() or b.unit.on_chip):
                moved = self._edge(
                    chain.edges[e + 1].totals, b.gradient_reads[have], b.gradient_reads[want],
                    way[1], way[1],
                )  # fmt: skip
                fetch[e + 1] += moved[2]
                total += moved[1]
            fate = next(keep) if edge.kept_name else KEEP
            if fate == AGAIN:
                own = float(a.forward_s[f_a])
                if e == 0:
                    own += self.tables.entry_s(index, self.stage.block.stream)
                total += there[1] + self._operator(0.0, own, there[0], ways[e][0])
            elif fate == OFFLOAD:
                tensors = zip(edge.totals, a.writes[f_a], b.reads[f_b], strict=False)
                journey = sum(
                    kernels.transition_one(*tensor, *self.tables.mesh)[3] for tensor in tensors
                )
                forward_in[e + 1] += journey / self.journey_Bps
                back_out[e + 1] += journey / self.journey_Bps
        for i, (node, (f, d, w), (streams, _)) in enumerate(
            zip(nodes, entries, ways, strict=True)
        ):
            out = (float(node.forward_s[f]), forward_out[i])
            total += self._operator(forward_in[i], *out, streams)
            total += self._operator(back_in[i], float(node.data_s[d]), back_out[i], streams)
            total += self._operator(fetch[i], float(node.weight_s[w]), 0.0, streams)
        return total

    @staticmethod
    def _operator(gather: float, compute: float, scatter: float, streams: bool) -> float:
        if not streams:
            return gather + compute + scatter
        return streamed_s(gather, compute, scatter, _PIECES)

    def _edge(
        self, totals: Sequence[float], source: Sequence[Any], target: Sequence[Any],
        scatter_way: str, gather_way: str,
    ) -> tuple[float, float, float]:  # fmt: skip
        """Simulated seconds of scatter, exchange and gather of the tensors on one edge."""
        sums = [0.0, 0.0, 0.0]
        for total, have, want in zip(totals, source, target, strict=False):
            key = (total, tuple(have), tuple(want), scatter_way, gather_way)
            if key not in self._memory:
                self._memory[key] = self._transition(
                    total, list(have), list(want), scatter_way, gather_way
                )
            for i, value in enumerate(self._memory[key]):
                sums[i] += value
        return sums[0], sums[1], sums[2]

    def _transition(
        self, total: float, have: list[int], want: list[int], scatter_way: str, gather_way: str
    ) -> tuple[float, float, float]:
        digits, mesh = self.stage.digits, self.wafer.mesh
        radix = [int(r) for r in digits.radix]
        whole, partial = (kernels.WHOLE, kernels.SUMMED), kernels.PARTIAL
        held = total
        for r, h, w in zip(radix, have, want, strict=True):
            if h not in (*whole, partial) or (h in whole and w != kernels.WHOLE):
                held /= r
        pairs = list(zip(have, want, strict=True))
        scatter = [h == partial and w != kernels.WHOLE for h, w in pairs]
        summed = [h == partial and w == kernels.WHOLE for h, w in pairs]
        again = [h == kernels.SUMMED and w == kernels.WHOLE for h, w in pairs]
        cut = [h not in (*whole, partial) for h in have]
        moved = [c and w not in (kernels.WHOLE, h) for c, (h, w) in zip(cut, pairs, strict=True)]
        gather = [c and w == kernels.WHOLE for c, (_, w) in zip(cut, pairs, strict=True)]
        scatter_s = simulate_pass(digits, scatter, held, mesh, scatter_way)
        held /= float(np.prod([r for r, m in zip(radix, scatter, strict=True) if m] or [1]))
        exchange_s = simulate_exchange(digits, moved, held, mesh) if any(moved) else 0.0
        scatter_s += simulate_pass(digits, summed, held, mesh, scatter_way)
        gather_s = simulate_pass(digits, summed, held, mesh, gather_way)
        gather_s += simulate_pass(digits, again, held, mesh, gather_way)
        held *= float(np.prod([r for r, m in zip(radix, gather, strict=True) if m] or [1]))
        gather_s += simulate_pass(digits, gather, held, mesh, gather_way)
        return scatter_s, exchange_s, gather_s


def _stored(source: Sequence[int], target: Sequence[int]) -> list[int]:
    """The layout between a tensor's reduction and its gather."""
    found = []
    for have, want in zip(source, target, strict=True):
        if want != kernels.WHOLE:
            found.append(int(want))
        else:
            found.append(kernels.SUMMED if have == kernels.PARTIAL else int(have))
    return found


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


def replay_mapping(
    wafer: Wafer, found: Evaluation, dead_links: Sequence[Link] = ()
) -> dict[str, Any]:
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
            layer_s[key] = _Replayer(wafer, found, number, rates[number]).layer_s()
        change = stage.layers * (layer_s[key] - cost.block.time_s)
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
    return {
        "step_time_s": replayed.step_time_s,
        "difference": replayed.step_time_s / found.step_s - 1.0,
        "fast_step_time_s": found.step_s,
    }
