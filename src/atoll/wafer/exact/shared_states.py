"""States of the exact part where all passes of an operator share one code: a state is a code.

`DecoupledBound` bounds the encoding in which gradient passes have their own codes: it adds the
fastest forward and the fastest backward path, with bytes at a price (Lagrangian). Weight gradients
belong to the forward path: fetching the input, the products, the sum and the transfer to the home's
layout take no less than under the best code. The other costs that couple the passes (fetching
output gradients in other layouts, re-sharding weights for the data pass) are not negative and are
left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from atoll.base.arrays import Bools, Floats, Ints
from atoll.wafer.costs import block_kernels as kernels
from atoll.wafer.costs.tables import (
    BlockTables,
    ChainTables,
    CostSetting,
    EdgeTable,
    NodeTable,
    delay_s,
    exposed,
)
from atoll.wafer.costs.weight_placement import GradientTables, home_bytes, home_cost
from atoll.wafer.encoding import role_kernels as roles
from atoll.wafer.encoding.block_parts import BlockMapping, HelperPath
from atoll.wafer.exact.path_kernels import min_plus
from atoll.wafer.exact.paths import (
    FATE_ORDER,
    FREE,
    BlockPaths,
    ChainBounds,
    MemoryPrice,
    PathChoices,
    PathStep,
    by_chain,
    chain_bounds,
    least_chain_costs,
)


@dataclass(frozen=True)
class Rules:
    """Choices open to a solver, and its objective."""

    homes: tuple[str, ...]
    recompute: bool = True
    volume_only: bool = False
    """Minimise communication only: compute counts as zero."""


class SharedStates:
    """Steps between codes; an operator's options are the homes of its weight."""

    def __init__(self, tables: ChainTables, rules: Rules) -> None:
        self.tables, self.rules = tables, rules
        self.edges = [tables.chain_edges(i) for i in range(len(tables.block.chains))]
        self.chains = [self._steps(i) for i in range(len(self.edges))]

    def _steps(self, chain: int) -> list[PathStep]:
        steps = []
        nodes, edges = self.tables.chain_nodes(chain), self.edges[chain]
        described = self.tables.block.chains[chain].edges
        for i, edge in enumerate(edges):
            node = nodes[i + 1]
            entries = np.arange(len(node.codes))
            weighted = node.unit is not None and node.unit.parameters > 0
            costs = [
                home_cost(node, home, self.tables.setting, entries, entries, entries)
                for home in (self.rules.homes if weighted else ("external",))
            ]
            home_s, state_bytes = (np.stack(column) for column in zip(*costs, strict=True))
            compute_s = 0.0 if self.rules.volume_only else node.compute_s[None, :]
            recompute_s = edge.recompute_s
            if not self.rules.recompute:
                recompute_s = np.full_like(recompute_s, np.inf)
            steps.append(
                PathStep(
                    edge.time_s + compute_s, edge.saved_bytes, recompute_s, None,
                    bool(described[i].kept_name), home_s[:, None, :], state_bytes[:, None, :],
                )
            )  # fmt: skip
        return steps

    @cached_property
    def paths(self) -> BlockPaths:
        """The chains, and the costs of each stream layout outside them."""
        tables, codes = self.tables, self.tables.stream.codes
        share = np.array([tables.stream_share(code) for code in codes])
        return BlockPaths(
            self.chains, np.array([tables.stream_s(code) for code in codes]),
            share * tables.setting.stream_saved_bytes(tables.block),
            np.array([tables.buffer_bytes(code) for code in codes]),
        )  # fmt: skip

    def offloading_chains(self, away: HelperPath) -> list[list[PathStep]]:
        """Return the steps of a stage that may offload tensors to another stage's memory."""
        offloading = []
        for i, (steps, edges) in enumerate(zip(self.chains, self.edges, strict=True)):
            triples = zip(steps, edges, self.tables.chain_nodes(i)[1:], strict=True)
            offloading.append([replace(s, offload_s=offload_s(e, n, away)) for s, e, n in triples])
        return offloading

    def block_mapping(self, stream: int, path: PathChoices) -> BlockMapping:
        operators = np.concatenate([choices[:-1] for choices in by_chain(self.chains, path)])
        entries, options, _ = operators.T.tolist()
        units = (nodes for chain in self.tables.nodes for nodes in chain)
        pairs = list(zip(units, entries, strict=True))
        algorithm = self.tables.setting.algorithm
        collectives = tuple((bool(node.streams[entry]), algorithm) for node, entry in pairs)
        steps = (step for chain in self.chains for step in chain)
        fates = zip(steps, path[:, -1].tolist(), strict=True)
        return BlockMapping(
            self.tables.stream.codes[stream], tuple(node.codes[entry] for node, entry in pairs),
            tuple(self.rules.homes[option] for option in options),
            tuple(FATE_ORDER[fate] for step, fate in fates if step.droppable), (),
            collectives if len(self.tables.modes) > 1 else (),
        )  # fmt: skip


