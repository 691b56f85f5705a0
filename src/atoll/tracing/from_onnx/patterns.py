"""Groups of nodes that are one operator: attention, linears, GELU and SiLU in small steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isclose, pi, sqrt

from atoll.tracing.from_onnx.graph import OnnxGraph, OnnxNode, without_dead_nodes

GROUP_DOMAIN = "atoll"
"""Domain of the operators that stand for groups."""
_SCALES = ("Mul", "Div")
_SHAPE_OPS = ("Shape", "Size", "Gather", "Slice", "Cast", "Sqrt", "Div", "Reciprocal", "Mul",
              "Squeeze", "Unsqueeze")  # fmt: skip


Match = tuple[OnnxNode, OnnxNode]
"""The last node of a group, and the node that stands for the group."""


@dataclass
class _Search:
    """Index of a graph for pattern search."""

    graph: OnnxGraph
    makers: dict[str, OnnxNode]
    readers: dict[str, list[OnnxNode]]

    def only_reader(self, name: str) -> OnnxNode | None:
        readers = self.readers.get(name, [])
        return readers[0] if len(readers) == 1 and name not in self.graph.outputs else None

    def private(self, name: str) -> bool:
        return self.only_reader(name) is not None

    def scalar(self, name: str) -> float | None:
        value = self.graph.constants.get(name)
        return float(value.reshape(-1)[0]) if value is not None and value.size == 1 else None

    def number(self, name: str) -> bool:
        """Whether this is one number: a constant, or computed from a shape."""
        node = self.makers.get(name)
        if node is None:
            return self.scalar(name) is not None
        if node.op in ("Shape", "Size"):
            return True
        return node.op in _SHAPE_OPS and all(
            side in self.graph.constants or self.number(side) for side in node.inputs
        )

    def scaled(self, name: str) -> str:
        """Return the tensor that is scaled by a number, or the name itself."""
        return self.factor(name)[0]

    def factor(self, name: str) -> tuple[str, tuple[str, str] | None]:
        """Return the scaled tensor, with the number's name and operator ("Mul" or "Div")."""
        node = self.makers.get(name)
        if node is None or node.op not in _SCALES or not self.private(name):
            return name, None
        left, right = node.inputs
        if self.number(right):
            return left, (right, node.op)
        if node.op == "Mul" and self.number(left):
            return right, (left, node.op)
        return name, None


def with_patterns(graph: OnnxGraph) -> OnnxGraph:
    """Replace every recognised group by one node at the position of its last node."""
    search = _Search(graph, graph.makers(), graph.readers())
    replacements: dict[int, OnnxNode] = {}
    for node in graph.nodes:
        find = _PATTERNS.get(node.op)
        if find is not None and (match := find(search, node)) is not None:
            last, group = match
            replacements[id(last)] = group
    nodes = tuple(replacements.get(id(node), node) for node in graph.nodes)
    return without_dead_nodes(replace(graph, nodes=nodes))


def mask_names(graph: OnnxGraph) -> set[str]:
    """Initializers that are added to attention scores, directly."""
    return {
        node.inputs[3]
        for node in graph.nodes
        if node.domain == GROUP_DOMAIN and node.op == "Attention"
    } & set(graph.initializers)


def _group(last: OnnxNode, op: str, inputs: tuple[str, ...], **attributes: object) -> OnnxNode:
    return replace(last, op=op, domain=GROUP_DOMAIN, inputs=inputs, attributes=attributes)


# --- attention ------------------------------------------------------------------------------------


def _attention(search: _Search, softmax: OnnxNode) -> Match | None:
    """softmax(scale * q k^T + mask) v; scales lie in front of the product or behind it."""
    default = -1 if search.graph.opset >= 13 else 1
    if softmax.attributes.get("axis", default) not in (-1, 3):
        return None
    name, mask, kind = softmax.inputs[0], "", ""
    factors: list[tuple[str, str]] = []
    while True:
        node = search.makers.get(name)
        if node is None or not search.private(name):
            return None
        if node.op == "MatMul":
            break
        under, factor = search.factor(name)
        if factor is not None:
            name = under
            factors.append(factor)
        elif node.op == "Cast":
            name = node.inputs[0]
        elif node.op in ("Add", "Where") and not mask:
            adds = node.op == "Add"
            options = (0, 1) if adds else (1, 2)
            sides = [i for i in options if _leads_to_product(search, node.inputs[i])]
            if len(sides) != 1:
                return None
            name, mask = node.inputs[sides[0]], node.inputs[1 - sides[0] if adds else 0]
            kind = "add" if adds else "keep" if sides[0] == 1 else "hide"
        else:
            return None
    operands: list[str] = []
    for operand in node.inputs:
        under, factor = search.factor(operand)
        operands.append(under)
        factors += [factor] if factor is not None else []
    product = _after(search, softmax)
    if product is None:
        return None
    last, values = product
    q, k = operands
    straight = _straight_keys(search, k)
    inputs = (q, straight or k, values, mask, *(number for number, _ in factors))
    operators, transposed = tuple(op for _, op in factors), straight is None
    settings = {"mask": kind, "transposed": transposed, "factors": operators}
    return last, _group(last, "Attention", inputs, **settings)


