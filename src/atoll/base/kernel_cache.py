"""Cache folder of compiled kernels.

Numba checks only the file of the kernel itself before it reuses a binary, and misses edits of
callees in other files. Here the folder's name has a hash of all kernel sources: every edit and
every installation starts a new cache, also if the package is installed read-only.

A cache contains code: pickles and machine code. A folder is used only if no other user can write to
it or replace it.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import runpy
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Protocol

with suppress(ImportError):  # POSIX
    import fcntl

_PRIVATE = 0o700
KEPT_S = 30 * 86400.0
PARTS = ("bounds", "schedules")
"""Parts compiled in the background on a first run: see `warm`."""
WAIT_S = 120.0
"""Wait for another process that compiles the same kernel; then compile it here."""
_fresh = False


class Helper(Protocol):
    """A process that compiles a part."""

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...


_helpers: dict[str, Helper] = {}


def kernels_digest(package: Path = Path(__file__).parents[1]) -> str:
    """Return a hash of all kernel sources, their paths and modification times, which numba checks
    too.
    """
    digest = hashlib.blake2b(digest_size=8)
    # The compiler settings count as well.
    for source in (package / "base" / "jit.py", *sorted(package.rglob("*_kernels.py"))):
        digest.update(f"{source} {source.stat().st_mtime_ns}".encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()


def use_kernel_cache() -> None:
    """Set numba's cache folder, unless the user chose one. Call before numba is imported."""
    global _fresh
    if chosen := os.environ.get("NUMBA_CACHE_DIR"):
        with suppress(OSError):
            _fresh = not os.path.lexists(chosen) or not any(Path(chosen).iterdir())
        return
    name = f"kernels-{kernels_digest()}"
    for base in _bases():
        folder = base / name
        _fresh = not os.path.lexists(folder)
        if _private_folder(folder):
            os.environ["NUMBA_CACHE_DIR"] = str(folder)
            _prune(base, folder)
            return
    try:
        folder = Path(tempfile.mkdtemp(prefix="atoll-kernels-"))
    except OSError:
        return  # numba chooses a folder
    _fresh = True
    os.environ["NUMBA_CACHE_DIR"] = str(folder)
    atexit.register(_remove, folder, os.getpid())


def compile_in_background() -> None:
    """On a first run, compile in background processes what a search needs later.

    Compilation is single-threaded; the first search would wait for one kernel after another. The
    processes fill the same cache. If one fails, the search compiles its kernels.
    """
    if not _fresh or _helpers or (os.cpu_count() or 1) == 1:
        return
    for part in PARTS:
        with suppress(OSError):
            _helpers[part] = _forked(part) or subprocess.Popen(
                [sys.executable, "-m", "atoll.warm", part],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )


