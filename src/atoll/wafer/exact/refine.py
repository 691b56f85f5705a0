"""Better codes for the gradient passes of a mapping found with shared codes, on any mesh.

The forward codes, homes and fates stay as they are. Given them, the data passes' codes are a
shortest path with the weight gradients' codes chosen inside, so that the best change of gradient
codes is found exactly. No change may take more memory.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from atoll.arrays import FloatArray, IntArray
from atoll.wafer.costs.homes import GradientTables, fetch_s
from atoll.wafer.costs.tables import EdgeTable, Nodes, Tables, exposed
from atoll.wafer.encoding.genes import OFFLOAD, Away, BlockCost, BlockMapping
from atoll.wafer.exact.paths import BlockPath
from atoll.wafer.exact.states import SharedStates


class GradientCodeRefiner:
    """For the tables of one set of shared states."""

    def __init__(self, states: SharedStates, tables: Tables) -> None:
        self.states = states
        count = len(states.tables.block.chains)
        self._gradients = [GradientTables(tables, i) for i in range(count)]

    def refine(
        self, stream: int, way: BlockPath, genes: BlockMapping, cost: BlockCost, away: Away | None
    ) -> tuple[BlockMapping, BlockCost]:
        """The mapping with the best gradient codes, and its cost; the same if none are better."""
        pairs: list[tuple[str, str]] = []
        saved_s = saved_bytes = 0.0
        homes, fates = iter(genes.homes), iter(genes.keep)
        for chain, path in enumerate(way.states):
            edges = self.states.tables.block.chains[chain].edges
            own = [next(fates) if edge.kept_name else -1 for edge in edges]
            found = self._refine_chain(chain, stream, path, [next(homes) for _ in path], own, away)
            pairs += found[0]
            saved_s += found[1]
            saved_bytes += found[2]
        if saved_s <= 1e-9 * cost.time_s:
            return genes, cost
        better = replace(
            cost, time_s=cost.time_s - saved_s, state_bytes=cost.state_bytes - saved_bytes
        )
        return replace(genes, gradients=tuple(pairs)), better

    def _refine_chain(
        self, chain: int, stream: int, path: list[int], homes: list[str], fates: list[int],
        away: Away | None,
    ) -> tuple[list[tuple[str, str]], float, float]:  # fmt: skip
        """Codes of data and weight gradients of a chain, seconds and bytes of state saved."""
        nodes = self.states.tables.chain_nodes(chain)
        edges = self.states.edges[chain]
        forward = [stream, *path, stream]
        blocks = [np.array([stream])]
        inside: list[tuple[FloatArray, IntArray, FloatArray]] = []
        for unit, f in enumerate(path, 1):
            each = len(nodes[unit].index)
            blocks.append(f // each * each + np.arange(each))
            inside.append(self._weight_pass_choices(chain, unit, forward[unit - 1], f, homes[unit - 1]))
        blocks.append(np.array([stream]))
        value = np.zeros(1)
        same = 0.0
        choices: list[IntArray] = []
        for e, edge in enumerate(edges):
            a, b, node = blocks[e], blocks[e + 1], nodes[e + 1]
            weight = edge.back_s[np.ix_(a, b)]
            if fates[e] == OFFLOAD and away is not None:
                weight = weight + self._fetch_back_s(edge, node, forward[e], forward[e + 1], a, b, away)
            if e < len(path):
                weight = weight + (node.data_s[b] + inside[e][0])[None, :]
            shared = tuple(np.flatnonzero(x == y)[0] for x, y in
                           ((a, forward[e]), (b, forward[e + 1])))  # fmt: skip
            same += float(weight[shared])
            if e < len(path):
                # With its own code for the data pass, the weight gradient may still differ.
                same += float(inside[e][2][shared[1]] - inside[e][0][shared[1]])
            total = value[:, None] + weight
            choices.append(total.argmin(axis=0))
            value = total.min(axis=0)
        at = 0
        pairs: list[tuple[str, str]] = []
        saved_bytes = 0.0
        for e in reversed(range(len(edges))):
            if e < len(path):
                node = nodes[e + 1]
                data = node.codes[int(blocks[e + 1][at])]
                chosen = int(inside[e][1][at])
                weighted = node.unit is not None and node.unit.parameters > 0
                pairs.append((data, node.codes[chosen] if weighted else data))
                if weighted and homes[e] in ("replicated", "optimizer"):
                    fewer = node.parameters[path[e]] - node.parameters[chosen]
                    saved_bytes += self.states.tables.setting.states.gradient * float(fewer)
            at = int(choices[e][at])
        return pairs[::-1], same - float(value[0]), saved_bytes

    def _weight_pass_choices(
        self, chain: int, unit: int, before: int, forward: int, home: str
    ) -> tuple[FloatArray, IntArray, FloatArray]:
        """By the data pass's code: least seconds of what follows from it and the weight gradient's
        entry that has them; and the seconds with the forward's code for the weight gradient.
        """
        gradient = self._gradients[chain]
        nodes = gradient.nodes
        node, each = nodes[unit], len(nodes[unit].index)
        own, block = forward % each, forward // each * each
        inputs = gradient.inputs(unit, np.array([before]), np.array([forward]))
        come = (inputs[0][0, 0], inputs[1][0, 0])
        outputs = gradient.output(unit)
        if node.unit is None or not node.unit.parameters:
            seconds = come[0] + come[1] + outputs[0][own] + outputs[1][own]
            return seconds, block + np.arange(each), seconds
        weight = block + np.arange(each)
        entries = np.arange(each)
        fetched = fetch_s(
            node, weight[None, :], node.streams[weight][None, :],
            (come[0][None, :], come[1][None, :]), outputs,
        )  # fmt: skip
        held_s, state = gradient.home(
            unit, home, np.full((1, 1), forward), block + entries[:, None], weight[None, :]
        )
        seconds = fetched + held_s
        allowed = state <= state[:, own : own + 1] * (1 + 1e-12)
        seconds = np.where(allowed, seconds, np.inf)
        best = seconds.argmin(axis=1)
        return seconds[entries, best], block + best, seconds[:, own]

    @staticmethod
    def _fetch_back_s(
        edge: EdgeTable, node: Nodes, f_a: int, f_b: int, a: IntArray, b: IntArray, away: Away
    ) -> FloatArray:
        """What bringing a tensor back adds beside every pair of data passes."""
        journey = float(edge.kept_bytes[f_a, f_b]) / away.bandwidth_Bps + away.latency_s
        links = edge.scatter_s[np.ix_(a, b)]
        behind = (node.data_s[b][None, :], node.streams[b][None, :])
        return exposed(links + journey, *behind) - exposed(links, *behind)
