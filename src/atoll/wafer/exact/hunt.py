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
from atoll.wafer.exact.path_kernels import CompletionBounds, PathLabels, extend_labels, least_completions, mark_undominated
from atoll.wafer.exact.paths import BlockPaths, MemoryPrice, PathStep, BlockPath
from atoll.wafer.exact.price_kernels import HOPELESS, StreamLayouts, BisectionState, StageLimits, bisect_price


@dataclass(frozen=True)
class MemoryLimits:
    """Bytes that a die may hold, and bytes that it may leave elsewhere."""

    local_bytes: float
    offload_bytes: float = 0.0


class _TracedLabels(NamedTuple):
    time_s: FloatArray
    local_bytes: FloatArray
    offload_bytes: FloatArray
    state: IntArray
    parent: IntArray
    option: IntArray
    fate: IntArray

    def pick(self, order: IntArray) -> _TracedLabels:
        picked: list[Any] = [column[order] for column in self]
        return _TracedLabels(*picked)


def undominated(time: FloatArray, own: FloatArray, away: FloatArray, at: IntArray) -> IntArray:
    """Labels that no other at the same state beats in seconds and both kinds of bytes."""
    order = np.lexsort((away, own, time, at))
    keep = np.zeros(len(order), np.bool_)
    mark_undominated(at[order], own[order], away[order], keep)
    return np.asarray(order[keep])


def fastest_labelled_path(
    chains: list[list[PathStep]], stream: int, start: tuple[float, float], limits: MemoryLimits,
    cap_s: float, price: MemoryPrice,
) -> BlockPath | None:  # fmt: skip
    """The fastest way within the limits and below `cap_s`; None if there is none. `start` are
    seconds and bytes of the stream layout before the first step.
    """
    steps = [step for chain in chains for step in chain]
    ends = {int(e) for e in np.cumsum([len(chain) for chain in chains]) - 1}
    follow = _completions(stream, steps, ends, price)
    none = np.zeros(1, np.int64)
    labels = _TracedLabels(
        np.array(start[:1]), np.array(start[1:]), np.zeros(1), np.array([stream]),
        none, none, none,
    )  # fmt: skip
    history: list[_TracedLabels] = []
    for index, step in enumerate(steps):
        only = np.array([stream]) if index in ends else np.arange(step.time_s.shape[1])
        seconds, bytes_, both = np.take(follow[index], only, axis=1)
        limit = limits.local_bytes, limits.offload_bytes
        ahead = CompletionBounds(only, seconds, bytes_, both, *limit, price.local_s_per_byte, price.offload_s_per_byte, cap_s)
        known, per_byte = PathLabels(*labels[:4]), (price.saved_copies, price.state_copies)
        joined = _TracedLabels(*extend_labels(known, ahead, *step.kernel_arrays, len(step.fates()), *per_byte))
        labels = joined.pick(undominated(joined.time_s, joined.local_bytes, joined.offload_bytes, joined.state))
        if not len(labels.time_s):
            return None
        history.append(labels)
    return _walk_back(history, chains, steps, ends, int(labels.time_s.argmin()))


def _walk_back(
    history: list[_TracedLabels], chains: list[list[PathStep]], steps: list[PathStep], ends: set[int], last: int
) -> BlockPath:
    states: list[int] = []
    options: list[int] = []
    fates: list[int] = []
    for index in reversed(range(len(steps))):
        labels = history[index]
        if index not in ends:
            states.append(int(labels.state[last]))
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
    return BlockPath(by_chain, options[::-1], fates[::-1])


def _completions(stream: int, steps: list[PathStep], ends: set[int], price: MemoryPrice) -> list[FloatArray]:
    """After each step, for each state: the least seconds, the fewest bytes here, and the least
    seconds + price x bytes that must follow.
    """
    follow = [np.zeros((3, steps[-1].time_s.shape[1]))]
    for index in range(len(steps) - 1, 0, -1):
        step = steps[index]
        found = least_completions(
            follow[0], *step.kernel_arrays, len(step.fates()), step.byte_prices(price), price.saved_copies,
            price.state_copies, stream if index in ends else -1,
        )  # fmt: skip
        follow.insert(0, found)
    return follow


