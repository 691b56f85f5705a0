"""Arithmetic and tests of a shell script, evaluated without running it."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

from atoll.tools.files.shell_tokens import UNKNOWN

_SCRIPT_FOLDER = re.compile(
    r"pwd|(?!.*(\.\.|basename|sed|awk)).*\bdirname\b.*(BASH_SOURCE|\$0|\$\{0).*", re.DOTALL
)
"""Commands that print the script's folder."""
_OPERATORS: Mapping[type[ast.AST], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


def evaluate_integer(expression: str) -> int | None:
    """Evaluate an integer expression; None if it is not one."""
    try:
        return _evaluate(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, OverflowError, MemoryError):
        return None


def _evaluate(node: ast.AST) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        value = _OPERATORS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
        if abs(value) < 1 << 62:
            return value
    raise ValueError


def holds(words: list[str]) -> bool:
    """Evaluate a shell test of texts and integers."""
    if any(UNKNOWN in word for word in words):  # unset variables are empty
        same = len(words) == 3 and words[1] in ("=", "==") and sorted({words[0], words[2]})
        return words[:1] == ["-z"] or same == ["", UNKNOWN]
    match words:
        case ["!", *negated]:
            return not holds(negated)
        case ["-n", text] | [text]:
            return text != ""
        case ["-z"] | ["-z", ""]:
            return True
        case [left, "=" | "==", right]:
            return fnmatchcase(left, right)
        case [left, "!=", right]:
            return not fnmatchcase(left, right)
        case [left, ("-eq" | "-ne" | "-gt" | "-ge" | "-lt" | "-le") as comparison, right]:
            compare = getattr(operator, comparison[1:])
            try:
                return bool(compare(int(left), int(right)))
            except ValueError:
                return False
    return False


def command_output(command: str) -> str:
    """Return a command's output if it is known without running it."""
    return "." if _SCRIPT_FOLDER.fullmatch(command.strip()[:200]) else UNKNOWN


def unquoted(text: str) -> str:
    """Return a text without the quotes around it."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text
