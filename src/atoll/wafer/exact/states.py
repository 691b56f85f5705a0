"""States of the exact part where all passes of an operator share one code: a state is a code. And
a bound over the whole encoding of a block, gradient passes with codes of their own included: the
passes are taken apart: the fastest forward and the fastest
backward path, each for itself, bytes at a price (Lagrangian). Weight gradients stand with the
forward path: whatever code one has, fetching its input, its products, its sum and the way to the
home's layout together take no less than under the best code. What else couples the passes (fetching
output gradients in other layouts, re-sharding weights for the data pass) costs nothing or more, and
is dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np

from atoll.arrays import BoolArray, FloatArray, IntArray
from atoll.wafer.costs import block_kernels as kernels
from atoll.wafer.costs.homes import GradientTables, home_bytes, home_cost
from atoll.wafer.costs.tables import EdgeTable, Nodes, Setting, Tables, exposed
from atoll.wafer.encoding import role_kernels as roles
from atoll.wafer.encoding.block_parts import Block
from atoll.wafer.encoding.genes import Away, BlockMapping
from atoll.wafer.exact.path_kernels import min_plus
from atoll.wafer.exact.paths import (
    FREE,
    ChainBounds,
    BlockPaths,
    MemoryPrice,
    PathStep,
    BlockPath,
    chain_bounds,
    least_chain_costs,
)


@dataclass(frozen=True)
class Rules:
    """What a solver may use, and what counts."""

    homes: tuple[str, ...]
    recompute: bool = True
    volume_only: bool = False
    """Choose by bytes moved: compute is left out of the count."""


class OperatorTables(Protocol):
    """Tables of a block: by the codes of one shape, or by what stands for several."""

    block: Block
    setting: Setting
    stream: Nodes
    nodes: tuple[tuple[Nodes, ...], ...]
    modes: tuple[bool, ...]

    def chain_nodes(self, chain: int) -> tuple[Nodes, ...]: ...

    def chain_edges(self, chain: int) -> tuple[EdgeTable, ...]: ...


class SharedStates:
    """Steps between codes; an operator's options are the homes of its weight."""

    def __init__(self, tables: OperatorTables, rules: Rules) -> None:
        self.tables, self.rules = tables, rules
        self.edges = [tables.chain_edges(i) for i in range(len(tables.block.chains))]
        self.chains = [self._steps(i) for i in range(len(self.edges))]

    def _steps(self, chain: int) -> list[PathStep]:
        steps = []
        nodes, edges = self.tables.chain_nodes(chain), self.edges[chain]
        described = self.tables.block.chains[chain].edges
        for i, edge in enumerate(edges):
            node = nodes[i + 1]
            each = np.arange(len(node.codes))
            weighted = node.unit is not None and node.unit.parameters > 0
            costs = [
                home_cost(node, home, self.tables.setting, each, each, each)
                for home in (self.rules.homes if weighted else ("external",))
            ]
            home_s, state = (np.stack(column) for column in zip(*costs, strict=True))
            compute = 0.0 if self.rules.volume_only else node.compute_s[None, :]
            again = edge.again_s if self.rules.recompute else np.full_like(edge.again_s, np.inf)
            steps.append(
                PathStep(
                    edge.time_s + compute, edge.kept_bytes, again, None,
                    bool(described[i].kept_name), home_s[:, None, :], state[:, None, :],
                )
            )  # fmt: skip
        return steps

    def offloading_chains(self, away: Away) -> list[list[PathStep]]:
        """The steps of a stage that may leave tensors in the memory of another."""
        found = []
        for i, (steps, edges) in enumerate(zip(self.chains, self.edges, strict=True)):
            nodes = self.tables.chain_nodes(i)[1:]
            found.append(
                [
                    replace(step, away_s=offload_s(edge, node, away))
                    for step, edge, node in zip(steps, edges, nodes, strict=True)
                ]
            )
        return found

    def genes(self, stream: int, way: BlockPath) -> BlockMapping:
        entries = [state for path in way.states for state in path]
        nodes = self._units
        named = tuple(n.codes[e] for n, e in zip(nodes, entries, strict=True))
        ways = tuple(
            (bool(n.streams[e]), self.tables.setting.algorithm)
            for n, e in zip(nodes, entries, strict=True)
        )
        return BlockMapping(
            self.tables.stream.codes[stream], named,
            tuple(self.rules.homes[h] for h in way.options), tuple(way.fates), (),
            ways if len(self.tables.modes) > 1 else (),
        )  # fmt: skip

    @property
    def _units(self) -> Sequence[Nodes]:
        return [nodes for chain in self.tables.nodes for nodes in chain]


