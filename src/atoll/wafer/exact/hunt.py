"""The fastest way through a block within limits of memory.

First prices of memory: each gives a Lagrangian bound for every stream layout, and mappings that may
fit. Then labels for every stream layout whose bound is below the best mapping found.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atoll.arrays import FloatArray
from atoll.wafer.encoding.genes import BlockCost
from atoll.wafer.exact.labels import Limits, solve_labels
from atoll.wafer.exact.paths import Paths
from atoll.wafer.exact.steps import Price, Way

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
        tolerance: float,
    ) -> None:  # fmt: skip
        self.paths, self.limits, self.tolerance = paths, limits, tolerance
        self.layers, self.in_flight = layers, in_flight
        self.scale = (float(layers * in_flight), float(layers))
        self.fixed = self.scale[0] * paths.stream_kept + paths.buffers
        fewest = self.fixed + paths.fewest_bytes(self.scale[1])
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
            cap = _HOPELESS * self.fastest_s
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

    def _offer(self, stream: int, way: Way, cost: BlockCost) -> None:
        if self.best is None or cost.time_s < self.best.cost.time_s:
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
        paths, streams, limits = self.paths, self.streams, self.limits
        least, ways = paths.least(price)
        values = least + price.own * self.fixed
        dual = values - price.own * limits.own - price.away * limits.away
        for stream in streams[dual[streams] > self.bounds[streams]]:
            self.bounds[stream] = dual[stream]
            self.prices[int(stream)] = price
        own_fits, away_fits = False, True
        for stream in streams[np.argsort(values[streams], kind="stable")][:4]:
            way = paths.recover(int(stream), price, ways)
            cost = paths.cost(int(stream), way)
            if paths.bytes(int(stream), cost, self.layers, self.in_flight) > limits.own:
                continue
            own_fits = True
            if self.scale[0] * cost.away_bytes > limits.away:
                away_fits = False
            else:
                self._offer(int(stream), way, cost)
        return own_fits, away_fits
