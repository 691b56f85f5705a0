"""Base of questions: fields with a type, a default, a sentence and a group.

Everything that a user sees of a question follows from its fields: options and `--help` (`options`,
`texts`), Python keywords and job files (`ask`), JSON Schema, tables of the docs and editor stubs.
To add an option, add a field to one class and run tests/questions/written.py for the last two.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, Field, JsonValue, WithJsonSchema, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, PydanticUndefined, core_schema

from atoll.base import units
from atoll.base.errors import AtollError
from atoll.base.registry import Registry, import_named
from atoll.files.yamlfile import MOST, FileModel, quantity, suggestion, validate_dict

OUTPUT = "Output"
"""Group of the options for output files."""


class Question(FileModel):
    """Base of all questions. Fields take the name that options, keywords and job files have."""

    example: ClassVar[str] = ""
    """An example command."""
    positional: ClassVar[tuple[str, ...]] = ()
    """Fields that Python also takes as positional arguments."""
    arguments: ClassVar[tuple[str, ...]] = ()
    """Fields that the command line takes as arguments."""
    offered: ClassVar[tuple[str, ...]] = ()
    """Fields that are options and keywords; empty: all."""
    answer_keys: ClassVar[Mapping[str, str]] = {}
    """Names of fields in answers, if they differ."""

    @classmethod
    def of(cls, **fields: Any) -> Self:
        """The question with these fields.

        Args:
            fields: What options, keywords and job files have under the same names.

        Returns:
            The question, checked.

        Raises:
            AtollError: A sentence for every field that is wrong.

        Examples:
            >>> import atoll
            >>> atoll.PlanQuestion.of(model="gpt2-xl", device="h100", devices=8, batch=8).attention
            'flash'
        """
        return validate_dict(fields, cls, "")

    @classmethod
    def needed(cls, given: Container[str]) -> list[str]:
        """Fields that must be given.

        Args:
            given: Names of the fields that are.

        Returns:
            The names of those without a default.

        Examples:
            >>> import atoll
            >>> atoll.SearchQuestion.needed([])
            []
        """
        return [name for name, info in cls.model_fields.items() if info.is_required()]

    @model_validator(mode="after")
    def _outputs_are_no_inputs(self) -> Self:
        """Refuse to overwrite a file that another field names."""
        values = {name: getattr(self, name) for name in self.model_fields_set}
        for name, path in values.items():
            info = type(self).model_fields[name]
            output = about(info, "writes", False) or about(info, "group") == OUTPUT
            if not (output and isinstance(path, Path) and _exists(path) and path.is_file()):
                continue
            for reader, candidate in values.items():
                files = (v for v in _listed(candidate) if isinstance(v, str | Path) and _exists(v))
                if reader != name and any(path.samefile(file) for file in files):
                    raise ValueError(
                        f"{name}: {path} is also given as {reader} and would be overwritten; "
                        "give another file"
                    )
        return self

    def asked(self) -> dict[str, Any]:
        """The fields that were given.

        Returns:
            Their values by name.

        Examples:
            >>> import atoll
            >>> atoll.SearchQuestion.of(devices=8).asked()
            {'devices': 8}
        """
        return {name: getattr(self, name) for name in self.model_fields_set}

    def changed(self, **fields: Any) -> Self:
        """The question with some fields replaced.

        Args:
            fields: What is asked anew. A sequence holds for every model.

        Returns:
            Another question, checked.

        Raises:
            AtollError: A sentence for every field that is wrong.

        Examples:
            >>> import atoll
            >>> atoll.SearchQuestion.of(devices=8).changed(devices=16).devices
            16
        """
        return self.of(**self.asked() | fields)

    def to_dict(self) -> dict[str, JsonValue]:
        """The question as answers state it.

        Returns:
            Plain JSON data.

        Examples:
            >>> import atoll
            >>> atoll.SearchQuestion.of(batch=64).to_dict()["global_batch"]
            64
        """
        items = self.model_dump(mode="json").items()
        return {self.answer_keys.get(name, name): value for name, value in items}

    @classmethod
    def from_dict(cls, told: Mapping[str, JsonValue]) -> Self:
        """The question that an answer states.

        Args:
            told: What `to_dict` returned.

        Returns:
            The question.

        Raises:
            AtollError: It was written by another version.

        Examples:
            >>> import atoll
            >>> asked = atoll.SearchQuestion.of(devices=8)
            >>> atoll.SearchQuestion.from_dict(asked.to_dict()).devices
            8
        """
        names = {key: name for name, key in cls.answer_keys.items()}
        fields = {names.get(key, key): value for key, value in told.items()}
        if fields.keys() - cls.model_fields.keys():
            raise AtollError("job: written by another version of atoll; run it again.")
        return cls.of(**fields)


def explicit_fields(question: Question) -> dict[str, JsonValue]:
    """Return the fields that were set, as JSON with absolute file paths."""
    fields: dict[str, JsonValue] = question.model_dump(mode="json", exclude_unset=True)
    for name, value in fields.items():
        info = type(question).model_fields[name]
        parts = (*info.metadata, *inside(info.annotation))
        if isinstance(value, str) and any(isinstance(p, Named) and p.file for p in parts):
            path = Path(_file_part(value))
            if (path.suffix or len(path.parts) > 1) and _exists(path):
                fields[name] = str(Path(value).absolute())
    return {name: value for name, value in fields.items() if value is not None}


def option(
    help: str,
    group: str,
    default: Any = PydanticUndefined,
    *,
    shown: str = "",
    old: tuple[str, ...] = (),
    file_only: bool = False,
    exclude: bool = False,
    writes: bool = False,
) -> Any:
    """Declare a field with its help text and group.

    `shown`: its default in words. `old`: names of the last release. `file_only`: too deep for an
    option. `exclude`: not repeated in answers (output paths, workers). `writes`: an output file.
    """
    extras = {
        "group": group, "shown": shown, "old": [*old], "file_only": file_only, "writes": writes,
    }  # fmt: skip
    extra: dict[str, Any] = {f"x-{name}": value for name, value in extras.items() if value}
    return Field(default, description=help, exclude=exclude or None, json_schema_extra=extra)


def about(info: FieldInfo, name: str, default: Any = "") -> Any:
    """Return an attribute of a field that `option` set."""
    extra = info.json_schema_extra
    return extra.get(f"x-{name}", default) if isinstance(extra, dict) else default


# --- Types of fields ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Named:
    """A value listed by a registry or accepted by a loader ("module:attribute"). Both are imported
    on use, so that `atoll --help` imports little and includes plug-ins. Python may pass an object
    of the registry's kind instead of its name.
    """

    registry: str = ""
    loader: str = ""
    file: bool = False
    """Whether it may be a file; paths of a job file are relative to its folder."""
    offers: str = ""
    """Function that returns names for shell completion, if not all values are listed."""

    @property
    def listed(self) -> Any:
        registry = import_named(self.registry) if self.registry else ()
        return registry() if callable(registry) else registry

    def names(self) -> tuple[Any, ...]:
        """Return the listed values in order."""
        return tuple(self.listed)

    def to_name(self, value: Any) -> Any:
        """Convert an object to its name, and a path to text."""
        if isinstance(value, Path):
            return str(value)
        if isinstance(value, str) or not isinstance(registry := self.listed, Registry):
            return value
        try:
            return registry.accept(value)
        except AtollError as error:
            raise ValueError(str(error)) from None

    def check(self, value: Any, info: core_schema.ValidationInfo) -> Any:
        if self.file:
            value = locate(value, info)
        try:
            if self.loader:
                import_named(self.loader)(value)
            elif self.registry and value not in self.listed:
                near = suggestion(value, map(str, self.names()))
                raise ValueError(f"{value!r} is not known{near}")
            elif isinstance(registry := self.listed, Registry):
                registry[value]  # raises if a plug-in cannot be imported
        except AtollError as error:
            raise ValueError(str(error).removesuffix(".")) from None
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        checked = core_schema.with_info_after_validator_function(self.check, handler(source))
        return core_schema.no_info_before_validator_function(self.to_name, checked)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: Any) -> dict[str, Any]:
        inside: dict[str, Any] = handler(schema)
        names = list(self.names())
        if not names:
            return inside
        return inside | ({"examples": names} if self.loader else {"enum": names})


def locate(value: str, info: core_schema.ValidationInfo) -> str:
    """Return the path of a file named in a job file: in the job's folder if it exists there."""
    folder = (info.context or {}).get("folder")
    file = _file_part(value)
    if folder is not None and _exists(folder / file) and not _exists(file):
        return str(folder / value)
    return value


