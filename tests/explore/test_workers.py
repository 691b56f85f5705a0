"""The answer does not depend on who computed it: this process, local ones, or a Dask cluster."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from some_job import answer, some_job, undisturbed
from tiny import random_space, tiny_config, tiny_setting, tiny_variants

from atoll.base.arrays import Floats, Ints
from atoll.base.stopping import Stop
from atoll.executors import Crew, choose_executor
from atoll.explore.pareto import TOLERANCE, Front, fronts
from atoll.explore.pricing.workloads import Workload, make_variants
from atoll.explore.proof.branch_and_bound import Search, SearchOutcome
from atoll.explore.proof.exact import exact_search
from atoll.explore.proof.journal import Journal
from atoll.explore.proof.objective import AIMS, Objective
from atoll.explore.run import run_search
from atoll.profile import Profile
from atoll.profiles import DEFAULT, PHAZE
from atoll.store import RunReader

BATCH = 16


class After(Stop):
    """Ends the search when it has asked so often."""

    def __init__(self, questions: int) -> None:
        super().__init__()
        self.left = questions

    def __call__(self) -> bool:
        self.left -= 1
        return self.left < 0


def state(outcome: SearchOutcome) -> tuple[object, ...]:
    """Everything that the search has proven and found, to the last bit."""
    frontier = outcome.frontier
    plans = [
        (chip, model, plan.step_time_s, plan.variant, plan.energy.total_J, plan.pass_s.tobytes())
        for chip, found in sorted(frontier.plans.items())
        for model, plan in sorted(found.items())
    ]
    proof = (outcome.best, outcome.score, outcome.bound, outcome.tightened)
    return (*proof, frontier.lower_s.tobytes(), frontier.stage.tobytes(), plans)


class Bounds(Journal):
    """Bounds of part of each batch, as a kill leaves them; evaluations are lost."""

    def __init__(self, share: float = 1.0) -> None:
        self.share, self.rows = share, dict[int, dict[int, Floats]]()

    def bounds(self, batch: int) -> Mapping[int, Floats]:
        recorded = self.rows.get(batch, {})
        return dict(list(recorded.items())[: int(self.share * len(recorded))])

    def put_bounds(self, batch: int, chips: Ints, rows: Floats, scores: Floats) -> None:
        self.rows.setdefault(batch, {}).update(zip(chips.tolist(), rows.copy(), strict=True))


def run(
    seed: int, workers: int, profile: Profile = DEFAULT, journal: Journal | None = None
) -> tuple[object, ...]:
    executor = choose_executor(workers, None)
    search = Search(
        random_space(seed, 300),
        tiny_variants(profile, 4, layers=2),
        tiny_setting(profile, 4),
        Objective.single(BATCH),
        1e-5,
        crew=Crew(executor),
        journal=journal,
    )
    try:
        return state(exact_search(search))
    finally:
        executor.close()


@pytest.mark.parametrize("seed", range(3))
def test_any_number_of_processes_proves_and_finds_the_same(seed: int) -> None:
    alone = run(seed, 0)
    assert run(seed, 1) == alone
    assert run(seed, 3) == alone


@pytest.mark.parametrize("share", [0.3, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_chips_that_are_sent_ahead_may_have_their_bounds_on_record(seed: int, share: float) -> None:
    journal = Bounds()
    whole = run(seed, 0, journal=journal)
    journal.share = share
    assert run(seed, 2, journal=journal) == whole
    assert run(seed, 0, journal=journal) == whole


def test_the_same_under_the_seeds_assumptions() -> None:
    assert run(5, 2, PHAZE) == run(5, 0, PHAZE)


def test_the_same_with_several_models_and_every_chip_for_its_own_sake() -> None:
    workloads = [
        Workload("a", tiny_config(2, 256, 4), 128, BATCH),
        Workload("b", tiny_config(2, 128, 4), 256, BATCH),
    ]
    variants = make_variants(workloads, (1, 2), (1, 2), 4, "optimal", DEFAULT)
    objective = Objective(AIMS["worst"], (BATCH, BATCH), (1.0, 1.0), (1000.0, 2000.0))
    found = []
    for workers in (0, 2):
        executor = choose_executor(workers, None)
        setting = tiny_setting(DEFAULT, 4)
        search = Search(
            random_space(4, 80), variants, setting, objective, 1e-3, crew=Crew(executor)
        )
        outcome = exact_search(search)
        scores = search.evaluate_all(np.arange(80))
        executor.close()
        found.append((state(outcome), scores.tolist()))
    assert found[0] == found[1]


@pytest.mark.slow
def test_a_whole_job_gives_the_same_answer_on_two_processes() -> None:
    job = some_job(pareto=True)
    assert answer(run_search(job, workers=2)) == answer(undisturbed(job))


@pytest.mark.slow
def test_a_time_limit_gives_the_best_so_far_with_its_gap(tmp_path: Path) -> None:
    job = some_job()
    whole = undisturbed(job)
    part = run_search(job, out=tmp_path / "run", stop=After(40))
    assert part.stopped == "time limit"
    assert part.certificate.gap > 0.0
    bound = part.score / (1.0 - part.certificate.gap)
    assert part.score / (1 + job.tolerance) <= whole.score <= bound * (1 + 1e-12)
    assert answer(run_search(job, out=tmp_path / "run")) == answer(whole)


class InFront(Stop):
    """Ctrl-C, so many questions after the front was begun."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 0

    def __call__(self) -> bool:
        self.left -= 1
        if self.left == 0:
            self.signal = signal.SIGINT
        return super().__call__()


