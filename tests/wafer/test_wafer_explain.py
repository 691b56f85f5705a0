"""What more of a resource is worth, jobs that fix their stages, and old mapping files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from atoll.errors import AtollError
from atoll.wafer.api import search_wafer
from atoll.wafer.encoding import from_json
from atoll.wafer.explain import explain
from atoll.wafer.job import WaferJob
from atoll.wafer.run import make_search, run_wafer_search
from atoll.wafer.search import WaferSearch
from atoll.wafer.stages import Options

from .test_wafer_search import small_file
from .wafer_cases import small_model, small_wafer


def test_more_of_what_is_short_is_worth_more():
    slow = small_wafer(2, 4, link_Bps=1e9)
    quick = small_wafer(2, 4, link_Bps=1e12)
    gains = {}
    for name, wafer in (("slow", slow), ("quick", quick)):
        found = WaferSearch(wafer, small_model(), 16, 24, None, (1, 2)).run().best
        rows = {row.resource: row for row in explain(wafer, found, Options())}
        assert set(rows) == {"compute", "SRAM", "HBM", "links"}
        assert all(row.gain > -1e-3 for name, row in rows.items() if name != "HBM")
        assert rows["links"].gain_per_1000_mm2 is None
        assert rows["compute"].area_mm2 > 0.0
        gains[name] = rows["links"].gain
    assert gains["slow"] > gains["quick"]


def test_only_where_it_is_asked_for(tmp_path):
    job = WaferJob(
        wafer=str(small_file(tmp_path)), model=small_model(heads=8), batch=8, sequence=64,
        microbatches=(1, 2), baselines=False,
    )  # fmt: skip
    assert run_wafer_search(job).to_dict()["explanation"] == []
    asked = run_wafer_search(replace(job, explain=True))
    shown = asked.to_dict()["explanation"]
    assert [row["resource"] for row in shown] == ["compute", "SRAM", "HBM", "links"]
    assert asked.best.step_s == run_wafer_search(job).best.step_s


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
    job = WaferJob(
        wafer=str(small_file(tmp_path)), model=small_model(heads=8), batch=8, sequence=64,
        microbatches=(1,), stage_counts=(4,), baselines=False,
    )  # fmt: skip
    whole = run_wafer_search(job).best
    without = run_wafer_search(replace(job, ablations=("no-zero-bubble",))).best
    assert whole.mapping.schedule == "zb-h1"
    assert without.mapping.schedule == "1f1b"
    assert whole.step_s < without.step_s
    assert not make_search(replace(job, ablations=("no-zero-bubble",)),
                           small_wafer()).planner.options.zero_bubble  # fmt: skip


def test_mapping_files_from_before_the_schedule_gene_run_1f1b():
    found = WaferSearch(small_wafer(2, 4), small_model(), 16, 24, None, (1,),
                        accept=lambda c: c.stages == 4).run().best  # fmt: skip
    data = json.loads(found.mapping.to_json())
    assert from_json(json.dumps(data)) == found.mapping
    del data["schedule"]
    assert from_json(json.dumps(data)).schedule == "1f1b"
