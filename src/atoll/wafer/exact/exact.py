"""The exact part: the best block mapping on a rectangle of dies under a memory limit, proven.

Given the stream's layout, a block falls into chains of operators. A mapping picks a code for each
operator, a home for each weight, and a fate for each saved tensor (keep, again, offload). Seconds
and bytes add up along a chain, step by step (`paths.py`).

Without a limit this is a shortest path for each stream layout. With one it is a
shortest path with resources: Lagrangian bounds first, then labels (`hunt.py`). The
result is optimal over all mappings of a block of these tables; `tests/wafer` holds it against brute
force.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property

import numpy as np

from atoll.arrays import FloatArray
from atoll.wafer.costs.tables import Tables
from atoll.wafer.encoding.genes import SEARCHED_HOMES, Away, Solved
from atoll.wafer.exact.hunt import CandidatePath, LimitedSearch, MemoryLimits
from atoll.wafer.exact.passes import PassStates
from atoll.wafer.exact.paths import FREE, BlockPaths
from atoll.wafer.exact.refine import GradientCodeRefiner
from atoll.wafer.exact.states import DecoupledBound, Rules, SharedStates, weight_gradient_costs, memory_price

PAIRED = 16  # codes of an operator: with no more, seconds are bounded over all pairs of them


class Exact:
    """Solves the block of one set of tables for any number of layers, microbatches and bytes."""

    def __init__(
        self,
        tables: Tables,
        homes: Sequence[str] = SEARCHED_HOMES,
        *,
        recompute: bool = True,
        volume_only: bool = False,
        tolerance: float = 0.0,
        passes: bool = False,
    ) -> None:
        """`tolerance`: stop where no mapping can be faster by more than this share.

        `passes`: the gradient passes have codes of their own: codes are shared in the exact part,
        gradient codes are refined afterwards, and the bounds are those of the passes taken apart
        (of seconds alone: of pairs of codes, where there are few).
        """
        self.tables = tables
        self.tolerance = tolerance
        self.away: Away | None = None
        self._offloading: dict[Away, Exact] = {}
        self._fewest_bytes: dict[tuple[int, int, bool], FloatArray] = {}
        """Bytes of so many layers and microbatches in flight, without somewhere else or with it."""
        self.states = SharedStates(tables, Rules(tuple(homes), recompute, volume_only))
        codes = tables.stream.codes
        share = np.array([tables.stream_share(code) for code in codes])
        self.paths = BlockPaths(
            self.states.chains,
            np.array([tables.stream_s(code) for code in codes]),
            share * tables.setting.held_bytes(tables.block),
            np.array([tables.buffer_bytes(code) for code in codes]),
        )
        self._separate_passes = passes and not volume_only
        self._refiner = GradientCodeRefiner(self.states, tables) if self._separate_passes else None

    def with_away(self, away: Away) -> Exact:
        """The same, for a stage that may leave tensors in the memory of another."""
        if away not in self._offloading:
            other = copy(self)
            other.away, other._decoupled = away, self._decoupled
            other.paths = replace(self.paths, chains=self.states.offloading_chains(away))
            self._offloading[away] = other
        return self._offloading[away]

    @cached_property
    def _decoupled(self) -> DecoupledBound | None:
        if not self._separate_passes:
            return None
        # Of the paths without somewhere else, which are those of the states.
        paths = replace(self.paths, chains=self.states.chains)
        return DecoupledBound.from_states(self.states, paths, weight_gradient_costs(self.tables))

    # -- without a limit -----------------------------------------------------------------------

    @cached_property
    def fastest_s(self) -> FloatArray:
        """Seconds of the fastest way for every stream layout, whatever memory it takes."""
        return self.paths.least_costs(FREE)[0]

    @cached_property
    def bound_s(self) -> float:
        """No mapping of the whole encoding of the block is faster."""
        if self._decoupled is None:
            return float(self.fastest_s.min())
        units = (node for chain in self.tables.nodes for node in chain)
        if max(len(node.index) for node in units) > PAIRED:
            return self._decoupled.bound_s
        states = PassStates(self.tables, self.states.rules, free=True)
        return float(replace(self.paths, chains=states.chains).least_costs(FREE)[0].min())

    @property
    def but_weight_s(self) -> float:
        """No mapping of the whole encoding of the block is faster without its weight passes."""
        return 0.0 if self._decoupled is None else self._decoupled.but_weight_s

    @property
    def fastest_bytes(self) -> tuple[float, float]:
        """States of a layer that takes `bound_s`, and what it keeps of a microbatch."""
        if self._decoupled is not None:
            return self._decoupled.fastest_bytes
        return self._fastest_path.cost.state_bytes, self._fastest_path.cost.kept_bytes

    def priced_s(self, price: float, in_flight: int, layers: int, *, offload: bool) -> float:
        """As `Decoupled.priced_s`, with shared codes where the encoding has no others."""
        if self._decoupled is not None:
            return self._decoupled.priced_s(price, in_flight, layers, offload=offload)
        least = self.paths.least_costs(memory_price(price, in_flight, layers, offload=offload))[0]
        return float((least + price * in_flight * self.paths.stream_saved_bytes).min())

    # -- with a limit --------------------------------------------------------------------------

    def roomy(self, layers: int, in_flight: int, limit_bytes: float) -> bool:
        """Whether the fastest mapping fits."""
        found = self._fastest_path
        return self.paths.stage_bytes(found.stream, found.cost, layers, in_flight) <= limit_bytes

    def solve(
        self, layers: int, in_flight: int, limit_bytes: float, away_bytes: float = 0.0,
        cap_s: float = np.inf,
    ) -> Solved | None:  # fmt: skip
        """The fastest mapping whose stage of `layers` layers fits; None if none does, or none whose
        layer, before gradient passes get codes of their own, takes less than `cap_s`.

        `away_bytes`: what a die may leave elsewhere, where the stage has somewhere to leave it.
        """
        if self.roomy(layers, in_flight, limit_bytes):
            return self.unlimited
        limits = MemoryLimits(limit_bytes, away_bytes)
        key = layers, in_flight, self.away is None
        if key not in self._fewest_bytes:
            self._fewest_bytes[key] = self.paths.fewest_bytes(float(layers * in_flight), float(layers))
        hunt = LimitedSearch(
            self.paths, layers, in_flight, limits, self.fastest_s, self._fewest_bytes[key],
            self.tolerance, cap_s,
        )  # fmt: skip
        best = hunt.run()
        if best is None:
            return None
        proven = best.cost.time_s * (1 - self.tolerance)
        if self._decoupled is not None:
            proven = min(proven, self._decoupled_bound_s(hunt, limits))
        return self._solved(best, proven)

    def _decoupled_bound_s(self, hunt: LimitedSearch, limits: MemoryLimits) -> float:
        """The bound of the passes taken apart at the best prices of memory of the hunt."""
        assert self._decoupled is not None
        bounds = np.full(len(hunt.fixed_bytes), self.bound_s)
        order = hunt.fitting_streams[np.argsort(hunt.bounds_s[hunt.fitting_streams], kind="stable")]
        for price in dict.fromkeys(hunt.bound_price(int(stream)) for stream in order[:8]):
            least = self._decoupled.least_costs(price, away=self.away is not None)
            dual = least + price.local_s_per_byte * (hunt.fixed_bytes - limits.local_bytes) - price.offload_s_per_byte * limits.offload_bytes
            bounds = np.maximum(bounds, dual)
        return float(bounds[hunt.fitting_streams].min())

    @cached_property
    def unlimited(self) -> Solved:
        """The fastest mapping, whatever memory it takes."""
        return self._solved(self._fastest_path, self.bound_s)

    @cached_property
    def _fastest_path(self) -> CandidatePath:
        fastest = int(self.fastest_s.argmin())
        way = self.paths.fastest_path(fastest)
        return CandidatePath(fastest, way, self.paths.path_cost(fastest, way))

    def _solved(self, found: CandidatePath, bound_s: float) -> Solved:
        genes, cost = self.states.genes(found.stream, found.path), found.cost
        if self._refiner is not None:
            genes, cost = self._refiner.refine(found.stream, found.path, genes, cost, self.away)
        return Solved(genes, cost, min(bound_s, cost.time_s))
