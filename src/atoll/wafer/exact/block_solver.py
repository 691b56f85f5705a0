"""The exact part: the best block mapping on a rectangle of dies under a memory limit, proven.

Given the stream's layout, a block falls into chains of operators. A mapping picks a code for each
operator, a home for each weight, and a fate for each saved tensor (keep, again, offload). Seconds
and bytes add up along a chain, step by step (`paths`).

Without a limit this is a shortest path for each stream layout. With a limit it is a shortest path
with resources: Lagrangian bounds first, then labels (`LimitedSearch`). The result is optimal over
all mappings of the tables' block; `tests/wafer` compares it with brute force.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property

import numpy as np

from atoll.base.arrays import Floats
from atoll.wafer.costs.tables import BlockTables
from atoll.wafer.encoding.block_parts import SEARCHED_HOMES, HelperPath, SolvedBlock
from atoll.wafer.exact.gradient_codes import GradientCodeRefiner
from atoll.wafer.exact.limited_search import CandidatePath, LimitedSearch, MemoryLimits
from atoll.wafer.exact.pass_states import PassStates
from atoll.wafer.exact.paths import FREE
from atoll.wafer.exact.shared_states import (
    DecoupledBound,
    Rules,
    SharedStates,
    memory_price,
    weight_gradient_costs,
)

PAIRED = 16  # codes per operator up to which seconds are bounded over all pairs of codes


class BlockSolver:
    """Solves the block of one set of tables for any number of layers, microbatches and bytes."""

    def __init__(
        self,
        tables: BlockTables,
        homes: Sequence[str] = SEARCHED_HOMES,
        *,
        recompute: bool = True,
        volume_only: bool = False,
        tolerance: float = 0.0,
        passes: bool = False,
    ) -> None:
        """`tolerance`: stop if no mapping can be faster by more than this share.

        `passes`: gradient passes may have their own codes. Mappings are solved with shared codes,
        gradient codes are refined afterwards, and bounds are those of the decoupled passes (for
        seconds without memory: of pairs of codes, if there are few).
        """
        self.tables = tables
        self.tolerance = tolerance
        self.away: HelperPath | None = None
        self._offloading: dict[HelperPath, BlockSolver] = {}
        self._fewest_bytes: dict[tuple[int, int, bool], Floats] = {}
        """By layers, microbatches in flight and whether nothing can be offloaded."""
        self.states = SharedStates(tables, Rules(tuple(homes), recompute, volume_only))
        self.paths = self.states.paths
        self._separate_passes = passes and not volume_only
        self._refiner = GradientCodeRefiner(self.states, tables) if self._separate_passes else None

    def with_offload(self, away: HelperPath) -> BlockSolver:
        """Return the solver of a stage that may offload tensors to the memory of another stage."""
        if away not in self._offloading:
            offloading = copy(self)
            offloading.away, offloading._decoupled = away, self._decoupled
            offloading.paths = replace(self.paths, chains=self.states.offloading_chains(away))
            self._offloading[away] = offloading
        return self._offloading[away]

    @cached_property
    def _decoupled(self) -> DecoupledBound | None:
        if not self._separate_passes:
            return None
        return DecoupledBound.from_states(self.states, weight_gradient_costs(self.tables))

    # -- without a limit -----------------------------------------------------------------------

    @cached_property
    def fastest_s(self) -> Floats:
        """Seconds of the fastest path for every stream layout, without a memory limit."""
        return self.paths.least_costs(FREE)

    @cached_property
    def bound_s(self) -> float:
        """Lower bound on the seconds of all mappings of the block's encoding."""
        if self._decoupled is None:
            return float(self.fastest_s.min())
        units = (node for chain in self.tables.nodes for node in chain)
        if max(len(node.index) for node in units) > PAIRED:
            return self._decoupled.bound_s
        states = PassStates(self.tables, self.states.rules)
        return float(replace(self.paths, chains=states.chains).least_costs(FREE).min())

    @property
    def but_weight_s(self) -> float:
        """Lower bound on the seconds of all mappings without their weight passes."""
        return 0.0 if self._decoupled is None else self._decoupled.but_weight_s

    @property
    def fastest_bytes(self) -> tuple[float, float]:
        """Bytes of state and bytes kept per microbatch of a layer that takes `bound_s`."""
        if self._decoupled is not None:
            return self._decoupled.fastest_bytes
        return self._fastest.cost.state_bytes, self._fastest.cost.kept_bytes

    def priced_s(self, price: float, in_flight: int, layers: int, *, offload: bool) -> float:
        """As `DecoupledBound.priced_s`, with shared codes if the encoding has no others."""
        if self._decoupled is not None:
            return self._decoupled.priced_s(price, in_flight, layers, offload=offload)
        least = self.paths.least_costs(memory_price(price, in_flight, layers, offload=offload))
        return float((least + price * in_flight * self.paths.stream_saved_bytes).min())

    # -- with a limit --------------------------------------------------------------------------

    def fastest_fits(self, layers: int, in_flight: int, limit_bytes: float) -> bool:
        """Return whether the fastest mapping fits."""
        stage_bytes = self._fastest.cost.memory_bytes(layers, in_flight)
        return stage_bytes + float(self.paths.buffer_bytes[self._fastest.stream]) <= limit_bytes

    def solve(
        self, layers: int, in_flight: int, limit_bytes: float, away_bytes: float = 0.0,
        cap_s: float = np.inf,
    ) -> SolvedBlock | None:  # fmt: skip
        """Return the fastest mapping whose stage of `layers` layers fits; None if none fits, or
        none that takes less than `cap_s` per layer before its gradient codes are refined.

        `away_bytes`: limit of offloaded bytes per die, for a solver made by `with_offload`.
        """
        if self.fastest_fits(layers, in_flight, limit_bytes):
            return self.unlimited
        limits = MemoryLimits(limit_bytes, away_bytes)
        key = layers, in_flight, self.away is None
        if key not in self._fewest_bytes:
            copies = float(layers * in_flight), float(layers)
            self._fewest_bytes[key] = self.paths.fewest_bytes(*copies)
        search = LimitedSearch(
            self.paths, layers, in_flight, limits, self.fastest_s, self._fewest_bytes[key],
            self.tolerance, cap_s,
        )  # fmt: skip
        best = search.run()
        if best is None:
            return None
        proven_s = best.cost.time_s * (1 - self.tolerance)
        if self._decoupled is not None:
            proven_s = min(proven_s, self._decoupled_bound_s(search, limits))
        return self._solved(best, proven_s)

    def _decoupled_bound_s(self, search: LimitedSearch, limits: MemoryLimits) -> float:
        """Return the bound of the decoupled passes at the best memory prices of the search."""
        assert self._decoupled is not None
        bounds = np.full(len(search.fixed_bytes), self.bound_s)
        order = search.ordered_streams()
        for price in dict.fromkeys(search.bound_price(int(stream)) for stream in order[:8]):
            dual = self._decoupled.least_costs(price, away=self.away is not None)
            dual = dual + price.local_s_per_byte * (search.fixed_bytes - limits.local_bytes)
            dual = dual - price.offload_s_per_byte * limits.offload_bytes
            bounds = np.maximum(bounds, dual)
        return float(bounds[search.streams].min())

    @cached_property
    def unlimited(self) -> SolvedBlock:
        """The fastest mapping without a memory limit."""
        return self._solved(self._fastest, self.bound_s)

    @cached_property
    def _fastest(self) -> CandidatePath:
        fastest = int(self.fastest_s.argmin())
        path = self.paths.fastest_path(fastest)
        return CandidatePath(fastest, path, self.paths.path_cost(fastest, path))

    def _solved(self, candidate: CandidatePath, bound_s: float) -> SolvedBlock:
        genes, cost = self.states.block_mapping(candidate.stream, candidate.path), candidate.cost
        if self._refiner is not None:
            path = candidate.stream, candidate.path
            genes, cost = self._refiner.refine(*path, genes, cost, self.away)
        return SolvedBlock(genes, cost, min(bound_s, cost.time_s))
