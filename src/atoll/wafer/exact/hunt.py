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
from atoll.wafer.exact.path_kernels import Ahead, Labels, extended, undominated_sorted
from atoll.wafer.exact.paths import Paths, Price, Step, Way


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
        seconds, bytes_, both = (f[only] for f in follow[index])
        limit = limits.own, limits.away
        ahead = Ahead(only, seconds, bytes_, both, *limit, price.own, price.away, cap_s)
        known = Labels(*labels[:4])
        parts = []
        for option, (option_s, state) in enumerate(zip(step.option_s, step.state, strict=True)):
            for fate in step.fates():
                more, *per_byte = step.fate(fate, price.per_kept)
                found = extended(
                    known, ahead, step.time_s, option_s, state, more, step.kept, *per_byte,
                    price.per_state,
                )  # fmt: skip
                count = len(found[0])
                parts.append((*found, np.full(count, option), np.full(count, fate)))
        joined = _Labels(*(np.concatenate(column) for column in zip(*parts, strict=True)))
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
            fates.append(int(labels.fate[last]))
        last = int(labels.parent[last])
    states.reverse()
    by_chain: list[list[int]] = []
    position = 0
    for chain in chains:
        by_chain.append(states[position : position + len(chain) - 1])
        position += len(chain) - 1
    return Way(by_chain, options[::-1], fates[::-1])


def _completions(
    stream: int, steps: list[Step], ends: set[int], price: Price
) -> list[tuple[FloatArray, FloatArray, FloatArray]]:
    """After each step, for each state: the least seconds, the fewest bytes here, and the least
    seconds + price x bytes that must follow.
    """
    free = Price(0.0, 0.0, price.per_kept, price.per_state)
    zero = np.zeros(steps[-1].time_s.shape[1])
    follow = [(zero, zero, zero)] * len(steps)
    for index in range(len(steps) - 2, -1, -1):
        step = steps[index + 1]
        weights = (
            step.scalar(free),
            step.least_bytes(price.per_kept, price.per_state),
            step.scalar(price),
        )
        last = index + 1 in ends
        seconds, own, both = (
            weight[:, stream] + later[stream] if last else (weight + later[None, :]).min(axis=1)
            for weight, later in zip(weights, follow[index + 1], strict=True)
        )
        follow[index] = (seconds, own, both)
    return follow


_ROUNDS = 40  # halvings of the Lagrangian multiplier
_RATIOS = 5  # halvings of the price of bytes elsewhere over that of bytes here
_HOPELESS = 1e6  # times the fastest: where the price of memory ends the search for one that fits


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
        self.prices = [Price(0.0, 0.0, *self.scale) for _ in self.fixed]

    def run(self) -> Found | None:
        """The fastest that fits, proven within the tolerance."""
        if not len(self.streams):
            return None
        self._by_price()
        for stream in self.streams[np.argsort(self.bounds[self.streams], kind="stable")]:
            # A bound this high means that not even the smallest mapping fits.
            cap = min(self._cap_s, _HOPELESS * self.fastest_s)
            if self.best is not None:
                cap = self.best.cost.time_s * (1 - self.tolerance)
            if self.bounds[stream] >= cap * (1 - 1e-12):
                break
            start = float(self.paths.stream_s[stream]), float(self.fixed[stream])
            way = solve_labels(
                self.paths.chains, int(stream), start, self.limits, cap, self.prices[int(stream)]
            )
            if way is not None:
                self._offer(int(stream), way, self.paths.cost(int(stream), way))
        return self.best

    def _open(self) -> IntArray:
        """Stream layouts that may still have the fastest mapping."""
        least = self._cap_s if self.best is None else self.best.cost.time_s
        return np.asarray(self.streams[self.bounds[self.streams] < least])

    def _offer(self, stream: int, way: Way, cost: BlockCost) -> None:
        least = self._cap_s if self.best is None else self.best.cost.time_s
        if cost.time_s < least:
            self.best = Found(stream, way, cost)

    def _by_price(self) -> None:
        """Search the prices of bytes here and elsewhere.

        A byte elsewhere is worth between nothing and what a byte here is: at that price leaving a
        tensor elsewhere saves nothing.
        """
        if not self._bisect(0.0):
            return
        self._bisect(1.0)
        low, high = 0.0, 1.0
        for _ in range(_RATIOS):
            ratio = 0.5 * (low + high)
            if self._bisect(ratio):
                low = ratio
            else:
                high = ratio

    def _bisect(self, ratio: float) -> bool:
        """Search the price of bytes here; whether too many went elsewhere on the way."""
        low, high = 0.0, None
        limit = self.limits.own
        price = 1e-3 / limit
        overflow = False
        for _ in range(_ROUNDS):
            if not len(self._open()):
                break
            own_fits, away_fits = self._fits_at(Price(price, ratio * price, *self.scale))
            overflow |= own_fits and not away_fits
            if own_fits:
                high = price
                price = 0.5 * (low + price)
            else:
                low = price
                price = price * 4.0 if high is None else 0.5 * (price + high)
            if high is not None and high - low < 1e-3 * high:
                break
            if high is None and price * limit > _HOPELESS * self.fastest_s:
                break
        return overflow

    def _fits_at(self, price: Price) -> tuple[bool, bool]:
        """Whether one of the best mappings at this price fits here, and whether all of those fit
        elsewhere; raises the bounds.
        """
        paths, streams, limits = self.paths, self._open(), self.limits
        least, ways = paths.least(price, streams)
        values = least + price.own * self.fixed[streams]
        dual = values - price.own * limits.own - price.away * limits.away
        for row in np.flatnonzero(dual > self.bounds[streams]):
            self.bounds[streams[row]] = dual[row]
            self.prices[int(streams[row])] = price
        own_fits, away_fits = False, True
        for row in np.argsort(values, kind="stable")[:4]:
            stream = streams[row]
            way = paths.recover(int(stream), price, ways, int(row))
            cost = paths.cost(int(stream), way)
            if paths.bytes(int(stream), cost, self.layers, self.in_flight) > limits.own:
                continue
            own_fits = True
            if self.scale[0] * cost.away_bytes > limits.away:
                away_fits = False
            else:
                self._offer(int(stream), way, cost)
        return own_fits, away_fits
