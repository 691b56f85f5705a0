"""Tasks on a Dask cluster: the user's own, or one of this machine for a trial.

Every worker gets the context once. The scheduler itself runs a dead worker's tasks again, on the
others; what it gives up on comes back as a lost worker.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from typing import Any

from atoll.errors import AtollError
from atoll.executors.base import LostWorkerError, Task
from atoll.jit import set_threads

CONNECT_S = 10.0
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
        info = self._client.scheduler_info(n_workers=-1)
        return max(1, sum(int(worker["nthreads"]) for worker in info["workers"].values()))

    def start(self, context: Any) -> None:
        self._context = context
        self._client.wait_for_workers(1, timeout=CONNECT_S)
        self._share()

    def _share(self) -> None:
        self._shared = self._client.scatter(self._context, broadcast=True, hash=False)

    def submit(self, task: Task, *args: Any) -> Future[Any]:
        if self._shared.status != "finished":  # every worker that held it is gone
            self._share()
        inner = self._client.submit(_run, task, self._shared, args, pure=False)
        outer: Future[Any] = Future()

        def pass_on(done: Any) -> None:
            if outer.cancelled():
                return
            try:
                outer.set_result(done.result())
            except Exception as error:
                lost = type(error).__name__ in _LOST
                outer.set_exception(LostWorkerError(str(error)) if lost else error)
            done.release()

        inner.add_done_callback(pass_on)
        return outer

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


def _run(task: Task, context: Any, args: tuple[Any, ...]) -> Any:
    set_threads(1)
    return task(context, *args)