_RATIOS = 5  # halvings of the price of bytes elsewhere over that of bytes here


@dataclass(frozen=True)
class CandidatePath:
    stream: int
    path: BlockPath
    cost: BlockCost


class LimitedSearch:
    """One stage of so many layers and microbatches in flight."""

    def __init__(
        self, paths: BlockPaths, layers: int, in_flight: int, limits: MemoryLimits, fastest_s: FloatArray,
        fewest: FloatArray, tolerance: float, cap_s: float = np.inf,
    ) -> None:  # fmt: skip
        """`fewest` bytes of the layers by stream layout (`Paths.fewest_bytes`); `cap_s`: mappings
        that take so long are not looked for.
        """
        self._cap_s = cap_s
        self.paths, self.limits, self.tolerance = paths, limits, tolerance
        self.layers, self.in_flight = layers, in_flight
        self.copies = (float(layers * in_flight), float(layers))
        self.fixed_bytes = self.copies[0] * paths.stream_saved_bytes + paths.buffer_bytes
        fewest = self.fixed_bytes + fewest
        # Rounding must not cut off a mapping that just fits.
        self.fitting_streams = np.flatnonzero(fewest <= limits.local_bytes * (1 + 1e-12))
        self.fastest_s = float(fastest_s.min())
        self.best: CandidatePath | None = None
        self.bounds_s = np.full(len(self.fixed_bytes), np.inf)
        self.bounds_s[self.fitting_streams] = fastest_s[self.fitting_streams]
        steps = sum(len(chain) for chain in paths.chains)
        self._bisection = BisectionState(
            self.bounds_s, np.zeros(len(self.fixed_bytes)), np.zeros(len(self.fixed_bytes)), np.array([cap_s]),
            np.full((1 + steps, 3), -1),
        )  # fmt: skip

    def run(self) -> CandidatePath | None:
        """The fastest that fits, proven within the tolerance."""
        if not len(self.fitting_streams):
            return None
        self._search_prices()
        for stream in self.fitting_streams[np.argsort(self.bounds_s[self.fitting_streams], kind="stable")]:
            # A bound this high means that not even the smallest mapping fits.
            cap = min(self._cap_s, HOPELESS * self.fastest_s)
            if self.best is not None:
                cap = self.best.cost.time_s * (1 - self.tolerance)
            if self.bounds_s[stream] >= cap * (1 - 1e-12):
                break
            start = float(self.paths.stream_s[stream]), float(self.fixed_bytes[stream])
            way = fastest_labelled_path(
                self.paths.chains, int(stream), start, self.limits, cap, self.bound_price(int(stream))
            )
            if way is not None:
                self._offer(int(stream), way, self.paths.path_cost(int(stream), way))
        return self.best

    def bound_price(self, stream: int) -> MemoryPrice:
        """At which the bound of a stream layout holds."""
        return MemoryPrice(float(self._bisection.own[stream]), float(self._bisection.away[stream]), *self.copies)

    def _offer(self, stream: int, way: BlockPath, cost: BlockCost) -> None:
        least = self._cap_s if self.best is None else self.best.cost.time_s
        if cost.time_s < least:
            self.best = CandidatePath(stream, way, cost)

    def _search_prices(self) -> None:
        """Search the prices of bytes here and elsewhere.

        A byte elsewhere is worth between nothing and what a byte here is: at that price leaving a
        tensor elsewhere saves nothing.
        """
        stage = StageLimits(
            float(self.layers), float(self.in_flight), *self.copies, float(self.limits.local_bytes),
            float(self.limits.offload_bytes), self.fastest_s,
        )  # fmt: skip
        paths = self.paths
        layouts = StreamLayouts(paths.stream_s, paths.stream_saved_bytes, paths.buffer_bytes, self.fixed_bytes)

        def bisect(ratio: float) -> bool:
            """Whether too many bytes went elsewhere on the way."""
            found = bisect_price(paths.packed_steps, layouts, stage, self.fitting_streams, ratio, self._bisection)
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
        stream = int(self._bisection.way[0, 0])
        if stream >= 0:
            way = paths.unpack_path(self._bisection.way[1:])
            self.best = CandidatePath(stream, way, paths.path_cost(stream, way))
