"""Checked reading of a JSON object: every mistake becomes one sentence naming file and field."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from atoll.base.errors import AtollError

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
    "rope_theta": ("rope_theta", "rotary_emb_base"),
    "norm_epsilon": (
        "rms_norm_eps",
        "layer_norm_eps",
        "layer_norm_epsilon",
        "layernorm_epsilon",
        "norm_eps",
        "norm_epsilon",
    ),
}


MOST = 10**9
"""Largest count."""
MOST_LAYERS = 10_000
MOST_OF = {
    "hidden_size": 10**6, "num_attention_heads": 10**5, "num_key_value_heads": 10**5,
    "head_dim": 10**5, "intermediate_size": 10**8, "vocab_size": 10**8, "num_experts": 10**6,
    "ffn_hidden_size": 10**8, "moe_ffn_hidden_size": 10**8, "kv_channels": 10**5,
}  # fmt: skip
"""Largest sizes by field of a configuration, or argument of a launch file."""
MOST_NUMBER = 1e15


def largest_size(name: str, otherwise: int) -> int:
    """Return the largest plausible value of a field; `otherwise` where it has no limit."""
    return MOST_LAYERS if "layers" in name else MOST_OF.get(name, otherwise)


_REQUIRED = object()
_TYPING_ERROR = 0.93  # of all letters, those that agree
# Fields of other meanings with names so close.
_OTHERS = frozenset({"n_group", "n_groups"})


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True)
class Fields:
    """A JSON object whose fields are asked for by name and kind.

    A default stands in for a field that is absent or null; without one the field is required. A
    family may spell a field differently (`spelling`, in order of preference), and have its own
    default (`silent`: a value, or how to find it). A window of null is none at all.
    """

    entries: Mapping[str, object]
    where: str
    spelling: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    silent: Mapping[str, object] = field(default_factory=dict)
    names_read: set[str] = field(default_factory=set)

    def spelled(
        self, spelling: Mapping[str, tuple[str, ...]], silent: Mapping[str, object]
    ) -> Fields:
        """Add a family's spellings and defaults, below those already set."""
        spelling, silent = {**spelling, **self.spelling}, {**silent, **self.silent}
        return replace(self, spelling=spelling, silent=silent)

    def key(self, name: str) -> str:
        """The name under which the file has a field."""
        candidates = self.spelling.get(name) or SPELLINGS.get(name, (name,))
        self.names_read.update(candidates)
        present = [key for key in candidates if key in self.entries]
        filled = [key for key in present if self.entries[key] is not None]
        return (*filled, *present, *candidates)[0]

    def get(self, name: str) -> object:
        key = self.key(name)
        if self.entries.get(key) is not None or (key in self.entries and name == "sliding_window"):
            return self.entries[key]
        usual = self.silent.get(name)
        return usual(self) if callable(usual) else usual

    def near_miss(self) -> None:
        """Refuse an unread field whose name is close to a missing one."""
        missed = [name for name in self.names_read if name not in self.entries]
        for name in self.entries:
            close = difflib.get_close_matches(name, missed, n=1, cutoff=_TYPING_ERROR)
            if name not in self.names_read and name not in _OTHERS and close:
                raise AtollError(
                    f"{self.where}: {name} is no field of this family; did you mean {close[0]}?"
                )

    def _missing(self, name: str) -> AtollError:
        name = self.key(name)
        unread = set(self.entries) - self.names_read
        close = difflib.get_close_matches(name, unread, n=1, cutoff=0.8)
        hint = f"; is {close[0]!r} meant for it?" if close else ""
        return AtollError(f"{self.where}: field {name!r} is missing{hint}")

    def _wrong(self, name: str, allowed: str) -> AtollError:
        name = self.key(name)
        value = self.entries.get(name, self.silent.get(name))
        return AtollError(f"{self.where}: {name} is {value!r}, but must be {allowed}")

    def _checked(self, name: str, default: Any, right: Callable[[Any], bool], allowed: str) -> Any:
        """Return the field or its default, or raise if it is invalid."""
        value = self.get(name)
        if value is None:
            if default is _REQUIRED:
                raise self._missing(name)
            return default
        if not right(value):
            raise self._wrong(name, allowed)
        return value

    def size(self, name: str, default: int | None = None, most: int = MOST) -> int:
        """A positive integer."""
        otherwise, allowed = _REQUIRED if default is None else default, "a positive integer"
        size: int = self._checked(name, otherwise, lambda v: _is_int(v) and v >= 1, allowed)
        limit = largest_size(name, most)
        if size > limit:
            raise self._wrong(name, f"at most {limit}")
        return size

    def probability(self, name: str, default: float) -> float:
        allowed = "a probability from 0 up to, but not including, 1"
        return float(self._checked(name, default, lambda v: _number(v) and 0 <= v < 1, allowed))

    def share(self, name: str, default: float) -> float:
        """A number above 0 and up to 1."""
        allowed = "a number above 0 and at most 1"
        return float(self._checked(name, default, lambda v: _number(v) and 0 < v <= 1, allowed))

    def positive(self, name: str) -> float | None:
        """A number above 0; None if absent."""
        allowed = "a number above 0"
        number = self._checked(name, None, lambda v: _number(v) and 0 < v < MOST_NUMBER, allowed)
        return None if number is None else float(number)

    def count(self, name: str, default: int) -> int:
        """An integer that may be 0."""
        value = self.get(name)
        return 0 if _is_int(value) and value == 0 else self.size(name, default)

    def present(self, name: str, default: bool) -> bool:
        """Whether a switch that takes a positive number is on (null or 0: off)."""
        if self.key(name) not in self.entries:
            return default
        allowed = "a positive number, or null"
        return bool(self._checked(name, 0, lambda v: _number(v) and v >= 0, allowed) > 0)

    def indices(self, name: str, below: int) -> tuple[int, ...]:
        """A list of layer numbers."""

        def right(value: Any) -> bool:
            return isinstance(value, list) and all(_is_int(v) and 0 <= v < below for v in value)

        allowed = f"a list of layer numbers from 0 to {below - 1}"
        return tuple(sorted(set(self._checked(name, (), right, allowed))))

    def names(self, name: str, allowed: tuple[str, ...], length: int) -> tuple[str, ...]:
        """A list of `length` words; empty where the field is absent."""

        def right(value: Any) -> bool:
            all_allowed = isinstance(value, list) and all(word in allowed for word in value)
            return all_allowed and len(value) == length

        words = f"a list of {length} times {' or '.join(allowed)}"
        return tuple(self._checked(name, (), right, words))

    def off(self, name: str, what: str) -> None:
        """Refuse a variant that is not modelled."""
        if self.flag(name, False):
            raise AtollError(f"{self.where}: {name} is true, but {what} is not modelled")

    def flag(self, name: str, default: bool) -> bool:
        return bool(self._checked(name, default, lambda v: isinstance(v, bool), "true or false"))

    def text(self, name: str, default: str | None = None) -> str:
        otherwise = _REQUIRED if default is None else default
        return str(self._checked(name, otherwise, lambda v: isinstance(v, str), "a text"))

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
        value: Any = self.get(name)
        if not isinstance(value, list):
            return self.size(name)
        first = value[0] if value else 0
        if not _is_int(first) or first < 1 or any(v != first for v in value):
            raise self._wrong(name, "one size, the same for all layers")
        return int(first)

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
        value = self._checked(name, {}, lambda v: isinstance(v, dict), "a JSON object")
        return Fields(value, f"{self.where}, {name}")

    def divides(self, part: str, parts: int, total_key: str, total: int) -> None:
        if total % parts:
            raise AtollError(
                f"{self.where}: {self.key(part)} is {parts}, but must divide "
                f"{self.key(total_key)}, {total}"
            )
