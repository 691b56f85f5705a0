"""Values while a graph runs: known ones as numpy arrays, all others as tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from atoll.errors import AtollError
from atoll.tracing.from_onnx.graph import Array, Node
from atoll.tracing.record.torch_api import held

Value = Any
"""A torch.Tensor, a numpy array where it is known, or None for an input that is left out."""


@dataclass
class Context:
    """What operators need beside their inputs."""

    opset: int
    float_type: str
    """The type in the file that `dtype` stands for."""
    dtype: torch.dtype
    hold: Callable[[Array, torch.dtype], torch.Tensor] = lambda value, kind: held(value.shape, kind)
    """Makes a tensor of a known value; while a module is captured, one without values."""
    made: dict[int, torch.Tensor] = field(default_factory=dict)
    """Known values that have become tensors, by the identity of their array."""
    keep: list[Array] = field(default_factory=list)

    def torch_dtype(self, name: str) -> torch.dtype:
        """A type of the file as the run has it."""
        if name == self.float_type:
            return self.dtype
        found = getattr(torch, {"bool_": "bool"}.get(name, name), None)
        if not isinstance(found, torch.dtype):
            raise AtollError(f"type {name} is not supported")
        return found

    def tensor(self, value: Value) -> torch.Tensor:
        """A known value as a tensor that the module holds."""
        if isinstance(value, torch.Tensor):
            return value
        if id(value) not in self.made:
            self.keep.append(value)  # its identity is the key
            self.made[id(value)] = self.hold(value, self.torch_dtype(str(value.dtype)))
        return self.made[id(value)]

    def operand(self, value: Value, beside: Value) -> Any:
        """As `tensor`, but a single number beside a tensor stays a number."""
        if isinstance(value, torch.Tensor) or value is None:
            return value
        if isinstance(beside, torch.Tensor) and value.size == 1 and value.ndim <= beside.ndim:
            return value.reshape(-1)[0].item()
        return self.tensor(value)


class UnsupportedError(Exception):
    """An operator, or a setting of one, that has no counterpart here."""


def need(condition: object, what: str) -> None:
    if not condition:
        raise UnsupportedError(what)


def ints(value: Value, what: str) -> list[int]:
    """A known list of whole numbers (a shape, axes, indices)."""
    need(not isinstance(value, torch.Tensor), f"its {what} depends on the data")
    return [int(n) for n in np.asarray(value).reshape(-1)]


def axes_of(node: Node, args: Sequence[Value], at: int = 1) -> list[int] | None:
    """Axes as an attribute (older opsets) or as an input."""
    if "axes" in node.attributes:
        return [int(n) for n in node.attributes["axes"]]
    if len(args) > at and args[at] is not None:
        return ints(args[at], "axes")
    return None
