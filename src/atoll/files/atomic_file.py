"""Atomic writing of files, and checksums of their contents."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from secrets import token_hex

from atoll.base.errors import AtollError
from atoll.files.inputs import read_input


class FolderPath(type(Path())):  # type: ignore[misc]
    """A path that was given with a slash at its end, which paths drop: a folder, new or not."""


@contextmanager
def atomic_files(refusal: Callable[[str], str], *paths: Path) -> Iterator[list[Path]]:
    """Yield temporary files that replace `paths` at the end of the block.

    A replaced file keeps its permissions; a symbolic link keeps pointing to its target. After an
    error no temporary file is left, and `refusal` converts the system's reason to the message.
    Pipes and terminals are written directly.
    """
    written: list[tuple[Path, Path]] = []
    pipes: list[int] = []
    try:
        for path in paths:
            special = path.exists() and not path.is_file()
            place = path.resolve() if path.is_symlink() and not special else path
            if place.exists() and not os.access(place, os.W_OK):
                raise PermissionError(errno.EACCES, "it is write-protected")
            if place.is_fifo():
                pipes.append(_open_pipe(place))
            written.append((place, place if special else _temporary_path(place)))
        yield [part for _, part in written]
        for place, part in written:
            if part != place:
                if place.exists():
                    part.chmod(part.stat().st_mode & 0o111 | place.stat().st_mode & 0o7777)
                part.replace(place)
    except BaseException as error:
        for place, part in written:
            with suppress(OSError):
                if part != place:
                    part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise AtollError(refusal(error.strerror or str(error))) from None
        raise
    finally:
        for pipe in pipes:
            os.close(pipe)


def _open_pipe(path: Path) -> int:
    """Open a pipe without waiting for a reader, which no signal would end."""
    try:
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as error:
        no_reader = error.errno == errno.ENXIO
        raise OSError(error.errno, "no process reads this pipe") if no_reader else error from None


def _temporary_path(path: Path) -> Path:
    """Return a unique name of a new file in the same folder."""
    return path.with_name(f".{path.name[:200]}.{os.getpid()}-{token_hex(4)}.part")


def check_place(refusal: Callable[[str], str], path: Path) -> None:
    """Refuse a path that cannot be written, before any work."""
    parent = path.absolute().parent
    if path.is_dir():
        raise AtollError(refusal("it is a folder"))
    if not parent.is_dir():
        raise AtollError(refusal(f"there is no folder {parent}"))
    if not os.access(parent, os.W_OK):
        raise AtollError(refusal(f"no permission in {parent}"))


ANSWERS = (
    "plan.json", "result.json", "sweep.json", "sweep.csv", "designs.csv", "chip.yaml",
    "mapping.json",
)  # fmt: skip
"""Files in folders of answers."""
STORE = "search.sqlite"


def check_folder(folder: Path, names: Sequence[str] = ANSWERS) -> None:
    """Refuse, before any work, a folder that cannot be written, or in which a file of these names
    was not written by atoll: it is not in SHA256SUMS, and the folder has no store.
    """
    if folder.exists() and not folder.is_dir():
        raise AtollError(f"out: {folder} is a file; give a folder.")
    if not (folder / STORE).exists():
        noted = _recorded(folder)
        for name in names:
            if name not in noted and (folder / name).exists():
                raise AtollError(
                    f"out: {folder / name} was not written by atoll and would be overwritten; "
                    "give another folder."
                )
    parent = next(place for place in (folder, *folder.parents) if place.exists())
    if not os.access(parent, os.W_OK):
        raise AtollError(f"out: {parent} cannot be written; give another folder.")


def write_folder(folder: Path, contents: Mapping[str, str]) -> None:
    """Write texts by file name atomically, and their checksums into SHA256SUMS."""
    assert set(contents) <= set(ANSWERS)
    paths = [folder / name for name in contents]
    with atomic_files(lambda why: f"out: {folder} cannot be written ({why}).", *paths) as parts:
        folder.mkdir(parents=True, exist_ok=True)
        for part, content in zip(parts, contents.values(), strict=True):
            part.write_text(content, encoding="utf-8")
        sums = {path.name: _digest(part) for path, part in zip(paths, parts, strict=True)}
        record_sums(folder, dict.fromkeys(contents))
    with suppress(OSError):
        record_sums(folder, sums)


# --- Checksums ------------------------------------------------------------------------------------

SUMS = "SHA256SUMS"
"""File with the checksums of a folder's files, in the format of `sha256sum -c`."""


def record_file(path: Path) -> None:
    """Record the checksum of a file."""
    record_sums(path.parent, {path.name: _digest(path)})


def record_sums(folder: Path, sums: Mapping[str, str | None]) -> None:
    """Record checksums by file name; None removes one. Lines of other files are unchanged."""
    lines = _lines(folder)
    new_lines = [line for line in lines if _name_and_digest(line)[0] not in sums]
    new_lines += [f"{digest}  {name}" for name, digest in sums.items() if digest is not None]
    if sorted(new_lines) != sorted(lines):
        part = _temporary_path(folder / SUMS)
        try:
            part.write_bytes("".join(f"{line}\n" for line in new_lines).encode(*TEXT))
            part.replace(folder / SUMS)
        finally:
            part.unlink(missing_ok=True)


def as_written(path: Path) -> bool:
    """Return whether a file has a recorded checksum that matches; refuse it if it differs."""
    recorded = _recorded(path.parent).get(path.name)
    if recorded is None:
        return False
    try:
        info = path.stat()
        same = _cached_digest(path, info.st_mtime_ns, info.st_size) == recorded
    except OSError as error:
        raise AtollError(f"{path}: cannot be read ({error.strerror})") from None
    if not same and _recorded(path.parent).get(path.name) == recorded:  # not being rewritten
        raise AtollError(
            f"{path}: not as it was written: its checksum is another than {path.parent / SUMS} "
            f"says; it was damaged or edited: run it again, or remove {SUMS} to read it all the "
            "same."
        )
    return same


TEXT = "utf-8", "surrogateescape"


def _recorded(folder: Path) -> dict[str, str]:
    return dict(map(_name_and_digest, _lines(folder)))


def _name_and_digest(line: str) -> tuple[str, str]:
    """Return file name and checksum of a line; an empty name if the line is malformed."""
    digest, _, name = line.partition("  ")
    return name, digest


def _lines(folder: Path) -> list[str]:
    try:
        return read_input(folder / SUMS, 2**26).decode(*TEXT).splitlines()
    except AtollError:
        return []


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=256)
def _cached_digest(path: Path, time_ns: int, size: int) -> str:
    """Return the cached digest: a large store is opened often and hashed once."""
    return _digest(path)
