"""Every command in the tables of docs/questions.md runs, with small files under the names that the
page uses, and searches of a few chips.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from calibrate.test_site_of_runs import runs
from docs.written import ROOT, Workplace
from launch.test_check import SCRIPT

ROW = re.compile(r"^\| ([^|]+) \| (.+) \|$", re.MULTILINE)
PLANNED = "atoll plan --model gpt2-xl --device h100 --devices 64 --batch 256"
SMALL = [
    "--model",
    "bert-large",
    "--devices",
    "64",
    "--batch",
    "256",
    "--tp",
    "1",
    "--microbatch",
    "4",
]
PLUG_IN = "Can I add a stack, cost model, chip template or exporter?"
"""The row that has no command; tests/test_example_plug_ins.py runs it."""


def table() -> dict[str, str]:
    rows = dict(ROW.findall((ROOT / "docs" / "questions.md").read_text(encoding="utf-8")))
    return {question: command for question, command in rows.items() if question != "question"}


def commands() -> dict[str, list[str]]:
    """The commands of each row. One that begins with an option goes on with the row's own command,
    with that of the row above ("the same with"), or stands for a run with what was made ("then").
    """
    found: dict[str, list[str]] = {}
    before = ""
    for row, told in table().items():
        wanted: list[str] = []
        for lead, code in re.findall(r"([^`]*)`([^`]+)`", told):
            if code.startswith("atoll "):
                before = code.replace("atoll plan ...", PLANNED)
                wanted += before.split(" && ")
            elif "then" in lead:
                wanted.append(f"{PLANNED} {code}")
            elif code.startswith("--"):
                base = before.partition(" --")[0] if not wanted or "the same" not in told else ""
                wanted.append(f"{before if 'the same' in told else base} {code}")
        found[row] = wanted
    return found


COMMANDS = commands()


def quick(command: str) -> list[str]:
    """The words of a command, with what keeps it small."""
    words = shlex.split(command.replace("tcp://host:8786", "local:1"))[1:]
    if words[0] == "search" and "--wafer" not in words:
        words += (
            []
            if {"--space", "--template"} & set(words)
            else ["--space", "examples/spaces/tiny.yaml"]
        )
        if not {"--model", "--from"} & set(words) and not words[1].endswith(".yaml"):
            words += SMALL
    if "--wafer" in words:
        words += ["--stage-counts", "8", "--no-baselines"]
    if words[0] in ("search", "plan"):
        words += ["--time-limit", "5 min" if "--cluster" in words else "2 min"]
    return words


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the table names."""
    folder = tmp_path_factory.mktemp("readme")
    for shared in ("examples", "src", "tests"):
        (folder / shared).symlink_to(ROOT / shared)
    (folder / "pretrain.sh").write_text(SCRIPT.replace("${GPUS}", "512"))
    runs(folder / "runs.csv")
    shutil.copy(ROOT / "examples" / "check" / "qwen3-1.7b.log", folder / "run.log")
    shutil.copy(ROOT / "tests" / "data" / "chips.csv", folder)
    shutil.copy(ROOT / "examples" / "jobs" / "tiny.yaml", folder / "job.yaml")
    timings = (ROOT / "src" / "atoll" / "data" / "h200_ops.csv").read_text().splitlines(True)
    (folder / "timings.csv").write_text("".join(timings[:1] + timings[1::4]))
    layers = sorted((ROOT / "tests" / "data" / "phaze_dp_cases").glob("*.in.json"))[0]
    shutil.copy(layers, folder / "layers.json")
    (folder / "path" / "to").mkdir(parents=True)
    shutil.copy(ROOT / "tests" / "contract" / "files" / "config.json", folder / "path" / "to")
    model = sorted((ROOT / "tests" / "tracing" / "onnx_files").glob("*.onnx"))[0]
    shutil.copy(model, folder / "model.onnx")
    (folder / "my_mod.py").write_text(MODULE)
    tiny = ["search", "--model", "gpt2-xl", "--devices", "64", "--batch", "256"]
    for name in ("mine", "other"):
        run([*tiny, "--space", "examples/spaces/tiny.yaml", "--out", f"runs/{name}"], folder)
    return folder


MODULE = """
import torch


def build():
    layers = [torch.nn.Embedding(512, 64)]
    for _ in range(2):
        layers += [torch.nn.Linear(64, 64), torch.nn.GELU()]
    return torch.nn.Sequential(*layers, torch.nn.Linear(64, 512))
"""


def run(words: list[str], folder: Path) -> str:
    return Workplace(folder).printed(shlex.join(["atoll", *words]))


def started(words: list[str], folder: Path) -> None:
    """A server says where it is, or waits for what it is asked, and ends when it is told to."""
    server = subprocess.Popen(
        [sys.executable, "-m", "atoll", *words],
        cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdin is not None and server.stdout is not None
    if words[0] == "serve":
        assert server.stdout.readline().startswith("http://127.0.0.1:")
        server.terminate()
    server.stdin.close()
    assert server.wait(300) in (0, -15)


def test_every_row_but_one_has_a_command() -> None:
    assert len(COMMANDS) > 30
    assert [row for row, wanted in COMMANDS.items() if not wanted] == [PLUG_IN]


@pytest.mark.slow
@pytest.mark.parametrize("row", [row for row in COMMANDS if row != PLUG_IN])
def test_it_runs(row: str, folder: Path) -> None:
    kept = "search --out" in COMMANDS[row][0] or "--cluster" in COMMANDS[row][0]
    for command in COMMANDS[row]:
        own = f"runs/{row.split()[-1].strip('?')}"  # a folder holds the records of one question
        words = quick(command.replace("runs/mine", own) if kept else command)
        if words[0] == "capture":
            pytest.importorskip("torch")
        if "model.onnx" in words:
            pytest.importorskip("onnx")
        if words[0] in ("serve", "mcp"):
            if words[0] == "mcp":
                pytest.importorskip("mcp")
            started(words + (["--port", "0"] if words[0] == "serve" else []), folder)
        else:
            run(words, folder)
