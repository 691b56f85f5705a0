"""What one run of a module on fake tensors left behind, in plain data: calls, values and views.

A value is what a storage holds between two writes to it. Every tensor is a view of a value, so
reshapes, transposes and slices are no calls: they only change the view through which a value is
read.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import prod


class ValueSource(StrEnum):
    WEIGHT = "weight"
    BUFFER = "buffer"
    INPUT = "input"
    COMPUTED = "computed"


@dataclass(slots=True)
class Value:
    """Contents of one storage; `name` is the parameter's or input's, where it is one."""

    number: int
    elements: int
    element_bytes: int
    source: ValueSource
    name: str = ""

    @property
    def bytes(self) -> int:
        return self.elements * self.element_bytes


@dataclass(frozen=True, slots=True)
class TensorView:
    """A tensor: a part of a value, seen with a shape and strides (in elements)."""

    value: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    element_bytes: int
    floating: bool

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def distinct(self) -> int:
        """Number of elements without the repeats of expanded dimensions."""
        return prod(n for n, s in zip(self.shape, self.strides, strict=True) if s)

    @property
    def bytes(self) -> int:
        return self.distinct * self.element_bytes


Argument = object
"""A TensorView, None, a number, a text, or a tuple of these."""


@dataclass(frozen=True, slots=True)
class OperatorCall:
    """One operator that ran; `scope` is the module call in which it (or its forward twin) ran."""

    op: str
    args: tuple[Argument, ...]
    outs: tuple[TensorView, ...]
    scope: str
    path: str
    """The module's path: the scope without the number of the call."""
    backward: bool
    tick: int
    """When it ran (views tick too); of a backward call: when its forward twin ran."""
    unmasked_share: float | None = None
    """Share of the attention scores that the mask leaves, if the module states it."""

    @property
    def ins(self) -> tuple[TensorView, ...]:
        return tuple(views(self.args))


def views(argument: Argument) -> list[TensorView]:
    """All tensors in an argument, in order."""
    if isinstance(argument, TensorView):
        return [argument]
    if isinstance(argument, tuple):
        return [view for item in argument for view in views(item)]
    return []


@dataclass(slots=True)
class ModuleTrace:
    """Forward calls, then backward calls, in the order in which they ran."""

    values: list[Value] = field(default_factory=list)
    calls: list[OperatorCall] = field(default_factory=list)
    ticks: list[str] = field(default_factory=list)
    """The module's path at each tick of the forward pass."""
    gradient_weights: dict[int, int] = field(default_factory=dict)
    """Gradient (or gradient share) of a weight -> that weight, as value numbers."""
    targets: tuple[int, ...] = ()
    """Values from which the backward pass starts."""
    containers: tuple[str, ...] = ()
    """Paths of the lists of modules, the outermost first."""
    classes: dict[str, str] = field(default_factory=dict)
    """Class of the module at each path."""
    unused: tuple[str, ...] = ()
    """Parameters that no gradient reaches."""
    window: int = 0
    """Attention window in tokens stated by the module's configuration; 0: none."""

    def drop_dead_calls(self) -> None:
        """Drop calls whose results neither the outputs nor a weight's gradient depend on."""
        wanted = {*self.gradient_weights, *self.targets}
        live_calls: list[OperatorCall] = []
        for call in reversed(self.calls):
            if all(view.elements == 0 for view in call.outs):
                continue
            if any(view.value in wanted for view in call.outs):
                wanted.update(view.value for view in call.ins)
                live_calls.append(call)
        self.calls = live_calls[::-1]

    def drop_shared_gradient_sums(self) -> None:
        """Drop additions of gradient shares of a weight that several layers use: the shares are
        summed once per step, not in a layer."""
        remaining: list[OperatorCall] = []
        for call in reversed(self.calls):
            total = call.outs[0].value
            ins = call.ins
            share = (
                call.backward
                and call.op == "add"
                and total in self.gradient_weights
                and len(ins) == 2
                and all(view.elements == call.outs[0].elements for view in ins)
            )
            if share:
                weight = self.gradient_weights.pop(total)
                self.gradient_weights.update({view.value: weight for view in ins})
            else:
                remaining.append(call)
        self.calls = remaining[::-1]
