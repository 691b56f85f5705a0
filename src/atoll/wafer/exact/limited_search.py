"""The fastest path through a block within limits of memory.

First, prices of memory are searched: each gives a Lagrangian bound for every stream layout, and
mappings that may fit. Then labels (seconds, local bytes, offloaded bytes) are extended along all
chains for every stream layout whose bound is below the best mapping so far, which is exact. A label
is dropped if another at the same state beats it in all three, if the fewest bytes that must follow
no longer fit, or if the least seconds that must follow (alone, or with priced bytes) cannot beat
the best mapping so far.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.wafer.encoding.block_parts import BlockCost
from atoll.wafer.exact import path_kernels, price_kernels
from atoll.wafer.exact.paths import BlockPaths, MemoryPrice, PathChoices, PathStep


@dataclass(frozen=True)
class MemoryLimits:
    """Bytes that a die may hold, and bytes that it may offload to another stage."""

    local_bytes: float
    offload_bytes: float = 0.0


class _TracedLabels(NamedTuple):
    time_s: Floats
    local_bytes: Floats
    offload_bytes: Floats
    state: Ints
    parent: Ints
    option: Ints
    fate: Ints

    def pick(self, order: Ints) -> _TracedLabels:
        picked: list[Any] = [column[order] for column in self]
        return _TracedLabels(*picked)

    def undominated(self) -> _TracedLabels:
        """Drop labels that another at the same state beats in seconds and both kinds of bytes."""
        order = np.lexsort((self.offload_bytes, self.local_bytes, self.time_s, self.state))
        keep = np.zeros(len(order), np.bool_)
        labels = self.pick(order)
        path_kernels.mark_undominated(labels.state, labels.local_bytes, labels.offload_bytes, keep)
        return self.pick(order[keep])


def fastest_labelled_path(
    chains: list[list[PathStep]], stream: int, start: tuple[float, float], limits: MemoryLimits,
    cap_s: float, price: MemoryPrice,
) -> PathChoices | None:  # fmt: skip
    """Return the fastest path within limits and below `cap_s`; `start`: seconds, bytes before."""
    steps = [step for chain in chains for step in chain]
    ends = {int(e) for e in np.cumsum([len(chain) for chain in chains]) - 1}
    completions = _completions(stream, steps, ends, price)
    none = np.zeros(1, np.int64)
    labels = _TracedLabels(
        np.array(start[:1]), np.array(start[1:]), np.zeros(1), np.array([stream]),
        none, none, none,
    )  # fmt: skip
    history: list[_TracedLabels] = []
    for index, step in enumerate(steps):
        states = np.array([stream]) if index in ends else np.arange(step.time_s.shape[1])
        least_s, fewest_bytes, least_cost = np.take(completions[index], states, axis=1)
        bounds = path_kernels.CompletionBounds(
            states, least_s, fewest_bytes, least_cost, limits.local_bytes, limits.offload_bytes,
            price.local_s_per_byte, price.offload_s_per_byte, cap_s,
        )  # fmt: skip
        reached = path_kernels.PathLabels(*labels[:4])
        copies = price.saved_copies, price.state_copies
        extended = path_kernels.extend_labels(reached, bounds, step.kernel_arrays, *copies)
        labels = _TracedLabels(*extended).undominated()
        if not len(labels.time_s):
            return None
        history.append(labels)
    choices = []
    label = int(labels.time_s.argmin())
    for labels in reversed(history):
        choices.append((labels.state[label], labels.option[label], labels.fate[label]))
        label = int(labels.parent[label])
    return np.array(choices[::-1])


def _completions(
    stream: int, steps: list[PathStep], ends: set[int], price: MemoryPrice
) -> list[Floats]:
    """Return the least of what must follow each step, by state (`least_completions`)."""
    completions = [np.zeros((3, steps[-1].time_s.shape[1]))]
    for index in range(len(steps) - 1, 0, -1):
        step = steps[index]
        least = path_kernels.least_completions(
            completions[0], step.kernel_arrays, step.byte_prices(price), price.saved_copies,
            price.state_copies, stream if index in ends else -1,
        )  # fmt: skip
        completions.insert(0, least)
    return completions


_RATIOS = 5  # halvings of the ratio of the price of offloaded bytes to that of local bytes


@dataclass(frozen=True)
class CandidatePath:
    stream: int
    path: PathChoices
    cost: BlockCost


class LimitedSearch:
    """Search for the fastest mapping of one stage within its memory limits."""

    def __init__(
        self, paths: BlockPaths, layers: int, in_flight: int, limits: MemoryLimits,
        fastest_s: Floats, fewest_bytes: Floats, tolerance: float, cap_s: float = np.inf,
    ) -> None:  # fmt: skip
        """`fewest_bytes` by stream layout; mappings of `cap_s` or longer are not looked for."""
        self._cap_s = cap_s
        self.paths, self.limits, self.tolerance = paths, limits, tolerance
        self.layers, self.in_flight = layers, in_flight
        self.copies = (float(layers * in_flight), float(layers))
        self.fixed_bytes = self.copies[0] * paths.stream_saved_bytes + paths.buffer_bytes
        fewest_bytes = self.fixed_bytes + fewest_bytes
        # Rounding must not cut off a mapping that just fits.
        self.streams = np.flatnonzero(fewest_bytes <= limits.local_bytes * (1 + 1e-12))
        self.fastest_s = float(fastest_s.min())
        self.best: CandidatePath | None = None
        self.bounds_s = np.full(len(self.fixed_bytes), np.inf)
        self.bounds_s[self.streams] = fastest_s[self.streams]
        steps = sum(len(chain) for chain in paths.chains)
        local, offload = np.zeros((2, len(self.fixed_bytes)))
        best = np.array([cap_s]), np.full((1 + steps, 3), -1)
        self._bisection = price_kernels.BisectionState(self.bounds_s, local, offload, *best)

    def run(self) -> CandidatePath | None:
        """Return the fastest mapping that fits, proven within the tolerance."""
        if not len(self.streams):
            return None
        self._search_prices()
        for stream in self.ordered_streams():
            # A bound this high means that not even the smallest mapping fits.
            cap_s = min(self._cap_s, price_kernels.HOPELESS * self.fastest_s)
            if self.best is not None:
                cap_s = self.best.cost.time_s * (1 - self.tolerance)
            if self.bounds_s[stream] >= cap_s * (1 - 1e-12):
                break
            start = float(self.paths.stream_s[stream]), float(self.fixed_bytes[stream])
            price = self.bound_price(int(stream))
            path = fastest_labelled_path(
                self.paths.chains, int(stream), start, self.limits, cap_s, price
            )
            if path is not None:
                cost = self.paths.path_cost(int(stream), path)
                if cost.time_s < (self._cap_s if self.best is None else self.best.cost.time_s):
                    self.best = CandidatePath(int(stream), path, cost)
        return self.best

    def ordered_streams(self) -> Ints:
        """Return the stream layouts that may fit, lowest bound first."""
        return self.streams[np.argsort(self.bounds_s[self.streams], kind="stable")]

    def bound_price(self, stream: int) -> MemoryPrice:
        """Return the price that gives a stream layout its bound."""
        local, offload = self._bisection.local_prices, self._bisection.offload_prices
        return MemoryPrice(float(local[stream]), float(offload[stream]), *self.copies)

    def _search_prices(self) -> None:
        """Search the price of local bytes, and that of offloaded bytes as a share of it (from 0 to
        1, at which offloading saves nothing).
        """
        stage = price_kernels.StageLimits(
            float(self.layers), float(self.in_flight), *self.copies, float(self.limits.local_bytes),
            float(self.limits.offload_bytes), self.fastest_s,
        )  # fmt: skip
        paths = self.paths
        layouts = price_kernels.StreamLayouts(
            paths.stream_s, paths.stream_saved_bytes, paths.buffer_bytes, self.fixed_bytes
        )

        def bisect(ratio: float) -> bool:
            """Return whether some mapping offloaded too many bytes."""
            state = self.streams, ratio, self._bisection
            return bool(price_kernels.bisect_price(paths.packed_steps, layouts, stage, *state))

        if bisect(0.0):
            bisect(1.0)
            low, high = 0.0, 1.0
            for _ in range(_RATIOS):
                ratio = 0.5 * (low + high)
                low, high = (ratio, high) if bisect(ratio) else (low, ratio)
        stream = int(self._bisection.best_path[0, 0])
        if stream >= 0:
            path = self._bisection.best_path[1:]
            self.best = CandidatePath(stream, path, paths.path_cost(stream, path))