def _file_part(value: str) -> str:
    """Return the file of a value; a level with its bandwidth may follow that of a network."""
    file, _, change = value.rpartition(":")
    return _file_part(file) if file and "=" in change else value


def _exists(path: str | Path) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # for example a name that is too long
        return False


def _listed(value: Any) -> Any:
    return tuple(value) if isinstance(value, list | tuple | range) else (value,)


Several = BeforeValidator(_listed)
"""For tuples: a single value becomes a tuple of one."""


Measured = WithJsonSchema({"type": ["string", "number"]})
"""For quantities: text with a unit, or a number of the base unit."""
Area = Annotated[float, quantity(units.AREA, "mm2"), Field(gt=0), Measured]
Power = Annotated[float, quantity(units.POWER, "W"), Field(gt=0), Measured]
Density = Annotated[float, quantity(units.POWER_DENSITY, "W/mm2"), Field(gt=0), Measured]
Seconds = Annotated[float, quantity(units.TIME, "s"), Field(gt=0), Measured]
TokenCount = Annotated[
    int, BeforeValidator(units.parse_tokens), Field(strict=True, gt=0, le=MOST), Measured
]
Tokens = Annotated[float, quantity(units.TOKENS, ""), Field(ge=1), Measured]
Price = Annotated[
    float, quantity(units.PRICE, ""), Field(gt=0), Measured, BeforeValidator(units.strip_dollar)
]
Dollars = Annotated[
    float, BeforeValidator(units.parse_dollars), Field(gt=0, allow_inf_nan=False), Measured
]
Share = Annotated[float, quantity(units.SHARE, ""), Field(ge=0, lt=1), Measured]


