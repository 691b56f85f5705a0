"""Commands of a shell script with their variables expanded: read, never run.

Supported: variables with defaults, arrays, appended texts, arithmetic, sourced files of the same
folder, conditions on known values, functions. The output of commands and the environment are
unknown; a word that contains them carries `UNKNOWN`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import groupby, takewhile
from pathlib import Path

from atoll.base.errors import AtollError
from atoll.files.inputs import read_input_text
from atoll.tools.files.config_files import named_file
from atoll.tools.files.expressions import command_output, evaluate_integer, holds, unquoted
from atoll.tools.files.shell_tokens import (
    LITERAL,
    MOST_CHARACTERS,
    PLAIN,
    QUOTED,
    UNKNOWN,
    Document,
    Separator,
    Token,
    Word,
    closing_bracket,
    tokens,
)

MOST_WORDS = 50_000
MOST_LENGTH = 1_000_000
GUARD = "\x04"
"""Begins and ends the words of a ${NAME:+words} whose variable is a mark."""
DEEPEST, MOST_NESTED = 12, 40
"""Nesting limits of scripts and functions, and of values."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=")
_BRACES = re.compile(r"([A-Za-z_]\w*|\d+|[@*#?])(\[[@*]\])?(:?[-=+?])?", re.DOTALL)
_GUARD = re.compile(r"\$\{([A-Za-z_]\w*)(:?)\+")
_EXPANSION = re.compile(r"\\(.)|\$([({])|`([^`]*)`|\$([A-Za-z_]\w*|\d|[@*#?!$-])", re.DOTALL)
_PREFIXES = ("export", "local", "declare", "typeset", "readonly")


@dataclass(frozen=True, slots=True)
class Script:
    """Commands that a script runs, each as its words, and variables that it exports."""

    commands: tuple[tuple[str, ...], ...]
    exported: Mapping[str, str]
    missing: tuple[str, ...] = ()
    """Sourced files that are not in its folder."""
    unset: tuple[str, ...] = ()
    """Variables that it uses without setting them."""
    values: Mapping[str, str] = field(default_factory=dict)
    """Values of its variables at its end."""

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(f"{n}, which it sources, was not found beside it" for n in self.missing)


