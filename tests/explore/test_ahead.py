"""A searched chip as the next machine of a run: its job and losses are the run's, prices are solved
again on both sides."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

import atoll
from atoll.base.errors import AtollError
from atoll.explore.answer.result import SearchResult
from atoll.explore.explain.next_chip import ENDS, read_followed_run
from atoll.workload.load import load_model

TINY = Path(__file__).parents[2] / "examples" / "spaces" / "tiny.yaml"


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "now"
    found = atoll.plan("bert-large", "a100-40", 8, batch=64, tp=[1, 2], pp=1, out=folder)
    assert found.best.fits
    return folder


@pytest.fixture(scope="module")
def found(planned: Path) -> SearchResult:
    result = atoll.search(
        from_=planned, space=TINY, max_power="200 W", baselines=False, microbatch=(8,), tp=(1, 2)
    )
    assert isinstance(result, SearchResult)
    return result


def test_the_job_is_the_runs_and_options_win(planned: Path) -> None:
    asked = atoll.SearchQuestion.of(from_=str(planned), space=str(TINY))
    assert (asked.devices, asked.batch, asked.sequence) == (8, 64, 512)
    assert asked.models[0].name == "bert-large" and asked.network == "dgx-a100"
    assert atoll.SearchQuestion.of(from_=str(planned), devices=16).devices == 16
    assert "from_" not in asked.to_dict()


def test_the_chips_step_has_the_losses_of_the_runs_software(
    found: SearchResult, planned: Path
) -> None:
    told, run = found.ahead, read_followed_run(planned)
    assert told is not None and run.host_s > 0
    device_s = found.best.plans[0].placement.step_time_s
    assert told.chip_step_time_s == pytest.approx((device_s + run.host_s) * run.slack)
    assert told.step_time_s == run.run.step_time_s and not told.measured
    assert told.faster == told.step_time_s / told.chip_step_time_s


def test_without_a_chip_the_losses_give_the_runs_own_step(planned: Path) -> None:
    run = read_followed_run(planned)
    parts = run.run.breakdown_s
    device_s = (sum(parts.values()) - parts["host"]) / run.run.pipeline.slack
    assert run.step_s_on(device_s) == pytest.approx(run.step_s, rel=1e-9)
    slow = replace(run, measured_s=1.5 * run.step_s)
    assert slow.step_s_on(device_s) == pytest.approx(1.5 * run.step_s, rel=1e-9)


def test_prices_are_proven_answers_of_neighbouring_budgets(found: SearchResult) -> None:
    assert found.ahead is not None
    prices = {price.what: price for price in found.ahead.prices}
    power = prices["peak power of a chip"]
    assert power.at == 200 and (power.low, power.high) == tuple(200 * end for end in ENDS)
    for limit, gain in ((power.low, power.less), (power.high, power.more)):
        limited = atoll.search(found.job.changed(from_=None, max_power=limit))
        assert isinstance(limited, SearchResult) and gain is not None and limited.certificate.proven
        run_s = found.ahead.chip_step_time_s / (1 + gain)
        device_s = limited.best.plans[0].placement.step_time_s
        slack = found.ahead.slack
        assert run_s == pytest.approx((device_s + found.ahead.host_s) * slack, rel=2e-3)
    assert power.per_unit_below == pytest.approx(-(power.less or 0) / 20)
    assert prices["nvlink bandwidth"].more and not prices["nvlink bandwidth"].chosen_anew
    assert "infiniband bandwidth" not in prices  # all devices are in one node
    assert any(word.startswith("peak power of a chip at 200 W") for word in found.ahead.words())


@pytest.mark.slow
@pytest.mark.parametrize("stated", ["by the job", "by the space"])
def test_lists_too_coarse_for_a_tenth_more_have_an_interpolated_price(
    planned: Path, tmp_path: Path, stated: str
) -> None:
    """Of tiny chips none between 101.6 and 153.3 mm2 is faster than the one of 101.6."""
    space, limit = TINY, {"max_area": "120 mm2"}
    if stated == "by the space":
        space, limit = tmp_path / "tiny.yaml", {}
        space.write_text(TINY.read_text().replace("280 mm2", "120 mm2"))
    asked = {"from_": planned, "space": space, "microbatch": (8,), "tp": (1, 2)}
    result = atoll.search(**asked, **limit, baselines=False)
    assert result.ahead is not None
    area, power = result.ahead.prices[:2]
    assert (area.what, area.at) == ("area of a chip", 120.0)
    assert result.best.area_mm2 == pytest.approx(101.6, abs=0.1)
    assert area.high == pytest.approx(153.3, abs=0.1) and area.more is not None
    assert area.more > 0.1 and area.per_unit_above == pytest.approx(area.more / (area.high - 120))
    assert area.remark == "interpolated: no chip of the lists is faster up to 150"
    assert f"{area.more:+.1%}; {area.remark})" in area.words()
    assert power.more == 0.0 and power.remark == "nothing limits it"


def test_a_budget_that_buys_nothing_was_doubled_before_it_is_said(found: SearchResult) -> None:
    assert found.ahead is not None
    area = found.ahead.prices[0]
    assert (area.at, area.high, area.more) == (280, 560, 0.0)
    assert area.remark == "no chip of the space is faster"


@pytest.mark.slow
def test_no_budget_of_area_grows_beyond_a_reticle(planned: Path) -> None:
    asked = {"from_": planned, "microbatch": (8,), "tp": (1,), "max_area": "858 mm2"}
    result = atoll.search(**asked, template="physical-28nm", baselines=False)
    assert result.ahead is not None
    area = result.ahead.prices[0]
    assert (area.at, area.high, area.more, area.per_unit_above) == (858, 858, None, None)
    assert area.words().endswith(", a reticle holds no larger die")


def test_what_a_run_does_not_say_is_refused(planned: Path, tmp_path: Path) -> None:
    with pytest.raises(AtollError, match=r"per: does not go with from_"):
        atoll.SearchQuestion.of(from_=str(planned), per="watt")
    other = tmp_path / "other.json"
    other.write_text('{"kind": "hardware", "format": 1}')
    with pytest.raises(AtollError, match="not plan or estimate or check"):
        atoll.SearchQuestion.of(from_=str(other))


def test_a_run_of_a_configuration_file_is_followed_without_the_file(tmp_path: Path) -> None:
    shape = {
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096,
        "num_hidden_layers": 4, "num_attention_heads": 16, "vocab_size": 32_000,
        "max_position_embeddings": 2048,
    }  # fmt: skip
    file = tmp_path / "llama2-7b" / "config.json"  # a zoo name, but another model
    file.parent.mkdir()
    file.write_text(json.dumps(shape))
    own = atoll.estimate(str(file), "a100-40", 8, batch=64, out=tmp_path / "run")
    asked = atoll.SearchQuestion.of(from_=str(tmp_path / "run"))
    assert asked.models[0].name == str(file)
    file.unlink()
    kept = atoll.SearchQuestion.of(from_=str(tmp_path / "run")).models[0].name
    assert load_model(kept) == own.run.model
