"""Sweeps: fields of a question that take several values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic.fields import FieldInfo

from atoll.base.errors import AtollError
from atoll.files.yamlfile import suggestion
from atoll.questions.question import Question, scalars

ONCE = ("out", "trace", "launch_file", "messages", "sweep", "layouts")
"""Output fields, which cannot be swept."""


def sweep_axes(question: type[Question], texts: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Parse fields and values from texts such as "devices=64,128" or "devices=64", "128", "tp=1"; a
    value without a name belongs to the previous field.
    """
    texts_of: dict[str, list[str]] = {}
    name = ""
    for text in (part for listed in texts for part in listed.split(",")):
        before, equals, value = text.partition("=")
        equals = "" if ":" in before else equals  # dgx-h100:infiniband=25GB/s is a value
        name = before.strip().replace("-", "_") if equals else name
        if not name:
            raise AtollError(f"sweep: expected NAME=VALUE,..., got {text!r}")
        texts_of.setdefault(name, []).append((value if equals else text).strip())
    fields = question.model_fields
    for name in texts_of:
        if name not in fields or fields[name].exclude or name in ONCE:
            raise AtollError(
                f"sweep: {name!r} is no field that could differ{suggestion(name, fields)}"
            )
    return {n: tuple(read_text(fields[n], v) for v in values) for n, values in texts_of.items()}


def first_swept(question: type[Question], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the first swept value of required fields that are not set."""
    texts = given.get("sweep") or ()
    texts = (texts,) if isinstance(texts, str) else texts
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        return {}  # which the question refuses
    axes = sweep_axes(question, texts)
    return {n: axes[n][0] for n in question.needed(given) if n in axes and n not in given}


def read_text(info: FieldInfo, text: str) -> Any:
    """Convert text to a number if the field takes one; else return the text."""
    kinds = scalars(info)
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    return text
