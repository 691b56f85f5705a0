"""A site from its own runs: what three rows tell, how sure, and that it is used everywhere."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll import api
from atoll.base.errors import AtollError
from atoll.calibration.site_fit import Mixture, SoftwareVariant, _timed, fit_runs
from atoll.training.estimate import estimate
from atoll.training.site import FactorInterval, LevelFactors, Site, load_site
from atoll.validation.row_runs import run_at_site, run_from_row
from atoll.validation.tables import read_runs

MODEL = {
    "model": "Llama-2-13B", "layers": 40, "hidden": 5120, "ffn": 13824, "heads": 40,
    "vocab": 32000, "seq": 4096, "mlp_gated": 1, "device": "A100-SXM", "device_mem_GB": 80,
    "flash_attention": 1, "precision": "bf16", "framework": "Megatron-LM",
}  # fmt: skip
LAYOUTS = [
    {"devices": 64, "global_batch": 512, "micro_batch": 1, "tp": 2, "pp": 2, "dp": 16},
    {"devices": 64, "global_batch": 512, "micro_batch": 2, "tp": 8, "pp": 1, "dp": 8, "sp": 1},
    {"devices": 128, "global_batch": 256, "micro_batch": 1, "tp": 4, "pp": 1, "dp": 32, "sp": 1},
    {"devices": 16, "global_batch": 64, "micro_batch": 1, "tp": 4, "pp": 4, "dp": 1},
    {"devices": 32, "global_batch": 256, "micro_batch": 4, "tp": 1, "pp": 4, "dp": 8},
    {"devices": 256, "global_batch": 256, "micro_batch": 1, "tp": 2, "pp": 1, "dp": 128},
]
ELSEWHERE = Site(
    name="elsewhere",
    slack=FactorInterval(value=1.12, low=1.12, high=1.12),
    bandwidth=LevelFactors(between=FactorInterval(value=0.45, low=0.45, high=0.45)),
)


def table(path: Path, rows: list[Mapping[str, Any]]) -> Path:
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


def runs(path: Path, site: Site | None = None, **changed: Any) -> Path:
    """A table of the layouts, timed as the model has them at a site."""
    rows = [{"id": f"r{i}", **MODEL, **layout, **changed} for i, layout in enumerate(LAYOUTS)]
    timed = []
    for row, told in zip(read_runs(table(path, rows)), rows, strict=True):
        step = estimate(*(run_at_site(row, site) if site else run_from_row(row))).step
        timed.append({**told, "measured_iter_time_s": step.time_s})
    return table(path, timed)


def within(known: FactorInterval | None, value: float) -> bool:
    return known is not None and known.low <= value <= known.high


def test_a_site_is_found_again(tmp_path: Path) -> None:
    path = runs(tmp_path / "runs.csv", ELSEWHERE)
    site, told = fit_runs(path)
    assert within(site.slack, 1.12)
    assert within(site.bandwidth.between, 0.45)
    assert told.errors.before > 0.12
    assert told.errors.after < 0.025
    assert site.error is not None and site.error < 0.04


def test_runs_as_the_catalogue_has_them_change_nothing(tmp_path: Path) -> None:
    site, told = fit_runs(runs(tmp_path / "runs.csv"))
    assert told.errors.after < 1e-6
    assert site.slack is None or site.slack.value == pytest.approx(1.0, abs=1e-6)


def test_one_odd_run_does_not_pull(tmp_path: Path) -> None:
    path = runs(tmp_path / "runs.csv", ELSEWHERE)
    clean, _ = fit_runs(path)
    with path.open() as file:
        rows: list[Mapping[str, Any]] = list(csv.DictReader(file))
    rows[3] = {**rows[3], "measured_iter_time_s": 2 * float(rows[3]["measured_iter_time_s"])}
    odd, _ = fit_runs(table(path, rows))
    assert clean.slack is not None and odd.slack is not None
    assert odd.slack.value == pytest.approx(clean.slack.value, rel=0.03)


def test_fewer_runs_tell_less(tmp_path: Path) -> None:
    path = runs(tmp_path / "runs.csv", ELSEWHERE)
    many, _ = fit_runs(path)
    with path.open() as file:
        three = list(csv.DictReader(file))[:3]
    few, told = fit_runs(table(tmp_path / "three.csv", three))
    assert told.fitted == few.runs == 3
    assert many.error is not None and few.error is not None
    assert few.error > many.error


def test_runs_that_contradict_one_another_leave_the_catalogue(tmp_path: Path) -> None:
    path = runs(tmp_path / "runs.csv")
    with path.open() as file:
        rows: list[Mapping[str, Any]] = list(csv.DictReader(file))[:2]
    rows += [
        {**row, "measured_iter_time_s": factor * float(row["measured_iter_time_s"])}
        for row, factor in zip(rows, (1.4, 0.7), strict=True)
    ]
    site, told = fit_runs(table(path, rows))
    assert told.errors.left_out is not None
    assert told.errors.left_out <= told.errors.before
    assert site.bandwidth.between is None


def test_a_site_weighs_how_much_differs_by_the_evidence(tmp_path: Path) -> None:
    timed, _ = _timed(runs(tmp_path / "runs.csv", ELSEWHERE), Site(name="catalogue"), "h200")
    mixture = Mixture.fitted(SoftwareVariant(timed[:3], Site(name="catalogue")), [])
    points = np.array([fit.point for fit in mixture.fits])
    assert mixture.weights.sum() == pytest.approx(1.0)
    assert np.all(mixture.point <= points.max(axis=0) + 1e-12)
    assert np.all(mixture.point >= points.min(axis=0) - 1e-12)
    within_fits = np.array([np.nan_to_num(fit.sd) for fit in mixture.fits])
    assert np.all(np.nan_to_num(mixture.sd) >= within_fits.min(axis=0) - 1e-12)


def test_software_is_found_where_rows_do_not_state_it(tmp_path: Path) -> None:
    unfused = Site(name="unfused", attention="unfused")
    rows: list[Mapping[str, Any]] = []
    for length in (1024, 8192):  # slack alone cannot explain both
        with runs(tmp_path / "part.csv", unfused, flash_attention="", seq=length).open() as file:
            rows += list(csv.DictReader(file))[:2]
    site, told = fit_runs(table(tmp_path / "runs.csv", rows))
    assert told.errors.before > 0.1  # read as fused
    assert told.errors.after < 0.025
    assert site.attention == "unfused"


def test_rows_that_state_their_framework_keep_it(tmp_path: Path) -> None:
    site, told = fit_runs(runs(tmp_path / "runs.csv", ELSEWHERE))
    assert site.stack is None
    assert {found.stack for found in told.software} == {None}


def test_what_was_measured_directly_is_not_fitted(tmp_path: Path) -> None:
    path = runs(tmp_path / "runs.csv", ELSEWHERE)
    measured = Site(name="tests", bandwidth=ELSEWHERE.bandwidth)
    site, _ = fit_runs(path, measured)
    assert site.bandwidth.between is None
    assert site.slack is not None and site.slack.value == pytest.approx(1.12, rel=0.03)


def test_a_site_is_used_by_estimate_plan_and_validate(tmp_path: Path) -> None:
    path, out = runs(tmp_path / "runs.csv", ELSEWHERE), tmp_path / "site.yaml"
    shown = api.calibrate(path, out=out)
    assert shown.out == str(out)
    assert load_site(out).name == "runs"
    before = atoll.validate(path).step_time.mean_ape
    after = atoll.validate(path, site=out).step_time.mean_ape
    assert after < 0.025 < before
    asked: dict[str, Any] = {"model": "llama2-13b", "device": "a100-80", "devices": 16, "batch": 64}
    plain = atoll.estimate(**asked, tp=4)
    here = atoll.estimate(**asked, tp=4, site=out)
    assert here.step.time_s > 1.05 * plain.step.time_s
    assert here.to_dict()["site"] == "runs"
    assert plain.to_dict()["site"] is None
    planned = atoll.plan(**asked, site=out, tp=(2, 4), pp=(1,), zero=(1,))
    assert planned.best.run.stack.slack == here.run.stack.slack


def test_a_faster_site_shortens_all_parts() -> None:
    run_time = {"model": "llama2-13b", "device": "a100-80", "devices": 16, "batch": 64, "tp": 4}
    plain = atoll.estimate(**run_time)
    fast = Site(name="fast", slack=FactorInterval(value=0.9, low=0.9, high=0.9))
    step = estimate(plain.run.at(fast), plain.layout).step
    assert step.time_s == pytest.approx(0.9 * plain.step.time_s)
    assert all(part >= 0 for part in step.breakdown().values())
    assert sum(step.breakdown().values()) == pytest.approx(
        0.9 * sum(plain.step.breakdown().values())
    )


def test_parts_add_up_where_devices_wait_for_the_slowest_too() -> None:
    job = {"model": "llama3-8b", "device": "h100", "devices": 16, "batch": 64, "tp": 2}
    plain = atoll.estimate(**job, stack="megatron-2021")
    assert plain.run.waiting > 1
    fast = Site(name="fast", slack=FactorInterval(value=0.9, low=0.9, high=0.9))
    step = estimate(plain.run.at(fast), plain.layout).step
    assert sum(step.breakdown().values()) == pytest.approx(step.time_s)


def test_host_times_of_a_site_are_those_of_experts_too() -> None:
    plain = atoll.estimate("qwen3-30b-a3b", "h100", 8, batch=64, ep=8, stack="megatron")
    assert plain.run.stack.host_routed_s > 0
    twice = Site(name="twice", host=FactorInterval(value=2, low=2, high=2))
    slower = plain.run.at(twice).stack
    assert slower.host_routed_s == 2 * plain.run.stack.host_routed_s
    # All host time of a profiled step is spread over its launches: none is left beside them.
    seen = Site(name="seen", host_kernel_s=FactorInterval(value=1e-5, low=1e-5, high=1e-5))
    launched = plain.run.at(seen).stack
    assert (launched.host_kernel_s, launched.host_layer_s, launched.host_routed_s) == (1e-5, 0, 0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("name: x\nslack: -1\n", "slack"),
        ("name: x\nslack: {value: 2, low: 3, high: 4}\n", "does not lie between"),
        ("name: x\nspeed: 3\n", "speed"),
        ("name: x\nstack: megatorn\n", "megatron"),
        ("name: x\nhost: 2\nhost_kernel_s: 1e-5\n", "exclude one another"),
        ("name: x\noverlap: {gradient: 1.5}\n", "gradient"),
    ],
)
def test_a_wrong_site_is_refused_in_a_sentence(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "site.yaml"
    path.write_text(text)
    with pytest.raises(AtollError, match=says):
        load_site(path)


def test_a_site_says_only_what_it_knows(tmp_path: Path) -> None:
    path = tmp_path / "site.yaml"
    path.write_text("name: mine\nslack: 1.1\noverlap: {gradient: 0.5}\n")
    site = load_site(path)
    plain = atoll.estimate("llama2-13b", "a100-80", 16, batch=64, tp=4).run
    here = plain.at(site)
    assert here.stack.slack == pytest.approx(1.1 * plain.stack.slack)
    assert here.stack.overlap.gradient == 0.5
    assert here.stack.overlap.pipeline == plain.stack.overlap.pipeline
    assert here.network == plain.network


def test_files_without_runs_are_refused_in_a_sentence(tmp_path: Path) -> None:
    rows = [{"id": "a", **MODEL, **LAYOUTS[0]}]
    with pytest.raises(AtollError, match="no step time"):
        fit_runs(table(tmp_path / "runs.csv", rows))
    (tmp_path / "other.csv").write_text("step,loss\n1,2\n")
    with pytest.raises(AtollError, match="columns"):
        api.calibrate(tmp_path / "other.csv")
    (tmp_path / "operators.csv").write_text("kind,us,m,n,k\ngemm,10,1,1,1\n")
    with pytest.raises(AtollError, match="fit them alone"):
        api.calibrate(tmp_path / "operators.csv", trace=tmp_path / "trace.json")
