"""Values while a graph runs: constants as numpy arrays, all others as tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from atoll.base.errors import AtollError
from atoll.tracing.from_onnx.graph import Array, OnnxNode
from atoll.tracing.record.torch_api import buffer_tensor

Value = Any
"""A torch.Tensor, a numpy array where it is known, or None for an input that is left out."""


@dataclass
class OnnxContext:
    """Settings that operators need in addition to their inputs."""

    opset: int
    float_type: str
    """The type in the file that `dtype` stands for."""
    dtype: torch.dtype
    hold: Callable[[Array, torch.dtype], torch.Tensor] = lambda value, kind: buffer_tensor(
        value.shape, kind
    )
    """Makes a tensor from a constant; during capture, one without values."""
    tensors: dict[int, torch.Tensor] = field(default_factory=dict)
    """Tensors made from constants, by the identity of their array."""
    arrays: list[Array] = field(default_factory=list)

    def torch_dtype(self, name: str) -> torch.dtype:
        """Return the torch type for a type name of the file."""
        if name == self.float_type:
            return self.dtype
        dtype = getattr(torch, {"bool_": "bool"}.get(name, name), None)
        if not isinstance(dtype, torch.dtype):
            raise AtollError(f"type {name} is not supported")
        return dtype

    def tensor(self, value: Value) -> torch.Tensor:
        """Return a constant as a tensor that the module holds."""
        if isinstance(value, torch.Tensor):
            return value
        if id(value) not in self.tensors:
            self.arrays.append(value)  # its identity is the key
            self.tensors[id(value)] = self.hold(value, self.torch_dtype(str(value.dtype)))
        return self.tensors[id(value)]

    def operand(self, value: Value, partner: Value) -> Any:
        """As `tensor`, but a scalar combined with a tensor stays a number."""
        if isinstance(value, torch.Tensor) or value is None:
            return value
        if isinstance(partner, torch.Tensor) and value.size == 1 and value.ndim <= partner.ndim:
            return value.reshape(-1)[0].item()
        return self.tensor(value)


class UnsupportedError(Exception):
    """An operator, or a setting of one, that has no counterpart here."""


def need(condition: object, what: str) -> None:
    if not condition:
        raise UnsupportedError(what)


@dataclass(frozen=True, slots=True)
class OnnxCall:
    """A node while it runs: its inputs and settings, as operators ask for them."""

    context: OnnxContext
    node: OnnxNode
    args: Sequence[Value]

    @property
    def op(self) -> str:
        return self.node.op

    @property
    def first(self) -> torch.Tensor:
        """The first input."""
        return self.tensor(0)

    def value(self, at: int) -> Value:
        """An input as it is; None where it is left out."""
        return self.args[at] if at < len(self.args) else None

    def tensor(self, at: int) -> torch.Tensor:
        return self.context.tensor(self.args[at])

    def tensors(self, most: int | None = None) -> list[torch.Tensor]:
        return [self.context.tensor(value) for value in self.args[:most]]

    def optional(self, at: int) -> torch.Tensor | None:
        return None if self.value(at) is None else self.tensor(at)

    def index(self, at: int) -> torch.Tensor:
        return self.tensor(at).to(torch.int64)

    def pair(self, left: int, right: int) -> tuple[Any, Any]:
        """Two operands, of which one may stay a number."""
        a, b = self.args[left], self.args[right]
        return self.context.operand(a, b), self.context.operand(b, a)

    def ints(self, at: int, what: str, setting: object = None) -> list[int]:
        """A known list of whole numbers (a shape, axes, indices): an input, or, where it is left
        out, what an attribute says (older opsets)."""
        numbers = setting if self.value(at) is None else self.value(at)
        need(not isinstance(numbers, torch.Tensor), f"its {what} depends on the data")
        return [int(n) for n in np.asarray(numbers).reshape(-1)]

    def axes(self, at: int = 1) -> list[int] | None:
        """Axes as an attribute (older opsets) or as an input."""
        setting = self.get("axes")
        if setting is None and self.value(at) is None:
            return None
        return [int(n) for n in setting] if setting is not None else self.ints(at, "axes")

    # --- settings --------------------------------------------------------------------------------

    def get(self, name: str, default: Any = None) -> Any:
        return self.node.attributes.get(name, default)

    def integer(self, name: str, default: int) -> int:
        return int(self.get(name, default))

    def number(self, name: str, default: float) -> float:
        return float(self.get(name, default))

    def sizes(self, name: str, default: Sequence[int]) -> list[int]:
        return list(self.get(name, default))

    @property
    def axis(self) -> int:
        """The `axis` attribute, 0 by default."""
        return self.integer("axis", 0)


Operator = Callable[[OnnxCall], Any]
