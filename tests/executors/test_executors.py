"""One contract for all executors: pure tasks, a shared context, and workers that may die."""

from __future__ import annotations

import multiprocessing
import os
import signal
import struct
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from atoll.base.errors import AtollError
from atoll.executors import Crew, Executor, InProcess, PieceRunner, TaskCall, choose_executor
from atoll.executors.processes import Growing, LocalProcesses, _pass_on
from atoll.executors.threads import set_threads, threads


def scaled(context: int, value: int) -> int:
    return context * value


def test_searches_side_by_side_have_threads_of_their_own() -> None:
    before = set_threads(3)
    try:
        with ThreadPoolExecutor(1) as other:
            assert other.submit(set_threads, 5).result() is None
            assert other.submit(threads).result() == 5
        assert threads() == 3
    finally:
        set_threads(before)


def threads_here(context: int) -> int:
    return threads()


def fails(context: int) -> None:
    raise AtollError("field: a sentence.")


def dies_once(context: int, mark: Path, value: int) -> int:
    """Kills its process the first time that anybody runs it."""
    if value == 3 and not mark.exists():
        mark.write_text("dead")
        os.kill(os.getpid(), signal.SIGKILL)
    return context * value


def half_sent_once(context: int, mark: Path, value: int) -> int:
    """Kills its process amid the result of the first time that anybody runs it."""

    def send(self: Connection, message: bytes) -> None:
        os.write(self.fileno(), struct.pack("!i", len(message)) + bytes(message)[:5])
        mark.write_text("dead")
        os.kill(os.getpid(), signal.SIGKILL)

    if value == 3 and not mark.exists():
        Connection._send_bytes = send  # type: ignore[attr-defined]
    return context * value


def stops_once(context: int, mark: Path, value: int) -> int:
    """Stops its process the first time that anybody runs it."""
    if value == 3 and not mark.exists():
        mark.write_text("stopped")
        os.kill(os.getpid(), signal.SIGSTOP)
    return context * value


