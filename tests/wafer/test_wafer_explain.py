"""What more of a resource is worth, jobs that fix their stages, and old mapping files."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import pytest
from typer.testing import CliRunner

import atoll
from atoll.base.errors import AtollError
from atoll.cli import app
from atoll.files.atomic_file import write_folder
from atoll.questions import WaferQuestion
from atoll.wafer.answer.explain import (
    CHANGES,
    FROZEN,
    ablations,
    explain_wafer_result,
    worth,
)
from atoll.wafer.answer.result import wafer_files
from atoll.wafer.encoding.mapping import from_dict
from atoll.wafer.job import options_of
from atoll.wafer.run import run_wafer_search, search_wafer
from atoll.wafer.search import WaferSearch
from atoll.wafer.staging.planner import WaferOptions

from .test_wafer_search import small_file
from .wafer_cases import small_model, small_wafer


def test_more_of_what_is_short_is_worth_more():
    slow = small_wafer(2, 4, link_Bps=1e9)
    quick = small_wafer(2, 4, link_Bps=1e12)
    gains = {}
    for name, wafer in (("slow", slow), ("quick", quick)):
        found = WaferSearch(wafer, small_model(), 16, 24, None, (1, 2)).run().best
        every = (worth(name, wafer, found, WaferOptions(), ()) for name in CHANGES)
        rows = {row.resource: row for row in every if row is not None}
        assert set(rows) == {"compute", "SRAM", "HBM", "links"}
        assert all(row.gain > -1e-3 for name, row in rows.items() if name != "HBM")
        assert rows["links"].gain_per_1000_mm2 is None
        assert rows["compute"].area_mm2 > 0.0
        gains[name] = rows["links"].gain
    assert gains["slow"] > gains["quick"]


@pytest.mark.slow
def test_only_where_it_is_asked_for(tmp_path):
    job = WaferQuestion.of(
        wafer=str(small_file(tmp_path)), model=small_model(heads=8), batch=8, sequence=64,
        microbatch=(1, 2), baselines=False,
    )  # fmt: skip
    assert run_wafer_search(job).to_dict()["explanation"] == []
    asked = run_wafer_search(job.changed(explain=True))
    shown = asked.to_dict()["explanation"]
    assert [row["resource"] for row in shown] == ["compute", "SRAM", "HBM", "links"]
    assert asked.best.step_s == run_wafer_search(job).best.step_s


@pytest.mark.slow
def test_a_wafers_folder_is_explained_with_what_more_of_each_resource_is_worth(tmp_path):
    """Also where the job did not ask: the stored mapping is priced again."""
    job = WaferQuestion.of(
        wafer=str(small_file(tmp_path)), model=small_model(heads=8), batch=8, sequence=64,
        microbatch=(1, 2), dead_links=(((0, 0), (1, 0)),),
    )  # fmt: skip
    asked = run_wafer_search(job.changed(explain=True))
    folder = tmp_path / "run"
    write_folder(folder, wafer_files(run_wafer_search(job)))
    ended = CliRunner().invoke(app, ["explain", str(folder), "--json"])
    assert ended.exit_code == 0
    shown = json.loads(ended.output)
    assert shown["explanation"] == [asdict(row) for row in asked.explanation] != []
    assert sum(shown["time_parts_s"].values()) == pytest.approx(shown["step_time_s"])
    assert shown["runners_up"] == [], "those of the whole wafer are no runners-up of this one"
    words = CliRunner().invoke(app, ["explain", str(folder)]).output
    for word in ("Wafer", "Pace", "Memory", "More of", "links", "Baselines", "Proof"):
        assert word in words


@pytest.mark.parametrize("change", ["gone", "slower", "code lost"])
def test_what_cannot_be_priced_again_is_said_beside_the_rest(tmp_path, change):
    wafer = small_file(tmp_path)
    job = WaferQuestion.of(
        wafer=str(wafer), model=small_model(heads=8), batch=8, sequence=64, microbatch=(1, 2),
        baselines=False,
    )  # fmt: skip
    result = run_wafer_search(job).answer
    if change == "gone":
        wafer.unlink()
    elif change == "code lost":
        stage, *others = result.best.mapping.stages
        lost = stage.model_copy(update={"operators": dict([*stage.operators.items()][:-1])})
        mapping = result.best.mapping.model_copy(update={"stages": (lost, *others)})
        result = replace(result, best=replace(result.best, mapping=mapping))
    else:
        wafer.write_text(wafer.read_text().replace("clock: 1 GHz", "clock: 900 MHz"))
    shown = explain_wafer_result(result)
    assert shown.explanation == ()
    reasons = "run the search again", "no such file", "entries, expected"
    assert any(reason in shown.note for reason in reasons)
    assert shown.slowest_stage.load_s > 0.0
    assert all(0.0 <= other.slower_by < 1.0 for other in shown.runners_up)


def test_a_plans_folder_is_refused_with_what_shows_it(tmp_path):
    atoll.estimate("bert-large", "h100", 1, batch=1).save(tmp_path / "plan.json")
    ended = CliRunner().invoke(app, ["explain", str(tmp_path)])
    assert isinstance(ended.exception, AtollError)
    assert "atoll report" in str(ended.exception)


def test_stages_can_be_fixed(tmp_path):
    path = tmp_path / "job.yaml"
    small_file(tmp_path)
    path.write_text(
        f"wafer: wafer.yaml\nmodel: {small_model(heads=8)}\nbatch: 8\nsequence: 64\n"
        "stage_shapes: [[2, 1]]\nstage_counts: [4]\n"
    )
    found = search_wafer(path)
    assert [s.rectangle.size for s in found.best.mapping.stages] == [2, 2, 2, 2]
    assert found.certificate.gap >= 0.0
    path.write_text(path.read_text().replace("[[2, 1]]", "[[9, 1]]"))
    with pytest.raises(AtollError, match="do not fit the wafer"):
        search_wafer(path)


def test_the_zero_bubble_schedule_can_be_left_out(tmp_path):
    job = WaferQuestion.of(
        wafer=str(small_file(tmp_path)), model=small_model(heads=8), batch=8, sequence=64,
        microbatch=(1,), stage_counts=(4,), baselines=False,
    )  # fmt: skip
    whole = run_wafer_search(job).best
    without = run_wafer_search(job.changed(ablations=("no-zero-bubble",))).best
    assert whole.mapping.schedule == "zb-h1"
    assert without.mapping.schedule == "1f1b"
    assert whole.step_s < without.step_s
    shortened = job.changed(ablations=("no-zero-bubble",))
    assert not options_of(shortened, small_wafer()).zero_bubble


def test_mapping_files_from_before_the_schedule_gene_run_1f1b():
    found = WaferSearch(small_wafer(2, 4), small_model(), 16, 24, None, (1,),
                        accept=lambda c: c.stages == 4).run().best  # fmt: skip
    data = json.loads(found.mapping.to_json())
    assert from_dict(data) == found.mapping
    del data["schedule"]
    assert from_dict(data).schedule == "1f1b"


def test_freezing_a_gene_never_helps():
    wafer = small_wafer(2, 2, link_Bps=1e9)
    found = WaferSearch(wafer, small_model(), 16, 24, None, (1, 2)).run().best
    rows = {row.variable: row for row in ablations(wafer, found, WaferOptions(), ())}
    assert set(rows) == set(FROZEN)
    assert all(row.worth is None or row.worth > -1e-3 for row in rows.values())
