"""Files that appear whole under their names, or not at all, and checksums of what they hold."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from atoll.errors import AtollError


@contextmanager
def whole_files(refusal: Callable[[str], str], *paths: Path) -> Iterator[list[Path]]:
    """Files to write in place of `paths`, whose names they take in the end.

    After an error of the file system none of them is left, and `refusal` makes the sentence from
    what the system says. A pipe or a terminal takes what comes: only a file can be replaced.
    """
    written: dict[Path, Path] = {}
    try:
        for path in paths:
            special = path.exists() and not path.is_file()
            written[path] = path if special else path.with_name(f".{path.name}.part")
        yield list(written.values())
        for path, part in written.items():
            if part != path:
                part.replace(path)
    except OSError as error:
        for path, part in written.items():
            with suppress(OSError):
                if part != path:
                    part.unlink(missing_ok=True)
        raise AtollError(refusal(error.strerror or str(error))) from None


def check_place(refusal: Callable[[str], str], path: Path) -> None:
    """Refuse, before any work, a place where no file can be written in the end."""
    parent = path.absolute().parent
    if path.is_dir():
        raise AtollError(refusal("it is a folder"))
    if not parent.is_dir():
        raise AtollError(refusal(f"there is no folder {parent}"))
    if not os.access(parent, os.W_OK):
        raise AtollError(refusal(f"no permission in {parent}"))


def check_folder(folder: Path) -> None:
    """Refuse, before any work, a folder that could not be written in the end."""
    if folder.exists() and not folder.is_dir():
        raise AtollError(f"out: {folder} is a file; give a folder.")
    parent = folder
    while not parent.exists():
        parent = parent.parent
    if not os.access(parent, os.W_OK):
        raise AtollError(f"out: {parent} cannot be written; give another folder.")


def write_folder(folder: Path, contents: Mapping[str, str]) -> None:
    """Write texts by file name, all or none, and what they hold into SHA256SUMS."""
    paths = [folder / name for name in contents]
    with whole_files(lambda why: f"out: {folder} cannot be written ({why}).", *paths) as parts:
        folder.mkdir(parents=True, exist_ok=True)
        for part, content in zip(parts, contents.values(), strict=True):
            part.write_text(content, encoding="utf-8")
        sums = {path.name: _digest(part) for path, part in zip(paths, parts, strict=True)}
        record_sums(folder, dict.fromkeys(contents))
    with suppress(OSError):
        record_sums(folder, sums)


# --- Checksums ------------------------------------------------------------------------------------

SUMS = "SHA256SUMS"
"""In a folder that we wrote: the checksum of each file, as `sha256sum -c` reads it."""


def record_file(path: Path) -> None:
    """Note what a file holds from now on."""
    record_sums(path.parent, {path.name: _digest(path)})


def record_sums(folder: Path, sums: Mapping[str, str | None]) -> None:
    """Note checksums by file name; None forgets one, as before a file is written to."""
    known = _recorded(folder)
    found = {name: sum_ for name, sum_ in {**known, **sums}.items() if sum_ is not None}
    if found != known:
        part = folder / f".{SUMS}.part"
        part.write_text("".join(f"{sum_}  {name}\n" for name, sum_ in found.items()), "utf-8")
        part.replace(folder / SUMS)


def as_written(path: Path) -> bool:
    """Whether a file is known to be as it was written; refused where it is known not to be."""
    noted = _recorded(path.parent).get(path.name)
    if noted is None:
        return False
    try:
        found = path.stat()
        same = _seen(path, found.st_mtime_ns, found.st_size) == noted
    except OSError as error:
        raise AtollError(f"{path}: cannot be read ({error.strerror})") from None
    if not same and _recorded(path.parent).get(path.name) == noted:  # not being written just now
        raise AtollError(
            f"{path}: not as it was written: its checksum is another than {path.parent / SUMS} "
            f"says; it was damaged or edited: run it again, or remove {SUMS} to read it all the "
            "same."
        )
    return same


def _recorded(folder: Path) -> dict[str, str]:
    try:
        lines = (folder / SUMS).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    return {name: sum_ for sum_, _, name in (line.partition("  ") for line in lines)}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@lru_cache(maxsize=256)
def _seen(path: Path, time_ns: int, size: int) -> str:
    """A store of gigabytes is opened for every question, and read through once."""
    return _digest(path)
