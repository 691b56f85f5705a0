"""Runs tasks in this process first, and in local processes once the work takes long.

Most searches end before processes pay off: kernels use all cores in one process too. Results are
the same.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import Future
from typing import Any

from atoll.base.kernel_cache import compiling
from atoll.executors.base import Executor, InProcess, Task
from atoll.executors.processes import LocalProcesses

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