def offload_s(edge: EdgeTable, node: Nodes, away: Away) -> FloatArray:
    """What leaving a tensor elsewhere adds: out beside the consumer's forward pass with its gather,
    back beside its data pass with its reduction.
    """
    journey = edge.kept_bytes / away.bandwidth_Bps + away.latency_s
    total = np.zeros_like(journey)
    for links, compute in ((edge.gather_s, node.forward_s), (edge.scatter_s, node.data_s)):
        behind = (compute[None, :], node.streams[None, :])
        total += exposed(links + journey, *behind) - exposed(links, *behind)
    return total


class WeightGradientCosts(NamedTuple):
    """What the code of a weight gradient costs, of a chain and its operator (counted from 1)."""

    to_home_s: Callable[[int, int], FloatArray]
    """By entries of the weight and of the forward pass; once a step."""
    fetch_s: Callable[[int, int], FloatArray]
    """The input gathered from where no digit had it whole, by entries of the weight pass."""
    sliced: Callable[[Nodes], BoolArray]
    """Entries of an operator that leave none of its output whole on several dies."""


def memory_price(price: float, in_flight: int, layers: int, *, offload: bool) -> MemoryPrice:
    """Of a byte of a layer, in a stage of so many; kept bytes cost nothing with `offload`."""
    per_kept = 0.0 if offload else float(layers * in_flight)
    return MemoryPrice(price / layers, 0.0, per_kept, float(layers))


@dataclass(frozen=True, eq=False)
class DecoupledBound:
    """Steps of the passes taken apart."""

    forward: BlockPaths
    backward: list[list[PathStep]]
    but_weight: BlockPaths
    """`forward` without the products of weight gradients."""
    _costs_by_price: dict[MemoryPrice, FloatArray] = field(default_factory=dict)
    """What `least` found: with tensors elsewhere it is the same for any number in flight."""

    @staticmethod
    def from_states(states: SharedStates, paths: BlockPaths, ways: WeightGradientCosts) -> DecoupledBound:
        tables, rules = states.tables, states.rules
        forward: list[list[PathStep]] = []
        but_weight: list[list[PathStep]] = []
        backward = []
        for chain, (steps, edges) in enumerate(zip(states.chains, states.edges, strict=True)):
            nodes = tables.chain_nodes(chain)
            triples = list(zip(steps, edges, nodes[1:], strict=True))
            backward.append([_backward_step(*triple) for triple in triples])
            for found in (forward, but_weight):
                found.append([_forward_step(*triple) for triple in triples])
            for unit, node in enumerate(nodes[1:], 1):
                if node.unit is None or not node.unit.parameters:
                    continue
                each = np.arange(len(node.codes))
                held = [home_bytes(tables.setting.states, h, node, each, each) for h in rules.homes]
                state = np.stack([weights + g.min() + optimizer for weights, g, optimizer in held])
                cost = ways.to_home_s(chain, unit), ways.fetch_s(chain, unit)
                cut = ways.sliced(nodes[unit - 1])[:, None]
                for found, products in ((forward, True), (but_weight, False)):
                    seconds, late = _weight_gradient_s(node, rules.homes, tables.setting, *cost, products)
                    step = found[-1][unit - 1]
                    found[-1][unit - 1] = replace(
                        step, time_s=step.time_s + np.where(cut, late, 0.0),
                        option_s=seconds[:, None, :], state=state[:, None, :],
                    )  # fmt: skip
        ahead, but = (replace(paths, chains=chains) for chains in (forward, but_weight))
        return DecoupledBound(ahead, backward, but)

    @cached_property
    def but_weight_s(self) -> float:
        """No block takes fewer seconds without its weight passes."""
        return float(self._least_costs(FREE, self.but_weight).min())

    @cached_property
    def bound_s(self) -> float:
        """No block takes fewer seconds."""
        return float(self.least_costs(FREE).min())

    @cached_property
    def fastest_bytes(self) -> tuple[float, float]:
        """States of a layer that takes `bound_s`, and what it keeps of a microbatch."""
        stream = int(self.least_costs(FREE).argmin())
        return self.forward.fastest_bytes(stream)

    def priced_s(self, price: float, in_flight: int, layers: int, *, offload: bool) -> float:
        """Least seconds + price x (state + in flight x kept) bytes of a layer: of all mappings.

        What is made again counts once in a stage of at most `layers` layers. With `offload`, saved
        tensors may lie elsewhere, at no cost.
        """
        least = self.least_costs(memory_price(price, in_flight, layers, offload=offload))
        return float((least + price * in_flight * self.forward.stream_saved_bytes).min())

    def least_costs(self, price: MemoryPrice, *, away: bool = False) -> FloatArray:
        """No block takes fewer seconds + price x bytes, by stream layout; `away`: tensors may wait
        elsewhere, which costs no less than nothing.
        """
        paths = self.forward
        if away:
            chains = [
                [replace(s, away_s=np.zeros_like(s.saved_bytes)) for s in steps] for steps in paths.chains
            ]
            return self._least_costs(price, replace(paths, chains=chains))
        if price not in self._costs_by_price:
            self._costs_by_price[price] = self._least_costs(price, paths)
        return self._costs_by_price[price]

    def _least_costs(self, price: MemoryPrice, paths: BlockPaths) -> FloatArray:
        """The paths forward and back."""
        total: FloatArray = paths.least_costs(price)[0] + self._backward_s
        return total

    @cached_property
    def _backward_s(self) -> FloatArray:
        """Data passes hold nothing, so that bytes have no price for them."""
        total = np.zeros(len(self.forward.stream_s))
        for steps in self.backward:
            total = total + least_chain_costs(steps, FREE)[0]
        return total

    def pass_bounds(self) -> tuple[list[ChainBounds], list[ChainBounds]]:
        """Of every chain forward and back, in seconds."""
        ahead, back = self.forward.chains, self.backward
        return [chain_bounds(c, FREE) for c in ahead], [chain_bounds(c, FREE) for c in back]


