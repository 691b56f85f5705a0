"""Lock for one search per folder; released when its process ends, and names its holder."""

from __future__ import annotations

import errno
import os
import socket
from contextlib import suppress
from pathlib import Path

from atoll.base.errors import AtollError

with suppress(ImportError):  # POSIX
    import fcntl

LOCK = ".lock"


class FolderLock:
    """Lock from construction to `release` or the end of the process."""

    def __init__(self, folder: Path) -> None:
        if "fcntl" not in globals():
            raise AtollError(
                f"out: {folder} needs locks on files, which are POSIX's and not there on this "
                "system; leave it out."
            )
        self._path = folder / LOCK
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if lock_holder(folder) is None:
                raise OSError(errno.ENOLCK, "they are granted twice")
        except OSError as error:
            os.close(self._file)
            if not isinstance(error, BlockingIOError):
                raise AtollError(
                    f"out: the file system of {folder} has no locks ({error.strerror}), without "
                    "which two searches would damage each other's records; give a folder on a "
                    "local disk."
                ) from None
            holder = lock_holder(folder) or "another one"
            raise AtollError(
                f"out: {folder} is in use by process {holder}; wait for it, stop it, or give "
                "another folder."
            ) from None
        os.register_at_fork(after_in_child=self._forget)
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def _forget(self) -> None:
        """Close the descriptor; in a forked worker it would outlive a killed driver."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def release(self) -> None:
        os.ftruncate(self._file, 0)
        self._forget()


def lock_holder(folder: Path) -> str | None:
    """Return process and host that hold the lock, or None."""
    try:
        if "fcntl" not in globals():
            return None
        with (folder / LOCK).open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return file.read().decode(errors="replace").strip() or "another one"
    except OSError:
        return None
    return None
