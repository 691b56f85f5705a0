"""Texts of questions: `--help`, docstrings and JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter, Signature, cleandoc, signature
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, Field, TypeAdapter
from pydantic.fields import FieldInfo

from atoll import questions
from atoll.questions.fields import ADVANCED, LAUNCH, RUN_LENGTH, SEARCH
from atoll.questions.question import (
    OUTPUT,
    Measured,
    Question,
    about,
    allowed,
    default_words,
    inside,
    is_tuple,
    scalars,
)

F = TypeVar("F", bound=Callable[..., Any])
_COMMANDS: dict[Callable[..., Any], str] = {}
_ACCEPTED = {Path: "str | Path", float: "float | str", BaseModel: "str | Mapping[str, Any]"}
"""Accepted Python types by field type, if there are several."""


def spelled(name: str) -> str:
    """Return the option of a field; names that are Python keywords end in "_"."""
    return f"--{name.rstrip('_').replace('_', '-')}"


def option_fields(*question_kinds: type[Question]) -> dict[str, FieldInfo]:
    """Return the fields that have options."""
    return {n: i for n, i in question_fields(*question_kinds).items() if not about(i, "file_only")}


def question_fields(*question_kinds: type[Question]) -> dict[str, FieldInfo]:
    """Return the merged fields that these questions offer."""
    merged: dict[str, FieldInfo] = {}
    for question in question_kinds:
        for name, info in question.model_fields.items():
            if name != "kind" and name in (question.offered or question.model_fields):
                merged.setdefault(name, info)
    return merged


MOST_USED = (
    "model", "device", "devices", "batch", "batch_tokens", "sequence", "tool", "tokens", "price",
    "max_area", "max_power", "launch_file", "out",
)  # fmt: skip
"""Options of the first group of a command with a model."""


def grouped(fields: Mapping[str, FieldInfo]) -> dict[str, dict[str, FieldInfo]]:
    """Return fields by group: the most used options first, output and advanced ones last."""
    usual = MOST_USED if {"model", "devices"} <= fields.keys() else ()
    groups = {"Most used": {name: fields[name] for name in usual if name in fields}}
    for name, info in fields.items():
        if name not in usual:
            groups.setdefault(about(info, "group"), {})[name] = info
    last = ("", RUN_LENGTH, LAUNCH, SEARCH, OUTPUT, ADVANCED)
    order = sorted(groups, key=lambda group: last.index(group if group in last else ""))
    return {group: groups[group] for group in order if groups[group]}


def help_words(name: str, info: FieldInfo, question_kinds: Sequence[type[Question]] = ()) -> str:
    """Return help: purpose, values, default, and differing defaults of other kinds."""
    values = ", ".join(map(str, allowed(info)))
    default = _default(name, info, question_kinds, spelled)
    for question in question_kinds[1:]:
        field = question_fields(question).get(name, info)
        if (words := default_words(field)) != default_words(info):
            default += f"; {question.model_fields['kind'].default}: {words}"
    shown = "" if default == "default: none" else f" [{default}]"
    return f"{info.description}{f' Values: {values}.' if values else ''}{shown}"


def _default(
    name: str,
    info: FieldInfo,
    question_kinds: Sequence[type[Question]],
    written: Callable[[str], str] = str,
) -> str:
    """Return the default of a field in words; if the first kind requires it, the fields that
    replace it. A field named like another kind selects that kind.
    """
    first, *others = question_kinds or (Question,)
    if name not in first.needed(()):
        return f"default: {default_words(info) or 'none'}"
    substitutes = [written(n) for n in question_fields(first) if name not in first.needed((n,))]
    for question in others:
        kind = question.model_fields["kind"].default
        if kind in question.model_fields and name not in question.needed((kind,)):
            substitutes.append(written(kind))
    if "kind" in first.model_fields:
        substitutes.insert(0, "JOB" if written is spelled else "job")
    return f"required without {' or '.join(substitutes)}" if substitutes else "required"


def metavar(info: FieldInfo) -> str:
    """Return the placeholder of an option's value; "N,..." for several."""
    kinds = scalars(info)
    word = "N" if int in kinds else "X" if kinds == {float} else "PATH" if Path in kinds else "TEXT"
    return f"{word},..." if is_tuple(info) else word


def python_type(info: FieldInfo, single: str = "") -> str:
    """Return the annotation of a field's keyword; `single`: that of one value, if known."""
    if about(info, "file_only"):
        return "Any"
    listed = [part for part in inside(info.annotation) if get_origin(part) is Literal]
    words = [choices(get_args(part)) for part in listed] or [
        _ACCEPTED[BaseModel] if issubclass(kind, BaseModel) else _ACCEPTED.get(kind, kind.__name__)
        for kind in sorted(scalars(info), key=lambda kind: kind.__name__)
    ]
    words += ["str"] if any(part is Measured for part in inside(info.annotation)) else []
    single = single or " | ".join(dict.fromkeys(" | ".join(words).split(" | ")))
    return f"Sequence[{single}] | {single} | None" if is_tuple(info) else f"{single} | None"


def choices(values: Sequence[Any]) -> str:
    """Return the Literal type of these values."""
    return f"Literal[{', '.join(json.dumps(value) for value in values)}]"


def described_by(command: str) -> Callable[[F], F]:
    """Mark a function that takes the fields of a command's questions; see `described`."""

    def mark(function: F) -> F:
        _COMMANDS[function] = command
        return function

    return mark


def described(function: F) -> F:
    """Add the fields of a marked function's questions to its docstring and signature.

    Done on first use, as it imports all its questions."""
    command = _COMMANDS.pop(function, None)
    if command is None:
        return function
    question_kinds = questions.COMMANDS[command]
    groups = grouped(question_fields(*question_kinds))
    fields = {name: info for group in groups.values() for name, info in group.items()}
    parameters = signature(function).parameters
    head, returns, tail = cleandoc(function.__doc__ or "").partition("\n\nReturns:")
    lines = [
        f"    {name}: {info.description} {words[0].upper()}{words[1:]}."
        for name, info in fields.items()
        for words in (_default(name, info, question_kinds),)
    ]
    section = () if "\nArgs:" in head else ("", "Args:")
    function.__doc__ = "\n".join([head, *section, *lines]) + returns + tail
    signature_parameters = [p for p in parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    signature_parameters += [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=python_type(info))
        for name, info in fields.items()
        if name not in parameters
    ]
    function.__signature__ = Signature(signature_parameters)  # type: ignore[attr-defined]
    return function


def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a command's questions, discriminated by kind."""
    question_kinds = questions.COMMANDS[name]
    if len(question_kinds) == 1:
        return {"question": question_kinds[0].model_json_schema()}
    either: Any = Annotated[Union[question_kinds], Field(discriminator="kind")]  # noqa: UP007
    return {"question": TypeAdapter(either).json_schema()}