def offload_s(edge: EdgeTable, node: NodeTable, away: HelperPath) -> Floats:
    """Return the seconds that offloading a tensor adds: the transfer out overlaps the consumer's
    forward pass and gather, the transfer back its data pass and reduction.
    """
    journey_s, streams = away.journey_s(edge.saved_bytes), node.streams
    out_s = delay_s(edge.gather_s, journey_s, node.forward_s, streams)
    return out_s + delay_s(edge.scatter_s, journey_s, node.data_s, streams)


class WeightGradientCosts(NamedTuple):
    """Costs of weight-gradient codes, as functions of a chain and its operator (from 1)."""

    to_home_s: Callable[[int, int], Floats]
    """By entries of the weight pass and of the forward pass; paid once per step."""
    fetch_s: Callable[[int, int], Floats]
    """Gathering an input that no digit replicates, by entries of the weight pass."""
    sliced: Callable[[NodeTable], Bools]
    """Entries of an operator that replicate none of its output over dies."""


def memory_price(price: float, in_flight: int, layers: int, *, offload: bool) -> MemoryPrice:
    """Price a byte of a layer in a stage of `layers`; kept bytes are free with `offload`."""
    saved_copies = 0.0 if offload else float(layers * in_flight)
    return MemoryPrice(price / layers, 0.0, saved_copies, float(layers))


@dataclass(frozen=True, eq=False)
class DecoupledBound:
    """Lower bounds from the forward and backward paths, minimised separately."""

    forward: BlockPaths
    backward: list[list[PathStep]]
    but_weight: BlockPaths
    """`forward` without the products of weight gradients."""
    _costs_by_price: dict[MemoryPrice, Floats] = field(default_factory=dict)
    """Cached `least_costs`; with offload they are the same for any number in flight."""

    @staticmethod
    def from_states(states: SharedStates, gradients: WeightGradientCosts) -> DecoupledBound:
        tables, rules = states.tables, states.rules
        forward: list[list[PathStep]] = []
        but_weight: list[list[PathStep]] = []
        backward = []
        for chain, (steps, edges) in enumerate(zip(states.chains, states.edges, strict=True)):
            nodes = tables.chain_nodes(chain)
            triples = list(zip(steps, edges, nodes[1:], strict=True))
            backward.append([_backward_step(*triple) for triple in triples])
            for pass_chains in (forward, but_weight):
                pass_chains.append([_forward_step(*triple) for triple in triples])
            for unit, node in enumerate(nodes[1:], 1):
                if node.unit is None or not node.unit.parameters:
                    continue
                entries = np.arange(len(node.codes))
                by_home = (
                    home_bytes(tables.setting.states, home, node, entries, entries)
                    for home in rules.homes
                )
                state_bytes = np.stack([w + g.min() + o for w, g, o in by_home])
                costs = gradients.to_home_s(chain, unit), gradients.fetch_s(chain, unit)
                source_sliced = gradients.sliced(nodes[unit - 1])[:, None]
                for pass_chains, products in ((forward, True), (but_weight, False)):
                    home_s, fetch_added_s = _weight_gradient_s(
                        node, rules.homes, tables.setting, *costs, products
                    )
                    step = pass_chains[-1][unit - 1]
                    pass_chains[-1][unit - 1] = replace(
                        step, time_s=step.time_s + np.where(source_sliced, fetch_added_s, 0.0),
                        option_s=home_s[:, None, :], state_bytes=state_bytes[:, None, :],
                    )  # fmt: skip
        forward_paths = replace(states.paths, chains=forward)
        return DecoupledBound(forward_paths, backward, replace(states.paths, chains=but_weight))

    @cached_property
    def but_weight_s(self) -> float:
        """Lower bound on the seconds of a block without its weight passes."""
        return float(self._least_costs(FREE, self.but_weight).min())

    @cached_property
    def bound_s(self) -> float:
        """Lower bound on the seconds of a block."""
        return float(self.least_costs(FREE).min())

    @cached_property
    def fastest_bytes(self) -> tuple[float, float]:
        """Bytes of state and bytes kept per microbatch of a layer that takes `bound_s`."""
        stream = int(self.least_costs(FREE).argmin())
        cost = self.forward.path_cost(stream, self.forward.fastest_path(stream))
        return cost.state_bytes, cost.kept_bytes

    def priced_s(self, price: float, in_flight: int, layers: int, *, offload: bool) -> float:
        """Return the least seconds + price x (state + in flight x kept) bytes per layer over all
        mappings. Recomputed tensors count once in a stage of at most `layers` layers. With
        `offload`, saved tensors can be offloaded at no cost.
        """
        least = self.least_costs(memory_price(price, in_flight, layers, offload=offload))
        return float((least + price * in_flight * self.forward.stream_saved_bytes).min())

    def least_costs(self, price: MemoryPrice, *, away: bool = False) -> Floats:
        """Return a lower bound on seconds + price x bytes; `away`: offloading takes 0 seconds."""
        paths = self.forward
        if away:
            chains = [
                [replace(step, offload_s=np.zeros_like(step.saved_bytes)) for step in steps]
                for steps in paths.chains
            ]
            return self._least_costs(price, replace(paths, chains=chains))
        if price not in self._costs_by_price:
            self._costs_by_price[price] = self._least_costs(price, paths)
        return self._costs_by_price[price]

    def _least_costs(self, price: MemoryPrice, paths: BlockPaths) -> Floats:
        return np.asarray(paths.least_costs(price) + self._backward_s)

    @cached_property
    def _backward_s(self) -> Floats:
        """Least seconds of the data passes, which hold no bytes."""
        costs = (least_chain_costs(steps, FREE)[0] for steps in self.backward)
        return sum(costs, np.zeros(len(self.forward.stream_s)))

    def pass_bounds(self) -> tuple[list[ChainBounds], list[ChainBounds]]:
        """Return the bounds in seconds of every chain, forward and backward."""
        forward = [chain_bounds(steps, FREE) for steps in self.forward.chains]
        return forward, [chain_bounds(steps, FREE) for steps in self.backward]


