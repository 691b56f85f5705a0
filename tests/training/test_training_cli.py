"""`atoll estimate`, `atoll plan` and `atoll validate` as a user meets them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from atoll.cli import main

Run = Callable[..., tuple[int, str, str]]
ESTIMATE = ("estimate", "--model", "llama2-7b", "--device", "h100", "--devices", "16")
PLAN = ("plan", "--model", "llama2-7b", "--device", "h100", "--devices", "16")
QUICK = ("--tp", "1", "--tp", "2", "--pp", "1", "--pp", "2", "--cp", "1", "--vpp", "1")


@pytest.fixture
def atoll(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["atoll", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
            sys.exit(0)
        shown = capsys.readouterr()
        code = stop.value.code
        return int(code) if isinstance(code, int) else 0, shown.out, shown.err

    return run


def test_estimate_prints_the_promised_keys(atoll: Run) -> None:
    code, out, err = atoll(
        "estimate", "--model", "llama3-70b", "--device", "h100", "--devices", "512", "--tp", "8",
        "--pp", "4", "--microbatch", "1", "--batch", "1024", "--sequence", "8192",
        "--recompute", "selective", "--json",
    )  # fmt: skip
    assert (code, err) == (0, "")
    shown = json.loads(out)
    assert shown["step_time_s"] > 0
    assert shown["tokens_per_s_per_device"] == pytest.approx(
        1024 * 8192 / shown["step_time_s"] / 512
    )
    assert 0.2 < shown["mfu"] < 0.7
    assert shown["fits"] is True
    memory = shown["memory_bytes"]
    assert memory["total"] == pytest.approx(sum(memory["parts"].values()))
    assert memory["total"] < memory["needed"] <= memory["capacity"]
    assert 0 <= memory["stage"] < 4
    assert sum(shown["breakdown_s"].values()) == pytest.approx(shown["step_time_s"])
    assert shown["layout"]["dp"] == 16


def test_estimate_for_people_shows_time_and_memory(atoll: Run) -> None:
    code, short, _ = atoll(*ESTIMATE, "--batch", "64", "--recompute", "optimal")
    assert code == 0
    labels = [line.split()[0] for line in short.splitlines() if not line.startswith(" ")]
    assert labels == ["Note", "Run", "Step", "Memory", "Confidence", "Next"]
    for words in ("tokens/s (", "MFU", "90% interval", "needed of 79.65 GiB: fits, "):
        assert words in short
    code, out, _ = atoll(*ESTIMATE, "--batch", "64", "--recompute", "optimal", "--explain")
    assert out.startswith(short.partition("Next")[0])
    for words in ("Time of a step:", "  optimizer", "recomputed"):
        assert words in out


def test_estimate_says_when_a_layout_does_not_fit(atoll: Run) -> None:
    code, out, _ = atoll(*ESTIMATE, "--batch", "64", "--microbatch", "4", "--zero", "0")
    assert code == 0
    assert "DOES NOT FIT" in out and "atoll plan finds a layout that fits" in out


def test_plan_prints_proof_runners_up_reasons_and_replay(atoll: Run) -> None:
    code, out, err = atoll(*PLAN, "--batch", "32", *QUICK, "--json")
    assert (code, err) == (0, "")
    shown = json.loads(out)
    assert shown["fits"]
    assert {"step_time_s", "mfu", "memory_bytes", "breakdown_s", "layout"} <= shown.keys()
    assert shown["certificate"]["proven"]
    assert len(shown["runners_up"]) == 4
    assert all(other["slower"] >= -0.01 for other in shown["runners_up"])
    assert shown["fastest"]["step_time_s"] <= shown["best"]["step_time_s"]
    assert {reason["axis"] for reason in shown["reasons"]} >= {"tp", "microbatch", "zero"}
    assert abs(shown["replay"]["difference"]) < 0.05


def test_a_plan_is_eight_lines_and_has_its_details_behind_explain(atoll: Run) -> None:
    code, short, _ = atoll(*PLAN, "--batch", "32", *QUICK)
    assert code == 0
    assert 5 <= len(short.splitlines()) <= 8
    assert "proven fastest of" in short and "--launch-file . writes" in short
    code, out, _ = atoll(*PLAN, "--batch", "32", *QUICK, "--explain")
    assert code == 0
    assert out.startswith(short.partition("Next")[0])
    for words in ("proven optimal over", "Other layouts", "Why:", "Time of a step:"):
        assert words in out


def test_an_answer_says_what_it_holds_for(atoll: Run) -> None:
    """Network by name, with bandwidths of a device and of a node; clock, precision, software."""
    code, out, _ = atoll(*ESTIMATE, "--batch", "64", "--headroom", "10%", "--json")
    given = json.loads(out)["given"]
    assert code == 0
    for words in (
        "64 sequences of",
        "dgx-",
        "per device in nodes of 8",
        "per node",
        "GHz",
        "10% of it kept free",
        "megatron",
    ):
        assert words in given
    code, out, _ = atoll(*ESTIMATE, "--batch", "64", "--explain")
    assert "Given  " in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*ESTIMATE, "--tp", "3"), "devices 16 is not a multiple of tp 3 x pp 1 x cp 1 = 3"),
        ((*ESTIMATE, "--dp", "5"), "make 5 devices, but 16 are given"),
        ((*ESTIMATE, "--batch", "7"), "global batch 7 is not a multiple of dp 16"),
        (
            ("estimate", "--model", "gpt2-xl", "--device", "h100", "--devices", "8", "--tp", "2"),
            "tp is 2, but does not divide the 25 attention heads of gpt2-xl; choose one of 1, 5",
        ),
        ((*ESTIMATE, "--sequence", "0"), "sequence: expected more than 0, got 0"),
        ((*ESTIMATE, "--stack", "megatrom"), "did you mean megatron"),
        (
            (*ESTIMATE, "--precision", "fp4"),
            "precision: expected 'bf16', 'fp16', 'fp8', 'mxfp8' or",
        ),
        ((*ESTIMATE, "--network", "dgx"), "network 'dgx' is not in the catalogue"),
        (("estimate", "--model", "llama9", "--device", "h100"), "llama9"),
        (("estimate", "--model", "llama2-7b", "--device", "h9"), "device 'h9' is not in the"),
        ((*PLAN, "--batch", "32", "--zero", "7"), "zero: 7 is not known, known are 0, 1, 2, 3"),
        ((*PLAN, "--batch", "7", "--pp", "1", "--tp", "1"), "no layout divides"),
        (("validate", "--data", "no-such.csv"), "no-such.csv: no such file"),
        (("validate", "--expect", "oom"), "is for files of training runs"),
    ],
)
def test_mistakes_get_one_sentence_and_exit_code_2(
    atoll: Run, arguments: tuple[str, ...], words: str
) -> None:
    code, out, err = atoll(*arguments)
    assert code == 2
    assert out == ""
    assert words in err
    assert err.startswith("atoll: ")
    assert err.count("\n") == 1


def test_a_tool_that_runs_no_layout_says_why_and_what_else_to_try(
    atoll: Run, tmp_path: Path
) -> None:
    launch = tmp_path / "train.toml"
    code, printed, err = atoll(
        "plan", "--model", "gpt2-xl", "--device", "h100", "--devices", "16", "--batch", "32",
        "--tp", "1", *QUICK, "--tool", "torchtitan", "--launch-file", str(launch),
    )  # fmt: skip
    assert (code, printed, err.count("\n")) == (2, "", 1)
    assert err.startswith("atoll: export to torchtitan: ")
    assert "--tool none" in err
    assert not launch.exists()


def test_a_plan_for_a_tool_comes_with_its_launch_file(atoll: Run, tmp_path: Path) -> None:
    launch = tmp_path / "train.py"
    code, printed, err = atoll(
        *PLAN[:2], "llama3-8b", *PLAN[3:], "--batch", "32", *QUICK, "--stack", "fsdp",
        "--tool", "torchtitan", "--launch-file", str(launch),
    )  # fmt: skip
    assert code == 0
    assert "layouts that torchtitan can run" in " ".join(printed.split())
    assert f"atoll: wrote {launch}" in err
    assert launch.exists()


def test_an_estimate_is_printed_before_an_export_fails(atoll: Run) -> None:
    asked = "--batch", "32", "--zero", "1", "--export", "torchtitan"
    code, printed, err = atoll(*ESTIMATE, *asked)
    assert code == 2
    assert "Step " in printed
    assert err.startswith("atoll: export to torchtitan: ")


@pytest.mark.parametrize("command", [ESTIMATE, (*PLAN, "--batch", "32")], ids=["one", "all"])
def test_an_unknown_tool_is_refused_before_any_work(atoll: Run, command: tuple[str, ...]) -> None:
    code, printed, err = atoll(*command, "--tool", "torchtitam")
    assert (code, printed, err.count("\n")) == (2, "", 1)
    assert "did you mean torchtitan" in err


def test_nothing_fits_is_one_sentence_too(atoll: Run) -> None:
    code, out, err = atoll(
        "plan", "--model", "llama3-70b", "--device", "a100-40", "--devices", "4",
        "--batch", "64", "--cp", "1", "--microbatch", "1",
    )  # fmt: skip
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    for words in ("does not fit 4 a100-40", "too much, most of it", "devices are enough, as tp"):
        assert words in err


def test_validate_prints_json_and_tables(atoll: Run, tmp_path: Path) -> None:
    from atoll.validation.step_rows import H200_STEPS_LATER

    lines = H200_STEPS_LATER.read_text(encoding="utf-8").splitlines()[:5]
    path = tmp_path / "steps.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    code, out, _ = atoll("validate", "--data", str(path), "--json")
    assert code == 0
    shown = json.loads(out)
    assert shown["rows"] == shown["predicted"] == 4
    assert shown["skipped"] == {}
    assert {"mean_ape", "median_ape", "p90_ape"} <= shown["step_time"].keys()
    assert {"mean_ape", "median_ape", "p90_ape"} <= shown["memory"].keys()
    assert {"mean", "median", "groups"} == shown["regret"].keys()
    code, out, _ = atoll("validate", "--data", str(path))
    assert code == 0
    assert "4 of 4 rows predicted" in out
    assert "worst rows:" in out


def test_a_run_of_tokens_has_days_hours_dollars_and_energy(atoll: Run) -> None:
    asked = (*ESTIMATE, "--batch", "64", "--tokens", "10B", "--price", "2.5/h")
    code, out, _ = atoll(*asked, "--json")
    shown = json.loads(out)
    whole = shown["whole_run"]
    assert code == 0
    step_tokens = shown["global_batch"] * shown["sequence"]
    assert whole["steps"] == -(-(10**10) // step_tokens)
    assert whole["dollars"] == pytest.approx(2.5 * whole["device_hours"])
    assert whole["days_low"] < whole["days"] < whole["days_high"]
    code, out, _ = atoll(*asked)
    assert "for 10 B tokens, " in out and re.search(r", \$[\d,]+ \([\d.]+k? to [\d.]+k?\)", out)
    _, out, _ = atoll(*asked[:-4], "--json")
    assert json.loads(out)["whole_run"] is None
    code, out, err = atoll(*asked, "--mtbf", "1 s")
    assert (code, out) == (2, "")
    assert "gets nowhere" in err
