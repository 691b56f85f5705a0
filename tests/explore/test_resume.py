"""A search that is killed, again and again, ends like one that was left alone."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from pathlib import Path

import pytest
from some_job import answer, some_job, undisturbed

from atoll.base.errors import AtollError
from atoll.base.identity import VERSION, this_code
from atoll.explore.run import run_search
from atoll.questions import SearchQuestion
from atoll.store import RunReader

KILLS = 20


def begin(job: SearchQuestion, out: Path, workers: int) -> int:
    """The search in a process of its own, everything compiled; its pid."""
    if (child := os.fork()) == 0:
        try:
            run_search(job, out=out, workers=workers)
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


def counts(folder: Path) -> tuple[int, int, int]:
    try:
        with RunReader(folder) as reader:
            status = reader.status()
    except AtollError as error:
        assert "nothing on record yet" in str(error) or "no search.sqlite" in str(error)
        return 0, 0, 0
    return status.bounded, status.evaluated, status.designs


@pytest.mark.slow
def test_kill_9_at_twenty_random_moments_changes_nothing(tmp_path: Path) -> None:
    job = some_job(tolerance=1e-5)
    undisturbed(job)  # compiles
    began = time.monotonic()
    whole = run_search(job, out=tmp_path / "whole")
    took = time.monotonic() - began
    moments = random.Random(0)
    folders = (tmp_path / f"run{i}" for i in range(KILLS))
    folder = next(folders)
    used = [folder]
    kills = 0
    evaluated = 0
    while kills < KILLS:
        child = begin(job, folder, workers=kills % 3)
        if killed_within(child, moments.uniform(0.0, 0.6 * took)):
            kills += 1
            now = counts(folder)[1]
            assert now >= evaluated, "finished evaluations were lost"
            evaluated = now
        else:
            folder, evaluated = next(folders), 0
            used.append(folder)
    for folder in used:
        assert answer(run_search(job, out=folder)) == answer(whole)
        assert counts(folder) == counts(tmp_path / "whole")


@pytest.mark.slow
def test_a_finished_search_is_answered_from_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = some_job(pareto=True)
    first = run_search(job, out=tmp_path / "run")

    def computed(*arguments: object) -> None:
        raise AssertionError("a piece on record was computed again")

    for name in ("branch_and_bound.bound_chips", "branch_and_bound.place_node"):
        monkeypatch.setattr(f"atoll.explore.proof.{name}", computed)
    monkeypatch.setattr("atoll.explore.proof.exact.solve_node", computed)
    assert answer(run_search(job, out=tmp_path / "run")) == answer(first)


@pytest.mark.slow
def test_the_same_job_with_another_limit_or_front_shares_the_record(tmp_path: Path) -> None:
    run_search(some_job(few=True), out=tmp_path / "run")
    alone = undisturbed(some_job(pareto=True))
    shared = run_search(some_job(pareto=True, time_limit=1000.0), out=tmp_path / "run")
    assert shared.pareto == alone.pareto


def test_another_job_in_the_folder_is_refused(tmp_path: Path) -> None:
    run_search(some_job(), out=tmp_path / "run")
    with pytest.raises(AtollError, match=r"another job.*devices 64 there, 32 here"):
        run_search(some_job(devices=32), out=tmp_path / "run")


def test_a_store_that_other_sources_began_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An edit anywhere, not only of a kernel: what is on record came from other code."""
    job = some_job()
    first = answer(run_search(job, out=tmp_path / "run"))
    begun = counts(tmp_path / "run")
    with monkeypatch.context() as other:
        code = {"version": VERSION, "sources": "0123456789abcdef"}
        other.setattr("atoll.driver.this_code", lambda: code)
        with pytest.raises(AtollError) as refused:
            run_search(job, out=tmp_path / "run")
    ours = this_code()["sources"][:8]
    assert str(refused.value) == (
        f"out: {tmp_path / 'run'} was begun by atoll {VERSION} (sources {ours}), this is atoll "
        f"{VERSION} (sources 01234567), and what the two compute must not be mixed; give another "
        "folder, or continue with the atoll that began it."
    )
    assert counts(tmp_path / "run") == begun
    assert answer(run_search(job, out=tmp_path / "run")) == first


def test_an_edited_network_file_is_another_job(tmp_path: Path) -> None:
    network = tmp_path / "network.yaml"
    levels = "levels: [{name: all, devices: 64, bandwidth: 100 GB/s, latency: 1 us}]\n"
    network.write_text("name: mine\n" + levels)
    job = some_job(network=str(network))
    run_search(job, out=tmp_path / "run")
    network.write_text("name: mine\n" + levels.replace("100", "50"))
    with pytest.raises(AtollError, match=r"another job \(network_content"):
        run_search(job, out=tmp_path / "run")


@pytest.mark.slow
def test_a_full_disk_ends_the_search_and_the_next_run_continues(tmp_path: Path) -> None:
    job = some_job(tolerance=1e-5)
    whole = undisturbed(job)
    if (child := os.fork()) == 0:
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))
        try:
            run_search(job, out=tmp_path / "run")
        except AtollError as error:
            (tmp_path / "sentence").write_text(str(error))
        os._exit(0)
    os.waitpid(child, 0)
    assert "everything finished so far is kept" in (tmp_path / "sentence").read_text()
    assert counts(tmp_path / "run")[0] > 0
    assert answer(run_search(job, out=tmp_path / "run")) == answer(whole)
