"""Estimates outside of what was validated say how far such ones were off, and show fewer digits."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from training_cases import dense, gpu, mixture, small_run

from atoll.step.layout import Layout
from atoll.training.accuracy import ADAPTERS, DEVICES, EXPERTS, expected_error
from atoll.training.estimate import estimate
from atoll.workload.adapters import Adapters

ONE = Layout(dp=8)
DOCS = Path(__file__).parents[2] / "docs/accuracy.md"


@pytest.mark.parametrize("device", ["a100-80", "h100", "h200", "v100"])
def test_dense_models_on_measured_devices_need_no_note(device: str) -> None:
    run = small_run(dense(), gpu=gpu(device), precision=gpu(device).half_dtype)
    found = estimate(run, ONE)
    assert found.expected_error is None
    assert found.to_dict()["expected_error"] is None
    assert "measured runs" not in str(found)


def test_models_with_experts_say_their_error_and_show_two_digits() -> None:
    found = estimate(small_run(mixture()), ONE)
    assert "13% off on average over 69 measured runs of models with experts" in str(found)
    step, throughput, mfu = found.figures()
    for words in (step, throughput):
        digits = re.sub(r"[^0-9]", "", words.split(" ")[0]).strip("0")
        assert len(digits) <= 2
    assert "." not in mfu
    exact = found.to_dict()
    assert exact["step_time_s"] == found.step.time_s
    assert exact["expected_error"] == {"of": "of models with experts", "mean": 0.126, "runs": 69}


def test_the_worst_kind_is_told() -> None:
    run = small_run(mixture(), precision="fp8")
    assert expected_error(run, ONE) == EXPERTS
    assert expected_error(small_run(dense(), precision="fp8"), ONE) is None
    assert expected_error(replace(run, gpu=gpu("b300")), ONE) == DEVICES["b300"]
    unknown = expected_error(replace(run, gpu=gpu("mi300x")), ONE)
    assert unknown is not None
    assert unknown.sentence().startswith("no measured run on mi300x is known")


def test_adapters_are_told() -> None:
    assert expected_error(small_run(dense(), adapters=Adapters(8)), ONE) == ADAPTERS


def test_long_rings_are_told() -> None:
    run = small_run(dense(max_sequence=131072), sequence=65536)
    assert expected_error(run, ONE) is None
    told = expected_error(run, Layout(dp=4, cp=2))
    assert told is not None and told.mean == 0.281


def test_the_errors_are_those_of_the_documentation() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for kind, told in (
        ("experts", EXPERTS),
        ("LoRA", ADAPTERS),
        ("b300", DEVICES["b300"]),
    ):
        row = re.search(rf"^\| {kind} \| (\d+) \| ([0-9.]+) %", text, re.MULTILINE)
        assert row is not None
        assert (int(row[1]), float(row[2])) == (told.runs, pytest.approx(100 * told.mean, abs=0.06))
