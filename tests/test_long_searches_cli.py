"""Long searches as a user meets them: Ctrl-C, a second process, a look into the store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from atoll.base.errors import AtollError
from atoll.base.stopping import Stop, check_stop
from atoll.cli import main
from atoll.driver import SearchRuntime
from atoll.explore.run import ChipProblem
from atoll.store import RunReader

TINY = str(Path(__file__).parent.parent / "examples" / "jobs" / "tiny.yaml")


def call(*arguments: str) -> int:
    sys.argv = ["atoll", *arguments]
    try:
        main()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    return 0


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store") / "run"
    assert call("search", TINY, "--no-baselines", "--json", "--out", str(folder)) == 0
    return folder


def test_lists_what_was_evaluated(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert call("designs", str(finished), "--json", "--where", "width=128") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["status"]["state"] == "finished"
    assert shown["count"] == len(shown["designs"]) > 0
    best = json.loads((finished / "result.json").read_text())
    assert shown["designs"][0]["score"] == best["score"]
    assert call("designs", str(finished), "--front", "area_mm2") == 0
    assert "finished" in capsys.readouterr().out


def test_exports_to_parquet(finished: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "designs.parquet"
    assert call("designs", str(finished), "--parquet", str(file)) == 0
    with RunReader(finished) as reader:
        assert parquet.read_table(file).num_rows == reader.count()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--where", "colour=red"), ("colour", "score")),
        (("--where", "score"), ("where", "score")),
        (("--where", "score>=many"), ("where", "number")),
        (("--sort", "colour"), ("colour",)),
        (("--front", "model"), ("model",)),
    ],
)
def test_a_mistake_is_one_sentence(
    finished: Path, arguments: tuple[str, ...], words: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert call("designs", str(finished), *arguments) == 2
    shown = capsys.readouterr()
    assert all(word in shown.err for word in words)
    assert "Traceback" not in shown.err


def test_another_job_and_a_second_process_are_refused(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("search", TINY, "--devices", "32", "--out", str(finished)) == 2
    assert "another job (devices 64 there, 32 here)" in capsys.readouterr().err
    holder = (
        "import sys, time; from pathlib import Path; from atoll.store.lock import FolderLock; "
        "lock = FolderLock(Path(sys.argv[1])); print('held', flush=True); time.sleep(3600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", holder, str(finished)], stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        assert call("search", TINY, "--no-baselines", "--out", str(finished)) == 2
        assert f"in use by process {other.pid} on" in capsys.readouterr().err
        other.kill()
    assert call("search", TINY, "--no-baselines", "--out", str(finished)) == 0


@pytest.mark.slow
def test_ctrl_c_prints_the_best_so_far_and_the_next_run_ends_alike(tmp_path: Path) -> None:
    """The search over PHAZE's whole space is stopped once it has a first design."""
    folder = tmp_path / "run"
    command = [
        sys.executable, "-m", "atoll", "search", "--model", "bert-large", "--tolerance", "0",
        "--space", "phaze", "--no-baselines", "--out", str(folder),
    ]  # fmt: skip
    environment = os.environ | {"COLUMNS": "100"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as search:
        deadline = time.monotonic() + 600
        while time.monotonic() < deadline:
            time.sleep(0.05)
            try:
                with RunReader(folder) as reader:
                    if reader.incumbents():
                        break
            except AtollError:
                continue  # it has not begun
        search.send_signal(signal.SIGINT)
        out, err = search.communicate(timeout=600)
    assert search.returncode == 130, err
    assert "Chip " in out
    assert "not proven optimal: the best of" in out
    assert "the same command continues" in err
    assert "Traceback" not in err
    with RunReader(folder) as reader:
        assert reader.status().state == "stopped"
        assert reader.result().stopped == "interrupted"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_before_the_first_design_is_a_sentence_and_its_own_exit_code(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def signalled(self: object, runtime: SearchRuntime) -> None:
        os.kill(os.getpid(), number)
        check_stop(runtime.stop)

    monkeypatch.setattr(ChipProblem, "solve", signalled)
    assert call("search", TINY, "--workers", "0") == 128 + number
    assert f"atoll: ended by {number.name} before there was an answer\n" in capsys.readouterr().err
    assert signal.getsignal(number) == signal.SIG_DFL


def test_a_signal_that_is_sent_to_process_and_group_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As `timeout` does; one that comes later ends the process."""
    stop = Stop()
    with stop.on_interrupt():
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
        assert stop.signal == signal.SIGTERM
        monkeypatch.setattr("atoll.base.stopping.REPEATED_S", -1.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)


def test_nohup_is_kept() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Stop().on_interrupt():
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