@dataclass
class Shell:
    """State of a shell while a script is read."""

    name: str
    folder: Path
    values: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    user_values: Mapping[str, str] = field(default_factory=dict)
    """Variables set by the user: used where the script's values are unknown."""
    unset: dict[str, None] = field(default_factory=dict)
    """Variables that were used without a value."""
    functions: dict[str, list[Token]] = field(default_factory=dict)
    commands: list[tuple[str, ...]] = field(default_factory=list)
    exported: dict[str, None] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    length: int = 0
    words: int = 0
    sourced: int = 0
    depth: int = 0
    nested: int = 0

    def value(self, name: str) -> str | None:
        """Return the text of a variable; None if the script does not set it."""
        if name in self.values or name not in self.arrays:
            return self.values.get(name)
        return (self.arrays[name] or [""])[0]

    def expand(self, word: Word) -> list[str]:
        """Expand a word to words: plain parts are split at blanks, arrays into items."""
        words: list[str] = []
        joins_last = False
        for kind, text in word.parts:
            pieces: list[str]
            if kind == LITERAL:
                pieces = [text]
            elif (items := self._items(text)) is not None:
                pieces = items if kind == QUOTED else [w for i in items for w in i.split()]
            elif kind == PLAIN and (inner := self._operand_words(text)) is not None:
                pieces = inner
            else:
                expanded = self.text(text, keep_escapes=kind == PLAIN)
                pieces = [expanded] if kind == QUOTED else expanded.split()
            if pieces:
                if joins_last:
                    words[-1] += pieces.pop(0)
                words += pieces
                joins_last = kind != PLAIN or not text[-1:].isspace()
        self._count(sum(map(len, words)))
        return words

    def expand_all(self, script: Iterable[Token]) -> list[str]:
        """Expand the words among tokens."""
        return [w for token in script if isinstance(token, Word) for w in self.expand(token)]

    def _items(self, text: str) -> list[str] | None:
        """Return the items if a text is exactly one array; an array without items is no word."""
        match = re.fullmatch(r"\$\{([A-Za-z_]\w*)\[[@*]\]\}|\$\{?(@)\}?", text)
        if match is None:
            return None
        name = match[1] or match[2]
        if name in self.arrays or name == "@":
            return list(self.arrays.get(name, ()))
        return self.values.get(name, "").split() or None

    def _operand_words(self, text: str) -> list[str] | None:
        """Return the words if a text is exactly one ${NAME:+words "with quotes"}; of a variable
        that is a mark (`tools.files.variables`) between two words that name it.
        """
        match = _GUARD.match(text)
        if match is None or closing_bracket(text, 1) != len(text) - 1:
            return None
        value = self.value(match[1])
        if value is None or (match[2] and not value):
            return []
        self._nest(+1)
        words = self.expand_all(tokens(text[match.end() : -1], self.name))
        self._nest(-1)
        return [GUARD + match[1], *words, GUARD] if value.startswith("\x01") else words

    def text(self, text: str, *, keep_escapes: bool = False) -> str:
        """Return a text with its variables expanded."""
        self._nest(+1)
        pieces, at = [], 0
        while match := _EXPANSION.search(text, at):
            pieces.append(text[at : match.start()])
            at = match.end()
            escaped, bracket, command, name = match.groups()
            if escaped is not None:
                pieces.append(match[0] if keep_escapes and escaped not in '$`"\\' else escaped)
            elif bracket:
                end = closing_bracket(text, match.start() + 1)
                inside = text[at:end]
                at = len(text) if end < 0 else end + 1
                if bracket == "{":
                    pieces.append(self._braces(inside))
                else:
                    is_sum = inside[:1] == "("
                    pieces.append(self._sum(inside[1:-1]) if is_sum else command_output(inside))
            elif command is not None:
                pieces.append(command_output(command))
            else:
                pieces.append(self._plain(name))
        pieces.append(text[at:])
        expanded = "".join(pieces)
        self._nest(-1)
        self._count(len(expanded))
        return expanded

    def _nest(self, levels: int) -> None:
        """Limit how deeply values stand in one another."""
        self.nested += levels
        if self.nested > MOST_NESTED:
            raise AtollError(f"{self.name}: its values stand too deeply in one another")

    def _plain(self, name: str) -> str:
        value = " ".join(self.arrays.get("@", ())) if name in "@*" else self.value(name)
        if value is None:
            self.unset[name] = None
        return UNKNOWN if value is None else value

    def _braces(self, inside: str) -> str:
        match = _BRACES.match(inside)
        if match is None:
            return UNKNOWN
        name, all_items, operator = match[1], match[2], match[3]
        operand = inside[match.end() :]
        value = self.value(name)
        if name in "@*":
            value = self._plain(name)
        if all_items and name in self.arrays:
            value = " ".join(self.arrays[name])
        if operator is None:
            value = self._plain(name) if value is None else value
            return UNKNOWN if operand else value
        empty = value is None or (operator.startswith(":") and value == "")
        if operator.endswith("+"):
            return "" if empty else self.text(operand)
        if operator.endswith("?"):
            return UNKNOWN if empty else str(value)
        if not empty:
            return str(value)
        fallback = self.text(unquoted(operand))
        if operator.endswith("="):
            self.values[name] = fallback
        return fallback

    def _sum(self, inside: str) -> str:
        """Evaluate an integer expression."""
        expression = _NAME.sub(lambda m: self._plain(m[0]), self.text(inside))
        if UNKNOWN in expression or len(expression) > 200:
            return UNKNOWN
        total = evaluate_integer(expression)
        return UNKNOWN if total is None else str(total)

    def _count(self, characters: int) -> None:
        """Limit the total length: variables that double each other must not fill the memory."""
        self.length += characters
        if self.length > MOST_LENGTH:
            raise AtollError(f"{self.name}: its variables expand to too much text")

    def run(self, script: Sequence[Token]) -> None:
        """Follow a script's commands."""
        if self.depth > DEEPEST:
            raise AtollError(f"{self.name}: scripts or functions call one another too deeply")
        self.depth += 1
        _Block(self, script).run()
        self.depth -= 1

    def assign(self, name: str, append: bool, items: list[str] | str) -> None:
        if isinstance(items, list):
            self.arrays[name] = (self.arrays.get(name, []) if append else []) + items
            self.values.pop(name, None)
        elif append and name in self.arrays:
            self.arrays[name] = [*self.arrays[name], items]
        elif UNKNOWN in items and name in self.user_values:
            self.values[name] = self.user_values[name]
        else:
            self.values[name] = (self.values.get(name, "") if append else "") + items
            self.arrays.pop(name, None)

    def shift(self, count: int) -> None:
        """Drop the first arguments of the script, as `shift` does."""
        for index in range(len(self.arrays.get("@", ()))):
            self.values.pop(str(index + 1), None)
        self.pass_arguments(self.arrays.get("@", [])[count:])

    def pass_arguments(self, arguments: Sequence[str]) -> None:
        """Set $1, $2, ..., $# and "$@"."""
        self.arrays["@"] = list(arguments)
        self.values |= {str(index + 1): text for index, text in enumerate(arguments)}
        self.values["#"] = str(len(arguments))

    def source(self, name: str) -> None:
        """Run a sourced file; one that is not found is recorded and skipped."""
        path = named_file(self.folder / "script", name)
        try:
            if path is None:
                raise OSError
            with path.open(encoding="utf-8") as file:
                text = file.read(MOST_CHARACTERS + 1)
        except (OSError, ValueError):
            self.missing.append(name.replace(UNKNOWN, "?")[:100])
            return
        self.sourced += len(text)
        if self.sourced > MOST_CHARACTERS:
            raise AtollError(f"{self.name}: the files that it sources are too long together")
        self.run(list(tokens(text, str(path))))


