"""The exact part: the best block mapping on a rectangle of dies under a memory limit, proven.

Given the stream's layout, a block falls into chains of operators. A mapping picks a code for each
operator, a home for each weight, and a fate for each saved tensor (keep, again, offload). Seconds
and bytes add up along a chain, step by step (`steps.py`).

Without a limit this is a shortest path for each stream layout. With one it is a shortest path with
resources: a Lagrangian bound first, then labels along the path (`labels.py`). The result is optimal
over all mappings of a block of these tables; `tests/wafer` holds it against brute force.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from atoll.wafer import block_kernels as kernels
from atoll.wafer.genes import AGAIN, KEEP, Away, BlockCost, BlockMapping, Solved
from atoll.wafer.labels import Limits, Start, solve_labels
from atoll.wafer.steps import Price, Step, Way, taken
from atoll.wafer.tables import HOMES, SEARCHED_HOMES, EdgeTable, Nodes, Tables, exposed

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_ROUNDS = 40  # halvings of the Lagrangian multiplier
_RATIOS = 5  # halvings of the price of bytes elsewhere over that of bytes here
_HOPELESS = 1e6  # times the fastest: where the price of memory ends the search for one that fits
_FREE = Price(0.0, 0.0, 0.0, 0.0)


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
    ) -> None:
        """`tolerance`: stop where no mapping can be faster by more than this share."""
        self.tables = tables
        self.homes = tuple(homes)
        self.tolerance = tolerance
        self.recompute = recompute
        self.volume_only = volume_only
        rows = [HOMES.index(home) for home in homes]
        self._edges = [tables.chain_edges(i) for i in range(len(tables.block.chains))]
        self._chains = [
            self._steps(tables.chain_nodes(i), edges, i, rows)
            for i, edges in enumerate(self._edges)
        ]
        codes = tables.stream.codes
        self._stream_s = np.array([tables.stream_s(code) for code in codes])
        share = np.array([tables.stream_share(code) for code in codes])
        # The layer's input and its masks are always kept.
        self._stream_kept = share * (tables.block.stream_bytes + tables.block.mask_bytes)
        self._buffers = np.array([tables.buffer_bytes(code) for code in codes])

    def _steps(
        self, nodes: Sequence[Nodes], edges: Sequence[EdgeTable], chain: int, rows: list[int]
    ) -> list[Step]:
        steps = []
        described = self.tables.block.chains[chain].edges
        for i, edge in enumerate(edges):
            node = nodes[i + 1]
            last = i + 1 == len(edges)
            home_s = np.zeros((1, len(node.codes))) if last else node.home_s[rows]
            state = np.zeros((1, len(node.codes))) if last else node.state_bytes[rows]
            if not last and node.unit is not None and not node.unit.parameters:
                home_s, state = home_s[:1], state[:1]
            # Choosing by bytes moved leaves compute out of the count.
            compute = 0.0 if self.volume_only else node.compute_s[None, :]
            again = edge.again_s if self.recompute else np.full_like(edge.again_s, np.inf)
            steps.append(
                Step(
                    edge.time_s + compute, edge.kept_bytes, again, None,
                    bool(described[i].kept_name), home_s[:, None, :], state[:, None, :],
                )
            )  # fmt: skip
        return steps

    def with_away(self, away: Away) -> Exact:
        """The same, for a stage that may leave tensors in the memory of another."""
        other = copy(self)
        other._chains = []
        for i, (steps, edges) in enumerate(zip(self._chains, self._edges, strict=True)):
            nodes = self.tables.chain_nodes(i)[1:]
            other._chains.append(
                [
                    replace(step, away_s=away_s(edge, node, away))
                    for step, edge, node in zip(steps, edges, nodes, strict=True)
                ]
            )
        return other

    # -- without a limit -----------------------------------------------------------------------

    @cached_property
    def fastest_s(self) -> FloatArray:
        """Seconds of the fastest mapping for every stream layout, whatever memory it takes."""
        return self._stream_s + sum(
            (self._scalar_chain(steps, _FREE)[0] for steps in self._chains),
            np.zeros(len(self._stream_s)),
        )

    @property
    def bound_s(self) -> float:
        return float(self.fastest_s.min())

    @cached_property
    def free_bound_s(self) -> float:
        """The same if weights cost nothing to hold, sum and update: holds for every home."""
        chains = []
        for steps in self._chains:
            free = [replace(s, option_s=np.zeros_like(s.option_s)) for s in steps]
            chains.append(self._scalar_chain(free, _FREE)[0])
        return float((self._stream_s + sum(chains, np.zeros(len(self._stream_s)))).min())

    @staticmethod
    def _scalar_chain(steps: list[Step], price: Price) -> tuple[FloatArray, list[IntArray]]:
        """Least seconds + price x bytes of a chain for every stream layout; the way there."""
        reach: FloatArray | None = None
        choices: list[IntArray] = []
        for step in steps:
            weight = step.scalar(price)
            if reach is None:
                reach = weight
                continue
            product = np.empty((reach.shape[0], weight.shape[1]))
            choice = np.empty(product.shape, np.int64)
            kernels.min_plus(reach, weight, product, choice)
            reach = product
            choices.append(choice)
        assert reach is not None
        return np.ascontiguousarray(np.diagonal(reach)), choices

    # -- one way through -----------------------------------------------------------------------

    def _recover(self, stream: int, price: Price, ways: list[list[IntArray]] | None = None) -> Way:
        """The way of the scalar optimum; `ways` are the choices of `_scalar_chain` if known."""
        if ways is None:
            ways = [self._scalar_chain(c, price)[1] for c in self._chains]
        found = Way([], [], [])
        for steps, choices in zip(self._chains, ways, strict=True):
            path = [stream]
            for choice in reversed(choices):
                path.insert(0, int(choice[stream, path[0]]))
            found.states.append(path[:-1])
            before = stream
            for step, here in zip(steps, path, strict=True):
                option, fate = step.choose(before, here, price)
                if step.droppable:
                    found.fates.append(fate)
                if step is not steps[-1]:
                    found.options.append(option)
                before = here
        return found

    def _cost(self, stream: int, way: Way) -> BlockCost:
        time = float(self._stream_s[stream])
        state, kept, rebuilt, away = 0.0, float(self._stream_kept[stream]), 0.0, 0.0
        for step, before, here, option, fate in taken(way, self._chains, stream):
            time += float(step.time_s[before, here])
            at = 0 if step.option_s.shape[1] == 1 else before
            time += float(step.option_s[option, at, here])
            state += float(step.state[option, at, here])
            if not step.droppable:
                continue
            held = float(step.kept[before, here])
            if fate == KEEP:
                kept += held
            elif fate == AGAIN:
                rebuilt += held
                time += float(step.again_s[before, here])
            else:
                assert step.away_s is not None
                rebuilt += held
                away += held
                time += float(step.away_s[before, here])
        return BlockCost(time, state, kept, rebuilt, away)

    def _named(self, stream: int, way: Way) -> BlockMapping:
        named = [
            nodes.codes[i]
            for chain, path in zip(self.tables.nodes, way.states, strict=True)
            for nodes, i in zip(chain, path, strict=True)
        ]
        return BlockMapping(
            self.tables.stream.codes[stream],
            tuple(named),
            tuple(self.homes[h] for h in way.options),
            tuple(way.fates),
        )

    def price(self, genes: BlockMapping) -> BlockCost:
        """What one mapping of these tables costs."""
        pairs = zip(self._all_nodes, genes.codes, strict=True)
        index = [nodes.index[code] for nodes, code in pairs]
        states: list[list[int]] = []
        for chain in self.tables.nodes:
            states.append(index[: len(chain)])
            index = index[len(chain) :]
        homes = [
            self.homes.index(home) if nodes.parameters.any() else 0
            for nodes, home in zip(self._all_nodes, genes.homes, strict=True)
        ]
        way = Way(states, homes, list(genes.keep))
        return self._cost(self.tables.stream.index[genes.stream], way)

    @property
    def _all_nodes(self) -> list[Nodes]:
        return [nodes for chain in self.tables.nodes for nodes in chain]

    # -- with a limit --------------------------------------------------------------------------

    def solve(
        self, layers: int, in_flight: int, limit_bytes: float, away_bytes: float = 0.0
    ) -> Solved | None:
        """The fastest mapping whose stage of `layers` layers fits; None if none does.

        `away_bytes`: what a die may leave elsewhere, where the stage has somewhere to leave it.
        """
        fastest, found, cost = self._unlimited
        if self._stage_bytes(fastest, cost, layers, in_flight) <= limit_bytes:
            return Solved(self._named(fastest, found), cost, cost.time_s)
        return self._constrained(layers, in_flight, Limits(limit_bytes, away_bytes))

    @cached_property
    def _unlimited(self) -> tuple[int, Way, BlockCost]:
        fastest = int(self.fastest_s.argmin())
        found = self._recover(fastest, _FREE)
        return fastest, found, self._cost(fastest, found)

    def _stage_bytes(self, stream: int, cost: BlockCost, layers: int, in_flight: int) -> float:
        return cost.memory_bytes(layers, in_flight) + float(self._buffers[stream])

    def _constrained(self, layers: int, in_flight: int, limits: Limits) -> Solved | None:
        scale = (float(layers * in_flight), float(layers))
        fixed = scale[0] * self._stream_kept + self._buffers
        streams = np.flatnonzero(fixed <= limits.own)
        if not len(streams):
            return None
        hunt = _Hunt(self, layers, in_flight, limits, fixed, streams)
        hunt.by_price()
        best = hunt.best
        for stream in streams[np.argsort(hunt.bounds[streams], kind="stable")]:
            # A bound this high means that not even the smallest mapping fits.
            cap = _HOPELESS * self.bound_s if best is None else best[0] * (1 - self.tolerance)
            if hunt.bounds[stream] >= cap * (1 - 1e-12):
                break
            start = Start(float(self._stream_s[stream]), float(fixed[stream]))
            way = solve_labels(
                self._chains, int(stream), start, limits, cap, hunt.prices[int(stream)]
            )
            if way is not None:
                cost = self._cost(int(stream), way)
                if best is None or cost.time_s < best[0]:
                    best = (cost.time_s, int(stream), way, cost)
        if best is None:
            return None
        time_s, stream, way, cost = best
        return Solved(self._named(stream, way), cost, time_s * (1 - self.tolerance))


class _Hunt:
    """Lagrangian bounds of every stream layout, and the best mapping met on the way."""

    def __init__(
        self, exact: Exact, layers: int, in_flight: int, limits: Limits, fixed: FloatArray,
        streams: IntArray,
    ) -> None:  # fmt: skip
        self.exact, self.limits, self.fixed, self.streams = exact, limits, fixed, streams
        self.layers, self.in_flight = layers, in_flight
        self.scale = (float(layers * in_flight), float(layers))
        self.best: tuple[float, int, Way, BlockCost] | None = None
        self.bounds = np.full(len(fixed), np.inf)
        self.bounds[streams] = exact.fastest_s[streams]
        self.prices = [Price(0.0, 0.0, *self.scale) for _ in fixed]

    def by_price(self) -> None:
        """Search the prices of bytes here and elsewhere.

        A byte elsewhere is worth between nothing and what a byte here is: at that price leaving a
        tensor elsewhere saves nothing.
        """
        if not self.bisect(0.0):
            return
        self.bisect(1.0)
        low, high = 0.0, 1.0
        for _ in range(_RATIOS):
            ratio = 0.5 * (low + high)
            if self.bisect(ratio):
                low = ratio
            else:
                high = ratio

    def bisect(self, ratio: float) -> bool:
        """Search the price of bytes here; whether too many went elsewhere on the way."""
        low, high = 0.0, None
        limit = self.limits.own
        price = 1e-3 / limit
        overflow = False
        for _ in range(_ROUNDS):
            own_fits, away_fits = self.fits_at(Price(price, ratio * price, *self.scale))
            overflow |= own_fits and not away_fits
            if own_fits:
                high = price
                price = 0.5 * (low + price)
            else:
                low = price
                price = price * 4.0 if high is None else 0.5 * (price + high)
            if high is not None and high - low < 1e-3 * high:
                break
            if high is None and price * limit > _HOPELESS * self.exact.bound_s:
                break
        return overflow

    def fits_at(self, price: Price) -> tuple[bool, bool]:
        """Whether one of the best mappings at this price fits here, and whether all of those fit
        elsewhere; raises the bounds.
        """
        exact, streams, limits = self.exact, self.streams, self.limits
        solved = [exact._scalar_chain(c, price) for c in exact._chains]
        ways = [choices for _, choices in solved]
        values = exact._stream_s + price.own * self.fixed + sum(v for v, _ in solved)
        dual = values - price.own * limits.own - price.away * limits.away
        for stream in streams:
            if dual[stream] > self.bounds[stream]:
                self.bounds[stream] = dual[stream]
                self.prices[int(stream)] = price
        own_fits, away_fits = False, True
        for stream in streams[np.argsort(values[streams], kind="stable")][:4]:
            way = exact._recover(int(stream), price, ways)
            cost = exact._cost(int(stream), way)
            own = exact._stage_bytes(int(stream), cost, self.layers, self.in_flight)
            if own > limits.own:
                continue
            own_fits = True
            if self.scale[0] * cost.away_bytes > limits.away:
                away_fits = False
            elif self.best is None or cost.time_s < self.best[0]:
                self.best = (cost.time_s, int(stream), way, cost)
        return own_fits, away_fits


def away_s(edge: EdgeTable, node: Nodes, away: Away) -> FloatArray:
    """What leaving a tensor elsewhere adds: out beside the consumer's forward pass with its gather,
    back beside its data pass with its reduction.
    """
    journey = edge.kept_bytes / away.bandwidth_Bps + away.latency_s
    total = np.zeros_like(journey)
    for links, compute in ((edge.gather_s, node.forward_s), (edge.scatter_s, node.data_s)):
        behind = (compute[None, :], node.streams[None, :])
        total += exposed(links + journey, *behind) - exposed(links, *behind)
    return total
