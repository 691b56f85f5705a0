"""Chips searched for training in fp8 and nvfp4: proven as in 16 bits, planned as searched."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_power_limit import BATCH, TOLERANCE, exhaustive_step_s
from tiny import random_space, tiny_config, tiny_setting

import atoll
from atoll.explore.pricing.layouts import PowerLimit
from atoll.explore.pricing.workloads import Workload, make_variants
from atoll.explore.proof.branch_and_bound import Search
from atoll.explore.proof.exact import exact_search
from atoll.explore.proof.objective import Objective
from atoll.hardware.silicon.systolic import TEMPLATES
from atoll.profiles import DEFAULT

JOB = {"model": "bert-large", "devices": 16, "batch": 64, "microbatch": [4], "tp": [1], "cp": [1]}


@pytest.mark.parametrize(
    ("seed", "precision"),
    [
        (0, "fp8"),
        (1, "nvfp4"),
        pytest.param(1, "fp8", marks=pytest.mark.campaign),
        pytest.param(0, "nvfp4", marks=pytest.mark.campaign),
    ],
)
def test_everything_tried_is_no_better(seed: int, precision: str) -> None:
    space = random_space(seed, 20, template=TEMPLATES["physical-7nm"])
    workload = Workload("tiny", tiny_config(2, 256, 4), 256, BATCH, precision)
    variants = make_variants([workload], (1, 2, 4), (1, 2), 4, "optimal", DEFAULT)
    setting = tiny_setting(DEFAULT, 4)
    truth_s, _ = exhaustive_step_s(space, variants, setting, PowerLimit())
    found = exact_search(Search(space, variants, setting, Objective.single(BATCH), TOLERANCE))
    assert found.score >= BATCH / truth_s * (1 - TOLERANCE - 1e-9), "a better design was missed"
    assert found.bound >= BATCH / truth_s * (1 - 1e-9), "a bound below what exists"


@pytest.mark.slow
def test_a_search_in_fp8(tmp_path: Path) -> None:
    wide = atoll.search(**JOB, baselines=False)
    narrow = atoll.search(
        **JOB, precision="fp8", baselines=True, beside=["h100", "tpu-v4"], out=tmp_path
    )
    assert narrow.certificate.proven
    assert 1.1 < narrow.score / wide.score < 2
    assert "fp8 products" in narrow.given
    assert set(narrow.baselines) == {"spotlight", "random"}, "TPU v4 has no fp8"
    assert narrow.best.area_mm2 <= 600
    again = atoll.plan(
        "bert-large", tmp_path / "chip.yaml", 16, batch=64, microbatch=[4], tp=[1], cp=[1],
        precision="fp8", ties=0,
    )  # fmt: skip
    assert 64 / again.best.step.time_s == pytest.approx(narrow.score, rel=2e-3)
    devices = {one.device: one for one in narrow.beside}
    in_16_bits = atoll.plan("bert-large", "h100", 16, batch=64, ties=0).best.step.time_s
    assert devices["h100"].step_time_s != pytest.approx(in_16_bits, rel=1e-3)
    own = atoll.plan("bert-large", "tpu-v4", 16, batch=64, ties=0).best.step.time_s
    assert devices["tpu-v4"].step_time_s == pytest.approx(own, rel=1e-9), "it has 16 bits alone"


@pytest.mark.slow
def test_a_search_in_nvfp4(tmp_path: Path) -> None:
    eight = atoll.search(**JOB, precision="fp8", baselines=False)
    four = atoll.search(
        **JOB, precision="nvfp4", baselines=False, beside=["h100", "b200"], out=tmp_path
    )
    assert four.certificate.proven or four.certificate.gap < 5e-3
    assert 1.02 < four.score / eight.score < 2
    assert "nvfp4 products" in four.given
    again = atoll.plan(
        "bert-large", tmp_path / "chip.yaml", 16, batch=64, microbatch=[4], tp=[1], cp=[1],
        precision="nvfp4", ties=0,
    )  # fmt: skip
    assert 64 / again.best.step.time_s == pytest.approx(four.score, rel=2e-3)
    devices = {one.device: one.step_time_s for one in four.beside}
    for name, own in (("h100", "fp8"), ("b200", "nvfp4")):  # an H100 has no fp4
        alone = atoll.plan("bert-large", name, 16, batch=64, ties=0, precision=own)
        assert devices[name] == pytest.approx(alone.best.step.time_s, rel=1e-9)


def test_profile_phaze_has_16_bits() -> None:
    with pytest.raises(atoll.AtollError, match="computes in 16 bits"):
        atoll.search(**JOB, profile="phaze", precision="fp8")
