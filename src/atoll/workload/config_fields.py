"""Checked reading of a JSON object: every mistake becomes one sentence naming file and field."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from atoll.errors import AtollError

# Names under which Hugging Face configurations give the same function.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_python": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "relu2": "relu2",
    "silu": "silu",
    "swish": "silu",
    "tanh": "tanh",
    "xielu": "xielu",
}

# Fields that transformers 5 writes under another of their names.
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "num_experts": ("num_experts", "num_local_experts"),
    "num_local_experts": ("num_local_experts", "num_experts"),
    "n_routed_experts": ("n_routed_experts", "num_local_experts"),
}


_TYPING_ERROR = 0.93  # of all letters, those that agree
# Fields of other meanings with names so close.
_OTHERS = frozenset({"n_group", "n_groups"})


@dataclass(frozen=True)
class Fields:
    """A JSON object whose fields are asked for by name and kind.

    A default stands in for a field that is absent or null; without one the field is required. A
    family may spell a field differently (`spelling`, in order of preference), and have its own
    value where the file does not mention it (`silent`).
    """

    given: Mapping[str, object]
    where: str
    spelling: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: SPELLINGS)
    silent: Mapping[str, object] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)

    def spelled(
        self, spelling: Mapping[str, tuple[str, ...]], silent: Mapping[str, object]
    ) -> Fields:
        """The same object as a family writes it."""
        return replace(
            self, spelling={**self.spelling, **spelling}, silent={**self.silent, **silent}
        )

    def key(self, name: str) -> str:
        """The name under which the file has a field."""
        candidates = self.spelling.get(name, (name,))
        self.asked.update(candidates)
        present = [key for key in candidates if key in self.given]
        return next(
            (key for key in present if self.given[key] is not None), (*present, *candidates)[0]
        )

    def get(self, name: str) -> object:
        key = self.key(name)
        return self.given[key] if key in self.given else self.silent.get(name)

    def near_miss(self) -> None:
        """Refuse a field that no one reads where a reader missed one of almost that name."""
        missed = [name for name in self.asked if name not in self.given]
        for name in self.given:
            close = difflib.get_close_matches(name, missed, n=1, cutoff=_TYPING_ERROR)
            if name not in self.asked and name not in _OTHERS and close:
                raise AtollError(
                    f"{self.where}: {name} is no field of this family; did you mean {close[0]}?"
                )

    def _missing(self, name: str) -> AtollError:
        name = self.key(name)
        close = difflib.get_close_matches(name, set(self.given) - self.asked, n=1, cutoff=0.8)
        hint = f"; is {close[0]!r} meant for it?" if close else ""
        return AtollError(f"{self.where}: field {name!r} is missing{hint}")

    def _wrong(self, name: str, allowed: str) -> AtollError:
        name = self.key(name)
        value = self.given.get(name, self.silent.get(name))
        return AtollError(f"{self.where}: {name} is {value!r}, but must be {allowed}")

    def size(self, name: str, default: int | None = None) -> int:
        """A positive integer."""
        value = self.get(name)
        if value is None:
            if default is None:
                raise self._missing(name)
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._wrong(name, "a positive integer")
        return value

    def probability(self, name: str, default: float) -> float:
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            raise self._wrong(name, "a probability from 0 up to, but not including, 1")
        return float(value)

    def share(self, name: str, default: float) -> float:
        """A number above 0 and up to 1."""
        value = self.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise self._wrong(name, "a number above 0 and at most 1")
        return float(value)

    def count(self, name: str, default: int) -> int:
        """An integer that may be 0."""
        return 0 if self._is_zero(name) else self.size(name, default)

    def _is_zero(self, name: str) -> bool:
        value = self.get(name)
        return isinstance(value, int) and not isinstance(value, bool) and value == 0

    def present(self, name: str, default: bool) -> bool:
        """Whether a switch that takes a positive number is on (null or 0: off)."""
        if self.key(name) not in self.given:
            return default
        value = self.get(name)
        if value is None:
            return False
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise self._wrong(name, "a positive number, or null")
        return value > 0

    def indices(self, name: str, below: int) -> tuple[int, ...]:
        """A list of layer numbers."""
        value = self.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(
            isinstance(v, int) and not isinstance(v, bool) and 0 <= v < below for v in value
        ):
            raise self._wrong(name, f"a list of layer numbers from 0 to {below - 1}")
        return tuple(sorted(set(value)))

    def names(self, name: str, allowed: tuple[str, ...], length: int) -> tuple[str, ...]:
        """A list of `length` words; empty where the field is absent."""
        value = self.get(name)
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
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self.get(name)
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

    def uniform(self, name: str) -> int:
        """A size, or a list with the same size for every layer."""
        value = self.get(name)
        if not isinstance(value, list):
            return self.size(name)
        first = value[0] if value else None
        whole = isinstance(first, int) and not isinstance(first, bool) and first > 0
        if not whole or any(v != first for v in value):
            raise self._wrong(name, "one size, the same for all layers")
        assert isinstance(first, int)
        return first

    def rotary_share(self, name: str, default: float) -> float:
        """The share of a head that is rotated: by itself, or with the other rotary parameters."""
        if self.get(name) is not None:
            return self.share(name, default)
        inner = self.block("rope_parameters")
        if isinstance(inner.get("full_attention"), dict):
            inner = inner.block("full_attention")
        return inner.share("partial_rotary_factor", default)

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
        value = self.get(name)
        value = {} if value is None else value
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
