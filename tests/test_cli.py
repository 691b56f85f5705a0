"""The command line as a user meets it: answers on stdout, one sentence and exit code 2 on error."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

import atoll as atoll_package
from atoll import __version__
from atoll.api import describe_hardware
from atoll.cli import app, main

ROOT = Path(__file__).parent.parent
TINY = str(ROOT / "examples" / "jobs" / "tiny.yaml")
CASES = ROOT / "tests" / "data" / "phaze_dp_cases"

Run = Callable[..., tuple[int, str, str]]


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


def assert_refused(answer: tuple[int, str, str], *words: str) -> None:
    code, out, err = answer
    assert code == 2
    assert out == ""
    assert "Traceback" not in err
    for word in words:
        assert word in err


def test_ctrl_c_is_one_line_and_the_shells_exit_code(
    atoll: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(name: str | None) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("atoll.api.describe_hardware", interrupted)
    assert atoll("hardware") == (130, "", "atoll: interrupted\n")


@pytest.mark.parametrize("module", ["hashlib", "pydantic", "typer"])
def test_ctrl_c_while_the_command_is_being_loaded_is_one_line_too(module: str) -> None:
    program = (
        "import builtins, sys\n"
        "known = builtins.__import__\n"
        "def hurry(name, *rest):\n"
        f"    if name == {module!r}: raise KeyboardInterrupt\n"
        "    return known(name, *rest)\n"
        "builtins.__import__ = hurry\n"
        "from atoll.__main__ import main\n"
        "main()\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "atoll: interrupted\n")


def test_every_command_says_how_it_is_used(atoll: Run) -> None:
    """With the oldest typer that is allowed too: earlier ones fail here with today's click."""
    commands = [info.callback.__name__ for info in app.registered_commands if info.callback]
    assert len(commands) == 21
    for command in commands:
        code, out, err = atoll(command, "--help")
        assert (code, err) == (0, ""), command
        assert f"atoll {command}" in out
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert "typer>=0.16" in wanted


def test_prints_its_version(atoll: Run) -> None:
    assert atoll("--version") == (0, f"atoll {__version__}\n", "")


def test_lists_models_and_shows_one(atoll: Run) -> None:
    _, out, _ = atoll("models", "--json")
    assert {"llama2-7b", "gpt3-175b"} <= {row["name"] for row in json.loads(out)["models"]}
    _, out, _ = atoll("models", "gpt2-xl", "--json")
    shown = json.loads(out)
    assert shown["parameters"] == 1_557_611_200
    assert [layer["name"] for layer in shown["layers"]] == ["embedding", "block", "head", "loss"]


def test_shows_hardware(atoll: Run) -> None:
    _, out, _ = atoll("hardware", "--json")
    assert "phaze-tpuv4" in json.loads(out)["accelerators"]
    _, out, _ = atoll("hardware", "phaze-tpuv4", "--json")
    assert json.loads(out)["area_mm2"] == pytest.approx(278.826676, rel=1e-6)


CATALOG = Path(atoll_package.__file__).parent / "hardware" / "catalog"
KINDS = {
    "gpus": "device", "accelerators": "accelerator", "networks": "network", "wafers": "wafer",
    "spaces": "space",
}  # fmt: skip
FILES = sorted(
    file
    for folder in (CATALOG, ROOT / "examples")
    for file in folder.glob("*/*.yaml")
    if file.parent.name in KINDS
)


def test_every_file_of_hardware_is_shown_for_what_it_is() -> None:
    assert len(FILES) > 50
    for file in FILES:
        kind = "calibration" if file.stem.startswith("calibration") else KINDS[file.parent.name]
        shown = describe_hardware(str(file))
        assert shown.kind == f"hardware-{kind}", file
        shown.to_json()


def test_every_name_of_the_catalogue_is_shown() -> None:
    for kind in KINDS.values():
        known = "devices" if kind == "device" else f"{kind}s"
        for name in getattr(describe_hardware(), known):
            shown = describe_hardware(name)
            assert name in getattr(shown, shown.kind.removeprefix("hardware-"))


