"""Fields of a question that take several values, one after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic.fields import FieldInfo

from atoll.errors import AtollError
from atoll.files.yamlfile import suggestion
from atoll.questions.question import Question, scalars

ONCE = ("out", "trace", "export_to", "messages", "sweep", "layouts")
"""Fields that say where one answer goes."""


def axes_of(question: type[Question], texts: Sequence[str]) -> dict[str, tuple[Any, ...]]:
    """Fields and their values from "devices=64", "128", "tp=1": a text without a name belongs to
    the field before it.
    """
    texts_of: dict[str, list[str]] = {}
    name = ""
    for text in texts:
        before, equals, value = text.partition("=")
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
    return {
        name: tuple(read_text(fields[name], v) for v in values) for name, values in texts_of.items()
    }


def first_swept(question: type[Question], given: Mapping[str, Any]) -> dict[str, Any]:
    """The first swept value of fields that a question needs and that are not given."""
    texts = given.get("sweep") or ()
    texts = (texts,) if isinstance(texts, str) else texts
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        return {}  # which the question refuses
    axes = axes_of(question, texts)
    return {n: axes[n][0] for n in question.needed(given) if n in axes and n not in given}


def read_text(info: FieldInfo, text: str) -> Any:
    """One value of a field; what cannot be read is left to the question."""
    kinds = scalars(info)
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    return text
