"""Models from an atoll-model file are estimated and planned as built ones are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import atoll
from atoll.base.errors import AtollError

HIDDEN, FFN, TOKENS = 64, 256, 128


def tiny_model() -> dict[str, object]:
    """Four equal layers of two products, written by hand as another tool would."""
    rows = f"{TOKENS}*microbatch"

    def activation(width: int) -> dict[str, object]:
        return {"shape": [rows, width], "element_bytes": 2, "role": "activation"}

    def gradient(width: int) -> dict[str, object]:
        return {"shape": [rows, width], "element_bytes": 2, "role": "activation_gradient"}

    def weight(shape: list[int], role: str = "weight") -> dict[str, object]:
        return {"shape": shape, "element_bytes": 2, "role": role}

    def product(m: object, n: object, k: object) -> list[dict[str, object]]:
        return [{"batch": 1, "m": m, "n": n, "k": k}]

    tensors = {
        "x": activation(HIDDEN),
        "h": activation(FFN),
        "y": activation(HIDDEN),
        "w1": weight([HIDDEN, FFN]),
        "w2": weight([FFN, HIDDEN]),
        "dy": gradient(HIDDEN),
        "dh": gradient(FFN),
        "dx": gradient(HIDDEN),
        "dw1": weight([HIDDEN, FFN], "weight_gradient"),
        "dw2": weight([FFN, HIDDEN], "weight_gradient"),
    }
    forward = [
        {"name": "up", "kind": "linear", "reads": ["x", "w1"], "writes": ["h"],
         "matmuls": product(rows, FFN, HIDDEN)},
        {"name": "down", "kind": "linear", "reads": ["h", "w2"], "writes": ["y"],
         "matmuls": product(rows, HIDDEN, FFN)},
    ]  # fmt: skip
    backward = [
        {"name": "down.dgrad", "kind": "linear_grad", "reads": ["dy", "w2"], "writes": ["dh"],
         "matmuls": product(rows, FFN, HIDDEN)},
        {"name": "down.wgrad", "kind": "linear_grad", "reads": ["h", "dy"], "writes": ["dw2"],
         "matmuls": product(FFN, HIDDEN, rows)},
        {"name": "up.dgrad", "kind": "linear_grad", "reads": ["dh", "w1"], "writes": ["dx"],
         "matmuls": product(rows, HIDDEN, FFN)},
        {"name": "up.wgrad", "kind": "linear_grad", "reads": ["x", "dh"], "writes": ["dw1"],
         "matmuls": product(HIDDEN, FFN, rows)},
    ]  # fmt: skip
    layer = {
        "name": "mlp", "repeat": 4, "inputs": ["x"], "outputs": ["y"],
        "tensors": tensors, "forward": forward, "backward": backward,
    }  # fmt: skip
    return {
        "format": "atoll-model", "version": 1, "name": "tiny", "sequence": TOKENS,
        "layers": [layer],
    }  # fmt: skip


@pytest.fixture
def stored(tmp_path: Path) -> str:
    path = tmp_path / "tiny.json"
    path.write_text(json.dumps(tiny_model()))
    return str(path)


def test_an_estimate_of_a_stored_model_counts_its_products(stored: str) -> None:
    result = atoll.estimate(stored, "h100", 2, batch=4, pp=2)
    tokens = 4 * TOKENS
    flops = 3 * 4 * 2 * 2 * HIDDEN * FFN * tokens
    peak = result.run.gpu.peak_flops("bf16")
    assert result.fits
    assert result.mfu == pytest.approx(flops / (result.step.time_s * 2 * peak))
    assert result.worst.weights == 2 * 2 * 2 * HIDDEN * FFN  # two layers a stage, two bytes each


def test_a_plan_of_a_stored_model_divides_its_repeated_layers(stored: str) -> None:
    found = atoll.plan(stored, "h100", 4, batch=8)
    assert found.certificate.proven
    assert found.best.layout.cp == 1
    assert not found.best.layout.sp


def test_a_folder_of_a_plan_belongs_to_the_content_of_the_model(
    stored: str, tmp_path: Path
) -> None:
    asked = {"model": stored, "device": "h100", "devices": 4, "batch": 8, "out": tmp_path / "run"}
    first = atoll.plan(workers=2, **asked)
    assert atoll.plan(**asked).best == first.best
    Path(stored).write_text(json.dumps(tiny_model()).replace('"repeat": 4', '"repeat": 8'))
    with pytest.raises(AtollError, match=r"another job \(.*stored_content"):
        atoll.plan(**asked)


def test_a_stored_model_keeps_its_sequence(stored: str) -> None:
    with pytest.raises(AtollError, match="captured with whole sequences"):
        atoll.estimate(stored, "h100", 2, batch=4, cp=2)
    with pytest.raises(AtollError, match="capture it again"):
        atoll.estimate(stored, "h100", 1, batch=4, sequence=256)
