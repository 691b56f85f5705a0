"""Where compiled kernels are kept between runs.

Numba looks only at the file of the kernel itself when it decides whether a cached binary is still
good, so that an edit of a callee elsewhere goes unnoticed. Here the directory's name carries a hash
of all kernel sources: any edit starts a fresh cache. It also works where the package itself is
installed read-only.

A cache is code: its index is a pickle, its entries are machine code. A folder is used only if
nobody else can have written to it or can put another in its place.
"""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

_PRIVATE = 0o700
KEPT_S = 30 * 86400.0
_fresh = False
_started = False


def cache_is_fresh() -> bool:
    """Whether this process began with no compiled kernels at all."""
    return _fresh


def kernels_digest() -> str:
    """A hash of all kernel sources."""
    digest = hashlib.blake2b(digest_size=8)
    package = Path(__file__).parent
    # How kernels are compiled counts as well.
    for source in (package / "jit.py", *sorted(package.rglob("*_kernels.py"))):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def use_kernel_cache() -> None:
    """Point numba at our cache, unless the user chose one. Call before numba is imported."""
    global _fresh
    if "NUMBA_CACHE_DIR" in os.environ:
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


def compile_in_background() -> subprocess.Popen[bytes] | None:
    """On a first run, have a second process compile the kernels that a search needs last.

    Compilation is single-threaded; the first search would wait for it one kernel after another. The
    helper fills the same cache on disk, in the opposite order, so that two cores share the work. If
    it fails or comes late, the search compiles for itself.
    """
    global _started
    if _started or not _fresh:
        return None
    _started = True
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "atoll.warm"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except OSError:
        return None


def _bases() -> list[Path]:
    """Where kernels may be kept, the best place first."""
    bases = []
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    with suppress(RuntimeError):  # a user without a home
        bases.append((given if given.is_absolute() else Path.home() / ".cache") / "atoll")
    if (user := _user()) is not None:
        bases.append(Path(tempfile.gettempdir()) / f"atoll-{user}")
    return bases


def _user() -> int | None:
    """Who owns what this process creates; None where folders have no such owner."""
    return os.geteuid() if hasattr(os, "geteuid") else None


def _private_folder(folder: Path) -> bool:
    """Make the folder if need be; whether only this user can write there, and can at all."""
    try:
        there = next(parent for parent in (folder, *folder.parents) if os.path.lexists(parent))
        if not _out_of_reach(there):
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
    found = folder.lstat()
    closed = stat.S_IMODE(found.st_mode) & ~_PRIVATE == 0
    return stat.S_ISDIR(found.st_mode) and found.st_uid == _user() and closed


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
        found = part.lstat()
        if found.st_uid not in (user, 0):
            return False
        if stat.S_ISLNK(found.st_mode):
            if not _out_of_reach(part.parent / part.readlink()):
                return False
        elif found.st_mode & 0o022 and not found.st_mode & stat.S_ISVTX:
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
