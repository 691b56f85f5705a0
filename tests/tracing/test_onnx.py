"""ONNX files become the models that captures of the same modules are."""

from __future__ import annotations

import gzip
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

import atoll
from atoll.base.errors import AtollError
from atoll.cli import app
from atoll.tracing.from_onnx.module_paths import repetition
from atoll.workload import Model, StoredModel, load_model, prepare

FOLDER = Path(__file__).parent / "onnx_files"
FILES = sorted(path.stem for path in FOLDER.glob("*.onnx"))


def need_onnx() -> Any:
    pytest.importorskip("torch")
    return pytest.importorskip("onnx")


def captured(path: Path, **options: Any) -> StoredModel:
    from atoll.tracing.from_onnx import capture_onnx

    return capture_onnx(path, **options)


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(AtollError) as caught:
        captured(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@cache
def of_file(file: str) -> StoredModel:
    return captured(FOLDER / f"{file}.onnx")


@cache
def of_module(name: str) -> StoredModel:
    from .onnx_modules import MODULES, examples

    kind = MODULES[name]
    return atoll.capture(kind().eval(), examples(kind, 2))


def flops(model: Model) -> tuple[int, int]:
    forward = sum(layer.flops_forward * n for layer, n in model.layers)
    return forward, sum(layer.flops_backward * n for layer, n in model.layers)


def kept(model: Model) -> int:
    return sum(layer.saved_bytes * n for layer, n in model.layers)


# --- agreement ------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", FILES)
def test_a_file_is_the_model_that_its_module_is(file: str) -> None:
    """Exact in parameters and products, also where tensors are divided over two devices. The
    weights are not in the file: that GPT's head is tied to its table cannot be seen."""
    need_onnx()
    name = file.partition("-")[0]
    mine, theirs = of_file(file), of_module(name)
    for width in (1, 2):
        a, b = prepare(mine, 2, None, width), prepare(theirs, 2, None, width)
        assert flops(a) == flops(b)
    a, b = prepare(mine, 2), prepare(theirs, 2)
    tied = 96 * 64 if name == "gpt" else 0
    assert a.parameters == b.parameters + tied
    assert kept(a) == pytest.approx(kept(b), rel=0.25 if name == "conv" else 0.01)
    depth = [sum(n for _, n in model.layers) for model in (a, b)]
    assert depth[0] == depth[1]
    assert max(n for _, n in a.layers) == 3


@pytest.mark.parametrize("name", ["gpt", "bert", "llama"])
def test_estimates_agree(name: str, tmp_path: Path) -> None:
    need_onnx()
    times = []
    for label, model in (("onnx", of_file(f"{name}-dynamo")),
                         ("torch", of_module(name))):  # fmt: skip
        file = model.save(tmp_path / f"{label}.json")
        found = atoll.estimate(str(file), "h100", batch=8, microbatch=8)
        times.append(found.tokens_per_s_per_device)
    assert times[0] == pytest.approx(times[1], rel=0.01)


def with_weights(onnx: Any, file: str, target: Path, tied: bool) -> Path:
    model = onnx.load(FOLDER / f"{file}.onnx", load_external_data=False)
    random = np.random.default_rng(0)
    words = random.standard_normal((96, 64), dtype=np.float32)
    for tensor in model.graph.initializer:
        shape = tuple(tensor.dims)
        if shape in ((96, 64), (64, 96)):
            value = words.T if shape == (64, 96) else words
            value = np.ascontiguousarray(value if tied or shape[0] == 96 else 1 - value)
            tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))
    onnx.save(model, target)
    return target


@pytest.mark.parametrize("exporter", ["dynamo", "script"])
def test_a_tied_head_is_found_where_the_weights_are_there(exporter: str, tmp_path: Path) -> None:
    onnx = need_onnx()
    model = captured(with_weights(onnx, f"gpt-{exporter}", tmp_path / "a.onnx", tied=True))
    assert prepare(model, 1).parameters == prepare(of_module("gpt"), 1).parameters
    assert not any("tied" in note for note in model.file.notes)
    other = captured(with_weights(onnx, f"gpt-{exporter}", tmp_path / "b.onnx", tied=False))
    assert prepare(other, 1).parameters == prepare(model, 1).parameters + 96 * 64


