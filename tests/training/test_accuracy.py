"""Estimates say between what 90 % of runs of their kind were measured, and their mean error."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from training_cases import dense, gpu, mixture, small_run

from atoll.step.layout import Layout
from atoll.training.accuracy import ErrorClass, accuracy, error_classes
from atoll.training.estimate import estimate
from atoll.training.run import Run
from atoll.training.site import Site

ONE = Layout(dp=8)


def of_class(kind: str, measured: bool = True) -> ErrorClass:
    (found,) = (c for c in error_classes().step_time if (c.kind, c.measured) == (kind, measured))
    return found


def on(device: str) -> Run:
    return small_run(dense(), gpu=gpu(device), precision=gpu(device).half_dtype)


@pytest.mark.parametrize("device", ["a100-40", "a100-80", "h100", "h100-96", "h200", "gb300"])
def test_devices_whose_operators_were_timed_have_the_interval_of_their_runs(device: str) -> None:
    found, kind = estimate(on(device), ONE), of_class("dense")
    told = found.to_dict()["interval"]
    assert told["share"] == 0.9
    assert told["step_time_s"]["low"] == pytest.approx(found.step.time_s * kind.low)
    assert told["step_time_s"]["high"] == pytest.approx(found.step.time_s * kind.high)
    assert told["memory_bytes"]["low"] < found.worst.allocated < told["memory_bytes"]["high"]
    assert not found.expected_error.extrapolated
    assert f"(dense, measured device: {kind.runs} runs, " in str(found)


@pytest.mark.parametrize("device", ["tpu-v5e", "mi300x", "gaudi2"])
def test_other_devices_are_said_to_be_extrapolated(device: str) -> None:
    found, kind = accuracy(on(device), ONE), of_class("dense", measured=False)
    assert found.expected.extrapolated
    assert found.expected.of == "dense, extrapolated device"
    assert found.step_time == (kind.low, kind.high)


def test_models_with_experts_have_their_own_error() -> None:
    found = accuracy(small_run(mixture()), ONE)
    assert found.expected.mean == of_class("experts").mean


def test_what_is_extrapolated_shows_two_digits() -> None:
    found = estimate(on("mi300x"), ONE)
    assert "90% of runs of this kind lie between" in str(found)
    step, throughput, mfu = found.figures()
    for words in (step, throughput):
        digits = re.sub(r"[^0-9]", "", words.split(" ")[0]).strip("0")
        assert len(digits) <= 2
    assert "." not in mfu
    assert found.to_dict()["step_time_s"] == found.step.time_s


def test_kinds_that_too_few_runs_are_of_have_the_intervals_of_both_that_are_nearest() -> None:
    run = replace(small_run(mixture()), gpu=gpu("mi300x"))
    low, high = accuracy(run, ONE).step_time
    assert low == min(of_class("experts").low, of_class("dense", False).low)
    assert high == max(of_class("experts").high, of_class("dense", False).high)


def test_fine_tuning_has_its_own() -> None:
    found = accuracy(replace(small_run(dense()), fine_tuned=True), ONE)
    assert found.expected.mean == of_class("fine-tuning").mean


def test_long_rings_are_extrapolated() -> None:
    run = small_run(dense(max_sequence=131072), sequence=65536)
    assert not accuracy(run, ONE).expected.extrapolated
    assert accuracy(run, Layout(dp=4, cp=2)).expected.extrapolated


def test_a_site_has_the_interval_of_its_own_runs_never_a_wider_one_than_its_kind() -> None:
    kind = of_class("dense")
    for reach, ratio in ((0.1, 1.105170918), (9.0, (kind.high / kind.low) ** 0.5)):
        site = Site(name="mine", error=0.05, reach=reach, runs=3)
        found = accuracy(small_run(dense()).at(site), ONE)
        assert found.expected.of == "at mine"
        assert found.step_time == pytest.approx((1 / ratio, ratio))


def test_intervals_cover_rows_that_were_left_out_and_are_not_too_wide() -> None:
    for kind in error_classes().step_time:
        assert kind.low < kind.high
        if kind.rows >= 10:
            assert (kind.high - kind.low) / 2 <= 3 * kind.mean
            assert 0.85 <= kind.cell_coverage <= 0.95
            assert kind.coverage >= 0.85
