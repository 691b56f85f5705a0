"""From a module and example inputs to a model that Atoll can search for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from atoll.base.errors import AtollError
from atoll.tracing.caveats import causal_softmaxes, caveats
from atoll.tracing.emit.batch_pairs import NotProportionalError, paired, summed_steps
from atoll.tracing.emit.layer import Emission
from atoll.tracing.emit.layout_copies import without_layout_copies
from atoll.tracing.emit.remat import rematerialise
from atoll.tracing.record.aten import call_node
from atoll.tracing.record.segment import SegmentChain, cut_segments
from atoll.tracing.record.trace import ModuleTrace, ValueSource
from atoll.tracing.split.split_search import find_splits
from atoll.workload.modelfile import LayerEntry, ModelFile
from atoll.workload.stored import StoredModel

_BATCHES = (2, 3)  # neither 1, which torch may treat apart, nor multiples of one another
KEEP = ("fused", "eager")
INSTALL = 'capture needs PyTorch 2.13.0: pip install "atoll[torch]"'


def capture(
    module: Any,
    example_inputs: Any,
    *,
    name: str | None = None,
    sequence: int | None = None,
    batch_dim: int | None = 0,
    dtype: str | None = "bfloat16",
    loss: Callable[[Any], Any] | None = None,
    keep: Literal["fused", "eager"] = "fused",
) -> StoredModel:
    """Capture a torch module as a model, on fake tensors: no weights are needed.

    Args:
        module: A `torch.nn.Module`, or a function that builds one.
        example_inputs: A tensor, a tuple of arguments or a dictionary of keyword arguments. Only
            shapes and types count: tensors on the "meta" device do.
        name: Name of the model. Default: the module's.
        sequence: Tokens in a sample. Default: the second dimension of a two-dimensional first
            input, else 1.
        batch_dim: Dimension of every input that counts samples; None fixes the batch as it is.
        dtype: Type of weights and floating inputs; None leaves them as they are.
        loss: Makes a loss of the module's output. Default: `output.loss`, a scalar output, or all
            outputs.
        keep: Kernels and what they keep: a compiler's ("fused"), or PyTorch's own ("eager").

    Returns:
        The model; its `save(path)` writes a file that every `model=` takes.

    Raises:
        AtollError: PyTorch is missing, or the module cannot be captured.

    Examples:
        >>> import atoll, torch
        >>> module = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.Linear(256, 64))
        >>> model = atoll.capture(module, torch.empty(1, 64), name="two-layers")
        >>> model.save("two-layers.json").name
        'two-layers.json'
    """
    run_module = import_run_module()
    if not callable(module):
        raise AtollError(
            f"expected a torch.nn.Module or a function that returns one, got a "
            f"{type(module).__name__}"
        )
    listed = example_inputs if isinstance(example_inputs, list | tuple) else (example_inputs,)
    named = isinstance(example_inputs, Mapping)
    args, kwargs = ((), example_inputs) if named else (listed, {})
    name = name or str(getattr(module, "__name__", "") or type(module).__name__)
    torch_dtype = run_module.dtype_named(dtype)
    request = CaptureRequest(name, sequence, batch_dim, torch_dtype, keep, loss)
    return capture_module(module, args, kwargs, request)


def check_request(keep: str, sequence: int | None) -> None:
    if keep not in KEEP:
        raise AtollError(f"keep: allowed are {', '.join(KEEP)}; got {keep!r}")
    if sequence is not None and sequence < 1:
        raise AtollError(f"sequence is {sequence}, but must be at least 1")


def import_run_module() -> Any:
    """Import `run_module`, or raise if torch is missing."""
    try:
        import torch  # noqa: F401
    except ImportError:
        raise AtollError(INSTALL) from None
    try:
        from atoll.tracing.record import run_module
    except ImportError as error:
        raise AtollError(f"this version of PyTorch does not fit ({error}); {INSTALL}") from None
    return run_module


@dataclass(frozen=True)
class CaptureRequest:
    """How a module is captured; fields as in `capture`."""

    name: str
    sequence: int | None
    batch_dim: int | None
    dtype: Any
    """Torch type of weights and floating inputs; None: unchanged."""
    keep: str
    loss: Callable[[Any], Any] | None = None
    samples: int = 1
    """Samples per microbatch where the batch is fixed."""
    notes: tuple[str, ...] = ()
    """Notes put before those of the capture."""


def capture_module(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], request: CaptureRequest
) -> StoredModel:
    """Trace the module on fake tensors at two batch sizes and build the model."""
    check_request(request.keep, request.sequence)
    run_module, batch_dim, keep = import_run_module(), request.batch_dim, request.keep
    shapes = run_module.input_shapes([list(args), dict(kwargs)])
    if not shapes:
        raise AtollError("example_inputs: expected at least one tensor")
    if batch_dim is not None and all(batch_dim >= len(shape) for shape in shapes):
        raise AtollError(f"batch_dim is {batch_dim}, but no input has that many dimensions")
    # Tokens of a sample: the second dimension of a (batch, tokens) input, else 1.
    first = shapes[0]
    tokens = request.sequence or (first[1] if batch_dim == 0 and len(first) == 2 else 1)

    def run(batch: int | None) -> ModuleTrace:
        def change(shape: tuple[int, ...]) -> tuple[int, ...]:
            if batch is None or batch_dim is None or batch_dim >= len(shape):
                return shape
            return (*shape[:batch_dim], batch, *shape[batch_dim + 1 :])

        form = {"batch": change, "dtype": request.dtype, "loss": request.loss}
        trace: ModuleTrace = run_module.run(module, args, kwargs, **form)
        return trace

    fixed = None
    notes: list[str] = []
    if batch_dim is None:
        trace = run(None)
        layers, chain = _layers(trace, keep)
        fixed = request.samples
        if fixed == 1:
            notes.append("microbatch fixed: no dimension of the inputs counts samples")
    else:
        trace = run(_BATCHES[0])
        small, chain = _layers(trace, keep)
        try:
            large, _ = _layers(run(_BATCHES[1]), keep)
            layers = paired(small, large, _BATCHES)
        except NotProportionalError as problem:
            fixed = next(shape[batch_dim] for shape in shapes if batch_dim < len(shape))
            trace = run(None)
            layers, chain = _layers(trace, keep)
            notes.append(
                f"microbatch fixed at {fixed}: {problem} does not grow in proportion to the batch"
            )
    file = ModelFile(
        format="atoll-model",
        version=1,
        name=request.name,
        sequence=tokens,
        microbatch=fixed,
        layers=tuple(summed_steps(layers)),
        shared={trace.values[w].name: n for w, n in chain.copies.items() if n > 1},
        tensor_parallel=True,
        kernels="fused" if keep == "fused" else "eager",
        notes=(*request.notes, *notes, *_notes(trace)),
        warnings=caveats(trace),
    )
    return StoredModel(file.name, file)


def _layers(trace: ModuleTrace, keep: str) -> tuple[list[LayerEntry], SegmentChain]:
    chain = cut_segments(trace)
    causal = causal_softmaxes(trace)
    entries = []
    for segment, repeat in chain.segments:
        segment_calls = {id(call) for call in (*segment.forward, *segment.backward)}
        others = (call for call in trace.calls if id(call) not in segment_calls)
        outside = {*trace.targets, *(view.value for call in others for view in call.ins)}
        forward = [call_node(call) for call in segment.forward]
        backward = [call_node(call) for call in segment.backward]
        fused = keep == "fused"
        if fused:
            forward, backward = without_layout_copies(forward, backward)
            backward = rematerialise(forward, backward, trace.values, set(segment.entering))
        splits = find_splits(forward, backward, trace, segment, outside)
        emission = Emission(segment, trace, forward, backward, outside, splits, fused, causal)
        entries.append(emission.layer(repeat))
    return entries, chain


def abbreviated(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return ", ".join(names[:4]) + more


def _notes(trace: ModuleTrace) -> list[str]:
    unknown = sorted({call.op for call in trace.calls if not call_node(call).in_table})
    notes = []
    if unknown:
        notes.append(f"counted as one operation an element: {', '.join(unknown)}")
    if trace.unused:
        notes.append(f"parameters that no gradient reaches: {abbreviated(trace.unused)}")
    trained = {*trace.gradient_weights.values()}
    weights = (v for v in trace.values if v.source is ValueSource.WEIGHT)
    frozen = [v.name for v in weights if v.number not in trained and v.name not in trace.unused]
    if frozen:
        notes.append(f"parameters that are not trained: {abbreviated(frozen)}")
    return notes
