"""A plan that is killed, limited or spread over processes ends as one that ran through."""

from __future__ import annotations

import json
import os
import random
import signal
import time

import pytest
from typer.testing import CliRunner

import atoll
from atoll.answers.answer import dumped
from atoll.base.errors import AtollError
from atoll.base.stopping import Stop
from atoll.cli import app
from atoll.questions import PlanQuestion
from atoll.store import RunReader

ASKED = {
    "model": "llama3-8b", "device": "h100", "devices": 16, "batch": 64, "cp": 1, "tool": "none",
}  # fmt: skip


def run(stop=None, **where):
    return atoll.plan(stop=stop, **(ASKED | where))


def answer(plan) -> str:
    told = plan.to_dict()
    del told["certificate"]["bounded_per_s"], told["question"]
    return json.dumps(told, sort_keys=True)


def begin(out, workers: int) -> int:
    """The plan in a process of its own; its pid."""
    if (child := os.fork()) == 0:
        try:
            run(out=out, workers=workers)
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


@pytest.fixture(scope="module")
def whole():
    return run()


@pytest.mark.slow
def test_kill_9_at_twenty_random_moments_changes_nothing(whole, tmp_path):
    began = time.monotonic()
    run(out=tmp_path / "whole")
    took = time.monotonic() - began
    moments, killed, folders = random.Random(0), 0, 0
    while killed < 20:
        folder = tmp_path / f"run{folders}"
        if killed_within(begin(folder, workers=killed % 3), moments.uniform(0.1, 0.9) * took):
            killed += 1
        else:
            folders += 1
    for number in range(folders + 1):
        assert answer(run(out=tmp_path / f"run{number}")) == answer(whole)


@pytest.mark.slow
def test_a_finished_folder_answers_from_its_records_and_takes_no_other_question(
    whole, tmp_path, monkeypatch
):
    out = tmp_path / "run"
    assert answer(run(out=out)) == answer(whole)
    with RunReader(out) as reader:
        status = reader.status()
        assert (status.state, status.score) == ("finished", whole.certificate.score)
        assert reader.result().best.layout == str(whole.best.layout)
    monkeypatch.setattr("atoll.training.planner.pieces.batch_estimates", None)
    assert answer(run(out=out)) == answer(whole)
    assert answer(run(out=out, time_limit=600)) == answer(whole)
    with pytest.raises(AtollError, match="holds another job"):
        run(out=out, batch=128)
    with pytest.raises(AtollError, match="holds another job"):
        run(out=out, tp=(1, 2))


@pytest.mark.slow
def test_a_launch_file_is_another_question_of_the_same_records(tmp_path):
    out = tmp_path / "run"
    script = {"tool": "megatron-lm"}
    said = script | {"overlap": "grad_reduce param_gather p2p"}
    for asked in (script, said, script):
        assert answer(run(out=out, **asked)) == answer(run(**asked))
    with pytest.raises(AtollError, match="holds another job"):
        run(out=out)  # where sends between stages do not overlap
    with pytest.raises(AtollError, match="holds another job"):
        run(out=out, tool="torchtitan")  # whose kernels and states are others


@pytest.mark.slow
def test_workers_change_nothing(whole):
    assert answer(run(workers=2)) == answer(whole)


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


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False])
def test_a_limit_leaves_the_best_so_far_and_a_bound_that_holds(whole, tmp_path, kept):
    every = After(10**9)
    run(stop=every, **({"out": tmp_path / "whole"} if kept else {}))
    asked = 10**9 - every.questions
    seen = set()
    for share in (0.0, 0.4, 0.7, 0.9, 1.0, 2.0):
        where = {"out": tmp_path / f"run{share}"} if kept else {}
        try:
            found = run(stop=After(int(share * asked)), **where)
        except AtollError as error:
            assert "before a layout was estimated; give it more time" in str(error)
            seen.add("nothing")
        else:
            proof, best_s = found.certificate, whole.fastest.step.time_s
            assert found.best.fits and found.best.step.time_s >= best_s * (1 - 1e-9)
            assert proof.bound >= ASKED["batch"] / best_s * (1 - 1e-9)
            assert proof.evaluated + sum(proof.ruled_out.values()) + found.unseen == proof.items
            assert found.ended_early == (answer(found) != answer(whole))
            assert proof.proven or found.unseen
            seen.add("search" if found.stopped else "reasons" if found.not_done else "whole")
        if kept:
            assert answer(run(**where)) == answer(whole)
    assert seen == {"nothing", "search", "reasons", "whole"}


def command(*words: str):
    done = CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.slow
def test_every_command_reads_the_folder(whole, tmp_path):
    out = str(tmp_path / "run")
    options = [word for name, value in ASKED.items() for word in (f"--{name}", str(value))]
    shown = command("plan", *options, "--out", out, "--workers", "2", "--time-limit", "10 min")
    assert shown["best"]["layout"] == str(whole.best.layout)
    assert command("explain", out)["reasons"] == [dumped(reason) for reason in whole.reasons]
    rows = command("designs", out, "--limit", "3")
    assert rows["designs"][0]["layout"] == str(whole.fastest.layout)
    assert rows["designs"][0]["step_time_s"] == pytest.approx(whole.fastest.step.time_s, rel=1e-8)
    assert PlanQuestion.of(**ASKED).to_dict()["time_limit_s"] == 3600.0


def test_an_edited_network_file_is_another_question(tmp_path):
    network = tmp_path / "network.yaml"
    levels = "levels: [{name: all, devices: 64, bandwidth: 100 GB/s, latency: 1 us}]\n"
    few = {"network": str(network), "out": tmp_path / "run", "tp": 1, "pp": 1, "microbatch": 1}
    network.write_text("name: mine\n" + levels)
    run(**few)
    network.write_text("name: mine\n" + levels.replace("100", "50"))
    with pytest.raises(AtollError, match=r"another job \(network_content"):
        run(**few)
