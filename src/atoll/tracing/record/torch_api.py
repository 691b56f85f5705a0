"""The only module that uses torch internals: records every operator that runs.

Operators on fake tensors pass through a dispatch mode; nothing is computed, no memory is taken.
Three pieces of torch used here are not part of its stable interface, and are the reason why the
extra pins torch: the fake tensors themselves (torch._subclasses), the dispatch mode
(torch.utils._python_dispatch), and the sequence numbers that tie a backward operator to the
forward one (torch._C._autograd).
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode_temporarily

from atoll.base.errors import AtollError
from atoll.tracing.record.trace import (
    Argument,
    ModuleTrace,
    OperatorCall,
    TensorView,
    Value,
    ValueSource,
)

__all__ = ["TORCH", "FakeTensorMode", "Recorder", "ValueAskedFor", "buffer_tensor", "score_share"]

_QUESTIONS = ("prim::device", "aten::is_pinned", "aten::sym_size", "aten::sym_stride")
TORCH = Path(torch.__file__).parent
ValueAskedFor = (DataDependentOutputException, DynamicOutputShapeException)
"""Raised where a program looks at a value that a fake tensor does not have."""
_FOLDER = Path(__file__).parent
_unmasked_share: ContextVar[float | None] = ContextVar("unmasked_share", default=None)


@contextmanager
def score_share(share: float | None) -> Iterator[None]:
    """Attention that runs inside has a mask that leaves this share of the scores."""
    before = _unmasked_share.set(share)
    try:
        yield
    finally:
        _unmasked_share.reset(before)


class Recorder(TorchDispatchMode):
    """Records every operator with its module, its tensors as views, and its forward twin."""

    def __init__(self, paths: Mapping[int, str]) -> None:
        super().__init__()
        self.trace = ModuleTrace()
        self.backward = False
        self._paths = paths
        self._values: dict[int, int] = {}
        self._alive: list[Any] = []  # storages must live: their addresses are their identities
        self._stack: list[tuple[str, str]] = [("", "")]
        self._times: dict[str, int] = {}
        self._twins: dict[int, tuple[int, str, str]] = {}
        self._last = (0, "", "")
        self._shares: dict[str, float] = {}
        """Unmasked share of the scores, by module call."""

    # --- modules ---------------------------------------------------------------------------------

    def enter(self, module: torch.nn.Module, _: object) -> None:
        path = self._paths.get(id(module), self._stack[-1][0])
        self._times[path] = self._times.get(path, 0) + 1
        self._stack.append((path, f"{path}#{self._times[path]}"))

    def leave(self, _module: torch.nn.Module, _inputs: object, _output: object) -> None:
        self._stack.pop()

    def begin_backward(self) -> None:
        self.backward = True
        self._last = (max(0, len(self.trace.ticks) - 1), "", "")

    # --- tensors ---------------------------------------------------------------------------------

    def declare(self, tensor: torch.Tensor, source: ValueSource, name: str = "") -> int:
        """A new value for the tensor's storage."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._values:
            self._alive.append(storage)
        number = len(self.trace.values)
        size = storage.nbytes() // tensor.element_size()
        value = Value(number, int(size), tensor.element_size(), source, name)
        self.trace.values.append(value)
        self._values[storage._cdata] = number
        return number

    def view(self, tensor: torch.Tensor) -> TensorView:
        number = self._values.get(tensor.untyped_storage()._cdata)
        if number is None:  # a tensor that the module holds without having registered it
            number = self.declare(tensor, ValueSource.BUFFER)
        return TensorView(
            number,
            tuple(int(n) for n in tensor.shape),
            tuple(int(n) for n in tensor.stride()),
            int(tensor.storage_offset()),
            tensor.element_size(),
            tensor.is_floating_point() or tensor.is_complex(),
        )

    def _plain(self, argument: Any) -> Argument:
        if isinstance(argument, torch.Tensor):
            return self.view(argument)
        if isinstance(argument, list | tuple):
            return tuple(self._plain(item) for item in argument)
        if argument is None or isinstance(argument, bool | int | float | str):
            return argument
        return str(argument)

    # --- operators -------------------------------------------------------------------------------

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func._schema.name
        if name in _QUESTIONS:
            return func(*args, **(kwargs or {}))
        twin, path, scope = self._place()
        mutates = func._schema.is_mutable
        arguments = tuple(self._plain(a) for a in args)
        arguments += tuple(self._plain(a) for a in (kwargs or {}).values())
        try:
            result = func(*args, **(kwargs or {}))
        except ValueAskedFor as error:
            op = name.removeprefix("aten::")
            raise AtollError(
                f"{_line()}: what happens here depends on the data ({op}), so no graph can be "
                "captured; make it a tensor operation (torch.where), fix it by an argument, or "
                "leave it out with .eval()"
            ) from error
        except UnsupportedOperatorException as error:
            raise AtollError(
                f"{_line()}: operator {name} has no shape rule for fake tensors; register one with "
                "torch.library.register_fake"
            ) from error
        self._note(name, arguments, result, mutates, (twin, path, scope), args)
        return result

    def _place(self) -> tuple[int, str, str]:
        """The forward twin and the module of the operator that is about to run."""
        node = torch._C._current_autograd_node() if self.backward else None
        if node is not None:
            number = int(node._sequence_nr())
            self._last = self._twins.get(number, self._last)
            return self._last
        if self.backward:  # a sum of gradients, made by the engine between two nodes
            return self._last
        path, scope = self._stack[-1]
        # Autograd made this operator's node just before: its number is the last one given out.
        number = torch._C._autograd._get_sequence_nr() - 1
        # Operators that need no gradient have no node: the number is then another's, noted before.
        tick = len(self.trace.ticks)
        self.trace.ticks.append(path)
        self._twins.setdefault(number, (tick, path, scope))
        return tick, path, scope

    def _note(
        self,
        name: str,
        arguments: tuple[Argument, ...],
        result: Any,
        mutates: bool,
        place: tuple[int, str, str],
        args: tuple[Any, ...],
    ) -> None:
        results = [result] if isinstance(result, torch.Tensor) else result
        results = results if isinstance(results, list | tuple) else []
        tensors = [r for r in results if isinstance(r, torch.Tensor)]
        if not mutates and tensors and all(self.is_declared(r) for r in tensors):
            return  # a view
        outs = []
        for tensor in tensors:
            if mutates or not self.is_declared(tensor):
                self.declare(tensor, ValueSource.COMPUTED)
            outs.append(self.view(tensor))
        if mutates and not tensors and args and isinstance(args[0], torch.Tensor):
            self.declare(args[0], ValueSource.COMPUTED)
            outs.append(self.view(args[0]))
        if outs:
            twin, path, scope = place
            op = name.removeprefix("aten::")
            share = _unmasked_share.get()
            if share is not None and not self.backward:
                self._shares[scope] = share
            self.trace.calls.append(
                OperatorCall(op, arguments, tuple(outs), scope, path, self.backward, twin,
                     self._shares.get(scope) if "attention" in op else None)
            )  # fmt: skip

    def is_declared(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._values


def buffer_tensor(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Create a tensor like an unregistered buffer of a module, without recording it."""
    with _pop_mode_temporarily():
        return torch.empty(tuple(shape), dtype=dtype)


def _line() -> str:
    """Where in the user's code the operator was called: the innermost line outside torch."""
    for frame in reversed(traceback.extract_stack()):
        file = Path(frame.filename)
        if TORCH not in file.parents and _FOLDER not in file.parents and file.suffix == ".py":
            return f"{frame.filename}:{frame.lineno}: `{frame.line}`"
    return "the module"
