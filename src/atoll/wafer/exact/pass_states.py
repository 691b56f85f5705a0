"""States of the exact part where every pass of an operator has its own code: a state is a pair of
codes, of the forward and the data-gradient pass. The weight gradient's code is chosen with the
home, as an option of the operator. Only for small sets of codes, such as those of a 2 x 3 mesh.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from atoll.base.arrays import FloatArray, IntArray
from atoll.wafer.costs.tables import BlockTables, EdgeTable, NodeTable, exposed
from atoll.wafer.costs.weight_placement import GradientTables, fetch_s
from atoll.wafer.encoding.block_mapping import BlockMapping, HelperPath
from atoll.wafer.exact.paths import BlockPath, PathStep
from atoll.wafer.exact.shared_states import Rules


@dataclass(frozen=True, eq=False)
class _PassPairs:
    """Entries of the forward and the data pass, by state."""

    nodes: NodeTable
    forward: IntArray
    data: IntArray

    @staticmethod
    def from_nodes(nodes: NodeTable) -> _PassPairs:
        entries, count = np.arange(len(nodes.codes)), len(nodes.index)
        if nodes.unit is None:
            return _PassPairs(nodes, entries, entries)
        forward, code = np.repeat(entries, count), np.tile(np.arange(count), len(entries))
        return _PassPairs(nodes, forward, forward // count * count + code)


class PassStates:
    """Steps between pairs of codes; options are pairs of a home and a weight-gradient code."""

    def __init__(self, tables: BlockTables, rules: Rules, *, free: bool = False) -> None:
        """`free`: for bounds on seconds only; options have neither bytes nor codes."""
        self.tables, self.rules, self._free = tables, rules, free
        self._states = [
            [_PassPairs.from_nodes(nodes) for nodes in tables.chain_nodes(i)]
            for i in range(len(tables.block.chains))
        ]
        self._edges = [tables.chain_edges(i) for i in range(len(tables.block.chains))]
        # (options, states before, states): home index x codes + weight code.
        self._option_codes: list[list[IntArray]] = []
        self.chains = [self._steps(i) for i in range(len(self._edges))]

    def _steps(self, chain: int) -> list[PathStep]:
        steps = []
        self._option_codes.append([])
        gradient = GradientTables(self.tables, chain)
        states, described = self._states[chain], self.tables.block.chains[chain].edges
        for i, edge in enumerate(self._edges[chain]):
            source, target = states[i], states[i + 1]
            forward, back = np.ix_(source.forward, target.forward), np.ix_(source.data, target.data)
            time_s = edge.forward_s[forward] + edge.back_s[back]
            if not self.rules.volume_only:
                nodes = target.nodes
                time_s += (nodes.forward_s[target.forward] + nodes.data_s[target.data])[None, :]
            if target.nodes.unit is not None and target.nodes.unit.parameters:
                option_s, state_bytes, codes = self._options(gradient, i + 1, source, target)
            else:
                time_s += self._fetch(gradient, i + 1, source, target, edge)
                option_s = state_bytes = np.zeros((1, 1, len(target.forward)))
                codes = np.zeros((1, 1, len(target.forward)), np.int64)
            self._option_codes[-1].append(codes)
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
        gradient: GradientTables, unit: int, source: _PassPairs, target: _PassPairs, edge: EdgeTable
    ) -> FloatArray:
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
        self, gradient: GradientTables, unit: int, source: _PassPairs, target: _PassPairs
    ) -> tuple[FloatArray, FloatArray, IntArray]:
        """Return seconds, bytes and codes of the undominated options of pairs of states."""
        node = target.nodes
        count, source_codes = len(node.index), np.arange(len(source.nodes.index))
        inputs = gradient.inputs(unit, source_codes, np.arange(count))
        outputs = gradient.output(unit)
        source_rows = source.forward % len(source_codes)
        seconds, bytes_, option_codes = [], [], []
        for code in range(count):
            weight = target.forward // count * count + code
            code_inputs = inputs.pick((slice(None), target.forward % count, code))
            code_outputs = outputs.pick((target.data % count, code)).pick(None)
            streams = node.streams[target.forward][None, :]
            fetched_s = fetch_s(node, weight[None, :], streams, code_inputs, code_outputs)
            if self.rules.volume_only:
                fetched_s = fetched_s - node.weight_s[weight][None, :]
            entries = target.forward, target.data, weight
            homes = [gradient.home(unit, home, *entries) for home in self.rules.homes]
            if self._free:
                seconds.append(fetched_s + np.min([home_s for home_s, _ in homes], axis=0)[None, :])
                continue
            for home_index, (home_s, home_bytes) in enumerate(homes):
                seconds.append(fetched_s + home_s[None, :])
                bytes_.append(np.broadcast_to(home_bytes[None, :], fetched_s.shape))
                option_codes.append(home_index * count + code)
        if self._free:
            fastest = np.min(seconds, axis=0)[None, source_rows]
            return fastest, np.zeros_like(fastest), np.zeros(fastest.shape, np.int64)
        best_s, best_bytes, best_codes = _undominated(
            np.stack(seconds), np.stack(bytes_), np.array(option_codes)
        )
        return best_s[:, source_rows], best_bytes[:, source_rows], best_codes[:, source_rows]

    def offloading_chains(self, away: HelperPath) -> list[list[PathStep]]:
        """Return the steps of a stage that may offload tensors to another stage's memory."""
        offloading = []
        for steps, edges, states in zip(self.chains, self._edges, self._states, strict=True):
            offloading_steps = []
            for i, (step, edge) in enumerate(zip(steps, edges, strict=True)):
                source, target = states[i], states[i + 1]
                journey_s = step.saved_bytes / away.bandwidth_Bps + away.latency_s
                nodes = target.nodes
                streams = nodes.streams[target.forward][None, :]
                gather_s = edge.gather_s[np.ix_(source.forward, target.forward)]
                scatter_s = edge.scatter_s[np.ix_(source.data, target.data)]
                out = gather_s, nodes.forward_s[target.forward]
                back = scatter_s, nodes.data_s[target.data]
                added_s = np.zeros_like(journey_s)
                for link_s, compute_s in (out, back):
                    overlap = (compute_s[None, :], streams)
                    added_s += exposed(link_s + journey_s, *overlap) - exposed(link_s, *overlap)
                offloading_steps.append(replace(step, offload_s=added_s))
            offloading.append(offloading_steps)
        return offloading

    def block_mapping(self, stream: int, path: BlockPath) -> BlockMapping:
        codes, homes, gradients, collectives = [], [], [], []
        options = iter(path.options)
        for chain, states in enumerate(path.states):
            previous = stream
            for i, state in enumerate(states):
                pairs = self._states[chain][i + 1]
                count = len(pairs.nodes.index)
                option_codes = self._option_codes[chain][i]
                row = 0 if option_codes.shape[1] == 1 else previous
                home, code = divmod(int(option_codes[next(options), row, state]), count)
                f, d = int(pairs.forward[state]), int(pairs.data[state])
                weighted = pairs.nodes.unit is not None and pairs.nodes.unit.parameters > 0
                data = pairs.nodes.codes[d]
                codes.append(pairs.nodes.codes[f])
                homes.append(self.rules.homes[home])
                gradients.append((data, pairs.nodes.codes[code] if weighted else data))
                collectives.append((bool(pairs.nodes.streams[f]), self.tables.setting.algorithm))
                previous = state
        shared = all(d == w == f for f, (d, w) in zip(codes, gradients, strict=True))
        return BlockMapping(
            self.tables.stream.codes[stream], tuple(codes), tuple(homes), tuple(path.fates),
            () if shared else tuple(gradients),
            tuple(collectives) if len(self.tables.modes) > 1 else (),
        )  # fmt: skip


def _undominated(
    seconds: FloatArray, bytes_: FloatArray, codes: IntArray
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Keep the undominated options along the first axis; dominated ones get infinite seconds."""
    order = np.lexsort((seconds, bytes_), axis=0)
    sorted_s = np.take_along_axis(seconds, order, axis=0)
    sorted_bytes = np.take_along_axis(bytes_, order, axis=0)
    lowest = np.minimum.accumulate(sorted_s, axis=0)
    improves = np.concatenate([np.ones_like(sorted_s[:1], np.bool_), sorted_s[1:] < lowest[:-1]])
    count = int(improves.sum(axis=0).max())
    first = np.argsort(~improves, axis=0, kind="stable")[:count]
    keep = np.take_along_axis(improves, first, axis=0)
    sorted_s = np.where(keep, np.take_along_axis(sorted_s, first, axis=0), np.inf)
    sorted_bytes = np.take_along_axis(sorted_bytes, first, axis=0)
    kept_codes = np.take_along_axis(codes[order], first, axis=0)
    return sorted_s, sorted_bytes, kept_codes
