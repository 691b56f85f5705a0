"""States of the exact part where every pass of an operator has its own code: a state is a pair of
codes, of the forward and the data-gradient pass. The weight gradient's code and the home of the
weight are the fastest. Only for small sets of codes, such as those of a 2 x 3 mesh.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.wafer.costs.tables import BlockTables, EdgeTable, NodeTable
from atoll.wafer.costs.weight_placement import GradientTables, fetch_s
from atoll.wafer.exact.paths import PathStep
from atoll.wafer.exact.shared_states import Rules


@dataclass(frozen=True, eq=False)
class PassPairs:
    """Entries of the forward and the data pass, by state."""

    nodes: NodeTable
    forward: Ints
    data: Ints

    @staticmethod
    def from_nodes(nodes: NodeTable) -> PassPairs:
        entries, count = np.arange(len(nodes.codes)), len(nodes.index)
        if nodes.unit is None:
            return PassPairs(nodes, entries, entries)
        forward, code = np.repeat(entries, count), np.tile(np.arange(count), len(entries))
        return PassPairs(nodes, forward, forward // count * count + code)


class PassStates:
    """Steps between pairs of codes, for bounds on seconds: options have no bytes."""

    def __init__(self, tables: BlockTables, rules: Rules) -> None:
        self.tables, self.rules = tables, rules
        chains = range(len(tables.block.chains))
        self.states = [[PassPairs.from_nodes(nodes) for nodes in tables.chain_nodes(i)]
                       for i in chains]  # fmt: skip
        self.edges = [tables.chain_edges(i) for i in chains]
        self.chains = [self._steps(i) for i in chains]

    def _steps(self, chain: int) -> list[PathStep]:
        steps = []
        gradient = GradientTables(self.tables, chain)
        states, described = self.states[chain], self.tables.block.chains[chain].edges
        for i, edge in enumerate(self.edges[chain]):
            source, target = states[i], states[i + 1]
            forward, back = np.ix_(source.forward, target.forward), np.ix_(source.data, target.data)
            time_s = edge.forward_s[forward] + edge.back_s[back]
            if not self.rules.volume_only:
                nodes = target.nodes
                time_s += (nodes.forward_s[target.forward] + nodes.data_s[target.data])[None, :]
            if target.nodes.unit is not None and target.nodes.unit.parameters:
                option_s, state_bytes = self._options(gradient, i + 1, source, target)
            else:
                time_s += self._fetch(gradient, i + 1, source, target, edge)
                option_s = state_bytes = np.zeros((1, 1, len(target.forward)))
            recompute_s = edge.recompute_s[forward]
            if not self.rules.recompute:
                recompute_s = np.full_like(recompute_s, np.inf)
            steps.append(
                PathStep(
                    time_s, edge.saved_bytes[forward], recompute_s, None,
                    bool(described[i].kept_name), option_s, state_bytes,
                )
            )  # fmt: skip
        return steps

    @staticmethod
    def _fetch(
        gradient: GradientTables, unit: int, source: PassPairs, target: PassPairs, edge: EdgeTable
    ) -> Floats:
        """Return the seconds that fetching adds to the data pass of an operator without weights."""
        if target.nodes.unit is None:
            return edge.fetch_s[np.ix_(source.forward, target.forward)]
        count = len(target.nodes.index)
        source_codes = np.arange(len(source.nodes.index))
        inputs = gradient.inputs(unit, source_codes, np.arange(count))
        sources = source.forward[:, None] % len(source_codes)
        forward, data = target.forward % count, target.data % count
        outputs = gradient.output(unit).pick((forward, data))
        return inputs.pick((sources, forward[None, :], data[None, :])).total_s + outputs.total_s

    def _options(
        self, gradient: GradientTables, unit: int, source: PassPairs, target: PassPairs
    ) -> tuple[Floats, Floats]:
        """Return seconds (1, states, states) of the fastest weight pass and home, and no bytes."""
        entries, fetched_s = self._weight_passes_s(gradient, unit, source, target)
        fastest_s = np.full_like(fetched_s[0], np.inf)
        for code_entries, code_s in zip(entries, fetched_s, strict=True):
            passes = target.forward, target.data, code_entries
            homes_s = [gradient.home(unit, home, *passes)[0] for home in self.rules.homes]
            fastest_s = np.minimum(fastest_s, code_s + np.min(homes_s, axis=0)[None, :])
        fastest_s = fastest_s[None, source.forward % len(source.nodes.index)]
        return fastest_s, np.zeros_like(fastest_s)

    def _weight_passes_s(
        self, gradient: GradientTables, unit: int, source: PassPairs, target: PassPairs
    ) -> tuple[list[Ints], list[Floats]]:
        """Return its entries by code and state, and seconds by code, source code and state."""
        node = target.nodes
        count = len(node.index)
        codes = np.arange(count)
        inputs = gradient.inputs(unit, np.arange(len(source.nodes.index)), codes)
        outputs, streams = gradient.output(unit), node.streams[target.forward][None, :]
        entries, seconds = [], []
        for code in range(count):
            weight = target.forward // count * count + code
            code_inputs = inputs.pick((slice(None), target.forward % count, code))
            code_outputs = outputs.pick((target.data % count, code)).pick(None)
            fetched_s = fetch_s(node, weight[None, :], streams, code_inputs, code_outputs)
            if self.rules.volume_only:
                fetched_s = fetched_s - node.weight_s[weight][None, :]
            entries.append(weight)
            seconds.append(fetched_s)
        return entries, seconds