class _Block:
    """Run through tokens, skipping branches whose condition is false."""

    def __init__(self, shell: Shell, script: Sequence[Token]) -> None:
        self.shell, self.script, self.at = shell, script, 0
        self.branches: list[tuple[bool, bool]] = []
        """(active, any branch active so far) of every open condition."""

    @property
    def active(self) -> bool:
        return all(now for now, _ in self.branches)

    def run(self) -> None:
        while self.at < len(self.script):
            token = self.script[self.at]
            if not isinstance(token, Word):
                self.at += 1
            elif not self._control(token):
                self._simple()

    def _control(self, token: Word) -> bool:
        """Handle a keyword of the shell; return whether the token was one."""
        word = token.bare
        if word in ("if", "elif"):
            self.at += 1
            words = self.shell.expand_all(self._until_word("then"))
            tested = words[:1] in (["["], ["[["], ["test"])  # other conditions do not hold
            is_true = tested and holds([w for w in words[1:] if w not in ("]", "]]")])
            if word == "if":
                self.branches.append((is_true, is_true))
            elif self.branches:
                _, before = self.branches.pop()
                self.branches.append((is_true and not before, is_true or before))
        elif word == "else" and self.branches:
            _, before = self.branches.pop()
            self.branches.append((not before, True))
            self.at += 1
        elif word == "fi":
            if self.branches:
                self.branches.pop()
            self.at += 1
        elif word == "for":  # its body runs once, with the first value
            words = self.shell.expand_all(self._until_word("do"))
            if self.active and len(words) > 3 and words[2] == "in":
                self.shell.assign(words[1], False, words[3])
        elif word in ("while", "until"):
            self._until_word("do")
        elif word == "case":
            self._case()
        elif word in ("do", "done", "then", "esac", "{", "}", "!", "time", "exec", "nohup"):
            self.at += 1
        else:
            return self._function(word)
        return True

    def _until_word(self, end: str) -> list[Token]:
        begin = self.at
        while self.at < len(self.script):
            token = self.script[self.at]
            self.at += 1
            if isinstance(token, Word) and token.bare == end:
                return list(self.script[begin : self.at - 1])
        raise AtollError(f"{self.shell.name}: a block has no {end!r}")

    def _case(self) -> None:
        self.at += 1
        subject = "".join(self.shell.expand_all(self._until_word("in")))
        matched = UNKNOWN in subject  # then no branch is known to be taken
        for _, branch in groupby(self._until_word("esac"), lambda t: t == Separator(";;")):
            rest = iter(list(branch))
            patterns = self.shell.expand_all(takewhile(lambda t: t != Separator(")"), rest))
            if not matched and any(fnmatchcase(subject, pattern) for pattern in patterns):
                matched = True
                if self.active:
                    self.shell.run(list(rest))

    def _function(self, word: str) -> bool:
        """Store a function's definition; return whether there was one."""
        next_tokens = self.script[self.at + 1 : self.at + 3]
        brackets = list(next_tokens) == [Separator("("), Separator(")")]
        if word != "function" and not (brackets and _NAME.fullmatch(word)):
            return False
        named = self.script[self.at + 1] if word == "function" else self.script[self.at]
        name = named.bare if isinstance(named, Word) else ""
        begin = depth = 0
        for index in range(self.at, len(self.script)):
            token = self.script[index]
            if isinstance(token, Word) and token.bare == "{":
                begin = begin or index
                depth += 1
            elif isinstance(token, Word) and token.bare == "}":
                depth -= 1
                if depth == 0:
                    self.shell.functions[name] = list(self.script[begin + 1 : index])
                    self.at = index + 1
                    return True
        raise AtollError(f"{self.shell.name}: the function {name!r} is not closed")

    def _simple(self) -> None:
        """Run one command: its assignments, then its words."""
        shell, words, document = self.shell, [], None
        assigning, exporting = True, False
        while self.at < len(self.script):
            token = self.script[self.at]
            if isinstance(token, Separator):
                break
            self.at += 1
            if isinstance(token, Document):
                document = token
                continue
            if assigning and token.bare in _PREFIXES:
                exporting = token.bare == "export"
                continue
            if assigning and (name := self._assignment(token)):
                if exporting and self.active:
                    shell.exported[name] = None
                continue
            assigning = False
            if self.active:
                words += shell.expand(token)
        if not (self.active and words):
            return
        if words[0] in shell.functions:
            shell.run(shell.functions[words[0]])
        elif words[0] in ("source", ".") and len(words) > 1:
            shell.source(words[1])
        elif document is not None and Path(words[0]).name in ("sbatch", "bash", "sh"):
            text = document.text if document.literal else shell.text(document.text)
            shell.run(list(tokens(text.replace(UNKNOWN, "$_"), shell.name)))
        elif words[0] == "shift" and "@" in shell.arrays:
            shell.shift(int(words[1]) if len(words) > 1 and words[1].isdigit() else 1)
        elif words[0] == "unset":
            for table in (shell.values, shell.arrays, shell.exported):
                for name in words[1:]:
                    table.pop(name, None)
        else:
            shell.commands.append(tuple(words))
            shell.words += len(words)
            if shell.words > MOST_WORDS:
                raise AtollError(f"{shell.name}: more than {MOST_WORDS:,} words")

    def _assignment(self, token: Word) -> str:
        """Run an assignment and return its name, "" if the word is none."""
        kind, text = token.parts[0]
        match = _ASSIGNED.match(text) if kind == PLAIN else None
        if match is None:
            return ""
        name, append = match[1], bool(match[3])
        after = self.script[self.at] if self.at < len(self.script) else None
        value = Word(((PLAIN, text[match.end() :]), *token.parts[1:]))
        is_array = after == Separator("(") and value.parts == ((PLAIN, ""),)
        items = self._array() if is_array else None
        if self.active and not match[2]:
            single = "".join(
                part if how == LITERAL else self.shell.text(part, keep_escapes=how == PLAIN)
                for how, part in value.parts
            )
            self.shell.assign(name, append, single if items is None else items)
        return name

    def _array(self) -> list[str]:
        items: list[str] = []
        self.at += 1
        while self.at < len(self.script):
            token = self.script[self.at]
            self.at += 1
            if isinstance(token, Word):
                items += self.shell.expand(token)
            elif token.text == ")":
                return items
        raise AtollError(f"{self.shell.name}: an array is not closed")


