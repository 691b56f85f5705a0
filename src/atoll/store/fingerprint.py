"""Fingerprint of a job: a hash of its content, independent of formatting."""

from __future__ import annotations

import hashlib
import json

from atoll.answers.designs import Identity

CODE = ("version", "sources")
"""Fields of a stored job that identify the Atoll that computed its records."""


def canonical_json(content: Identity) -> str:
    """Return the same text for the same content: sorted keys, no spaces, exact floats."""
    return json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)


def fingerprint(content: Identity) -> str:
    return hashlib.blake2b(canonical_json(content).encode(), digest_size=16).hexdigest()


def differences(current: Identity, stored: Identity) -> list[str]:
    """Return the fields in which two jobs differ, in words."""
    lines = []
    for name in sorted(set(current) | set(stored)):
        ours, theirs = current.get(name), stored.get(name)
        if ours != theirs:
            short = len(str(ours)) + len(str(theirs)) <= 120
            lines.append(f"{name} {theirs} there, {ours} here" if short else name)
    return lines
