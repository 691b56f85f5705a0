"""Resolve OmegaConf references within a YAML file; nothing is run.

"${model.hidden_size}" counts from the top, "${.hidden_size}" from this section, "${..x}" from the
section above; "${multiply:4, ${.hidden_size}}", "${oc.env:NAME,default}" and the like compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from atoll.base.errors import AtollError
from atoll.tools.files.shell_tokens import UNKNOWN

MAX_REFERENCES, MAX_DEPTH, MAX_CHARACTERS = 5_000, 20, 10_000
"""Limits: references per file, nesting depth, characters per value."""
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
PASSED_THROUGH = ("oc.decode", "eval")


def resolve(content: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the values with all references resolved; of others `UNKNOWN` and their names stay."""
    return _ReferenceResolver(content, environment).section(content, ())


class _ReferenceResolver:
    def __init__(self, content: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self.content, self.environment, self.followed = content, environment, 0

    def section(self, values: Mapping[str, Any], section: tuple[str, ...]) -> dict[str, Any]:
        return {name: self._value(value, section, 0) for name, value in values.items()
                if not isinstance(value, Mapping)} | {
            name: self.section(value, (*section, name))
            for name, value in values.items() if isinstance(value, Mapping)
        }  # fmt: skip

    def _value(self, value: Any, section: tuple[str, ...], depth: int) -> Any:
        """Resolve a value of the section `section`."""
        if isinstance(value, list):
            return [self._value(item, section, depth) for item in value]
        if not isinstance(value, str) or "${" not in value:
            return value
        self.followed += 1
        if depth > MAX_DEPTH or self.followed > MAX_REFERENCES or len(value) > MAX_CHARACTERS:
            raise AtollError("its values refer to one another without end")
        begin = value.rindex("${")  # the innermost of the last reference
        end = value.find("}", begin)
        if end < 0:
            return value
        target = self._reference(value[begin + 2 : end].strip(), section, depth)
        if begin == 0 and end == len(value) - 1:
            return target
        resolved = f"{value[:begin]}{'' if target is None else target}{value[end + 1 :]}"
        return self._value(resolved, section, depth + 1)

    def _reference(self, text: str, section: tuple[str, ...], depth: int) -> Any:
        name, colon, operands = text.partition(":")
        if not colon:
            return self._named(text, section, depth)
        terms = [term.strip() for term in operands.split(",")]
        if name == "oc.env":
            fallback = terms[1] if len(terms) > 1 else f"{UNKNOWN}{terms[0]}"
            return self.environment.get(terms[0], fallback)
        if name in PASSED_THROUGH:
            return operands
        try:
            value = COMPUTED[name](*map(float, terms))
            return int(value) if value == int(value) else value
        except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError):
            return UNKNOWN

    def _named(self, text: str, section: tuple[str, ...], depth: int) -> Any:
        path = text.lstrip(".")
        dots = len(text) - len(path)
        names = (*(section[: len(section) - dots + 1] if dots else ()), *path.split("."))
        # (Launchers nest the file in a group: "training.model.x" is "model.x".)
        for key_path in (names, names[1:] if not dots else ()):
            target: Any = self.content
            for name in key_path:
                target = target.get(name, UNKNOWN) if isinstance(target, Mapping) else UNKNOWN
            if key_path and target is not UNKNOWN and not isinstance(target, Mapping):
                return self._value(target, key_path[:-1], depth + 1)
        return self.environment.get(text, f"{UNKNOWN}{text}")
