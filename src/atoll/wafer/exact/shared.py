"""States of the exact part where all passes of an operator share one code: a state is a code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from atoll.arrays import FloatArray
from atoll.wafer.costs.homes import home_cost
from atoll.wafer.costs.tables import EdgeTable, Nodes, Tables, exposed
from atoll.wafer.encoding.genes import Away, BlockMapping
from atoll.wafer.exact.steps import Step, Way


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
