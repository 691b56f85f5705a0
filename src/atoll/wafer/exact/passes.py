"""States of the exact part where every pass of an operator has a code of its own: a state is a pair
of codes, of the forward and the data-gradient pass; the weight gradient's code is chosen inside,
with the home, as an option of the operator. For small sets of codes only: pairs of all codes of a
2 x 2 or 2 x 3 mesh.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from atoll.arrays import FloatArray, IntArray
from atoll.wafer.costs.homes import GradientTables, fetch_s
from atoll.wafer.costs.tables import EdgeTable, Nodes, Tables, exposed
from atoll.wafer.encoding.genes import Away, BlockMapping
from atoll.wafer.exact.paths import PathStep, BlockPath
from atoll.wafer.exact.states import Rules


@dataclass(frozen=True, eq=False)
class _PassPairs:
    """Entries of the forward and the data pass, by state."""

    nodes: Nodes
    forward: IntArray
    data: IntArray

    @staticmethod
    def from_nodes(nodes: Nodes) -> _PassPairs:
        entries, each = np.arange(len(nodes.codes)), len(nodes.index)
        if nodes.unit is None:
            return _PassPairs(nodes, entries, entries)
        forward, code = np.repeat(entries, each), np.tile(np.arange(each), len(entries))
        return _PassPairs(nodes, forward, forward // each * each + code)


class PassStates:
    """Steps between pairs of codes; options are pairs of a home and a weight-gradient code."""

    def __init__(self, tables: Tables, rules: Rules, *, free: bool = False) -> None:
        """`free`: for seconds where bytes cost nothing; options are then the fastest alone, without
        bytes and meaning.
        """
        self.tables, self.rules, self._free = tables, rules, free
        self._states = [
            [_PassPairs.from_nodes(nodes) for nodes in tables.chain_nodes(i)]
            for i in range(len(tables.block.chains))
        ]
        self._edges = [tables.chain_edges(i) for i in range(len(tables.block.chains))]
        # What each option is: (options, states before, states) of home x codes + weight code.
        self._option_codes: list[list[IntArray]] = []
        self.chains = [self._steps(i) for i in range(len(self._edges))]

    def _steps(self, chain: int) -> list[PathStep]:
        steps = []
        self._option_codes.append([])
        gradient = GradientTables(self.tables, chain)
        states, described = self._states[chain], self.tables.block.chains[chain].edges
        for i, edge in enumerate(self._edges[chain]):
            a, b = states[i], states[i + 1]
            forward, back = np.ix_(a.forward, b.forward), np.ix_(a.data, b.data)
            time = edge.forward_s[forward] + edge.back_s[back]
            if not self.rules.volume_only:
                time += (b.nodes.forward_s[b.forward] + b.nodes.data_s[b.data])[None, :]
            if b.nodes.unit is not None and b.nodes.unit.parameters:
                option_s, state, meaning = self._options(gradient, i + 1, a, b)
            else:
                time += self._fetch(gradient, i + 1, a, b, edge)
                option_s = state = np.zeros((1, 1, len(b.forward)))
                meaning = np.zeros((1, 1, len(b.forward)), np.int64)
            self._option_codes[-1].append(meaning)
            again = edge.again_s[forward]
            if not self.rules.recompute:
                again = np.full_like(again, np.inf)
            steps.append(
                PathStep(
                    time, edge.kept_bytes[forward], again, None, bool(described[i].kept_name),
                    option_s, state,
                )
            )  # fmt: skip
        return steps

    @staticmethod
    def _fetch(
        gradient: GradientTables, unit: int, a: _PassPairs, b: _PassPairs, edge: EdgeTable
    ) -> FloatArray:
        """For the data pass of an operator without weights; nothing hides it."""
        if b.nodes.unit is None:
            return edge.fetch_s[np.ix_(a.forward, b.forward)]
        each = len(b.nodes.index)
        before = np.arange(len(a.nodes.index))
        inputs = gradient.inputs(unit, before, np.arange(each))
        pick = (a.forward[:, None] % len(before), b.forward[None, :] % each, b.data[None, :] % each)
        outputs = gradient.output(unit)
        own = sum(t[b.forward % each, b.data % each] for t in outputs)
        return np.asarray(inputs[0][pick] + inputs[1][pick] + own)

    def _options(
        self, gradient: GradientTables, unit: int, a: _PassPairs, b: _PassPairs
    ) -> tuple[FloatArray, FloatArray, IntArray]:
        """Homes x weight codes of every pair of states: seconds, bytes and meaning of those that no
        other beats.
        """
        node = b.nodes
        each, before = len(node.index), np.arange(len(a.nodes.index))
        inputs = gradient.inputs(unit, before, np.arange(each))
        outputs = gradient.output(unit)
        wide = a.forward % len(before)
        seconds, bytes_, meaning = [], [], []
        for code in range(each):
            weight = b.forward // each * each + code
            come = tuple(t[:, b.forward % each, code] for t in inputs)
            go = tuple(t[b.data % each, code][None, :] for t in outputs)
            streams = node.streams[b.forward][None, :]
            fetched = fetch_s(node, weight[None, :], streams, (come[0], come[1]), (go[0], go[1]))
            if self.rules.volume_only:
                fetched = fetched - node.weight_s[weight][None, :]
            homes = [gradient.home(unit, h, b.forward, b.data, weight) for h in self.rules.homes]
            if self._free:
                seconds.append(fetched + np.min([s for s, _ in homes], axis=0)[None, :])
                continue
            for number, (s, held) in enumerate(homes):
                seconds.append(fetched + s[None, :])
                bytes_.append(np.broadcast_to(held[None, :], fetched.shape))
                meaning.append(number * each + code)
        if self._free:
            fastest = np.min(seconds, axis=0)[None, wide]
            return fastest, np.zeros_like(fastest), np.zeros(fastest.shape, np.int64)
        kept = _undominated(np.stack(seconds), np.stack(bytes_), np.array(meaning))
        return kept[0][:, wide], kept[1][:, wide], kept[2][:, wide]

    def offloading_chains(self, away: Away) -> list[list[PathStep]]:
        """The steps of a stage that may leave tensors in the memory of another."""
        found = []
        for steps, edges, states in zip(self.chains, self._edges, self._states, strict=True):
            changed = []
            for i, (step, edge) in enumerate(zip(steps, edges, strict=True)):
                a, b = states[i], states[i + 1]
                journey = step.saved_bytes / away.bandwidth_Bps + away.latency_s
                streams = b.nodes.streams[b.forward][None, :]
                out = (edge.gather_s[np.ix_(a.forward, b.forward)], b.nodes.forward_s[b.forward])
                back = (edge.scatter_s[np.ix_(a.data, b.data)], b.nodes.data_s[b.data])
                total = np.zeros_like(journey)
                for links, compute in (out, back):
                    behind = (compute[None, :], streams)
                    total += exposed(links + journey, *behind) - exposed(links, *behind)
                changed.append(replace(step, away_s=total))
            found.append(changed)
        return found

    def genes(self, stream: int, way: BlockPath) -> BlockMapping:
        codes, homes, gradients, ways = [], [], [], []
        options = iter(way.options)
        for chain, path in enumerate(way.states):
            before = stream
            for i, here in enumerate(path):
                b = self._states[chain][i + 1]
                each = len(b.nodes.index)
                meaning = self._option_codes[chain][i]
                at = 0 if meaning.shape[1] == 1 else before
                home, code = divmod(int(meaning[next(options), at, here]), each)
                f, d = int(b.forward[here]), int(b.data[here])
                weighted = b.nodes.unit is not None and b.nodes.unit.parameters > 0
                data = b.nodes.codes[d]
                codes.append(b.nodes.codes[f])
                homes.append(self.rules.homes[home])
                gradients.append((data, b.nodes.codes[code] if weighted else data))
                ways.append((bool(b.nodes.streams[f]), self.tables.setting.algorithm))
                before = here
        shared = all(d == w == f for f, (d, w) in zip(codes, gradients, strict=True))
        return BlockMapping(
            self.tables.stream.codes[stream], tuple(codes), tuple(homes), tuple(way.fates),
            () if shared else tuple(gradients), tuple(ways) if len(self.tables.modes) > 1 else (),
        )  # fmt: skip


def _undominated(
    seconds: FloatArray, bytes_: FloatArray, meaning: IntArray
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Along the first axis: options that no other beats in both; the others never end."""
    order = np.lexsort((seconds, bytes_), axis=0)
    s = np.take_along_axis(seconds, order, axis=0)
    held = np.take_along_axis(bytes_, order, axis=0)
    lowest = np.minimum.accumulate(s, axis=0)
    good = np.concatenate([np.ones_like(s[:1], np.bool_), s[1:] < lowest[:-1]])
    count = int(good.sum(axis=0).max())
    first = np.argsort(~good, axis=0, kind="stable")[:count]
    keep = np.take_along_axis(good, first, axis=0)
    s = np.where(keep, np.take_along_axis(s, first, axis=0), np.inf)
    held = np.take_along_axis(held, first, axis=0)
    which = np.take_along_axis(meaning[order], first, axis=0)
    return s, held, which
