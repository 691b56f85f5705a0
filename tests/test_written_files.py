"""What commands write where a file exists: nothing of the user's is lost unasked."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import atoll
from atoll.base.errors import AtollError
from atoll.cli import main
from atoll.files.atomic_file import write_folder
from atoll.files.csvfile import write_csv

ESTIMATE = ("estimate", "--model", "gpt2-xl", "--device", "h100", "--devices", "8", "--batch", "64")

Command = Callable[..., tuple[int, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Exit code and standard error of an `atoll` command."""

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["atoll", *words])
        with pytest.raises(SystemExit) as stop:
            main()
            sys.exit(0)
        return int(stop.value.code or 0), capsys.readouterr().err

    return run


@pytest.fixture(scope="module")
def found() -> atoll.Estimate:
    return atoll.estimate("gpt2-xl", "h100", 8, batch=64)


def test_a_replaced_file_keeps_mode_and_link(found: atoll.Estimate, tmp_path: Path) -> None:
    file, link = tmp_path / "answer.json", tmp_path / "link.json"
    found.save(file)
    file.chmod(0o600)
    link.symlink_to(file.name)
    found.save(link)
    assert link.is_symlink() and stat.S_IMODE(file.stat().st_mode) == 0o600
    assert sorted(p.name for p in tmp_path.iterdir()) == ["answer.json", "link.json"]


def test_a_broken_body_leaves_no_part(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("mine\n")
    with pytest.raises(UnicodeEncodeError):
        write_csv(tmp_path / "table.csv", ["a"], [["\udc80"]])
    assert (tmp_path / "table.csv").read_text() == "mine\n"
    assert [p.name for p in tmp_path.iterdir()] == ["table.csv"]


WRITER = """
import sys
from atoll.files.csvfile import write_csv
for _ in range(30):
    write_csv(sys.argv[1], ["number"], [[sys.argv[2]]] * 500)
"""


def test_a_pipe_is_written_where_a_process_reads_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(AtollError, match="no process reads this pipe"):
        write_csv(pipe, ["a"], [[1]])
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE, text=True) as reader:
        assert reader.stdout is not None
        for attempt in range(1200):  # until it has opened the pipe
            try:
                write_csv(pipe, ["a"], [[1]])
                break
            except AtollError:
                assert attempt < 1199
                time.sleep(0.1)
        assert reader.stdout.read().split() == ["a", "1"]
    command = "from atoll.files.csvfile import write_csv; write_csv('/dev/stdout', ['a'], [[1]])"
    ended = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert ended.stdout.split() == ["a", "1"], ended.stderr


def test_processes_that_write_one_file_share_no_part(tmp_path: Path) -> None:
    """One of them wins with all of its lines; none fails."""
    table = tmp_path / "table.csv"
    processes = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(table), str(number)])
        for number in range(4)
    ]
    assert [process.wait() for process in processes] == [0] * 4
    lines = table.read_text().splitlines()[1:]
    assert len(lines) == 500 and len(set(lines)) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["table.csv"]


@pytest.mark.parametrize("name", ["plan.json", "sweep.csv", "result.json"])
def test_a_folder_with_other_files_of_these_names_is_refused(
    name: str, command: Command, tmp_path: Path
) -> None:
    (tmp_path / name).write_text("mine")
    code, told = command(*ESTIMATE, "--out", str(tmp_path))
    assert code == 2 and f"{name} was not written by atoll" in told
    assert [p.name for p in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_a_folder_of_ours_is_written_again(command: Command, tmp_path: Path) -> None:
    for batch in ("64", "128"):
        assert command(*ESTIMATE, "--batch", batch, "--out", str(tmp_path))[0] == 0


def test_checksums_of_other_files_stay(tmp_path: Path) -> None:
    mine = b"# weights\n" + b"0" * 64 + b" *model.bin\n" + b"1" * 64 + b"  caf\xe9.bin\n"
    (tmp_path / "SHA256SUMS").write_bytes(mine)
    write_folder(tmp_path, {"plan.json": "{}"})
    write_folder(tmp_path, {"plan.json": "{ }"})
    noted = hashlib.sha256(b"{ }").hexdigest().encode()
    assert (tmp_path / "SHA256SUMS").read_bytes() == mine + noted + b"  plan.json\n"


@pytest.mark.parametrize(
    "export", [("--export", "deepspeed"), ("--tool", "deepspeed", "--launch-file", ".")]
)
def test_a_launch_file_under_its_usual_name_overwrites_nothing(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, export: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "train.py"
    file.write_text("mine")
    code, told = command(*ESTIMATE, *export)
    assert code == 2 and "--launch-file train.py overwrites" in told and file.read_text() == "mine"
    named = (*ESTIMATE, "--tool", "deepspeed", "--launch-file", file.name)
    for words in (named, (*ESTIMATE, *export)):  # what it wrote itself it may write again
        assert command(*words)[0] == 0
    assert "zero_optimization" in file.read_text()


@pytest.mark.parametrize(
    "words",
    [
        ["validate", "--data", "x.csv", "--out", "x.csv"],
        ["calibrate", "x.csv", "--out", "./x.csv"],
        ["bench", "x.csv", "--out", "x.csv"],
        ["capture", "x.csv", "--out", "x.csv"],
        ["compare", "x.csv", "x.csv", "--out", "x.csv"],
        ["check", "x.csv", "--device", "h100", "--append", "x.csv"],
        [*ESTIMATE, "--from", "x.csv", "--trace", "x.csv"],
    ],
)
def test_what_is_read_is_not_written_over(
    words: list[str], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.csv").write_text("deepspeed train.py\n")
    assert command(*words)[0] == 2
    assert Path("x.csv").read_text() == "deepspeed train.py\n"


def test_the_sentence_names_both_options(tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text("id\n")
    with pytest.raises(AtollError, match=r"out: .*runs\.csv is also given as data"):
        atoll.validate(data=table, out=table)
