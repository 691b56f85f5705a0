"""Input files: regular files up to a limit; devices, pipes and longer files are refused unread."""

from __future__ import annotations

import gzip
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import IO, cast

from atoll.base.errors import AtollError

_FOLDERS: ContextVar[tuple[Path, ...]] = ContextVar("folders", default=())


@contextmanager
def reading_only(*folders: Path) -> Iterator[None]:
    """Within the block, refuse input files outside these folders and the package, unseen."""
    package = Path(__file__).parents[1]
    token = _FOLDERS.set(tuple(folder.resolve() for folder in (*folders, package)))
    try:
        yield
    finally:
        _FOLDERS.reset(token)


def may_read(path: Path) -> bool:
    """Return whether a path, with its links followed, lies in the folders that may be read."""
    folders = _FOLDERS.get()
    try:
        return not folders or any(path.resolve().is_relative_to(folder) for folder in folders)
    except (OSError, ValueError, RuntimeError):  # no name of a file
        return False


def check_readable(path: Path, where: str = "") -> None:
    """Refuse a path outside the folders that may be read, whether or not it exists."""
    if not may_read(path):
        raise AtollError(f"{where or path}: outside the folders that may be read here")


@contextmanager
def open_input(
    path: str | Path | Traversable, most_bytes: int, where: str = ""
) -> Iterator[IO[bytes]]:
    """Open a regular file of at most `most_bytes` bytes; a gzipped one is unpacked as it is read.

    Errors of opening and of reading are AtollErrors that call the file `where` (default: its path).
    """
    where = where or str(path)
    source = Path(path) if isinstance(path, str) else path
    try:
        if isinstance(source, Path):
            check_readable(source, where)
            _check_kind(source, most_bytes, where)
        with source.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            yield cast(IO[bytes], gzip.GzipFile(fileobj=file) if packed else file)
    except FileNotFoundError:
        raise AtollError(f"{where}: no such file") from None
    except (OSError, EOFError, zlib.error) as error:
        why = getattr(error, "strerror", None) or error
        raise AtollError(f"{where}: cannot be read ({why})") from None


def read_input(path: str | Path | Traversable, most_bytes: int, where: str = "") -> bytes:
    """Return the content of a file of at most `most_bytes` bytes, counted unpacked."""
    with open_input(path, most_bytes, where) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise AtollError(f"{where or path}: more than {most_bytes:,} bytes, which is the limit")
    return content


def read_input_text(path: str | Path, most_bytes: int, where: str = "") -> str:
    """Return the text of a file of at most `most_bytes` bytes."""
    try:
        return read_input(path, most_bytes, where).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AtollError(f"{where or path}: not UTF-8 text (byte {error.start})") from None


def _check_kind(path: Path, most_bytes: int, where: str) -> None:
    try:
        info = path.stat()
    except ValueError as error:  # a NUL in its name
        raise AtollError(f"{where!r:.80}: not the name of a file ({error})") from None
    if not stat.S_ISREG(info.st_mode) and not stat.S_ISDIR(info.st_mode):
        raise AtollError(f"{where}: a device or a pipe; give a regular file")
    if info.st_size > most_bytes:
        raise AtollError(f"{where}: {info.st_size:,} bytes, but at most {most_bytes:,} are read")
