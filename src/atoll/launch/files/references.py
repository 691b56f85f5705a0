"""References within a YAML file, as OmegaConf writes them: put in, nothing run.

"${model.hidden_size}" names a value from the top, "${.hidden_size}" one beside it, "${..x}" one a
section above; "${multiply:4, ${.hidden_size}}", "${oc.env:NAME,default}" and the like compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from atoll.errors import AtollError
from atoll.launch.files.words import UNKNOWN

MOST, DEEPEST, LONGEST = 5_000, 20, 10_000
"""References of a file that are followed, those in one another, characters of a value."""
COMPUTED: Mapping[str, Callable[..., float]] = {
    "multiply": lambda *terms: math.prod(terms),
    "add": lambda *terms: math.fsum(terms),
    "sum": lambda *terms: math.fsum(terms),
    "subtract": lambda a, b: a - b,
    "divide": lambda a, b: a / b,
    "divide_ceil": lambda a, b: -(-a // b),
    "divide_floor": lambda a, b: a // b,
    "int": lambda a: int(a),
}
AS_THEY_ARE = ("oc.decode", "eval")


def referred(content: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """The values with all references put in; what a file does not say carries `UNKNOWN`."""
    return _Reader(content, environment).section(content, ())


class _Reader:
    def __init__(self, content: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self.content, self.environment, self.followed = content, environment, 0

    def section(self, values: Mapping[str, Any], place: tuple[str, ...]) -> dict[str, Any]:
        return {name: self._value(value, place, 0) for name, value in values.items()
                if not isinstance(value, Mapping)} | {
            name: self.section(value, (*place, name))
            for name, value in values.items() if isinstance(value, Mapping)
        }  # fmt: skip

    def _value(self, value: Any, place: tuple[str, ...], depth: int) -> Any:
        """A value of the section `place`."""
        if isinstance(value, list):
            return [self._value(item, place, depth) for item in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        self.followed += 1
        if depth > DEEPEST or self.followed > MOST or len(value) > LONGEST:
            raise AtollError("its values refer to one another without end")
        begin = value.rindex("${")  # the innermost of the last one
        end = value.find("}", begin)
        if end < 0:
            return value
        found = self._reference(value[begin + 2 : end].strip(), place, depth)
        if begin == 0 and end == len(value) - 1:
            return found
        whole = f"{value[:begin]}{'' if found is None else found}{value[end + 1 :]}"
        return self._value(whole, place, depth + 1)

    def _reference(self, text: str, place: tuple[str, ...], depth: int) -> Any:
        name, colon, rest = text.partition(":")
        if not colon:
            return self._named(text, place, depth)
        terms = [term.strip() for term in rest.split(",")]
        if name == "oc.env":
            return self.environment.get(terms[0], terms[1] if len(terms) > 1 else UNKNOWN)
        if name in AS_THEY_ARE:
            return rest
        try:
            value = COMPUTED[name](*map(float, terms))
            return int(value) if value == int(value) else value
        except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError):
            return UNKNOWN

    def _named(self, text: str, place: tuple[str, ...], depth: int) -> Any:
        path = text.lstrip(".")
        up = len(text) - len(path)
        names = (*place[: len(place) - up + 1], *path.split(".")) if up else (*path.split("."),)
        # (A launcher puts the file under a group of its own: "training.model.x" is "model.x".)
        for names_ in (names, names[1:] if not up else ()):
            found: Any = self.content
            for name in names_:
                found = found.get(name, UNKNOWN) if isinstance(found, Mapping) else UNKNOWN
            if names_ and found is not UNKNOWN and not isinstance(found, Mapping):
                return self._value(found, names_[:-1], depth + 1)
        return UNKNOWN
