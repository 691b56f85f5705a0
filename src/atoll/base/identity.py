"""Identity of this Atoll: its version, and a hash of its sources.

Results may be mixed only between identical Atolls: in a continued store, and on cluster workers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import JsonValue

VERSION = "0.2.0"

_SUFFIXES = (".py", ".yaml", ".json")
"""Code, and the shipped catalogue and models."""


def this_code() -> dict[str, str]:
    """Return version and source hash of this process as plain data."""
    return {"version": VERSION, "sources": _digest_here()}


def code_words(code: Mapping[str, JsonValue]) -> str:
    """Return version and the first digits of the hash, in words."""
    sources = str(code.get("sources") or "unknown")
    return f"atoll {code.get('version') or 'of unknown version'} (sources {sources[:8]})"


def sources_digest(package: Path) -> str:
    """Return a hash of names and contents of all files of a package that affect answers."""
    digest = hashlib.blake2b(digest_size=16)
    files = (path for path in package.rglob("*") if path.suffix in _SUFFIXES)
    for name, path in sorted((path.relative_to(package).as_posix(), path) for path in files):
        content = path.read_bytes()
        digest.update(f"{name}\n{len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


@cache
def _digest_here() -> str:
    return sources_digest(Path(__file__).parents[1])
