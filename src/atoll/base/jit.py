"""Compilation of kernels: cached on disk, quick to compile, on all cores.

Kernels over ranges release the interpreter's lock, so that plain threads run them concurrently;
numba's parallel loops take several times as long to compile.
"""

from __future__ import annotations

import gc
import hashlib
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from atoll.base.kernel_cache import CompilerLock, use_kernel_cache

use_kernel_cache()

from numba import jit, njit, types  # noqa: E402  (it reads its environment then)
from numba._dynfunc import make_function  # noqa: E402
from numba.core import cgutils, config, event, ir  # noqa: E402
from numba.core.caching import FunctionCache, IndexDataCacheFile  # noqa: E402
from numba.core.codegen import JITCodeLibrary  # noqa: E402
from numba.core.compiler import Compiler  # noqa: E402
from numba.core.compiler_machinery import PassManager, register_pass  # noqa: E402
from numba.core.serialize import dumps  # noqa: E402
from numba.core.target_extension import CPU, jit_registry  # noqa: E402
from numba.core.typed_passes import NativeLowering  # noqa: E402
from numba.core.types import functions  # noqa: E402
from numba.extending import intrinsic  # noqa: E402
from numba.np.numpy_support import carray  # noqa: E402

config.reload_config()  # numba may have been imported before

# Kernels carry no annotations: numba types them by their arguments.
Kernel = Callable[..., Any]

_FLAGS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


class _EntryCode(JITCodeLibrary):
    """Code of an entry and its callees, optimised once.

    Numba would also optimise every function before.
    """

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        """Optimise once at level 2. Numba optimises twice, lightly and at level 3."""
        managers = self._codegen._module_pass_manager(opt=2)
        if not isinstance(managers, tuple):  # an older numba
            super()._optimize_final_module()
            return
        passes, builder = managers
        passes.run(self._final_module, builder)


class _LinkedCode(_EntryCode):
    """Code of a kernel for linking into its callers, neither optimised nor finalised.

    Numba does both for every function, and again for its copy in every caller.
    """

    def _optimize_final_module(self) -> None:
        """Left to the callers."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


_BORROWING = {"getattr", "static_getitem", "getitem", "build_tuple", "exhaust_iter", "cast"} | {
    "getiter", "iternext", "pair_first", "phi"
}  # fmt: skip
"""Expressions that create no array: their results belong to their operands."""


def _owns_nothing(state: Any) -> bool:
    """Return whether a typed kernel creates and returns no array: its caller owns all arguments."""

    def counted(kind: Any) -> bool:
        return bool(state.targetctx.data_model_manager[kind].contains_nrt_meminfo())

    def borrows(value: Any) -> bool:
        if not isinstance(value, ir.Expr):
            return isinstance(value, ir.Arg | ir.Var)
        gathers = value.op == "getitem" and counted(state.typemap[value.index.name])
        return value.op in _BORROWING and not gathers

    return not counted(state.return_type) and all(
        borrows(assigned.value)
        for block in state.func_ir.blocks.values()
        for assigned in block.find_insts(ir.Assign)
        if counted(state.typemap[assigned.target.name])
    )


@contextmanager
def _uncounted(state: Any) -> Iterator[None]:
    """Lower without reference counts of arrays, if the kernel owns none.

    Numba counts every array argument of every function: a third of the code of kernels that take
    records of dozens of arrays.
    """
    usual = state.targetctx
    if _owns_nothing(state):
        state.targetctx = usual.subtarget(enable_nrt=False)
        vars(state.targetctx).pop("nrt", None)  # belongs to the usual context
    try:
        yield
    finally:
        state.targetctx = usual


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerLinked(NativeLowering):
    """Lowers a kernel to code for linking into its callers."""

    _name = "lower_linked"

    def run_pass(self, state: Any) -> bool:
        state.library = _LinkedCode(state.targetctx.codegen(), state.func_id.func_qualname)
        # A copy: compiled functions are cached by their flags.
        state.flags = state.flags.copy()
        state.flags.no_cpython_wrapper = state.flags.no_compile = True
        with _uncounted(state):
            super().run_pass(state)
        lowered = state.cr
        name, library = lowered.fndesc.qualname, (state.library,)
        handle = make_function(lowered.fndesc.lookup_module(), name, "", 0, lowered.env, library)
        state.targetctx.insert_user_function(handle, lowered.fndesc, library)
        state.cr = lowered._replace(cfunc=handle)
        return True


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerEntry(NativeLowering):
    """Lowers a kernel that Python calls."""

    _name = "lower_entry"

    def run_pass(self, state: Any) -> bool:
        state.library = _EntryCode(state.targetctx.codegen(), state.func_id.func_qualname)
        state.library.enable_object_caching()
        with _uncounted(state):
            done: bool = super().run_pass(state)
        return done


class _KernelCompiler(Compiler):
    """Numba's compiler with another lowering pass."""

    lowering: type[NativeLowering] = _LowerLinked

    def define_pipelines(self) -> list[PassManager]:
        [passes] = super().define_pipelines()
        passes.passes = [
            (self.lowering if step is NativeLowering else step, words)
            for step, words in passes.passes
        ]
        passes.finalize()
        return [passes]


