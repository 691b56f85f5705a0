"""A search that has to end ends: with the best so far and what was left out, or with a sentence."""

from __future__ import annotations

import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from some_job import answer, some_job

from atoll.base.errors import AtollError
from atoll.base.stopping import Stop, StoppedError, watched
from atoll.explore.baselines import NAMES, BaselineDesign, run_baselines
from atoll.explore.run import run_search
from atoll.printing.search import print_result
from atoll.schedule.solve import solve
from oracles.synthetic import backward_pass


class Counting(Stop):
    """Its time is up after so many questions."""

    def __init__(self, most: float = np.inf) -> None:
        super().__init__()
        self.asked, self._most = 0, most

    def __call__(self) -> bool:
        self.asked += 1
        return self.asked > self._most or super().__call__()


@pytest.mark.slow
def test_whenever_the_limit_strikes_there_is_an_answer_or_a_sentence() -> None:
    """At its first question, in preparation, search, plateau, fronts and each baseline."""
    job = some_job(baselines=True, pareto=True)
    whole = run_search(job)  # later ones ask less often, as some results are kept in memory
    counted = Counting()
    run_search(job, stop=counted)
    assert not whole.ended_early and set(whole.baselines) == set(NAMES)
    seen = set()
    for share in (0.0, 0.002, 0.1, 0.2, 0.3, 0.4, 0.6, 0.75, 0.99):
        try:
            part = run_search(job, stop=Counting(int(share * counted.asked)))
        except AtollError as error:
            assert "time limit" in str(error) and "before the first design" in str(error)
            seen.add("sentence")
            continue
        assert part.score <= whole.certificate.bound * (1 + 1e-12)
        assert whole.score <= part.certificate.bound * (1 + 1e-12)
        assert part.left_out, "the last baseline was not finished"
        assert set(part.left_out.values()) == {"time limit"}
        missing = [name for name in NAMES if name not in part.baselines]
        told = ["baselines"] if len(missing) == len(NAMES) else [f"baseline {n}" for n in missing]
        assert [name for name in part.left_out if name.startswith("baseline")] == told
        assert part.best.plans[0].layers, "its schedules were at hand"
        seen.update(part.left_out)
    assert {"sentence", "plateau", "fronts", "baselines"} <= seen


@pytest.mark.slow
def test_what_was_left_out_comes_with_the_next_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = some_job(baselines=True, few=True)
    whole = run_search(job)  # later ones ask less often, as some results are kept in memory
    counted = Counting()
    run_search(job, stop=counted)
    part = run_search(job, out=tmp_path / "run", stop=Counting(counted.asked - 20))
    assert "random" not in part.baselines and part.certificate.status == "optimal"
    print_result(part)
    assert "time limit: left out or not complete: " in capsys.readouterr().out
    assert answer(run_search(job, out=tmp_path / "run")) == answer(whole)


def test_ctrl_c_after_the_proof_says_that_the_baselines_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop = Stop()

    def begun(*arguments: Any) -> Mapping[str, BaselineDesign]:
        stop.signal = signal.SIGINT
        return run_baselines(*arguments)

    monkeypatch.setattr("atoll.explore.baselines.run_baselines", begun)
    part = run_search(some_job(baselines=True), stop=stop)
    assert part.certificate.status == "optimal" and part.stopped == ""
    assert part.left_out == {"baselines": "interrupted"} and part.baselines == {}


def test_baselines_of_another_process_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    job = some_job(baselines=True)
    in_sequence = run_search(job, workers=0)
    monkeypatch.setattr("atoll.explore.run.LARGE", 0)
    assert answer(run_search(job)) == answer(in_sequence)


def test_a_schedule_that_is_stopped_gives_no_answer_and_else_the_same() -> None:
    problem = backward_pass(np.random.default_rng(0), 12, 6)
    counted = Counting()
    whole = solve(problem, effort="bounded", tolerance=0.0)
    assert solve(problem, effort="bounded", tolerance=0.0, stop=counted) == whole
    assert counted.asked > 0
    with pytest.raises(StoppedError):
        solve(problem, effort="bounded", tolerance=0.0, stop=Counting(0))


def test_compiled_work_is_halted_when_its_time_is_up() -> None:
    halted = threading.Event()
    with pytest.raises(StoppedError):
        watched(halted.wait, halted.set, Counting(2))
    assert watched(lambda: 1, halted.set, Counting(0)) == 1, "it was done before the question"