@pytest.mark.slow
def test_ctrl_c_in_the_front_keeps_the_answer_and_leaves_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = some_job(pareto=True)
    whole = undisturbed(job)
    stop = InFront()

    def begun(search: Search) -> tuple[dict[str, Front], str]:
        stop.left = 3  # calls are under way then
        return fronts(search)

    with monkeypatch.context() as change:
        change.setattr("atoll.explore.run.fronts", begun)
        part = run_search(job, out=tmp_path / "run", workers=2, stop=stop)
    assert (part.stopped, part.front_stopped) == ("", "interrupted"), "the proof was complete"
    assert all((front.proven_within or 1.0) > TOLERANCE for front in part.pareto.values())
    assert (part.score, part.certificate.gap) == (whole.score, whole.certificate.gap)
    assert not [record for record in caplog.records if record.name == "concurrent.futures"]
    assert answer(run_search(job, out=tmp_path / "run")) == answer(whole)


@pytest.mark.slow
def test_a_dask_worker_that_is_killed_changes_nothing(tmp_path: Path) -> None:
    """Two worker processes; one is killed in the middle of the search."""
    distributed = pytest.importorskip("distributed")
    job = some_job(tolerance=1e-5)
    serial = run_search(job, workers=0, out=tmp_path / "serial")
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        killed = threading.Event()
        workers = [worker.pid for worker in cluster.workers.values()]

        def kill_one() -> None:
            """As soon as the first results are on record."""
            while not killed.is_set():
                time.sleep(0.01)
                try:
                    with RunReader(tmp_path / "cluster") as reader:
                        begun = reader.status().bounded > 0
                except Exception:
                    continue
                if begun:
                    os.kill(workers[0], signal.SIGKILL)
                    killed.set()

        watcher = threading.Thread(target=kill_one)
        watcher.start()
        spread = run_search(job, cluster=cluster.scheduler_address, out=tmp_path / "cluster")
        assert killed.is_set(), "the search was over before the worker was killed"
        watcher.join()
    assert answer(spread) == answer(serial)
    with RunReader(tmp_path / "serial") as one, RunReader(tmp_path / "cluster") as other:
        assert one.status().evaluated == other.status().evaluated
        assert one.status().bounded == other.status().bounded
        columns = ("chip", "score", "power_W")
        rows = [
            [tuple(row[name] for name in columns) for row in reader.designs(limit=10**6)]
            for reader in (one, other)
        ]
        assert rows[0] == rows[1]
