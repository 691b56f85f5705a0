"""Checked reading of a JSON object: every mistake becomes one sentence naming file and field."""

from __future__ import annotations

from collections.abc import Mapping

from atoll.errors import AtollError

# Names under which Hugging Face configurations give the same function.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
}


class Fields:
    """A JSON object whose fields are asked for by name and kind.

    A default stands in for a field that is absent or null; without one the field is required.
    """

    def __init__(self, given: Mapping[str, object], where: str) -> None:
        self.given = given
        self.where = where

    def _missing(self, name: str) -> AtollError:
        return AtollError(f"{self.where}: field {name!r} is missing")

    def _wrong(self, name: str, allowed: str) -> AtollError:
        return AtollError(f"{self.where}: {name} is {self.given[name]!r}, but must be {allowed}")

    def size(self, name: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self.given.get(name)
        if value is None:
            if default is None:
                raise self._missing(name)
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._wrong(name, "a positive integer")
        return value

    def probability(self, name: str, default: float) -> float:
        value = self.given.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise self._wrong(name, "a probability from 0 up to, but not including, 1")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.given.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self.given.get(name)
        if value is None:
            if default is None:
                raise self._missing(name)
            return default
        if not isinstance(value, str):
            raise self._wrong(name, "a text")
        return value

    def choice(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        value = self.text(name, default)
        if value not in allowed:
            raise self._wrong(name, f"one of {', '.join(allowed)}")
        return value

    def activation(self, name: str, default: str) -> str:
        return ACTIVATIONS[self.choice(name, tuple(ACTIVATIONS), default)]

    def block(self, name: str) -> Fields:
        value = self.given.get(name, {})
        if not isinstance(value, dict):
            raise self._wrong(name, "a JSON object")
        return Fields(value, f"{self.where}, {name}")

    def divides(self, part: str, parts: int, whole: str, total: int) -> None:
        if total % parts:
            raise AtollError(f"{self.where}: {part} is {parts}, but must divide {whole}, {total}")

    def hidden_and_heads(self, hidden: str, heads: str) -> tuple[int, int]:
        size, count = self.size(hidden), self.size(heads)
        self.divides(heads, count, hidden, size)
        return size, count