def _straight_keys(search: _Search, name: str) -> str | None:
    """The keys before they were flattened to three dimensions, transposed and unfolded again, as
    torch's exporter does it."""
    for op, perm in (("Reshape", None), ("Transpose", [0, 2, 1]), ("Reshape", None)):
        node = search.makers.get(name)
        if node is None or node.op != op or not search.private(name):
            return None
        if perm is not None and list(node.attributes.get("perm", ())) != perm:
            return None
        name = node.inputs[0]
    return name


def _leads_to_product(search: _Search, name: str) -> bool:
    node = search.makers.get(name)
    while node is not None and search.private(name):
        if node.op == "MatMul":
            return True
        under = search.scaled(name)
        if under == name and node.op not in ("Cast", "Add", "Where"):
            return False
        if node.op in ("Add", "Where"):
            return any(
                _leads_to_product(search, side) for side in node.inputs if side not in ("", name)
            )
        name = under if under != name else node.inputs[0]
        node = search.makers.get(name)
    return False


def _after(search: _Search, softmax: OnnxNode) -> tuple[OnnxNode, str] | None:
    """The product with the values, behind a cast, a dropout or a guard against empty rows."""
    name = softmax.outputs[0]
    if name in search.graph.outputs:
        return None
    while True:
        readers = search.readers.get(name, [])
        guard = sorted(node.op for node in readers) == ["IsNaN", "Where"]
        if len(readers) != 1 and not guard:
            return None
        node = next(n for n in readers if n.op != "IsNaN")
        if node.op == "MatMul":
            return (node, node.inputs[1]) if node.inputs[0] == name else None
        if node.op not in ("Cast", "Dropout") and not guard:
            return None
        name = node.outputs[0]
        if name in search.graph.outputs:
            return None


def _linear(search: _Search, product: OnnxNode) -> Match | None:
    """A product with a weight, and a bias behind it."""
    weight = search.graph.initializers.get(product.inputs[1])
    plus = search.only_reader(product.outputs[0])
    if weight is None or len(weight.shape) != 2 or plus is None or plus.op != "Add":
        return None
    bias_name = _partner(plus, product.outputs[0])
    bias = search.graph.initializers.get(bias_name)
    if bias is None or bias.shape != weight.shape[1:]:
        return None
    return plus, _group(plus, "Linear", (*product.inputs, bias_name))


# --- activations ----------------------------------------------------------------------------------


def _erf_gelu(search: _Search, erf: OnnxNode) -> Match | None:
    """x / 2 * (1 + erf(x / sqrt 2)), in any order of its factors."""
    x, gate = search.scaled(erf.inputs[0]), _plus_1(search, erf)
    return None if x == erf.inputs[0] or not gate else _half_times(search, x, gate, "none")


def _tanh_gelu(search: _Search, tanh: OnnxNode) -> Match | None:
    """x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))."""
    inner, gate = search.scaled(tanh.inputs[0]), _plus_1(search, tanh)
    scale, total = search.makers.get(tanh.inputs[0]), search.makers.get(inner)
    if inner == tanh.inputs[0] or scale is None or total is None or total.op != "Add":
        return None
    factors = [search.scalar(name) for name in scale.inputs]
    if not any(f is not None and isclose(f, sqrt(2 / pi), rel_tol=1e-2) for f in factors):
        return None
    for x, cubed in (total.inputs, total.inputs[::-1]):
        power = search.makers.get(search.scaled(cubed))
        if power is not None and x in power.inputs and gate:
            return _half_times(search, x, gate, "tanh")
    return None


def _partner(node: OnnxNode, name: str) -> str:
    """The input of a sum or product beside this one."""
    return node.inputs[1] if node.inputs[0] == name else node.inputs[0]


def _plus_1(search: _Search, node: OnnxNode) -> str:
    """1 + the node's output, where nothing else reads that; "" for any other use."""
    name = node.outputs[0]
    plus = search.only_reader(name)
    if plus is None or plus.op != "Add" or search.scalar(_partner(plus, name)) != 1.0:
        return ""
    return plus.outputs[0]


def _half_times(search: _Search, x: str, gate: str, approximate: str) -> Match | None:
    """(x / 2) * gate, (x * gate) / 2 or x * (gate / 2)."""
    halved = False
    name, multiplied = gate, False
    while not (halved and multiplied):
        node = search.only_reader(name)
        if node is None or node.op not in _SCALES:
            return None
        operand = _partner(node, name)
        number = search.scalar(operand)
        if number in ((0.5,) if node.op == "Mul" else (2.0,)) and not halved:
            halved = True
        elif node.op == "Mul" and not multiplied and operand == x:
            multiplied = True
        elif node.op == "Mul" and not multiplied and not halved and search.scaled(operand) == x:
            halved = multiplied = True
        else:
            return None
        name = node.outputs[0]
        last = node
    return last, _group(last, "Gelu", (x,), approximate=approximate)


def _silu(search: _Search, sigmoid: OnnxNode) -> Match | None:
    """x * sigmoid(x)."""
    x = sigmoid.inputs[0]
    times = search.only_reader(sigmoid.outputs[0])
    if times is None or times.op != "Mul" or x not in times.inputs:
        return None
    return times, _group(times, "Silu", (x,))


_PATTERNS = {
    "Softmax": _attention,
    "Erf": _erf_gelu,
    "Tanh": _tanh_gelu,
    "Sigmoid": _silu,
    "MatMul": _linear,
}
"""Pattern functions by the central operator of a group."""
