"""Tasks on a Dask cluster: the user's own, or one of this machine for a trial.

Every worker gets the context once. The scheduler reruns a dead worker's tasks on the others; tasks
that it gives up fail with a lost worker. A worker with another Atoll would compute other results:
versions and sources are checked before a worker's first task and with every task, as workers may
join at any time. Every request has a time limit, and a silent worker is removed.
"""

from __future__ import annotations

import logging
import platform
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from threading import Thread
from typing import Any

import numba
import numpy as np

from atoll.base.errors import AtollError
from atoll.base.identity import code_words, this_code
from atoll.base.stopping import StopCheck, StoppedError, never
from atoll.executors.base import LostWorkerError, Task
from atoll.executors.threads import set_threads

CONNECT_S = 10.0
COUNT_S = 1.0
ANSWER_S = 60.0
STOPPED_S = 2.0  # time limit of a response once the search has to end
WORKERS_S = 300.0  # time limit of requests for which workers import Atoll or receive the context
SILENT_S = 120.0  # silence after which a worker is removed; it is silent while it compiles a kernel
PAUSED, PAUSED_S = -1.0, 5.0
"""Time after which a worker that Dask paused is removed: it would keep its tasks."""
ALONE_S = 60.0  # time that a cluster may be without workers
LOG = logging.getLogger("atoll")
_REFUSED = "cluster: worker "
_LOST = ("KilledWorker", "FutureCancelledError", "CancelledError", "TimeoutError")


class DaskCluster:
    """Client of a running scheduler, or of a new cluster of local processes."""

    in_process = False

    def __init__(self, address: str, stop: StopCheck = never) -> None:
        try:
            import distributed
        except ImportError:
            raise AtollError(
                f"cluster: {address!r} needs Dask, which is not installed; "
                "pip install 'atoll[dask]'."
            ) from None
        # It would log every lost task.
        for part in ("distributed", "distributed.client"):
            logging.getLogger(part).setLevel(logging.CRITICAL)
        self.address = address
        self._stop = stop
        self._cluster: Any = None
        self._client: Any = self._connect(distributed)
        self._context: Any = None
        self._shared: Any = None
        self._checked_workers: set[str] = set()
        self._counted = -COUNT_S, 1
        """Time and result of the last count of worker threads."""
        self._last_heard: dict[str, tuple[float, float]] = {}
        """By worker: time of its last message by the scheduler's clock, or PAUSED, and by ours."""
        self._fetching: set[Future[Any]] = set()
        """Futures whose results are being fetched."""
        self._alive = self._tended = time.monotonic()
        """Time at which there was last a worker, and of the last `tend`."""

    def _connect(self, distributed: Any) -> Any:
        if self.address.partition(":")[0] == "local":
            self._cluster = distributed.LocalCluster(
                n_workers=_local_workers(self.address),
                threads_per_worker=1,
                processes=True,
                dashboard_address=None,
            )
            return distributed.Client(self._cluster, set_as_default=False)
        try:
            if self.address.startswith(("tls:", "wss:")):
                _check_certificates(distributed)
            return distributed.Client(self.address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TypeError, RuntimeError, ImportError) as error:
            why = " ".join(str(error).split())[:200]
            raise AtollError(
                f"cluster: no Dask scheduler answers at {self.address!r} ({why}); start one, or "
                "use local:N."
            ) from None

    @property
    def workers(self) -> int:
        """Number of worker threads, cached: a request takes as long as a short task."""
        if time.monotonic() - self._counted[0] > COUNT_S:
            threads = sum(int(worker["nthreads"]) for worker in self._workers().values())
            self._counted = time.monotonic(), max(1, threads)
        return self._counted[1]

    def _workers(self) -> Mapping[str, Mapping[str, Any]]:
        workers = self._ask(lambda: self._client.scheduler.identity(n_workers=-1))["workers"]
        if workers:
            self._alive = time.monotonic()
        elif time.monotonic() - self._alive > ALONE_S:
            raise AtollError(
                f"cluster: the scheduler at {self.address} has no workers; start some. With --out "
                "the same command then continues."
            )
        return dict(workers)

    def _ask(self, question: Any, *args: Any, within_s: float = ANSWER_S, **more: Any) -> Any:
        """Return the response of the cluster within a time limit."""
        try:
            if self._client.status == "closed":
                raise OSError
            ask = partial(self._client.sync, question, *args, callback_timeout=within_s, **more)
            return self._unless_stopped(ask)
        except (OSError, TimeoutError, RuntimeError):
            raise AtollError(
                f"cluster: the scheduler at {self.address}, or a worker through it, no longer "
                "answers; start it again. With --out the same command then continues, with or "
                "without the cluster."
            ) from None

    def _unless_stopped(self, ask: Callable[[], Any]) -> Any:
        """Return the response; raise StoppedError if the search has to end before it arrives."""
        answer: Future[Any] = Future()

        def run() -> None:
            try:
                answer.set_result(ask())
            except BaseException as error:
                answer.set_exception(error)

        Thread(target=run, daemon=True).start()
        while not wait([answer], timeout=STOPPED_S).done:
            if self._stop() and not wait([answer], timeout=STOPPED_S).done:
                raise StoppedError
        return answer.result()

    def start(self, context: Any) -> None:
        self._context = context
        while not self._workers():
            time.sleep(COUNT_S)
        self._ask_workers()
        self._share()

    def tend(self) -> None:
        """Remove workers that have been silent or paused for long; their tasks run again."""
        now_s = time.monotonic()
        if now_s - self._tended < COUNT_S:
            return
        self._tended = now_s
        for name, details in self._workers().items():
            paused = details.get("status") == "paused"
            state = PAUSED if paused else details["last_seen"]
            last_state, since_s = self._last_heard.get(name, (None, now_s))
            since_s = since_s if last_state == state else now_s
            self._last_heard[name] = state, since_s
            if now_s - since_s > (PAUSED_S if paused else SILENT_S):
                why = "paused by Dask, as its memory limit is near" if paused else "silent"
                self._give_up(name, f"{_REFUSED}{name} is {why}; its tasks go to others.")

    def _give_up(self, worker: str, sentence: str) -> None:
        LOG.warning(sentence)
        arguments = {"address": worker, "stimulus_id": "given up"}
        self._ask(lambda: self._client.scheduler.unregister(**arguments))

    def _ask_workers(self) -> None:
        """Refuse a cluster with a worker of another Atoll; leave out one that joins later."""
        workers = set(self._workers())
        new = sorted(workers - self._checked_workers)
        refusals = self._refusals(new) if new else {}
        if refusals and (not self._checked_workers or workers == refusals.keys()):
            raise AtollError(next(iter(refusals.values())))
        self._leave_out(refusals)
        self._checked_workers.update(new)

    def _leave_out(self, refusals: Mapping[str, str]) -> None:
        for name, sentence in refusals.items():
            self._give_up(name, f"{sentence} It is left out.")

    def _refusals(self, workers: list[str]) -> dict[str, str]:
        """Return by worker why it may not run tasks; empty where all of them may."""
        ours = versions()
        theirs = self._ask(
            self._client.run, versions, workers=workers, on_error="return", within_s=WORKERS_S
        )
        sentences = {name: refusal(name, theirs[name], ours) for name in sorted(theirs)}
        return {name: sentence for name, sentence in sentences.items() if sentence}

    def _share(self) -> None:
        workers = self._workers()
        running = [name for name, details in workers.items() if details.get("status") != "paused"]
        self._shared = self._ask(
            self._client.scatter, self._context, workers=running or None, broadcast=True,
            hash=False, within_s=WORKERS_S,
        )  # fmt: skip

    def submit(self, task: Task, *args: Any) -> Future[Any]:
        self._ask_workers()
        if self._shared.status != "finished":  # every worker that held it is gone
            self._share()
        inner = self._client.submit(_run, task, self._shared, args, versions(), pure=False)
        outer: Future[Any] = Future()

        def pass_on(done: Any) -> None:
            # It cannot be cancelled from here on.
            if outer.set_running_or_notify_cancel():
                self._fetching.add(outer)
                try:
                    outer.set_result(self._unless_stopped(partial(done.result, ANSWER_S)))
                except Exception as error:
                    outer.set_exception(self._explained(error))
                self._fetching.discard(outer)
            done.release()

        inner.add_done_callback(pass_on)
        return outer

    def _explained(self, error: Exception) -> Exception:
        """Convert an error: lost worker, or a worker with another Atoll, which is left out."""
        if type(error).__name__ in _LOST or str(error).startswith(_REFUSED):
            return LostWorkerError(str(error))
        if isinstance(error, AtollError | StoppedError):
            return error
        try:
            refusals = self._refusals(sorted(self._workers()))
            self._leave_out(refusals)
        except AtollError as lost:
            return lost
        return LostWorkerError(str(error)) if refusals else error

    def consider(self) -> None:
        """The number of workers is fixed."""

    def describe(self) -> str:
        return f"Dask cluster {self.address}, {self.workers} workers"

    def close(self) -> None:
        self._shared = None
        deadline = time.monotonic() + 2.0 * ANSWER_S
        while self._fetching and time.monotonic() < deadline:
            time.sleep(0.05)  # their threads need the client to end
        with suppress(OSError, RuntimeError):  # the cluster may be gone
            self._client.close(timeout=CONNECT_S)
        if self._cluster is not None:
            self._cluster.close()


