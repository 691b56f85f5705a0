"""An ONNX graph as a PyTorch module: nodes run in order, inside modules named by their paths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from atoll.base.errors import AtollError
from atoll.tracing.from_onnx import ops_math, ops_nn, ops_shape
from atoll.tracing.from_onnx.graph import Input, OnnxGraph, OnnxNode
from atoll.tracing.from_onnx.onnx_call import OnnxCall, OnnxContext, UnsupportedError, Value
from atoll.tracing.from_onnx.patterns import GROUP_DOMAIN
from atoll.tracing.from_onnx.read import constant, evaluate, fold
from atoll.tracing.record.torch_api import ValueAskedFor, buffer_tensor

_DATA_SIZED = ("NonZero", "Compress", "Unique", "NonMaxSuppression")
_STANDARD = {**ops_math.OPERATORS, **ops_shape.OPERATORS, **ops_nn.OPERATORS}
_GROUPS = {**ops_math.PATTERNS, **ops_nn.PATTERNS}


class ScopeModule(nn.Module):
    """A module of the exported model: it runs the nodes whose path lies inside it."""

    def forward(self, graph: GraphModule, nodes: Sequence[OnnxNode], path: str) -> None:
        graph.run(nodes, path)


class GraphModule(nn.Module):
    """The full graph. `batch_inputs` are the inputs that grow with the batch, in order."""

    def __init__(
        self,
        where: str,
        graph: OnnxGraph,
        batch_inputs: Sequence[Input],
        fixed: dict[str, tuple[int, ...]],
        ones: Sequence[str],
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.where, self.graph, self.batch_inputs, self.fixed = where, graph, batch_inputs, fixed
        self.ones = frozenset(ones)
        self.float_dtype = dtype or getattr(torch, graph.float_type)
        self._homes: dict[str, tuple[nn.Module, str]] = {}
        self._scopes: dict[str, nn.Module] = {"": self}
        numbered = _lists(graph)
        for node in graph.nodes:
            self._scope(node.path, numbered)
        self._register_weights(numbered)

    # --- modules and weights ---------------------------------------------------------------------

    def _scope(self, path: str, lists: set[str]) -> nn.Module:
        if path not in self._scopes:
            parent, _, name = path.rpartition(".")
            module: nn.Module = nn.ModuleDict() if path in lists else ScopeModule()
            self._scope(parent, lists).add_module(_attribute(name), module)
            self._scopes[path] = module
        return self._scopes[path]

    def _register_weights(self, lists: set[str]) -> None:
        """Weights keep the names of the module where the file has them; exporters that fold a
        transposition into a weight give it a number, and it is then called after its module."""
        first: dict[str, OnnxNode] = {}
        for node in self.graph.nodes:
            for name in node.inputs:
                first.setdefault(name, node)
        for name in self.graph.weights:
            initializer = self.graph.initializers[name]
            path, _, last = name.rpartition(".")
            if not path or "::" in name or path not in self._scopes:
                path, last = (first[name].path, "weight") if name in first else ("", name)
            home = self._scope(path, lists)
            last = _attribute(last)
            while hasattr(home, last):
                last += "_"
            kind = getattr(torch, initializer.dtype)
            kind = self.float_dtype if initializer.dtype == self.graph.float_type else kind
            weight = torch.empty(initializer.shape, dtype=kind, device="meta")
            home.register_parameter(last, nn.Parameter(weight))
            self._homes[name] = (home, last)

    # --- running ---------------------------------------------------------------------------------

    def make_context(self) -> OnnxContext:
        return OnnxContext(self.graph.opset, self.graph.float_type, self.float_dtype)

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        graph = self.graph
        self.context = self.make_context()
        self.values: dict[str, Value] = dict(graph.constants)
        for name, (home, attribute) in self._homes.items():
            self.values[name] = getattr(home, attribute)
        for name, initializer in graph.initializers.items():
            if name not in self.values:
                dtype = self.context.torch_dtype(initializer.dtype)
                self.values[name] = buffer_tensor(initializer.shape, dtype)
        types = {i.name: i.dtype for i in graph.inputs}
        for name, shape in self.fixed.items():
            self.values[name] = buffer_tensor(shape, self.context.torch_dtype(types[name]))
        for declared, tensor in zip(self.batch_inputs, inputs, strict=True):
            self.values[declared.name] = tensor
        for name in self.ones & self.values.keys():
            kind = "float32" if types[name] == "bfloat16" else types[name]
            self.values[name] = np.ones(tuple(self.values[name].shape), kind)
        self.run(graph.nodes, "")
        outputs = [self.values[name] for name in graph.outputs]
        self.values = {}
        return tuple(value for value in outputs if isinstance(value, torch.Tensor))

    def run(self, nodes: Sequence[OnnxNode], path: str) -> None:
        """Run nodes of this path, and runs of other nodes inside their modules."""
        at = 0
        start = f"{path}." if path else ""
        while at < len(nodes):
            node_path = nodes[at].path
            if node_path == path:
                self._run_node(nodes[at])
                at += 1
                continue
            inner = start + node_path[len(start) :].partition(".")[0]
            while isinstance(self._scopes[inner], nn.ModuleDict):
                inner = f"{inner}." + node_path[len(inner) + 1 :].partition(".")[0]
            end = at
            while end < len(nodes) and (nodes[end].path + ".").startswith(f"{inner}."):
                end += 1
            self._scopes[inner](self, nodes[at:end], inner)
            at = end

    def _run_node(self, node: OnnxNode) -> None:
        args: list[Any] = [self.values[name] if name else None for name in node.inputs]
        try:
            results = self._results(node, args)
        except AtollError as error:
            if isinstance(error.__cause__, ValueAskedFor):
                raise AtollError(
                    f"{self.where}: {node.where}: the size of its result depends on the data, so "
                    "no training step can be derived; export the model without it"
                ) from error
            raise AtollError(f"{self.where}: {error}") from None
        except UnsupportedError as error:
            raise AtollError(
                f"{self.where}: {node.where}: {error}; capture the module itself, or export it "
                "without this"
            ) from None
        except Exception as error:  # shapes that do not fit, in torch's words
            first = (str(error) or type(error).__name__).strip().splitlines()[0]
            shapes = ", ".join(str(list(a.shape)) for a in args if hasattr(a, "shape"))
            raise AtollError(
                f"{self.where}: {node.where} does not run on {shapes} ({first}); if the file fixes "
                "the batch or the sequence, give its own sizes with --inputs and --batch-dim -1"
            ) from None
        self.values.update(zip(node.outputs, results, strict=False))

    def _results(self, node: OnnxNode, args: list[Value]) -> Sequence[Value]:
        present = [value for value in args if value is not None]
        if node.op == "If" and not node.domain:
            return self._branch(node, args[0])
        if node.op == "Constant" and not node.domain:
            return (constant(node),)
        if present and all(isinstance(value, np.ndarray) for value in present):
            evaluated = evaluate(node, args, self.graph.opset)
            if evaluated is not None:
                return evaluated
        table = _GROUPS if node.domain == GROUP_DOMAIN else {} if node.domain else _STANDARD
        if node.op not in table:
            if node.op in _DATA_SIZED and not node.domain:
                raise UnsupportedError("the size of its result depends on the data")
            raise UnsupportedError("this operator has no counterpart here")
        result: Any = table[node.op](OnnxCall(self.context, node, args))
        return result if isinstance(result, tuple | list) else (result,)

    def _branch(self, node: OnnxNode, condition: Value) -> Sequence[Value]:
        if isinstance(condition, torch.Tensor):
            raise UnsupportedError("which branch runs depends on the data")
        branch = fold(node.attributes["then_branch" if bool(condition) else "else_branch"])
        self.values.update(branch.constants)
        for inner in branch.nodes:
            self._run_node(replace(inner, path=node.path))
        return [self.values[name] for name in branch.outputs]


def _lists(graph: OnnxGraph) -> set[str]:
    """Paths whose children are all numbered, and that hold no node themselves."""
    children: dict[str, set[str]] = {}
    node_paths = {node.path for node in graph.nodes}
    for path in node_paths:
        parts = path.split(".")
        for i in range(1, len(parts)):
            children.setdefault(".".join(parts[:i]), set()).add(parts[i])
    return {path for path in children.keys() - node_paths if all(map(str.isdigit, children[path]))}


def _attribute(name: str) -> str:
    """A name that a module may have."""
    return name.replace(".", "_").replace("/", "_") or "weight"
