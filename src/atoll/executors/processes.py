"""Tasks in processes of this machine, one thread each.

With fork a worker starts as a copy of this process, with loaded kernels and the context. Otherwise
workers start empty and receive the context. A dying worker breaks the standard pool: a new pool is
made, and the tasks in flight are submitted again.

`Growing` runs tasks in this process first: most searches end before processes pay off, as kernels
use all cores in one process too. Results are the same.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from typing import Any

from atoll.base.kernel_cache import compiling
from atoll.executors.base import Executor, InProcess, LostWorkerError, Task
from atoll.executors.threads import set_threads

_POLL_S = 0.1
PATIENCE = 25  # checks, 0.2 s apart, of a stopped or dead process before it is killed
_context: Any = None
_working = False  # whether this process is a worker that is running a task
_changing = threading.Lock()


class LocalProcesses:
    """A pool of local processes."""

    in_process = False

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None
        self._context: Any = None
        self._closing: Any = None
        self._stopped: Counter[int] = Counter()
        """By process: consecutive checks that saw it stopped, or dead but unnoticed."""

    def start(self, context: Any) -> None:
        self._context = context
        self._pool = self._new_pool()

    def submit(self, task: Task, *args: Any) -> Future[Any]:
        assert self._pool is not None, "start() comes first"
        try:
            return self._begin(task, args)
        except BrokenProcessPool:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = self._new_pool()
            return self._begin(task, args)

    def consider(self) -> None:
        """The number of workers is fixed."""

    def tend(self) -> None:
        """Kill stopped processes (SIGSTOP): their tasks run again in others.

        Ctrl-Z stops and continues all processes of a terminal together, so one check is not enough.
        A dead process that the pool has not noticed died while sending a result, of which the pool
        awaits the remainder.
        """
        if self._pool is None:
            return
        processes = dict(self._pool._processes or {})
        dead = [pid for pid, process in processes.items() if process.exitcode is not None]
        stopped = _stopped(pid for pid in processes if pid not in dead)
        self._stopped = Counter({pid: self._stopped[pid] + 1 for pid in (*dead, *stopped)})
        for pid, looks in self._stopped.items():
            if looks > PATIENCE and pid in dead:
                _let_go(processes.values(), self._pool._result_queue)
            elif looks > PATIENCE:
                os.kill(pid, signal.SIGKILL)

    def describe(self) -> str:
        return f"{self.workers} local process{'es' if self.workers > 1 else ''}"

    def close(self) -> None:
        if self._pool is not None:
            self._closing.value = 1
            waits: Any = self._pool._executor_manager_thread
            results: Any = self._pool._result_queue
            processes = list((self._pool._processes or {}).values())
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
            looks = 0
            while waits is not None and waits.is_alive():
                stopped = _stopped(process.pid for process in processes if process.pid)
                # A stopped process does not end by itself; others may wait for its lock, and the
                # pool for the remainder of its result.
                for process in processes:
                    if process.pid in stopped:
                        process.kill()
                if looks > PATIENCE:
                    _let_go(processes, results)
                waits.join(_POLL_S)
                looks += 1

    def _begin(self, task: Task, args: tuple[Any, ...]) -> Future[Any]:
        assert self._pool is not None
        with warnings.catch_warnings():
            # The threads that Python 3.12 warns of, a spinner's and the pool's own, hold no lock
            # that a worker takes.
            warnings.simplefilter("ignore", DeprecationWarning)
            inner = self._pool.submit(_run, task, args)
        outer: Future[Any] = Future()
        inner.add_done_callback(lambda done: _pass_on(done, outer))
        return outer

    def _new_pool(self) -> ProcessPoolExecutor:
        global _context
        forks = sys.platform == "linux"
        _context = self._context if forks else None
        method = multiprocessing.get_context("fork" if forks else "spawn")
        # Shared memory without a lock, which a dead worker might hold.
        self._closing = multiprocessing.RawValue("b", 0)
        return ProcessPoolExecutor(
            self.workers,
            mp_context=method,
            initializer=_begin_worker,
            initargs=(os.getpid(), self._closing, None if forks else self._context),
        )


def _let_go(processes: Iterable[Any], results: Any) -> None:
    """Kill all processes of a pool and close its result queue, which breaks the pool."""
    for process in processes:
        process.kill()
    results._writer.close()  # the last open writer


def _stopped(pids: Iterable[int] | None) -> list[int]:
    """Return the pids of child processes that a signal stopped; empty without os.waitid."""
    if not hasattr(os, "waitid"):
        return []
    stopped_pids = []
    for pid in list(pids or ()):
        with suppress(ChildProcessError):
            options = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
            if os.waitid(os.P_PID, pid, options) is not None:
                stopped_pids.append(pid)
    return stopped_pids


def _pass_on(done: Future[Any], outer: Future[Any]) -> None:
    if done.cancelled():
        outer.cancel()
    # A dropped call needs no result; after this check it cannot be dropped.
    if not outer.set_running_or_notify_cancel():
        return
    error = done.exception()
    if isinstance(error, BrokenProcessPool):
        outer.set_exception(LostWorkerError("a local process died"))
    elif error is not None:
        outer.set_exception(error)
    else:
        outer.set_result(done.result())


def _begin_worker(driver: int, closing: Any, context: Any) -> None:
    global _context
    if context is not None:
        _context = context
    set_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C and stops its workers
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_leave_with, args=(driver, closing), daemon=True).start()


def _leave_with(driver: int, closing: Any) -> None:
    """Exit the worker when its driver is gone, or closes while a task is running.

    A worker that is sending a result must not exit: the driver would wait for the remainder.
    """
    while os.getppid() == driver:
        if closing.value:
            with _changing:
                if _working:
                    os._exit(1)
        time.sleep(_POLL_S)
    os._exit(1)


def _run(task: Task, args: tuple[Any, ...]) -> Any:
    global _working
    with _changing:
        _working = True
    try:
        return task(_context, *args)
    finally:
        with _changing:
            _working = False


GROW_AFTER_S = 5.0


class Growing:
    """Starts in this process; `consider` moves to one process per core."""

    def __init__(self, grow_after_s: float = GROW_AFTER_S) -> None:
        self._inner: Executor = InProcess()
        self._context: Any = None
        self._grow_after_s = grow_after_s
        self._began = time.monotonic()

    @property
    def workers(self) -> int:
        return self._inner.workers

    @property
    def in_process(self) -> bool:
        return self._inner.in_process

    def start(self, context: Any) -> None:
        self._context = context
        self._began = time.monotonic()
        self._inner.start(context)

    def consider(self) -> None:
        """Grow if the work has taken long and no future is outstanding."""
        cores = os.cpu_count() or 1
        long = time.monotonic() - self._began > self._grow_after_s
        # During compilation of kernels every process would compile its own.
        if long and self._inner.in_process and cores > 1 and not compiling():
            self._inner = LocalProcesses(cores)
            self._inner.start(self._context)

    def submit(self, task: Task, *args: Any) -> Future[Any]:
        return self._inner.submit(task, *args)

    def tend(self) -> None:
        self._inner.tend()

    def describe(self) -> str:
        return self._inner.describe()

    def close(self) -> None:
        self._inner.close()
