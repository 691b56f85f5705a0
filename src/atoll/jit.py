"""How kernels are compiled and run: cached on disk, quick to compile, on all cores.

Kernels that work on ranges release the interpreter's lock, so that plain threads run them side by
side; numba's own parallel loops take several times as long to compile.
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

from atoll.kernel_cache import CompilerLock, use_kernel_cache

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

config.reload_config()  # somebody else may have imported it before

# Kernels carry no annotations: numba types them by their arguments.
Kernel = Callable[..., Any]

_FLAGS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "no_cfunc_wrapper": True}


class _EntryCode(JITCodeLibrary):
    """The code of an entry with all that it calls, optimised once as a whole.

    Numba also optimises every function before, on its own.
    """

    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        """Once and at the usual level. Numba optimises twice, lightly and at the highest."""
        managers = self._codegen._module_pass_manager(opt=2)
        if not isinstance(managers, tuple):  # of an older numba
            super()._optimize_final_module()
            return
        passes, builder = managers
        passes.run(self._final_module, builder)


class _LinkedCode(_EntryCode):
    """The code of a kernel as its callers link it in, neither optimised nor made runnable.

    Numba does both to every function, and then again to the copy of it in every caller's code.
    """

    def _optimize_final_module(self) -> None:
        """Callers optimise it with their own code."""

    def _finalize_final_module(self) -> None:
        self._finalize_dynamic_globals()
        self._finalized = True


_BORROWING = {"getattr", "static_getitem", "getitem", "build_tuple", "exhaust_iter", "cast"} | {
    "getiter", "iternext", "pair_first", "phi"
}  # fmt: skip
"""Expressions that make no array: what they give belongs to their operands."""


def _owns_nothing(state: Any) -> bool:
    """Whether a typed kernel makes no array and returns none: all that it sees are its arguments,
    which its caller holds.
    """

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
    """Lower without counting references to arrays, where nothing can be lost by that.

    Numba counts every array of every argument in and out of every function: a third of the code
    of kernels that take records of dozens of them.
    """
    usual = state.targetctx
    if _owns_nothing(state):
        state.targetctx = usual.subtarget(enable_nrt=False)
        vars(state.targetctx).pop("nrt", None)  # made for the other
    try:
        yield
    finally:
        state.targetctx = usual


@register_pass(mutates_CFG=True, analysis_only=False)
class _LowerLinked(NativeLowering):
    """Lowers a kernel to code that waits for its callers."""

    _name = "lower_linked"

    def run_pass(self, state: Any) -> bool:
        state.library = _LinkedCode(state.targetctx.codegen(), state.func_id.func_qualname)
        # A copy: what is compiled for one set of flags is found again by them.
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
    """Numba's own compiler up to the lowering."""

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
    """What numba itself brings for an entry (its `np.empty`) is a part of its code, too."""

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
    """Numba types every call anew (thousands of additions of the same two types, and each of them
    some times over until all types are known). Here a call of the same function with the same types
    is typed once while an entry is compiled.
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
            # With the function, so that no other takes its place in memory.
            typed[call] = usual(self, context, args, kws), self
        return typed[call][0]

    functions_type.get_call_type = get_call_type
    try:
        yield
    finally:
        functions_type.get_call_type = usual


@contextmanager
def _no_collection() -> Iterator[None]:
    """The compiler makes millions of objects in cycles that live until it ends."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


class _CheckedFile(IndexDataCacheFile):
    """Numba's index of a kernel and its code, each with a checksum and what it is the code of.

    Numba takes whatever is there for what it wrote. Here a damaged file is none.
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
    """Where nothing can be written (a full disk), nothing is kept."""

    def __init__(self, function: Kernel) -> None:
        super().__init__(function)
        numbas = self._cache_file
        self._cache_file = _CheckedFile(
            self._cache_path, self._impl.filename_base, numbas._source_stamp
        )
        self._lock = CompilerLock(f"{self._cache_file._index_path}.lock")

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Where there is none, the caller compiles it, and no other process until it is done."""
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
        """A dispatcher's method that loads, or compiles and saves, however it ends."""

        def compiled(sig: Any) -> Any:
            try:
                return compile_(sig)
            finally:
                self._lock.release()

        return compiled


def entry(function: Kernel, **more: Any) -> Kernel:
    """Compile a function that Python calls."""
    compiled: Any = njit(pipeline_class=_EntryCompiler, **_FLAGS, **more)(function)
    with suppress(RuntimeError):  # no folder at all
        compiled._cache = _KernelCache(function)
        compiled.compile = compiled._cache.releasing(compiled.compile)
    return _register(compiled)


_QUICK = {"nnan", "nsz"}


def quick_entry(function: Kernel) -> Kernel:
    """An entry whose numbers are never NaN: least values are then one instruction each."""
    return entry(function, fastmath=_QUICK)


def kernel(function: Kernel, **more: Any) -> Kernel:
    """Compile a function that only other kernels call, as a part of their code.

    With the flags of entries, so that both share what numba itself compiles for them.
    """
    compiled: Kernel = njit(pipeline_class=_KernelCompiler, **_FLAGS, **more)(function)
    return _register(compiled)


def quick_kernel(function: Kernel) -> Kernel:
    """As `quick_entry`, for other kernels."""
    return kernel(function, fastmath=_QUICK)


_kernels: set[int] = set()
"""All kernels of the modules that were imported, compiled or not."""


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
    """The array of floats, C-contiguous, that lies somewhere: for kernels that choose among many
    arrays, as tuples of them take long to compile. Whoever passes the address holds the array.
    """
    return carray(_pointer(address), shape, np.float64)


class Compilation(event.Listener):
    """Listens to the compiler, to say that it is at work: a first run waits for it."""

    def __init__(self) -> None:
        self._begun: set[int] = set()
        self._under_way = 0

    def on_start(self, event: Any) -> None:
        self._under_way += 1
        kernel = id(event.data["dispatcher"])
        if kernel in _kernels:
            self._begun.add(kernel)

    def on_end(self, event: Any) -> None:
        self._under_way -= 1

    def words(self) -> str:
        """What is being compiled now; nothing where nothing is."""
        if not self._under_way:
            return ""
        return f"compiling kernels, only once: {len(self._begun)} of at most {len(_kernels)}"


@contextmanager
def compilation() -> Iterator[Compilation]:
    """Listen to the compiler for a while."""
    listener = Compilation()
    with event.install_listener("numba:compile", listener):
        yield listener
