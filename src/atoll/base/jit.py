"""Compilation of kernels by numba, cached on disk.

Kernels over ranges release the interpreter's lock, so that plain threads run them concurrently;
numba's parallel loops take several times as long to compile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from atoll.base.kernel_cache import use_kernel_cache

use_kernel_cache()

from numba import njit, types  # noqa: E402  (it reads its environment then)
from numba.core import cgutils, config, event  # noqa: E402
from numba.extending import intrinsic  # noqa: E402
from numba.np.numpy_support import carray  # noqa: E402

config.reload_config()  # numba may have been imported before

# Kernels carry no annotations: numba types them by their arguments.
Kernel = Callable[..., Any]

_FLAGS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


class Entry:
    """A compiled function that Python calls. If its files in the cache cannot be read or written,
    they are removed, and it is compiled without a cache.
    """

    def __init__(self, function: Kernel, **options: Any) -> None:
        self._compile = partial(_compile, function, **_FLAGS, **options)
        self._files = f"{function.__module__.rpartition('.')[2]}.{function.__qualname__}-*.nb*"
        self._uses_cache = True
        try:
            self.compiled = self._compile(cache=True)
        except RuntimeError:  # no cache folder
            self.compiled = self._compile()

    def __call__(self, *arguments: Any) -> Any:
        try:
            return self.compiled(*arguments)
        except Exception:
            if not self._uses_cache:
                raise
        self._uses_cache = False
        with suppress(OSError):
            for file in Path(self.compiled.stats.cache_path or "").glob(self._files):
                file.unlink()
        self.compiled = self._compile()
        return self.compiled(*arguments)


def _compile(function: Kernel, **options: Any) -> Any:
    make: Any = njit  # numba's types know fewer options
    return _register(make(**options)(function))


entry = Entry


def kernel(function: Kernel, **more: Any) -> Kernel:
    """Compile a function that only other kernels call."""
    compiled: Kernel = _compile(function, no_cpython_wrapper=True, **_FLAGS, **more)
    return compiled


def quick_kernel(function: Kernel) -> Kernel:
    """Compile a kernel whose numbers are never NaN: a minimum is then one instruction."""
    return kernel(function, fastmath={"nnan", "nsz"})


_kernels: set[int] = set()
"""Ids of all kernels in imported modules."""


def _register(compiled: Kernel) -> Kernel:
    _kernels.add(id(compiled))
    return compiled


def _pointer_to(context: Any, address: Any) -> Any:
    def cast(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), cast


_pointer: Any = intrinsic(_pointer_to)


@kernel
def numbers_at(address, shape):  # type: ignore[no-untyped-def]
    """Return the C-contiguous float array at an address: for kernels that choose between many
    arrays, as tuples of them compile slowly. The caller keeps the array alive.
    """
    return carray(_pointer(address), shape, np.float64)


class Compilation(event.Listener):
    """Listens to the compiler to report compilation in a first run."""

    def __init__(self) -> None:
        self._begun: set[int] = set()
        self._active = 0

    def on_start(self, event: Any) -> None:
        self._active += 1
        kernel = id(event.data["dispatcher"])
        if kernel in _kernels:
            self._begun.add(kernel)

    def on_end(self, event: Any) -> None:
        self._active -= 1

    def words(self) -> str:
        """Return the progress of compilation; empty if nothing is being compiled."""
        if not self._active:
            return ""
        return f"compiling kernels, only once: {len(self._begun)} of at most {len(_kernels)}"


@contextmanager
def compilation() -> Iterator[Compilation]:
    """Listen to the compiler inside the block."""
    listener = Compilation()
    with event.install_listener("numba:compile", listener):
        yield listener
