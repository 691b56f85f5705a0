"""The exact part: the best block mapping on a rectangle of dies under a memory limit, proven.

Given the stream's layout, a block falls into chains of operators. A mapping picks a code for each
operator, a home for each weight, and keep or run-again for each saved tensor. Seconds and bytes
both add up along a chain:

    nodes   compute of the code        + seconds and state bytes of the home
    edges   re-sharding (code to code) + (keep: bytes of every microbatch in flight)
                                       or (again: the producer's seconds, bytes of one microbatch)

Without a limit this is a shortest path for each stream layout. With one it is a shortest path with
one resource: a Lagrangian bound first, then labels (seconds, bytes) along the path, of which only
those survive that no other beats in both, that can still fit, and that can still beat the best
known. The result is optimal over the whole encoding of a block; `tests/wafer` holds it against
brute force.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from atoll.wafer import block_kernels as kernels
from atoll.wafer.genes import BlockCost, BlockMapping, Solved
from atoll.wafer.labels import undominated
from atoll.wafer.tables import HOMES, SEARCHED_HOMES, EdgeTable, Nodes, Tables

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

_ROUNDS = 40  # halvings of the Lagrangian multiplier
_HOPELESS = 1e6  # times the fastest: where the price of memory ends the search for one that fits


@dataclass(frozen=True, eq=False)
class _Step:
    """Into one node: edge and node options of every pair of codes."""

    time_s: FloatArray  # (from, to) without options
    kept: FloatArray
    again_s: FloatArray
    droppable: bool
    home_s: FloatArray  # (homes, to)
    state: FloatArray


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
        self._chains = [
            self._steps(tables.chain_nodes(i), tables.chain_edges(i), i, rows)
            for i in range(len(tables.block.chains))
        ]
        codes = tables.stream.codes
        self._stream_s = np.array([tables.stream_s(code) for code in codes])
        share = np.array([tables.stream_share(code) for code in codes])
        # The layer's input and its masks are always kept.
        self._stream_kept = share * (tables.block.stream_bytes + tables.block.mask_bytes)
        self._buffers = np.array([tables.buffer_bytes(code) for code in codes])

    def _steps(
        self, nodes: Sequence[Nodes], edges: Sequence[EdgeTable], chain: int, rows: list[int]
    ) -> list[_Step]:
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
                _Step(
                    edge.time_s + compute, edge.kept_bytes, again,
                    bool(described[i].kept_name), home_s, state,
                )
            )  # fmt: skip
        return steps

    # -- without a limit -----------------------------------------------------------------------

    @cached_property
    def fastest_s(self) -> FloatArray:
        """Seconds of the fastest mapping for every stream layout, whatever memory it takes."""
        return self._stream_s + sum(
            (self._fastest_chain(steps) for steps in self._chains), np.zeros(len(self._stream_s))
        )

    @property
    def bound_s(self) -> float:
        return float(self.fastest_s.min())

    @cached_property
    def free_bound_s(self) -> float:
        """The same if weights cost nothing to hold, sum and update: holds for every home."""
        chains = []
        for steps in self._chains:
            free = [replace(s, home_s=np.zeros_like(s.home_s)) for s in steps]
            chains.append(self._scalar_chain(free, 0.0, 0.0, 0.0)[0])
        return float((self._stream_s + sum(chains, np.zeros(len(self._stream_s)))).min())

    def priced_s(self, price: float, in_flight: int, layers: int) -> float:
        """Least seconds + price x (state + in flight x kept) bytes of a layer: of all mappings.

        What is made again counts once in a stage of at most `layers` layers.
        """
        per_kept, per_state = float(layers * in_flight), float(layers)
        chains = [self._scalar_chain(c, price / layers, per_kept, per_state)[0]
                  for c in self._chains]  # fmt: skip
        stream = self._stream_s + price * in_flight * self._stream_kept
        return float((stream + sum(chains, np.zeros(len(stream)))).min())

    def _fastest_chain(self, steps: list[_Step]) -> FloatArray:
        value, _ = self._scalar_chain(steps, 0.0, 0.0, 0.0)
        return value

    def _scalar_chain(
        self, steps: list[_Step], price: float, per_kept: float, per_state: float
    ) -> tuple[FloatArray, list[IntArray]]:
        """Least seconds + price x bytes of a chain for every stream layout; the way there.

        Bytes are those of the stage: `per_kept` of them for each kept byte of a layer and
        microbatch, `per_state` for each byte of state.
        """
        reach: FloatArray | None = None
        choices: list[IntArray] = []
        for step in steps:
            weight = self._scalar(step, price, per_kept, per_state)
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

    @staticmethod
    def _scalar(step: _Step, price: float, per_kept: float, per_state: float) -> FloatArray:
        edge = step.time_s
        if step.droppable:
            keep = price * per_kept * step.kept
            edge = edge + np.minimum(keep, step.again_s + price * step.kept)
        node = (step.home_s + price * per_state * step.state).min(axis=0)
        return np.ascontiguousarray(edge + node[None, :])

    # -- one way through -----------------------------------------------------------------------

    def _recover(
        self,
        stream: int,
        price: float,
        per_kept: float,
        per_state: float,
        ways: list[list[IntArray]] | None = None,
    ) -> tuple[list[list[int]], list[int], list[bool]]:
        """Codes by chain, homes by operator and keeps by edge of the scalar optimum.

        `ways` are the choices of `_scalar_chain` where they are known already.
        """
        if ways is None:
            ways = [self._scalar_chain(c, price, per_kept, per_state)[1] for c in self._chains]
        codes: list[list[int]] = []
        homes: list[int] = []
        keeps: list[bool] = []
        for steps, choices in zip(self._chains, ways, strict=True):
            path = [stream]
            for choice in reversed(choices):
                path.insert(0, int(choice[stream, path[0]]))
            codes.append(path[:-1])
            before = stream
            for step, here in zip(steps, path, strict=True):
                if step.droppable:
                    kept = step.kept[before, here]
                    keep_cost = price * per_kept * kept
                    keeps.append(bool(keep_cost <= step.again_s[before, here] + price * kept))
                if step is not steps[-1]:
                    cost = step.home_s[:, here] + price * per_state * step.state[:, here]
                    homes.append(int(cost.argmin()))
                before = here
        return codes, homes, keeps

    def _cost(
        self, stream: int, codes: list[list[int]], homes: Sequence[int], keeps: Sequence[bool]
    ) -> BlockCost:
        time = float(self._stream_s[stream])
        state, kept, rebuilt = 0.0, float(self._stream_kept[stream]), 0.0
        home, keep = iter(homes), iter(keeps)
        for steps, path in zip(self._chains, codes, strict=True):
            before = stream
            for step, here in zip(steps, [*path, stream], strict=True):
                time += float(step.time_s[before, here])
                if step.droppable:
                    held = float(step.kept[before, here])
                    if next(keep):
                        kept += held
                    else:
                        rebuilt += held
                        time += float(step.again_s[before, here])
                if step is not steps[-1]:
                    h = next(home)
                    time += float(step.home_s[h, here])
                    state += float(step.state[h, here])
                before = here
        return BlockCost(time, state, kept, rebuilt)

    def _named(
        self, stream: int, codes: list[list[int]], homes: Sequence[int], keeps: Sequence[bool]
    ) -> BlockMapping:
        named = [
            nodes.codes[i]
            for chain, path in zip(self.tables.nodes, codes, strict=True)
            for nodes, i in zip(chain, path, strict=True)
        ]
        return BlockMapping(
            self.tables.stream.codes[stream],
            tuple(named),
            tuple(self.homes[h] for h in homes),
            tuple(keeps),
        )

    def price(self, genes: BlockMapping) -> BlockCost:
        """What one mapping of these tables costs."""
        pairs = zip(self._all_nodes, genes.codes, strict=True)
        index = [nodes.index[code] for nodes, code in pairs]
        codes: list[list[int]] = []
        for chain in self.tables.nodes:
            codes.append(index[: len(chain)])
            index = index[len(chain) :]
        homes = [
            self.homes.index(home) if nodes.parameters.any() else 0
            for nodes, home in zip(self._all_nodes, genes.homes, strict=True)
        ]
        return self._cost(self.tables.stream.index[genes.stream], codes, homes, genes.keep)

    @property
    def _all_nodes(self) -> list[Nodes]:
        return [nodes for chain in self.tables.nodes for nodes in chain]

    # -- with a limit --------------------------------------------------------------------------

    def solve(self, layers: int, in_flight: int, limit_bytes: float) -> Solved | None:
        """The fastest mapping whose stage of `layers` layers fits; None if none does."""
        fastest, found, cost = self._unlimited
        if self._stage_bytes(fastest, cost, layers, in_flight) <= limit_bytes:
            return Solved(self._named(fastest, *found), cost, cost.time_s)
        return self._constrained(layers, in_flight, limit_bytes)

    @cached_property
    def _unlimited(self) -> tuple[int, tuple[list[list[int]], list[int], list[bool]], BlockCost]:
        fastest = int(self.fastest_s.argmin())
        found = self._recover(fastest, 0.0, 0.0, 0.0)
        return fastest, found, self._cost(fastest, *found)

    def _stage_bytes(self, stream: int, cost: BlockCost, layers: int, in_flight: int) -> float:
        return cost.memory_bytes(layers, in_flight) + float(self._buffers[stream])

    def _constrained(self, layers: int, in_flight: int, limit: float) -> Solved | None:
        per_kept, per_state = float(layers * in_flight), float(layers)
        fixed = per_kept * self._stream_kept + self._buffers
        streams = np.flatnonzero(fixed <= limit)
        if not len(streams):
            return None
        best: tuple[float, int, list[list[int]], list[int], list[bool], BlockCost] | None = None
        bounds = np.full(len(fixed), np.inf)
        bounds[streams] = self.fastest_s[streams]
        prices = np.zeros(len(fixed))
        low, high = 0.0, None
        price = 1e-3 / limit
        for _ in range(_ROUNDS):
            solved = [self._scalar_chain(c, price, per_kept, per_state) for c in self._chains]
            ways = [choices for _, choices in solved]
            values = self._stream_s + price * fixed + sum(v for v, _ in solved)
            dual = (values - price * limit)[streams]
            prices[streams] = np.where(dual > bounds[streams], price, prices[streams])
            bounds[streams] = np.maximum(bounds[streams], dual)
            fits = False
            order = streams[np.argsort(values[streams], kind="stable")][:4]
            for stream in order:
                found = self._recover(int(stream), price, per_kept, per_state, ways)
                cost = self._cost(int(stream), *found)
                if self._stage_bytes(int(stream), cost, layers, in_flight) <= limit:
                    fits = True
                    if best is None or cost.time_s < best[0]:
                        best = (cost.time_s, int(stream), *found, cost)
            if fits:
                high = price
                price = 0.5 * (low + price)
            else:
                low = price
                price = price * 4.0 if high is None else 0.5 * (price + high)
            if high is not None and high - low < 1e-3 * high:
                break
            if high is None and price * limit > _HOPELESS * self.bound_s:
                break
        for stream in streams[np.argsort(bounds[streams], kind="stable")]:
            # A bound this high means that not even the smallest mapping fits.
            cap = _HOPELESS * self.bound_s if best is None else best[0] * (1 - self.tolerance)
            if bounds[stream] >= cap * (1 - 1e-12):
                break
            found_labels = self._labels(
                int(stream), layers, in_flight, limit, cap, float(prices[stream])
            )
            if found_labels is not None:
                cost = self._cost(int(stream), *found_labels)
                if best is None or cost.time_s < best[0]:
                    best = (cost.time_s, int(stream), *found_labels, cost)
        if best is None:
            return None
        time_s, stream, codes, homes, keeps, cost = best
        proven = time_s * (1 - self.tolerance)
        return Solved(self._named(stream, codes, homes, keeps), cost, proven)

    def _labels(
        self, stream: int, layers: int, in_flight: int, limit: float, cap: float, price: float
    ) -> tuple[list[list[int]], list[int], list[bool]] | None:
        """Exact for one stream layout: labels along all chains, strung together at the stream."""
        per_kept, per_state = float(layers * in_flight), float(layers)
        steps = [step for chain in self._chains for step in chain]
        ends = np.cumsum([len(chain) for chain in self._chains]) - 1
        left_s, left_bytes, left_both = self._completions(
            stream, steps, ends, per_kept, per_state, price
        )
        start = per_kept * float(self._stream_kept[stream]) + float(self._buffers[stream])
        # A label: seconds, bytes, code, parent, home, keep; one table a step.
        time = np.array([float(self._stream_s[stream])])
        held = np.array([start])
        at = np.array([stream])
        history: list[tuple[IntArray, IntArray, IntArray, NDArray[np.bool_]]] = []
        for index, step in enumerate(steps):
            only = np.array([stream]) if index in ends else np.arange(step.time_s.shape[1])
            parts = []
            for home in range(step.home_s.shape[0]):
                for keep in (True, False) if step.droppable else (True,):
                    edge_s = step.time_s[np.ix_(at, only)] + step.home_s[home, only][None, :]
                    kept = step.kept[np.ix_(at, only)]
                    state = per_state * step.state[home, only][None, :]
                    if not step.droppable:
                        bytes_ = np.zeros_like(edge_s) + state
                    elif keep:
                        bytes_ = per_kept * kept + state
                    else:
                        edge_s = edge_s + step.again_s[np.ix_(at, only)]
                        bytes_ = kept + state
                    t = time[:, None] + edge_s
                    m = held[:, None] + bytes_
                    good = (
                        (t + left_s[index][only][None, :] < cap)
                        & (m + left_bytes[index][only][None, :] <= limit)
                        & (t + price * (m - limit) + left_both[index][only][None, :] < cap)
                    )
                    rows, columns = np.nonzero(good)
                    parts.append(
                        (t[rows, columns], m[rows, columns], only[columns], rows,
                         np.full(len(rows), home), np.full(len(rows), keep, np.bool_))
                    )  # fmt: skip
            joined = [np.concatenate(column) for column in zip(*parts, strict=True)]
            order = undominated(joined[0], joined[1], joined[2])
            if not len(order):
                return None
            time, held, at = joined[0][order], joined[1][order], joined[2][order]
            history.append((at, joined[3][order], joined[4][order], joined[5][order]))
        last = int(time.argmin())
        return self._walk_back(history, steps, ends, last)

    def _walk_back(
        self,
        history: list[tuple[IntArray, IntArray, IntArray, NDArray[np.bool_]]],
        steps: list[_Step],
        ends: IntArray,
        last: int,
    ) -> tuple[list[list[int]], list[int], list[bool]]:
        codes: list[int] = []
        homes: list[int] = []
        keeps: list[bool] = []
        for index in reversed(range(len(steps))):
            at, parent, home, keep = history[index]
            if index not in ends:
                codes.append(int(at[last]))
                homes.append(int(home[last]))
            if steps[index].droppable:
                keeps.append(bool(keep[last]))
            last = int(parent[last])
        codes.reverse()
        by_chain: list[list[int]] = []
        position = 0
        for chain in self._chains:
            by_chain.append(codes[position : position + len(chain) - 1])
            position += len(chain) - 1
        return by_chain, homes[::-1], keeps[::-1]

    def _completions(
        self, stream: int, steps: list[_Step], ends: IntArray, per_kept: float, per_state: float,
        price: float,
    ) -> tuple[list[FloatArray], list[FloatArray], list[FloatArray]]:  # fmt: skip
        """After each step, for each code: the least seconds, the least bytes, and the least seconds
        + price x bytes that must follow.
        """
        both: list[FloatArray] = [np.zeros(0)] * len(steps)
        seconds: list[FloatArray] = [np.zeros(0)] * len(steps)
        bytes_: list[FloatArray] = [np.zeros(0)] * len(steps)
        codes = steps[-1].time_s.shape[1]
        seconds[-1], bytes_[-1], both[-1] = np.zeros(codes), np.zeros(codes), np.zeros(codes)
        for index in range(len(steps) - 2, -1, -1):
            step = steps[index + 1]
            node_s, node_b = step.home_s.min(axis=0), per_state * step.state.min(axis=0)
            edge_b = step.kept if step.droppable else np.zeros_like(step.kept)
            all_codes = np.arange(step.time_s.shape[1])
            only = np.array([stream]) if index + 1 in ends else all_codes
            follow_s = step.time_s[:, only] + (node_s + seconds[index + 1])[only][None, :]
            follow_b = edge_b[:, only] + (node_b + bytes_[index + 1])[only][None, :]
            seconds[index], bytes_[index] = follow_s.min(axis=1), follow_b.min(axis=1)
            scalar = self._scalar(step, price, per_kept, per_state)
            both[index] = (scalar[:, only] + both[index + 1][only][None, :]).min(axis=1)
        return seconds, bytes_, both
