"""The detailed mode: a found mapping replayed on links that are queues.

1. Every transition of a block is run as messages of all its groups at once, on the stage's dies.
2. Streamed collectives run in pieces beside their operator: gathers, compute and scatters of the
   pieces compete for the links and the cores, event by event.
3. The pipeline is replayed microbatch by microbatch (`placement.simulate`), in the order of its
   schedule.
The difference from the fast model is what the fast model leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from atoll.placement.simulate import replay
from atoll.placement.zero_bubble import step_s
from atoll.wafer import block_kernels as kernels
from atoll.wafer.digits import Digits
from atoll.wafer.encoding import StageMapping
from atoll.wafer.evaluate import Evaluation
from atoll.wafer.links import Die, simulate
from atoll.wafer.pricing import pricer
from atoll.wafer.schedules import Schedule, ring_of
from atoll.wafer.tables import ALGORITHMS, HOMES, Nodes, Setting, Tables
from atoll.wafer.template import Wafer

_PIECES = int(kernels.CHUNKS)


def simulate_pass(
    digits: Digits, member: Sequence[bool], volume: float, wafer: Wafer, algorithm: str = "auto"
) -> float:
    """An all-gather over the member digits by the algorithm that the fast model takes."""
    if not any(member) or volume <= 0.0:
        return 0.0
    flags = np.array(member, np.bool_)
    mesh = (digits.radix, digits.axis, digits.stride, wafer.link_Bps, wafer.link_latency_s)
    fast = kernels.pass_one(flags, volume, *mesh, ALGORITHMS.index(algorithm))
    line = kernels.pass_one(flags, volume, *mesh, kernels.LINE)
    if fast == line:
        return _simulate_lines(digits, member, volume, wafer, 1.0, False)
    ring = kernels.pass_one(flags, volume, *mesh, kernels.RING)
    if fast == ring:
        schedule = Schedule()
        for group in digits.groups(member):
            columns, rows = {x for x, _ in group}, {y for _, y in group}
            dies = ring_of(min(columns), min(rows), len(columns), len(rows))
            schedule.gather_ring(dies, volume)
        return simulate(schedule.messages, wafer.link_Bps, wafer.link_latency_s).end_s
    # Two halves with the axes swapped, on disjoint links at every moment.
    return max(
        _simulate_lines(digits, member, volume, wafer, 0.5, swapped) for swapped in (False, True)
    )


def _lines(digits: Digits, member: Sequence[bool]) -> list[list[int]]:
    """Runs of member digits on one axis, the widest stride first."""
    runs: list[list[int]] = []
    for d, inside in enumerate(member):
        if not inside:
            continue
        if runs and runs[-1][-1] == d - 1 and digits.axis[d] == digits.axis[d - 1]:
            runs[-1].append(d)
        else:
            runs.append([d])
    return sorted(runs, key=lambda run: -int(digits.stride[run[-1]]))


def _simulate_lines(
    digits: Digits, member: Sequence[bool], volume: float, wafer: Wafer, share: float,
    swapped: bool,
) -> float:  # fmt: skip
    """Line after line; all groups at once; a die goes on when it has all of its pieces."""
    schedule = Schedule()
    runs = _lines(digits, member)
    if swapped:
        runs.reverse()
    sizes = [int(np.prod([digits.radix[d] for d in run])) for run in runs]
    size = share * volume / float(np.prod(sizes))
    for run, length in zip(runs, sizes, strict=True):
        began = schedule.arrivals()
        size *= length
        for line in digits.groups([d in run for d in range(digits.count)]):
            schedule.gather_line(sorted(line), size, began)
    return simulate(schedule.messages, wafer.link_Bps, wafer.link_latency_s).end_s


def simulate_exchange(
    digits: Digits, member: Sequence[bool], volume: float, wafer: Wafer
) -> float:
    schedule = Schedule()
    for group in digits.groups(member):
        schedule.exchange(group, volume)
    return simulate(schedule.messages, wafer.link_Bps, wafer.link_latency_s).end_s


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

    def __init__(self, wafer: Wafer, found: Evaluation, stage: StageMapping) -> None:
        self.wafer, self.stage = wafer, stage
        mapping = found.mapping
        self.block = mapping.blocks()
        self.setting = Setting(
            wafer, mapping.microbatches, mapping.streaming, mapping.algorithm,
            1.0 / len(mapping.stages),
        )  # fmt: skip
        genes = stage.block
        only = {"stream": (genes.stream,)} | {
            unit.name: (code,) for unit, code in zip(self.block.units, genes.codes, strict=True)
        }
        self.tables = Tables(self.block, stage.digits, self.setting, pricer(wafer.chip), only)
        self._memory: dict[tuple[Any, ...], tuple[float, float, float]] = {}

    def layer_s(self) -> float:
        """One layer, forward and backward, with links simulated."""
        total = self.tables.stream_s(self.stage.block.stream)
        keep = iter(self.stage.block.keep)
        homes = iter(self.stage.block.homes)
        for index, chain in enumerate(self.block.chains):
            nodes = self.tables.chain_nodes(index)
            count = len(chain.units)
            forward_in = [0.0] * (count + 2)
            forward_out = [0.0] * (count + 2)
            back_in = [0.0] * (count + 2)
            back_out = [0.0] * (count + 2)
            again = 0.0
            for e, edge in enumerate(chain.edges):
                there = self._edge(edge.totals, nodes[e].writes[0], nodes[e + 1].reads[0])
                back = self._edge(
                    edge.totals, nodes[e + 1].gradient_writes[0], nodes[e].gradient_reads[0]
                )
                forward_out[e] += there[0]
                forward_in[e + 1] += there[2]
                back_out[e + 1] += back[0]
                back_in[e] += back[2]
                total += there[1] + back[1]
                if edge.kept_name and not next(keep):
                    own = float(nodes[e].forward_s[0])
                    if e == 0:
                        own += self.tables.entry_s(index, self.stage.block.stream)
                    again += there[1] + self._operator(0.0, own, there[0])
            for i in range(count + 2):
                node = nodes[i]
                total += self._operator(forward_in[i], float(node.forward_s[0]), forward_out[i])
                total += self._operator(back_in[i], float(node.data_s[0]), back_out[i])
                total += self._operator(forward_in[i], float(node.weight_s[0]), 0.0)
                if 0 < i <= count:
                    total += self._home(node, next(homes))
            total += again
        return total

    def _operator(self, gather: float, compute: float, scatter: float) -> float:
        if not self.setting.streaming:
            return gather + compute + scatter
        return streamed_s(gather, compute, scatter, _PIECES)

    @staticmethod
    def _home(node: Nodes, home: str) -> float:
        return float(node.home_s[HOMES.index(home), 0])

    def _edge(
        self, totals: Sequence[float], source: np.ndarray, target: np.ndarray
    ) -> tuple[float, float, float]:
        """Simulated seconds of scatter, exchange and gather of the tensors on one edge."""
        sums = [0.0, 0.0, 0.0]
        for total, have, want in zip(totals, source, target, strict=False):
            key = (total, tuple(have), tuple(want))
            if key not in self._memory:
                self._memory[key] = self._transition(total, list(have), list(want))
            for i, value in enumerate(self._memory[key]):
                sums[i] += value
        return sums[0], sums[1], sums[2]

    def _transition(
        self, total: float, have: list[int], want: list[int]
    ) -> tuple[float, float, float]:
        digits, wafer, algorithm = self.stage.digits, self.wafer, self.setting.algorithm
        radix = [int(r) for r in digits.radix]
        whole, partial = kernels.WHOLE, kernels.PARTIAL
        held = total
        for r, h, w in zip(radix, have, want, strict=True):
            if h not in (whole, partial) or (h == whole and w != whole):
                held /= r
        pairs = list(zip(have, want, strict=True))
        scatter = [h == partial and w != whole for h, w in pairs]
        summed = [h == partial and w == whole for h, w in pairs]
        moved = [h not in (whole, partial) and w not in (whole, h) for h, w in pairs]
        gather = [h not in (whole, partial) and w == whole for h, w in pairs]
        scatter_s = simulate_pass(digits, scatter, held, wafer, algorithm)
        held /= float(np.prod([r for r, m in zip(radix, scatter, strict=True) if m] or [1]))
        exchange_s = simulate_exchange(digits, moved, held, wafer) if any(moved) else 0.0
        one = simulate_pass(digits, summed, held, wafer, algorithm)
        held *= float(np.prod([r for r, m in zip(radix, gather, strict=True) if m] or [1]))
        gather_s = simulate_pass(digits, gather, held, wafer, algorithm)
        return scatter_s + one, exchange_s, gather_s + one


def replay_mapping(wafer: Wafer, found: Evaluation) -> dict[str, Any]:
    """The step with links as queues and the pipeline event by event, beside the fast model's."""
    from atoll.wafer.result import placement_of

    placement = placement_of(found)
    layer_s: dict[tuple[Any, ...], float] = {}
    stages = []
    for stage, plan, cost in zip(found.mapping.stages, placement.stages, found.stages, strict=True):
        key = (stage.digits, stage.block)
        if key not in layer_s:
            layer_s[key] = _Replayer(wafer, found, stage).layer_s()
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
    loads = [stage.load_s for stage in stages]
    weights = [stage.weight_s or 0.0 for stage in stages]
    step = step_s(placement.schedule, loads, weights, placement.microbatches)
    replayed = replay(replace(placement, stages=tuple(stages), step_time_s=step))
    return {
        "step_time_s": replayed.step_time_s,
        "difference": replayed.step_time_s / found.step_s - 1.0,
        "fast_step_time_s": found.step_s,
    }


def simulated_line_s(dies: Sequence[Die], volume: float, wafer: Wafer) -> float:
    """One line alone on the mesh."""
    schedule = Schedule()
    schedule.gather_line(dies, volume, {})
    return simulate(schedule.messages, wafer.link_Bps, wafer.link_latency_s).end_s
