"""Which module, and which layer, each node belongs to: from the nodes' names, else by repetition.

torch's exporters leave the module's path in a node's name or metadata ("/layers.0/mlp/MatMul"),
TensorFlow's a scope ("encoder/layer_._0/MatMul"). Where names tell of no repeated item, the longest
stretch of equal nodes that repeats is taken as the layers, cut where the fewest tensors cross.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from atoll.tracing.from_onnx.graph import OnnxGraph, OnnxNode

_NUMBERED = re.compile(r"(.*?)[._]*(\d+)")


def with_paths(graph: OnnxGraph) -> OnnxGraph:
    """Every node with a path of dotted module names, items of a list by their number."""
    nodes = [replace(node, path=_dotted(node.path)) for node in graph.nodes]
    if not _has_items(nodes):
        nodes = _numbered(graph.nodes)
    if not _has_items(nodes):
        nodes = _repeated(graph, nodes)
    return replace(graph, nodes=tuple(nodes))


def _dotted(path: str) -> str:
    """Slashes as dots; torch's older exporter writes the items of a Sequential as "body/body.0"."""
    result: list[str] = []
    last = ""
    for part in path.split("/"):
        inner = part.removeprefix(f"{last}.") if last else part
        result += [name for name in inner.split(".") if name]
        last = part
    return ".".join(result)


def _numbered(nodes: Sequence[OnnxNode]) -> list[OnnxNode]:
    """Parts such as "layer_3" are an item of a list where there are several of their kind."""
    stems: dict[str, set[str]] = {}
    split = [[part for part in node.path.split("/") if part] for node in nodes]
    for parts in split:
        for i, part in enumerate(parts):
            match = _NUMBERED.fullmatch(part)
            if match and match[1]:
                stems.setdefault("/".join((*parts[:i], match[1])), set()).add(match[2])
    result = []
    for node, parts in zip(nodes, split, strict=True):
        path: list[str] = []
        for i, part in enumerate(parts):
            match = _NUMBERED.fullmatch(part)
            if match and match[1] and len(stems["/".join((*parts[:i], match[1]))]) > 1:
                path += [match[1], match[2]]
            else:
                path.append(part)
        result.append(replace(node, path=_dotted("/".join(path))))
    return result


def _has_items(nodes: Sequence[OnnxNode]) -> bool:
    """Whether some list has two items, each a stretch of nodes of its own."""
    items: dict[str, set[str]] = {}
    for path in {node.path for node in nodes}:
        parts = path.split(".")
        for i, part in enumerate(parts):
            if part.isdigit() and i:
                items.setdefault(".".join(parts[:i]), set()).add(part)
    return any(len(numbers) > 1 for numbers in items.values())


def _repeated(graph: OnnxGraph, nodes: Sequence[OnnxNode]) -> list[OnnxNode]:
    """Items of "layers" by repetition; nodes that only handle shapes go with what follows them."""
    steps = _with_data(graph, nodes)
    working = [nodes[i] for i in steps]
    repeat = repetition([_key(node, graph) for node in working])
    if repeat is None:
        return list(nodes)
    first, period, times, slack = repeat
    start = first + min(range(slack + 1), key=lambda i: (_crossing(working, first + i), i))
    items = [(index - start) // period for index in range(len(working))]
    paths = [f"layers.{item}" if 0 <= item < times else "" for item in items]
    following = (min(bisect_left(steps, i), len(paths) - 1) for i in range(len(nodes)))
    return [replace(node, path=paths[i]) for node, i in zip(nodes, following, strict=True)]


def _with_data(graph: OnnxGraph, nodes: Sequence[OnnxNode]) -> list[int]:
    """Indices of the nodes whose results depend on more than shapes."""
    fixed = set(graph.constants)
    result = []
    for i, node in enumerate(nodes):
        if node.op in ("Shape", "Size") or all(not n or n in fixed for n in node.inputs):
            fixed.update(node.outputs)
        else:
            result.append(i)
    return result


def _key(node: OnnxNode, graph: OnnxGraph) -> object:
    """Equal for nodes that do the same: operator, settings, shapes of the weights they read."""
    shapes = tuple(
        graph.initializers[name].shape if name in graph.initializers else name in graph.constants
        for name in node.inputs
    )
    settings = sorted((name, str(value)) for name, value in node.attributes.items())
    return (node.op, node.domain, shapes, len(node.outputs), tuple(settings))


def repetition(keys: Sequence[object]) -> tuple[int, int, int, int] | None:
    """(first, period, times, slack) of the repeat that covers most; the shortest period of these.

    The repeat may begin at any of first, ..., first + slack.
    """
    numbers: dict[object, int] = {}
    row = np.array([numbers.setdefault(key, len(numbers)) for key in keys])
    best: tuple[int, int, int, int] | None = None
    covered = 0
    for period in range(2, len(row) // 2 + 1):
        same = np.concatenate(([0], (row[:-period] == row[period:]).astype(np.int8), [0]))
        edges = np.flatnonzero(np.diff(same))
        lengths = edges[1::2] - edges[::2]
        if not len(lengths):
            continue
        longest = int(lengths.argmax())
        times = int(lengths[longest]) // period + 1
        if times > 1 and period * times > covered:
            covered = period * times
            best = (int(edges[2 * longest]), period, times, int(lengths[longest]) % period)
    return best


def _crossing(nodes: Sequence[OnnxNode], at: int) -> int:
    """Values made before a node that it or later ones read."""
    earlier_outputs = {name for node in nodes[:at] for name in node.outputs if name}
    return len(earlier_outputs & {name for node in nodes[at:] for name in node.inputs})
