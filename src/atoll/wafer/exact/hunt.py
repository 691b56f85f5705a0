"""The fastest way through a block within limits of memory.

First prices of memory: each gives a Lagrangian bound for every stream layout, and mappings that may
fit. Then labels (seconds, bytes here, bytes elsewhere) for every stream layout whose bound is below
the best mapping found. That is exact for one stream layout: labels run along all chains of a block,
strung together at the stream. A label is dropped if another at the same state beats it in all
three, if the fewest bytes that must follow no longer fit, or if the least seconds that must follow
(alone, or with bytes at a price: a Lagrangian bound) cannot beat the best mapping known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from atoll.arrays import FloatArray, IntArray
from atoll.wafer.encoding.genes import BlockCost
from atoll.wafer.exact.path_kernels import Ahead, Labels, extended, least_after, undominated_sorted
from atoll.wafer.exact.paths import Paths, Price, Step, Way
from atoll.wafer.exact.price_kernels import HOPELESS, Layouts, Outcome, Stage, bisected


@dataclass(frozen=True)
class Limits:
    """Bytes that a die may hold, and bytes that it may leave elsewhere."""

    own: float
    away: float = 0.0


class _Labels(NamedTuple):
    time: FloatArray
    own: FloatArray
    away: FloatArray
    at: IntArray
    parent: IntArray
    option: IntArray
    fate: IntArray

    def pick(self, order: IntArray) -> _Labels:
        picked: list[Any] = [column[order] for column in self]
        return _Labels(*picked)


def undominated(time: FloatArray, own: FloatArray, away: FloatArray, at: IntArray) -> IntArray:
    """Labels that no other at the same state beats in seconds and both kinds of bytes."""
    order = np.lexsort((away, own, time, at))
    keep = np.zeros(len(order), np.bool_)
    undominated_sorted(at[order], own[order], away[order], keep)
    return np.asarray(order[keep])


def solve_labels(
    chains: list[list[Step]], stream: int, start: tuple[float, float], limits: Limits,
    cap_s: float, price: Price,
) -> Way | None:  # fmt: skip
    """The fastest way within the limits and below `cap_s`; None if there is none. `start` are
    seconds and bytes of the stream layout before the first step.
    """
    steps = [step for chain in chains for step in chain]
    ends = {int(e) for e in np.cumsum([len(chain) for chain in chains]) - 1}
    follow = _completions(stream, steps, ends, price)
    none = np.zeros(1, np.int64)
    labels = _Labels(
        np.array(start[:1]), np.array(start[1:]), np.zeros(1), np.array([stream]),
        none, none, none,
    )  # fmt: skip
    history: list[_Labels] = []
    for index, step in enumerate(steps):
        only = np.array([stream]) if index in ends else np.arange(step.time_s.shape[1])
        seconds, bytes_, both = np.take(follow[index], only, axis=1)
        limit = limits.own, limits.away
        ahead = Ahead(only, seconds, bytes_, both, *limit, price.own, price.away, cap_s)
        known, per_byte = Labels(*labels[:4]), (price.per_kept, price.per_state)
        joined = _Labels(*extended(known, ahead, *step.choices, len(step.fates()), *per_byte))
        labels = joined.pick(undominated(joined.time, joined.own, joined.away, joined.at))
        if not len(labels.time):
            return None
        history.append(labels)
    return _walk_back(history, chains, steps, ends, int(labels.time.argmin()))


def _walk_back(
    history: list[_Labels], chains: list[list[Step]], steps: list[Step], ends: set[int], last: int
) -> Way:
    states: list[int] = []
    options: list[int] = []
    fates: list[int] = []
    for index in reversed(range(len(steps))):
        labels = history[index]
        if index not in ends:
            states.append(int(labels.at[last]))
            options.append(int(labels.option[last]))
        if steps[index].droppable:
            fates.append(steps[index].fates()[int(labels.fate[last])])
        last = int(labels.parent[last])
    states.reverse()
    by_chain: list[list[int]] = []
    position = 0
    for chain in chains:
        by_chain.append(states[position : position + len(chain) - 1])
        position += len(chain) - 1
    return Way(by_chain, options[::-1], fates[::-1])


def _completions(stream: int, steps: list[Step], ends: set[int], price: Price) -> list[FloatArray]:
    """After each step, for each state: the least seconds, the fewest bytes here, and the least
    seconds + price x bytes that must follow.
    """
    follow = [np.zeros((3, steps[-1].time_s.shape[1]))]
    for index in range(len(steps) - 1, 0, -1):
        step = steps[index]
        found = least_after(
            follow[0], *step.choices, len(step.fates()), step.prices(price), price.per_kept,
            price.per_state, stream if index in ends else -1,
        )  # fmt: skip
        follow.insert(0, found)
    return follow


_RATIOS = 5  # halvings of the price of bytes elsewhere over that of bytes here


@dataclass(frozen=True)
class Found:
    stream: int
    way: Way
    cost: BlockCost


class Hunt:
    """One stage of so many layers and microbatches in flight."""

    def __init__(
        self, paths: Paths, layers: int, in_flight: int, limits: Limits, fastest_s: FloatArray,
        fewest: FloatArray, tolerance: float, cap_s: float = np.inf,
    ) -> None:  # fmt: skip
        """`fewest` bytes of the layers by stream layout (`Paths.fewest_bytes`); `cap_s`: mappings
        that take so long are not looked for.
        """
        self._cap_s = cap_s
        self.paths, self.limits, self.tolerance = paths, limits, tolerance
        self.layers, self.in_flight = layers, in_flight
        self.scale = (float(layers * in_flight), float(layers))
        self.fixed = self.scale[0] * paths.stream_kept + paths.buffers
        fewest = self.fixed + fewest
        # Rounding must not cut off a mapping that just fits.
        self.streams = np.flatnonzero(fewest <= limits.own * (1 + 1e-12))
        self.fastest_s = float(fastest_s.min())
        self.best: Found | None = None
        self.bounds = np.full(len(self.fixed), np.inf)
        self.bounds[self.streams] = fastest_s[self.streams]
        steps = sum(len(chain) for chain in paths.chains)
        self._found = Outcome(
            self.bounds, np.zeros(len(self.fixed)), np.zeros(len(self.fixed)), np.array([cap_s]),
            np.full((1 + steps, 3), -1),
        )  # fmt: skip

    def run(self) -> Found | None:
        """The fastest that fits, proven within the tolerance."""
        if not len(self.streams):
            return None
        self._by_price()
        for stream in self.streams[np.argsort(self.bounds[self.streams], kind="stable")]:
            # A bound this high means that not even the smallest mapping fits.
            cap = min(self._cap_s, HOPELESS * self.fastest_s)
            if self.best is not None:
                cap = self.best.cost.time_s * (1 - self.tolerance)
            if self.bounds[stream] >= cap * (1 - 1e-12):
                break
            start = float(self.paths.stream_s[stream]), float(self.fixed[stream])
            way = solve_labels(
                self.paths.chains, int(stream), start, self.limits, cap, self.price(int(stream))
            )
            if way is not None:
                self._offer(int(stream), way, self.paths.cost(int(stream), way))
        return self.best

    def price(self, stream: int) -> Price:
        """At which the bound of a stream layout holds."""
        return Price(float(self._found.own[stream]), float(self._found.away[stream]), *self.scale)

    def _offer(self, stream: int, way: Way, cost: BlockCost) -> None:
        least = self._cap_s if self.best is None else self.best.cost.time_s
        if cost.time_s < least:
            self.best = Found(stream, way, cost)

    def _by_price(self) -> None:
        """Search the prices of bytes here and elsewhere.

        A byte elsewhere is worth between nothing and what a byte here is: at that price leaving a
        tensor elsewhere saves nothing.
        """
        stage = Stage(
            float(self.layers), float(self.in_flight), *self.scale, float(self.limits.own),
            float(self.limits.away), self.fastest_s,
        )  # fmt: skip
        paths = self.paths
        layouts = Layouts(paths.stream_s, paths.stream_kept, paths.buffers, self.fixed)

        def bisect(ratio: float) -> bool:
            """Whether too many bytes went elsewhere on the way."""
            found = bisected(paths.packed, layouts, stage, self.streams, ratio, self._found)
            return bool(found)

        if bisect(0.0):
            bisect(1.0)
            low, high = 0.0, 1.0
            for _ in range(_RATIOS):
                ratio = 0.5 * (low + high)
                if bisect(ratio):
                    low = ratio
                else:
                    high = ratio
        stream = int(self._found.way[0, 0])
        if stream >= 0:
            way = paths.unpacked(self._found.way[1:])
            self.best = Found(stream, way, paths.cost(stream, way))
