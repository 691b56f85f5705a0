"""From a module and example inputs to a model that Atoll can search for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from atoll.capture.aten import node_of
from atoll.capture.emit import Emission
from atoll.capture.lift import without_layout_copies
from atoll.capture.pair import NotProportional, paired
from atoll.capture.remat import rematerialise
from atoll.capture.segment import Chain, cut
from atoll.capture.splits import find_splits
from atoll.capture.trace import Source, Trace
from atoll.errors import AtollError
from atoll.workload.modelfile import FORMAT, VERSION, LayerEntry, ModelFile

_BATCHES = (2, 3)  # neither 1, which torch may treat apart, nor multiples of one another


def capture_file(
    module: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    name: str,
    sequence: int | None,
    batch_dim: int | None,
    dtype: str | None,
    loss: Callable[[Any], Any] | None,
    keep: str,
) -> ModelFile:
    """Run the module twice on fake tensors, at two batch sizes, and write down what ran."""
    from atoll.capture import torch_api

    kind = torch_api.dtype_named(dtype)
    shapes = torch_api.input_shapes([list(args), dict(kwargs)])
    if not shapes:
        raise AtollError("example_inputs: expected at least one tensor")
    tokens = sequence or _sequence(shapes, batch_dim)

    def run(batch: int | None) -> Trace:
        def change(shape: tuple[int, ...]) -> tuple[int, ...]:
            if batch is None or batch_dim is None or batch_dim >= len(shape):
                return shape
            return (*shape[:batch_dim], batch, *shape[batch_dim + 1 :])

        return torch_api.run(module, args, kwargs, batch=change, dtype=kind, loss=loss)

    fixed = None
    notes: list[str] = []
    if batch_dim is None:
        trace = run(None)
        layers, chain = _layers(trace, keep)
        fixed = 1
    else:
        trace = run(_BATCHES[0])
        small, chain = _layers(trace, keep)
        try:
            large, _ = _layers(run(_BATCHES[1]), keep)
            layers = paired(small, large, _BATCHES)
        except NotProportional as problem:
            fixed = shapes[0][batch_dim]
            trace = run(None)
            layers, chain = _layers(trace, keep)
            notes.append(
                f"microbatch fixed at {fixed}: {problem} does not grow in proportion to the batch"
            )
    return ModelFile(
        format=FORMAT,
        version=VERSION,
        name=name,
        sequence=tokens,
        microbatch=fixed,
        layers=tuple(layers),
        shared={
            trace.values[weight].name: copies
            for weight, copies in chain.copies.items()
            if copies > 1
        },
        tensor_parallel=True,
        notes=(*notes, *_notes(trace)),
    )


def _sequence(shapes: Sequence[tuple[int, ...]], batch_dim: int | None) -> int:
    """Tokens of a sample: the second dimension of a (batch, tokens) input, else 1."""
    first = shapes[0]
    return first[1] if batch_dim == 0 and len(first) == 2 else 1


def _layers(trace: Trace, keep: str) -> tuple[list[LayerEntry], Chain]:
    chain = cut(trace)
    result = []
    for segment, repeat in chain.segments:
        own = {id(call) for call in (*segment.forward, *segment.backward)}
        outside = {
            view.value for call in trace.calls if id(call) not in own for view in call.ins
        } | set(trace.targets)
        forward = [node_of(call) for call in segment.forward]
        backward = [node_of(call) for call in segment.backward]
        forward, backward = without_layout_copies(forward, backward)
        if keep == "fused":
            backward = rematerialise(forward, backward, trace.values, set(segment.entering))
        splits = find_splits(forward, backward, trace, segment, outside)
        emission = Emission(segment, trace, trace.values, forward, backward, outside, splits)
        result.append(emission.layer(repeat))
    return result, chain


def _notes(trace: Trace) -> list[str]:
    unknown = sorted({call.op for call in trace.calls if not node_of(call).known})
    notes = []
    if unknown:
        notes.append(f"counted as one operation an element: {', '.join(unknown)}")
    if trace.unused:
        notes.append(f"parameters that no gradient reaches: {', '.join(trace.unused)}")
    frozen = [
        v.name
        for v in trace.values
        if v.source is Source.WEIGHT
        and v.number not in trace.gradient_of.values()
        and v.name not in trace.unused
    ]
    if frozen:
        notes.append(f"parameters that are not trained: {', '.join(frozen)}")
    return notes
