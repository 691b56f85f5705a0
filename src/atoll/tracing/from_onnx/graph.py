"""An ONNX graph in plain data: nodes, inputs, weights, and the values that are known beforehand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
LARGEST_CONSTANT = 1 << 24
"""Elements of a constant that is computed; a larger one is a tensor like any other."""


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """One operator; `path` is the module that it belongs to ("layers.0.mlp")."""

    op: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    """Names of values; "" for one that is left out."""
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    path: str = ""
    proto: Any = None
    """The node as the onnx package has it, for its evaluation."""

    @property
    def where(self) -> str:
        """Label for messages."""
        label = self.name or (self.outputs[0] if self.outputs else "")
        return f"node {label} ({self.domain + '.' if self.domain else ''}{self.op})"


@dataclass(frozen=True, slots=True)
class Input:
    """A graph input; a dimension is a number, a name, or "" where the file is silent."""

    name: str
    dims: tuple[int | str, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Initializer:
    """A tensor of the file. Its data are read only if asked for, and may not be there (None)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    kind: str = ""
    """"PARAMETER" or "BUFFER" where the exporter says which."""
    load: Callable[[], Array | None] = lambda: None

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def floating(self) -> bool:
        return self.dtype in FLOATS


FLOATS = ("float32", "float16", "bfloat16", "float64")


@dataclass(frozen=True, slots=True)
class OnnxGraph:
    """A graph whose nodes are in an order in which they can run."""

    name: str
    opset: int
    nodes: tuple[OnnxNode, ...]
    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    initializers: Mapping[str, Initializer]
    constants: Mapping[str, Array] = field(default_factory=dict)
    """Values that do not depend on the inputs: shapes, indices, masks, scalars."""
    weights: tuple[str, ...] = ()
    """Initializers that training changes."""
    float_type: str = "float32"
    """The type of most weights: the one that `dtype` replaces."""

    def readers(self) -> dict[str, list[OnnxNode]]:
        result: dict[str, list[OnnxNode]] = {}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                result.setdefault(name, []).append(node)
        return result

    def makers(self) -> dict[str, OnnxNode]:
        return {name: node for node in self.nodes for name in node.outputs}


def without_aliases(graph: OnnxGraph) -> OnnxGraph:
    """Remove Identity nodes, renaming their outputs."""
    same: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        inputs = tuple(same.get(name, name) for name in node.inputs)
        if node.op == "Identity" and not node.domain:
            same[node.outputs[0]] = inputs[0]
        else:
            nodes.append(replace(node, inputs=inputs))
    outputs = tuple(same.get(name, name) for name in graph.outputs)
    return replace(graph, nodes=tuple(nodes), outputs=outputs)


def without_dead_nodes(graph: OnnxGraph) -> OnnxGraph:
    wanted = set(graph.outputs)
    live_nodes = []
    for node in reversed(graph.nodes):
        if any(name in wanted for name in node.outputs):
            wanted.update(node.inputs)
            wanted.update(outer_names(node))
            live_nodes.append(node)
    return replace(graph, nodes=tuple(live_nodes[::-1]))


def outer_names(node: OnnxNode) -> set[str]:
    """Return the outer values that the branches of an If read."""
    names: set[str] = set()
    for value in node.attributes.values():
        if isinstance(value, OnnxGraph):
            names.update(name for inner in value.nodes for name in inner.inputs)
            names.update(value.outputs)
            names.update(name for inner in value.nodes for name in outer_names(inner))
    return names


# --- which initializers are weights ---------------------------------------------------------------

# Uses that train nothing: positions of these inputs, or all inputs (None).
_FIXED_USES: dict[str, tuple[int, ...] | None] = {
    "BatchNormalization": (3, 4),
    "Where": None, "Equal": None, "Less": None, "LessOrEqual": None, "Greater": None,
    "GreaterOrEqual": None, "Clip": (1, 2), "Range": None, "Pad": (2,), "Trilu": None,
    "Resize": (1, 2), "IsNaN": None, "OneHot": None,
}  # fmt: skip
_SMALL = 4096
_ANGLES = ("Cast", "Expand", "Unsqueeze", "Squeeze", "Reshape", "Transpose", "Concat", "Mul",
           "MatMul", "Einsum")  # fmt: skip


def trained_initializers(graph: OnnxGraph, masks: set[str]) -> tuple[str, ...]:
    """Floating initializers of more than one element, unless the file says "buffer" or their use
    does: statistics of batch norms, conditions, masks, rotary positions."""
    readers = graph.readers()
    frequencies = _frequencies(graph)
    marked = any(initializer.kind for initializer in graph.initializers.values())
    weights = []
    for name, initializer in graph.initializers.items():
        if not initializer.floating or name not in readers or initializer.kind == "BUFFER":
            continue
        if initializer.kind == "PARAMETER":
            weights.append(name)
            continue
        uses = readers[name]
        # Tables of sines for rotary positions are multiplied with activations by position.
        wide = sum(n > 1 for n in initializer.shape) > 1
        rotation = wide and all(node.op == "Mul" for node in uses)
        fixed = rotation or all(_fixed(node, name) for node in uses)
        if marked and initializer.elements <= _SMALL and _all_equal(initializer.load()):
            continue  # the exporter's own ones and zeros: weights would be marked
        if initializer.elements > 1 and not fixed and name not in frequencies | masks:
            weights.append(name)
    return tuple(weights)


def _all_equal(data: Array | None) -> bool:
    return data is not None and data.size > 0 and bool((data == data.reshape(-1)[0]).all())


def _fixed(node: OnnxNode, name: str) -> bool:
    positions = _FIXED_USES.get(node.op, ())
    uses = (i for i, input_name in enumerate(node.inputs) if input_name == name)
    return positions is None or all(i in positions for i in uses)


def _frequencies(graph: OnnxGraph) -> set[str]:
    """Vectors that lead to a sine or cosine through products and views (rotary positions)."""
    makers = graph.makers()
    pending = [name for node in graph.nodes if node.op in ("Sin", "Cos") for name in node.inputs]
    vectors: set[str] = set()
    visited: set[str] = set()
    while pending:
        name = pending.pop()
        if name in visited:
            continue
        visited.add(name)
        initializer = graph.initializers.get(name)
        if initializer is not None and max(initializer.shape, default=1) == initializer.elements:
            vectors.add(name)
        node = makers.get(name)
        if node is not None and node.op in _ANGLES:
            pending.extend(node.inputs)
    return vectors


def most_common_float(initializers: Mapping[str, Initializer]) -> str:
    """Return the floating type with the most elements."""
    elements: Counter[str] = Counter()
    for initializer in initializers.values():
        if initializer.floating:
            elements[initializer.dtype] += initializer.elements
    return max(elements, key=elements.__getitem__, default="float32")
