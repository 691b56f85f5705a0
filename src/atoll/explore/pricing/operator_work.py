"""Chip-independent work of each distinct operator, for rooflines and energy."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.cost.table import OperatorKey, link_s
from atoll.cost.vector import operations_per_element
from atoll.fabric.network import Network
from atoll.workload.graph.operator import Operator


@dataclass(frozen=True, eq=False)
class OperatorWork:
    """Work of the distinct operators of a pass set, arrays of shape (operators,)."""

    macs: Floats  # multiply-adds, without masked tiles
    vector_ops: Floats
    bytes: Floats
    link_bytes: Floats
    link_s: Floats
    outputs: Floats  # output elements of the matrix products, without masked ones
    starts: Floats  # 1, or 0 for collectives, whose latency is part of the network model

    def subset(self, rows: Ints) -> OperatorWork:
        """Return the work of some of the operators."""
        return OperatorWork(*(getattr(self, f.name)[rows] for f in fields(self)))


def operator_work(keys: tuple[OperatorKey, ...], network: Network, operations: str) -> OperatorWork:
    def vector_ops(op: Operator) -> float:
        counts = (w.elements * operations_per_element(w.function, operations) for w in op.vectors)
        return sum(map(float, counts))

    operators = [key.operator for key in keys]
    collectives = [op.collective for op in operators]
    return OperatorWork(
        macs=np.array([sum(m.flops / 2 * m.fraction for m in op.matmuls) for op in operators]),
        vector_ops=np.array([vector_ops(op) for op in operators]),
        bytes=np.array([float(key.bytes) for key in keys]),
        link_bytes=np.array([0.0 if c is None else float(c.bytes) for c in collectives]),
        link_s=np.array([link_s(op, network) for op in operators]),
        outputs=np.array(
            [sum(p.batch * p.m * p.n * p.fraction for p in op.matmuls) for op in operators]
        ),
        starts=np.array([float(c is None) for c in collectives]),
    )
