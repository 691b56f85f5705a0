"""Estimates of many layouts whose stages lie in several pods, at once.

Every pod has the tables that `batch` makes of its own devices; a stage takes its figures from
those of its pod, and `sums` adds them up as ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np

from atoll.step.layout import Layout
from atoll.step.orders import arrivals, chunks_of, route
from atoll.training.batch.estimates import Given, in_parts, tables_of
from atoll.training.batch.parts import Held, Paces, StagePasses, StageStateCosts, States
from atoll.training.batch.sums import Sums
from atoll.training.operators.priced import Priced
from atoll.training.operators.tables import GROUP, PIPE, STAGES, Floats, Ints, Tables


class Joined(Sums):
    """Sums of rows whose stages follow one another through pods of so many devices. Bytes are those
    of the pod whose devices the run has, others' in proportion to what they have.
    """

    def __init__(
        self,
        tables: Sequence[Tables],
        crossing: Floats,
        sizes: Sequence[int],
        link_s: float,
        rows: Ints,
    ) -> None:
        super().__init__(max(tables, key=lambda of: of.run.slack), rows)
        self.parts = [Sums(of, rows) for of in tables]
        self.launches = any(part.launches for part in self.parts)
        for part in self.parts:
            part.launches = self.launches
        first = self.place * (sum(sizes) // rows[self.row, STAGES])
        self.pod = np.searchsorted(np.cumsum(sizes), first, side="right")
        sends_s = np.stack([of.sends_s for of in tables])
        group = rows[self.row, GROUP]
        own_s, over_s = sends_s[self.pod, group], np.maximum(sends_s.max(axis=0), link_s)[group]
        over = crossing[self.stage]
        self.arriving_s = (tables[0].arrivals[self.stage] - over) * own_s[:, None] + over * over_s[
            :, None
        ]
        came = tables[0].arrivals[self.stage]
        self.message_s = self.arriving_s / np.where(came > 0, came, 1.0)

    def _mine(self, of: Iterable[Floats], pods: Ints | None = None) -> Floats:
        """Of every stage (or of chunks in these pods) the figures of its pod."""
        first, *others = of
        found, pods = first.copy(), self.pod if pods is None else pods
        for number, other in enumerate(others, start=1):
            there = pods[: len(found)] == number
            found[there] = other[there]
        return found

    def stage_state_costs(self) -> StageStateCosts:
        each = [part.stage_state_costs() for part in self.parts]
        return StageStateCosts(*(self._mine(of) for of in zip(*each, strict=True)))

    def memory(self, states: States) -> Floats:
        own = self.run.capacity_bytes
        return self._mine(p.memory(states) * (own / p.run.capacity_bytes) for p in self.parts)

    def passes(self, held: Held) -> StagePasses:
        each = [part.passes(held) for part in self.parts]
        pods = self.pod[self.chunk_stage]
        stages = (self._mine(of) for of in zip(*(x.stages for x in each), strict=True))
        chunks = (self._mine(of, pods) for of in zip(*(x.chunks for x in each), strict=True))
        rest = (self._mine(of) for of in zip(*(x[2:] for x in each), strict=True))
        return StagePasses(Paces(*stages), Paces(*chunks), *rest)


class Before(Sums):
    """Sums of a step but for its update, which follows once all replicas have the gradients."""

    def combine_stages(self, costs: StageStateCosts) -> States:
        self.update_s = self.most(costs.update_s) * self.run.slack
        return super().combine_stages(costs._replace(update_s=np.zeros_like(costs.update_s)))


def replica_estimates(
    priced: Sequence[Priced],
    layouts: Sequence[Layout],
    choices: Sequence[str],
    each: Sequence[int],
    microbatches: int,
) -> tuple[Floats, Floats]:
    """`batch.batch_estimates` of layouts with replicas in every pod, each with so many microbatches
    of its pod's size; the slowest pod and the slowest update count. Bytes over what there is.
    """
    steps_s, updates_s, filled = [], [], []
    for one, size in zip(priced, each, strict=True):
        own = [replace(layout, microbatch=size) for layout in layouts]
        tables = tables_of(one, Given(own), choices, layouts[0].dp * size * microbatches)
        sums = Before(tables, tables.rows)
        step_s, bytes_, _ = sums.figures()
        steps_s.append(step_s)
        updates_s.append(sums.update_s)
        filled.append(bytes_ / one.run.capacity_bytes)
    step_s = np.max(steps_s, axis=0) + np.max(updates_s, axis=0)[:, None]
    return step_s, np.max(filled, axis=0)


def joined_estimates(
    priced: Sequence[Priced],
    layouts: Sequence[Layout],
    choices: Sequence[str],
    sizes: Sequence[int],
    link_s: float,
) -> tuple[Floats, Floats]:
    """`batch.batch_estimates` of layouts whose stages lie in several pods; bytes over those that
    the device of a stage has.
    """
    made = _sums(priced, layouts, choices, sizes, link_s)
    (tables, *_), *_ = made.args
    step_s, bytes_ = in_parts(tables, made)
    return step_s, bytes_ / max((p.run for p in priced), key=lambda r: r.slack).capacity_bytes


def joined_choices(
    priced: Sequence[Priced],
    layout: Layout,
    choices: Sequence[str],
    sizes: Sequence[int],
    link_s: float,
) -> tuple[str, ...]:
    """`batch.stage_choices` of such a layout."""
    made = _sums(priced, [layout], choices, sizes, link_s)
    (tables, *_), *_ = made.args
    return tuple(choices[choice] for choice in made(tables.rows).figures()[2])


def _sums(
    priced: Sequence[Priced],
    layouts: Sequence[Layout],
    choices: Sequence[str],
    sizes: Sequence[int],
    link_s: float,
) -> partial[Joined]:
    tables = [tables_of(one, Given(layouts), choices) for one in priced]
    first = dict(zip(tables[0].rows[:, PIPE].tolist(), layouts, strict=True))
    crossing = [
        _crossing(x.schedule, x.pp, x.vpp, pods_of_stages(x.pp, tuple(sizes)))
        for _, x in sorted(first.items())
    ]
    return partial(Joined, tables, np.concatenate(crossing), sizes, link_s)


@lru_cache(maxsize=1024)
def pods_of_stages(pp: int, sizes: tuple[int, ...]) -> tuple[int, ...]:
    """The pod of every stage, where each pod has whole ones."""
    return tuple(pod for pod, size in enumerate(sizes) for _ in range(size * pp // sum(sizes)))


@lru_cache(maxsize=1024)
def _crossing(order: str, pp: int, vpp: int, pods: tuple[int, ...]) -> Floats:
    return np.array(arrivals(order, pp, chunks_of(order, vpp), pods))


@lru_cache(maxsize=16384)
def blocks_of(
    order: str, pods: tuple[int, ...], vpp: int, shares: tuple[int, ...]
) -> tuple[int, ...]:
    """Blocks of each model chunk where every pod has so many, as even as can be among its chunks:
    one fewer at the two ends of the model first, as `step.stages.even_sizes`.
    """
    held = [pods[stage] for stage, _ in route(order, len(pods), chunks_of(order, vpp), 0)]
    inner = [*range(1, len(held) - 1), len(held) - 1, 0]
    found = [0] * len(held)
    for pod, share in enumerate(shares):
        mine = [chunk for chunk in inner if held[chunk] == pod]
        base, more = divmod(share, len(mine))
        for place, chunk in enumerate(mine):
            found[chunk] = base + (place < more)
    return tuple(found)
