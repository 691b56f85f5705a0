"""Tasks on a Dask cluster: the user's own, or one of this machine for a trial.

Every worker gets the context once. The scheduler itself runs a dead worker's tasks again, on the
others; what it gives up on comes back as a lost worker. A worker with another Atoll would answer
another question: each is asked for its versions and sources before it gets a task, and again with
every task, as workers may join at any time. No question to the cluster waits without a limit, and a
worker that is silent for long (stopped, or cut off) is given up.
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

from atoll.errors import AtollError
from atoll.executors.base import LostWorkerError, Task
from atoll.executors.threads import set_threads
from atoll.identity import code_words, this_code
from atoll.stopping import Asked, StoppedError, never

CONNECT_S = 10.0
COUNT_S = 1.0
ANSWER_S = 60.0
STOPPED_S = 2.0
"""So long an answer is awaited once the search has to end."""
WORKERS_S = 300.0
"""Workers may have to import Atoll first, or to take a large context."""
SILENT_S = 120.0
"""A worker answers its scheduler every second or so, except while it compiles a kernel."""
ALONE_S = 60.0
"""So long a cluster may be without workers: others may be on their way."""
_LOST = ("KilledWorker", "FutureCancelledError", "CancelledError", "TimeoutError")


class DaskCluster:
    """A client of a running scheduler, or of a cluster of local processes of its own."""

    in_process = False

    def __init__(self, address: str, stop: Asked = never) -> None:
        try:
            import distributed
        except ImportError:
            raise AtollError(
                f"cluster: {address!r} needs Dask, which is not installed; "
                "pip install 'atoll[dask]'."
            ) from None
        # It reports every lost task; we report what matters.
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
        """When workers were last counted, and how many there were."""
        self._last_heard: dict[str, tuple[float, float]] = {}
        """By worker: when the scheduler last heard of it by its clock, and by ours."""
        self._fetching: set[Future[Any]] = set()
        """Whose results are on their way from a worker."""
        self._alive = self._tended = time.monotonic()
        """When there was last a worker, and when they were last looked after."""

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
        """As of a moment ago: asking the scheduler takes as long as a short task."""
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
        """What the cluster answers, within a limit."""
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
        """What is answered; where the search has to end, soon or not at all."""
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
        """Give up workers of which the scheduler has not heard for long; their tasks go on."""
        now_s = time.monotonic()
        if now_s - self._tended < COUNT_S:
            return
        self._tended = now_s
        for name, details in self._workers().items():
            last_seen, since_s = self._last_heard.get(name, (None, now_s))
            since_s = since_s if last_seen == details["last_seen"] else now_s
            self._last_heard[name] = details["last_seen"], since_s
            if now_s - since_s > SILENT_S:
                self._give_up(name)

    def _give_up(self, worker: str) -> None:
        arguments = {"address": worker, "stimulus_id": "silent"}
        self._ask(lambda: self._client.scheduler.unregister(**arguments))

    def _ask_workers(self) -> None:
        """Refuse a cluster with a worker whose Atoll is not this one; each is asked once."""
        new = sorted(set(self._workers()) - self._checked_workers)
        if new and (refusal := self._refusal(new)):
            raise AtollError(refusal)
        self._checked_workers.update(new)

    def _refusal(self, workers: list[str]) -> str:
        ours = versions()
        theirs = self._ask(
            self._client.run, versions, workers=workers, on_error="return", within_s=WORKERS_S
        )
        problems = (refusal(name, theirs[name], ours) for name in sorted(theirs))
        return next(filter(None, problems), "")

    def _share(self) -> None:
        self._shared = self._ask(
            self._client.scatter, self._context, broadcast=True, hash=False, within_s=WORKERS_S
        )

    def submit(self, task: Task, *args: Any) -> Future[Any]:
        self._ask_workers()
        if self._shared.status != "finished":  # every worker that held it is gone
            self._share()
        inner = self._client.submit(_run, task, self._shared, args, versions(), pure=False)
        outer: Future[Any] = Future()

        def pass_on(done: Any) -> None:
            # From here on nobody can cancel it any more.
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
        """Where a worker is lost, or cannot run our tasks because its Atoll is another one: so."""
        if type(error).__name__ in _LOST:
            return LostWorkerError(str(error))
        if isinstance(error, AtollError | StoppedError):
            return error
        try:
            problem = self._refusal(sorted(self._workers()))
        except AtollError as lost:
            return lost
        return AtollError(problem) if problem else error

    def consider(self) -> None:
        """Their number is given."""

    def describe(self) -> str:
        return f"Dask cluster {self.address}, {self.workers} workers"

    def close(self) -> None:
        self._shared = None
        deadline = time.monotonic() + 2.0 * ANSWER_S
        while self._fetching and time.monotonic() < deadline:
            time.sleep(0.05)  # their threads would never end without a client
        with suppress(OSError, RuntimeError):  # whatever is gone need not be told
            self._client.close(timeout=CONNECT_S)
        if self._cluster is not None:
            self._cluster.close()


def _check_certificates(distributed: Any) -> None:
    """Without them a client would wait in vain, and say so too late."""
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
    """All that must be the same where results are mixed, as plain data that any version reads."""
    python = {"python": platform.python_version().rpartition(".")[0]}
    return this_code() | python | {"numpy": np.__version__, "numba": numba.__version__}


def refusal(worker: str, installed: object, local: Mapping[str, str]) -> str:
    """Why a worker may not work for the Atoll here; empty if it may.

    `there` is its versions and sources, or the error with which it could not tell them.
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
        f"cluster: worker {worker} runs {theirs}, this search {ours}; install the same {what} on "
        "every worker and start them again."
    )


def _run(task: Task, context: Any, args: tuple[Any, ...], code: Mapping[str, str]) -> Any:
    from distributed import get_worker

    if problem := refusal(get_worker().address, versions(), code):
        raise AtollError(problem)
    set_threads(1)
    return task(context, *args)
