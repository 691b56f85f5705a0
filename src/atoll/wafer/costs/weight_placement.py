"""Homes of weights: how the dies that use a weight divide its copies, and the cost of that, for
arrays of codes.

    replicated, optimizer, gradients, weights    ZeRO 0 to 3 over the copies: all state on each die;
                                                 optimizer divided; gradients divided too; weights
                                                 divided too and gathered for every use
    external                                     streamed from outside the wafer

The replicated home sums gradients by an all-reduce; the others gather weights in its second half.
Gradient passes with their own codes add costs that the tables of shared codes do not have:

    fetch    the weight gradient reads the stored input and the data pass's gradient of the output
             in its own layout; a data pass without weights reads the input, attention its output
    home     the data pass reads the weight in its own layout every microbatch; the summed weight
             gradient goes to the home's layout once per step
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from atoll.base.arrays import Bools, Floats, Ints
from atoll.step.states import States
from atoll.wafer.costs import block_kernels as kernels
from atoll.wafer.costs.tables import BlockTables, CostSetting, NodeTable, distinct_layouts, exposed
from atoll.wafer.encoding.block_parts import HOMES

StateBytes = tuple[Floats, Floats, Floats]


class ReshardTimes(NamedTuple):
    """Seconds to re-shard tensors without partial sums."""

    exchange_s: Floats
    gather_s: Floats

    def pick(self, index: Any) -> ReshardTimes:
        return ReshardTimes(self.exchange_s[index], self.gather_s[index])

    @property
    def total_s(self) -> Floats:
        return self.exchange_s + self.gather_s


def home_bytes(
    states: States, home: str, node: NodeTable, forward: Ints, weight: Ints
) -> StateBytes:
    """Return bytes per die of weights, gradients and optimizer state, for entries of the forward
    pass and of the weight pass, whose layout the gradients have.
    """
    if home == "external":
        nothing = 0.0 * node.parameters[forward]
        return nothing, nothing, nothing
    zero = HOMES.index(home)
    parameters, summed = node.parameters[forward], node.parameters[weight]
    weights, _, optimizer = states.parts(parameters, parameters / node.copies[forward], zero)
    _, gradients, _ = states.parts(summed, summed / node.copies[weight], zero)
    return weights, gradients, optimizer


def home_cost(
    node: NodeTable, home: str, setting: CostSetting, forward: Ints, data: Ints,
    weight: Ints, exchange: Floats | float = 0.0, gather: Floats | float = 0.0,
    to_home: Floats | float = 0.0,
) -> tuple[Floats, Floats]:  # fmt: skip
    """Return seconds per microbatch and bytes of state per die, for entries of the three passes.

    `exchange` and `gather` re-shard the weight for the data pass, `to_home` the summed gradient.
    """
    streams, rounds = node.streams[forward], float(setting.microbatches)
    state_bytes = sum(home_bytes(setting.states, home, node, forward, weight))
    zero = np.zeros(np.broadcast_shapes(forward.shape, data.shape, weight.shape))
    if home == "external":
        late_s = node.port_s[data] - node.data_s[data] - node.weight_s[weight]
        seconds = np.maximum(0.0, node.port_s[forward] - node.forward_s[forward])
        return seconds + np.maximum(0.0, late_s) + zero, state_bytes + zero
    per_microbatch_s = to_home / rounds + node.step_s[forward] / (
        1.0 if home == "replicated" else node.copies[forward]
    )
    gathered_s, summed_s = node.weight_gather_s[forward], node.gradient_sum_s[weight]
    if home == "replicated":
        gathered_s = node.gradient_sum_s[forward]
    if home in ("gradients", "weights"):
        per_microbatch_s = per_microbatch_s + exposed(summed_s, node.weight_s[weight], streams)
    else:
        per_microbatch_s = per_microbatch_s + summed_s / rounds
    if home == "weights":
        per_microbatch_s = per_microbatch_s + exposed(gathered_s, node.forward_s[forward], streams)
        gather = gather + gathered_s
    else:
        per_microbatch_s = per_microbatch_s + gathered_s / rounds
    seconds = per_microbatch_s + exchange + exposed(gather + zero, node.data_s[data], streams)
    return seconds + zero, state_bytes + zero


class GradientTables:
    """Re-sharding tables of the operators of a chain, computed when first used."""

    def __init__(self, tables: BlockTables, chain: int) -> None:
        self.tables, self.chain = tables, chain
        self.nodes = tables.chain_nodes(chain)
        self.edges = tables.block.chains[chain].edges
        self.output = cache(self._output)
        self.weight = cache(self._weight)

    def _totals(self, edge: int) -> Floats:
        return np.array(self.edges[edge].totals)

    def _output(self, unit: int) -> ReshardTimes:
        """(codes, codes): the output's gradient (or output) between layouts of gradient passes."""
        node = self.nodes[unit]
        count = len(node.index)
        if node.unit is not None and (node.unit.parameters or node.unit.on_chip):
            return self._reshard_s(self._totals(unit), node.gradient_reads[:count])
        return ReshardTimes(*np.zeros((2, count, count)))

    def _weight(self, unit: int, bytes_per_parameter: float) -> ReshardTimes:
        """(codes, codes): the weight (or its gradient) between layouts."""
        node = self.nodes[unit]
        assert node.unit is not None
        size = np.array([bytes_per_parameter * node.unit.parameters])
        return self._reshard_s(size, node.weight_layouts[: len(node.index)])

    def _reshard_s(self, totals: Floats, layouts: Ints) -> ReshardTimes:
        distinct, indices = distinct_layouts(layouts)
        times = np.zeros((2, len(distinct), len(distinct)))
        kernels.reshard_matrix(totals, distinct, distinct, *self.tables.mesh, *times)
        return ReshardTimes(*times).pick(np.ix_(indices, indices))

    def inputs(self, unit: int, source: Ints, target: Ints) -> ReshardTimes:
        """(sources, targets, codes): the input stored between forward entries, in every layout."""
        before, node = self.nodes[unit - 1], self.nodes[unit]
        count = len(node.index)
        times = np.zeros((2, len(source), len(target), count))
        kernels.fetch_cube(
            self._totals(unit - 1), before.writes[source], node.reads[target], node.reads[:count],
            *self.tables.mesh, *times,
        )  # fmt: skip
        return ReshardTimes(*times)

    def home(
        self, unit: int, home: str, forward: Ints, data: Ints, weight: Ints
    ) -> tuple[Floats, Floats]:
        """Return seconds and bytes of state for entries of the three passes, which broadcast."""
        node = self.nodes[unit]
        count = len(node.index)
        states = self.tables.setting.states
        moves = self.weight(unit, states.weight).pick((forward % count, data % count))
        to_home = self.weight(unit, states.reduced).pick((weight % count, forward % count)).total_s
        return home_cost(node, home, self.tables.setting, forward, data, weight, *moves, to_home)


def fetch_s(
    node: NodeTable, weight: Ints, streams: Bools, inputs: ReshardTimes, outputs: ReshardTimes
) -> Floats:
    """Return the exposed seconds of a gradient pass's input and output, and its compute seconds."""
    exchange_s = inputs.exchange_s + outputs.exchange_s
    gather_s = exposed(inputs.gather_s + outputs.gather_s, node.weight_s[weight], streams)
    return np.asarray(exchange_s + gather_s + node.weight_s[weight])