def test_a_users_own_device_file_is_shown(atoll: Run, tmp_path: Path) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text((CATALOG / "gpus" / "h100.yaml").read_text().replace("name: h100", "name: mine"))
    code, out, err = atoll("hardware", str(own))
    assert (code, err) == (0, "")
    assert "mine" in out and "989" in out
    own.write_text(own.read_text().replace("sms:", "smss:"))
    code, _, err = atoll("hardware", str(own))
    assert code == 2
    assert "smss: unknown field, did you mean sms?" in err


def test_a_job_is_not_hardware(atoll: Run) -> None:
    assert_refused(atoll("hardware", TINY), "tiny.yaml", "model, devices", "atoll search")


def test_names_of_devices_as_people_write_them(atoll: Run) -> None:
    for given, name in (("MI300X", "mi300x"), ("TPU-v7x", "tpu-7x"), ("A100-80GB", "a100-80")):
        _, out, _ = atoll("hardware", given, "--json")
        assert json.loads(out)["device"] == name
    _, out, _ = atoll("hardware", "dgx-h100", "--json")
    assert json.loads(out)["network"] == "dgx-h100"


def test_places_a_table_of_layers(atoll: Run) -> None:
    file = next(CASES.glob("10_*.in.json"))
    code, out, _ = atoll("place", str(file), "--profile", "phaze", "--json")
    plan = json.loads(out)
    assert code == 0
    assert plan["time_per_batch_s"] == pytest.approx(20.896821501207278, rel=1e-9)
    assert (len(plan["stages"]), plan["tensor_parallel"], plan["data_parallel"]) == (4, 2, 8)


def test_an_infeasible_table_is_an_answer(atoll: Run) -> None:
    file = next(CASES.glob("04_*.in.json"))
    code, out, _ = atoll("place", str(file), "--json")
    assert code == 0
    assert json.loads(out)["time_per_batch_s"] is None


def test_searches_a_job_and_explains_it(atoll: Run, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    code, out, _ = atoll("search", TINY, "--json", "--out", str(folder))
    assert code == 0
    result = json.loads(out)
    assert {"accelerator", "placement", "microbatch", "recompute"} <= result["best"].keys()
    proof = result["certificate"]
    assert proof["status"] in ("optimal", "gap")
    assert proof["architectures"] == 15
    assert proof["evaluated"] + proof["pruned"] == 15
    assert set(result["baselines"]) == {"tpuv4-expert", "tpuv4-placed", "spotlight", "random"}
    assert result["throughput_samples_per_s"] > 0
    assert result["wall_time_s"] > 0
    assert json.loads((folder / "result.json").read_text()) == result
    assert (folder / "designs.csv").read_text().startswith("design,tensor_cores")
    code, out, _ = atoll("explain", str(folder))
    assert code == 0
    assert "Operators are limited by" in out


def test_options_override_the_job_file(atoll: Run) -> None:
    _, out, _ = atoll("search", TINY, "--devices", "16", "--no-baselines", "--json")
    result = json.loads(out)
    assert result["job"]["devices"] == 16
    assert result["best"]["placement"]["devices"] <= 16
    assert result["baselines"] == {}


def test_validates_the_gpu_operator_model(atoll: Run) -> None:
    code, out, _ = atoll("validate", "--json")
    shown = json.loads(out)
    assert code == 0
    assert shown["rows"] == shown["predicted"] > 500
    assert shown["step_time"]["mean_ape"] < 0.1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("validate", "--data", "nowhere.csv"), ("nowhere.csv",)),
        (("validate", "--device", "h2000"), ("h2000", "h200")),
        (("search", "--model", "lama2-7b"), ("lama2-7b", "llama2-7b")),
        (("search", "--devices", "-4"), ("devices", "-4")),
        (("search", "--batch", "0"), ("batch", "0")),
        (("search", "--space", "phaze", "--max-area", "1 mm2"), ("max_area", "1 mm2", "3.355")),
        (("search", "--max-area", "1 GB"), ("max_area", "area")),
        (("search", "--max-power", "1 W"), ("max_power", "1 W")),
        (("search", "--profile", "honest"), ("profile", "honest", "phaze")),
        (("search", "--recompute", "some"), ("recompute", "some", "optimal")),
        (("search", "--space", "nowhere.yaml"), ("nowhere.yaml",)),
        (("search", "--hbm", "80 GHz"), ("hbm", "80 GHz")),
        (("search", "--network", "token-ring"), ("token-ring", "dgx-a100")),
        (("search", "nowhere.yaml"), ("nowhere.yaml", "no such file")),
        (("models", "bert-largo"), ("bert-largo", "bert-large")),
        (("models", "gpt2-xl", "--tp", "2"), ("gpt2-xl", "25", "2")),
        (("hardware", "tpu"), ("tpu",)),
        (("place", "nowhere.json"), ("nowhere.json",)),
        (("explain", "."), ("result.json",)),
        (("search", "--model", "t5-small"), ("t5-small",)),
    ],
)
def test_a_mistake_is_one_sentence(
    atoll: Run, arguments: tuple[str, ...], words: tuple[str, ...]
) -> None:
    assert_refused(atoll(*arguments), *words)


