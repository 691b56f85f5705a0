"""Builds a question from a job file and keywords; names of the last release still work."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from atoll.base.errors import AtollError
from atoll.files.yamlfile import load_yaml
from atoll.questions.foreign_names import meant_field
from atoll.questions.question import Question, about
from atoll.questions.sweeps import first_swept
from atoll.questions.texts import question_fields


class OldNameWarning(DeprecationWarning):
    """A name that the next release will not know."""


Q = TypeVar("Q", bound=Question)


def ask(
    kinds: Mapping[str, type[Q]],
    job: Q | str | Path | None,
    keywords: Mapping[str, Any],
    spelled: Callable[[str], str] = str,
) -> Q:
    """Build the question of a job (or of the first of `kinds`), with keywords that are not None."""
    fields = {name: value for name, value in keywords.items() if value is not None}
    if wrong := next((n for n, value in fields.items() if isinstance(value, Question)), ""):
        raise AtollError(f"{wrong}: expected a value, got a question; give a question as job=")
    if isinstance(job, str | Path):
        if not Path(job).suffix and not Path(job).exists():
            raise AtollError(f"job: there is no job file {str(job)!r}; a model is given as model=")
        job = load_job(job, kinds)
    elif job is not None and not any(
        isinstance(job, kind) or issubclass(kind, type(job)) for kind in kinds.values()
    ):
        raise AtollError(
            f"job: expected a job file, or a question about {' or '.join(kinds)}, got {job!r:.80}"
        )
    question = kinds[_kind(kinds, fields)] if job is None else type(job)
    fields = current_names(question, fields, spelled)
    unknowns = [name for name in fields if name not in question.model_fields]
    for name in unknowns:
        if fitting := [k for k, q in kinds.items() if name in q.model_fields]:
            offered = {n: about(info, "file_only") for n, info in question_fields(question).items()}
            deep = [n for n, file_only in offered.items() if file_only]
            raise AtollError(
                f"{spelled(name)}: this is for {' or '.join(fitting)}; a question about "
                f"{question.model_fields['kind'].default} takes "
                f"{', '.join(spelled(n) for n in offered if n not in deep)}"
                f"{'; job files and Python also ' if deep else ''}{', '.join(deep)}."
            )
    provided = {*fields, *first_swept(question, fields)}
    missing = [n for n in question.needed(fields) if job is None and n not in provided]
    unknown = next(iter(unknowns), None)
    if unknown and (field := meant_field(unknown, question.model_fields)):
        raise AtollError(f"{unknown}: unknown field, did you mean {field}?")
    if missing and unknown is None:
        meanings = [(question.model_fields[name].description or "").rstrip(".") for name in missing]
        words = f"{', '.join(map(spelled, missing))}: missing, and there is no default"
        if len(missing) == 1:
            raise AtollError(f"{words} ({meanings[0]})")
        lines = (f"{spelled(n)}: {text}" for n, text in zip(missing, meanings, strict=True))
        raise AtollError("\n  ".join((words, *lines)))
    if job is None:
        return question.of(**fields)
    return job.changed(**fields) if fields else job


def load_job(path: str | Path, kinds: Mapping[str, type[Q]]) -> Q:
    """Read the job in a YAML file; files that it names are looked up in its folder."""

    def pick(fields: Mapping[str, str]) -> tuple[type[Q], Mapping[str, str]]:
        kind = fields["kind"] if "kind" in fields else _kind(kinds, fields)
        question = kinds.get(kind)
        if question is None:
            raise AtollError(
                f"{path}: kind: {kind!r} is not answered here, expected {' or '.join(kinds)}; "
                "atoll search takes chips and wafers, atoll plan devices."
            )
        old = {name: new for name, new in old_names(question).items() if name in fields}
        for name, new in old.items():
            _say_old(f"{path}: {name}", new)
        return question, old

    return load_yaml(path, pick)


def _kind(kinds: Mapping[str, type[Q]], names: Iterable[str]) -> str:
    """Return the kind by its fields: the first, unless a field exists only in another."""
    first, *later = kinds
    extra = {kind: kinds[kind].model_fields.keys() - kinds[first].model_fields for kind in later}
    return next((kind for kind in later if extra[kind] & set(names)), first)


def old_names(question: type[Question]) -> dict[str, str]:
    """Return current names by names of the last release."""
    fields = question.model_fields.items()
    return {old: name for name, info in fields for old in about(info, "old", ())}


def current_names(
    question: type[Question], keywords: Mapping[str, Any], spelled: Callable[[str], str] = str
) -> dict[str, Any]:
    """Return the fields under current names, with a warning for each old name."""
    old, fields = old_names(question), dict(keywords)
    for name in [n for n in keywords if n in old]:
        if old[name] in keywords:
            raise AtollError(
                f"{spelled(old[name])}: given twice, also by its old name {spelled(name)}."
            )
        _say_old(spelled(name), spelled(old[name]))
        fields[old[name]] = fields.pop(name)
    return fields


def _say_old(name: str, new: str) -> None:
    words = f"{name} is called {new} now; the old name goes with the next release"
    frame, level = sys._getframe(), 1
    while frame.f_back is not None and frame.f_globals["__name__"].startswith("atoll"):
        frame, level = frame.f_back, level + 1
    warnings.warn(OldNameWarning(words), stacklevel=level)  # points at the user's code
