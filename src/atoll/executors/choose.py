"""Choice of the executor by the user's options."""

from __future__ import annotations

import multiprocessing
import os
import sys

from atoll.base.errors import AtollError
from atoll.base.kernel_cache import compiling
from atoll.base.stopping import StopCheck, never
from atoll.executors.base import Executor, InProcess


def choose_executor(workers: int | None, cluster: str | None, stop: StopCheck = never) -> Executor:
    """Return `workers` local processes (0: this process), or the cluster at an address.

    Without either: this process, and local processes once the work takes long.
    """
    if workers is not None and workers < 0:
        raise AtollError(f"workers: expected 0 (this process) or more, got {workers}.")
    if cluster is not None:
        if workers is not None:
            raise AtollError("workers: give either workers or cluster, not both.")
        from atoll.executors.dask_cluster import DaskCluster

        return DaskCluster(cluster, stop)
    if workers == 0:
        return InProcess()
    if multiprocessing.current_process().daemon:
        if workers:
            raise AtollError(
                f"workers: {workers} processes cannot be started by a process of "
                "multiprocessing.Pool; give workers=0, or use a ProcessPoolExecutor."
            )
        return InProcess()
    from atoll.executors.processes import Growing, LocalProcesses

    return Growing() if workers is None else LocalProcesses(workers)


def spare_executor(executor: Executor) -> Executor:
    """Return one more local process, a copy of this one, next to an executor that may start
    processes; otherwise this process, which runs a task when its result is requested."""
    from atoll.executors.processes import Growing, LocalProcesses

    grows = isinstance(executor, Growing) and (os.cpu_count() or 1) > 1 and not compiling()
    return LocalProcesses(1) if grows and sys.platform == "linux" else InProcess()
