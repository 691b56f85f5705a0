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

from atoll.arrays import BoolArray, FloatArray, IntArray
from atoll.wafer.costs import block_kernels as kernels
from atoll.wafer.costs.homes import home_cost
from atoll.wafer.costs.tables import Nodes, Tables, exposed


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
            kernels.moved_matrix(
                self._totals(unit), layouts, layouts, *self.tables.mesh, *tables
            )
        return tables

    def _weight(self, unit: int, each_bytes: float) -> tuple[FloatArray, FloatArray]:
        """(codes, codes): exchange and gather of the weight (or its gradient), so many bytes a
        parameter, between layouts.
        """
        node = self.nodes[unit]
        assert node.unit is not None
        each = len(node.index)
        tables = np.zeros((each, each)), np.zeros((each, each))
        layouts = node.weights[:each]
        size = np.array([each_bytes * node.unit.parameters])
        kernels.moved_matrix(size, layouts, layouts, *self.tables.mesh, *tables)
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
