"""Estimates of many layouts whose stages lie in several pods, at once.

Each pod has the tables that `batch` builds for its devices; a stage's values come from the tables
of its pod, and `sums` adds them up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.step.layout import Layout
from atoll.step.orders import arrivals, chunks_per_stage, route
from atoll.training.batch.choices import figures
from atoll.training.batch.cost_arrays import Paces, StagePasses, StateCosts, StateMemory
from atoll.training.batch.estimates import LayoutSequence, in_parts, make_tables
from atoll.training.batch.row import LayoutRow, layout_row
from atoll.training.batch.sums import Sums
from atoll.training.operators.layer_prices import LayerPrices
from atoll.training.operators.tables import GROUP, PIPE, STAGES, LayoutTables


class PodSums(Sums):
    """Sums of rows whose stages lie in consecutive pods. Bytes are relative to the memory of the
    run's device: bytes of other pods are scaled by the ratio of the capacities.
    """

    def __init__(
        self,
        tables: Sequence[LayoutTables],
        crossing: Floats,
        sizes: Sequence[int],
        link_s: float,
        rows: Ints,
    ) -> None:
        super().__init__(max(tables, key=lambda pod_tables: pod_tables.run.slack), rows)
        self._pods = [Sums(pod_tables, rows) for pod_tables in tables]
        self.launches = any(part.launches for part in self._pods)
        for part in self._pods:
            part.launches = self.launches
        first = self.stage_position * (sum(sizes) // rows[self.row, STAGES])
        self.pod = np.searchsorted(np.cumsum(sizes), first, side="right")
        sends_s = np.stack([pod_tables.sends_s for pod_tables in tables])
        group = rows[self.row, GROUP]
        inside_s, over_s = sends_s[self.pod, group], np.maximum(sends_s.max(axis=0), link_s)[group]
        over = crossing[self.stage]
        came = tables[0].arrivals[self.stage]
        self.arriving_s = (came - over) * inside_s[:, None] + over * over_s[:, None]
        self.message_s = self.arriving_s / np.where(came > 0, came, 1.0)

    @property
    def pods(self) -> Sequence[Sums]:
        return self._pods

    def _by_pod(self, pod_values: Iterable[Floats], pods: Ints | None = None) -> Floats:
        """Select for each stage (or for chunks in `pods`) the values of its pod."""
        first, *later_pods = pod_values
        values, pods = first.copy(), self.pod if pods is None else pods
        for number, pod_value in enumerate(later_pods, start=1):
            in_pod = pods[: len(values)] == number
            values[in_pod] = pod_value[in_pod]
        return values

    def stage_state_costs(self) -> StateCosts:
        pod_costs = [part.stage_state_costs() for part in self._pods]
        return StateCosts(*(self._by_pod(columns) for columns in zip(*pod_costs, strict=True)))

    def memory(self, states: StateCosts) -> Floats:
        capacity_bytes = self.run.capacity_bytes
        return self._by_pod(
            p.memory(states) * (capacity_bytes / p.run.capacity_bytes) for p in self._pods
        )

    def passes(self, memory: StateMemory) -> StagePasses:
        pod_passes = [part.passes(memory) for part in self._pods]
        pods = self.pod[self.chunk_stage]
        stages, chunks, *totals = zip(*pod_passes, strict=True)
        return StagePasses(
            Paces(*(self._by_pod(columns) for columns in zip(*stages, strict=True))),
            Paces(*(self._by_pod(columns, pods) for columns in zip(*chunks, strict=True))),
            *map(self._by_pod, totals),
        )


JoinedSums = partial[PodSums]


class SumsBeforeUpdate(Sums):
    """Sums of a step without its update, which starts when all replicas have the gradients."""

    def combine_stages(self, costs: StateCosts) -> StateCosts:
        self.update_s = self.max_over_stages(costs.update_s) * self.run.slack
        return super().combine_stages(costs._replace(update_s=np.zeros_like(costs.update_s)))


def replica_estimates(
    priced: Sequence[LayerPrices],
    layouts: Sequence[Layout],
    choices: Sequence[str],
    microbatch_sizes: Sequence[int],
    microbatches: int,
) -> tuple[Floats, Floats]:
    """Return `batch.batch_estimates` of layouts with replicas in every pod, with `microbatches`
    microbatches of each pod's size; the slowest pod and the slowest update count. Bytes are
    relative to the capacity.
    """
    steps_s, updates_s, filled = [], [], []
    for pod_prices, size in zip(priced, microbatch_sizes, strict=True):
        pod_layouts = [replace(layout, microbatch=size) for layout in layouts]
        tables = make_tables(
            pod_prices, LayoutSequence(pod_layouts), choices, layouts[0].dp * size * microbatches
        )
        sums = SumsBeforeUpdate(tables, tables.rows)
        step_s, bytes_, _ = figures(sums)
        steps_s.append(step_s)
        updates_s.append(sums.update_s)
        filled.append(bytes_ / pod_prices.run.capacity_bytes)
    step_s = np.max(steps_s, axis=0) + np.max(updates_s, axis=0)[:, None]
    return step_s, np.max(filled, axis=0)


def joined_estimates(make_sums: JoinedSums) -> tuple[Floats, Floats]:
    """Return `batch_estimates` of layouts across pods; bytes relative to their capacities."""
    tables, *_ = make_sums.args
    step_s, bytes_ = in_parts(tables[0], make_sums)
    return step_s, bytes_ / max((t.run for t in tables), key=lambda run: run.slack).capacity_bytes


def joined_row(make_sums: JoinedSums, choices: Sequence[str]) -> tuple[LayoutRow, tuple[str, ...]]:
    """Return one such layout by part, and the best recomputation choice of each stage."""
    tables, *_ = make_sums.args
    sums = make_sums(tables[0].rows)
    picks = figures(sums)[2]
    return layout_row(sums, picks), tuple(choices[choice] for choice in picks)


def joined_sums(
    priced: Sequence[LayerPrices],
    layouts: Sequence[Layout],
    choices: Sequence[str],
    sizes: Sequence[int],
    link_s: float,
) -> JoinedSums:
    """Return the sums of layouts whose stages lie in several pods, as a function of their rows."""
    tables = [make_tables(pod_prices, LayoutSequence(layouts), choices) for pod_prices in priced]
    first = dict(zip(tables[0].rows[:, PIPE].tolist(), layouts, strict=True))
    crossing = [
        _crossing(layout.schedule, layout.pp, layout.vpp, pod_by_stage(layout.pp, tuple(sizes)))
        for _, layout in sorted(first.items())
    ]
    return partial(PodSums, tables, np.concatenate(crossing), sizes, link_s)


@lru_cache(maxsize=1024)
def pod_by_stage(pp: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the pod of each stage; stages do not span pods."""
    return tuple(pod for pod, size in enumerate(sizes) for _ in range(size * pp // sum(sizes)))


@lru_cache(maxsize=1024)
def _crossing(order: str, pp: int, vpp: int, pods: tuple[int, ...]) -> Floats:
    return np.array(arrivals(order, pp, chunks_per_stage(order, vpp), pods))


@lru_cache(maxsize=16384)
def blocks_per_chunk(
    order: str, pods: tuple[int, ...], vpp: int, shares: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the blocks per model chunk if pod i has `shares[i]` blocks, spread evenly over its
    chunks: one fewer at the two ends of the model first, as `step.stages.even_sizes`.
    """
    chunk_pods = [
        pods[stage] for stage, _ in route(order, len(pods), chunks_per_stage(order, vpp), 0)
    ]
    inner = [*range(1, len(chunk_pods) - 1), len(chunk_pods) - 1, 0]
    sizes = [0] * len(chunk_pods)
    for pod, share in enumerate(shares):
        pod_chunks = [chunk for chunk in inner if chunk_pods[chunk] == pod]
        base, more = divmod(share, len(pod_chunks))
        for place, chunk in enumerate(pod_chunks):
            sizes[chunk] = base + (place < more)
    return tuple(sizes)