# --- layers ---------------------------------------------------------------------------------------


def renamed(onnx: Any, file: str, target: Path, name: Any) -> Path:
    """The file without what torch wrote about modules; `name` gives nodes other names."""
    model = onnx.load(FOLDER / f"{file}.onnx", load_external_data=False)
    for node in model.graph.node:
        node.name = name(node.name)
        del node.metadata_props[:]
    onnx.save(model, target)
    return target


@pytest.mark.parametrize("file", ["bert-script", "llama-dynamo", "conv-dynamo"])
def test_layers_without_names_are_found_by_repetition(file: str, tmp_path: Path) -> None:
    onnx = need_onnx()
    plain = captured(renamed(onnx, file, tmp_path / "a.onnx", lambda name: ""))
    usual = of_file(file)
    assert {layer.repeat for layer in plain.file.layers} == {1, 3}
    assert [layer.name for layer in plain.file.layers] == ["inputs", "layers.0", "outputs"]
    assert flops(prepare(plain, 1)) == flops(prepare(usual, 1))


def test_scopes_of_other_exporters_name_the_layers(tmp_path: Path) -> None:
    onnx = need_onnx()

    def scope(name: str) -> str:
        return "model" + name.replace("/layer.", "/encoder/layer_._") if name else ""

    model = captured(renamed(onnx, "bert-script", tmp_path / "a.onnx", scope))
    assert [(x.name, x.repeat) for x in model.file.layers][1] == ("model.encoder.layer.0", 3)


@given(st.lists(st.integers(0, 2), max_size=24))
def test_the_repetition_is_the_one_that_covers_most(keys: list[int]) -> None:
    best = 0
    for period in range(2, len(keys) // 2 + 1):
        for first in range(len(keys)):
            times = 1
            block = keys[first : first + period]
            while keys[first + times * period : first + (times + 1) * period] == block:
                times += 1
            if times > 1 and len(block) == period:
                best = max(best, period * times)
    found = repetition(keys)
    if found is None:
        assert best == 0
        return
    first, period, times, slack = found
    assert period * times == best
    for start in (first, first + slack):
        blocks = [keys[start + i * period : start + (i + 1) * period] for i in range(times)]
        assert all(block == blocks[0] and len(block) == period for block in blocks)


# --- inputs ---------------------------------------------------------------------------------------


def small(onnx: Any, target: Path, nodes: list[Any], dims: list[Any], opset: int = 20,
          weight: tuple[int, ...] = (8, 8)) -> Path:  # fmt: skip
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "small",
        [helper.make_tensor_value_info("x", kind, dims)],
        [helper.make_tensor_value_info("y", kind, None)],
        [onnx.numpy_helper.from_array(np.zeros(weight, np.float32), "w")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.example", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), target)
    return target


def test_dimensions_are_taken_from_the_file_the_sequence_or_the_inputs(tmp_path: Path) -> None:
    onnx = need_onnx()
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])]
    path = small(onnx, tmp_path / "a.onnx", nodes, ["batch", "tokens", 8])
    assert (
        refusal(path) == f"{path}: input x is float32[batch, tokens, 8], with sizes left open; "
        'give --sequence N, or its shape: --inputs "x=float32[1,512,8]"'
    )
    for options in ({"sequence": 32}, {"inputs": ["x=float32[1,32,8]"], "sequence": 32}):
        model = captured(path, **options)
        assert model.sequence == 32 and model.file.microbatch is None
        assert flops(prepare(model, 4)) == (2 * 4 * 32 * 64, 2 * 4 * 32 * 64)
    fixed = captured(small(onnx, tmp_path / "b.onnx", nodes, [4, 16, 8]), sequence=16)
    assert fixed.file.microbatch == 4
    assert any("microbatch fixed at 4" in note for note in fixed.file.notes)
    assert flops(prepare(fixed, 4))[0] == 2 * 4 * 16 * 64
    late = captured(small(onnx, tmp_path / "c.onnx", nodes, [16, "n", 8]), batch_dim=1, sequence=16)
    assert flops(prepare(late, 4))[0] == 2 * 4 * 16 * 64


