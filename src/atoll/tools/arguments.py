"""Account of a launch file's arguments: used, without effect, or not understood."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from fnmatch import translate
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal

from pydantic import Field

from atoll.base.errors import AtollError
from atoll.files.yamlfile import FileModel, read_shipped
from atoll.workload.families.config_fields import largest_size
from atoll.workload.families.model_config import ModelConfig

OFF = ("0", "false", "no", "off", "none", "null", "")
"""Values of a switch that is off."""
ALIKE = 0.9
"""Similarity from which an unknown argument is taken for a misspelled one (difflib's ratio)."""
LARGEST_NUMBER = 1e18
"""No number of a launch file is larger."""


class Argument(FileModel):
    """A field of a model or a layout, and how an argument states it, in both directions."""

    field: str
    kind: Literal["size", "count", "number", "switch", "unless", "text"] = "count"
    """A size is required; a switch sets the field, `unless` clears it."""
    also: tuple[str, ...] = ()
    """Other arguments that set the field."""
    default: int | float | str | None = 0
    words: dict[str, str] = Field(default_factory=dict)
    """Words of the argument, and the field's words."""

    def read(self, name: str, args: LaunchArguments) -> Any:
        """Return the field's value in a launch file."""
        if self.kind in ("switch", "unless"):
            return args.has(name, *self.also) == (self.kind == "switch")
        if self.kind == "size":
            return args.size(name)
        if self.kind == "number":
            number = args.number(name)
            return self.default if number is None else number
        if self.kind == "count":
            return args.count(name, *self.also) or self.default
        word = args.text(name) or str(self.default)
        if self.words and word not in self.words:
            raise AtollError(f"{args.file}: {name} {word!r} is not modelled")
        return self.words.get(word, word)

    def write(self, described: object) -> Any:
        """Return the argument's value for a model or layout; None and False are omitted."""
        value = getattr(described, self.field)
        if self.kind == "unless":
            return not value
        if self.kind == "text":
            if not self.words:
                return None if value == self.default else value
            return next(word for word, meaning in self.words.items() if meaning == value)
        return (value or None) if self.kind == "count" else value


class ArgumentNames(FileModel):
    """Names in launch files of one software (`arguments.yaml`); * stands for any part of one."""

    fields: dict[str, dict[str, Argument]] = Field(default_factory=dict)
    """Arguments that state fields of a model or of a layout, by groups."""
    without_effect: tuple[str, ...]
    """Names that change neither the time nor the memory of a training step."""
    as_priced: tuple[str, ...] = ()
    tuning: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()
    renamed: dict[str, str] = Field(default_factory=dict)
    """Megatron-core's names of them."""
    negated: dict[str, str] = Field(default_factory=dict)
    refused: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """What a program does instead of training a decoder of texts as it is modelled, and arguments
    that only such a program has."""
    not_modelled: dict[str, str] = Field(default_factory=dict)
    """Names that change time or memory in a way that is not priced, and what they do."""
    usual: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """Values with which arguments are as priced, in lower case; others are not modelled."""
    plain: tuple[str, ...] = ()
    layout: tuple[str, ...] = ()
    """Names that go with a layout, beside those that describe it: another layout drops them."""
    tokens: tuple[str, ...] = ()
    """Names of the tokenizer, which stays with another layout."""
    about_switches: dict[str, tuple[str, ...]] = Field(default_factory=dict)

    def refuse_programs(
        self, file: str, has: Callable[[str], bool], file_names: Mapping[str, str]
    ) -> None:
        """Refuse a file whose arguments are those of a program that is not modelled."""
        for action, arguments in self.refused.items():
            if argument := next(filter(has, arguments), ""):
                argument = file_names.get(argument, argument)
                raise AtollError(f"{file}: {action} ({argument}), which is not modelled")

    def read(self, args: LaunchArguments, *groups: str) -> dict[str, Any]:
        """Return the fields that these groups of arguments state."""
        rows = [row for group in groups for row in self.fields[group].items()]
        return {row.field: row.read(name, args) for name, row in rows}

    def write(self, described: object, group: str) -> dict[str, Any]:
        """Return the arguments of a group that state the fields of a model or layout."""
        return {name: row.write(described) for name, row in self.fields[group].items()}


@lru_cache
def load_names(tool: str, name: str = "arguments.yaml") -> ArgumentNames:
    """Load the names of arguments in a tool's folder."""
    file = files(f"atoll.tools.{tool}") / name
    return read_shipped(file.read_text(encoding="utf-8"), ArgumentNames, file.name)


@dataclass(frozen=True)
class ArgumentAccount:
    """Names of arguments, each with its value as it was written."""

    used: Mapping[str, str]
    without_effect: Mapping[str, str]
    """Arguments that change neither time nor memory of a step, or that tune libraries to the rates
    the model assumes (`ArgumentNames.tuning`)."""
    not_modelled: Mapping[str, str]
    """Arguments that change time or memory in a way that is not priced, and what they do."""
    not_understood: Mapping[str, str]
    """Unknown arguments."""
    alike: Mapping[str, str] = field(default_factory=dict)
    """Known arguments that unknown ones are spelled like."""

    @property
    def parts(self) -> tuple[Mapping[str, str], ...]:
        return self.used, self.without_effect, self.not_modelled, self.not_understood

    @property
    def not_priced(self) -> tuple[str, ...]:
        """Arguments that an estimate leaves out, by effect, then unknown ones."""
        effects: dict[str, list[str]] = {}
        for name, effect in self.not_modelled.items():
            effects.setdefault(effect, []).append(name)
        near = {name: f", did you mean {known}?" for name, known in self.alike.items()}
        return (
            *(f"{', '.join(names)}: {effect}" for effect, names in effects.items()),
            *(
                f"{f'{name} {value}'.strip()}: unknown{near.get(name, '')}"
                for name, value in self.not_understood.items()
            ),
        )

    def joined(self, other: ArgumentAccount, prefix: str) -> ArgumentAccount:
        """Return the account with the arguments of another file, under prefixed names."""
        used, ignored, not_modelled, unknown = (
            {**mine, **{f"{prefix}{n}": v for n, v in theirs.items()}}
            for mine, theirs in zip(self.parts, other.parts, strict=True)
        )
        return ArgumentAccount(used, ignored, not_modelled, unknown, self.alike)


@dataclass(frozen=True)
class UserValues:
    """What a user says where a launch file leaves it to its surroundings."""

    model: ModelConfig | None = None
    vocab: int | None = None
    """Vocabulary size, where the file leaves it to a tokenizer."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """Variables of a script, or of the environment (`--set`)."""
    arguments: tuple[str, ...] = ()
    """Arguments of a script."""


@dataclass(frozen=True)
class Launch:
    """Content of a launch file: model, layout and software settings."""

    file: str
    software: str
    """Name of its exporter."""
    model: ModelConfig
    fields: Mapping[str, Any]
    """Fields of `EstimateQuestion`, without model and device."""
    steps: int | None
    """Optimizer steps of the run."""
    arguments: ArgumentAccount
    notes: tuple[str, ...] = ()
    carried: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that no layout changes, as the file spells them: its tool takes them again. Marks
    stand for its variables (`tools.files.variables`)."""
    variables: Mapping[str, str | None] = field(default_factory=dict)
    """Values of variables that its user may set; None: no argument has it."""
    editable_lines: Mapping[str, str] = field(default_factory=dict)
    """Lines of a Python script that its user may have changed, by the variable that they set."""


@dataclass
class LaunchArguments:
    """Arguments by name; reading one marks it as used, the others are not understood."""

    file: str
    values: Mapping[str, Any]
    """Value by name: None for a switch, else a text, a number or a list."""
    unknown: str = "\x00"
    vocab: int | None = None
    """Vocabulary size given by the user, where the file leaves it to a tokenizer."""
    unset: tuple[str, ...] = ()
    """Variables that the file uses without setting them."""
    file_names: Mapping[str, str] = field(default_factory=dict)
    """Names in the file of arguments that were renamed."""
    used: dict[str, str] = field(default_factory=dict)
    ignored: dict[str, str] = field(default_factory=dict)
    not_modelled: dict[str, str] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    """Names that were looked for, stated or not."""

    def has(self, *names: str) -> bool:
        """Return whether at least one of these switches is on."""
        return sum(self._switch(name) for name in names) > 0

    def off(self, name: str) -> bool:
        """Return whether a switch is stated and off."""
        return name in self.values and not self._switch(name)

    def refuse_offload(self, *names: str) -> None:
        """Refuse a run in which one of these offloads weights or states to the host."""
        for name in names:
            if self.has(name) and str(self.values[name] or "cpu").lower() != "none":
                raise AtollError(
                    f"{self.file}: offloads to the host ({name}), which is not modelled; take it "
                    "out to see the run without it"
                )

    def _switch(self, name: str) -> bool:
        self.asked.add(name)
        if name in self.values:
            self._use(name)
        return name in self.values and self._is_on(name)

    def _is_on(self, name: str) -> bool:
        value = self.values[name]
        return value.lower() not in OFF if isinstance(value, str) else value is None or bool(value)

    def text(self, *names: str) -> str | None:
        """Return the value of the first of these names that is set."""
        first_text = None
        self.asked.update(names)
        for name in names:
            if self.values.get(name) is not None:
                self._use(name)
                text = _text_of(self.values[name])
                if self.unknown in text:
                    named = re.findall(rf"{self.unknown}([A-Za-z_][\w.]*)", text)
                    unset_names = ", ".join(named or self.unset[:8])
                    raise AtollError(
                        f"{self.file}: {name} depends on a value that the file does not set; say "
                        f"it with --set NAME=VALUE{f' ({unset_names})' if unset_names else ''}"
                    )
                first_text = text if first_text is None else first_text
        return first_text

    def number(self, *names: str) -> float | None:
        text = self.text(*names)
        if text is None:
            return None
        try:
            number = float(text)
            if abs(number) > LARGEST_NUMBER:  # an infinite one too
                raise ValueError
            return number
        except ValueError:
            raise AtollError(f"{self.file}: {names[0]} is {text[:40]!r}, not a number") from None

    def count(self, *names: str) -> int | None:
        number = self.number(*names)
        if number is None:
            return None
        if not number >= 0 or number != int(number):
            raise AtollError(f"{self.file}: {names[0]} is {number:g}, not a whole number")
        if number > (largest := largest_size(names[0], int(LARGEST_NUMBER))):
            raise AtollError(f"{self.file}: {names[0]} is {number:g}, but at most {largest:,}")
        return int(number)

    def size(self, name: str) -> int:
        """Return a positive count that the model's shape requires."""
        count = self.count(name)
        if not count:
            raise AtollError(f"{self.file}: does not say {name}, which its model's shape needs")
        return count

    def _use(self, name: str) -> None:
        self.used[name] = self._written(name)

    def _written(self, name: str) -> str:
        value = self.values[name]
        return "" if value is None else _text_of(value).replace(self.unknown, "?")

    def refuse_programs(self, names: ArgumentNames) -> None:
        """Refuse a program that does something else than what is modelled."""
        names.refuse_programs(self.file, self.values.__contains__, self.file_names)

    def ignore(self, patterns: Iterable[str]) -> None:
        """Mark unused arguments that match as without effect on time and memory of a step."""
        for name in filter(_matcher(patterns).match, self._unused()):
            self.ignored[name] = self._written(name)

    def doubt(self, effects: Mapping[str, str]) -> None:
        """Mark unused arguments that match as not modelled, or as without effect where off."""
        for pattern, effect in effects.items():
            for name in filter(_matcher([pattern]).match, self._unused()):
                if self._is_on(name):
                    self.not_modelled[name] = effect
                else:
                    self.ignored[name] = self._written(name)

    def _unused(self) -> list[str]:
        listed = (self.used, self.ignored, self.not_modelled)
        return [name for name in self.values if not any(name in part for part in listed)]

    def carried(self, described: Iterable[str], names: ArgumentNames) -> dict[str, Any]:
        """Return the arguments that no layout changes: not those `described` by run and layout."""
        bound, tokens = _matcher(names.layout), _matcher(names.tokens)
        return {name: True if value is None else value for name, value in self.values.items()
                if tokens.match(name) or not (name in described or bound.match(name))}  # fmt: skip

    def account(self, *names: ArgumentNames, more: Iterable[str] = ()) -> ArgumentAccount:
        """Return the account under the file's names; `more`: patterns without effect."""
        patterns = [*more]
        for part in names:
            for name in [name for name in part.usual if name in self.values]:
                if _as_number(self._written(name)) in map(_as_number, part.usual[name]):
                    self._use(name)
            patterns += [*part.without_effect, *part.as_priced, *part.tuning, *part.sections]
        self.ignore(patterns)
        for part in names:
            self.doubt(part.not_modelled)
        unknown = {name: self._written(name) for name in self._unused()}
        known = {name for part in names for group in part.fields.values() for name in group}
        absent = (self.asked | known) - self.values.keys()
        near = {name: get_close_matches(name, sorted(absent), 1, ALIKE) for name in unknown}
        alike = {name: close[0] for name, close in near.items() if close}
        return ArgumentAccount(
            *(
                {self.file_names.get(name, name): value for name, value in account.items()}
                for account in (self.used, self.ignored, self.not_modelled, unknown, alike)
            )
        )


def _text_of(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _matcher(patterns: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)) or "(?!)")


def switched_on(words: Mapping[str, object]) -> str:
    """Return the words whose value is true, for `--overlap` and `--flags`."""
    return " ".join(word for word, on in words.items() if on)


def _as_number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text.lower()


def stated(
    content: Mapping[str, Any], unstated: Any = None
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of nested sections by dotted names, and the names that are left open."""
    values = dict(flatten(content))
    left_open = {n: str(v or "") for n, v in values.items() if v == unstated}
    return {name: v for name, v in values.items() if name not in left_open}, left_open


def flatten(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of nested sections under their names joined with dots."""
    for name, value in content.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
