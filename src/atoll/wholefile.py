"""Files that appear whole under their names, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
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


def write_folder(folder: Path, contents: Mapping[str, str]) -> None:
    """Write texts by file name, all or none."""
    paths = [folder / name for name in contents]
    with whole_files(lambda why: f"out: {folder} cannot be written ({why}).", *paths) as parts:
        folder.mkdir(parents=True, exist_ok=True)
        for part, content in zip(parts, contents.values(), strict=True):
            part.write_text(content, encoding="utf-8")
