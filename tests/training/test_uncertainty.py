"""Intervals follow from the errors of an estimate's parts, and say what would narrow them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from training_cases import dense, gpu, small_run

from atoll.step.layout import Layout
from atoll.training.estimate import Estimate, estimate
from atoll.training.run import Run
from atoll.training.site import RunError, Site
from atoll.training.uncertainty import (
    SURE,
    Spread,
    error_fits,
    fastest_chances,
    least_time_spread,
    spread,
    updated,
)

ONE = Layout(dp=8)


def on(device: str) -> Run:
    return small_run(dense(), gpu=gpu(device), precision=gpu(device).half_dtype)


def width(result: Estimate) -> float:
    interval = result.interval.step_time_s
    return interval.high / interval.low


@pytest.mark.parametrize("device", ["a100-40", "a100-80", "h100", "h100-96", "h200", "gb300"])
def test_the_interval_contains_90_percent_and_is_named_in_words(device: str) -> None:
    result = estimate(on(device), ONE)
    interval = result.to_dict()["interval"]
    assert interval["share"] == 0.9
    low, high = result.time_spread.ratios
    assert interval["step_time_s"]["low"] == pytest.approx(result.step.time_s * low)
    assert interval["step_time_s"]["high"] == pytest.approx(result.step.time_s * high)
    assert interval["memory_bytes"]["low"] < result.worst.allocated
    assert result.worst.allocated < interval["memory_bytes"]["high"]
    assert not result.expected_error.extrapolated
    runs = f"dense, measured device; {error_fits().step_time.rows} measured runs"
    assert f" ({runs})" in str(result)


@pytest.mark.parametrize("device", ["tpu-v5e", "mi300x", "gaudi2", "rtx-5090", "a10g", "l4", "h20"])
def test_devices_whose_operators_were_not_timed_are_extrapolated_and_wider(device: str) -> None:
    result = estimate(on(device), ONE)
    assert result.expected_error.extrapolated
    assert result.expected_error.of == "dense, extrapolated device"
    causes = dict(result.time_spread.causes)
    del causes["device"]
    assert replace(result.time_spread, causes=causes).sd < result.time_spread.sd


def test_what_is_extrapolated_shows_two_digits() -> None:
    result = estimate(on("mi300x"), ONE)
    assert "90% interval" in str(result)
    step, throughput, mfu = result.figures()
    for words in (step, throughput):
        digits = re.sub(r"[^0-9]", "", words.split(" ")[0]).strip("0")
        assert len(digits) <= 2
    assert "." not in mfu
    assert result.to_dict()["step_time_s"] == result.step.time_s


def test_long_rings_are_extrapolated() -> None:
    run = small_run(dense(max_sequence=131072), sequence=65536)
    assert not estimate(run, ONE).expected_error.extrapolated
    assert estimate(run, Layout(dp=4, cp=2)).expected_error.extrapolated


def test_a_site_has_the_interval_of_its_own_runs_never_a_wider_one() -> None:
    usual = estimate(small_run(dense()), ONE).time_spread
    for reach in (0.1, 9.0):
        site = Site(name="mine", error=0.05, reach=reach, runs=3)
        result = estimate(small_run(dense()).at(site), ONE)
        assert result.expected_error.of == "at mine"
        half_width = min(reach, usual.reach * usual.sd)
        assert result.time_spread.ratios == pytest.approx(
            (math.exp(-half_width), math.exp(half_width)), rel=1e-3
        )


def test_variances_of_causes_add_up_and_the_largest_comes_first() -> None:
    for device in ("h100", "mi300x"):
        causes = estimate(on(device), ONE).uncertainty.causes
        assert sum(cause.share for cause in causes) == pytest.approx(1.0)
        assert [c.share for c in causes] == sorted((c.share for c in causes), reverse=True)


def test_a_network_that_is_stated_narrows_the_interval_as_the_answer_says() -> None:
    two_nodes = small_run(dense(), devices=16, network_assumed=True)
    stated = replace(two_nodes, network_assumed=False)
    layout = Layout(dp=16, zero=3)
    assumed, known = estimate(two_nodes, layout), estimate(stated, layout)
    assert width(known) < width(assumed)
    promised = {row.action: row for row in assumed.uncertainty.narrowed}
    after = promised["state the network (--network)"].step_time_s
    assert after.high == pytest.approx(known.interval.step_time_s.high)
    assert after.low == pytest.approx(known.interval.step_time_s.low)


def test_every_proposed_measurement_narrows_the_interval() -> None:
    result = estimate(small_run(dense(), devices=16, network_assumed=True), Layout(dp=16, zero=3))
    options = result.uncertainty.narrowed
    assert len(options) >= 3
    widths = [option.step_time_s.high - option.step_time_s.low for option in options]
    assert widths == sorted(widths)
    before = result.interval.step_time_s
    assert widths[-1] < before.high - before.low
    assert options[0].sentence(before).count(" to ") >= 2


def test_the_chance_of_running_out_of_memory_falls_with_the_room() -> None:
    chances = []
    for GiB in (20, 22, 24, 40, 80):
        run = small_run(dense())
        device = replace(run.gpu, hbm_bytes=GiB * 2**30)
        chances.append(estimate(replace(run, gpu=device), ONE).out_of_memory)
    assert chances == sorted(chances, reverse=True)
    assert chances[-1] < 0.01


def test_quantiles_are_consistent_with_the_interval() -> None:
    spread = Spread({"products": 0.1, "host": 0.05}, 0.05, 0.02, 1.4)
    low, high = spread.ratios
    assert spread.quantile(0.05) == pytest.approx(low)
    assert spread.quantile(0.95) == pytest.approx(high)
    assert spread.chance_above(high) == pytest.approx(0.05)
    assert spread.expected > math.exp(spread.bias)


def test_layouts_that_share_their_doubts_are_compared_by_their_difference() -> None:
    host, network = ({name: 0.5} for name in ("host", "between"))
    alike = [Spread(dict(host), 0.05, 0.0, 1.4)] * 2
    apart = [Spread(dict(host), 0.05, 0.0, 1.4), Spread(dict(network), 0.05, 0.0, 1.4)]
    times_s = [1.0, 1.1]
    sure, unsure = fastest_chances(times_s, alike)[0], fastest_chances(times_s, apart)[0]
    assert 0.5 < unsure < sure
    assert sum(fastest_chances(times_s, apart)) == pytest.approx(1.0)
    assert fastest_chances([1.0], alike[:1]) == (1.0,)


def test_intervals_cover_sources_that_were_left_out_and_are_not_too_wide() -> None:
    fits = error_fits()
    assert fits.step_time.coverage >= 0.85
    assert fits.step_time.half_width <= 2.2 * fits.step_time.mean
    assert fits.memory.coverage >= 0.8


def test_measured_runs_update_causes_as_the_sum_over_all_their_errors_does() -> None:
    """The closed form beside a grid of all errors of two causes, weighted by how well they explain
    three runs."""
    fit = error_fits().step_time.model_copy(
        update={"causes": {"products": 0.1, "between": 0.4}, "rest": 0.05, "bias": 0.06}
    )
    runs = [
        RunError(log=0.30, shares={"products": 0.5, "between": 0.5}),
        RunError(log=0.12, shares={"products": 0.9, "between": 0.1}),
        RunError(log=0.45, shares={"products": 0.3, "between": 0.7}),
    ]
    shares = {"products": 0.6, "between": 0.4}
    errors = np.stack(np.meshgrid(*(np.linspace(-8 * sd, 8 * sd, 801) for sd in (0.1, 0.4))), -1)
    sds, names = np.array([0.1, 0.4]), ["products", "between"]

    def weights(logs: Sequence[float]) -> NDArray[np.float64]:
        total = -0.5 * ((errors / sds) ** 2).sum(-1)
        for run, log in zip(runs, logs, strict=True):
            explained = errors @ [run.shares[name] for name in names]
            total -= 0.5 * ((log - explained) / fit.rest) ** 2
        return np.asarray(np.exp(total))

    posterior = weights([run.log for run in runs])
    of_estimate = errors @ [shares[name] for name in names]
    mean = (posterior * of_estimate).sum() / posterior.sum()
    variance = (posterior * (of_estimate - mean) ** 2).sum() / posterior.sum()
    misfit = -2 * math.log(posterior.sum() / weights([0.0] * len(runs)).sum())
    scale = math.sqrt((SURE + misfit) / (SURE + len(runs)))
    width = scale * math.hypot(fit.rest, math.sqrt(variance))
    after = updated(fit, shares, runs)
    assert after.sd == pytest.approx(math.hypot(width, mean), rel=1e-4)
    before = spread(fit, shares)
    assert set(after.causes) == set(before.causes)
    assert all(after.causes[name] < sd for name, sd in before.causes.items())
    assert updated(fit, {}, runs).causes == {}


def test_a_site_narrows_the_interval_by_what_its_runs_have_in_common() -> None:
    usual = estimate(small_run(dense()), ONE)
    shares = usual.time_shares
    alike, apart = (RunError(log=0.02, shares=s) for s in (shares, {"between": 1.0}))
    here, elsewhere = (
        estimate(small_run(dense()).at(Site(name="mine", errors=[run] * 3)), ONE).time_spread
        for run in (alike, apart)
    )
    assert here.sd < elsewhere.sd < usual.time_spread.sd
    far = RunError(log=0.6, shares=shares)  # errors are larger at this site
    result = estimate(small_run(dense()).at(Site(name="far", errors=[far] * 3)), ONE)
    assert result.time_spread.sd > usual.time_spread.sd
    least = least_time_spread(result.run, ONE)
    assert least.sd <= result.time_spread.sd and least.bias == result.time_spread.bias
