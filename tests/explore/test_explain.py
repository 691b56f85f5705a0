"""Why a chip is the answer: what its neighbours change, and how existing devices turn into it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import atoll
from atoll.answers.search import SearchAnswer, SearchExplanation
from atoll.base.errors import AtollError
from atoll.cli import app
from atoll.explore.explain import explanation
from atoll.explore.explain.device_comparison import DeviceComparer, described_device
from atoll.explore.explain.neighbours import Neighbours, answer_chip
from atoll.hardware.catalog import load_accelerator
from atoll.hardware.device import load_device
from atoll.questions import SearchQuestion
from atoll.report.folder import open_folder
from atoll.report.page import make_view

pytestmark = pytest.mark.slow
EXAMPLES = Path(__file__).parents[2] / "examples"
MOST_LINES = 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("run") / "mine"
    space = EXAMPLES / "spaces/tiny.yaml"
    atoll.search(
        model="bert-large", space=str(space), devices=8, batch=64, max_power=200.0,
        microbatch=[8], tp=[1, 2], baselines=False, beside=["a100-80"], out=out,
    )  # fmt: skip
    return out


@pytest.fixture(scope="module")
def answer(folder: Path) -> SearchAnswer:
    stored = open_folder(folder).answer
    assert isinstance(stored, SearchAnswer)
    return stored


@pytest.fixture(scope="module")
def explained(answer: SearchAnswer) -> SearchExplanation:
    template_chip = EXAMPLES / "devices/existing/tpu-v5p.yaml"
    return answer.explain(beside=["a100-80", "b200", str(template_chip)])


def test_bars_turn_the_step_of_a_device_into_that_of_the_answer(
    explained: SearchExplanation, answer: SearchAnswer
) -> None:
    for comparison in explained.comparison.values():
        assert comparison.step_time_s is not None
        step_s = comparison.step_time_s
        for bar in comparison.waterfall:
            step_s += bar.added_s
            assert step_s == pytest.approx(bar.step_time_s, rel=1e-12)
        assert comparison.waterfall[-1].step_time_s == answer.best.step_time_s
        assert comparison.answer_step_time_s == answer.best.step_time_s


def test_what_is_no_property_of_the_chip_has_bars_of_its_own(explained: SearchExplanation) -> None:
    first, second, template_chip = explained.comparison.values()
    assert [bar.change for bar in first.waterfall[:3]] == ["software", "cost model", "matrix units"]
    assert [bar.change for bar in second.waterfall[:2]] == ["network", "software"]
    # A chip of the template has no software of its own: only the planner's layouts differ.
    changes = {bar.change: bar for bar in template_chip.waterfall}
    assert "software" not in changes and changes["cost model"].before == "planner"


def test_classes_of_time_add_up_to_both_steps(explained: SearchExplanation) -> None:
    for comparison in explained.comparison.values():
        device_s, answer_s = (
            sum(both[i] for both in comparison.classes_s.values()) for i in range(2)
        )
        assert device_s == pytest.approx(comparison.step_time_s)
        assert answer_s == pytest.approx(comparison.answer_step_time_s)


def test_the_device_starts_as_the_search_planned_it(
    explained: SearchExplanation, answer: SearchAnswer
) -> None:
    planned, comparison = answer.beside["a100-80"], explained.comparison["a100-80"]
    assert comparison.step_time_s == planned.step_time_s
    assert comparison.layout == planned.layout
    assert comparison.described_step_time_s == pytest.approx(planned.template_step_time_s)
    assert "at 1.31 GHz, its clock in long products (nominal: 1.41 GHz)" in comparison.described
    figures = {(figure.name, figure.unit): figure for figure in comparison.figures}
    assert figures["area", "mm2"].device == planned.area_mm2
    assert figures["area", "mm2"].answer == pytest.approx(answer.best.accelerator.area_mm2)
    assert figures["MFU", "%"].device == pytest.approx(100 * (planned.mfu or 0.0))


def test_a_job_that_does_not_fit_a_device_says_so(answer: SearchAnswer, tmp_path: Path) -> None:
    small = tmp_path / "small.yaml"
    text = (EXAMPLES / "devices/existing/h200.yaml").read_text()
    small.write_text(text.replace("capacity: 141 GiB", "capacity: 100 MiB"))
    neighbours = Neighbours.of(answer.best.accelerator, SearchQuestion.from_dict(answer.job))
    (comparison,) = DeviceComparer.of(answer, neighbours).compare([str(small)]).values()
    assert comparison.step_time_s is None and not comparison.waterfall and comparison.remark


def test_neighbours_name_the_limit_that_stops_them(
    explained: SearchExplanation, answer: SearchAnswer
) -> None:
    steps = {step.what: step for step in explained.steps}
    assert set(steps) == {
        "tensor cores", "vector cores", "array width", "array depth", "shared buffer", "HBM",
        "HBM bandwidth", "link bandwidth",
    }  # fmt: skip
    best = answer.best.accelerator
    assert (best.tensor_cores, best.glb_MiB) == (8, 32)
    assert steps["tensor cores"].less.change == "to 2"
    assert steps["tensor cores"].less.stopped_by == "slower"
    more = steps["tensor cores"].more  # beyond the list
    assert more.change == "to 10" and more.stopped_by.startswith("power: ")
    assert (more.gain or 0.0) > 0.0 and more.power_W is not None
    assert best.peak_power_W + more.power_W > 200.0
    assert more.capped_GHz is not None and more.capped_GHz < best.clock_GHz
    assert more.capped_gain is not None and more.capped_gain < (more.gain or 0.0)
    assert steps["HBM bandwidth"].more.stopped_by in ("no faster", "not in the space")


def test_neighbours_end_with_their_time_limit(
    answer: SearchAnswer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explanation, "STEPS_S", 1e-6)
    told = answer.explain()
    assert not told.steps and told.models and "evaluated for 1e-06 s" in told.notes[0]
    assert told.comparison.keys() == answer.beside.keys()


def test_a_device_that_is_gone_is_a_note_but_an_unknown_one_an_error(answer: SearchAnswer) -> None:
    gone = replace(answer, beside={"gone.yaml": answer.beside["a100-80"]})
    told = gone.explain()
    assert told.steps and not told.comparison and "gone.yaml" in told.notes[0]
    with pytest.raises(AtollError, match="unheard"):
        answer.explain(beside=("unheard-of",))


def test_no_listed_neighbour_within_the_limits_is_better(
    explained: SearchExplanation, answer: SearchAnswer
) -> None:
    tolerance = answer.certificate.tolerance
    for step in explained.steps:
        for gain in (step.less, step.more):
            assert gain.stopped_by or gain.gain is None or gain.gain <= tolerance


def test_operators_stay_below_the_roofline(
    explained: SearchExplanation, answer: SearchAnswer
) -> None:
    (model,), chip = explained.models, answer.best.accelerator
    peak_flops, hbm_Bps = chip.peak_TFLOPs * 1e12, chip.hbm_bandwidth_GBps * 1e9
    assert {"forward", "backward"} == {point.pass_ for point in model.roofline}
    for point in model.roofline:
        roof = min(peak_flops, point.flop_per_byte * hbm_Bps)
        assert point.flop_per_s <= point.roof_flop_per_s * (1 + 1e-9)
        assert point.roof_flop_per_s == pytest.approx(roof)
    assert 0.0 < model.roof_share <= 1.0


def test_devices_are_described_by_their_published_counts() -> None:
    job = SearchQuestion.of(model="bert-large", devices=8)
    like = atoll.search(
        model="bert-large", space=str(EXAMPLES / "spaces/tiny.yaml"), devices=8, baselines=False
    ).answer.best.accelerator
    for name in ("h200", "b200"):
        chip = described_device(load_device(name), answer_chip(like, job))
        by_hand = load_accelerator(EXAMPLES / f"devices/existing/{name}.yaml")
        for field in ("tensor_cores", "width", "depth", "vector_cores", "vector_width"):
            assert getattr(chip, field) == getattr(by_hand, field)
        assert chip.glb_bytes == by_hand.glb_bytes
        assert chip.clock_Hz == pytest.approx(by_hand.clock_Hz, rel=0.06)
    tpu = described_device(load_device("tpu-v4"), answer_chip(like, job))
    assert (tpu.tensor_cores, tpu.width, tpu.depth) == (8, 128, 128)


def test_explain_prints_a_comparison_in_few_lines(folder: Path) -> None:
    ran = CliRunner().invoke(app, ["explain", str(folder)])
    assert ran.exit_code == 0, ran.output
    shown = ran.stdout[ran.stdout.index("Why not a100-80?") :]
    comparison = shown[: shown.index("\n\nProof")].splitlines()
    assert len(comparison) <= MOST_LINES
    assert "times with the chip's software and cost model for both)" in " ".join(comparison)
    assert any(line.startswith("cost model: ") for line in comparison)


def test_the_report_has_the_comparison_with_the_devices_of_the_search(folder: Path) -> None:
    source = open_folder(folder)
    view = make_view(source.answer, folder, source.status)
    assert set(view["comparison"]) == {"a100-80"}
    assert view["comparison"]["a100-80"].waterfall


def test_unknown_devices_are_refused(folder: Path) -> None:
    ran = CliRunner().invoke(app, ["explain", str(folder), "--beside", "h1000"])
    assert isinstance(ran.exception, atoll.AtollError) and "h100" in str(ran.exception)


def test_other_answers_have_no_devices_to_compare_with(tmp_path: Path) -> None:
    out = tmp_path / "plan"
    atoll.plan("gpt2-xl", "h100", 8, batch=64, tp=[1, 2], pp=[1], out=out)
    ran = CliRunner().invoke(app, ["explain", str(out), "--beside", "h100"])
    assert isinstance(ran.exception, atoll.AtollError)
    assert "searches of chips" in str(ran.exception)
