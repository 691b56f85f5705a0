"""Number of threads of kernels, and distribution of ranges over them.

Separate from `jit`, so that importing it does not import numba.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

_threads: ContextVar[int | None] = ContextVar("threads", default=None)
START_S = 2e-3  # seconds of work below which threads take longer to start than they save


def set_threads(count: int | None) -> int | None:
    """Set the threads of kernels called from this thread (None: one per core); return the old one.

    Concurrent searches in one process have separate values.
    """
    before = _threads.get()
    _threads.set(count)
    return before


def threads() -> int:
    """Return the number of threads of kernels called from this thread."""
    return _threads.get() or os.cpu_count() or 1


def over_ranges(run: Callable[[int, int], Any], count: int, pieces_per_core: int = 8) -> None:
    """Call `run(start, stop)` on pieces of 0..count, on as many threads as `threads()` says.

    The first piece runs alone, so that a kernel that is not yet compiled is compiled once; if it
    is short, the others run on this thread too.
    """
    if count == 0:
        return
    cores = threads()
    step = max(1, -(-count // (cores * pieces_per_core)))
    starts = list(range(0, count, step))
    if cores == 1:
        run(0, count)
        return
    began = time.perf_counter()
    run(0, min(step, count))
    if (time.perf_counter() - began) * (len(starts) - 1) < START_S:
        if len(starts) > 1:
            run(step, count)
        return
    pieces = iter(starts[1:])  # which all threads take from, this one too

    def work() -> None:
        for start in pieces:
            run(start, min(start + step, count))

    with ThreadPoolExecutor(cores) as pool:
        others = [pool.submit(work) for _ in range(min(cores, len(starts) - 1) - 1)]
        work()
        for other in others:
            other.result()