def _check_certificates(distributed: Any) -> None:
    """Fail early: without certificates a client would wait until its timeout."""
    if distributed.Security().get_connection_args("client")["ssl_context"] is None:
        raise ValueError("TLS without certificates: distributed.comm.tls in Dask's configuration")


def _local_workers(address: str) -> int | None:
    _, _, number = address.partition(":")
    if not number:
        return None
    if not number.isdigit() or int(number) < 1:
        raise AtollError(f"cluster: expected local:N with a positive N, got {address!r}.")
    return int(number)


def versions() -> dict[str, str]:
    """Return the versions that must agree between driver and workers, as plain data."""
    python = {"python": platform.python_version().rpartition(".")[0]}
    return this_code() | python | {"numpy": np.__version__, "numba": numba.__version__}


def refusal(worker: str, installed: object, local: Mapping[str, str]) -> str:
    """Return why a worker may not run tasks of the local Atoll; empty if it may.

    `installed`: versions and sources of the worker, or the error of that request.
    """
    if installed == local or isinstance(installed, OSError):  # gone: nothing runs there
        return ""
    theirs, ours, what = "no atoll, or another version", code_words(local), "atoll"
    if isinstance(installed, Mapping):
        theirs = code_words(installed)
        if theirs == ours:
            what = next(name for name in local if installed.get(name) != local[name])
            theirs, ours = f"{what} {installed.get(what)}", f"{what} {local[what]}"
    return (
        f"{_REFUSED}{worker} runs {theirs}, this search {ours}; install the same {what} on "
        "every worker and start them again."
    )


def _run(task: Task, context: Any, args: tuple[Any, ...], code: Mapping[str, str]) -> Any:
    from distributed import get_worker

    if problem := refusal(get_worker().address, versions(), code):
        raise AtollError(problem)
    set_threads(1)
    return task(context, *args)
