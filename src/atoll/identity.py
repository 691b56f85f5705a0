"""Which Atoll this is: its version, and one hash of all it is made of.

What two Atolls compute may be mixed only if they are the same: in a store that is continued, and
on the workers of a cluster.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import JsonValue

VERSION = "0.1.0"

_SUFFIXES = (".py", ".yaml", ".json")
"""Programs, and the catalogue and models that come with them."""


def this_code() -> dict[str, str]:
    """Version and sources of this process, as plain data that any other version can read."""
    return {"version": VERSION, "sources": _digest_here()}


def code_words(code: Mapping[str, JsonValue]) -> str:
    """For a sentence: version and the first digits of the hash, as far as they are known."""
    sources = str(code.get("sources") or "unknown")
    return f"atoll {code.get('version') or 'of unknown version'} (sources {sources[:8]})"


def sources_digest(package: Path) -> str:
    """A hash of names and contents of all files of a package that can change an answer."""
    digest = hashlib.blake2b(digest_size=16)
    files = (path for path in package.rglob("*") if path.suffix in _SUFFIXES)
    for name, path in sorted((path.relative_to(package).as_posix(), path) for path in files):
        content = path.read_bytes()
        digest.update(f"{name}\n{len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest()


@cache
def _digest_here() -> str:
    return sources_digest(Path(__file__).parent)
