"""How kernels are compiled and run: cached on disk, quick to compile, on all cores.

Kernels that work on ranges release the interpreter's lock, so that plain threads run them side by
side; numba's own parallel loops take several times as long to compile.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def entry(function: F) -> F:
    """Compile a function that Python calls."""
    return cast(F, njit(cache=True, nogil=True, error_model="numpy")(function))


def kernel(function: F) -> F:
    """Compile a function that only other kernels call: without wrappers it compiles faster."""
    flags: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast(F, njit(cache=True, error_model="numpy", **flags)(function))


def over_ranges(run: Callable[[int, int], Any], count: int, pieces_per_core: int = 8) -> None:
    """Call `run(start, stop)` on pieces of 0..count, on all cores.

    The first piece runs alone, so that a kernel that is not yet compiled is compiled once.
    """
    if count == 0:
        return
    cores = os.cpu_count() or 1
    step = max(1, -(-count // (cores * pieces_per_core)))
    starts = list(range(0, count, step))
    run(0, min(step, count))
    if len(starts) == 1:
        return
    with ThreadPoolExecutor(cores) as pool:
        for done in [pool.submit(run, a, min(a + step, count)) for a in starts[1:]]:
            done.result()