class _Forked:
    """A forked copy of this process with all its imports."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended: int | None = None

    def poll(self) -> int | None:
        return self._exit_code(os.WNOHANG)

    def wait(self) -> int:
        return self._exit_code(0) or 0

    def _exit_code(self, how: int) -> int | None:
        if self._ended is None:
            try:
                pid, status = os.waitpid(self._pid, how)
            except ChildProcessError:  # already waited for
                pid, status = self._pid, 0
            if pid == self._pid:
                self._ended = os.waitstatus_to_exitcode(status)
        return self._ended


def _forked(part: str) -> Helper | None:
    """Fork a compiler process; None if the system is not Linux, or another thread is compiling,
    whose lock the copy would wait for.
    """
    if sys.platform != "linux":
        return None
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.registry import cpu_target

    lock = global_compiler_lock._lock
    if not lock.acquire(blocking=False):
        return None
    try:
        for context in (cpu_target.typing_context, cpu_target.target_context):
            context.refresh()  # shared by all copies
        with warnings.catch_warnings():
            # The threads that Python 3.12 warns of hold no lock that a compiler takes.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
    finally:
        lock.release()
    if pid:
        return _Forked(pid)
    try:
        _begin_anew()
        sys.argv = ["atoll.warm", part]
        runpy.run_module("atoll.warm", run_name="__main__")
    finally:
        os._exit(0)  # without the parent's exit handlers


def _begin_anew() -> None:
    """Detach the copy: no output, default signals, no inherited files."""
    _helpers.clear()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    os.closerange(3, max(4096, nowhere + 1))
    sys.stdout = sys.stderr = open(1, "w", closefd=False)  # noqa: SIM115  (to the end)


def wait_for_kernels(part: str) -> None:
    """Wait for the background process that compiles a part, if there is one."""
    if part in _helpers:
        _helpers[part].wait()


def compiling() -> bool:
    """Return whether this is a first run with kernels still to compile."""
    done = _helpers and all(helper.poll() is not None for helper in _helpers.values())
    return _fresh and not done


class CompilerLock:
    """Lock of a kernel's compilation: other workers of a first run load the result.

    Released when its process ends. Without file locks every process compiles.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._file = -1

    def acquire(self) -> None:
        with suppress(NameError, OSError):
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            until = time.monotonic() + WAIT_S
            while not self._taken() and time.monotonic() < until:
                time.sleep(0.02)

    def _taken(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def release(self) -> None:
        if self._file >= 0:
            with suppress(NameError, OSError):
                fcntl.flock(self._file, fcntl.LOCK_UN)  # also for copies in forked processes
            with suppress(OSError):
                os.close(self._file)
            self._file = -1


def _bases() -> list[Path]:
    """Return possible cache folders, the preferred one first."""
    bases = []
    xdg_cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    with suppress(RuntimeError):  # a user without a home folder
        bases.append((xdg_cache if xdg_cache.is_absolute() else Path.home() / ".cache") / "atoll")
    if (user := _user()) is not None:
        bases.append(Path(tempfile.gettempdir()) / f"atoll-{user}")
    return bases


def _user() -> int | None:
    """Return the owner of new files; None if the system has no owners."""
    return os.geteuid() if hasattr(os, "geteuid") else None


def _private_folder(folder: Path) -> bool:
    """Create the folder if missing; return whether this user, and only they, can write there."""
    try:
        existing = next(parent for parent in (folder, *folder.parents) if os.path.lexists(parent))
        if not _out_of_reach(existing):
            return False
        for parent in (*reversed(folder.parents), folder):
            if not os.path.lexists(parent):
                parent.mkdir(_PRIVATE, exist_ok=True)
        return (
            _out_of_reach(folder)
            and (_user() is None or _is_mine(folder))
            and os.access(folder, os.W_OK)
        )
    except OSError:
        return False


def _is_mine(folder: Path) -> bool:
    """Return whether it is a real folder of this user, closed to others."""
    info = folder.lstat()
    closed = stat.S_IMODE(info.st_mode) & ~_PRIVATE == 0
    return stat.S_ISDIR(info.st_mode) and info.st_uid == _user() and closed


def _out_of_reach(path: Path) -> bool:
    """Return whether no other user (except root) can replace the path or a part of it.

    Every folder and link of the path must belong to this user or root; folders that others may
    write, such as /tmp, need the sticky bit.
    """
    user = _user()
    if user is None:
        return True
    path.stat()  # raises for circular links
    for part in (path, *path.parents):
        info = part.lstat()
        if info.st_uid not in (user, 0):
            return False
        if stat.S_ISLNK(info.st_mode):
            if not _out_of_reach(part.parent / part.readlink()):
                return False
        elif info.st_mode & 0o022 and not info.st_mode & stat.S_ISVTX:
            return False
    return True


def _prune(base: Path, current: Path) -> None:
    """Remove caches of other sources that were not used for a month."""
    with suppress(OSError):
        os.utime(current)
        for folder in base.glob("kernels-*"):
            if folder != current and time.time() - folder.lstat().st_mtime > KEPT_S:
                shutil.rmtree(folder, ignore_errors=True)


def _remove(folder: Path, owner: int) -> None:
    """Remove the folder at the end of the process that created it, not of its forks."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
