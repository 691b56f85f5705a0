"""`atoll-model` files: what other tools may write, and how mistakes in them are answered."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.base.errors import AtollError
from atoll.workload import StoredModel, load_config, load_model, prepare, widths
from atoll.workload.modelfile import evaluated_size

TINY = Path(__file__).parents[2] / "examples" / "spaces" / "tiny.yaml"


def linear_layer(width: int = 256) -> dict[str, Any]:
    """y = x + relu(x W1) W2, written by hand: columns, then rows, one sum in each pass."""
    stream = {"shape": ["128*microbatch", width]}
    inner = {"shape": ["128*microbatch", 4 * width], "split": {"dim": 1, "units": 4 * width}}
    up = {"shape": [width, 4 * width], "role": "weight", "split": {"dim": 1, "units": 4 * width}}
    down = {"shape": [4 * width, width], "role": "weight", "split": {"dim": 0, "units": 4 * width}}
    gradient = {"role": "activation_gradient"}
    weights = {"role": "weight_gradient"}
    rows = "128*microbatch"

    def product(n: int, k: int, split: str) -> dict[str, Any]:
        return {"m": rows, "n": n, "k": k, "split": split}

    def gradient_product(m: int, n: int, split: str) -> dict[str, Any]:
        return {"m": m, "n": n, "k": rows, "split": split}

    return {
        "name": "block",
        "repeat": 6,
        "inputs": ["x"],
        "outputs": ["y"],
        "tensors": {
            "x": stream, "h": inner, "a": inner, "z.partial": stream, "z": stream, "y": stream,
            "w1": up, "w2": down, "dy": {**stream, **gradient}, "da": {**inner, **gradient},
            "dh": {**inner, **gradient}, "dx1.partial": {**stream, **gradient},
            "dx1": {**stream, **gradient}, "dx": {**stream, **gradient},
            "dw1": {**up, **weights}, "dw2": {**down, **weights},
        },
        "forward": [
            {"name": "up", "kind": "linear", "reads": ["x", "w1"], "writes": ["h"],
             "matmuls": [product(4 * width, width, "n")]},
            {"name": "act", "kind": "activation", "reads": ["h"], "writes": ["a"],
             "vectors": [{"function": "relu", "rows": rows, "cols": 4 * width, "split": "cols"}]},
            {"name": "down", "kind": "linear", "reads": ["a", "w2"], "writes": ["z.partial"],
             "matmuls": [product(width, 4 * width, "k")]},
            {"name": "sum", "kind": "all_reduce", "reads": ["z.partial"], "writes": ["z"],
             "collective": "all_reduce"},
            {"name": "residual", "kind": "add", "reads": ["x", "z"], "writes": ["y"],
             "vectors": [{"function": "add", "rows": rows, "cols": width}]},
        ],
        "backward": [
            {"name": "down.wgrad", "kind": "linear_grad", "reads": ["a", "dy"], "writes": ["dw2"],
             "matmuls": [gradient_product(4 * width, width, "m")]},
            {"name": "down.dgrad", "kind": "linear_grad", "reads": ["dy", "w2"], "writes": ["da"],
             "matmuls": [product(4 * width, width, "n")]},
            {"name": "act.bwd", "kind": "activation_bwd", "reads": ["da", "a"], "writes": ["dh"],
             "vectors": [{"function": "relu_bwd", "rows": rows, "cols": 4 * width,
                          "split": "cols"}]},
            {"name": "up.wgrad", "kind": "linear_grad", "reads": ["x", "dh"], "writes": ["dw1"],
             "matmuls": [gradient_product(width, 4 * width, "n")]},
            {"name": "up.dgrad", "kind": "linear_grad", "reads": ["dh", "w1"],
             "writes": ["dx1.partial"], "matmuls": [product(width, 4 * width, "k")]},
            {"name": "sum", "kind": "all_reduce", "reads": ["dx1.partial"], "writes": ["dx1"],
             "collective": "all_reduce"},
            {"name": "residual.bwd", "kind": "add", "reads": ["dy", "dx1"], "writes": ["dx"],
             "vectors": [{"function": "add", "rows": rows, "cols": width}]},
        ],
    }  # fmt: skip


def model() -> dict[str, Any]:
    return {
        "format": "atoll-model",
        "version": 1,
        "name": "by hand",
        "sequence": 128,
        "tensor_parallel": True,
        "layers": [linear_layer()],
    }


def written(tmp_path: Path, given: dict[str, Any]) -> Path:
    file = tmp_path / "model.json"
    file.write_text(json.dumps(given), encoding="utf-8")
    return file


def loaded(tmp_path: Path, given: dict[str, Any]) -> StoredModel:
    result = load_model(written(tmp_path, given))
    assert isinstance(result, StoredModel)
    return result


def test_a_file_written_by_hand_is_a_model(tmp_path: Path) -> None:
    stored = loaded(tmp_path, model())
    whole = prepare(stored, 2)
    ((layer, repeat),) = whole.layers
    assert (whole.name, repeat, whole.tokens) == ("by hand", 6, 256)
    assert whole.parameters == 6 * 2 * 256 * 1024
    assert layer.flops_forward == 2 * 2 * 256 * 256 * 1024
    assert layer.flops_backward == 2 * layer.flops_forward
    assert set(layer.saved) == {"x", "a"}
    assert not any(op.collective for op in (*layer.forward, *layer.backward))


def test_a_wider_layout_divides_it_and_brings_the_collectives(tmp_path: Path) -> None:
    stored = loaded(tmp_path, model())
    assert widths(stored, (1, 2, 3, 4)) == (1, 2, 4)
    local = prepare(stored, 2, None, 4)
    ((layer, _),) = local.layers
    assert local.parameters == 6 * 2 * 256 * 256
    assert layer.flops_forward == 2 * 2 * 256 * 256 * 256
    links = [op.collective for op in (*layer.forward, *layer.backward) if op.collective]
    assert [(link.bytes, link.group) for link in links] == [(256 * 256 * 2, 4)] * 2
    with pytest.raises(AtollError, match="is 3, but does not divide the 1024 units"):
        prepare(stored, 2, None, 3)


def test_a_search_takes_it_where_it_takes_a_model(tmp_path: Path) -> None:
    file = written(tmp_path, model())
    result = atoll.search(
        model=str(file), space=str(TINY), devices=8, batch=64, microbatch=[1, 4],
        tp=[1, 2], baselines=False,
    )  # fmt: skip
    assert result.certificate.gap < 0.01
    assert atoll.describe_model(str(file), microbatch=2).parameters == 6 * 2 * 256 * 1024


def test_writing_and_reading_is_the_identity(tmp_path: Path) -> None:
    stored = loaded(tmp_path, model())
    assert load_model(stored.save(tmp_path / "again.json")) == stored


def test_sizes_grow_with_the_microbatch() -> None:
    sizes = (7, "microbatch", "5*microbatch", "5*microbatch/4", "9/4")
    assert [evaluated_size(s, 3) for s in sizes] == [7, 3, 15, 4, 3]


def test_weights_in_common_count_once(tmp_path: Path) -> None:
    given = model() | {"shared": {"w1": 6}}
    assert prepare(loaded(tmp_path, given), 1).parameters == (1 + 6) * 256 * 1024


def test_sequence_and_microbatch_are_those_of_the_file(tmp_path: Path) -> None:
    stored = loaded(tmp_path, model() | {"microbatch": 2})
    with pytest.raises(AtollError, match="sequence is 64, but the file holds the model at 128"):
        prepare(stored, 2, 64)
    with pytest.raises(AtollError, match="microbatch is 1, but the file holds the model at 2"):
        prepare(stored, 1)


def test_without_splits_only_width_one_is_possible(tmp_path: Path) -> None:
    stored = loaded(tmp_path, model() | {"tensor_parallel": False})
    assert widths(stored, (1, 2)) == (1,)
    with pytest.raises(AtollError, match="only width 1 is possible"):
        prepare(stored, 1, None, 2)


def test_a_configuration_is_asked_for_where_one_is_needed(tmp_path: Path) -> None:
    with pytest.raises(AtollError, match="an atoll-model file, but a configuration is needed"):
        load_config(written(tmp_path, model()))


def changed(path: str, value: object) -> dict[str, Any]:
    """The file with one value replaced (or removed, for None)."""
    given = copy.deepcopy(model())
    *parents, last = path.split("/")
    place: Any = given
    for part in parents:
        place = place[int(part) if part.isdigit() else part]
    if value is None:
        del place[last]
    else:
        place[int(last) if last.isdigit() else last] = value
    return given


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("format", "onnx", "format is 'onnx', but only 'atoll-model' files"),
        ("version", 2, "version is 2, but this Atoll reads version 1"),
        ("name", None, "name: required field is missing"),
        ("sequence", 0, "sequence: expected at least 1, got 0"),
        ("colour", "red", "colour: unknown field"),
        ("layers", [], "layers: expected at least 1 item"),
        ("layers/0/repeat", 0, "layers.0.repeat: expected at least 1, got 0"),
        ("layers/0/tensors/x/shape/0", "many", "expected a whole number or 'K*microbatch'"),
        ("layers/0/tensors/x/shape/0", -1, "expected at least 1, got -1"),
        ("layers/0/tensors/w1/split/dim", 2, "split.dim is 2, but the shape has 2 dimensions"),
        ("layers/0/tensors/w1/role", "bias", "layers.0.tensors.w1.role: expected 'activation'"),
        ("layers/0/forward/0/reads/0", "q", "operator up: tensor 'q' is not declared"),
        ("layers/0/forward/0/reads/0", "a", "operator up: reads 'a' before it is written"),
        ("layers/0/forward/1/writes/0", "h", "operator act: writes 'h', which is written before"),
        ("layers/0/forward/1/name", "up", "operator up: the name is used twice"),
        ("layers/0/forward/0/matmuls/0/split", "q", "matmuls.0.split: expected ''"),
        ("layers/0/inputs/0", "q", "tensor 'q' is not declared"),
        ("shared", {"x": 2}, "shared: 'x' is no weight of any layer"),
        ("layers/0/forward/3/reads", ["z.partial", "x"], "a collective reads one tensor"),
    ],
)
def test_mistakes_are_named(path: str, value: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(AtollError) as caught:
        loaded(tmp_path, changed(path, value))
    assert message in str(caught.value)
    assert str(tmp_path / "model.json") in str(caught.value)


def test_an_unknown_vector_function_is_refused_by_the_search(tmp_path: Path) -> None:
    given = changed("layers/0/forward/1/vectors/0/function", "mish")
    with pytest.raises(AtollError, match="'mish' has no cost; known functions: add"):
        atoll.search(
            model=str(written(tmp_path, given)), space=str(TINY), devices=2, batch=4,
            microbatch=[1], tp=[1], baselines=False,
        )  # fmt: skip
