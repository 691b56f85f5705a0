"""Every argument of a launch file accounted for: used, without effect, or not understood."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from functools import lru_cache
from importlib.resources import files
from typing import Any

from pydantic import Field

from atoll.errors import AtollError
from atoll.files.yamlfile import FileModel, read_shipped
from atoll.workload.families.model_config import ModelConfig

_WORDS = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False,
          "1": True, "0": False, "": False}  # fmt: skip


MOST = 1e18
"""No number of a launch file is larger."""


class Words(FileModel):
    """Names in launch files of one software (`words/`); * stands for any part of one."""

    without_effect: tuple[str, ...]
    """They change neither the time nor the memory of a training step."""
    as_priced: tuple[str, ...] = ()
    tuning: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()
    renamed: dict[str, str] = Field(default_factory=dict)
    """In megatron-core's words."""
    negated: dict[str, str] = Field(default_factory=dict)
    trains_else: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    no_training: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    not_trained: tuple[str, ...] = ()
    not_modelled: dict[str, str] = Field(default_factory=dict)
    plain: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    about_switches: dict[str, tuple[str, ...]] = Field(default_factory=dict)


@lru_cache
def words_of(software: str) -> Words:
    file = files("atoll.launch") / "words" / f"{software}.yaml"
    return read_shipped(file.read_text(encoding="utf-8"), Words, file.name)


@dataclass(frozen=True)
class Accounted:
    """Names of arguments, each with its value as it was written."""

    used: Mapping[str, str]
    without_effect: Mapping[str, str]
    """They change neither the time nor the memory of a step, or make libraries reach the rates that
    are supposed of them (`Words.tuning`)."""
    not_understood: Mapping[str, str]
    """Unknown, or known to matter in a way that is not modelled."""

    def under(self, names: Mapping[str, str], unsaid: Mapping[str, str]) -> Accounted:
        """The same under the names that the file has, with what else has no effect."""
        parts = self.used, {**self.without_effect, **unsaid}, self.not_understood
        return Accounted(*({names.get(n, n): v for n, v in part.items()} for part in parts))


@dataclass(frozen=True)
class Launch:
    """What a launch file says: a model, a layout and the software's habits."""

    file: str
    software: str
    """As exports name it."""
    model: ModelConfig
    fields: Mapping[str, Any]
    """Of `EstimateQuestion`, but for model and device."""
    steps: int | None
    """Optimizer steps of the whole run."""
    arguments: Accounted
    notes: tuple[str, ...] = ()


@dataclass
class Arguments:
    """Arguments by name, taken one by one; what is left is not understood."""

    file: str
    given: Mapping[str, Any]
    """None for a switch; a text, a number or a list."""
    unknown: str = "\x00"
    vocab: int | None = None
    """Tokens of the vocabulary, where the file leaves them to a tokenizer."""
    unset: tuple[str, ...] = ()
    """Variables that the file asks for and does not set."""
    used: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)

    def has(self, *names: str) -> bool:
        """Whether one of these switches is on."""
        return sum(self._switch(name) for name in names) > 0

    def refuse_offload(self, *names: str) -> None:
        """Refuse a run in which one of these puts weights or states in the host's memory."""
        for name in names:
            if self.has(name) and str(self.given[name] or "cpu").lower() != "none":
                raise AtollError(
                    f"{self.file}: offloads to the host ({name}), which is not modelled; take it "
                    "out to see the run without it"
                )

    def _switch(self, name: str) -> bool:
        if name not in self.given:
            return False
        self._use(name)
        value = self.given[name]
        if isinstance(value, str):
            value = _WORDS.get(value.lower(), True)
        return value is None or bool(value)

    def text(self, *names: str) -> str | None:
        """The value of the first of these that is given."""
        found = None
        for name in names:
            if self.given.get(name) is not None:
                self._use(name)
                value = self.given[name]
                said = " ".join(map(str, value)) if isinstance(value, list) else str(value)
                if self.unknown in said:
                    open_ = ", ".join(self.unset[:8])
                    raise AtollError(
                        f"{self.file}: {name} depends on a value that the file does not set; say "
                        f"it with --set NAME=VALUE{f' ({open_})' if open_ else ''}"
                    )
                found = said if found is None else found
        return found

    def number(self, *names: str) -> float | None:
        said = self.text(*names)
        if said is None:
            return None
        try:
            found = float(said)
            if abs(found) > MOST:  # an infinite one too
                raise ValueError
            return found
        except ValueError:
            raise AtollError(f"{self.file}: {names[0]} is {said[:40]!r}, not a number") from None

    def count(self, *names: str) -> int | None:
        found = self.number(*names)
        if found is not None and (not found >= 0 or found != int(found)):
            raise AtollError(f"{self.file}: {names[0]} is {found:g}, not a whole number")
        return None if found is None else int(found)

    def size(self, name: str) -> int:
        """A number that a model cannot do without."""
        found = self.count(name)
        if not found:
            raise AtollError(f"{self.file}: does not say {name}, which its model's shape needs")
        return found

    def _use(self, name: str) -> None:
        self.used[name] = self._written(name)

    def _written(self, name: str) -> str:
        value = self.given[name]
        said = " ".join(map(str, value)) if isinstance(value, list) else str(value)
        return "" if value is None else said.replace(self.unknown, "?")

    def one_of(self, kinds: Mapping[str, Iterable[str]]) -> tuple[str, str]:
        """What is said by arguments that only it has, and the first of these; nothing of both."""
        found = ((what, n) for what, names in kinds.items() for n in names if n in self.given)
        return next(found, ("", ""))

    def ignore(self, patterns: Iterable[str]) -> None:
        """Name what has no effect on the time or the memory of a step."""
        listed = re.compile("|".join(translate(pattern) for pattern in patterns))
        for name in self.given:
            if name not in self.used and listed.match(name):
                self.ignored[name] = self._written(name)

    def accounted(self) -> Accounted:
        left = [n for n in self.given if n not in self.used and n not in self.ignored]
        return Accounted(self.used, self.ignored, {name: self._written(name) for name in left})


def flat(content: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Values of nested sections, by their names joined with points."""
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value
