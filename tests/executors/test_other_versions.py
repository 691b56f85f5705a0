"""A Dask worker with another Atoll is refused by name before it gets a task."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import atoll
from atoll.base.errors import AtollError
from atoll.base.identity import VERSION, code_words
from atoll.executors import LostWorkerError
from atoll.executors.dask_cluster import DaskCluster, _run, refusal, versions

distributed = pytest.importorskip("distributed")

HERE = versions()
OTHER = HERE | {"version": "0.0.9", "sources": "0123456789abcdef"}
WORKER = "tcp://10.0.0.3:4000"


def scaled(context: int, value: int) -> int:
    return context * value


def test_the_sentence_names_the_worker_and_both_versions() -> None:
    assert refusal(WORKER, OTHER, HERE) == (
        f"cluster: worker {WORKER} runs atoll 0.0.9 (sources 01234567), this search "
        f"{code_words(HERE)}; install the same atoll on every worker and start them again."
    )
    assert "no atoll, or another version" in refusal(WORKER, ModuleNotFoundError("atoll"), HERE)
    assert refusal(WORKER, dict(HERE), HERE) == ""
    assert refusal(WORKER, OSError("closed"), HERE) == "", "a worker that has gone does no harm"


def test_the_same_version_with_other_sources_is_another_atoll() -> None:
    assert refusal(WORKER, HERE | {"sources": "0" * 16}, HERE)


def test_the_same_atoll_on_another_numpy_is_refused_by_that_name() -> None:
    assert refusal(WORKER, HERE | {"numpy": "1.0"}, HERE) == (
        f"cluster: worker {WORKER} runs numpy 1.0, this search numpy {HERE['numpy']}; install the "
        "same numpy on every worker and start them again."
    )


def test_a_task_asks_again_for_workers_that_have_just_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(distributed, "get_worker", lambda: SimpleNamespace(address=WORKER))
    assert _run(scaled, 10, (7,), HERE) == 70
    with pytest.raises(AtollError, match=f"worker {WORKER} runs .* this search atoll 0.0.9"):
        _run(scaled, 10, (7,), OTHER)


class FakeClient:
    """Workers that say what they are; counts how often they were asked, and given up."""

    status = "running"

    def __init__(self) -> None:
        self.told: dict[str, object] = {"tcp://a": HERE}
        self.heard: dict[str, float] = {}
        self.states: dict[str, str] = {}
        self.asked: list[str] = []
        self.scheduler = SimpleNamespace(identity=self.identity, unregister=self.unregister)

    def sync(self, question: Any, *args: Any, callback_timeout: float, **more: Any) -> Any:
        return question(*args, **more)

    def identity(self, **_: Any) -> dict[str, Any]:
        return {
            "workers": {
                name: {"last_seen": self.heard.get(name, 0.0), "status": self.states.get(name, "")}
                for name in self.told
            }
        }

    def unregister(self, address: str, stimulus_id: str) -> None:
        del self.told[address]

    def run(self, function: Any, workers: list[str], on_error: str) -> dict[str, object]:
        assert function is versions
        self.asked += workers
        return {name: self.told[name] for name in workers}


def fake_cluster(client: FakeClient) -> DaskCluster:
    cluster = object.__new__(DaskCluster)
    cluster._client, cluster._checked_workers, cluster._last_heard = client, set(), {}
    cluster.address, cluster._alive, cluster._tended = "tcp://s", time.monotonic(), 0.0
    return cluster


def test_each_worker_is_asked_once_and_those_that_join_later_are_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    client = FakeClient()
    cluster = fake_cluster(client)
    for _ in range(3):
        cluster._ask_workers()
    assert client.asked == ["tcp://a"]
    client.told["tcp://b"] = HERE
    cluster._ask_workers()
    client.told["tcp://c"] = OTHER
    cluster._ask_workers()
    assert list(client.told) == ["tcp://a", "tcp://b"]
    sentence = r"worker tcp://c runs atoll 0\.0\.9 .* start them again\. It is left out\."
    assert re.search(sentence, caplog.text)
    client.told = {"tcp://d": OTHER}
    with pytest.raises(AtollError, match="worker tcp://d runs"):  # no other is there
        cluster._ask_workers()


def test_a_worker_that_cannot_even_read_a_task_is_told_apart_from_a_mistake_of_ours() -> None:
    client = FakeClient()
    cluster = fake_cluster(client)
    mistake = TypeError("_run() takes 3 positional arguments but 4 were given")
    assert cluster._explained(mistake) is mistake
    client.told["tcp://b"] = ImportError("no atoll.base.identity")
    assert isinstance(cluster._explained(mistake), LostWorkerError)
    assert list(client.told) == ["tcp://a"]
    assert isinstance(cluster._explained(AtollError(refusal(WORKER, OTHER, HERE))), LostWorkerError)


def test_a_worker_that_is_silent_for_long_is_given_up_and_the_last_one_ends_the_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = FakeClient()
    client.told["tcp://b"] = HERE
    cluster = fake_cluster(client)
    clock = cluster._alive
    monkeypatch.setattr("atoll.executors.dask_cluster.time.monotonic", lambda: clock)
    for _ in range(200):
        clock += 1.0
        client.heard["tcp://b"] = clock
        cluster.tend()
    assert list(client.told) == ["tcp://b"]
    with pytest.raises(AtollError, match="has no workers; start some"):
        for _ in range(300):
            clock += 1.0
            cluster.tend()


def test_a_worker_that_dask_paused_is_given_up_unless_it_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    client = FakeClient()
    client.told |= {"tcp://b": HERE, "tcp://c": HERE}
    cluster = fake_cluster(client)
    clock = cluster._alive
    monkeypatch.setattr("atoll.executors.dask_cluster.time.monotonic", lambda: clock)
    for second in range(20):
        clock += 1.0
        client.heard = dict.fromkeys(client.told, clock)  # paused workers are not silent
        client.states = {"tcp://b": "paused", "tcp://c": "paused" if second % 4 else "running"}
        cluster.tend()
    assert list(client.told) == ["tcp://a", "tcp://c"]
    assert "worker tcp://b is paused by Dask" in caplog.text


@pytest.mark.parametrize("trouble", [OSError("gone"), TimeoutError(), RuntimeError("loop closed")])
def test_a_scheduler_that_does_not_answer_is_a_sentence(trouble: Exception) -> None:
    client = FakeClient()

    def silent(**_: Any) -> None:
        raise trouble

    client.scheduler = SimpleNamespace(identity=silent)
    with pytest.raises(AtollError, match=r"no longer answers.*continues"):
        fake_cluster(client).submit(scaled, 7)


@contextmanager
def other_worker(scheduler: str, folder: Path) -> Iterator[None]:
    """A worker of the same version, one line of whose sources was edited."""
    copy = folder / "src" / "atoll"
    source = Path(atoll.__file__).parent
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
    with (copy / "placement" / "chain.py").open("a", encoding="utf-8") as file:
        file.write("# edited\n")
    command = [
        sys.executable, "-m", "distributed.cli.dask_worker", scheduler, "--no-nanny",
        "--nthreads", "1", "--no-dashboard", "--local-directory", str(folder),
    ]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(folder / "src")}
    with subprocess.Popen(
        command, env=environment, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as worker:
        try:
            yield
        finally:
            worker.kill()


@pytest.mark.slow
def test_a_worker_with_an_edited_source_is_refused_on_a_real_cluster(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        address = cluster.scheduler_address
        executor = DaskCluster(address)
        executor.start(10)
        assert executor.submit(scaled, 7).result(60) == 70
        with other_worker(address, tmp_path):
            executor._client.wait_for_workers(2, timeout=300)
            assert executor.submit(scaled, 8).result(60) == 80
            sentence = rf"runs atoll {VERSION} \(sources .* this search .* It is left out\."
            assert re.search(sentence, caplog.text)
        with other_worker(address, tmp_path / "again"):
            executor._client.wait_for_workers(2, timeout=300)
            late = DaskCluster(address)
            with pytest.raises(AtollError, match="install the same atoll on every worker"):
                late.start(10)
            late.close()
        executor.close()
