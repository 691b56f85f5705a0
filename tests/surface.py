"""What users hold on to, one line for each: commands, options, fields of files, Python, JSON keys.

`python tests/surface.py` writes it down again, with the tables, stubs and schemas that follow from
the same definitions. A line that changes or goes is a change for users: say so in the changelog.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import answers.record as schemas
import atoll
import atoll.plugins
import atoll.testing
import docs.api_pages as api_pages
import questions.written as written
from atoll.answers.answer import Answer
from atoll.questions import COMMANDS
from atoll.questions.ask import old_names
from atoll.questions.question import about, default_words
from atoll.questions.texts import metavar, question_fields, spelled

KEPT = Path(__file__).with_name("surface.txt")


def lines() -> Iterator[str]:
    for command, asked in COMMANDS.items():
        yield f"command {command}"
        for question in asked:
            asked_of = question.model_fields.get("kind")
            kind = command if asked_of is None else f"{command} {asked_of.default}"
            for name, info in question_fields(question).items():
                default = "required" if info.is_required() else f"[{default_words(info)}]"
                if about(info, "file_only"):
                    shown = f"file: {name}"
                elif name in question.arguments:
                    shown = f"argument {name}"
                else:
                    shown = f"{spelled(name)} {metavar(info)}"
                yield f"option {kind} {shown} {default}"
            for old, name in old_names(question).items():
                yield f"old name {kind} {old} -> {name}"
    for module in (atoll, atoll.answers, atoll.plugins, atoll.testing):
        for name in module.__all__:
            yield from python(f"python {module.__name__}.{name}", getattr(module, name))
    for name, kind in json.loads(schemas.schemas()).items():
        yield from (f"key {name}.{key}" for key in kind.get("properties", ()))


def python(path: str, found: object) -> Iterator[str]:
    """A public name, and what a class has; keys of answers and fields of questions apart."""
    if inspect.isfunction(found):
        yield f"{path}({taken(found)})"
        return
    yield path
    if not isinstance(found, type):
        return
    if is_dataclass(found) and not issubclass(found, Answer):
        yield from (f"{path}.{field.name}" for field in fields(found))
    for part, value in inspect.getmembers(found):
        inner = getattr(value, "fget", getattr(value, "func", value))
        ours = (getattr(inner, "__module__", None) or "").startswith("atoll")
        if ours and not part.startswith("_") and inspect.isroutine(inner):
            yield f"{path}.{part}" + ("" if inner is not value else f"({taken(value)})")


def taken(function: object) -> str:
    """Names of a function's parameters."""
    assert callable(function)
    return ", ".join(name for name in inspect.signature(function).parameters if name != "self")


def text() -> str:
    return "\n".join(lines()) + "\n"


if __name__ == "__main__":
    KEPT.write_text(text(), encoding="utf-8")
    schemas.KEPT.write_text(schemas.schemas(), encoding="utf-8")
    written.main()
    api_pages.main()
