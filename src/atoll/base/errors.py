"""The one exception a user ever sees: a sentence that says what is wrong and the way out."""

from __future__ import annotations

from collections.abc import Iterable
from os import PathLike
from pathlib import Path


class AtollError(Exception):
    """A mistake in the user's input, or a job that cannot be done.

    The message is one sentence naming the file and field concerned, what was given and what is
    allowed. The command line prints it without a traceback and exits with code 2.

    Examples:
        >>> import atoll
        >>> try:
        ...     atoll.describe_model("lama2-7b")
        ... except atoll.AtollError as error:
        ...     print(error)  # doctest: +ELLIPSIS
        no model is called 'lama2-7b'...
    """


def check_count(name: str, value: object) -> None:
    """Refuse what is not a positive integer."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise AtollError(f"{name} is {value!r}, but must be a positive integer")


def as_path(name: str, value: object) -> Path:
    """Return a path that was given as text or as a path, and refuse anything else."""
    if not isinstance(value, str | PathLike):
        raise AtollError(f"{name}: expected text or a path, got {value!r:.80}")
    return Path(value)


def suggestion(name: object, choices: Iterable[str]) -> str:
    """Return `, did you mean X?`, or the list of choices if none is close."""
    names = list(choices)
    if close := near_names(str(name), names):
        return f", did you mean {' or '.join(close)}?"
    return f", known are {', '.join(names)}" if names else ""


def near_names(name: str, choices: Iterable[str]) -> list[str]:
    """Return up to three choices that are spelled alike, the closest first."""
    import difflib

    return difflib.get_close_matches(name, choices, n=3)


class UnusableError(AtollError):
    """A training tool can run no layout of a model, or none of those that fit."""


class InfeasibleError(AtollError):
    """The input is well formed, but nothing in the stated space satisfies it.

    Examples:
        >>> import atoll
        >>> try:
        ...     atoll.plan("llama3-70b", "h100", 8, batch=8)
        ... except atoll.InfeasibleError as error:
        ...     print(error)  # doctest: +ELLIPSIS
        llama3-70b does not fit 8 h100 with megatron-lm: ...
    """