def read_script(
    path: Path, environment: Mapping[str, str] | None = None, arguments: Sequence[str] = ()
) -> Script:
    """Read a script's commands; `environment` sets variables as a shell's would."""
    text = read_input_text(path, 4 * MOST_CHARACTERS)  # bytes of a character
    if UNKNOWN in text:
        raise AtollError(f"{path}: not a text file")
    return follow_script(text, str(path), path.parent, environment, arguments)


def follow_script(
    text: str,
    name: str,
    folder: Path,
    environment: Mapping[str, str] | None = None,
    arguments: Sequence[str] = (),
) -> Script:
    """Return the commands of a script's text."""
    shell = Shell(name, folder, dict(environment or {}), user_values=dict(environment or {}))
    if arguments:
        shell.pass_arguments(arguments)
    shell.run(list(tokens(text, name)))
    commands = tuple(inner for command in shell.commands for inner in _inner(command, shell))
    exported = {name: shell.value(name) or "" for name in shell.exported}
    unset = tuple(name for name in shell.unset if name.isidentifier() and name != "_")
    return Script(commands, exported, tuple(dict.fromkeys(shell.missing)), unset, shell.values)


def _inner(words: tuple[str, ...], shell: Shell) -> list[tuple[str, ...]]:
    """Return the commands of `bash -c TEXT`, however wrapped; else the command itself."""
    for index, word in enumerate(words[:-2]):
        if Path(word).name not in ("bash", "sh"):
            continue
        flags = list(takewhile(lambda flag: flag[:1] in "-+", words[index + 1 : -1]))
        if flags and flags[-1].endswith("c"):
            inside = Shell(shell.name, shell.folder, dict(shell.values), dict(shell.arrays))
            inside.depth, inside.length = shell.depth + 1, shell.length
            text = words[index + 1 + len(flags)]
            inside.run(list(tokens(text.replace(UNKNOWN, "$_"), shell.name)))
            return inside.commands
    return [words]