def test_a_model_that_fits_no_chip_says_what_takes_the_memory(atoll: Run, tmp_path: Path) -> None:
    answer = atoll(
        "search", TINY, "--model", "megatron-1t", "--devices", "8", "--out", str(tmp_path / "run")
    )
    assert_refused(answer, "megatron-1t", "optimizer state", "more devices")
    assert not (tmp_path / "run").exists()


def test_a_typo_in_a_job_file_names_line_and_field(atoll: Run, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("model: bert-large\ndevises: 64\n")
    assert_refused(atoll("search", str(file)), "job.yaml:2:1", "devises", "devices")


def test_a_negative_size_in_a_job_file_is_refused(atoll: Run, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("model: bert-large\ndevices: -8\n")
    assert_refused(atoll("search", str(file)), "job.yaml:2:10", "devices")


def test_truncated_json_names_line_and_column(atoll: Run, tmp_path: Path) -> None:
    file = tmp_path / "table.json"
    file.write_text(next(CASES.glob("10_*.in.json")).read_text()[:500])
    assert_refused(atoll("place", str(file)), "table.json", "line")


def test_an_output_that_is_a_file_is_refused_before_the_search(atoll: Run, tmp_path: Path) -> None:
    file = tmp_path / "run"
    file.write_text("mine")
    assert_refused(atoll("search", TINY, "--out", str(file)), "run", "folder")
    assert file.read_text() == "mine"


def test_the_next_step_is_one_that_was_not_taken(atoll: Run, tmp_path: Path) -> None:
    asked = ("plan", "--model", "gpt2-xl", "--device", "h100", "--devices", "8", "--batch", "64")
    launch_file, folder = str(tmp_path / "train.sh"), str(tmp_path / "run")
    assert "--launch-file . writes" in atoll(*asked)[1]
    assert "--out DIR keeps the plan" in atoll(*asked, "--launch-file", launch_file)[1]
    both = atoll(*asked, "--launch-file", launch_file, "--out", folder)[1]
    assert f"atoll report {folder} draws it" in " ".join(both.split())


def test_the_next_step_of_a_check_is_a_command_that_runs(
    atoll: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "ds.json"
    file.write_text(
        '{"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, '
        '"zero_optimization": {"stage": 3}}'
    )
    asked = ("--device", "h100", "--devices", "8", "--model", "gpt2-xl", "--sequence", "1024")
    shown = " ".join(atoll("check", str(file), *asked)[1].split())
    command = shown.partition("Next atoll ")[2].partition(" writes a better file")[0].split()
    assert command[:-2] == ["plan", "--from", str(file), *asked]
    assert command[-2:] == ["--launch-file", "."]
    assert atoll(*command[:-1], str(tmp_path / "better.py"))[0] == 0
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "better.py"):
        Path(name).write_text("mine")
    shown = " ".join(atoll("check", str(file), *asked)[1].split())
    assert "--launch-file better2.py writes a better file" in shown, "the usual name is taken"
    code, _, said = atoll(*command[:-1], "new/folder/")
    assert code == 0 and "wrote new/folder/train.py" in said
