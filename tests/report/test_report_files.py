"""Reports and traces from the command line: files that open offline, and clear refusals."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from atoll.answers.search import SearchAnswer
from atoll.base.errors import AtollError
from atoll.cli import main
from atoll.explore.explain.neighbours import Neighbours
from atoll.questions import SearchQuestion
from atoll.report.folder import open_folder
from atoll.report.page import write_report
from atoll.report.space_view import EVALUATED, space_points
from atoll.store.lock import FolderLock

ROOT = Path(__file__).parent.parent.parent
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["atoll", *arguments])
        with pytest.raises(SystemExit) as stop:
            main()
            sys.exit(0)
        shown = capsys.readouterr()
        return int(stop.value.code or 0), shown.out, shown.err

    return run


def assert_refused(answer: tuple[int, str, str], *words: str) -> None:
    code, out, err = answer
    assert code == 2 and out == "" and "Traceback" not in err
    assert err.count("\n") == 1, "one sentence"
    for word in words:
        assert word in err


def page_data(path: Path) -> dict[str, object]:
    text = path.read_text(encoding="utf-8")
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.S)
    assert found is not None
    data: dict[str, object] = json.loads(found.group(1))
    return data


def search_of(folder: Path) -> SearchAnswer:
    found = open_folder(folder).answer
    assert isinstance(found, SearchAnswer)
    return found


@pytest.mark.slow
def test_a_search_becomes_one_file_that_names_no_other(tiny_run: Path, command: Run) -> None:
    code, out, err = command("report", str(tiny_run))
    assert (code, out) == (0, "") and "wrote" in err
    code, out, _ = command("report", str(tiny_run), "--json")
    assert json.loads(out)["bytes"] == (tiny_run / "report.html").stat().st_size
    text = (tiny_run / "report.html").read_text(encoding="utf-8")
    assert "src=" not in text and "<link" not in text and "@import" not in text
    addresses = set(re.findall(r"https?://[^\"' )]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert "default-src 'none'" in text


def test_the_whole_seed_space_is_in_the_report_and_under_5_MB(
    seed_run: Path, tmp_path: Path
) -> None:
    path = write_report(seed_run, tmp_path / "seed.html")
    assert path.stat().st_size < 5e6
    space = page_data(path)["space"]
    assert isinstance(space, dict) and space["count"] == space["total"] == 29_360


def test_points_are_what_the_store_and_the_bounds_say(seed_run: Path) -> None:
    content = search_of(seed_run)
    points = space_points(seed_run, content)
    assert points is not None
    evaluated = points.state == EVALUATED
    # The answer is the most frugal of those within the tolerance.
    least = points.score[evaluated].max() / (1 + content.certificate.tolerance)
    assert content.score >= least * (1 - 1e-9)
    # What was ruled out cannot beat the best by more than the tolerance that was proven.
    limit = content.score * (1 + content.certificate.tolerance)
    assert points.score[~evaluated].max() <= limit * (1 + 1e-9)
    with sqlite3.connect(seed_run / "search.sqlite") as store:
        assert int(evaluated.sum()) == store.execute("SELECT count(*) FROM designs").fetchone()[0]


def test_sensitivities_are_differences_to_the_best_chip_itself(tiny_run: Path) -> None:
    content = search_of(tiny_run)
    neighbours = Neighbours.of(content.best.accelerator, SearchQuestion.from_dict(content.job))
    assert neighbours.score == pytest.approx(content.score, rel=2e-3)
    rows = {row.what: row for row in neighbours.steps()}
    cores = rows["tensor cores"]
    assert cores.more.area_mm2 > 0 > cores.less.area_mm2
    gain = cores.more.score - neighbours.score
    assert cores.more.per_mm2 == pytest.approx(gain / cores.more.area_mm2)
    # More bandwidth never hurts: the old plan stays possible.
    for name in ("HBM bandwidth", "link bandwidth"):
        assert rows[name].more.gain >= -1e-3 >= rows[name].less.gain - 1e-3


def test_the_chip_is_read_back_from_its_record(tiny_run: Path) -> None:
    from atoll.hardware.silicon.chip import accelerator_area_mm2

    shown = search_of(tiny_run).best.accelerator
    assert accelerator_area_mm2(shown.device()) == pytest.approx(shown.area_mm2)


def test_a_plan_becomes_a_report_with_its_launch_file(plan_run: Path, tmp_path: Path) -> None:
    data = page_data(write_report(plan_run, tmp_path / "plan.html"))
    assert data["kind"] == "plan"
    launch = {row["target"]: row for row in data["launch"]}  # type: ignore[attr-defined]
    assert "--tensor-model-parallel-size 8" in launch["megatron-lm"]["text"]


def test_plan_and_estimate_keep_what_a_report_needs(tmp_path: Path, command: Run) -> None:
    folder, trace = tmp_path / "run", tmp_path / "step.json"
    code, _, err = command(
        "estimate", "--model", "bert-large", "--device", "a100-40", "--devices", "8",
        "--batch", "64", "--microbatch", "4", "--out", str(folder), "--trace", str(trace),
    )  # fmt: skip
    assert code == 0, err
    assert json.loads(trace.read_text())["traceEvents"]
    code, _, err = command("report", str(folder), "--out", str(tmp_path / "page.html"))
    assert code == 0 and (tmp_path / "page.html").exists()
    code, _, err = command("trace", str(folder))
    assert code == 0 and (folder / "trace.json").exists()


def test_search_writes_a_trace(tmp_path: Path, command: Run) -> None:
    job = str(ROOT / "examples" / "jobs" / "tiny.yaml")
    code, _, err = command(
        "search", job, "--no-baselines", "--json", "--trace", str(tmp_path / "t.json")
    )
    assert code == 0, err
    assert json.loads((tmp_path / "t.json").read_text())["traceEvents"]


# --- Refusals -------------------------------------------------------------------------------------


def test_a_folder_that_is_no_run(tmp_path: Path, command: Run) -> None:
    assert_refused(command("report", str(tmp_path)), "neither result.json nor plan.json")
    assert_refused(command("report", str(tmp_path / "gone")), "does not exist")
    (tmp_path / "file").write_text("")
    assert_refused(command("report", str(tmp_path / "file")), "is a file")
    assert_refused(command("trace", str(tmp_path)), "neither result.json nor plan.json")


def test_a_run_that_is_still_being_written(tiny_run: Path, tmp_path: Path, command: Run) -> None:
    folder = tmp_path / "running"
    shutil.copytree(tiny_run, folder)
    (folder / "result.json").unlink()
    with sqlite3.connect(folder / "search.sqlite") as store:
        store.execute("UPDATE runs SET status = 'running', pid = ?", (os.getpid(),))
    lock = FolderLock(folder)
    assert_refused(command("report", str(folder)), "still running", str(os.getpid()))
    lock.release()
    assert_refused(command("report", str(folder)), "ended (killed) before it reported")


def test_a_report_that_exists_while_the_search_runs_again_says_so(
    tiny_run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "again"
    shutil.copytree(tiny_run, folder)
    with sqlite3.connect(folder / "search.sqlite") as store:
        store.execute("UPDATE runs SET status = 'running'")
    lock = FolderLock(folder)
    data = page_data(write_report(folder, tmp_path / "page.html"))
    lock.release()
    assert any("Partial" in text for _, text in data["details"])  # type: ignore[attr-defined]


def test_damaged_files(tiny_run: Path, tmp_path: Path, command: Run) -> None:
    (tmp_path / "result.json").write_text('{"best": ')
    assert_refused(command("report", str(tmp_path)), "not valid JSON")
    (tmp_path / "result.json").write_text('{"best": {}, "certificate": {}}')
    assert_refused(command("report", str(tmp_path)), "its kind is 'None', not search or wafer")
    (tmp_path / "result.json").write_text('{"kind": "search", "format": 1, "best": {}}')
    assert_refused(command("report", str(tmp_path)), "best.accelerator is missing")
    content = json.loads((tiny_run / "result.json").read_text())
    del content["best"]["models"][0]["placement"]["stages"]
    (tmp_path / "result.json").write_text(json.dumps(content))
    assert_refused(command("report", str(tmp_path)), "a field is missing", "stages")
    assert_refused(command("trace", str(tmp_path)), "a field is missing", "stages")
    (tmp_path / "plan.json").write_text('{"kind": "plan", "format": 99}')
    assert_refused(command("report", str(tmp_path)), "another version")
    (tmp_path / "plan.json").write_text("[]")
    assert_refused(command("report", str(tmp_path)), "expected a JSON object")
    (tmp_path / "plan.json").write_text("{}")
    assert_refused(command("report", str(tmp_path)), "not an answer of atoll that is read here")


def test_an_answer_that_was_changed_is_refused_and_our_own_errors_stay(
    tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(tiny_run, folder)
    monkeypatch.setattr("atoll.report.page.search_view", lambda *told: {}["none"])
    with pytest.raises(KeyError):
        write_report(folder)
    result = folder / "result.json"
    result.write_text(result.read_text().replace('"score": ', '"score": 1', 1))
    with pytest.raises(AtollError, match="not as it was written: its checksum"):
        write_report(folder)


def test_output_that_cannot_be_written(
    tiny_run: Path, tmp_path: Path, command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = ("report", str(tiny_run), "--out")
    assert_refused(command(*report, str(tmp_path)), "is a folder")
    assert_refused(command(*report, str(tmp_path / "no" / "r.html")), "there is no folder")
    monkeypatch.setattr(os, "access", lambda _path, mode, **_: mode != os.W_OK)
    assert_refused(command(*report, str(tmp_path / "r.html")), "cannot be written")
    monkeypatch.undo()
    job = str(ROOT / "examples" / "jobs" / "tiny.yaml")
    assert_refused(command("search", job, "--trace", str(tmp_path)), "trace:", "is a folder")
    assert_refused(
        command("plan", "--model", "bert-large", "--device", "h100", "--devices", "8",
                "--batch", "8", "--trace", str(tmp_path / "no" / "t.json")),
        "there is no folder",
    )  # fmt: skip
    assert not list(tmp_path.iterdir()), "nothing half-written is left"


def test_a_job_whose_files_are_gone_still_shows_what_was_evaluated(
    tiny_run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "moved"
    shutil.copytree(tiny_run, folder)
    content = json.loads((folder / "result.json").read_text())
    content["job"]["space"] = str(tmp_path / "gone.yaml")
    (folder / "result.json").write_text(json.dumps(content))
    (folder / "SHA256SUMS").unlink()
    data = page_data(write_report(folder, tmp_path / "page.html"))
    space = data["space"]
    assert isinstance(space, dict) and "gone.yaml" in space["note"] and space["count"] > 0
    assert "sensitivity" not in data
