"""From an ONNX file to a model that Atoll can search for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from atoll.base.errors import AtollError
from atoll.tracing.capture import CaptureRequest, abbreviated, capture_module, import_run_module
from atoll.tracing.from_onnx.graph import Input, OnnxGraph, trained_initializers
from atoll.tracing.from_onnx.module_paths import with_paths
from atoll.tracing.from_onnx.patterns import mask_names, with_patterns
from atoll.tracing.from_onnx.read import fold, package, read_graph, tie_weights
from atoll.tracing.inputs import parse_inputs
from atoll.workload.stored import StoredModel

_CACHES = re.compile(r"(present|past_key|past\.|cache)")
_ALL_ONES = "attention_mask"


def capture_onnx(
    path: str | Path,
    *,
    name: str | None = None,
    inputs: Sequence[str] = (),
    sequence: int | None = None,
    batch_dim: int | None = 0,
    dtype: str | None = "bfloat16",
    keep: str = "fused",
) -> StoredModel:
    """A model from the forward graph in an ONNX file; the backward pass is derived.

    `inputs` are shapes such as "input_ids=int64[1,512]"; without, those in the file count, and
    `sequence` stands for the one dimension, beside the batch, that it leaves open.
    """
    package()
    run_module = import_run_module()
    from atoll.tracing.from_onnx.module import GraphModule

    where = str(path)
    graph, notes = prepare_graph(path)
    shapes = _shapes(where, graph, inputs, sequence, batch_dim)
    open_dim = batch_dim
    first = graph.inputs[0]
    if batch_dim is not None and (batch_dim >= len(first.dims) or first.dims[batch_dim] == ""):
        raise AtollError(
            f"{where}: input {first.name} has no dimension {batch_dim} with a name or a size; give "
            "--batch-dim, or -1 where no dimension counts samples"
        )
    samples = 1
    if batch_dim is not None and isinstance(first.dims[batch_dim], int):
        open_dim, samples = None, int(first.dims[batch_dim])
        notes.append(
            f"microbatch fixed at {samples}: the file fixes dimension {batch_dim} of {first.name}; "
            "export with a dynamic batch for others"
        )
    batch = None if open_dim is None else first.dims[open_dim]
    growing = [i for i in graph.inputs if open_dim is None or batch in i.dims[open_dim:][:1]]
    kind = run_module.dtype_named(dtype)
    module = GraphModule(
        where, graph, growing,
        {i.name: shapes[i.name] for i in graph.inputs if i not in growing},
        [i.name for i in graph.inputs if i.name == _ALL_ONES], kind,
    ).eval()  # fmt: skip
    examples = [run_module.make_tensor(shapes[i.name], i.dtype) for i in growing]
    tokens = sequence
    if tokens is None and batch_dim == 0:
        shape = shapes[first.name]
        tokens = shape[1] if len(shape) == 2 else 1
    request = CaptureRequest(
        name or Path(path).stem, tokens, open_dim, kind, keep, samples=samples, notes=tuple(notes)
    )
    return capture_module(module, examples, {}, request)


def prepare_graph(path: str | Path) -> tuple[OnnxGraph, list[str]]:
    """The graph with its groups, weights and paths, and what a reader of the model should know."""
    graph = read_graph(path)
    if not graph.inputs:
        raise AtollError(f"{path}: the graph has no inputs")
    outputs = tuple(output for output in graph.outputs if not _CACHES.match(output))
    notes = []
    if outputs and outputs != graph.outputs:
        notes.append("outputs that hold keys and values for later calls are left out")
        graph = replace(graph, outputs=outputs)
    graph = with_patterns(graph)
    weights = trained_initializers(graph, mask_names(graph))
    if not weights:
        raise AtollError(f"{path}: the graph reads no floating-point initializer: nothing to train")
    constants = {name: i for name, i in graph.initializers.items() if name not in weights}
    shown = sorted(name for name, i in constants.items() if i.floating and i.elements > 1)
    if shown:
        notes.append(f"taken as constants, not as weights: {abbreviated(shown)}")
    graph = with_paths(fold(replace(graph, weights=weights), constants))
    graph, tied = tie_weights(graph)
    notes += tied
    read = {name for node in graph.nodes for name in node.inputs}
    graph = replace(graph, inputs=tuple(i for i in graph.inputs if i.name in read))
    if not graph.inputs:
        raise AtollError(f"{path}: no output of the graph depends on its inputs")
    if any(i.name == _ALL_ONES for i in graph.inputs):
        notes.append(f"{_ALL_ONES} is taken as all ones: sequences are full")
    return graph, notes


def _shapes(
    where: str, graph: OnnxGraph, texts: Sequence[str], sequence: int | None, batch_dim: int | None
) -> dict[str, tuple[int, ...]]:
    """A shape for every input; names of dimensions mean the same size everywhere."""
    parsed = parse_inputs(texts, "input_ids=int64[1,512]")
    names, in_order = [i.name for i in graph.inputs], [shape for _, _, shape in parsed]
    shapes = {name: shape for name, _, shape in parsed if name}
    shapes = shapes or dict(zip(names, in_order, strict=False))
    for name in shapes:
        if name not in names:
            raise AtollError(
                f"{where}: no input is called {name!r}; those that are used: {', '.join(names)}"
            )
    sizes: dict[str, int] = {}
    first = graph.inputs[0].dims
    if batch_dim is not None and batch_dim < len(first):
        sizes[str(first[batch_dim])] = 1
    for declared in (i for i in graph.inputs if i.name in shapes):
        shape = shapes[declared.name]
        fits = len(shape) == len(declared.dims)
        pairs = list(zip(declared.dims, shape, strict=False))
        if not fits or any(isinstance(d, int) and d != n for d, n in pairs):
            raise AtollError(
                f"{where}: input {declared.name} is {_words(declared)} in the file, but "
                f"{list(shape)} was given"
            )
        for dim, size in pairs:
            if isinstance(dim, str) and dim:
                sizes.setdefault(dim, size)
    free = {d for i in graph.inputs if i.name not in shapes for d in i.dims if isinstance(d, str)}
    free -= sizes.keys()
    if sequence is not None and len(free) == 1 and "" not in free:
        sizes[free.pop()] = sequence
    result = dict(shapes)
    for declared in graph.inputs:
        if declared.name in shapes:
            continue
        open_ = [d for d in declared.dims if isinstance(d, str) and d not in sizes]
        if open_:
            example = ",".join(str(sizes.get(str(d), d if isinstance(d, int) else 512))
                               for d in declared.dims)  # fmt: skip
            raise AtollError(
                f"{where}: input {declared.name} is {_words(declared)}, with sizes left open; give "
                f'--sequence N, or its shape: --inputs "{declared.name}={declared.dtype}'
                f'[{example}]"'
            )
        result[declared.name] = tuple(d if isinstance(d, int) else sizes[d] for d in declared.dims)
    return result


def _words(declared: Input) -> str:
    dims: list[Any] = [d if d != "" else "?" for d in declared.dims]
    return f"{declared.dtype}[{', '.join(str(d) for d in dims)}]"