def least_block_s(
    tables: Tables, homes: Sequence[str], known_s: FloatArray, ahead: Sequence[ChainBounds],
    back: Sequence[ChainBounds], enough_s: float,
) -> float:  # fmt: skip
    """The least of `Decoupled.least` without a price, at most `enough_s`. Tables are made one after
    the other, since those of many codes are large, and ways are followed no further than needed.

    `known_s`, `ahead` and `back` are no more than what stream layouts, their chains and what
    follows a state take.
    """
    ways = weight_gradient_costs(tables)
    total = known_s.copy()
    for chain, edges in enumerate(c.edges for c in tables.block.chains):
        nodes = tables.chain_nodes(chain)
        for look, forward in ((ahead[chain], True), (back[chain], False)):
            rows = np.flatnonzero(total < enough_s)
            if not len(rows):
                return enough_s
            left_s = (enough_s - total + look.total)[rows, None]
            before, at, reach = tables.stream, rows, np.zeros((0, 0))
            for i in range(1, len(edges) + 1):
                last = i == len(edges)
                to = rows
                if not last:
                    to = np.flatnonzero((look.through[i - 1][rows] < left_s).any(axis=0))
                if not len(at) or not len(to):
                    return enough_s
                here = (chain, i, to)
                source, target = before.only(at), nodes[i].only(to)
                weight = (
                    _forward_s(tables, homes, ways, here, source)
                    if forward
                    else tables.back(edges[i - 1], source, target)[0] + target.data_s
                )
                if last:
                    exact_s = (reach + weight.T).min(axis=1)
                    break
                if i > 1:
                    further = np.empty((len(rows), len(to)))
                    min_plus(reach, np.ascontiguousarray(weight), further)
                    weight = further
                open_ = weight + look.after[i - 1][np.ix_(rows, to)] < left_s
                some = open_.any(axis=0)
                reach = np.where(open_, weight, np.inf)[:, some]
                before, at = nodes[i], to[some]
            closed = np.full_like(total, np.inf)
            closed[rows] = total[rows] - look.total[rows] + exact_s
            total = closed
    return min(enough_s, float(total.min()))


