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
from multiprocessing import current_process, get_context
from multiprocessing.process import BaseProcess as Process
from pathlib import Path

_PRIVATE = 0o700
KEPT_S = 30 * 86400.0
PARTS = ("bounds", "schedules")
"""Parts compiled in the background on a first run: see `warm`."""
_fresh = False
_helpers: dict[str, Process | subprocess.Popen[bytes]] = {}
_pid = os.getpid()  # whose children the helpers are; forked workers inherit them


def kernels_digest(package: Path = Path(__file__).parents[1]) -> str:
    """Return a hash of kernel sources, their paths and modification times, as numba checks."""
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
            remove_damaged(folder)
            _prune(base, folder)
            return
    try:
        folder = Path(tempfile.mkdtemp(prefix="atoll-kernels-"))
    except OSError:
        return  # numba chooses a folder
    _fresh = True
    os.environ["NUMBA_CACHE_DIR"] = str(folder)
    atexit.register(_remove, folder, os.getpid())


def remove_damaged(folder: Path) -> None:
    """Remove files that differ from their checksum, which numba does not check; sum new ones."""
    for file in (*folder.rglob("*.nbi"), *folder.rglob("*.nbc")):
        with suppress(OSError):
            checksum_file = file.with_name(f"{file.name}.sum")
            checksum = hashlib.blake2b(file.read_bytes(), digest_size=16).digest()
            written_ns = checksum_file.stat().st_mtime_ns if checksum_file.exists() else 0
            if written_ns < file.stat().st_mtime_ns:
                checksum_file.write_bytes(checksum)
            elif checksum_file.read_bytes() != checksum:
                file.unlink()


def compile_in_background() -> None:
    """On a first run, compile in background processes what a search needs later.

    Compilation is single-threaded; the first search would wait for one kernel after another. The
    processes fill the same cache. If one fails, the search compiles its kernels.
    """
    if not _fresh or _helpers or (os.cpu_count() or 1) == 1 or current_process().daemon:
        return
    for part in PARTS:
        with suppress(OSError):
            _helpers[part] = _started(part)


def _started(part: str) -> Process | subprocess.Popen[bytes]:
    """Start to compile a part: on Linux in a copy of this process with all its imports."""
    if sys.platform == "linux":
        # The threads that Python 3.12 warns of hold no lock that a compiler takes.
        with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
            copy = get_context("fork").Process(target=_compile_quietly, args=(part,), daemon=True)
            copy.start()
            return copy
    nowhere = subprocess.DEVNULL
    command = [sys.executable, "-m", "atoll.warm", part]
    return subprocess.Popen(command, stdin=nowhere, stdout=nowhere, stderr=nowhere)


def _compile_quietly(part: str) -> None:
    """Compile a part without output, until this process is told to end."""
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, signal.SIG_DFL)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nowhere, standard)
    sys.stdout = sys.stderr = open(1, "w", closefd=False)  # noqa: SIM115  (to the end)
    sys.argv = ["atoll.warm", part]
    runpy.run_module("atoll.warm", run_name="__main__")


def wait_for_kernels(part: str) -> None:
    """Wait for the background process that compiles a part, if there is one of this process."""
    helper = _helpers.get(part)
    if isinstance(helper, subprocess.Popen):
        helper.wait()
    elif helper is not None and _pid == os.getpid():
        helper.join()


def compiling() -> bool:
    """Return whether this is a first run with kernels still to compile."""
    return _fresh and not (_helpers and all(map(_has_ended, _helpers.values())))


def _has_ended(helper: Process | subprocess.Popen[bytes]) -> bool:
    if isinstance(helper, subprocess.Popen):
        return helper.poll() is not None
    return _pid != os.getpid() or not helper.is_alive()


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
        info, user = folder.lstat(), _user()  # a real folder of this user, closed to others
        closed = stat.S_ISDIR(info.st_mode) and stat.S_IMODE(info.st_mode) & ~_PRIVATE == 0
        is_mine = user is None or (closed and info.st_uid == user)
        return _out_of_reach(folder) and is_mine and os.access(folder, os.W_OK)
    except OSError:
        return False


def _out_of_reach(path: Path) -> bool:
    """Return whether no other user (except root) can replace the path or a part of it.

    Every folder and link of the path must belong to this user or root; folders that others may
    write, such as /tmp, need the sticky bit.
    """
    if (user := _user()) is None:
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
