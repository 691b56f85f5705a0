"""What each distinct operator does, whatever the chip: the raw material of rooflines and energy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atoll.base.arrays import FloatArray
from atoll.cost.table import OperatorKey, link_s
from atoll.cost.vector import operations_per_element
from atoll.fabric.network import Network


@dataclass(frozen=True, eq=False)
class OperatorWork:
    """One entry per distinct operator of a pass set."""

    macs: FloatArray
    """Multiply-adds that must be computed (masked tiles left out)."""
    vector_ops: FloatArray
    bytes: FloatArray
    link_bytes: FloatArray
    link_s: FloatArray
    outputs: FloatArray
    """Elements that its products make (masked ones left out)."""
    starts: FloatArray
    """1, or 0 of collectives, whose network has its own latency."""


def operator_work(keys: tuple[OperatorKey, ...], network: Network, operations: str) -> OperatorWork:
    operators = [key.operator for key in keys]
    return OperatorWork(
        macs=np.array([sum(m.flops / 2 * m.fraction for m in op.matmuls) for op in operators]),
        vector_ops=np.array(
            [
                sum(
                    float(w.elements * operations_per_element(w.function, operations))
                    for w in op.vectors
                )
                for op in operators
            ]
        ),
        bytes=np.array([float(key.bytes) for key in keys]),
        link_bytes=np.array(
            [0.0 if op.collective is None else float(op.collective.bytes) for op in operators]
        ),
        link_s=np.array([link_s(op, network) for op in operators]),
        outputs=np.array(
            [sum(p.batch * p.m * p.n * p.fraction for p in op.matmuls) for op in operators]
        ),
        starts=np.array([float(op.collective is None) for op in operators]),
    )
