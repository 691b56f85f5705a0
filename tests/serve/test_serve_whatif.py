"""What-if answers: unchanged conditions give what the search found, others what a search would."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serve_runs import TINY, ask_json, make_app, own_model

import atoll
from atoll.answers.answer import checked, dumped
from atoll.answers.plan import PlanAnswer
from atoll.answers.search import SearchAnswer
from atoll.base.errors import AtollError
from atoll.report.folder import read_plan
from atoll.serve.whatif import Change, NoEstimate, parse_change
from atoll.serve.whatif_chip import ChipWhatIf, stored_question
from atoll.serve.whatif_plan import PlanWhatIf
from atoll.step.layout import Layout
from atoll.step.orders import ORDERS
from atoll.store import RunReader, StoredDesign


def designs_of(folder: Path) -> tuple[ChipWhatIf, list[StoredDesign], SearchAnswer]:
    with RunReader(folder) as reader:
        chips = [row["chip"] for row in reader.designs()]
        designs = [reader.design(chip) for chip in chips]
        result = reader.result()
        assert isinstance(result, SearchAnswer)
        return ChipWhatIf(reader.job()), [d for d in designs if d], result


def test_nothing_changed_is_what_the_search_found(tiny_run: Path) -> None:
    whatif, designs, result = designs_of(tiny_run)
    for design in designs:
        found = whatif.estimate(design, 0, Change())
        assert found.step_time_s == pytest.approx(design["step_time_s"], rel=1e-12)
        if found.devices == 64 and not found.parts_s["recompute"]:
            # The store's figure is over all devices of the job, and without recomputation.
            assert found.power_W == pytest.approx(design["power_W"], rel=1e-9)
        assert sum(found.parts_s.values()) == pytest.approx(found.step_time_s, rel=1e-9)
        assert found.schedules == "as searched"
    best = whatif.estimate(designs[0], 0, Change())
    told = result.best.models[0]
    assert best.power_W == pytest.approx(told.power_W, rel=1e-9)
    assert best.mfu == pytest.approx(told.mfu, rel=1e-9)
    assert best.samples_per_s == pytest.approx(told.samples_per_s, rel=1e-9)


def test_other_devices_give_what_a_search_on_them_gives(tiny_run: Path, tmp_path: Path) -> None:
    """The same chip at the same microbatch and width, searched on half of the devices."""
    whatif, designs, _ = designs_of(tiny_run)
    design = designs[0]
    plan = design["plans"][0]
    half = tmp_path / "half"
    atoll.search(
        TINY,
        devices=32,
        microbatch=[plan["microbatch"]],
        tp=[plan["tensor"]],
        baselines=False,
        out=half,
    )
    with RunReader(half) as reader:
        expected = reader.design(design["chip"])
    assert expected is not None
    found = whatif.estimate(design, 0, Change(devices=32))
    assert found.step_time_s == pytest.approx(expected["step_time_s"], rel=2e-3)


def test_conditions_move_the_step_the_right_way(tiny_run: Path) -> None:
    whatif, designs, _ = designs_of(tiny_run)
    design = designs[0]

    def step_s(**change: Any) -> float:
        value = whatif.estimate(design, 0, Change(**change)).step_time_s
        assert isinstance(value, float)
        return value

    assert step_s(link=0.125) > step_s() > step_s(link=8.0)
    assert step_s(hbm_GBps=200.0) > step_s() >= step_s(hbm_GBps=8000.0)
    assert step_s(devices=32) > step_s() > step_s(devices=128)
    assert step_s(hbm_GiB=8.0) >= step_s(hbm_GiB=512.0)


def test_schedules_are_found_at_once_and_solved_on_request(tiny_run: Path) -> None:
    whatif, designs, _ = designs_of(tiny_run)
    solved = next(d for d in designs if d["plans"][0]["effort"] != "quick")
    quick = whatif.estimate(solved, 0, Change(hbm_GBps=4000.0))
    assert quick.refinable
    assert quick.schedules.startswith("found quickly (at most ")
    refined = whatif.estimate(solved, 0, Change(hbm_GBps=4000.0), refine=True)
    assert not refined.refinable
    assert refined.step_time_s <= quick.step_time_s * (1 + 1e-9)
    assert whatif.estimate(solved, 0, Change(hbm_GBps=4000.0)) == refined


def test_what_does_not_fit_is_said_in_a_sentence(tiny_run: Path) -> None:
    whatif, designs, _ = designs_of(tiny_run)
    small = whatif.estimate(designs[0], 0, Change(devices=1, hbm_GiB=0.1))
    assert "does not fit" in small.problem
    wide = whatif.estimate(designs[0], 0, Change(devices=1, tensor=2))
    assert wide == NoEstimate(problem="A tensor width of 2 needs more than 1 devices.")


def test_the_api_answers_and_says_how_long_it_took(tiny_run: Path) -> None:
    app = make_app(tiny_run)
    chip = ask_json(app, "/api/runs/tiny/table?limit=1")["rows"][0]["chip"]
    options = ask_json(app, f"/api/runs/tiny/whatif/options?chip={chip}")
    names = [slider["name"] for slider in options["sliders"]]
    own = ["devices", "link", "hbm_GiB", "hbm_GBps", "microbatch", "tensor"]
    assert names == [*own, "sequence", "batch", "compute"]
    for slider in options["sliders"]:
        value = slider["values"][-1]
        found = ask_json(app, f"/api/runs/tiny/whatif?chip={chip}&{slider['name']}={value}")
        assert ("problem" in found) != ("step_time_s" in found)
        assert found["answered_ms"] > 0
    error = ask_json(app, f"/api/runs/tiny/whatif?chip={chip}&link=-1", 400)["error"]
    assert error == "link: expected more than 0.0, got '-1'"
    error = ask_json(app, f"/api/runs/tiny/whatif?chip={chip}&model=1", 400)["error"]
    assert "model: expected" in error


def test_a_space_that_changed_since_is_not_believed(tiny_run: Path) -> None:
    _, designs, _ = designs_of(tiny_run)
    with RunReader(tiny_run) as reader:
        job = reader.job()
    other = ChipWhatIf(job | {"space": "phaze"})
    with pytest.raises(AtollError, match="space: phaze is not what it was"):
        other.estimate(designs[0], 0, Change())
    gone = ChipWhatIf(job | {"space": "/nowhere/space.yaml"})
    with pytest.raises(AtollError, match="nowhere"):
        gone.estimate(designs[0], 0, Change())
    assert stored_question(job).devices == job["devices"]
    with pytest.raises(AtollError, match="another version"):
        stored_question(job | {"colour": "blue"})


def test_a_plan_is_estimated_as_it_was_planned(plan_run: Path) -> None:
    content = read_plan(plan_run / "plan.json")
    assert isinstance(content, PlanAnswer)
    whatif = PlanWhatIf(content)
    best = whatif.estimate(0, Change())
    assert best.step_time_s == pytest.approx(content.step_time_s, rel=1e-12)
    for number, other in enumerate(content.runners_up, 1):
        found = whatif.estimate(number, Change())
        assert found.step_time_s == pytest.approx(other.step_time_s, rel=1e-12)
    assert whatif.options(0)["note"] == ""
    changed = PlanWhatIf(replace(content, question={**content.question, "optimizer": "bf16"}))
    assert "something it depends on has changed" in changed.options(0)["note"]
    without = PlanWhatIf(replace(content, question={}))
    with pytest.raises(AtollError, match="keeps no question: plan it again"):
        without.options(0)


def test_a_plan_of_a_configuration_file_is_estimated_again_without_the_file(tmp_path: Path) -> None:
    model = own_model(tmp_path / "llama2-7b", layers=4)  # a zoo name, but another model
    atoll.plan(
        str(model), "h100", 8, batch=64, cp=1, pp=1, flags="te_loss", headroom=0.1,
        export="megatron", out=tmp_path / "run",
    )  # fmt: skip
    model.unlink()
    app = make_app(tmp_path / "run")
    planned = json.loads((tmp_path / "run" / "plan.json").read_text())
    again = ask_json(app, "/api/runs/run/whatif")
    assert again["step_time_s"] == pytest.approx(planned["step_time_s"], rel=1e-12)
    assert ask_json(app, "/api/runs/run/whatif/options")["note"] == ""
    assert "problem" not in ask_json(app, "/api/runs/run/whatif/plan?hbm_GiB=160")


def test_a_checked_launch_file_is_estimated_again_without_the_file(tmp_path: Path) -> None:
    asked = {"batch": 64, "zero": 3, "out": tmp_path / "run"}
    script = atoll.estimate("llama3-8b", "h100", 8, batch=64, zero=3).export("megatron")
    file = script.save(tmp_path / "train.sh")
    found = atoll.estimate(from_=file, device="h100", **asked)
    file.unlink()
    again = ask_json(make_app(tmp_path / "run"), "/api/runs/run/whatif")
    assert again["step_time_s"] == pytest.approx(found.step.time_s, rel=1e-12)


def test_a_plans_sliders(plan_run: Path) -> None:
    app = make_app(plan_run)
    base = ask_json(app, "/api/runs/gpt2/whatif")
    slow = ask_json(app, "/api/runs/gpt2/whatif?hbm_GBps=500")
    assert slow["step_time_s"] > base["step_time_s"]
    assert slow["changed"]
    assert "does not fit" in ask_json(app, "/api/runs/gpt2/whatif?hbm_GiB=8")["warning"]
    assert "not a multiple" in ask_json(app, "/api/runs/gpt2/whatif?microbatch=64")["problem"]
    assert "the plan has" in ask_json(app, "/api/runs/gpt2/whatif?chip=99", 400)["error"]
    assert "has no table" in ask_json(app, "/api/runs/gpt2/table", 404)["error"]


LAYOUTS = st.builds(
    Layout,
    dp=st.integers(1, 64), tp=st.integers(1, 8), pp=st.integers(1, 16), cp=st.integers(1, 4),
    ep=st.integers(1, 4), vpp=st.integers(1, 4), microbatch=st.integers(1, 8), sp=st.booleans(),
    zero=st.integers(0, 3), hsdp=st.integers(1, 4), schedule=st.sampled_from(ORDERS),
    recompute=st.sampled_from(["none", "selective", "full"]),
)  # fmt: skip


@given(LAYOUTS)
def test_a_layouts_fields_read_back_to_the_same_layout(layout: Layout) -> None:
    assert checked(json.loads(json.dumps(dumped(layout))), Layout, "") == layout


def test_changes_are_read_and_refused() -> None:
    assert parse_change({"devices": ["8"], "link": ["0.5"]}) == Change(devices=8, link=0.5)
    assert parse_change({"devices": [""]}) == Change()
    wrong = (("devices", "1.5"), ("devices", "99999999"), ("link", "nan"), ("hbm_GiB", "0"))
    for name, text in wrong:
        with pytest.raises(AtollError, match=f"{name}: expected"):
            parse_change({name: [text]})


def test_sequence_batch_and_compute_rate_of_a_plan(plan_run: Path) -> None:
    app = make_app(plan_run)
    names = [s["name"] for s in ask_json(app, "/api/runs/gpt2/whatif/options")["sliders"]]
    assert names[-3:] == ["sequence", "batch", "compute"]
    base = ask_json(app, "/api/runs/gpt2/whatif")
    fast = ask_json(app, "/api/runs/gpt2/whatif?compute=2")
    rounded_s = base["step_time_s"] * (1 + 1e-12)  # its host is slower than the device
    assert 0.5 * base["step_time_s"] < fast["step_time_s"] <= rounded_s
    assert fast["parts_s"]["compute"] < base["parts_s"]["compute"]
    more = ask_json(app, "/api/runs/gpt2/whatif?batch=128")
    assert more["samples_per_s"] >= base["samples_per_s"]
    short = ask_json(app, "/api/runs/gpt2/whatif?sequence=512")
    assert short["parts_s"]["compute"] < base["parts_s"]["compute"]  # the host sets the pace
    told = ask_json(app, "/api/runs/gpt2/whatif?sequence=4096")
    assert "position table ends at 1024" in told["problem"]


def test_a_plan_is_made_again_under_other_conditions(plan_run: Path) -> None:
    app = make_app(plan_run)
    kept = ask_json(app, "/api/runs/gpt2/whatif?hbm_GiB=16")
    again = ask_json(app, "/api/runs/gpt2/whatif/plan?hbm_GiB=16")
    assert again["schedules"].startswith("proven best of ")
    assert not again["warning"] and again["memory_capacity_bytes"] == 16 * 2**30
    assert "does not fit" in kept["warning"] or again["step_time_s"] <= kept["step_time_s"]
    assert "problem" in ask_json(app, "/api/runs/gpt2/whatif/plan?hbm_GiB=1")


def test_sequence_batch_and_compute_rate_of_a_chip(tiny_run: Path) -> None:
    whatif, designs, _ = designs_of(tiny_run)
    base = whatif.estimate(designs[0], 0, Change()).step_time_s
    assert whatif.estimate(designs[0], 0, Change(compute=2.0)).step_time_s < base
    assert whatif.estimate(designs[0], 0, Change(sequence=256)).step_time_s < base
    assert whatif.estimate(designs[0], 0, Change()).step_time_s == base


def test_runs_are_compared_as_the_command_does(plan_run: Path, tiny_run: Path) -> None:
    app = make_app(plan_run, tiny_run)
    view = ask_json(app, "/api/compare?run=gpt2&run=tiny")
    asked, figures = view["tables"]
    assert asked["heads"][-2:] == ["gpt2", "tiny"]
    assert any(row[:2] == ["devices", "≠"] for row in asked["rows"])
    assert any(row[0] == "MFU %" for row in figures["rows"])
    assert "two or more" in ask_json(app, "/api/compare?run=gpt2", 400)["error"]
    assert "No run 'none'" in ask_json(app, "/api/compare?run=gpt2&run=none", 404)["error"]
