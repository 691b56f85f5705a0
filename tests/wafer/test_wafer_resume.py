"""A wafer search that is killed, limited or spread over processes ends as one that ran through."""

from __future__ import annotations

import json
import os
import random
import signal
import time

import pytest
from typer.testing import CliRunner

import atoll
from atoll.base.errors import AtollError
from atoll.base.stopping import Stop
from atoll.cli import app
from atoll.questions import WaferQuestion
from atoll.store import RunReader
from atoll.wafer.run import run_wafer_search

from .wafer_cases import small_file, small_model

TIMES = ("phases_s", "wall_time_s", "job")


def small_job(folder, **changes) -> WaferQuestion:
    asked = {
        "wafer": str(small_file(folder)), "model": small_model(heads=8), "batch": 8,
        "sequence": 64, "microbatch": (1, 2), "dead_share": 0.2, "samples": 3, "explain": True,
    }  # fmt: skip
    return WaferQuestion.of(**(asked | changes))


def run(job, stop=None, **where):
    return run_wafer_search(job.changed(**where), stop=stop)


def answer(result) -> str:
    told = {name: value for name, value in result.to_dict().items() if name not in TIMES}
    return json.dumps(told, sort_keys=True)


def command(*words: str):
    run = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    assert run.exit_code == 0
    return json.loads(run.stdout)


def begin(job, out, workers: int) -> int:
    """The search in a process of its own; its pid."""
    if (child := os.fork()) == 0:
        try:
            run(job, out=out, workers=workers)
        finally:
            os._exit(0)
    return child


def killed_within(child: int, seconds: float) -> bool:
    """Kill -9 after so long, unless it has ended."""
    time.sleep(seconds)
    if os.waitpid(child, os.WNOHANG)[0] == child:
        return False
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return True


@pytest.mark.slow
def test_kill_9_at_twenty_random_moments_changes_nothing(tmp_path):
    job = small_job(tmp_path)
    run(job)  # compiles
    began = time.monotonic()
    whole = run(job, out=tmp_path / "whole")
    took = time.monotonic() - began
    moments, killed, folders = random.Random(0), 0, 0
    while killed < 20:
        folder = tmp_path / f"run{folders}"
        if killed_within(begin(job, folder, workers=killed % 3), moments.uniform(0.1, 0.7) * took):
            killed += 1
        else:
            folders += 1
    for number in range(folders + 1):
        assert answer(run(job, out=tmp_path / f"run{number}")) == answer(whole)


def test_a_finished_folder_answers_from_its_records_and_takes_no_other_job(tmp_path, monkeypatch):
    job, out = small_job(tmp_path), tmp_path / "run"
    first = run(job, out=out)
    with RunReader(out) as reader:
        status = reader.status()
        assert (status.state, reader.result().score) == ("finished", first.best.samples_per_s)
    monkeypatch.setattr("atoll.wafer.staging.planner.Planner.best", None)
    monkeypatch.setattr("atoll.wafer.staging.planner.Planner.exacts", None)
    assert answer(run(job, out=out)) == answer(first)
    with pytest.raises(AtollError, match="holds another job"):
        run(job, out=out, batch=16)


@pytest.mark.slow
@pytest.mark.parametrize("space", [False, True])
def test_workers_change_nothing(tmp_path, space):
    job = small_job(tmp_path, samples=0, explain=False)
    if space:
        file = small_file(tmp_path)
        file.write_text(file.read_text() + "space: {tensor_cores: [8, 16]}")
        job = job.changed(pareto=True)
    alone = run(job)
    assert answer(run(job, workers=2)) == answer(alone)
    assert len(alone.designs) > 1 or not space


class After(Stop):
    """A limit that is reached when it is asked for so often."""

    def __init__(self, questions: int) -> None:
        super().__init__()
        self.questions = questions

    def __call__(self) -> bool:
        self.questions -= 1
        return self.questions < 0

    @property
    def reason(self) -> str:
        return "time limit" if self.questions < 0 else ""


@pytest.fixture(scope="module")
def limited(tmp_path_factory):
    """A job, and its answer without a limit."""
    job = small_job(tmp_path_factory.mktemp("limits"), microbatch=(1,), samples=1, explain=False)
    return job, run(job)


@pytest.mark.parametrize("questions", [0, 5, 60, 120, 200])
def test_a_limit_leaves_the_best_so_far_and_a_bound_that_holds(limited, tmp_path, questions):
    (job, whole), folder = limited, tmp_path
    try:
        found = run(job, out=folder / "run", stop=After(questions))
    except AtollError as error:
        assert "before a mapping was found; give it more time" in str(error)
    else:
        proof, best = found.certificate, whole.best.samples_per_s
        assert found.best.fits and found.best.samples_per_s <= best * (1 + 1e-9)
        assert proof.bound >= best * (1 - 1e-9)
        assert bool(found.stopped or found.left_out) == (answer(found) != answer(whole))
    assert answer(run(job, out=folder / "run")) == answer(whole)


@pytest.mark.slow
def test_the_command_and_python_take_the_same_job_and_limits(tmp_path):
    asked = ("--model", small_model(heads=8), "--batch", "8", "--sequence", "64")
    wafer, out = str(small_file(tmp_path)), tmp_path / "run"
    shown = command("search", "--wafer", wafer, *asked, "--out", str(out), "--workers", "0")
    found = atoll.search(
        wafer=wafer, model=small_model(heads=8), batch=8, sequence=64, time_limit="10 min"
    )
    assert shown["score"] == found.best.samples_per_s
    assert command("explain", str(out))["explanation"]
    with pytest.raises(AtollError, match="tp"):
        atoll.search(wafer=wafer, tp=(2,))
