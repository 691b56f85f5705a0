"""A question is defined once: options, keywords, job files, help, docs, stubs and schema follow."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import pytest
import typer
from typer.testing import CliRunner

import atoll
from atoll.base.errors import AtollError
from atoll.cli import app, main
from atoll.questions import (
    COMMANDS,
    EstimateQuestion,
    PlanQuestion,
    PodsQuestion,
    Question,
    SearchQuestion,
    WaferQuestion,
)
from atoll.questions.ask import OldNameWarning, ask, load_job, old_names
from atoll.questions.foreign_names import FOREIGN_NAMES
from atoll.questions.options import _options_named, add_command
from atoll.questions.question import about, allowed, option
from atoll.questions.texts import grouped, option_fields, question_fields, schema
from atoll.step.orders import ORDERS
from atoll.training.planner.space import Axes
from atoll.training.request import AXES

from .written import STUB, stub, table, with_tables

ROOT = Path(__file__).parents[2]
JOBS: dict[str, type[Question]] = {
    "chips": SearchQuestion,
    "devices": PlanQuestion,
    "pods": PodsQuestion,
    "wafer": WaferQuestion,
}
"""What a job file may ask, by its `kind`."""
SEARCHED: dict[str, type[Question]] = {"chips": SearchQuestion, "wafer": WaferQuestion}
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["atoll", *arguments])
        # The name of the program is that of argv, not `python -m pytest`.
        monkeypatch.setattr(sys.modules["__main__"], "__package__", None, raising=False)
        with pytest.raises(SystemExit) as stop:
            main()
            sys.exit(0)
        shown = capsys.readouterr()
        return int(stop.value.code or 0), shown.out, shown.err

    return run


# --- Job files ------------------------------------------------------------------------------------


def test_every_example_job_is_read_as_its_kind() -> None:
    files = [*(ROOT / "examples").glob("jobs/*.yaml"), *(ROOT / "examples").glob("wafer-jobs/*")]
    assert len(files) > 25
    kinds = {type(load_job(file, JOBS)) for file in files}
    assert kinds == {SearchQuestion, PlanQuestion, WaferQuestion}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("model: bert-large\n", SearchQuestion),
        ("# a note: wafer\nmodel: bert-large\n", SearchQuestion),
        ("model: gpt2-xl\ndevice: h100\ndevices: 8\nbatch: 8\n", PlanQuestion),
        ("model: llama2-70b\nwafer: default\n", WaferQuestion),
        ("kind: wafer\nmodel: llama2-70b\n", WaferQuestion),
    ],
)
def test_a_file_without_a_kind_is_known_by_its_fields(
    tmp_path: Path, text: str, kind: type[Question]
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    assert type(load_job(file, JOBS)) is kind


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kind: wafers\n", "job.yaml: kind: 'wafers' is not answered here"),
        ("devices: 8\nmodel: lama2-7b\n", "job.yaml:2:8: model: no model is called 'lama2-7b'"),
        ("model: bert-large\ntp: [1, two]\n", "job.yaml:2:9: tp.1: expected a whole number"),
        ("hbm: [80]\n", 'job.yaml:1:7: hbm.0: 80 bytes hold no model; did you mean "80 GiB"?'),
        ("model: bert-large\nzero: 4\n", "job.yaml:2:7: zero: 4 is not known, known are 0, 1"),
        ("model: [{name: bert-large, wait: 2}]\n", "did you mean weight?"),
        ("wafer: default\nablations: [no-recomputing]\n", "job.yaml:2:13: ablations.0"),
        ("batch: 8\nglobal_batch: 8\n", "job.yaml:2:1: batch: field is given twice"),
    ],
)
def test_a_mistake_in_a_file_names_line_field_and_way_out(
    tmp_path: Path, text: str, words: str
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(text)
    with pytest.raises(AtollError) as caught, warnings.catch_warnings(action="ignore"):
        load_job(file, JOBS)
    assert words in str(caught.value)


def test_files_are_looked_up_beside_the_job_and_keywords_override_it(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text((ROOT / "examples/spaces/tiny.yaml").read_text())
    job = tmp_path / "job.yaml"
    job.write_text("space: mine.yaml\nmodel: [{name: bert-large, sequence: 128}, gpt2-xl]\n")
    found = ask({"chips": SearchQuestion}, job, {"devices": 8, "sequence": 64, "tp": None})
    assert found.space == str(tmp_path / "mine.yaml")
    assert (found.devices, found.tp) == (8, (1, 2, 4, 8))
    assert [entry.sequence for entry in found.models] == [64, 64]


@pytest.mark.parametrize(
    "blocks", ["15+17x2+15", "blocks-15+17x2+15", ["15", "17x2", "15"], [15, 17, 17, 15]]
)
def test_blocks_are_taken_as_answers_print_them(blocks: Any) -> None:
    asked = {"model": "gpt2-xl", "device": "h100", "pp": 4, "blocks": blocks}
    assert EstimateQuestion.of(**asked).blocks == (15, 17, 17, 15)
    with pytest.raises(AtollError, match="blocks"):
        EstimateQuestion.of(**asked | {"blocks": "15+17y2"})


# --- Names ----------------------------------------------------------------------------------------


def test_a_field_has_one_meaning_wherever_it_stands() -> None:
    """Questions that share a name share its type; and no name is the old one of another thing."""
    for name in {name for asked in COMMANDS.values() for name in question_fields(*asked)}:
        for asked in COMMANDS.values():
            for question in asked:
                assert old_names(question).get(name, name) == name or name in ("tensor",)
                if name in question.model_fields:
                    info = question.model_fields[name]
                    assert info.description and about(info, "group"), (question, name)


@pytest.mark.parametrize(
    ("question", "old", "new"),
    [
        (SearchQuestion, "global_batch", "batch"),
        (SearchQuestion, "tensor_widths", "tp"),
        (SearchQuestion, "tensor", "tp"),
        (SearchQuestion, "microbatches", "microbatch"),
        (SearchQuestion, "models", "model"),
        (PlanQuestion, "global_batch", "batch"),
        (PlanQuestion, "seq", "sequence"),
        (PlanQuestion, "schedule", "order"),
        (EstimateQuestion, "states", "optimizer"),
        (WaferQuestion, "microbatches", "microbatch"),
    ],
)
def test_old_names_still_work(question: type[Question], old: str, new: str) -> None:
    assert old_names(question)[old] == new


def test_an_old_keyword_is_a_deprecation_warning_at_the_callers_line() -> None:
    with pytest.warns(OldNameWarning, match="global_batch is called batch now") as seen:
        old = atoll.estimate("gpt2-xl", "h100", 8, global_batch=16)
    assert seen[0].filename == __file__
    assert issubclass(OldNameWarning, DeprecationWarning)
    assert old.to_dict() == atoll.estimate("gpt2-xl", "h100", 8, batch=16).to_dict()


def test_an_old_option_is_a_sentence_on_standard_error(run: Run) -> None:
    asked = ("estimate", "--model", "gpt2-xl", "--device", "h100", "--devices", "8", "--json")
    code, out, err = run(*asked, "--global-batch", "16")
    assert (code, err) == (
        0,
        "atoll: --global-batch is called --batch now; the old name goes with the next release\n",
    )
    assert run(*asked, "--batch", "16") == (0, out, "")
    code, _, err = run(*asked, "--global-batch", "16", "--batch", "16")
    assert code == 2
    assert "--batch: given twice, also by its old name --global-batch" in err


def test_what_another_kind_asks_is_refused_by_name(run: Run) -> None:
    code, _, err = run("search", "--wafer", "default", "--max-area", "300 mm2")
    assert code == 2
    assert "--max-area: this is for chips; a question about wafer takes --model" in err
    named = set(re.findall(r"--[a-z-]+", err.partition("takes")[2]))
    shown = set(re.findall(r"--[a-z-]+", run("search", "--help")[1]))
    assert {"--wafer", "--dead-share"} <= named <= shown, "options that there are"
    assert "job files and Python also stage_shapes, layout, dead_dies, dead_links" in err
    with pytest.raises(AtollError, match="device: unknown field, did you mean devices"):
        ask(SEARCHED, None, {"device": "h100"})
    code, _, err = run("search", str(ROOT / "examples/jobs/gpt3-on-h100.yaml"))
    assert code == 2
    assert "expected chips or wafer" in err and "atoll plan" in err


@pytest.mark.parametrize(
    ("command", "option", "meant"),
    [
        ("plan", "--gpus", "did you mean --devices?"),
        ("plan", "--num-gpus=64", "did you mean --devices?"),
        ("estimate", "--world-size", "did you mean --devices?"),
        ("search", "--nodes", "did you mean --devices (all nodes together)?"),
        ("plan", "--dp", "did you mean --devices (dp is devices / (tp x pp x cp))?"),
        ("search", "--seq-len", "did you mean --sequence?"),
        ("plan", "--seq-length", "did you mean --sequence?"),
        ("plan", "--global-batch-size", "did you mean --batch?"),
        ("estimate", "--micro_batch_size", "did you mean --microbatch?"),
        ("check", "--hardware", "did you mean --device?"),
        ("measure", "--gpu-type", "did you mean --device?"),
        ("plan", "--model-name", "did you mean --model?"),
        ("search", "--max_area", "did you mean --max-area?"),
        ("search", "--tdp", "did you mean --max-power?"),
        ("search", "--budget", "did you mean --max-area (or --max-power, or --per dollar)?"),
        ("plan", "--modle", "did you mean --model or --order?"),
        ("serve", "--gpus", "atoll serve --help lists all"),
    ],
)
def test_options_of_other_tools_name_the_one_that_is_meant(
    run: Run, command: str, option: str, meant: str
) -> None:
    name = option.partition("=")[0]
    assert run(command, option, "8") == (2, "", f"atoll: no such option {name}: {meant}\n")


@pytest.mark.parametrize("words", [("gpt2-xl",), ("--name", "gpt2-xl"), ("--name=gpt2-xl",)])
def test_an_argument_may_be_given_by_its_name(run: Run, words: tuple[str, ...]) -> None:
    code, out, err = run("models", *words)
    assert (code, err) == (0, "") and out.startswith("gpt2-xl: 1,557,611,200 parameters")


def test_keywords_of_other_tools_name_the_field_that_is_meant() -> None:
    with pytest.raises(AtollError, match=r"seq_length: unknown field, did you mean sequence\?"):
        atoll.plan("gpt2-xl", "h100", 8, batch=8, seq_length=1024)


@pytest.mark.parametrize("field", sorted({words.split()[0] for words, _ in FOREIGN_NAMES}))
def test_fields_that_other_tools_name_differently_exist(field: str) -> None:
    assert any(field in option_fields(*asked) for asked in COMMANDS.values())


# --- Values ---------------------------------------------------------------------------------------


def test_one_value_stands_for_a_list_and_quantities_take_units(run: Run) -> None:
    asked = SearchQuestion.of(tp=2, hbm="80 GiB", max_area="3 cm2", time_limit="10 min")
    assert (asked.tp, asked.hbm, asked.max_area) == ((2,), (80 * 2**30,), 300.0)
    assert asked.time_limit == 600.0
    plain = SearchQuestion.of(tp=[2], hbm=[80 * 2**30], max_area=300, time_limit=600)
    assert plain == asked


def test_several_values_of_an_option_stand_between_commas_or_apart(run: Run) -> None:
    base = ("plan", "--model", "gpt2-xl", "--device", "h100", "--devices", "8", "--batch", "8",
            "--pp", "1", "--cp", "1", "--microbatch", "1", "--json")  # fmt: skip
    found = [
        json.loads(run(*base, *several)[1])
        for several in (("--tp", "1,2"), ("--tp", "1", "--tp", "2"))
    ]
    assert found[0]["certificate"]["layouts"] == found[1]["certificate"]["layouts"] > 0


@pytest.mark.parametrize("question", [SearchQuestion, WaferQuestion])
def test_an_answer_states_its_question(question: type[Question]) -> None:
    asked = question.of(microbatch=[1, 2], sequence=512, pareto=True)
    told = json.loads(json.dumps(asked.to_dict()))
    assert told["microbatches"] == [1, 2]
    again = question.from_dict(told)
    assert again.to_dict() == told
    with pytest.raises(AtollError, match="written by another version"):
        question.from_dict(told | {"colour": "red"})


def test_a_list_where_one_value_belongs_is_refused(run: Run) -> None:
    code, _, err = run("search", "--wafer", "default", "--model", "llama2-7b,llama2-70b")
    assert (code, err) == (2, "atoll: model: expected text, got ('llama2-7b', 'llama2-70b')\n")


# --- One place ------------------------------------------------------------------------------------


class WiderQuestion(PlanQuestion):
    """A plan with one more field, and nothing else changed."""

    mood: Literal["calm", "keen"] = option("How it is asked.", "Mood", "calm", old=("temper",))


def test_questions_rest_on_units_and_files_alone() -> None:
    """So that `atoll --help` starts at once, and that every package may read them."""
    program = "import sys, atoll.cli; atoll.cli.app; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    heavy = ("explore", "training", "wafer", "workload", "hardware", "placement", "cost")
    ours = [name for name in loaded.stdout.split() if name.startswith("atoll.")]
    assert not {name for name in ours if name.split(".")[1] in heavy}
    assert "atoll.questions.chips" in ours


@pytest.mark.parametrize(
    ("words", "made"),
    [
        (["--model", "gpt2-xl", "--devices=8", "-q", "--json"], {"model", "devices"}),
        (["job.yaml", "--no-overlap"], {"overlap"}),
        ([], {"model", "devices", "overlap", "batch"}),
        (["--model", "gpt2-xl", "--help"], {"model", "devices", "overlap", "batch"}),
        (["--modle", "gpt2-xl"], {"model", "devices", "overlap", "batch"}),
        (["--batch", "-1"], {"model", "devices", "overlap", "batch"}),
    ],
)
def test_options_are_made_that_are_said_or_all(words: list[str], made: set[str]) -> None:
    assert _options_named(words, ("model", "devices", "overlap", "batch")) == made


def test_a_field_is_all_that_an_option_needs(tmp_path: Path) -> None:
    seen: list[WiderQuestion] = []
    app = typer.Typer(rich_markup_mode=None)
    app.callback()(lambda: None)
    add_command(app, "plan", (WiderQuestion,), lambda question: seen.append(question))
    shown = CliRunner().invoke(app, ["plan", "--help"]).stdout
    assert "Mood:\n  --mood TEXT  How it is asked. Values: calm, keen. [default: calm]\n" in shown
    job = tmp_path / "job.yaml"
    job.write_text("model: gpt2-xl\ndevice: h100\ndevices: 8\nbatch: 8\nmood: keen\n")
    for options, mood in (([], "keen"), (["--mood", "calm"], "calm")):
        result = CliRunner().invoke(app, ["plan", str(job), *options])
        assert (result.exit_code, seen[-1].mood) == (0, mood)
    with pytest.warns(OldNameWarning, match="temper is called mood now"):
        assert ask({"devices": WiderQuestion}, job, {"temper": "calm"}).mood == "calm"
    with pytest.raises(AtollError, match="mood: expected 'calm' or 'keen', got 'kean'"):
        ask({"devices": WiderQuestion}, job, {"mood": "kean"})
    assert WiderQuestion.model_json_schema()["properties"]["mood"]["enum"] == ["calm", "keen"]
    assert "| `--mood TEXT` | How it is asked." in table(WiderQuestion)


GEMMA_3 = [f"gemma3-{size}" for size in ("1b", "4b", "12b", "27b")]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("plan --model llama3-", {"llama3-405b", "llama3-70b", "llama3-8b"}),
        ("plan --device tpu-v5", {"tpu-v5e", "tpu-v5p"}),
        ("plan --method ", {"pretrain", "sft", "lora"}),
        ("plan --order 1f1b,zb-h", {"1f1b,zb-h1", "1f1b,zb-h2"}),
        ("search --model gpt2", {"gpt2-xl"}),
        ("search --wafer def", {"default"}),
        ("estimate --network dgx-", {"dgx-1v", "dgx-a100", "dgx-h100"}),
        ("models gemma", {"gemma-7b", "gemma2-9b", *GEMMA_3}),
        ("hardware h100", {"h100", "h100-96", "h100-800g"}),
        ("schema pla", {"plan", "place"}),
    ],
)
def test_shells_complete_values(
    run: Run, line: str, offered: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`atoll --install-completion`: models, devices and listed values, of several the last."""
    words = ["atoll", *line.split(" ")]
    monkeypatch.setenv("_ATOLL_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", " ".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    code, out, _ = run()
    assert (code, set(out.split())) == (0, offered)


# --- What is written from them --------------------------------------------------------------------


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_every_option_in_a_group_with_its_default_uncut(run: Run, command: str) -> None:
    code, out, err = run(command, "--help")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 80
    assert "..." not in re.sub(r",\.\.\.|\{[A-Z]+\}\.\.\.|_ARGS\]\.\.\.", "", out)
    assert "\u2026" not in out
    shown = " ".join(out.split())
    fields = option_fields(*COMMANDS[command])
    arguments = {name: fields[name] for name in COMMANDS[command][0].arguments}
    for group, members in grouped({n: i for n, i in fields.items() if n not in arguments}).items():
        assert f"\n{group}:\n" in out
        assert all(str(info.description).split()[0] in shown for info in members.values())
    examples = [line for line in out.splitlines() if line.startswith(f"    atoll {command}")]
    assert examples and out.index(examples[0]) < out.index("--help")
    assert all(len(example) <= 80 for example in examples)


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("model", "required without JOB or --from"),
        ("devices", "required without JOB or --from or --deadline or --budget or --pods"),
        ("batch", "required without JOB or --from or --batch-tokens"),
        ("device", "required without JOB or --pods"),
    ],
)
def test_help_of_a_plan_says_what_is_needed_of_devices_and_of_pods(
    run: Run, option: str, words: str
) -> None:
    """`--pods`, `--device` and `--devices` were all marked as required."""
    _, out, _ = run("plan", "--help")
    shown = " ".join(out.split())
    assert re.findall(rf" --{option} (?:N|TEXT) [^\[]*\[([^\]]*)\]", shown) == [words]


