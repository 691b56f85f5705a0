"""Answers as data: frozen dataclasses whose fields are the keys of their JSON.

Types write and read them (pydantic): what does not fit its type is a damaged file, told in one
sentence; whatever else goes wrong with an answer is a fault of ours, and stays one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import cached_property, singledispatch
from pathlib import Path
from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from atoll.errors import AtollError
from atoll.files.jsonfile import read_object
from atoll.files.wholefile import whole_files

MOST = 10**15
Count = Annotated[int, Field(ge=0, le=MOST)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Number = Annotated[float, Field(allow_inf_nan=False)]


class Answer:
    """Base of what commands answer: classes with `kind` and `format` among their fields."""

    __slots__ = ()

    def to_dict(self) -> dict[str, Any]:
        """The content of `--json`."""
        told: dict[str, Any] = dumped(self)
        return told

    def to_json(self, indent: int | None = None) -> str:
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False) + "\n"

    def save(self, path: str | Path) -> Path:
        """Write the answer, whole or not at all; `load` reads it."""
        path = Path(path)
        with whole_files(lambda why: f"{path}: cannot be written ({why})", path) as (part,):
            part.write_text(self.to_json(), encoding="utf-8")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """The answer that a file holds, or what is wrong with it in a sentence."""
        return read_answer(Path(path), cls)


A = TypeVar("A", bound=Answer)
T = TypeVar("T")


@singledispatch
def answer_of(found: object) -> Any:
    """What a program found, as data; each program registers how for its own."""
    raise TypeError(f"no answer is made of a {type(found).__name__}")


class Answered(Generic[A]):
    """What a program returns: its rich objects, and its answer as data, made once."""

    @cached_property
    def answer(self) -> A:
        made: A = answer_of(self)
        return made

    def to_dict(self) -> dict[str, Any]:
        return self.answer.to_dict()

    def save(self, path: str | Path) -> Path:
        """Write the answer as JSON, whole or not at all; `atoll.load` reads it."""
        return self.answer.save(path)


def made_of(kind: type[T], source: object, /, **given: Any) -> T:
    """A value of a class from the attributes of a source that have its fields' names."""
    names = [f.name for f in fields(kind) if f.name not in given and hasattr(source, f.name)]  # type: ignore[arg-type]
    return kind(**{name: getattr(source, name) for name in names}, **given)


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def adapter(kind: Any) -> TypeAdapter[Any]:
    """What writes, reads and checks values of a type; made when it is first asked for."""
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def dumped(value: object) -> Any:
    """A dataclass as plain JSON data; a value that is not of its type is an error."""
    return adapter(type(value)).dump_python(value, mode="json", by_alias=True, warnings="error")


def read_answer(path: Path, *kinds: type[A]) -> A:
    """The answer in a file, which may be one of these kinds."""
    return parse_answer(read_object(path), str(path), *kinds)


def parse_answer(content: Mapping[str, Any], where: str, *kinds: type[A]) -> A:
    """The same of what was read already."""
    known = {default_of(kind, "kind"): kind for kind in kinds}
    found = content.get("kind")
    if found not in known:
        words = " or ".join(str(name) for name in known)
        raise AtollError(
            f"{where}: not an answer of atoll that is read here: its kind is {str(found)[:40]!r}, "
            f"not {words}."
        )
    wanted = default_of(known[found], "format")
    if content.get("format") != wanted:
        raise AtollError(
            f"{where}: written by another version of atoll (format {content.get('format')!r}, this "
            f"one reads {wanted}); run it again."
        )
    return checked(content, known[found], where)


def default_of(kind: type, name: str) -> Any:
    """What a field of a class is without being given."""
    return next(field.default for field in fields(kind) if field.name == name)


def checked(content: object, kind: type[T], where: str) -> T:
    """Data as a value of a type; a sentence names the first field that is not."""
    try:
        found: T = adapter(kind).validate_python(content)
        return found
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        problem = "is missing" if first["type"] == "missing" else f"({first['msg']})"
        raise AtollError(
            f"{where}: a field is missing or of another kind: {place} {problem}; it was damaged, "
            "or written by another version of atoll: run it again."
        ) from None