def always_dies(context: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def sleeps(context: int, seconds: float) -> None:
    time.sleep(seconds)


def slow(context: int, value: int) -> int:
    time.sleep(0.01)
    return value


@pytest.fixture(params=["here", "processes", "growing"])
def executor(request: pytest.FixtureRequest) -> Iterator[Executor]:
    chosen: Executor = {
        "here": InProcess, "processes": lambda: LocalProcesses(2), "growing": lambda: Growing(0.0),
    }[request.param]()  # fmt: skip
    chosen.start(10)
    if isinstance(chosen, Growing):
        chosen.consider()
    yield chosen
    chosen.close()


def test_tasks_get_the_context_and_give_their_results(executor: Executor) -> None:
    crew = Crew(executor)
    calls = [TaskCall(scaled, (i,), tag=i) for i in range(20)]
    assert {call.tag: value for call, value in crew.results(calls)} == {
        i: 10 * i for i in range(20)
    }
    assert crew.result(TaskCall(scaled, (7,))) == 70


class Records(dict[str, object]):
    """Notes by their names."""

    note, put_note = dict.get, dict.__setitem__


def test_pieces_are_computed_once_recorded_and_taken_from_the_record(executor: Executor) -> None:
    records = Records({"2": {"value": 22}})
    pieces = PieceRunner(scaled, 10, records, executor)
    pieces.prefetch([(0,), (1,), (2,), (3,)])
    assert [pieces.ask(number) for number in range(4)] == [0, 10, 22, 30]
    assert list(records) == ["2", "0", "1", "3"]
    assert pieces.ask(5, keep=False) == 50
    assert "5" not in records


def test_an_error_of_a_task_arrives_as_it_is(executor: Executor) -> None:
    with pytest.raises(AtollError, match="a sentence"):
        Crew(executor).result(TaskCall(fails, ()))


def test_no_more_calls_are_taken_than_fit(executor: Executor) -> None:
    crew = Crew(executor)
    taken = 0

    def calls() -> Iterator[TaskCall]:
        nonlocal taken
        for i in range(50):
            taken += 1
            yield TaskCall(slow, (i,))

    done = 0
    for _ in crew.results(calls()):
        done += 1
        assert taken - done <= crew.capacity + 1
    assert done == 50


def test_a_crew_that_is_asked_to_stop_leaves_the_rest(executor: Executor) -> None:
    stopped = False
    crew = Crew(executor, stop=lambda: stopped)
    seen = 0
    for _ in crew.results(TaskCall(slow, (i,)) for i in range(1000)):
        seen += 1
        stopped = seen >= 5
    assert 5 <= seen <= 5 + crew.capacity


def test_dropping_calls_under_way_leaves_no_word_behind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A result that comes after its call was dropped is nobody's business, and no error."""
    pool = LocalProcesses(2)
    pool.start(0)
    crew = Crew(pool)
    calls = [crew.send(TaskCall(slow, (i,))) for i in range(20)]
    crew.drop(calls)
    assert crew.result(TaskCall(slow, (7,))) == 7
    pool.close()
    assert not [record for record in caplog.records if record.name == "concurrent.futures"]


@pytest.mark.parametrize("ending", ["result", "error", "lost", "cancelled"])
def test_however_a_dropped_task_ends_its_future_stays_cancelled(ending: str) -> None:
    inner: Future[int] = Future()
    outer: Future[int] = Future()
    assert outer.cancel()
    if ending == "cancelled":
        inner.cancel()
    elif ending == "result":
        inner.set_result(1)
    else:
        inner.set_exception(BrokenProcessPool() if ending == "lost" else ValueError())
    _pass_on(inner, outer)
    assert outer.cancelled()


def test_a_task_that_the_pool_cancelled_wakes_whoever_waits_for_it() -> None:
    inner: Future[int] = Future()
    outer: Future[int] = Future()
    inner.cancel()
    _pass_on(inner, outer)
    assert wait([outer], timeout=0).done == {outer}


def test_workers_use_one_thread_each() -> None:
    pool = LocalProcesses(2)
    pool.start(0)
    assert Crew(pool).result(TaskCall(threads_here, ())) == 1
    pool.close()


def test_the_tasks_of_a_dead_process_run_again(tmp_path: Path) -> None:
    pool = LocalProcesses(2)
    pool.start(10)
    crew = Crew(pool)
    calls = [TaskCall(dies_once, (tmp_path / "mark", i), tag=i) for i in range(30)]
    found = sorted((call.tag, value) for call, value in crew.results(calls))
    assert found == [(i, 10 * i) for i in range(30)]
    assert crew.retried > 0
    pool.close()


def test_the_tasks_of_a_stopped_process_run_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll.executors.processes.PATIENCE", 2)
    pool = LocalProcesses(2)
    pool.start(10)
    crew = Crew(pool)
    calls = [TaskCall(stops_once, (tmp_path / "mark", i), tag=i) for i in range(10)]
    found = sorted((call.tag, value) for call, value in crew.results(calls))
    assert found == [(i, 10 * i) for i in range(10)]
    pool.close()


def test_a_process_that_dies_within_a_result_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll.executors.processes.PATIENCE", 2)
    pool = LocalProcesses(2)
    pool.start(10)
    crew = Crew(pool)
    calls = [TaskCall(half_sent_once, (tmp_path / "mark", i), tag=i) for i in range(10)]
    found = sorted((call.tag, value) for call, value in crew.results(calls))
    assert found == [(i, 10 * i) for i in range(10)]
    pool.close()


def test_closing_does_not_wait_for_the_rest_of_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("atoll.executors.processes.PATIENCE", 2)
    pool = LocalProcesses(2)
    pool.start(10)
    Crew(pool).send(TaskCall(half_sent_once, (tmp_path / "mark", 3)))
    while not (tmp_path / "mark").exists():
        time.sleep(0.01)
    closing = threading.Thread(target=pool.close, daemon=True)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()


def test_closing_does_not_wait_for_a_stopped_process(tmp_path: Path) -> None:
    pool = LocalProcesses(1)
    pool.start(10)
    call = Crew(pool).send(TaskCall(stops_once, (tmp_path / "mark", 3)))
    while not (tmp_path / "mark").exists():
        time.sleep(0.01)
    time.sleep(0.1)
    pool.close()
    assert call.future is not None and call.future.done()


@pytest.mark.parametrize("which", [0, 1])
def test_closing_does_not_wait_for_a_lock_of_a_stopped_process(
    which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of two idle processes holds the lock of the queue of tasks."""
    monkeypatch.setattr("atoll.executors.processes.PATIENCE", 2)
    pool = LocalProcesses(2)
    pool.start(10)
    list(Crew(pool).results([TaskCall(sleeps, (0.1,)) for _ in range(2)]))
    assert pool._pool is not None and pool._pool._processes is not None
    os.kill(list(pool._pool._processes)[which], signal.SIGSTOP)
    closing = threading.Thread(target=pool.close, daemon=True)
    closing.start()
    closing.join(30)
    assert not closing.is_alive()


def test_closing_does_not_wait_for_tasks_that_nobody_wants() -> None:
    pool = LocalProcesses(2)
    pool.start(0)
    calls = [Crew(pool).send(TaskCall(sleeps, (3600.0,))) for _ in range(5)]
    pool.close()
    assert all(call.future is not None and call.future.done() for call in calls)


def test_a_task_that_kills_every_worker_is_given_up_with_a_sentence() -> None:
    pool = LocalProcesses(1)
    pool.start(0)
    with pytest.raises(AtollError, match="died 5 times"):
        Crew(pool).result(TaskCall(always_dies, ()))
    pool.close()


@pytest.mark.parametrize(
    ("workers", "cluster", "words"),
    [(-1, None, "workers"), (2, "local:2", "not both"), (None, "local:no", "local:N"),
     (None, "tcp://127.0.0.1:1", "no Dask scheduler answers")],
)  # fmt: skip
def test_impossible_choices_are_one_sentence(
    workers: int | None, cluster: str | None, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cluster is not None and workers is None:
        pytest.importorskip("distributed")
        monkeypatch.setattr("atoll.executors.dask_cluster.CONNECT_S", 0.5)
    with pytest.raises(AtollError, match=words):
        choose_executor(workers, cluster)


def test_without_dask_the_sentence_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    with pytest.raises(AtollError, match=r"atoll\[dask\]"):
        choose_executor(None, "local:2")


def _executor_words(workers: int | None) -> str:
    try:
        return type(choose_executor(workers, None)).__name__
    except AtollError as error:
        return str(error)


def test_a_process_of_a_pool_starts_no_processes() -> None:
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(_executor_words, (None,)) == "InProcess"
        assert pool.apply(_executor_words, (0,)) == "InProcess"
        assert "give workers=0" in pool.apply(_executor_words, (2,))
