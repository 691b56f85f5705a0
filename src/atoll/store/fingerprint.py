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


def differences(here: Identity, there: Identity) -> list[str]:
    """In words: the fields in which two jobs differ."""
    found = []
    for name in sorted(set(here) | set(there)):
        ours, theirs = here.get(name), there.get(name)
        if ours != theirs:
            short = len(str(ours)) + len(str(theirs)) <= 120
            found.append(f"{name} {theirs} there, {ours} here" if short else name)
    return found
