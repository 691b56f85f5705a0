"""Reading an ONNX file with the onnx package, and evaluating nodes whose inputs are known."""

from __future__ import annotations

import ast
import gzip
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from atoll.base.errors import AtollError
from atoll.files.inputs import open_input
from atoll.tracing.from_onnx.graph import (
    LARGEST_CONSTANT,
    Array,
    Initializer,
    Input,
    OnnxGraph,
    OnnxNode,
    most_common_float,
    without_aliases,
    without_dead_nodes,
)

INSTALL = 'reading an ONNX file needs the onnx package and PyTorch: pip install "atoll[onnx]"'
_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
_MOST_BYTES = 2**31
"""Of one message of protobuf."""
_LARGEST_COMPARED = 1 << 28
_SCOPES = "pkg.torch.onnx.name_scopes"
_RANDOM = ("RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli",
           "Multinomial")  # fmt: skip


def package() -> Any:
    try:
        import onnx
        import onnx.inliner
        import onnx.reference
    except ImportError:
        raise AtollError(INSTALL) from None
    return onnx


def read_graph(path: str | Path) -> OnnxGraph:
    """The file's graph, with everything folded that does not depend on its inputs."""
    onnx = package()
    try:
        with open_input(path, _MOST_BYTES) as file:
            if isinstance(file, gzip.GzipFile):  # of any size once it is unpacked
                raise AtollError(f"{path}: packed with gzip; unpack it first")
            model = onnx.load(file, load_external_data=False)
    except AtollError:
        raise
    except Exception:  # protobuf's own, which has no stable name
        raise AtollError(f"{path}: not an ONNX file") from None
    if not model.graph.node:
        raise AtollError(f"{path}: not an ONNX file, or one without any node")
    opsets = {entry.domain: entry.version for entry in model.opset_import}
    try:
        if model.functions:
            model = onnx.inliner.inline_local_functions(model)
        graph = _graph(onnx, model.graph, opsets.get("", 1), Path(path).parent)
    except (TypeError, ValueError, LookupError, RuntimeError) as error:  # of the onnx package
        raise AtollError(f"{path}: a damaged ONNX file ({error})") from None
    return fold(without_dead_nodes(without_aliases(graph)))


def _graph(onnx: Any, proto: Any, opset: int, folder: Path) -> OnnxGraph:
    kinds = {
        info.name: entry.value
        for info in (*proto.value_info, *proto.input)
        for entry in info.metadata_props
        if entry.key == _KIND
    }
    tensors = [_initializer(onnx, tensor, kinds, folder) for tensor in proto.initializer]
    initializers = {tensor.name: tensor for tensor in tensors}
    return OnnxGraph(
        name=proto.name,
        opset=opset,
        nodes=tuple(_node(onnx, node, opset, folder) for node in proto.node),
        inputs=tuple(_input(i) for i in proto.input if i.name not in initializers),
        outputs=tuple(output.name for output in proto.output),
        initializers=initializers,
        float_type=most_common_float(initializers),
    )


def type_name(number: int) -> str:
    """A type of ONNX by the name that torch and numpy give it."""
    name = str(package().TensorProto.DataType.Name(number)).lower()
    return {"float": "float32", "double": "float64"}.get(name, name)


def _input(info: Any) -> Input:
    kind = info.type.tensor_type
    if not info.type.HasField("tensor_type"):
        raise AtollError(f"input {info.name}: only tensors can be inputs")
    dims = tuple(
        d.dim_value if d.HasField("dim_value") else d.dim_param or "" for d in kind.shape.dim
    )
    return Input(info.name, dims, type_name(kind.elem_type))


def _initializer(onnx: Any, tensor: Any, kinds: dict[str, str], folder: Path) -> Initializer:

    def load() -> Array | None:
        try:
            return np.asarray(onnx.numpy_helper.to_array(tensor, str(folder)))
        except Exception:  # external data that are not there
            return None

    dtype, kind = type_name(tensor.data_type), kinds.get(tensor.name, "")
    return Initializer(tensor.name, tuple(tensor.dims), dtype, kind, load)


def tie_weights(graph: OnnxGraph) -> tuple[OnnxGraph, list[str]]:
    """Exporters fold the transposition of a tied head into a second copy of the word table. The
    copy goes where the data in the file show that it is one; where they are missing, a note."""
    notes = []
    readers = graph.readers()
    for table in graph.weights:
        if not any(n.op == "Gather" and n.inputs[0] == table for n in readers.get(table, ())):
            continue
        shape = graph.initializers[table].shape
        for name in graph.weights:
            weight_readers = readers.get(name, [])
            product = len(weight_readers) == 1 and weight_readers[0].op in ("MatMul", "Linear")
            if not product or graph.initializers[name].shape != shape[::-1] or len(shape) != 2:
                continue
            large = graph.initializers[table].elements > _LARGEST_COMPARED
            data, copy = (None if large else graph.initializers[n].load() for n in (table, name))
            if data is None or copy is None:
                notes.append(
                    f"{table} and {name} have one shape: if they are tied, count them once"
                )
            elif np.array_equal(data, copy.T):
                graph = _transposed(graph, table, name, weight_readers[0])
    return graph, notes


def _transposed(graph: OnnxGraph, table: str, copy: str, reader: OnnxNode) -> OnnxGraph:
    """Replace the copy by a transposed view of the table in front of its reader."""
    view = OnnxNode(
        "Transpose", "", f"{copy}.tied", (table,), (copy,), {"perm": [1, 0]}, reader.path
    )
    nodes = [step for n in graph.nodes for step in ((view, n) if n is reader else (n,))]
    weights = tuple(name for name in graph.weights if name != copy)
    others = {k: v for k, v in graph.initializers.items() if k != copy}
    return replace(graph, nodes=tuple(nodes), weights=weights, initializers=others)


