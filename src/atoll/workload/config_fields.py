"""Checked reading of a JSON object: every mistake becomes one sentence naming file and field."""

from __future__ import annotations

from collections.abc import Mapping

from atoll.errors import AtollError

# Names under which Hugging Face configurations give the same function.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_python": "gelu",
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

    def share(self, name: str, default: float) -> float:
        """A number above 0 and up to 1."""
        value = self.given.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise self._wrong(name, "a number above 0 and at most 1")
        return float(value)

    def count(self, name: str, default: int) -> int:
        """An integer that may be 0."""
        return 0 if self._is_zero(name) else self.size(name, default)

    def _is_zero(self, name: str) -> bool:
        value = self.given.get(name)
        return isinstance(value, int) and not isinstance(value, bool) and value == 0

    def present(self, name: str, default: bool) -> bool:
        """Whether a switch that takes a positive number is on (null or 0: off)."""
        if name not in self.given:
            return default
        value = self.given[name]
        if value is None:
            return False
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise self._wrong(name, "a positive number, or null")
        return value > 0

    def indices(self, name: str, below: int) -> tuple[int, ...]:
        """A list of layer numbers."""
        value = self.given.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(
            isinstance(v, int) and not isinstance(v, bool) and 0 <= v < below for v in value
        ):
            raise self._wrong(name, f"a list of layer numbers from 0 to {below - 1}")
        return tuple(sorted(set(value)))

    def names(self, name: str, allowed: tuple[str, ...], length: int) -> tuple[str, ...]:
        """A list of `length` words; empty where the field is absent."""
        value = self.given.get(name)
        if value is None:
            return ()
        if (
            not isinstance(value, list)
            or len(value) != length
            or any(v not in allowed for v in value)
        ):
            raise self._wrong(name, f"a list of {length} times {' or '.join(allowed)}")
        return tuple(value)

    def off(self, name: str, what: str) -> None:
        """Refuse a variant that is not modelled."""
        if self.flag(name, False):
            raise AtollError(f"{self.where}: {name} is true, but {what} is not modelled")

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

    def heads_and_key_heads(self) -> tuple[int, int]:
        heads = self.size("num_attention_heads")
        kv_heads = self.size("num_key_value_heads", heads)
        self.divides("num_key_value_heads", kv_heads, "num_attention_heads", heads)
        return heads, kv_heads

    def rotated(self, share: float, head_dim: int, name: str) -> int:
        """Columns of a head that a partial rotary embedding turns: a share of them, in pairs."""
        columns = int(share * head_dim)
        if columns < 2 or columns % 2:
            raise AtollError(
                f"{self.where}: {name} is {share}, but that share of a head of {head_dim} must be "
                "an even number of columns"
            )
        return columns

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