# --- Reading types --------------------------------------------------------------------------------


def inside(annotation: Any) -> Iterator[Any]:
    """Yield an annotation and its nested parts, including metadata."""
    yield annotation
    for part in get_args(annotation):
        yield from inside(part)


def scalars(info: FieldInfo) -> set[type]:
    """Return the scalar types of a field."""
    kinds = {part for part in inside(info.annotation) if isinstance(part, type)} - {NoneType}
    return kinds or {str}  # a Literal


def is_tuple(info: FieldInfo) -> bool:
    return any(get_origin(part) is tuple for part in inside(info.annotation))


def allowed(info: FieldInfo) -> tuple[Any, ...]:
    """Return the values that a field lists; empty if any value of its type is allowed."""
    parts = (*info.metadata, *inside(info.annotation))
    listed = (get_args(part) for part in parts if get_origin(part) is Literal)
    return next((part.names() for part in parts if isinstance(part, Named)), next(listed, ()))


def completions(info: FieldInfo) -> tuple[str, ...]:
    """Return shell completions of a field: its listed values, else offered names."""
    if listed := allowed(info):
        return tuple(map(str, listed))
    for part in (*info.metadata, *inside(info.annotation)):
        if isinstance(part, Named) and part.offers:
            return tuple(import_named(part.offers)())
        if isinstance(part, type) and issubclass(part, BaseModel) and "name" in part.model_fields:
            return completions(part.model_fields["name"])
    return ()


def default_words(info: FieldInfo) -> str:
    """Return a field's default as help and docs show it; empty if it is required."""
    if words := about(info, "shown"):
        return str(words)
    value = info.get_default(call_default_factory=True) if not info.is_required() else ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(map(_plain, value)) or "none"
    return "none" if value is None else _plain(value)


def _plain(value: Any) -> str:
    value = getattr(value, "name", value) if isinstance(value, BaseModel) else value
    return f"{value:g}" if isinstance(value, float) else str(value)