class _EntryCompiler(_KernelCompiler):
    """Compiles an entry together with numba's functions such as `np.empty`."""

    lowering = _LowerEntry

    def compile_extra(self, func: Any) -> Any:
        usual = jit_registry.pop(CPU)
        jit_registry[CPU] = partial(jit, pipeline_class=_KernelCompiler)
        try:
            with _calls_typed_once(), _no_collection():
                return super().compile_extra(func)
        finally:
            del jit_registry[CPU]
            jit_registry[CPU] = usual


@contextmanager
def _calls_typed_once() -> Iterator[None]:
    """Cache call types while an entry is compiled: numba would type each call again, several times
    until all types are inferred.
    """
    functions_type: Any = getattr(functions, "BaseFunction", None)
    usual = getattr(functions_type, "get_call_type", None)
    if usual is None:
        yield
        return
    typed: dict[Any, Any] = {}

    def get_call_type(self: Any, context: Any, args: Any, kws: Any) -> Any:
        call = id(self), id(context), tuple(args), tuple(sorted(kws.items()))
        if call not in typed:
            # Keeps the function alive, so that its id stays unique.
            typed[call] = usual(self, context, args, kws), self
        return typed[call][0]

    functions_type.get_call_type = get_call_type
    try:
        yield
    finally:
        functions_type.get_call_type = usual


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable garbage collection: the compiler makes millions of objects that live to its end."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class _CheckedFile(IndexDataCacheFile):
    """Numba's index and code files of a kernel, each with a checksum and its key.

    Damaged files are ignored, which numba does not check.
    """

    def load(self, key: Any) -> Any:
        name = self._load_index().get(key)
        entry = None if name is None else self._read(self._data_path(name))
        return entry[1] if entry is not None and entry[0] == (self._source_stamp, key) else None

    def save(self, key: Any, data: Any) -> None:
        index = self._load_index()
        used = set(index.values()) - {index.get(key)}
        names = map(self._data_name, range(1, len(used) + 2))
        name = index.get(key) or next(name for name in names if name not in used)
        self._write(self._data_path(name), ((self._source_stamp, key), data))
        self._save_index(index | {key: name})

    def _load_index(self) -> dict[Any, str]:
        entry = self._read(self._index_path)
        is_current = entry is not None and entry[0] == (self._version, self._source_stamp)
        return entry[1] if is_current else {}

    def _save_index(self, overloads: dict[Any, str]) -> None:
        self._write(self._index_path, ((self._version, self._source_stamp), overloads))

    def _read(self, path: str) -> Any:
        try:
            content = Path(path).read_bytes()
        except OSError:
            return None
        payload = content[_SUM_BYTES:]
        return pickle.loads(payload) if _sum(payload) == content[:_SUM_BYTES] else None

    def _write(self, path: str, value: Any) -> None:
        payload = dumps(value)
        with self._open_for_write(path) as file:
            file.write(_sum(payload) + payload)


_SUM_BYTES = 16


def _sum(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_SUM_BYTES).digest()


class _KernelCache(FunctionCache):
    """Cache of a kernel; failed writes (a full disk) are ignored."""

    def __init__(self, function: Kernel) -> None:
        super().__init__(function)
        numbas = self._cache_file
        self._cache_file = _CheckedFile(
            self._cache_path, self._impl.filename_base, numbas._source_stamp
        )
        self._lock = CompilerLock(f"{self._cache_file._index_path}.lock")

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load compiled code; if there is none, lock the kernel until this process compiled it."""
        overload = super().load_overload(sig, target_context)
        if overload is None:
            with suppress(OSError):
                self._impl.locator.ensure_cache_path()
            self._lock.acquire()
            overload = super().load_overload(sig, target_context)
        return overload

    def save_overload(self, sig: Any, data: Any) -> None:
        with suppress(OSError):
            super().save_overload(sig, data)

    def releasing(self, compile_: Kernel) -> Kernel:
        """Wrap a dispatcher's compile method to release the lock afterwards."""

        def compiled(sig: Any) -> Any:
            try:
                return compile_(sig)
            finally:
                self._lock.release()

        return compiled


def entry(function: Kernel, **more: Any) -> Kernel:
    """Compile a function that Python calls."""
    compiled: Any = njit(pipeline_class=_EntryCompiler, **_FLAGS, **more)(function)
    with suppress(RuntimeError):  # no cache folder
        compiled._cache = _KernelCache(function)
        compiled.compile = compiled._cache.releasing(compiled.compile)
    return _register(compiled)


_QUICK = {"nnan", "nsz"}


def quick_entry(function: Kernel) -> Kernel:
    """Compile an entry whose numbers are never NaN: a minimum is then one instruction."""
    return entry(function, fastmath=_QUICK)


def kernel(function: Kernel, **more: Any) -> Kernel:
    """Compile a function that only other kernels call, as a part of their code.

    With the flags of entries, so that both share numba's own functions.
    """
    compiled: Kernel = njit(pipeline_class=_KernelCompiler, **_FLAGS, **more)(function)
    return _register(compiled)


def quick_kernel(function: Kernel) -> Kernel:
    """Compile a kernel whose numbers are never NaN."""
    return kernel(function, fastmath=_QUICK)


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