def least_block_s(
    tables: BlockTables, homes: Sequence[str], stream_bounds_s: Floats,
    forward_bounds: Sequence[ChainBounds], backward_bounds: Sequence[ChainBounds], enough_s: float,
) -> float:  # fmt: skip
    """Return the minimum of `DecoupledBound.least_costs(FREE)`, at most `enough_s`. Tables are
    computed one after another, since those of many codes are large, and only for paths that may be
    faster by the given lower bounds of stream layouts, chains and what follows a state.
    """
    gradients = weight_gradient_costs(tables)
    total = stream_bounds_s.copy()
    for chain, edges in enumerate(c.edges for c in tables.block.chains):
        nodes = tables.chain_nodes(chain)
        for bounds, forward in ((forward_bounds[chain], True), (backward_bounds[chain], False)):
            rows = np.flatnonzero(total < enough_s)
            if not len(rows):
                return enough_s
            left_s = (enough_s - total + bounds.total)[rows, None]
            before, sources, reach = tables.stream, rows, np.zeros((0, 0))
            for i in range(1, len(edges) + 1):
                last = i == len(edges)
                targets = rows
                if not last:
                    targets = np.flatnonzero((bounds.through[i - 1][rows] < left_s).any(axis=0))
                if not len(sources) or not len(targets):
                    return enough_s
                where = (chain, i, targets)
                source, target = before.select(sources), nodes[i].select(targets)
                step_s = (
                    _forward_s(tables, homes, gradients, where, source)
                    if forward
                    else tables.backward_arrays(edges[i - 1], source, target)[0] + target.data_s
                )
                if last:
                    exact_s = (reach + step_s.T).min(axis=1)
                    break
                if i > 1:
                    further = np.empty((len(rows), len(targets)))
                    min_plus(reach, np.ascontiguousarray(step_s), further)
                    step_s = further
                open_ = step_s + bounds.after[i - 1][np.ix_(rows, targets)] < left_s
                reachable = open_.any(axis=0)
                reach = np.where(open_, step_s, np.inf)[:, reachable]
                before, sources = nodes[i], targets[reachable]
            closed = np.full_like(total, np.inf)
            closed[rows] = total[rows] - bounds.total[rows] + exact_s
            total = closed
    return min(enough_s, float(total.min()))


def _forward_s(
    tables: BlockTables, homes: Sequence[str], gradients: WeightGradientCosts,
    where: tuple[int, int, Ints], source: NodeTable,
) -> Floats:  # fmt: skip
    """Return the seconds of the step into entries of an operator, with its weight gradient."""
    chain, i, entries = where
    all_entries = tables.chain_nodes(chain)[i]
    node = all_entries.select(entries)
    edge = tables.block.chains[chain].edges[i - 1]
    forward_s, _, gather_s, _ = tables.forward_arrays(edge, source, node)
    forward_s = forward_s + node.forward_s
    if node.unit is None:
        return np.asarray(forward_s + exposed(gather_s, node.weight_s, node.streams))
    if not node.unit.parameters:
        return forward_s
    costs = gradients.to_home_s(chain, i), gradients.fetch_s(chain, i)
    home_s, fetch_added_s = _weight_gradient_s(all_entries, homes, tables.setting, *costs, True)
    fetch_s = np.where(gradients.sliced(source)[:, None], fetch_added_s[entries], 0.0)
    return np.asarray(forward_s + fetch_s + home_s[:, entries].min(axis=0))


