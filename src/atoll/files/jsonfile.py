"""JSON files as objects, with one-sentence errors."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from atoll.base.errors import AtollError
from atoll.files.inputs import read_input_text

MOST_BYTES = 2**26
"""Largest file, unpacked."""
MOST_DIGITS = 40
"""Digits of an integer at most: it must convert to a finite float."""


def read_object(path: Path, where: str = "", foreign: bool = False) -> dict[str, Any]:
    """Read the JSON object in a file, plain or gzipped; errors call it `where` (default: its path).

    `foreign` files may contain Infinity or NaN, as Python's json writes them: they are read as
    text, which number fields refuse.
    """
    where = where or str(path)
    return parse_object(read_input_text(path, MOST_BYTES, where), where, foreign)


def parse_object(
    text: str, where: str, foreign: bool = False, unique: bool = False
) -> dict[str, Any]:
    """Parse a JSON object; `where` names it in errors, `unique` refuses a field given twice."""
    try:
        content = json.loads(
            text,
            parse_int=_integer,
            parse_float=_finite,
            parse_constant=str if foreign else _refused,
            object_pairs_hook=_without_duplicates if unique else None,
        )
    except json.JSONDecodeError as error:
        raise AtollError(
            f"{where}: not valid JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise AtollError(f"{where}: not usable JSON ({error})") from None
    if not isinstance(content, dict):
        raise AtollError(f"{where}: expected a JSON object, found a {type(content).__name__}")
    return content


def _integer(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a whole number of {len(text):,} digits")
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    return value if math.isfinite(value) else _refused(text[:40])


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, value in pairs:
        if name in fields:
            raise ValueError(f"the field {name:.40} is given twice in one object")
        fields[name] = value
    return fields


def _refused(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number that is finite")


@contextmanager
def reading_faults(path: Path, as_written: bool) -> Iterator[None]:
    """Convert errors from missing or wrong fields to an AtollError about the file.

    If the file is `as_written` (its checksum matches), the error is a bug of ours and is kept.
    """
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError) as error:
        if as_written:
            raise
        raise AtollError(
            f"{path}: a field is missing or of another kind ({type(error).__name__}: {error}); it "
            "was damaged, or written by another version of atoll: run it again."
        ) from error