def test_mistakes_are_one_sentence(tmp_path: Path) -> None:
    onnx = need_onnx()
    node = onnx.helper.make_node
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no protobuf at all")
    assert "not an ONNX file" in refusal(broken)
    packed = tmp_path / "packed.onnx"  # may unpack to any size
    packed.write_bytes(gzip.compress(b"no protobuf at all"))
    assert "packed with gzip; unpack it first" in refusal(packed)
    assert "no such file" in refusal(tmp_path / "none.onnx")
    product = [node("MatMul", ["x", "w"], ["y"], name="first")]
    path = small(onnx, tmp_path / "a.onnx", product, ["batch", 8])
    assert "no input is called 'z'; those that are used: x" in refusal(
        path, inputs=["z=float32[1]"]
    )
    assert "is float32[batch, 8] in the file, but [1, 9]" in refusal(path, inputs=["float32[1,9]"])
    assert "expected a type and a shape" in refusal(path, inputs=["8 by 8"])
    assert "keep: allowed are" in refusal(path, keep="all")
    assert "dtype: expected a floating-point type" in refusal(path, dtype="int8")
    cases: dict[str, tuple[list[Any], list[Any]]] = {
        "node odd (com.example.Odd): this operator has no counterpart here": (
            [node("Odd", ["x", "w"], ["y"], name="odd", domain="com.example")], ["batch", 8]),
        "node pick (NonZero): the size of its result depends on the data": (
            [node("NonZero", ["x"], ["z"], name="pick"), node("Cast", ["z"], ["f"], to=1),
             node("ReduceSum", ["f"], ["g"]), node("Add", ["g", "w"], ["y"])], ["batch", 8]),
        "node first (MatMul) does not run on [2, 7], [8, 8]": (product, ["batch", 7]),
        "node to (Reshape) does not run on [2, 8]": (
            [node("Constant", [], ["s"], value_ints=[1, 8]),
             node("Reshape", ["x", "s"], ["z"], name="to"), node("MatMul", ["z", "w"], ["y"])],
            ["batch", 8]),
    }  # fmt: skip
    for number, (message, (nodes, dims)) in enumerate(cases.items()):
        assert message in refusal(small(onnx, tmp_path / f"{number}.onnx", nodes, dims))
    nodes = [node("Add", ["x", "x"], ["y"])]
    path = small(onnx, tmp_path / "z.onnx", nodes, ["batch", 8])
    assert "reads no floating-point initializer: nothing to train" in refusal(path)


def test_without_the_onnx_package_one_sentence_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    out = tmp_path / "m.json"
    result = CliRunner().invoke(
        app, ["capture", str(FOLDER / f"{FILES[0]}.onnx"), "--out", str(out)]
    )
    assert str(result.exception) == (
        'reading an ONNX file needs the onnx package and PyTorch: pip install "atoll[onnx]"'
    )
    assert not out.exists()


def test_an_onnx_file_is_no_model_before_it_is_captured() -> None:
    path = FOLDER / f"{FILES[0]}.onnx"
    with pytest.raises(AtollError, match="an ONNX file is captured first: atoll capture"):
        load_model(path)


def test_the_command_writes_a_model(tmp_path: Path) -> None:
    need_onnx()
    out = tmp_path / "bert.json"
    file = FOLDER / "bert-dynamo.onnx"
    result = CliRunner().invoke(app, ["capture", str(file), "--out", str(out)])
    assert result.exit_code == 0, result.exception
    assert "162,464" in result.output and "layer.0" in result.output
    assert atoll.describe_model(str(out)).parameters == 162_464