@pytest.mark.parametrize("command", COMMANDS)
def test_what_help_calls_required_is_missed_when_it_is_left_out(run: Run, command: str) -> None:
    _, out, _ = run(command, "--help")
    shown, needed = " ".join(out.split()), COMMANDS[command][0].needed(())
    assert shown.count("[required") == len(needed)
    with pytest.raises(AtollError, match="missing") if needed else nullcontext():
        ask({command: COMMANDS[command][0]}, None, {})


def test_the_list_of_commands_is_not_cut(run: Run) -> None:
    _, out, _ = run("--help")
    assert max(map(len, out.splitlines())) <= 80
    assert "..." not in out.replace("[ARGS]...", "")


def test_a_plan_says_what_it_tries_unless_told_otherwise() -> None:
    for axis, field in AXES.items():
        if tried := getattr(Axes(), axis):
            shown = about(PlanQuestion.model_fields[field], "shown")
            assert shown == ", ".join(map(str, tried)), f"{field}: `shown` in questions/devices.py"


def test_allowed_values_are_those_of_the_registry() -> None:
    assert allowed(PlanQuestion.model_fields["order"]) == tuple(ORDERS)
    assert ", ".join(ORDERS) in table(PlanQuestion)


@pytest.mark.parametrize(
    ("said", "without"),
    [
        ({"lora_rank": 64}, "--method lora"),
        ({"lora_targets": "all", "method": "sft"}, "--method lora"),
        ({"price": "2.5/h"}, "--tokens"),
        ({"restart": "5 min"}, "--tokens"),
    ],
)
def test_what_would_be_passed_over_is_refused(said: dict[str, Any], without: str) -> None:
    with pytest.raises(AtollError, match=f"has no effect without {without};"):
        EstimateQuestion.of(model="gpt2-xl", device="h100", **said)


