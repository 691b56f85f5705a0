"""One question for several values, and runs side by side."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import atoll
from atoll.answers.designs import CompareAnswer
from atoll.base.errors import AtollError
from atoll.cli import app
from atoll.printing.console import Output
from atoll.questions import EstimateQuestion, PlanQuestion
from atoll.report.table_view import table_view

ASKED = {"model": "gpt2-xl", "device": "h100", "batch": 80}
WORDS = ("--model", "gpt2-xl", "--device", "h100", "--batch", "80")


def test_runs_that_may_run_out_of_memory_are_marked() -> None:
    given: dict[str, Any] = {"batch": 256, "sequence": 8192}
    tight, roomy = (atoll.estimate("llama3-8b", "h100", 64, zero=zero, **given) for zero in (2, 3))
    assert tight.tight and not roomy.tight
    assert atoll.compare(tight, roomy).to_dataframe().loc["tight"].tolist() == [True, None]


def printed(*words: str) -> str:
    done = CliRunner().invoke(app, [*words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_every_combination_is_what_the_question_alone_answers() -> None:
    asked = EstimateQuestion.of(**ASKED)
    found = atoll.sweep(asked, devices=[10, 20], tp=[1, 5], sequence=[512])
    assert found.axes == ("devices", "tp", "sequence")
    assert [tuple(row.asked.values()) for row in found.rows] == [
        (10, 1, 512), (10, 5, 512), (20, 1, 512), (20, 5, 512),
    ]  # fmt: skip
    for row in found.rows:
        alone = atoll.estimate(**ASKED, **row.asked)  # type: ignore[arg-type]
        assert row.figures["step s"] == alone.step.time_s
        assert row.figures["layout"] == str(alone.layout)


def test_a_field_that_only_some_values_hear_is_left_out_of_the_others() -> None:
    asked = {"model": "gpt2-xl", "device": "h100", "lora_rank": 8, "price": 2.0}
    question = EstimateQuestion.of(**asked, sweep=["method=pretrain", "lora", "tokens=1B"])
    found = atoll.sweep(question)
    assert [row.asked["method"] for row in found.rows if row.figures] == ["pretrain", "lora"]


def test_a_swept_field_needs_no_other_value() -> None:
    """A plan had to be given one number of devices to be asked for several."""
    shared = {"model": "gpt2-xl", "device": "h100", "batch": 64}
    found = atoll.sweep(atoll.PlanQuestion, **shared, devices=[8, 16], zero=1)
    assert [row.asked for row in found.rows] == [{"devices": 8}, {"devices": 16}]
    assert found.given == "batch 64, device h100, model gpt2-xl, zero [1]"
    whole = atoll.PlanQuestion.of(**shared, devices=1, zero=1)
    assert atoll.sweep(whole, devices=[8, 16]) == found
    told = atoll.PlanQuestion.of(**shared, zero=1, sweep=["devices=8", "16"])
    assert atoll.sweep(told) == found
    words = ["--model", "gpt2-xl", "--batch", "64", "--sweep", "devices=8,16"]
    shown = CliRunner().invoke(app, ["plan", *words, "--device", "h100", "--zero", "1", "--json"])
    assert json.loads(shown.stdout) == found.to_dict()
    other = CliRunner().invoke(app, ["plan", *words])
    assert str(other.exception).startswith("--device: missing, and there is no default (GPU or TPU")


@pytest.mark.parametrize(
    ("asked", "fields", "sentence"),
    [
        (
            "gpt2-xl",
            {"devices": [8]},
            "expected one of PlanQuestion, .* or its class, got 'gpt2-xl'",
        ),
        (atoll.EstimateQuestion, {"device": "h100", "devices": [8]}, "model: missing"),
    ],
)
def test_what_is_no_question_is_one_sentence(
    asked: Any, fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(AtollError, match=sentence):
        atoll.sweep(asked, **fields)


def test_values_without_an_answer_keep_the_reason() -> None:
    found = atoll.sweep(EstimateQuestion.of(**ASKED, devices=8), tp=[1, 3])
    assert [bool(row.problem) for row in found.rows] == [False, True]
    assert "multiple" in found.rows[1].problem
    assert found.lines()[1]["step s"] is None
    with pytest.raises(AtollError, match="no value has an answer"):
        atoll.sweep(EstimateQuestion.of(**ASKED, devices=8), tp=[3, 7])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [("colour=1", "no field"), ("8", "NAME=VALUE"), ("out=a,b", "no field")],
)
def test_what_cannot_be_swept_is_refused(words: str, sentence: str) -> None:
    done = CliRunner().invoke(app, ["estimate", *WORDS, "--sweep", words])
    assert isinstance(done.exception, AtollError)
    assert sentence in str(done.exception)


def test_a_sweep_is_no_single_answer() -> None:
    with pytest.raises(AtollError, match=r"atoll\.sweep"):
        atoll.plan(job=PlanQuestion.of(**ASKED, devices=8, sweep="tp=1,2"))


def test_the_command_prints_keeps_and_draws_a_sweep(tmp_path: Path) -> None:
    quick = ("--pp", "1", "--cp", "1", "--recompute", "none")
    words = (
        "plan",
        *WORDS,
        *quick,
        "--devices",
        "8",
        "--sweep",
        "devices=8,16",
        "--sweep",
        "zero=1,3",
    )
    folder = tmp_path / "swept"
    shown = json.loads(printed(*words, "--json", "--out", str(folder)))
    assert shown["kind"] == "sweep" and len(shown["rows"]) == 4
    assert shown == json.loads((folder / "sweep.json").read_text())
    with (folder / "sweep.csv").open() as file:
        assert [row["devices"] for row in csv.DictReader(file)] == ["8", "8", "16", "16"]
    assert "tokens/s" in printed(*words)
    printed("report", str(folder))
    assert '"axis":"devices"' in (folder / "report.html").read_text()
    assert type(atoll.load(folder / "sweep.json")).__name__ == "SweepAnswer"


def test_quantities_are_drawn_against_their_unit_and_names_as_categories() -> None:
    asked = EstimateQuestion.of(**ASKED, devices=8)
    chart, *others = table_view(atoll.sweep(asked, power_cap=["700 W", "350 W"]))["charts"]
    assert chart["axis"] == "power_cap (W)" and chart["figure"] == "tokens/s per device"
    assert [point["x"] for point in chart["lines"][""]] == [350.0, 700.0]
    assert {"step s", "memory GiB"} <= {other["figure"] for other in others}
    networks = table_view(atoll.sweep(asked, network=["dgx-h100", "dgx-a100"]))["charts"][0]
    assert networks["categories"] == ("dgx-h100", "dgx-a100")
    assert [point["x"] for point in networks["lines"][""]] == [0, 1]


def test_charts_have_the_interval_of_the_step_time() -> None:
    swept = atoll.sweep(EstimateQuestion.of(**ASKED, devices=8), devices=[8, 16])
    rate, step = table_view(swept)["charts"][:2]
    for row, at in zip(swept.rows, (0, 1), strict=True):
        figures, point, fast = row.figures, step["lines"][""][at], rate["lines"][""][at]
        assert [point["low"], point["high"]] == pytest.approx([figures["low s"], figures["high s"]])
        assert fast["low"] * point["high"] == pytest.approx(fast["y"] * point["y"])
        assert fast["low"] < fast["y"] < fast["high"]


def test_every_estimated_layout_is_written(tmp_path: Path) -> None:
    file = tmp_path / "layouts.csv"
    found = atoll.plan(**ASKED, devices=8, cp=[1], layouts=file)
    with file.open() as opened:
        rows = list(csv.DictReader(opened))
    assert rows[0]["layout"] == str(found.fastest.layout)
    assert float(rows[0]["slower"]) == 0.0
    times = [float(row["step_time_s"]) for row in rows]
    assert times == sorted(times)
    named = next(row for row in rows if row["layout"] == str(found.best.layout))
    assert float(named["step_time_s"]) == pytest.approx(found.best.step.time_s)


def test_runs_are_compared_by_what_was_asked_and_what_came_out(tmp_path: Path) -> None:
    atoll.plan(**ASKED, devices=8, cp=[1], pp=[1], out=tmp_path / "eight")
    atoll.estimate(**ASKED, devices=16).save(tmp_path / "sixteen.json")
    runs = tmp_path / "eight", tmp_path / "sixteen.json"
    found = atoll.compare(*runs)
    asked = {row.name: row for row in found.asked}
    assert [name for name, row in asked.items() if row.differs] == ["devices"]
    assert asked["devices"].ratios == (1.0, 2.0)
    figures = {row.name: row for row in found.figures}
    assert figures["step s"].values[1] == atoll.estimate(**ASKED, devices=16).step.time_s
    assert figures["proven"].values == (True, None)
    page = tmp_path / "compared.html"
    out = printed("compare", *map(str, runs), "--out", str(page))
    assert "*  devices" in out and "(2x)" in out and page.is_file()
    with pytest.raises(AtollError, match="two or more"):
        atoll.compare(runs[0])


def test_what_questions_return_can_be_compared_and_tabled() -> None:
    found = atoll.plan(**ASKED, devices=8, pp=1, cp=1, recompute="none")
    table = found.to_dataframe()
    assert table["layout"].iloc[0] == str(found.fastest.layout)
    assert table["step_time_s"].is_monotonic_increasing
    other = atoll.estimate(**ASKED, devices=16)
    assert other.to_dataframe()["devices"].tolist() == [16]
    both = found.compare(other)
    assert isinstance(both, CompareAnswer) and both.runs == ("plan 1", "estimate 2")
    assert both.to_dataframe().loc["devices"].tolist() == [8, 16]
    with pytest.raises(AtollError, match="two or more"):
        found.compare()


@pytest.mark.parametrize(
    ("changed", "shown"),
    [
        ({"headroom": 0.2}, ("headroom", (0.0, 0.2))),
        ({"flags": "te_loss"}, ("flags", (None, "te_loss"))),
        ({"zero": 3}, ("zero", (None, 3))),
        ({"method": "lora", "lora_rank": 8}, ("lora_rank", (16, 8))),
    ],
)
def test_the_field_that_differs_is_shown(
    changed: dict[str, Any], shown: tuple[str, tuple[Any, ...]]
) -> None:
    found = atoll.estimate(**ASKED, devices=8).compare(
        atoll.estimate(**ASKED, devices=8, **changed)
    )
    assert isinstance(found, CompareAnswer)
    assert shown in [(row.name, row.values) for row in found.asked if row.differs]
    tool = {"stack"} if "method" in changed else set()  # adapters have another usual tool
    assert {row.name for row in found.asked if row.differs} == changed.keys() | tool


def test_models_of_one_name_are_compared_by_their_shape(tmp_path: Path) -> None:
    shape = {
        "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096,
        "num_attention_heads": 16, "vocab_size": 32_000, "max_position_embeddings": 2048,
    }  # fmt: skip
    runs = []
    for layers in (4, 8):
        file = tmp_path / str(layers) / "mine" / "config.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({**shape, "num_hidden_layers": layers}))
        runs.append(
            atoll.estimate(str(file), "h100", 8, batch=64).save(tmp_path / f"{layers}.json")
        )
    found = atoll.compare(*runs)
    differing = {row.name: row.values for row in found.asked if row.differs}
    assert differing == {"model.layers": (4, 8)}


def test_a_run_keeps_its_question_and_the_version_that_answered_it(tmp_path: Path) -> None:
    given = {**ASKED, "devices": 8, "cp": [1], "pp": [1], "recompute": ["none"]}
    atoll.plan(**given, out=tmp_path)  # type: ignore[arg-type]
    kept = json.loads((tmp_path / "plan.json").read_text())
    assert kept["question"] == given and kept["version"] == atoll.__version__
    again = atoll.plan(job=PlanQuestion.of(**kept["question"]))
    assert again.answer.step_time_s == kept["step_time_s"]


def test_an_unknown_field_of_a_sweep_gets_the_name_that_was_meant() -> None:
    with pytest.raises(AtollError, match="sweep: devicess: unknown field, did you mean devices"):
        atoll.sweep(EstimateQuestion, **ASKED, devicess=[8, 16])


def test_a_table_breaks_lines_only_between_words(capsys: pytest.CaptureFixture[str]) -> None:
    layout = "tp4 pp4 dp2 vpp6 mbs2 zero1 sp recompute-none blocks-2x6+3x17+1"
    heads = ("device", "tokens/s per device", *"abcdef", "layout")
    cells = ("h100", "12,345", *["123.4567"] * 6, layout)
    Output().table(heads, [cells], (-1,))
    out = capsys.readouterr().out
    assert {*layout.split(), *cells[:-1]} <= {*out.split()}
    assert max(map(len, out.splitlines())) <= Output().width


def test_a_printed_sweep_names_its_best_row_and_why_a_row_is_empty() -> None:
    out = printed("estimate", *WORDS, "--sweep", "devices=10,20,3")
    assert "\nBest        " in out and "tokens/s per device at devices 10\n" in out
    assert "\nNote        no answer for 1 of 3: " in out
    assert out.splitlines()[-1].startswith("Next        --out DIR keeps these answers")
