"""States of the exact part where all passes of an operator share one code: a state is a code. And
a bound over the whole encoding of a block, gradient passes with codes of their own included: the
passes are taken apart: the fastest forward path, the fastest backward path and the fastest
weight gradients, each for itself, bytes at a price (Lagrangian). What couples the passes (fetching
inputs and output gradients in other layouts, re-sharding weights) costs nothing or more, and is
dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from atoll.arrays import FloatArray
from atoll.wafer.costs import block_kernels as kernels
from atoll.wafer.costs.homes import home_bytes, home_cost
from atoll.wafer.costs.tables import EdgeTable, Nodes, Setting, Tables, exposed
from atoll.wafer.encoding.genes import Away, BlockMapping
from atoll.wafer.exact.paths import Paths, Price, Step, Way, scalar_chain


@dataclass(frozen=True)
class Rules:
    """What a solver may use, and what counts."""

    homes: tuple[str, ...]
    recompute: bool = True
    volume_only: bool = False
    """Choose by bytes moved: compute is left out of the count."""


class SharedStates:
    """Steps between codes; an operator's options are the homes of its weight."""

    def __init__(self, tables: Tables, rules: Rules) -> None:
        self.tables, self.rules = tables, rules
        self.edges = [tables.chain_edges(i) for i in range(len(tables.block.chains))]
        self.chains = [self._steps(i) for i in range(len(self.edges))]

    def _steps(self, chain: int) -> list[Step]:
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
                Step(
                    edge.time_s + compute, edge.kept_bytes, again, None,
                    bool(described[i].kept_name), home_s[:, None, :], state[:, None, :],
                )
            )  # fmt: skip
        return steps

    def chains_with(self, away: Away) -> list[list[Step]]:
        """The steps of a stage that may leave tensors in the memory of another."""
        found = []
        for i, (steps, edges) in enumerate(zip(self.chains, self.edges, strict=True)):
            nodes = self.tables.chain_nodes(i)[1:]
            found.append(
                [
                    replace(step, away_s=away_s(edge, node, away))
                    for step, edge, node in zip(steps, edges, nodes, strict=True)
                ]
            )
        return found

    def genes(self, stream: int, way: Way) -> BlockMapping:
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


@dataclass(frozen=True, eq=False)
class Decoupled:
    """Steps of the passes taken apart."""

    forward: Paths
    backward: list[list[Step]]
    weights: tuple[tuple[FloatArray, FloatArray], ...]
    """Of every weight: seconds and bytes of state by home and code of its gradient."""

    @staticmethod
    def of(states: SharedStates, paths: Paths) -> Decoupled:
        tables, rules = states.tables, states.rules
        setting = tables.setting
        forward, backward, weights = [], [], []
        for chain, (steps, edges) in enumerate(zip(states.chains, states.edges, strict=True)):
            nodes = tables.chain_nodes(chain)[1:]
            triples = list(zip(steps, edges, nodes, strict=True))
            forward.append([_forward(*t, rules.homes, setting) for t in triples])
            backward.append([_backward(*t) for t in triples])
            weighted = [n for n in nodes if n.unit is not None and n.unit.parameters]
            weights += [_weight(node, rules.homes, setting) for node in weighted]
        return Decoupled(replace(paths, chains=forward), backward, tuple(weights))

    def least(self, price: Price, *, away: bool = False) -> FloatArray:
        """No block takes fewer seconds + price x bytes, by stream layout; `away`: tensors may wait
        elsewhere, which costs no less than nothing.
        """
        paths = self.forward
        if away:
            chains = [
                [replace(s, away_s=np.zeros_like(s.kept)) for s in steps] for steps in paths.chains
            ]
            paths = replace(paths, chains=chains)
        total = paths.least(price)[0]
        for steps in self.backward:
            total = total + scalar_chain(steps, price)[0]
        for seconds, state in self.weights:
            total = total + float((seconds + price.own * price.per_state * state).min())
        return total


def _forward(
    step: Step, edge: EdgeTable, node: Nodes, homes: Sequence[str], setting: Setting
) -> Step:
    time = edge.forward_s + node.forward_s[None, :]
    if node.unit is None:
        # The stream has no gradient passes of its own: what it gathers, it gathers twice.
        time = time + edge.fetch_s
    if node.unit is None or not node.unit.parameters:
        return replace(step, time_s=time)
    seconds, state = _held(node, homes, setting)
    return replace(step, time_s=time, option_s=seconds[:, None, :], state=state[:, None, :])


def _backward(step: Step, edge: EdgeTable, node: Nodes) -> Step:
    none = np.zeros((1, 1, len(node.codes)))
    time = edge.back_s + node.data_s[None, :]
    return replace(step, time_s=time, droppable=False, option_s=none, state=none)


def _held(node: Nodes, homes: Sequence[str], setting: Setting) -> tuple[FloatArray, FloatArray]:
    """What a home costs at least by the forward code alone: the optimizer, and gathering weights
    over their copies (once a step, or for both passes of every microbatch).
    """
    step, rounds = node.step_s / node.copies, setting.microbatches
    gathered = exposed(node.gather_s, node.forward_s, node.streams)
    outside = np.maximum(0.0, node.port_s - node.forward_s)
    seconds = {
        "replicated": node.sum_s / rounds + node.step_s,
        "optimizer": node.gather_s / rounds + step,
        "gradients": node.gather_s / rounds + step,
        "weights": gathered + node.gather_s / kernels.CHUNKS + step,
        "external": outside,
    }
    each = np.arange(len(node.codes))
    parts = [home_bytes(setting.states, home, node, each, each) for home in homes]
    return np.stack([seconds[home] for home in homes]), np.stack([w + o for w, _, o in parts])


def _weight(node: Nodes, homes: Sequence[str], setting: Setting) -> tuple[FloatArray, FloatArray]:
    """The weight gradient with the sum over its copies, by home and code."""
    once = node.sum_s / setting.microbatches
    summed = exposed(node.sum_s, node.weight_s, node.streams)
    seconds = {
        "replicated": once, "optimizer": once, "gradients": summed, "weights": summed,
        "external": 0.0 * once,
    }  # fmt: skip
    each = np.arange(len(node.codes))
    parts = [home_bytes(setting.states, home, node, each, each) for home in homes]
    return np.stack([node.weight_s + seconds[h] for h in homes]), np.stack([g for _, g, _ in parts])
