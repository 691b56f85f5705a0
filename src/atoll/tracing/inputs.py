"""Parsing of input descriptions."""

from __future__ import annotations

import re
from collections.abc import Sequence

from atoll.base.errors import AtollError

_INPUT = re.compile(r"(?:([^=\[]+)=)?(\w+)\[([0-9, ]*)\]")


def parse_inputs(texts: Sequence[str], example: str) -> list[tuple[str, str, tuple[int, ...]]]:
    """Parse inputs into (name or "", type, shape); all or none have a name."""
    parsed = []
    for text in texts:
        match = _INPUT.fullmatch(text.strip())
        if match is None:
            raise AtollError(f"inputs: expected a type and a shape such as {example}, got {text!r}")
        shape = tuple(int(n) for n in match[3].split(",") if n.strip())
        parsed.append((match[1] or "", match[2], shape))
    if len({bool(name) for name, _, _ in parsed}) > 1:
        raise AtollError("inputs: either all by name or none, not both")
    return parsed