def _node(onnx: Any, proto: Any, opset: int, folder: Path) -> OnnxNode:
    attributes: dict[str, Any] = {}
    for attribute in proto.attribute:
        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            value = value.decode("utf-8", "replace")
        elif isinstance(value, onnx.TensorProto):
            value = onnx.numpy_helper.to_array(value, str(folder))
        elif isinstance(value, onnx.GraphProto):
            value = _graph(onnx, value, opset, folder)
        attributes[attribute.name] = value
    domain = "" if proto.domain == "ai.onnx" else proto.domain
    names = proto.name, tuple(proto.input), tuple(proto.output)
    return OnnxNode(proto.op_type, domain, *names, attributes, _scope(proto), proto)


def _scope(proto: Any) -> str:
    """The module's path as the exporter wrote it down; else the node's name without its end."""
    for entry in proto.metadata_props:
        if entry.key == _SCOPES:
            try:
                scopes = ast.literal_eval(entry.value)
            except (ValueError, SyntaxError):
                continue
            if isinstance(scopes, list) and len(scopes) > 1:
                return str(scopes[-2]).replace(".", "/")
    return str(proto.name).rpartition("/")[0].strip("/")


# --- known values ---------------------------------------------------------------------------------


def fold(graph: OnnxGraph, more: Collection[str] = ()) -> OnnxGraph:
    """Evaluate what depends on no input and on no weight: on integers, on single numbers, and on
    the initializers in `more`. The data of others are never looked at."""
    constants = dict(graph.constants)
    for name, initializer in graph.initializers.items():
        small = initializer.elements <= 1 or not initializer.floating or name in more
        if name in constants or not small or initializer.elements > LARGEST_CONSTANT:
            continue
        if initializer.kind != "PARAMETER" and (data := initializer.load()) is not None:
            constants[name] = data
    nodes = []
    for node in graph.nodes:
        results: tuple[Array, ...] | None = None
        read = [name for name in node.inputs if name]
        if node.op == "Constant" and not node.domain:
            value = constant(node)
            results = None if value is None else (value,)
        if results is None and read and all(name in constants for name in read):
            results = evaluate(node, [constants.get(name) for name in node.inputs], graph.opset)
        if results is None:
            nodes.append(node)
        else:
            constants.update(zip(node.outputs, results, strict=False))
    return without_dead_nodes(replace(graph, nodes=tuple(nodes), constants=constants))


def constant(node: OnnxNode) -> Array | None:
    kinds = {"value": None, "value_int": np.int64, "value_ints": np.int64,
             "value_float": np.float32, "value_floats": np.float32}  # fmt: skip
    typed = ((value, kinds[name]) for name, value in node.attributes.items() if name in kinds)
    return next((np.asarray(value, kind) for value, kind in typed), None)


_RESULTS: dict[object, tuple[Array, ...]] = {}


def evaluate(
    node: OnnxNode, inputs: Sequence[Array | None], opset: int
) -> tuple[Array, ...] | None:
    """Evaluate a node with the onnx reference; None if it cannot or the outputs are too large."""
    if node.domain or node.op in (*_RANDOM, "Loop", "Scan", "If") or _grows(node, inputs):
        return None
    key = None
    if sum(value.size for value in inputs if value is not None) <= 4096:
        arrays = tuple(None if v is None else (v.dtype.str, v.shape, v.tobytes()) for v in inputs)
        attributes = tuple(a.SerializeToString() for a in node.proto.attribute)
        key = (node.op, opset, len(node.outputs), attributes, arrays)
        if key in _RESULTS:
            return _RESULTS[key]
    onnx = package()
    names = [name for name in dict.fromkeys(node.inputs) if name]
    outputs = [name for name in node.outputs if name]
    proto = onnx.NodeProto()
    proto.CopyFrom(node.proto)
    proto.domain = ""
    del proto.input[:]
    proto.input.extend(node.inputs)
    function = onnx.helper.make_function(
        "atoll", "one_node", names, outputs, [proto], [onnx.helper.make_opsetid("", opset)]
    )
    feeds = dict(zip(node.inputs, inputs, strict=True))
    try:
        with np.errstate(all="ignore"):
            reference = onnx.reference.ReferenceEvaluator(function)
            arrays_out = reference.run(None, {name: feeds[name] for name in names}, attributes={})
    except Exception:  # not every operator of the reference takes every input: then it is run
        return None
    by_name = dict(zip(outputs, map(np.asarray, arrays_out), strict=True))
    results = tuple(by_name.get(name, np.zeros(0)) for name in node.outputs)
    if key is not None and sum(value.size for value in results) <= 1 << 16:
        _RESULTS[key] = results
    return results


def _grows(node: OnnxNode, inputs: Sequence[Array | None]) -> bool:
    """Return whether a result would exceed `LARGEST_CONSTANT` elements."""
    sizes = [value.size for value in inputs if value is not None]
    if max(sizes, default=0) > LARGEST_CONSTANT:
        return True
    shape = {"Expand": 1, "ConstantOfShape": 0, "Tile": 1, "Reshape": 1}.get(node.op)
    if shape is None or len(inputs) <= shape or inputs[shape] is None:
        return False
    factor = float(np.prod(np.abs(np.asarray(inputs[shape], np.float64))))
    if node.op == "Tile":
        factor *= max(sizes)
    return factor > LARGEST_CONSTANT
