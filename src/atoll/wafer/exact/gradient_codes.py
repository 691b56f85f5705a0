"""Better codes for the gradient passes of a mapping that was solved with shared codes, on any mesh.

The forward codes, homes and fates stay as they are. Given them, the data passes' codes are a
shortest path whose steps choose the weight gradients' codes, so that the best gradient codes are
found exactly. No change may take more memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.wafer.costs.tables import BlockTables, delay_s
from atoll.wafer.costs.weight_placement import GradientTables, fetch_s
from atoll.wafer.encoding.block_parts import OFFLOAD, BlockCost, BlockMapping, HelperPath
from atoll.wafer.exact.paths import PathChoices, by_chain
from atoll.wafer.exact.shared_states import SharedStates


class _WeightPasses(NamedTuple):
    """The best weight pass of an operator for every code of its data pass."""

    least_s: Floats
    entries: Ints
    forward_code_s: Floats
    """Seconds if the weight pass has the code of the forward pass."""


class GradientCodeRefiner:
    """Refines mappings of the tables of one set of shared states."""

    def __init__(self, states: SharedStates, tables: BlockTables) -> None:
        self.states = states
        count = len(states.tables.block.chains)
        self._gradients = [GradientTables(tables, i) for i in range(count)]

    def refine(
        self,
        stream: int,
        path: PathChoices,
        genes: BlockMapping,
        cost: BlockCost,
        away: HelperPath | None,
    ) -> tuple[BlockMapping, BlockCost]:
        """Return the mapping with the best gradient codes, and its cost."""
        pairs: list[tuple[str, str]] = []
        saved_s = saved_bytes = 0.0
        homes, fates = iter(genes.homes), iter(genes.keep)
        for chain, choices in enumerate(by_chain(self.states.chains, path)):
            states = choices[:-1, 0].tolist()
            edges = self.states.tables.block.chains[chain].edges
            chain_fates = [next(fates) if edge.kept_name else -1 for edge in edges]
            chain_homes = [next(homes) for _ in states]
            refined = self._refine_chain(chain, stream, states, chain_homes, chain_fates, away)
            chain_pairs, chain_s, chain_bytes = refined
            pairs += chain_pairs
            saved_s += chain_s
            saved_bytes += chain_bytes
        if saved_s <= 1e-9 * cost.time_s:
            return genes, cost
        time_s, state_bytes = cost.time_s - saved_s, cost.state_bytes - saved_bytes
        better = replace(cost, time_s=time_s, state_bytes=state_bytes)
        return replace(genes, gradients=tuple(pairs)), better

    def _refine_chain(
        self, chain: int, stream: int, path: list[int], homes: list[str], fates: list[int],
        away: HelperPath | None,
    ) -> tuple[list[tuple[str, str]], float, float]:  # fmt: skip
        """Return codes of data and weight gradients, seconds and bytes of state saved."""
        nodes = self.states.tables.chain_nodes(chain)
        edges = self.states.edges[chain]
        forward = [stream, *path, stream]
        entries = [np.array([stream])]
        weight_passes: list[_WeightPasses] = []
        for unit, f in enumerate(path, 1):
            count = len(nodes[unit].index)
            entries.append(f // count * count + np.arange(count))
            source, home = forward[unit - 1], homes[unit - 1]
            weight_passes.append(self._weight_passes(chain, unit, source, f, home))
        entries.append(np.array([stream]))
        least_s = np.zeros(1)
        current_s = 0.0
        choices: list[Ints] = []
        for index, edge in enumerate(edges):
            sources, targets, node = entries[index], entries[index + 1], nodes[index + 1]
            step_s = edge.back_s[np.ix_(sources, targets)]
            if fates[index] == OFFLOAD and away is not None:
                tensor_bytes = float(edge.saved_bytes[forward[index], forward[index + 1]])
                link_s = edge.scatter_s[np.ix_(sources, targets)]
                data_pass = node.data_s[targets], node.streams[targets]
                step_s = step_s + delay_s(link_s, away.journey_s(tensor_bytes), *data_pass)
            if index < len(path):
                step_s = step_s + (node.data_s[targets] + weight_passes[index].least_s)[None, :]
            source = np.flatnonzero(sources == forward[index])[0]
            target = np.flatnonzero(targets == forward[index + 1])[0]
            current_s += float(step_s[source, target])
            if index < len(path):
                # The weight gradient may differ even if the data pass has the forward code.
                weight_pass = weight_passes[index]
                current_s += float(weight_pass.forward_code_s[target] - weight_pass.least_s[target])
            total = least_s[:, None] + step_s
            choices.append(total.argmin(axis=0))
            least_s = total.min(axis=0)
        position = 0
        pairs: list[tuple[str, str]] = []
        saved_bytes = 0.0
        for index in reversed(range(len(edges))):
            if index < len(path):
                node = nodes[index + 1]
                data = node.codes[int(entries[index + 1][position])]
                chosen = int(weight_passes[index].entries[position])
                weighted = node.unit is not None and node.unit.parameters > 0
                pairs.append((data, node.codes[chosen] if weighted else data))
                if weighted and homes[index] in ("replicated", "optimizer"):
                    fewer = node.parameters[path[index]] - node.parameters[chosen]
                    saved_bytes += self.states.tables.setting.states.gradient * float(fewer)
            position = int(choices[index][position])
        return pairs[::-1], current_s - float(least_s[0]), saved_bytes

    def _weight_passes(
        self, chain: int, unit: int, source: int, forward: int, home: str
    ) -> _WeightPasses:
        gradient = self._gradients[chain]
        node, count = gradient.nodes[unit], len(gradient.nodes[unit].index)
        code, first = forward % count, forward // count * count
        inputs = gradient.inputs(unit, np.array([source]), np.array([forward]))
        stored = inputs.pick((0, 0))
        outputs = gradient.output(unit)
        if node.unit is None or not node.unit.parameters:
            seconds = stored.total_s + outputs.exchange_s[code] + outputs.gather_s[code]
            return _WeightPasses(seconds, first + np.arange(count), seconds)
        codes = np.arange(count)
        weight = first + codes
        streams = node.streams[weight][None, :]
        fetched_s = fetch_s(node, weight[None, :], streams, stored.pick(None), outputs)
        home_s, state_bytes = gradient.home(
            unit, home, np.full((1, 1), forward), first + codes[:, None], weight[None, :]
        )
        seconds = fetched_s + home_s
        allowed = state_bytes <= state_bytes[:, code : code + 1] * (1 + 1e-12)
        seconds = np.where(allowed, seconds, np.inf)
        best = seconds.argmin(axis=1)
        return _WeightPasses(seconds[codes, best], first + best, seconds[:, code])