def test_docs_and_stubs_are_written_from_the_questions() -> None:
    """After a change of a question: python tests/questions/written.py"""
    assert STUB.read_text(encoding="utf-8") == stub()
    for page in (ROOT / "docs").glob("*.md"):
        text = page.read_text(encoding="utf-8")
        assert with_tables(text) == text, page
    page = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    asking = [name for name, asked in COMMANDS.items() if asked[0].model_fields]
    assert all(f"<!-- options: {command} -->\n|" in page for command in asking)


def test_schemas_name_fields_values_and_kinds(run: Run) -> None:
    _, out, _ = run("schema", "search")
    shown = json.loads(out)["question"]
    assert shown["discriminator"]["propertyName"] == "kind"
    chips = shown["$defs"]["SearchQuestion"]
    assert chips["properties"].keys() == SearchQuestion.model_fields.keys()
    assert chips["properties"]["profile"]["enum"] == ["default", "phaze"]
    for command in COMMANDS:
        json.dumps(schema(command))
    assert run("schema", "serch")[0] == 2


@pytest.mark.parametrize("function", [atoll.search, atoll.plan, atoll.estimate])
def test_functions_show_the_fields_as_keywords(function: Callable[..., Any]) -> None:
    taken = inspect.signature(function).parameters
    assert {"batch", "sequence", "out", "trace"} <= taken.keys()
    assert "Sequences in a step." in (function.__doc__ or "")


