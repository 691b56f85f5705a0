"""Tasks on a Dask cluster: the user's own, or one of this machine for a trial.

Every worker gets the context once. The scheduler itself runs a dead worker's tasks again, on the
others; what it gives up on comes back as a lost worker. A worker with another Atoll would answer
another question: each is asked for its version and sources before it gets a task, and again with
every task, as workers may join at any time.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from atoll.errors import AtollError
from atoll.executors.base import LostWorkerError, Task
from atoll.identity import code_words, this_code
from atoll.jit import set_threads

CONNECT_S = 10.0
COUNT_S = 1.0
_LOST = ("KilledWorker", "FutureCancelledError", "CancelledError")


class DaskCluster:
    """A client of a running scheduler, or of a cluster of local processes of its own."""

    in_process = False

    def __init__(self, address: str) -> None:
        try:
            import distributed
        except ImportError:
            raise AtollError(
                f"cluster: {address!r} needs Dask, which is not installed; "
                "pip install 'atoll[dask]'."
            ) from None
        # It reports every lost task; we report what matters.
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        self.address = address
        self._cluster: Any = None
        self._client: Any = self._connect(distributed)
        self._context: Any = None
        self._shared: Any = None
        self._asked: set[str] = set()
        self._counted = -COUNT_S, 1
        """When workers were last counted, and how many there were."""

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
            return distributed.Client(self.address, timeout=CONNECT_S, set_as_default=False)
        except (OSError, ValueError, TimeoutError) as error:
            raise AtollError(
                f"cluster: no Dask scheduler answers at {self.address!r} "
                f"({str(error).splitlines()[0]}); start one, or use local:N."
            ) from None

    @property
    def workers(self) -> int:
        """As of a moment ago: asking the scheduler takes as long as a short task."""
        if time.monotonic() - self._counted[0] > COUNT_S:
            threads = sum(int(worker["nthreads"]) for worker in self._workers().values())
            self._counted = time.monotonic(), max(1, threads)
        return self._counted[1]

    def _workers(self) -> Mapping[str, Mapping[str, int]]:
        found: Mapping[str, Mapping[str, int]] = self._client.scheduler_info(n_workers=-1)[
            "workers"
        ]
        return found

    def start(self, context: Any) -> None:
        self._context = context
        self._client.wait_for_workers(1, timeout=CONNECT_S)
        self._ask_workers()
        self._share()

    def _ask_workers(self) -> None:
        """Refuse a cluster with a worker whose Atoll is not this one; each is asked once."""
        new = sorted(set(self._workers()) - self._asked)
        if new and (refusal := self._refusal(new)):
            raise AtollError(refusal)
        self._asked.update(new)

    def _refusal(self, workers: list[str]) -> str:
        here = this_code()
        told = self._client.run(this_code, workers=workers, on_error="return")
        return next(filter(None, (refusal(name, told[name], here) for name in sorted(told))), "")

    def _share(self) -> None:
        self._shared = self._client.scatter(self._context, broadcast=True, hash=False)

    def submit(self, task: Task, *args: Any) -> Future[Any]:
        self._ask_workers()
        if self._shared.status != "finished":  # every worker that held it is gone
            self._share()
        inner = self._client.submit(_run, task, self._shared, args, this_code(), pure=False)
        outer: Future[Any] = Future()

        def pass_on(done: Any) -> None:
            # From here on nobody can cancel it any more.
            if outer.set_running_or_notify_cancel():
                try:
                    outer.set_result(done.result())
                except Exception as error:
                    outer.set_exception(self._explained(error))
            done.release()

        inner.add_done_callback(pass_on)
        return outer

    def _explained(self, error: Exception) -> Exception:
        """Where a worker is lost, or cannot run our tasks because its Atoll is another one: so."""
        if type(error).__name__ in _LOST:
            return LostWorkerError(str(error))
        if isinstance(error, AtollError):
            return error
        other = self._refusal(sorted(self._workers()))
        return AtollError(other) if other else error

    def consider(self) -> None:
        """Their number is given."""

    def describe(self) -> str:
        return f"Dask cluster {self.address}, {self.workers} workers"

    def close(self) -> None:
        self._shared = None
        self._client.close()
        if self._cluster is not None:
            self._cluster.close()


def _local_workers(address: str) -> int | None:
    _, _, number = address.partition(":")
    if not number:
        return None
    if not number.isdigit() or int(number) < 1:
        raise AtollError(f"cluster: expected local:N with a positive N, got {address!r}.")
    return int(number)


def refusal(worker: str, there: object, here: Mapping[str, str]) -> str:
    """Why a worker may not work for the Atoll here; empty if it may.

    `there` is its version and sources, or the error with which it could not tell them.
    """
    if there == here or isinstance(there, OSError):  # gone: nothing runs there
        return ""
    theirs = code_words(there) if isinstance(there, Mapping) else "no atoll, or another version"
    return (
        f"cluster: worker {worker} runs {theirs}, this search {code_words(here)}; install the same "
        "atoll on every worker and start them again."
    )


def _run(task: Task, context: Any, args: tuple[Any, ...], code: Mapping[str, str]) -> Any:
    from distributed import get_worker

    if other := refusal(get_worker().address, this_code(), code):
        raise AtollError(other)
    set_threads(1)
    return task(context, *args)
