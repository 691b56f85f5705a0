"""Operators of one captured layer while they are turned into Atoll's: nodes with their work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from atoll.tracing.record.trace import OperatorCall, TensorView
from atoll.workload.graph.operator import Matmul


class NodeKind(StrEnum):
    PRODUCT = "product"
    ATTENTION = "attention"
    ELEMENTWISE = "elementwise"  # element by element, copies included: fuses with anything
    ROWS = "rows"  # norms, softmax, sums: fuses with element-wise neighbours
    GATHER = "gather"  # elements read by index: fuses with what reads them
    SCATTER = "scatter"  # elements written by index: fuses with what makes them
    MOVE = "move"  # look-ups, pooling and the like


@dataclass(frozen=True, slots=True)
class VectorPass:
    """One pass of a vector function over a tensor; its last `inner` dimensions are a row."""

    function: str
    over: TensorView
    inner: int = 1
    times: int = 1

    @property
    def rows(self) -> int:
        return prod(self.over.shape[: len(self.over.shape) - self.inner])

    @property
    def cols(self) -> int:
        return self.times * prod(self.over.shape[len(self.over.shape) - self.inner :])


@dataclass(slots=True)
class CallNode:
    """A call with its work. `ins` are the views that it reads from memory."""

    call: OperatorCall
    kind: NodeKind
    ins: list[TensorView]
    outs: list[TensorView]
    matmuls: tuple[Matmul, ...] = ()
    passes: tuple[VectorPass, ...] = ()
    recomputed: bool = False
    """Whether this is a forward operator recomputed in the backward pass."""
    in_table: bool = True
    """False for an operator missing from the table, which counts as one operation per element."""
    lookup_table: TensorView | None = None
    """The table of a look-up; only its requested rows move."""
    grouped_rows: tuple[str, int] | None = None
    """Grouped product: the dimension whose rows are split over groups, and the total rows."""

    @property
    def op(self) -> str:
        return self.call.op


Nodes = Sequence[CallNode]
