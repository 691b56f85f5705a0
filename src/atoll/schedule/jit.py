"""How this package compiles its kernels: typed, cached on disk, and quick to compile.

Two habits of the kernels serve the last point: arrays of a named tuple get local names, and counters
that are handed on start as np.int64(0), since numba compiles a callee anew for a literal 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from numba import njit

F = TypeVar("F", bound=Callable[..., Any])


def entry(function: F) -> F:
    """Compile a function that Python calls."""
    return cast(F, njit(cache=True, error_model="numpy")(function))


def kernel(function: F) -> F:
    """Compile a function that only other kernels call: without wrappers it compiles faster."""
    flags: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast(F, njit(cache=True, error_model="numpy", **flags)(function))
