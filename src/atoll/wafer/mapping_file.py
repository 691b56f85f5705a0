"""Mappings on disk, as `atoll search --out` writes them (mapping.json)."""

from __future__ import annotations

from pathlib import Path

from atoll.errors import AtollError
from atoll.wafer.encoding import WaferMapping, from_json


def read_mapping(path: str | Path) -> WaferMapping:
    """The mapping in a file; one sentence about what is wrong with it."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise AtollError(f"{path}: the file is not UTF-8 text.") from None
    except OSError as error:
        raise AtollError(f"{path}: cannot be read ({error.strerror}).") from None
    try:
        return from_json(text)
    except AtollError as error:
        raise AtollError(f"{path}: {error}") from None
