"""The exact part over every code of every pass and every home, with bytes, for small meshes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.wafer.costs.tables import BlockTables, exposed
from atoll.wafer.costs.weight_placement import GradientTables
from atoll.wafer.encoding.block_parts import BlockMapping, HelperPath
from atoll.wafer.exact.pass_states import PassPairs, PassStates
from atoll.wafer.exact.paths import FATE_ORDER, PathChoices, PathStep, by_chain
from atoll.wafer.exact.shared_states import Rules


class AllPassStates(PassStates):
    """Steps whose options are pairs of a home and a weight-gradient code, undominated."""

    def __init__(self, tables: BlockTables, rules: Rules) -> None:
        self._option_codes: dict[tuple[int, int], Ints] = {}
        """(options, states before, states) by chain and operator: home x codes + weight code."""
        super().__init__(tables, rules)

    def _options(
        self, gradient: GradientTables, unit: int, source: PassPairs, target: PassPairs
    ) -> tuple[Floats, Floats]:
        count, rows = len(target.nodes.index), source.forward % len(source.nodes.index)
        seconds, bytes_, option_codes = [], [], []
        passes = self._weight_passes_s(gradient, unit, source, target)
        for code, (weight, fetched_s) in enumerate(zip(*passes, strict=True)):
            for home_index, home in enumerate(self.rules.homes):
                entries = target.forward, target.data, weight
                home_s, home_bytes = gradient.home(unit, home, *entries)
                seconds.append(fetched_s + home_s[None, :])
                bytes_.append(np.broadcast_to(home_bytes[None, :], fetched_s.shape))
                option_codes.append(home_index * count + code)
        options = np.stack(seconds), np.stack(bytes_), np.array(option_codes)
        best_s, best_bytes, codes = (column[:, rows] for column in undominated(*options))
        self._option_codes[gradient.chain, unit] = codes
        return best_s, best_bytes

    def offloading_chains(self, away: HelperPath) -> list[list[PathStep]]:
        """The steps of a stage that may offload tensors to another stage's memory."""
        offloading = []
        for steps, edges, states in zip(self.chains, self.edges, self.states, strict=True):
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

    def block_mapping(self, stream: int, path: PathChoices) -> BlockMapping:
        codes, homes, gradients, collectives = [], [], [], []
        for chain, choices in enumerate(by_chain(self.chains, path)):
            previous = stream
            for i, (state, option, _) in enumerate(choices[:-1].tolist(), 1):
                pairs = self.states[chain][i]
                home = weight = 0
                if (chain, i) in self._option_codes:
                    code = int(self._option_codes[chain, i][option, previous, state])
                    home, weight = divmod(code, len(pairs.nodes.index))
                forward, data = int(pairs.forward[state]), pairs.nodes.codes[pairs.data[state]]
                weighted = pairs.nodes.unit is not None and pairs.nodes.unit.parameters > 0
                codes.append(pairs.nodes.codes[forward])
                homes.append(self.rules.homes[home])
                gradients.append((data, pairs.nodes.codes[weight] if weighted else data))
                streams = bool(pairs.nodes.streams[forward])
                collectives.append((streams, self.tables.setting.algorithm))
                previous = state
        shared = all(d == w == f for f, (d, w) in zip(codes, gradients, strict=True))
        steps = (step for chain in self.chains for step in chain)
        fates = zip(steps, path[:, -1].tolist(), strict=True)
        return BlockMapping(
            self.tables.stream.codes[stream], tuple(codes), tuple(homes),
            tuple(FATE_ORDER[fate] for step, fate in fates if step.droppable),
            () if shared else tuple(gradients),
            tuple(collectives) if len(self.tables.modes) > 1 else (),
        )  # fmt: skip


def undominated(seconds: Floats, bytes_: Floats, codes: Ints) -> tuple[Floats, Floats, Ints]:
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
