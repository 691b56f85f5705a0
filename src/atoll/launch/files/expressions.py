"""Sums and tests of a shell, on what is known: worked out, not run."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

from atoll.launch.files.words import UNKNOWN

_OPERATORS: Mapping[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def value_of(expression: str) -> int | None:
    """An expression of whole numbers; None where it is none."""
    try:
        return _evaluated(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, OverflowError, MemoryError):
        return None


def _evaluated(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluated(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        value = _OPERATORS[type(node.op)](_evaluated(node.left), _evaluated(node.right))
        if abs(value) < 1 << 62:
            return value
    raise ValueError


def holds(words: list[str]) -> bool:
    """Tests of texts and whole numbers."""
    if any(UNKNOWN in word for word in words):  # what is not set is empty
        same = len(words) == 3 and words[1] in ("=", "==") and sorted({words[0], words[2]})
        return words[:1] == ["-z"] or same == ["", UNKNOWN]
    match words:
        case ["!", *rest]:
            return not holds(rest)
        case ["-n", text] | [text]:
            return text != ""
        case ["-z"] | ["-z", ""]:
            return True
        case [left, "=" | "==", right]:
            return fnmatchcase(left, right)
        case [left, "!=", right]:
            return not fnmatchcase(left, right)
        case [left, ("-eq" | "-ne" | "-gt" | "-ge" | "-lt" | "-le") as how, right]:
            compare = getattr(operator, how[1:])
            try:
                return bool(compare(int(left), int(right)))
            except ValueError:
                return False
    return False
