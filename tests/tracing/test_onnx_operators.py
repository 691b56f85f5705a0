"""Every ONNX operator that is known computes what the onnx package's reference computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

from atoll.tracing.from_onnx.capture import prepare_graph  # noqa: E402
from atoll.tracing.from_onnx.module import GraphModule  # noqa: E402
from atoll.tracing.from_onnx.onnx_call import OnnxContext  # noqa: E402

from .onnx_modules import EXPORTERS, FOLDER, MODULES, examples  # noqa: E402

RANDOM = np.random.default_rng(0)


def rand(*shape: int) -> Any:
    return RANDOM.standard_normal(shape, dtype=np.float32)


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


class RealModule(GraphModule):
    """The module with the values of its constants, so that it computes."""

    def make_context(self) -> OnnxContext:
        def hold(value: Any, kind: Any) -> Any:
            return torch.from_numpy(np.array(value)).to(kind)

        return OnnxContext(self.graph.opset, self.graph.float_type, self.float_dtype, hold)


def computed(path: Path, inputs: dict[str, Any]) -> list[Any]:
    """The outputs of the file as its module computes them."""
    graph, _ = prepare_graph(path)
    module = RealModule(str(path), graph, graph.inputs, {}, (), torch.float32)
    data = {}
    for name, (home, attribute) in module._homes.items():
        prefix = next(p for p, m in module.named_modules() if m is home)
        key = f"{prefix}.{attribute}" if prefix else attribute
        data[key] = torch.from_numpy(np.array(graph.initializers[name].load()))
    given = tuple(torch.from_numpy(inputs[i.name]) for i in graph.inputs)
    with torch.no_grad():
        results = torch.func.functional_call(module, data, given)
    return [result.numpy() for result in results]


def check(
    tmp_path: Path, nodes: list[Any], inputs: dict[str, Any], weights: dict[str, Any],
    outputs: int = 1, opset: int = 20,
) -> None:  # fmt: skip
    """The graph x -> nodes -> y, y1, ..., behind a product with a weight: something to train."""
    names = ["y", *(f"y{i}" for i in range(1, outputs))]
    first = {k: v for k, v in inputs.items() if v.dtype == np.float32}
    scale = [helper.make_node("Mul", [f"{k}_raw", "scale"], [k]) for k in first]
    graph = helper.make_graph(
        [*scale, *nodes],
        "one",
        [
            helper.make_tensor_value_info(
                f"{k}_raw" if k in first else k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape
            )
            for k, v in inputs.items()
        ],
        [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in names],
        [
            onnx.numpy_helper.from_array(value, name)
            for name, value in {"scale": np.full(2, 0.5, np.float32)[:1], **weights}.items()
        ],
    )
    graph.initializer.append(onnx.numpy_helper.from_array(rand(3, 3), "unused"))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    path = tmp_path / "one.onnx"
    # A second output that a weight makes: the file must have something to train.
    graph_ = model.graph
    graph_.node.append(helper.make_node("MatMul", ["unused", "unused"], ["trained"]))
    graph_.output.append(helper.make_tensor_value_info("trained", TensorProto.FLOAT, [3, 3]))
    onnx.save(model, path)
    fed = {f"{k}_raw" if k in first else k: v for k, v in inputs.items()}
    expected = ReferenceEvaluator(model).run(None, fed)[:-1]
    found = computed(path, fed)
    assert len(found) == outputs + 1
    for mine, theirs in zip(found, expected, strict=False):
        np.testing.assert_allclose(mine, theirs, rtol=2e-4, atol=2e-5)


X, IMAGE = rand(2, 3, 4), rand(2, 4, 8, 8)
N = helper.make_node
UNARY = (
    "Abs Atan Ceil Cos Cosh Erf Exp Floor HardSwish IsInf IsNaN Mish Neg Relu Round Sigmoid Sign "
    "Sin Sinh Softplus Softsign Tan Tanh HardSigmoid LeakyRelu Elu Gelu LogSoftmax Softmax "
    "LpNormalization"
)
REDUCTIONS = ["L1", "L2", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare"]


@pytest.mark.parametrize("op", UNARY.split())
def test_functions_of_one_tensor(op: str, tmp_path: Path) -> None:
    check(tmp_path, [N(op, ["x"], ["y"])], {"x": X}, {})


@pytest.mark.parametrize("op", ["Log", "Sqrt", "Reciprocal", "Acos", "Asin"])
def test_functions_of_positive_numbers(op: str, tmp_path: Path) -> None:
    check(tmp_path, [N(op, ["x"], ["y"])], {"x": np.abs(X) % 1 + 0.1}, {})


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum", "PRelu"])
@pytest.mark.parametrize("other", [rand(3, 1), rand(1), rand(2, 3, 4)], ids=["row", "one", "all"])
def test_functions_of_two_tensors(op: str, other: Any, tmp_path: Path) -> None:
    check(tmp_path, [N(op, ["x", "b"], ["y"])], {"x": X, "b": other}, {})
    if op != "PRelu":
        check(tmp_path, [N(op, ["b", "x"], ["y"])], {"x": X}, {"b": other})


@pytest.mark.parametrize("op", ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"])
def test_comparisons_choose(op: str, tmp_path: Path) -> None:
    nodes = [N(op, ["x", "b"], ["c"]), N("Not", ["c"], ["d"]), N("Or", ["c", "d"], ["e"]),
             N("And", ["e", "c"], ["f"]), N("Xor", ["f", "d"], ["g"]), N("And", ["g", "c"], ["h"]),
             N("Where", ["h", "x", "zero"], ["y"])]  # fmt: skip
    check(tmp_path, nodes, {"x": X, "b": rand(4)}, {"zero": np.zeros((), np.float32)})


def test_powers_remainders_and_bounds(tmp_path: Path) -> None:
    one = np.array(2.0, np.float32)
    check(tmp_path, [N("Pow", ["x", "two"], ["y"])], {"x": X}, {"two": one})
    check(tmp_path, [N("Clip", ["x", "lo", "hi"], ["y"])], {"x": X},
          {"lo": np.array(-0.1, np.float32), "hi": np.array(0.2, np.float32)})  # fmt: skip
    check(tmp_path, [N("Mod", ["x", "two"], ["y"], fmod=1)], {"x": X}, {"two": one})
    check(tmp_path, [N("Cast", ["x"], ["i"], to=TensorProto.INT64),
                     N("Cast", ["i"], ["y"], to=TensorProto.FLOAT)], {"x": 10 * X}, {})  # fmt: skip


@pytest.mark.parametrize("op", REDUCTIONS)
@pytest.mark.parametrize("keep", [0, 1])
def test_reductions(op: str, keep: int, tmp_path: Path) -> None:
    node = N(f"Reduce{op}", ["x", "axes"], ["y"], keepdims=keep)
    check(tmp_path, [node], {"x": X}, {"axes": ints(-1, 0)})
    check(tmp_path, [N(f"Reduce{op}", ["x"], ["y"], keepdims=keep)], {"x": X}, {})


def test_indices_and_order(tmp_path: Path) -> None:
    for op in ("ArgMax", "ArgMin"):
        check(tmp_path, [N(op, ["x"], ["y"], axis=2)], {"x": X}, {})
    check(tmp_path, [N("TopK", ["x", "k"], ["y", "y1"])], {"x": X}, {"k": ints(2)}, outputs=2)
    check(tmp_path, [N("CumSum", ["x", "a"], ["y"])], {"x": X}, {"a": np.array(1)})
    check(tmp_path, [N("CumSum", ["x", "a"], ["y"], reverse=1)], {"x": X}, {"a": np.array(1)})


SHAPES: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "reshape": ([N("Reshape", ["x", "s"], ["y"])], {"s": ints(0, -1)}),
    "flatten": ([N("Flatten", ["x"], ["y"], axis=2)], {}),
    "transpose": ([N("Transpose", ["x"], ["y"], perm=[1, 2, 0])], {}),
    "reversed": ([N("Transpose", ["x"], ["y"])], {}),
    "unsqueeze": ([N("Unsqueeze", ["x", "a"], ["y"])], {"a": ints(0, -1)}),
    "squeeze": ([N("Unsqueeze", ["x", "a"], ["z"]), N("Squeeze", ["z", "a"], ["y"])],
                {"a": ints(1)}),
    "expand": ([N("Unsqueeze", ["x", "a"], ["z"]), N("Expand", ["z", "s"], ["y"])],
               {"a": ints(1), "s": ints(2, 5, 1, 4)}),
    "slice": ([N("Slice", ["x", "b", "e", "a"], ["y"])],
              {"b": ints(1, -3), "e": ints(1 << 60, -1), "a": ints(1, 2)}),
    "steps": ([N("Slice", ["x", "b", "e", "a", "s"], ["y"])],
              {"b": ints(0), "e": ints(9), "a": ints(2), "s": ints(2)}),
    "backwards": ([N("Slice", ["x", "b", "e", "a", "s"], ["y"])],
                  {"b": ints(-1), "e": ints(-(1 << 62)), "a": ints(2), "s": ints(-1)}),
    "concat": ([N("Concat", ["x", "x"], ["y"], axis=1)], {}),
    "tile": ([N("Tile", ["x", "r"], ["y"])], {"r": ints(1, 2, 3)}),
    "pad": ([N("Pad", ["x", "p"], ["y"])], {"p": ints(0, 1, 2, 0, 0, 1)}),
    "pad edges": ([N("Pad", ["x", "p"], ["y"], mode="edge")], {"p": ints(0, 0, 2, 0, 0, 1)}),
    "gather one": ([N("Gather", ["x", "i"], ["y"], axis=1)], {"i": np.array(-1, np.int64)}),
    "gather": ([N("Gather", ["x", "i"], ["y"], axis=2)], {"i": np.array([[0, 3], [1, 1]])}),
    "gather rows": ([N("Gather", ["x", "i"], ["y"])], {"i": ints(1)}),
    "elements": ([N("GatherElements", ["x", "i"], ["y"], axis=1)],
                 {"i": np.ones((2, 1, 4), np.int64)}),
    "gather nd": ([N("GatherND", ["x", "i"], ["y"])], {"i": np.array([[0, 1], [1, 2]])}),
    "scatter": ([N("ScatterElements", ["x", "i", "u"], ["y"], axis=1)],
                {"i": np.ones((2, 1, 4), np.int64), "u": rand(2, 1, 4)}),
    "scatter nd": ([N("ScatterND", ["x", "i", "u"], ["y"])],
                   {"i": np.array([[1], [0]]), "u": rand(2, 3, 4)}),
    "trilu": ([N("Trilu", ["x", "k"], ["y"], upper=0)], {"k": np.array(1, np.int64)}),
    "shape": ([N("Shape", ["x"], ["s"], start=1), N("ConstantOfShape", ["s"], ["c"]),
               N("Add", ["x", "c"], ["y"])], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_and_look_ups(name: str, tmp_path: Path) -> None:
    nodes, constants = SHAPES[name]
    check(tmp_path, nodes, {"x": X}, constants)


def test_splits(tmp_path: Path) -> None:
    nodes = [N("Split", ["x", "s"], ["y", "y1"], axis=2)]
    check(tmp_path, nodes, {"x": X}, {"s": ints(1, 3)}, outputs=2)
    nodes = [N("Split", ["x"], ["y", "y1"], axis=2, num_outputs=2)]
    check(tmp_path, nodes, {"x": X}, {}, outputs=2)


def test_sequences(tmp_path: Path) -> None:
    nodes = [N("SplitToSequence", ["x", "n"], ["s"], axis=2), N("SequenceAt", ["s", "i"], ["y"])]
    for size in (np.array(2), ints(1, 3)):
        check(tmp_path, nodes, {"x": X}, {"n": size, "i": np.array(1)})


def test_images(tmp_path: Path) -> None:
    for mode in ("DCR", "CRD"):
        check(tmp_path, [N("DepthToSpace", ["x"], ["y"], blocksize=2, mode=mode)], {"x": IMAGE}, {})
    check(tmp_path, [N("SpaceToDepth", ["x"], ["y"], blocksize=2)], {"x": IMAGE}, {})
    for op in ("GlobalAveragePool", "GlobalMaxPool"):
        check(tmp_path, [N(op, ["x"], ["y"])], {"x": IMAGE}, {})
    pool = {"kernel_shape": [3, 3], "strides": [2, 2]}
    for more in ({"pads": [1, 1, 1, 1]}, {"pads": [0, 0, 1, 1]}, {"auto_pad": "SAME_UPPER"}):
        check(tmp_path, [N("MaxPool", ["x"], ["y"], **pool, **more)], {"x": IMAGE}, {})
    check(tmp_path, [N("AveragePool", ["x"], ["y"], **pool, pads=[1] * 4)], {"x": IMAGE}, {})
    scales = {"s": np.array([1, 1, 2, 2], np.float32)}
    check(tmp_path, [N("Resize", ["x", "", "s"], ["y"], mode="nearest",
                       coordinate_transformation_mode="asymmetric", nearest_mode="floor")],
          {"x": IMAGE}, scales)  # fmt: skip
    check(tmp_path, [N("Resize", ["x", "", "s"], ["y"], mode="linear")], {"x": IMAGE}, scales)


@pytest.mark.parametrize(
    "settings",
    [{}, {"pads": [1] * 4, "strides": [2, 2]}, {"group": 2}, {"auto_pad": "SAME_LOWER"},
     {"dilations": [2, 2], "pads": [0, 1, 2, 3]}],
    ids=str,
)  # fmt: skip
def test_convolutions(settings: dict[str, Any], tmp_path: Path) -> None:
    weights = {"w": rand(6, 4 // settings.get("group", 1), 3, 3), "b": rand(6)}
    check(tmp_path, [N("Conv", ["x", "w", "b"], ["y"], **settings)], {"x": IMAGE}, weights)


def test_transposed_convolutions(tmp_path: Path) -> None:
    node = N("ConvTranspose", ["x", "w", "b"], ["y"], strides=[2, 2], pads=[1] * 4)
    check(tmp_path, [node], {"x": IMAGE}, {"w": rand(4, 6, 3, 3), "b": rand(6)})


def test_products(tmp_path: Path) -> None:
    check(tmp_path, [N("MatMul", ["x", "w"], ["y"])], {"x": X}, {"w": rand(4, 5)})
    nodes = [N("MatMul", ["x", "w"], ["z"]), N("Add", ["b", "z"], ["y"])]
    check(tmp_path, nodes, {"x": X}, {"w": rand(4, 5), "b": rand(5)})
    for a, b in ((0, 1), (1, 0)):
        x, w = (rand(4, 3) if a else rand(3, 4)), (rand(5, 4) if b else rand(4, 5))
        node = N("Gemm", ["x", "w", "c"], ["y"], transA=a, transB=b, alpha=0.5, beta=2.0)
        check(tmp_path, [node], {"x": x}, {"w": w, "c": rand(5)})
    check(tmp_path, [N("Einsum", ["x", "w"], ["y"], equation="bij,jk->bik")], {"x": X},
          {"w": rand(4, 5)})  # fmt: skip


def test_norms(tmp_path: Path) -> None:
    scale = {"s": rand(4), "b": rand(4)}
    node = N("LayerNormalization", ["x", "s", "b"], ["y"], axis=-1)
    check(tmp_path, [node], {"x": X}, scale)
    check(tmp_path, [N("RMSNormalization", ["x", "s"], ["y"])], {"x": X}, scale, opset=23)
    check(tmp_path, [N("InstanceNormalization", ["x", "s", "b"], ["y"])], {"x": IMAGE}, scale)
    node = N("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2)
    check(tmp_path, [node], {"x": IMAGE}, scale, opset=21)


@pytest.mark.parametrize("causal", [0, 1])
def test_attention(causal: int, tmp_path: Path) -> None:
    qkv = {"q": rand(2, 4, 5, 8), "k": rand(2, 2, 5, 8), "v": rand(2, 2, 5, 8)}
    node = N("Attention", ["q", "k", "v"], ["y"], is_causal=causal)
    check(tmp_path, [node], qkv, {}, opset=23)
    flat = {"q": rand(2, 5, 32), "k": rand(2, 5, 32), "v": rand(2, 5, 32)}
    node = N("Attention", ["q", "k", "v"], ["y"], is_causal=causal, q_num_heads=4, kv_num_heads=4)
    check(tmp_path, [node], flat, {}, opset=23)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_positions(interleaved: int, tmp_path: Path) -> None:
    node = N("RotaryEmbedding", ["x", "c", "s", "p"], ["y"], interleaved=interleaved)
    tables = {"c": rand(7, 4), "s": rand(7, 4)}
    places = np.arange(5)[None].repeat(2, 0)
    check(tmp_path, [node], {"x": rand(2, 3, 5, 8), "p": places}, tables, opset=23)


def test_losses(tmp_path: Path) -> None:
    labels = np.array([1, 0, 3])
    node = N("SoftmaxCrossEntropyLoss", ["x", "l"], ["y"])
    check(tmp_path, [node], {"x": rand(3, 5), "l": labels}, {})


def test_the_rest(tmp_path: Path) -> None:
    check(tmp_path, [N("Mean", ["x", "b"], ["y"])], {"x": X, "b": rand(2, 3, 4)}, {})
    check(tmp_path, [N("Celu", ["x"], ["y"], alpha=2.0)], {"x": X}, {})
    check(tmp_path, [N("Dropout", ["x"], ["y"])], {"x": X}, {})
    check(tmp_path, [N("Swish", ["x"], ["y"], alpha=2.0)], {"x": X}, {}, opset=24)
    nodes = [N("Size", ["x"], ["n"]), N("CastLike", ["n", "x"], ["m"]), N("Mul", ["x", "m"], ["y"])]
    check(tmp_path, nodes, {"x": X}, {})
    nodes = [N("OneHot", ["i", "d", "v"], ["h"], axis=1), N("Add", ["h", "x"], ["y"])]
    hot = {"d": np.array(3), "v": np.array([0, 1], np.float32)}
    check(tmp_path, nodes, {"x": rand(2, 3), "i": ints(1, 2)}, hot)
    nodes = [N("LogSoftmax", ["x"], ["z"], axis=1),
             N("NegativeLogLikelihoodLoss", ["z", "l"], ["y"], reduction="sum")]  # fmt: skip
    check(tmp_path, nodes, {"x": rand(3, 5), "l": ints(1, 0, 3)}, {})
    for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
        check(tmp_path, [N(op, ["i", "j"], ["y"])], {"i": ints(6, 5), "j": ints(3, 4)}, {})


def test_groups_of_small_steps(tmp_path: Path) -> None:
    """GELU by erf and by tanh, SiLU, attention under three kinds of masks."""
    one = {
        n: np.array(v, np.float32)
        for n, v in {
            "r": 2**0.5,
            "one": 1,
            "half": 0.5,
            "c": 0.044715,
            "three": 3,
            "p": 0.7978846,
        }.items()
    }
    erf = [N("Div", ["x", "r"], ["a"]), N("Erf", ["a"], ["b"]), N("Add", ["b", "one"], ["d"])]
    for end in (
        [N("Mul", ["x", "d"], ["e"]), N("Mul", ["e", "half"], ["y"])],
        [N("Mul", ["x", "half"], ["e"]), N("Mul", ["e", "d"], ["y"])],
        [N("Mul", ["d", "half"], ["e"]), N("Mul", ["x", "e"], ["y"])],
    ):
        check(tmp_path, [*erf, *end], {"x": X}, one)
    tanh = [
        N("Pow", ["x", "three"], ["a"]),
        N("Mul", ["a", "c"], ["b"]),
        N("Add", ["x", "b"], ["d"]),
        N("Mul", ["d", "p"], ["e"]),
        N("Tanh", ["e"], ["f"]),
        N("Add", ["f", "one"], ["g"]),
        N("Mul", ["x", "g"], ["h"]),
        N("Mul", ["h", "half"], ["y"]),
    ]
    check(tmp_path, tanh, {"x": X}, one)
    check(tmp_path, [N("Sigmoid", ["x"], ["a"]), N("Mul", ["x", "a"], ["y"])], {"x": X}, {})


@pytest.mark.parametrize("mask", ["none", "causal", "added", "kept", "hidden", "input"])
def test_attention_in_small_steps(mask: str, tmp_path: Path) -> None:
    inputs = {name: rand(2, 4, 6, 8) for name in "qkv"}
    lower = np.tri(6, dtype=bool)
    constants: dict[str, Any] = {
        "scale": np.full(1, 0.5, np.float32), "root": np.array(8**-0.5, np.float32),
        "low": np.array(-1e9, np.float32),
    }  # fmt: skip
    nodes = [
        N("Transpose", ["k"], ["kt"], perm=[0, 1, 3, 2]),
        N("MatMul", ["q", "kt"], ["s0"]),
        N("Mul", ["s0", "root"], ["s1"]),
    ]
    if mask in ("causal", "added"):
        hidden = lower if mask == "causal" else lower.T
        constants["m"] = np.where(hidden, 0, -1e9).astype(np.float32)
        nodes.append(N("Add", ["s1", "m"], ["s"]))
    elif mask == "input":
        inputs["m"] = rand(2, 1, 6, 6)
        nodes.append(N("Add", ["m", "s1"], ["s"]))
    elif mask == "kept":
        constants["m"] = lower
        nodes.append(N("Where", ["m", "s1", "low"], ["s"]))
    elif mask == "hidden":
        constants["m"] = lower.T & ~np.eye(6, dtype=bool)
        nodes.append(N("Where", ["m", "low", "s1"], ["s"]))
    else:
        nodes[-1] = N("Mul", ["s0", "root"], ["s"])
    nodes += [N("Softmax", ["s"], ["p"], axis=-1), N("MatMul", ["p", "v"], ["y"])]
    check(tmp_path, nodes, inputs, constants)


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", MODULES)
def test_whole_graphs(name: str, exporter: str, tmp_path: Path) -> None:
    """With random weights in the place of those that were taken out."""
    model = onnx.load(FOLDER / f"{name}-{exporter}.onnx", load_external_data=False)
    random = np.random.default_rng(1)
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            value = random.standard_normal(tuple(tensor.dims), dtype=np.float32) / 4
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    path = tmp_path / "whole.onnx"
    onnx.save(model, path)
    given = {
        i.name: value.numpy()
        for i, value in zip(model.graph.input, examples(MODULES[name], 2), strict=True)
    }
    (expected,) = ReferenceEvaluator(model).run(None, given)
    (found,) = computed(path, given)
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-4)
