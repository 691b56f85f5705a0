"""What a shell script says once it is read: its commands and variables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Command:
    """One command with its words."""

    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """Commands that a script runs, and variables that it exports."""

    commands: tuple[Command, ...]
    exported: Mapping[str, str]
    missing: tuple[str, ...] = ()
    """Sourced files that are not in its folder."""
    unset: tuple[str, ...] = ()
    """Variables that it uses without setting them."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Values of its variables at its end."""

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(f"{n}, which it sources, was not found beside it" for n in self.missing)
