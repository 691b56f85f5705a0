"""Homes of weights: where the copies of a weight live among the dies that use it, and what that
costs, for whole arrays of codes.

    replicated, optimizer, gradients, weights    ZeRO 0 to 3 over the copies: all state on each die;
                                                 the optimizer's divided; gradients too; weights
                                                 too, gathered for every use
    external                                     streamed from outside the wafer

A home that divides nothing sums gradients in both halves of an all-reduce; the others gather
weights in its second half. Gradient passes with codes of their own cost more, beside the tables of
shared codes:

    fetch    the weight gradient wants the input (from where it is stored) and the gradient of the
             output (from the data pass) in its own layout; a data pass without weights wants the
             input, and attention its output
    home     the data pass wants the weight in its own layout every microbatch; the summed weight
             gradient goes to the home's layout once a step
"""

from __future__ import annotations

from functools import cache

import numpy as np

from atoll.arrays import BoolArray, FloatArray, IntArray
from atoll.step.states import States
from atoll.wafer.costs import block_kernels as kernels
from atoll.wafer.costs.tables import Nodes, Setting, Tables, distinct, exposed
from atoll.wafer.encoding.genes import HOMES

StateBytes = tuple[FloatArray, FloatArray, FloatArray]


def home_bytes(
    states: States, home: str, node: Nodes, forward: IntArray, weight: IntArray
) -> StateBytes:
    """Bytes a die of weights, gradients and optimizer state, for entries of the forward and of the
    weight pass: gradients lie as the latter leaves them.
    """
    if home == "external":
        nothing = 0.0 * node.parameters[forward]
        return nothing, nothing, nothing
    zero = HOMES.index(home)
    own, summed = node.parameters[forward], node.parameters[weight]
    weights, _, optimizer = states.parts(own, own / node.copies[forward], zero)
    return weights, states.parts(summed, summed / node.copies[weight], zero)[1], optimizer


def home_cost(
    node: Nodes, home: str, setting: Setting, forward: IntArray, data: IntArray, weight: IntArray,
    exchange: FloatArray | float = 0.0, gather: FloatArray | float = 0.0,
    to_home: FloatArray | float = 0.0,
) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """Seconds a microbatch and bytes of state a die, for entries of the three passes.

    `exchange` and `gather` re-shard the weight for the data pass, `to_home` the summed gradient.
    """
    streams, rounds = node.streams[forward], float(setting.microbatches)
    held = sum(home_bytes(setting.states, home, node, forward, weight))
    zero = np.zeros(np.broadcast_shapes(forward.shape, data.shape, weight.shape))
    if home == "external":
        late = node.port_s[data] - node.data_s[data] - node.weight_s[weight]
        seconds = np.maximum(0.0, node.port_s[forward] - node.forward_s[forward])
        return seconds + np.maximum(0.0, late) + zero, held + zero
    once = to_home / rounds + node.step_s[forward] / (
        1.0 if home == "replicated" else node.copies[forward]
    )
    gathered, summed = node.gather_s[forward], node.sum_s[weight]
    if home == "replicated":
        gathered = node.sum_s[forward]
    if home in ("gradients", "weights"):
        once = once + exposed(summed, node.weight_s[weight], streams)
    else:
        once = once + summed / rounds
    if home == "weights":
        once = once + exposed(gathered, node.forward_s[forward], streams)
        gather = gather + gathered
    else:
        once = once + gathered / rounds
    seconds = once + exchange + exposed(gather + zero, node.data_s[data], streams)
    return seconds + zero, held + zero


class GradientTables:
    """Re-sharding tables of the operators of a chain; filled as they are asked for."""

    def __init__(self, tables: Tables, chain: int) -> None:
        self.tables, self.chain = tables, chain
        self.nodes = tables.chain_nodes(chain)
        self.edges = tables.block.chains[chain].edges
        self.output = cache(self._output)
        self.weight = cache(self._weight)

    def _totals(self, edge: int) -> FloatArray:
        return np.array(self.edges[edge].totals)

    def _output(self, unit: int) -> tuple[FloatArray, FloatArray]:
        """(codes, codes): exchange and gather of the output's gradient (or the output itself)
        between layouts in which the operator's gradient passes want it.
        """
        node = self.nodes[unit]
        each = len(node.index)
        tables = np.zeros((each, each)), np.zeros((each, each))
        if node.unit is not None and (node.unit.parameters or node.unit.on_chip):
            return self._moved(self._totals(unit), node.gradient_reads[:each])
        return tables

    def _weight(self, unit: int, each_bytes: float) -> tuple[FloatArray, FloatArray]:
        """(codes, codes): exchange and gather of the weight (or its gradient), so many bytes a
        parameter, between layouts.
        """
        node = self.nodes[unit]
        assert node.unit is not None
        size = np.array([each_bytes * node.unit.parameters])
        return self._moved(size, node.weights[: len(node.index)])

    def _moved(self, totals: FloatArray, layouts: IntArray) -> tuple[FloatArray, FloatArray]:
        some, which = distinct(layouts)
        found = np.zeros((2, len(some), len(some)))
        kernels.moved_matrix(totals, some, some, *self.tables.mesh, *found)
        exchange, gather = (part[np.ix_(which, which)] for part in found)
        return exchange, gather

    def inputs(
        self, unit: int, source: IntArray, target: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """(sources, targets, codes): exchange and gather of the stored input in the layout of every
        code; `source` and `target` are entries of the forward passes.
        """
        before, node = self.nodes[unit - 1], self.nodes[unit]
        each = len(node.index)
        shape = len(source), len(target), each
        tables = np.zeros(shape), np.zeros(shape)
        kernels.stored_cube(
            self._totals(unit - 1), before.writes[source], node.reads[target], node.reads[:each],
            *self.tables.mesh, *tables,
        )  # fmt: skip
        return tables

    def home(
        self, unit: int, home: str, forward: IntArray, data: IntArray, weight: IntArray
    ) -> tuple[FloatArray, FloatArray]:
        """Seconds and bytes of state for entries of the three passes (arrays that broadcast)."""
        node = self.nodes[unit]
        each = len(node.index)
        states = self.tables.setting.states
        exchange, gather = (
            t[forward % each, data % each] for t in self.weight(unit, states.weight)
        )
        to_home = sum(t[weight % each, forward % each] for t in self.weight(unit, states.reduced))
        return home_cost(
            node, home, self.tables.setting, forward, data, weight, exchange, gather, to_home
        )


def fetch_s(
    node: Nodes, weight: IntArray, streams: BoolArray,
    inputs: tuple[FloatArray, FloatArray], outputs: tuple[FloatArray, FloatArray],
) -> FloatArray:  # fmt: skip
    """Exposed seconds of fetching input and output for a gradient pass, and its own compute."""
    moved = inputs[0] + outputs[0]
    hidden = exposed(inputs[1] + outputs[1], node.weight_s[weight], streams)
    return np.asarray(moved + hidden + node.weight_s[weight])