# --- Tokens ---------------------------------------------------------------------------------------

SHARED = {"model": "llama3.1-8b", "device": "h100", "devices": 64}


@pytest.mark.parametrize(
    ("fields", "sequence", "batch"),
    [
        ({"sequence": "32k", "batch": 8}, 32_768, 8),
        ({"sequence": "32k", "batch_tokens": "4M"}, 32_768, 128),
        ({"sequence": 4096, "batch_tokens": 8 * 4096}, 4096, 8),
        ({"batch_tokens": "4M"}, None, 512),  # of the zoo's 8,192 tokens
        ({"sequence": "1.5K", "batch": 1}, 1536, 1),
    ],
)
def test_sequences_and_batches_take_thousands_of_tokens(
    fields: dict[str, Any], sequence: int | None, batch: int
) -> None:
    question = PlanQuestion.of(**SHARED, **fields)
    assert (question.sequence, question.batch) == (sequence, batch)
    assert question.changed(devices=8).batch == batch


def test_searches_take_batches_in_tokens_too() -> None:
    assert SearchQuestion.of(batch_tokens="4M").batch == 1024  # of Llama 2's 4,096 tokens
    assert SearchQuestion.of(model="gpt2-xl", sequence="2k", batch_tokens="1M").batch == 512
    with pytest.raises(AtollError, match="batch_tokens: goes with the name of one model"):
        SearchQuestion.of(model=["gpt2-xl", "bert-large"], batch_tokens="1M")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"batch_tokens": "4M", "batch": 3}, "batch_tokens: the batch is given already"),
        ({"batch_tokens": 4_000_000}, "4,000,000 is not a multiple of the sequence of 8,192"),
        ({"batch_tokens": "many"}, "batch_tokens: expected a number of tokens"),
        ({"batch": 1, "sequence": "32kk"}, "sequence: expected a number of tokens"),
        ({"batch_tokens": "4M", "sweep": ["sequence=4k", "8k"]}, "sweep batch instead"),
    ],
)
def test_tokens_that_cannot_be_are_one_sentence(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(AtollError, match=words):
        PlanQuestion.of(**SHARED, **fields)


def test_an_output_whose_name_is_too_long_is_refused_in_a_sentence() -> None:
    ended = CliRunner().invoke(app, ["designs", "runs", "--parquet", "a" * 300])
    assert isinstance(ended.exception, AtollError)
    ended = CliRunner().invoke(app, ["designs", "a" * 300])
    assert isinstance(ended.exception, AtollError)
