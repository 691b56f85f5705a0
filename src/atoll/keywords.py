"""Arguments that pass through: handed on by their names, not written out once more."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any


def taken_by(
    target: Callable[..., Any], given: Mapping[str, Any], **renamed: str
) -> dict[str, Any]:
    """Of some arguments those that a function or a class takes, as they are named or `renamed`."""
    taken = signature(target).parameters
    named = {renamed.get(name, name): value for name, value in given.items()}
    return {name: value for name, value in named.items() if name in taken}
