"""One forward and backward pass of a module on fake tensors: weights, inputs, loss."""

from __future__ import annotations

import logging
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from atoll.base.errors import AtollError
from atoll.tracing.record.torch_api import TORCH, FakeTensorMode, Recorder, ValueAskedFor
from atoll.tracing.record.trace import ModuleTrace, ValueSource


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
def _attributes(owner: object, **values: object) -> Iterator[None]:
    """Give attributes other values inside the block."""
    before = {name: getattr(owner, name) for name in values}
    try:
        for name, value in values.items():
            setattr(owner, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


def _no_initial_values() -> AbstractContextManager[None]:
    """Disable weight initialization, which may read values that fake tensors do not have."""
    names = [n for n in dir(torch.nn.init) if n.endswith("_") and not n.startswith("_")]
    return _attributes(torch.nn.init, **dict.fromkeys(names, lambda tensor, *_, **__: tensor))


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
    """Create an input tensor without memory."""
    torch_dtype = getattr(torch, dtype, None)
    if not isinstance(torch_dtype, torch.dtype):
        raise AtollError(f"inputs: expected a type of torch such as int64, got {dtype!r}")
    return torch.empty(tuple(shape), dtype=torch_dtype, device="meta")


def run(
    module: torch.nn.Module | Callable[[], torch.nn.Module],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    batch: Callable[[tuple[int, ...]], tuple[int, ...]],
    dtype: torch.dtype | None,
    loss: Callable[[Any], torch.Tensor] | None,
) -> ModuleTrace:
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

        positional, named = example(list(args)), example(dict(kwargs))
        return _record(module, weights, buffers, positional, named, loss)


def _built(factory: Callable[[], Any], dtype: torch.dtype | None) -> torch.nn.Module:
    try:
        with _default_dtype(dtype), _no_initial_values():
            module = factory()
    except ValueAskedFor as error:
        raise AtollError(
            f"{_place(error)}the value of a tensor is asked for while the module is built, but "
            "fake tensors have none; build the module first and pass it itself"
        ) from error
    except (Exception, SystemExit) as error:  # whatever the user's function raises
        raise _failed("the module could not be built", error) from error
    if not isinstance(module, torch.nn.Module):
        raise AtollError(
            f"the factory returned a {type(module).__name__}, but must return a torch.nn.Module"
        )
    return module


def _place(error: BaseException) -> str:
    """The innermost line of the user's own code in an error's traceback."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if TORCH not in file.parents and Path(__file__).parent not in file.parents:
            return f"{frame.filename}:{frame.lineno}: `{frame.line}`: "
    return ""


def _failed(what: str, error: BaseException) -> AtollError:
    first = (str(error) or "no message").strip().splitlines()[0]
    return AtollError(f"{_place(error)}{what} ({type(error).__name__}: {first})")


def _fresh(
    tensors: Iterator[tuple[str, torch.Tensor]], dtype: torch.dtype | None
) -> dict[str, torch.Tensor]:
    """Return fake copies of parameters or buffers; shared tensors stay shared."""
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
) -> ModuleTrace:
    paths = {id(child): path for path, child in module.named_modules()}
    recorder = Recorder(paths)
    for name, tensor in weights.items():
        if not recorder.is_declared(tensor):
            recorder.declare(tensor, ValueSource.WEIGHT, name)
    for name, tensor in buffers.items():
        recorder.declare(tensor, ValueSource.BUFFER, name)
    for index, tensor in enumerate(_tensors([args, kwargs])):
        recorder.declare(tensor, ValueSource.INPUT, f"input{index}")
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
        # Its kernels hide whole recurrent layers in one operator.
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
        # The log of fake tensors repeats the raised error.
        log = logging.getLogger("torch._subclasses.fake_tensor")
        stack.enter_context(_attributes(log, disabled=True))
        with recorder:
            try:
                output = torch.func.functional_call(
                    module, ({**weights}, {**buffers}), tuple(args), kwargs, tie_weights=False
                )
                targets = _targets(output, loss)
            except AtollError:
                raise
            except Exception as error:  # whatever the user's module raises
                raise _failed("the module did not run", error) from error
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
            weight = recorder.view(tensor).value
            trace.gradient_weights[recorder.view(gradient).value] = weight
    lists = torch.nn.ModuleList | torch.nn.Sequential | torch.nn.ModuleDict
    children = list(module.named_modules())
    trace.containers = tuple(path for path, child in children if isinstance(child, lists))
    trace.classes = {path: type(child).__name__ for path, child in children}
    trace.window = stated_window(getattr(module, "config", None))
    trace.drop_dead_calls()
    trace.drop_shared_gradient_sums()
    return trace


def stated_window(config: object) -> int:
    """Tokens that attention reaches back at most in some layer, by a configuration as the
    transformers library has it; 0 where it says nothing of the kind."""
    config = getattr(config, "text_config", None) or config
    kinds = getattr(config, "layer_types", None)
    words = {"sliding_window": "sliding_attention", "attention_chunk_size": "chunked_attention"}
    for field, kind in words.items():
        size = getattr(config, field, None)
        used = kind in kinds if kinds else getattr(config, "use_sliding_window", True)
        if isinstance(size, int) and size > 0 and used:
            return size
    return 0


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
    outputs = [t for t in _tensors(output) if t.requires_grad and t.is_floating_point()]
    scalars = [t for t in outputs if t.ndim == 0]
    if not outputs:
        raise AtollError("none of the module's outputs depends on a parameter: nothing to train")
    return scalars[:1] or list({id(t): t for t in outputs}.values())
