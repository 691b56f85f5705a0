"""`check --append` adds one line to a table of runs, and leaves every other file as it is."""

from __future__ import annotations

import csv
import errno
import fcntl
import json
import os
import resource
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.base.errors import AtollError
from atoll.cli import main
from atoll.validation.append_run import append_run

EXAMPLES = Path(__file__).parents[2] / "examples" / "check"
JOB, LOG = EXAMPLES / "qwen3-1.7b.toml", EXAMPLES / "qwen3-1.7b.log"

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
def dense() -> atoll.Estimate:
    return atoll.estimate("llama3-8b", "h200", 8, batch=64, tp=2)


@pytest.fixture(scope="module")
def sparse() -> atoll.Estimate:
    return atoll.estimate("mixtral-8x7b", "h200", 8, batch=64, tp=2, ep=4)


def add(table: Path, found: atoll.Estimate, name: str = "mine") -> None:
    append_run(table, name, found, {"measured_iter_time_s": found.step.time_s})


def rows(table: Path) -> list[dict[str, str]]:
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_command_adds_one_line(command: Command, tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    words = ("check", str(JOB), "--device", "h200", "--devices", "1", "--log", str(LOG))
    for count in (1, 2):
        before = table.read_bytes() if table.exists() else b""
        assert command(*words, "--append", str(table)) == (0, "")
        assert table.read_bytes().startswith(before) and len(rows(table)) == count
    table.write_bytes(content := b"# my notes\n" + table.read_bytes())
    code, told = command(*words, "--append", str(table))
    assert code == 2 and "not a table of runs" in told and table.read_bytes() == content


def notes_first(table: bytes) -> bytes:
    return b"# my notes\n" + table


def markdown(table: bytes) -> bytes:
    return b"# Runs\n\n| id | layers |\n|---|---|\n| a | 2 |\n"


def jsonfile(table: bytes) -> bytes:
    return json.dumps({"id": 1, "layers": [1, 2]}, indent=1).encode()


def other_table(table: bytes) -> bytes:
    return b"name,loss\na,1.5,extra\n"


def packed(table: bytes) -> bytes:
    return b"\x1f\x8b" + table


def open_quote(table: bytes) -> bytes:
    return table + b'"open,'


def without_measurements(table: bytes) -> bytes:
    return table.replace(b"measured_iter_time_s", b"seconds")


@pytest.mark.parametrize(
    "spoil",
    [notes_first, markdown, jsonfile, other_table, packed, open_quote, without_measurements],
)
def test_what_is_no_table_of_runs_is_refused_and_untouched(
    spoil: Callable[[bytes], bytes], dense: atoll.Estimate, tmp_path: Path
) -> None:
    table = tmp_path / "mine.csv"
    add(table, dense)
    table.write_bytes(content := spoil(table.read_bytes()))
    with pytest.raises(AtollError, match=r"mine\.csv: .*(give another file|not UTF-8)"):
        add(table, dense)
    assert table.read_bytes() == content and list(tmp_path.iterdir()) == [table]


APPENDER = """
import sys
from pathlib import Path
from atoll.files.csvfile import append_csv
for turn in range(5):
    append_csv(Path(sys.argv[1]), ["id"], lambda columns: {"id": f"{sys.argv[2]}-{turn}"})
"""


def test_eight_processes_lose_no_row(tmp_path: Path) -> None:
    """Of five appends each; the first of them creates the table."""
    table = tmp_path / "mine.csv"
    processes = [
        subprocess.Popen([sys.executable, "-c", APPENDER, str(table), str(number)])
        for number in range(8)
    ]
    assert [process.wait() for process in processes] == [0] * 8
    expected = {f"{number}-{turn}" for number in range(8) for turn in range(5)}
    assert {row["id"] for row in rows(table)} == expected and len(rows(table)) == 40


def test_mode_and_link_stay(dense: atoll.Estimate, tmp_path: Path) -> None:
    table, link = tmp_path / "mine.csv", tmp_path / "link.csv"
    add(table, dense)
    table.chmod(0o600)
    link.symlink_to(table.name)
    add(link, dense)
    assert link.is_symlink() and stat.S_IMODE(table.stat().st_mode) == 0o600
    assert len(rows(table)) == 2


def test_runs_of_all_kinds_share_a_table(
    dense: atoll.Estimate, sparse: atoll.Estimate, tmp_path: Path
) -> None:
    table = tmp_path / "mine.csv"
    tuned = atoll.estimate("llama3-8b", "h200", 8, batch=64, method="lora")
    for found in (dense, sparse, tuned):
        add(table, found)
    validated = atoll.validate(data=table)
    assert validated.rows == 3 and (validated.step_time.mean_ape or 0) < 1e-3


def rewritten(table: Path, lost: set[str], gained: tuple[str, ...] = ()) -> None:
    """The table with its columns in reverse order, some fewer and some more; ends of line `\\n`."""
    old = rows(table)
    names = [*gained, *(name for name in reversed(list(old[0])) if name not in lost)]
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, names, restval="", extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(old)


def test_cells_stand_under_the_columns_of_the_table(
    dense: atoll.Estimate, sparse: atoll.Estimate, tmp_path: Path
) -> None:
    """Columns may lie in any order, others may lie between them, and the run may need few."""
    table = tmp_path / "mine.csv"
    add(table, dense)
    rewritten(table, {"n_experts", "top_k", "lora_rank", "model"}, ("comment",))
    table.write_bytes(table.read_bytes().rstrip(b"\n"))
    add(table, dense, "second")
    assert b"\r" not in table.read_bytes()
    assert [row["id"] for row in rows(table)] == ["mine", "second"]
    assert {k: v for k, v in rows(table)[1].items() if k != "id"} == {
        k: v for k, v in rows(table)[0].items() if k != "id"
    }
    content = table.read_bytes()
    with pytest.raises(AtollError, match=r"no column .*n_experts, top_k.*which this run needs"):
        add(table, sparse)
    assert table.read_bytes() == content


def test_a_full_disk_leaves_the_table(dense: atoll.Estimate, tmp_path: Path) -> None:
    table = tmp_path / "mine.csv"
    add(table, dense)
    content = table.read_bytes()
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(content) + 10, old[1]))
    try:
        with pytest.raises(AtollError, match="cannot be appended to"):
            add(table, dense)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert table.read_bytes() == content


def test_what_cannot_be_locked_is_a_sentence(
    dense: atoll.Estimate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(AtollError, match="its file system has no locks"):
        add(tmp_path / "mine.csv", dense)


def test_a_table_that_stays_locked_is_a_sentence(
    dense: atoll.Estimate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll.files.csvfile.LOCK_WAIT_S", 0.0)
    table = tmp_path / "mine.csv"
    add(table, dense)
    with table.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(AtollError, match="another process has kept it locked"):
            add(table, dense)


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_only_a_regular_file_is_a_table(kind: str, dense: atoll.Estimate, tmp_path: Path) -> None:
    place = tmp_path / "mine.csv"
    os.mkfifo(place) if kind == "pipe" else place.mkdir()
    with pytest.raises(AtollError, match=r"not a regular file|cannot be appended to"):
        add(place, dense)