def _forward_s(
    tables: Tables, homes: Sequence[str], ways: WeightGradientCosts, where: tuple[int, int, IntArray],
    source: Nodes,
) -> FloatArray:  # fmt: skip
    """Seconds forward into entries of an operator, with its weight gradient."""
    chain, i, at = where
    whole = tables.chain_nodes(chain)[i]
    node = whole.only(at)
    forward, _, gather, _ = tables.ahead(tables.block.chains[chain].edges[i - 1], source, node)
    forward = forward + node.forward_s
    if node.unit is None:
        return np.asarray(forward + exposed(gather, node.weight_s, node.streams))
    if not node.unit.parameters:
        return forward
    cost = ways.to_home_s(chain, i), ways.fetch_s(chain, i)
    held_s, late = _weight_gradient_s(whole, homes, tables.setting, *cost, True)
    sliced = ways.sliced(source)[:, None]
    return np.asarray(forward + np.where(sliced, late[at], 0.0) + held_s[:, at].min(axis=0))


def weight_gradient_costs(tables: Tables) -> WeightGradientCosts:
    """By the codes of one shape."""
    known = [GradientTables(tables, chain) for chain in range(len(tables.block.chains))]

    def to_home_s(chain: int, unit: int) -> FloatArray:
        exchange, gather = known[chain].weight(unit, tables.setting.states.reduced)
        return np.tile(exchange + gather, (len(tables.modes),) * 2)

    def fetch_s(chain: int, unit: int) -> FloatArray:
        node, edge = known[chain].nodes[unit], tables.block.chains[chain].edges[unit - 1]
        found = np.zeros((2, 1, len(node.codes)))
        nowhere = np.full_like(node.reads[:1], roles.BATCH)
        kernels.moved_matrix(np.array(edge.totals), nowhere, node.reads, *tables.mesh, *found)
        return np.asarray(found[1, 0])

    def sliced(node: Nodes) -> BoolArray:
        # Sums that are made whole are gathered apart from the rest.
        whole = (node.writes == roles.WHOLE) | (node.writes == roles.PARTIAL)
        return np.asarray(~whole.any(axis=(1, 2)))

    return WeightGradientCosts(to_home_s, fetch_s, sliced)


def _forward_step(step: PathStep, edge: EdgeTable, node: Nodes) -> PathStep:
    time = edge.forward_s + node.forward_s[None, :]
    # The stream has no gradient passes of its own: what it gathers, it gathers twice.
    return replace(step, time_s=time + edge.fetch_s if node.unit is None else time)


def _backward_step(step: PathStep, edge: EdgeTable, node: Nodes) -> PathStep:
    none = np.zeros((1, 1, len(node.codes)))
    time = edge.back_s + node.data_s[None, :]
    return replace(step, time_s=time, droppable=False, option_s=none, state=none)


def _weight_gradient_s(
    node: Nodes, homes: Sequence[str], setting: Setting, to_home_s: FloatArray, fetch_s: FloatArray,
    products: bool,
) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """Seconds by home and forward code: the optimizer, gathering weights over their copies (once a
    step, or for both passes of every microbatch), and the weight gradient (its `products`, if
    asked) and its sum under the best code; and what fetching its input adds at least.
    """
    step, rounds = node.step_s / node.copies, setting.microbatches
    gathered = exposed(node.gather_s, node.forward_s, node.streams)
    outside = np.maximum(0.0, node.port_s - node.forward_s)
    # All passes of an operator stream, or none does.
    alike = node.streams[:, None] == node.streams[None, :]
    way_s = np.where(alike, to_home_s / rounds, np.inf)
    weight_s = node.weight_s if products else np.zeros_like(node.weight_s)
    summed = exposed(node.sum_s, node.weight_s, node.streams)
    fetched = exposed(fetch_s, node.weight_s, node.streams)

    def least(seconds: FloatArray) -> FloatArray:
        found: FloatArray = (seconds[:, None] + way_s).min(axis=0)
        return found

    once, often = least(weight_s + node.sum_s / rounds), least(weight_s + summed)
    alone = np.full_like(once, weight_s.min())
    late = np.minimum(
        least(weight_s + node.sum_s / rounds + fetched) - once,
        least(weight_s + summed + fetched) - often,
    )
    if "external" in homes:
        late = np.minimum(late, (weight_s + fetched).min() - alone)
    seconds = {
        "replicated": once + node.sum_s / rounds + node.step_s,
        "optimizer": once + node.gather_s / rounds + step,
        "gradients": often + node.gather_s / rounds + step,
        "weights": often + gathered + node.gather_s / kernels.CHUNKS + step,
        "external": alone + outside,
    }
    return np.stack([seconds[home] for home in homes]), late