def weight_gradient_costs(tables: BlockTables) -> WeightGradientCosts:
    """Return the costs of the codes of one shape."""
    gradient_tables = [GradientTables(tables, chain) for chain in range(len(tables.block.chains))]

    def to_home_s(chain: int, unit: int) -> Floats:
        times = gradient_tables[chain].weight(unit, tables.setting.states.reduced)
        return np.tile(times.total_s, (len(tables.modes),) * 2)

    def fetch_s(chain: int, unit: int) -> Floats:
        node, edge = gradient_tables[chain].nodes[unit], tables.block.chains[chain].edges[unit - 1]
        times = np.zeros((2, 1, len(node.codes)))
        divided = np.full_like(node.reads[:1], roles.BATCH)
        kernels.reshard_matrix(np.array(edge.totals), divided, node.reads, *tables.mesh, *times)
        return np.asarray(times[1, 0])

    def sliced(node: NodeTable) -> Bools:
        # Sums that are completed on all dies are gathered separately.
        replicated = (node.writes == roles.REPLICATED) | (node.writes == roles.PARTIAL)
        return np.asarray(~replicated.any(axis=(1, 2)))

    return WeightGradientCosts(to_home_s, fetch_s, sliced)


def _forward_step(step: PathStep, edge: EdgeTable, node: NodeTable) -> PathStep:
    time_s = edge.forward_s + node.forward_s[None, :]
    # The stream has no gradient passes: it gathers its input twice.
    return replace(step, time_s=time_s + edge.fetch_s if node.unit is None else time_s)


def _backward_step(step: PathStep, edge: EdgeTable, node: NodeTable) -> PathStep:
    no_option = np.zeros((1, 1, len(node.codes)))
    time_s = edge.back_s + node.data_s[None, :]
    return replace(step, time_s=time_s, droppable=False, option_s=no_option, state_bytes=no_option)


def _weight_gradient_s(
    node: NodeTable, homes: Sequence[str], setting: CostSetting, to_home_s: Floats,
    fetch_s: Floats, products: bool,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Return least seconds by home and forward code, and the least seconds that fetching the input
    of the weight gradient adds. Seconds are those of the optimizer, of gathering weights over their
    copies (once per step, or for both passes of every microbatch), and of the weight gradient (its
    `products`, if requested) and its sum under the best code.
    """
    divided_step_s, rounds = node.step_s / node.copies, setting.microbatches
    gathered_s = exposed(node.weight_gather_s, node.forward_s, node.streams)
    port_s = np.maximum(0.0, node.port_s - node.forward_s)
    # Either all passes of an operator are streamed, or none.
    same_mode = node.streams[:, None] == node.streams[None, :]
    to_home_share_s = np.where(same_mode, to_home_s / rounds, np.inf)
    weight_s = node.weight_s if products else np.zeros_like(node.weight_s)
    summed_s = exposed(node.gradient_sum_s, node.weight_s, node.streams)
    fetched_s = exposed(fetch_s, node.weight_s, node.streams)

    def least(seconds: Floats) -> Floats:
        return np.asarray((seconds[:, None] + to_home_share_s).min(axis=0))

    sum_share_s, gather_share_s = node.gradient_sum_s / rounds, node.weight_gather_s / rounds
    once_s, often_s = least(weight_s + sum_share_s), least(weight_s + summed_s)
    unsummed_s = np.full_like(once_s, weight_s.min())
    fetch_added_s = np.minimum(
        least(weight_s + sum_share_s + fetched_s) - once_s,
        least(weight_s + summed_s + fetched_s) - often_s,
    )
    if "external" in homes:
        fetch_added_s = np.minimum(fetch_added_s, (weight_s + fetched_s).min() - unsummed_s)
    seconds = {
        "replicated": once_s + sum_share_s + node.step_s,
        "optimizer": once_s + gather_share_s + divided_step_s,
        "gradients": often_s + gather_share_s + divided_step_s,
        "weights": often_s + gathered_s + node.weight_gather_s / kernels.CHUNKS + divided_step_s,
        "external": unsummed_s + port_s,
    }
    return np.stack([seconds[home] for home in homes]), fetch_added_s
