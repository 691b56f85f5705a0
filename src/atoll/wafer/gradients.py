"""What gradient passes with codes of their own cost beside the tables of shared codes.

    fetch    the weight gradient wants the input (from where it is stored) and the gradient of the
             output (from the data pass) in its own layout; a data pass without weights wants the
             input, and attention its output
    home     the data pass wants the weight in its own layout every microbatch; the summed weight
             gradient goes to the home's layout once a step
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from atoll.wafer import edge_kernels
from atoll.wafer.tables import HOMES, Nodes, Tables, exposed

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


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
            layouts = node.gradient_reads[:each]
            edge_kernels.moved_matrix(
                self._totals(unit), layouts, layouts, *self.tables.mesh, *tables
            )
        return tables

    def _weight(self, unit: int) -> tuple[FloatArray, FloatArray]:
        """(codes, codes): exchange and gather of the weight between layouts."""
        node = self.nodes[unit]
        assert node.unit is not None
        each = len(node.index)
        tables = np.zeros((each, each)), np.zeros((each, each))
        layouts = node.weights[:each]
        size = np.array([2.0 * node.unit.parameters])
        edge_kernels.moved_matrix(size, layouts, layouts, *self.tables.mesh, *tables)
        return tables

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
        edge_kernels.stored_cube(
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
        exchange, gather = (t[forward % each, data % each] for t in self.weight(unit))
        to_home = sum(t[weight % each, forward % each] for t in self.weight(unit))
        streams, rounds = node.streams[forward], float(self.tables.setting.microbatches)
        one_f, one_w = node.sum_s[forward], node.sum_s[weight]
        w_f, c_f = node.parameters[forward], node.copies[forward]
        w_w, c_w = node.parameters[weight], node.copies[weight]
        step = node.step_s[forward] / (1.0 if home == "replicated" else c_f)
        zero = np.zeros(np.broadcast_shapes(forward.shape, data.shape, weight.shape))
        moved = exchange + exposed(gather, node.data_s[data], streams)
        summed = exposed(one_w, node.weight_s[weight], streams)
        once = to_home / rounds + step
        if home in ("replicated", "optimizer"):
            seconds = (one_f + one_w) / rounds + moved + once
            state = 2.0 * w_f + 2.0 * w_w + 12.0 * w_f / (1.0 if home == "replicated" else c_f)
        elif home == "gradients":
            seconds = summed + one_f / rounds + moved + once
            state = 2.0 * w_f + 2.0 * w_w / c_w + 12.0 * w_f / c_f
        elif home == "weights":
            seconds = exposed(one_f, node.forward_s[forward], streams) + exchange + summed + once
            seconds = seconds + exposed(one_f + gather, node.data_s[data], streams)
            state = 14.0 * w_f / c_f + 2.0 * w_w / c_w
        else:
            assert home == HOMES[-1]
            seconds = np.maximum(0.0, node.port_s[forward] - node.forward_s[forward])
            late = node.port_s[data] - node.data_s[data] - node.weight_s[weight]
            seconds, state = seconds + np.maximum(0.0, late), zero
        return seconds + zero, state + zero


def fetch_s(
    node: Nodes, weight: IntArray, streams: NDArray[np.bool_],
    inputs: tuple[FloatArray, FloatArray], outputs: tuple[FloatArray, FloatArray],
) -> FloatArray:  # fmt: skip
    """Exposed seconds of fetching input and output for a gradient pass, and its own compute."""
    moved = inputs[0] + outputs[0]
    hidden = exposed(inputs[1] + outputs[1], node.weight_s[weight], streams)
    return np.asarray(moved + hidden + node.weight_s[weight])
