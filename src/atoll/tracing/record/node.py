"""Operators of one captured layer while they are turned into Atoll's: nodes with their work."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import prod

from atoll.tracing.record.trace import Call, View
from atoll.workload.graph.operator import Matmul


class Kind(StrEnum):
    PRODUCT = "product"
    ATTENTION = "attention"
    ELEMENTWISE = "elementwise"  # element by element, copies included: fuses with anything
    ROWS = "rows"  # norms, softmax, sums: fuses with element-wise neighbours
    GATHER = "gather"  # elements read by index: fuses with what reads them
    SCATTER = "scatter"  # elements written by index: fuses with what makes them
    MOVE = "move"  # look-ups, pooling and the like


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of a vector function over a tensor; its last `inner` dimensions are a row."""

    function: str
    over: View
    inner: int = 1
    times: int = 1

    @property
    def rows(self) -> int:
        return prod(self.over.shape[: len(self.over.shape) - self.inner])

    @property
    def cols(self) -> int:
        return self.times * prod(self.over.shape[len(self.over.shape) - self.inner :])


@dataclass(slots=True)
class Node:
    """A call with its work. `ins` are the views that it reads from memory."""

    call: Call
    kind: Kind
    ins: list[View]
    outs: list[View]
    matmuls: tuple[Matmul, ...] = ()
    passes: tuple[Pass, ...] = ()
    again: bool = False
    """A forward operator that runs once more in the backward pass, where kernels are fused."""
    known: bool = True
    """False for an operator that the table lacks: it counts as one operation an element."""
    rows_of: View | None = None
    """Of a look-up: the table, of which only the rows that are asked for move."""
    dealt_out: tuple[str, int] | None = None
    """Of a grouped product: the dimension whose rows are dealt out to the groups, and all rows."""

    @property
    def op(self) -> str:
        return self.call.op
