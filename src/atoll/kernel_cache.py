"""Where compiled kernels are kept between runs.

Numba looks only at the file of the kernel itself when it decides whether a cached binary is still
good, so that an edit of a callee elsewhere goes unnoticed. Here the directory's name carries a hash
of all kernel sources: any edit starts a fresh cache, and so does every installation. It also works
where the package itself is installed read-only.

A cache is code: its index is a pickle, its entries are machine code. A folder is used only if
nobody else can have written to it or can put another in its place.
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
"""What is compiled in the background on a first run: see `warm`."""
WAIT_S = 120.0
"""For another process that compiles the same; then this one does so, too."""
_fresh = False


class Helper(Protocol):
    """A process that compiles a part."""

    def poll(self) -> int | None: ...

    def wait(self) -> int: ...


_helpers: dict[str, Helper] = {}


def kernels_digest(package: Path = Path(__file__).parent) -> str:
    """A hash of all kernel sources, where they lie and since when: numba takes binaries of another
    place or time for none, and a first run of these must be known for one.
    """
    digest = hashlib.blake2b(digest_size=8)
    # How kernels are compiled counts as well.
    for source in (package / "jit.py", *sorted(package.rglob("*_kernels.py"))):
        digest.update(f"{source} {source.stat().st_mtime_ns}".encode())
        digest.update(source.read_bytes())
    return digest.hexdigest()


def use_kernel_cache() -> None:
    """Point numba at our cache, unless the user chose one. Call before numba is imported."""
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
        return  # numba looks for a place itself
    _fresh = True
    os.environ["NUMBA_CACHE_DIR"] = str(folder)
    atexit.register(_remove, folder, os.getpid())


def compile_in_background() -> None:
    """On a first run, have processes of their own compile what a search needs later.

    Compilation is single-threaded; the first search would wait for it one kernel after another.
    They fill the same cache on disk. Where one fails, the search compiles for itself.
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
    """A copy of this process, which has imported what it needs."""

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
            except ChildProcessError:  # somebody else has waited for it
                pid, status = self._pid, 0
            if pid == self._pid:
                self._ended = os.waitstatus_to_exitcode(status)
        return self._ended


def _forked(part: str) -> Helper | None:
    """Nothing where the system cannot fork well, or another thread is compiling: the copy would
    wait for it for ever.
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
            context.refresh()  # what each of them would begin with
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
        os._exit(0)  # nothing of what the other one has to end


def _begin_anew() -> None:
    """As a process of its own: it says nothing, ends on Ctrl-C and holds no other's files."""
    _helpers.clear()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    os.closerange(3, max(4096, nowhere + 1))
    sys.stdout = sys.stderr = open(1, "w", closefd=False)  # noqa: SIM115  (to the end)


def wait_for_kernels(part: str) -> None:
    """Wait until a part is compiled, where a process in the background is at it."""
    if part in _helpers:
        _helpers[part].wait()


def compiling() -> bool:
    """Whether this is a first run, and some of its kernels are still to be compiled."""
    done = _helpers and all(helper.poll() is not None for helper in _helpers.values())
    return _fresh and not done


class CompilerLock:
    """One process at a time compiles a kernel: workers of a first run find what one of them made.

    It dies with its process. Where files cannot be locked, everyone compiles.
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
                fcntl.flock(self._file, fcntl.LOCK_UN)  # of copies in forked processes as well
            with suppress(OSError):
                os.close(self._file)
            self._file = -1


def _bases() -> list[Path]:
    """Where kernels may be kept, the best place first."""
    bases = []
    xdg_cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    with suppress(RuntimeError):  # a user without a home
        bases.append((xdg_cache if xdg_cache.is_absolute() else Path.home() / ".cache") / "atoll")
    if (user := _user()) is not None:
        bases.append(Path(tempfile.gettempdir()) / f"atoll-{user}")
    return bases


def _user() -> int | None:
    """Who owns what this process creates; None where folders have no such owner."""
    return os.geteuid() if hasattr(os, "geteuid") else None


def _private_folder(folder: Path) -> bool:
    """Make the folder if need be; whether only this user can write there, and can at all."""
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
    """A real folder of this user, closed to all others."""
    info = folder.lstat()
    closed = stat.S_IMODE(info.st_mode) & ~_PRIVATE == 0
    return stat.S_ISDIR(info.st_mode) and info.st_uid == _user() and closed


def _out_of_reach(path: Path) -> bool:
    """Whether no other user (the administrator apart) can replace the path or a part of it.

    Every folder and link on the way belongs to this user or the administrator; where others may
    write, as in the shared temporary directory, the sticky bit keeps their hands off what is ours.
    """
    user = _user()
    if user is None:
        return True
    path.stat()  # links that go round in circles end here
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
    """Remove kernels of other sources that nobody has begun to use for a month."""
    with suppress(OSError):
        os.utime(current)
        for folder in base.glob("kernels-*"):
            if folder != current and time.time() - folder.lstat().st_mtime > KEPT_S:
                shutil.rmtree(folder, ignore_errors=True)


def _remove(folder: Path, owner: int) -> None:
    """At the end of the process that made it, not of the workers forked from it."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
