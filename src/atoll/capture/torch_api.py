"""The one module that touches torch: a module run on fake tensors, forward and backward.

Every operator passes through a dispatch mode, which notes it; nothing is computed and no memory is
taken. Three pieces of torch used here are not part of its stable interface, and are the reason
why the extra pins torch: the fake tensors themselves (torch._subclasses), the dispatch mode
(torch.utils._python_dispatch), and the sequence numbers that tie a backward operator to the
forward one (torch._C._autograd).
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode

from atoll.capture.trace import Argument, Call, Source, Trace, Value, View
from atoll.errors import AtollError

_QUESTIONS = ("prim::device", "aten::is_pinned", "aten::sym_size", "aten::sym_stride")
_TORCH = Path(torch.__file__).parent
_HERE = Path(__file__).parent


class _Recorder(TorchDispatchMode):
    """Notes every operator with its module, its tensors as views, and its forward twin."""

    def __init__(self, paths: Mapping[int, str]) -> None:
        super().__init__()
        self.trace = Trace()
        self.backward = False
        self._paths = paths
        self._values: dict[int, int] = {}
        self._alive: list[Any] = []  # storages must live: their addresses are their identities
        self._stack: list[tuple[str, str]] = [("", "")]
        self._times: dict[str, int] = {}
        self._twins: dict[int, tuple[int, str, str]] = {}
        self._last = (0, "", "")

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

    def declare(self, tensor: torch.Tensor, source: Source, name: str = "") -> int:
        """A new value for the tensor's storage."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._values:
            self._alive.append(storage)
        number = len(self.trace.values)
        size = storage.nbytes() // tensor.element_size()
        self.trace.values.append(
            Value(
                number,
                int(size),
                tensor.element_size(),
                source,
                name,
            )
        )
        self._values[storage._cdata] = number
        return number

    def view(self, tensor: torch.Tensor) -> View:
        number = self._values.get(tensor.untyped_storage()._cdata)
        if number is None:  # a tensor that the module holds without having registered it
            number = self.declare(tensor, Source.BUFFER)
        return View(
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
        given = tuple(self._plain(a) for a in args)
        given += tuple(self._plain(a) for a in (kwargs or {}).values())
        try:
            result = func(*args, **(kwargs or {}))
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise AtollError(_refusal(name)) from error
        except UnsupportedOperatorException as error:
            raise AtollError(
                f"{_line()}: operator {name} has no shape rule for fake tensors; register one with "
                "torch.library.register_fake"
            ) from error
        self._note(name, given, result, mutates, (twin, path, scope), args)
        return result

    def _place(self) -> tuple[int, str, str]:
        """The forward twin and the module of the operator that is about to run."""
        node = torch._C._current_autograd_node() if self.backward else None
        if node is not None:
            number = int(node._sequence_nr())  # type: ignore[attr-defined]
            self._last = self._twins.get(number, self._last)
            return self._last
        if self.backward:  # a sum of gradients, made by the engine between two nodes
            return self._last
        path, scope = self._stack[-1]
        # Autograd made this operator's node just before: its number is the last one given out.
        number = torch._C._autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]
        # Operators that need no gradient have no node: the number is then another's, noted before.
        here = len(self.trace.ticks)
        self.trace.ticks.append(path)
        self._twins.setdefault(number, (here, path, scope))
        return here, path, scope

    def _note(
        self,
        name: str,
        given: tuple[Argument, ...],
        result: Any,
        mutates: bool,
        place: tuple[int, str, str],
        args: tuple[Any, ...],
    ) -> None:
        results = [result] if isinstance(result, torch.Tensor) else result
        results = results if isinstance(results, list | tuple) else []
        made = [r for r in results if isinstance(r, torch.Tensor)]
        if not mutates and made and all(self._known(r) for r in made):
            return  # a view
        outs = []
        for tensor in made:
            if mutates or not self._known(tensor):
                self.declare(tensor, Source.MADE)
            outs.append(self.view(tensor))
        if mutates and not made and args and isinstance(args[0], torch.Tensor):
            self.declare(args[0], Source.MADE)
            outs.append(self.view(args[0]))
        if outs:
            twin, path, scope = place
            op = name.removeprefix("aten::")
            self.trace.calls.append(Call(op, given, tuple(outs), scope, path, self.backward, twin))

    def _known(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._values


def _line() -> str:
    """Where in the user's code the operator was called: the innermost line outside torch."""
    for frame in reversed(traceback.extract_stack()):
        file = Path(frame.filename)
        if _TORCH not in file.parents and _HERE not in file.parents and file.suffix == ".py":
            return f"{frame.filename}:{frame.lineno}: `{frame.line}`"
    return "the module"


def _refusal(name: str) -> str:
    return (
        f"{_line()}: what happens here depends on the data ({name.removeprefix('aten::')}), so no "
        "graph can be captured; make it a tensor operation (torch.where), fix it by an argument, "
        "or leave it out with .eval()"
    )


@contextmanager
def _default_dtype(dtype: torch.dtype | None) -> Iterator[None]:
    before = torch.get_default_dtype()
    if dtype is not None:
        torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def _no_initial_values() -> Iterator[None]:
    """Weights get no values: some initial distributions are drawn by looking at what was drawn."""
    names = [n for n in dir(torch.nn.init) if n.endswith("_") and not n.startswith("_")]
    before = {name: getattr(torch.nn.init, name) for name in names}

    def nothing(tensor: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        return tensor

    try:
        for name in names:
            setattr(torch.nn.init, name, nothing)
        yield
    finally:
        for name, function in before.items():
            setattr(torch.nn.init, name, function)


def dtype_named(name: str | None) -> torch.dtype | None:
    """A floating-point type by its name in torch."""
    if name is None:
        return None
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise AtollError(
            f"dtype: expected a floating-point type of torch such as bfloat16, got {name!r}"
        )
    return dtype


def is_module(value: object) -> bool:
    return isinstance(value, torch.nn.Module)


def input_shapes(inputs: object) -> list[tuple[int, ...]]:
    """Shapes of all tensors among example inputs."""
    return [tuple(t.shape) for t in _tensors(inputs)]


def _tensors(value: object) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [tensor for item in value for tensor in _tensors(item)]
    return []


def make_tensor(shape: Sequence[int], dtype: str) -> torch.Tensor:
    """An input described in words, without memory."""
    found = getattr(torch, dtype, None)
    if not isinstance(found, torch.dtype):
        raise AtollError(f"inputs: expected a type of torch such as int64, got {dtype!r}")
    return torch.empty(tuple(shape), dtype=found, device="meta")


def run(
    module: torch.nn.Module | Callable[[], torch.nn.Module],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    batch: Callable[[tuple[int, ...]], tuple[int, ...]],
    dtype: torch.dtype | None,
    loss: Callable[[Any], torch.Tensor] | None,
) -> Trace:
    """Trace one forward and backward pass; `batch` changes the shapes of the inputs."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with fake, torch.device("cpu"):
        if not isinstance(module, torch.nn.Module):
            module = _built(module, dtype)
        weights = _fresh(module.named_parameters(remove_duplicate=False), dtype)
        buffers = _fresh(module.named_buffers(remove_duplicate=False), dtype)

        def example(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                kind = dtype if dtype is not None and value.is_floating_point() else value.dtype
                return torch.empty(batch(tuple(value.shape)), dtype=kind)
            if isinstance(value, Mapping):
                return {key: example(item) for key, item in value.items()}
            if isinstance(value, list | tuple):
                return type(value)(example(item) for item in value)
            return value

        given, named = example(list(args)), example(dict(kwargs))
        return _record(module, weights, buffers, given, named, loss)


def _built(factory: Callable[[], Any], dtype: torch.dtype | None) -> torch.nn.Module:
    try:
        with _default_dtype(dtype), _no_initial_values():
            module = factory()
    except (DataDependentOutputException, DynamicOutputShapeException) as error:
        frame = next(
            f
            for f in reversed(traceback.extract_tb(error.__traceback__))
            if _TORCH not in Path(f.filename).parents
        )
        raise AtollError(
            f"{frame.filename}:{frame.lineno}: `{frame.line}`: the value of a tensor is asked for "
            "while the module is built, but fake tensors have none; build the module first and "
            "pass it itself"
        ) from error
    if not isinstance(module, torch.nn.Module):
        raise AtollError(
            f"the factory returned a {type(module).__name__}, but must return a torch.nn.Module"
        )
    return module


def _fresh(
    tensors: Iterator[tuple[str, torch.Tensor]], dtype: torch.dtype | None
) -> dict[str, torch.Tensor]:
    """Fake twins of parameters or buffers; what was one tensor stays one."""
    twins: dict[int, torch.Tensor] = {}
    result = {}
    for name, tensor in tensors:
        if id(tensor) not in twins:
            single = tensor.dtype in (torch.float32, torch.float64)
            kind = dtype if dtype is not None and single else tensor.dtype
            twin = torch.empty(tuple(tensor.shape), dtype=kind)
            twins[id(tensor)] = twin.requires_grad_(tensor.requires_grad)
        result[name] = twins[id(tensor)]
    return result


def _record(
    module: torch.nn.Module,
    weights: Mapping[str, torch.Tensor],
    buffers: Mapping[str, torch.Tensor],
    args: list[Any],
    kwargs: dict[str, Any],
    loss: Callable[[Any], torch.Tensor] | None,
) -> Trace:
    paths = {id(child): path for path, child in module.named_modules()}
    recorder = _Recorder(paths)
    for name, tensor in weights.items():
        if tensor.untyped_storage()._cdata not in recorder._values:
            recorder.declare(tensor, Source.WEIGHT, name)
    for name, tensor in buffers.items():
        recorder.declare(tensor, Source.BUFFER, name)
    for index, tensor in enumerate(_tensors([args, kwargs])):
        recorder.declare(tensor, Source.INPUT, f"input{index}")
    trained = {id(t): t for t in weights.values() if t.requires_grad}
    if not trained:
        raise AtollError("the module has no parameter that requires a gradient: nothing to train")
    hooks = torch.nn.modules.module
    with ExitStack() as stack:
        before = hooks.register_module_forward_pre_hook(recorder.enter)
        stack.callback(before.remove)
        after = hooks.register_module_forward_hook(recorder.leave)
        stack.callback(after.remove)
        stack.enter_context(torch.enable_grad())
        with recorder:
            try:
                output = torch.func.functional_call(
                    module, ({**weights}, {**buffers}), tuple(args), kwargs, tie_weights=False
                )
            except TypeError as error:
                raise AtollError(f"the module does not take these inputs: {error}") from error
            targets = _targets(output, loss)
        seeds = [torch.empty_like(target) for target in targets]
        recorder.begin_backward()
        with recorder:
            grads = torch.autograd.grad(targets, list(trained.values()), seeds, allow_unused=True)
    trace = recorder.trace
    trace.targets = tuple(recorder.view(target).value for target in targets)
    names = {id(t): name for name, t in weights.items()}
    for (key, tensor), gradient in zip(trained.items(), grads, strict=True):
        if gradient is None:
            trace.unused += (names[key],)
        else:
            weight = recorder._values[tensor.untyped_storage()._cdata]
            trace.gradient_of[recorder.view(gradient).value] = weight
    trace.containers = tuple(
        path
        for path, child in module.named_modules()
        if isinstance(child, torch.nn.ModuleList | torch.nn.Sequential | torch.nn.ModuleDict)
    )
    trace.classes = {path: type(child).__name__ for path, child in module.named_modules()}
    trace.without_dead_calls()
    trace.without_sums_of_shares()
    return trace


def _targets(output: Any, loss: Callable[[Any], torch.Tensor] | None) -> list[torch.Tensor]:
    """Where the backward pass starts: the loss, or every output that a gradient can enter."""
    if loss is not None:
        result = loss(output)
        if not isinstance(result, torch.Tensor) or not result.requires_grad:
            raise AtollError("loss: expected a tensor that depends on the module's parameters")
        return [result]
    named = getattr(output, "loss", None)
    if isinstance(named, torch.Tensor) and named.requires_grad:
        return [named]
    found = [t for t in _tensors(output) if t.requires_grad and t.is_floating_point()]
    scalars = [t for t in found if t.ndim == 0]
    if not found:
        raise AtollError("none of the module's outputs depends on a parameter: nothing to train")
    return scalars[:1] or list({id(t): t for t in found}.values())
