"""What makes two jobs the same: one hash of their content, however it was written down."""

from __future__ import annotations

import hashlib
import json

from atoll.answers.designs import Identity

CODE = ("version", "sources")
"""The fields of a stored job that tell which Atoll computed its records."""


def canonical_json(content: Identity) -> str:
    """The same text for the same content: sorted keys, no spaces, floats to the last digit."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def fingerprint(content: Identity) -> str:
    return hashlib.blake2b(canonical_json(content).encode(), digest_size=16).hexdigest()


def differences(current: Identity, stored: Identity) -> list[str]:
    """In words: the fields in which two jobs differ."""
    lines = []
    for name in sorted(set(current) | set(stored)):
        ours, theirs = current.get(name), stored.get(name)
        if ours != theirs:
            short = len(str(ours)) + len(str(theirs)) <= 120
            lines.append(f"{name} {theirs} there, {ours} here" if short else name)
    return lines
