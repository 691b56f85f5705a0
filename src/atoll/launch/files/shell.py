"""Commands of a shell script with their variables put in: read, never run.

What a launch script does with its arguments is followed: variables with defaults, arrays, appended
texts, sums, files beside it that it sources, conditions on known values, functions. The output of
commands, and what the environment sets, is unknown; a word that holds it carries `UNKNOWN`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from itertools import takewhile
from pathlib import Path

from atoll.errors import AtollError
from atoll.launch.files.expressions import holds, value_of
from atoll.launch.files.words import (
    LITERAL,
    MOST_CHARACTERS,
    PLAIN,
    QUOTED,
    UNKNOWN,
    Document,
    Separator,
    Token,
    Word,
    tokens,
)

MOST_WORDS = 50_000
MOST_LENGTH = 1_000_000
DEEPEST, MOST_NESTED = 12, 40
"""Of scripts and functions in one another, and of values in one another."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?(\+?)=")
_BRACES = re.compile(r"([A-Za-z_]\w*|\d+|[@*#?])(\[[@*]\])?(:?[-=+?])?", re.DOTALL)
_EXPANSION = re.compile(r"\\(.)|\$\(\(|\$\(|\$\{|\$([A-Za-z_]\w*|\d|[@*#?!$-])|`[^`]*`", re.DOTALL)
_OWN_FOLDER = re.compile(
    r"pwd|(?!.*(\.\.|basename|sed|awk)).*\bdirname\b.*(BASH_SOURCE|\$0|\$\{0).*", re.DOTALL
)
"""Commands that print the script's own folder."""
_PREFIXES = ("export", "local", "declare", "typeset", "readonly")


@dataclass(frozen=True, slots=True)
class Command:
    """One command with its words."""

    words: tuple[str, ...]
    line: int


@dataclass(frozen=True, slots=True)
class Script:
    """What a script runs, and the variables that it hands to others."""

    commands: tuple[Command, ...]
    exported: Mapping[str, str]
    missing: tuple[str, ...] = ()
    """Files that it sources and that are not beside it."""
    unset: tuple[str, ...] = ()
    """Variables that it asks for and does not set."""

    @property
    def notes(self) -> tuple[str, ...]:
        return tuple(f"{n}, which it sources, was not found beside it" for n in self.missing)


@dataclass
class Shell:
    """What is known while a script is read."""

    name: str
    folder: Path
    values: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    """Variables that the user said: they stand where the script's own values are unknown."""
    unset: dict[str, None] = field(default_factory=dict)
    """Variables that were asked for and not known."""
    functions: dict[str, list[Token]] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    exported: dict[str, None] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    length: int = 0
    words: int = 0
    sourced: int = 0
    depth: int = 0
    nested: int = 0

    # --- Expansion --------------------------------------------------------------------------------

    def value(self, name: str) -> str | None:
        """The text of a variable; None where the script does not set it."""
        if name in self.values:
            return self.values[name]
        if name in self.arrays:
            return self.arrays[name][0] if self.arrays[name] else ""
        return None

    def expand(self, word: Word) -> list[str]:
        """The words that a word becomes: plain parts are split at blanks, arrays item by item."""
        found: list[str] = []
        open_ = False
        for kind, text in word.parts:
            pieces: list[str]
            if kind == LITERAL:
                pieces = [text]
            elif items := self._items(text):
                pieces = items if kind == QUOTED else [w for i in items for w in i.split()]
            else:
                whole = self.text(text, keep_escapes=kind == PLAIN)
                pieces = [whole] if kind == QUOTED else _split(whole)
            for number, piece in enumerate(pieces):
                if open_ and number == 0:
                    found[-1] += piece
                else:
                    found.append(piece)
                open_ = True
            if kind == PLAIN and pieces and text[-1:].isspace():
                open_ = False
        self._count(sum(map(len, found)))
        return found

    def _items(self, text: str) -> list[str]:
        """The items where a text is one whole array."""
        whole = re.fullmatch(r"\$\{([A-Za-z_]\w*)\[[@*]\]\}", text)
        if whole is None:
            return []
        items = self.arrays.get(whole[1])
        return list(items) if items is not None else _split(self.values.get(whole[1], ""))

    def text(self, text: str, *, keep_escapes: bool = False) -> str:
        """A text with its variables put in."""
        if self.nested > MOST_NESTED:
            raise AtollError(f"{self.name}: its values stand too deeply in one another")
        self.nested += 1
        out, at = [], 0
        while found := _EXPANSION.search(text, at):
            out.append(text[at : found.start()])
            at = found.end()
            if found[1] is not None:
                out.append(found[0] if keep_escapes and found[1] not in '$`"\\' else found[1])
            elif found[0] in ("$((", "$(", "${"):
                begin = found.start() + 1
                end = _closing(text, begin)
                inside = text[begin + 1 : end]
                at = end + 1
                if found[0] == "$((":
                    out.append(self._sum(inside[1:-1]))
                else:
                    out.append(self._braces(inside) if found[0] == "${" else _printed(inside))
            elif found[0].startswith("`"):
                out.append(_printed(found[0].strip("`")))
            else:
                out.append(self._plain(found[2]))
        out.append(text[at:])
        whole = "".join(out)
        self.nested -= 1
        self._count(len(whole))
        return whole

    def _plain(self, name: str) -> str:
        if name in "@*":  # the script's own arguments: none
            return ""
        known = self.value(name)
        if known is None:
            self.unset[name] = None
        return UNKNOWN if known is None else known

    def _braces(self, inside: str) -> str:
        found = _BRACES.match(inside)
        if found is None:
            return UNKNOWN
        name, of_all, how = found[1], found[2], found[3]
        rest = inside[found.end() :]
        known = self.value(name)
        if name in "@*":
            known = ""
        if of_all and name in self.arrays:
            known = " ".join(self.arrays[name])
        if how is None:
            if known is None:
                self.unset[name] = None
            return UNKNOWN if rest or known is None else known
        empty = known is None or (how.startswith(":") and known == "")
        if how.endswith("+"):
            return "" if empty else self.text(rest)
        if how.endswith("?"):
            return UNKNOWN if empty else str(known)
        if not empty:
            return str(known)
        other = self.text(_unquoted(rest))
        if how.endswith("="):
            self.values[name] = other
        return other

    def _sum(self, inside: str) -> str:
        """An arithmetic expression of whole numbers."""
        named = _NAME.sub(lambda m: self._plain(m[0]), self.text(inside))
        if UNKNOWN in named or len(named) > 200:
            return UNKNOWN
        found = value_of(named)
        return UNKNOWN if found is None else str(found)

    def _count(self, characters: int) -> None:
        """Variables that double one another must not fill the memory."""
        self.length += characters
        if self.length > MOST_LENGTH:
            raise AtollError(f"{self.name}: its variables expand to too much text")

    # --- Commands ---------------------------------------------------------------------------------

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
        elif UNKNOWN in items and name in self.given:
            self.values[name] = self.given[name]
        else:
            self.values[name] = (self.values.get(name, "") if append else "") + items
            self.arrays.pop(name, None)

    def forget(self, name: str) -> None:
        for known in (self.values, self.arrays, self.exported):
            known.pop(name, None)

    def source(self, name: str) -> None:
        """A file beside the script; one that is not there is noted, and says nothing."""
        path = self.folder / name
        try:
            if UNKNOWN in name or not path.resolve().is_relative_to(self.folder.resolve()):
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
    """A run through tokens, with what conditions leave out."""

    def __init__(self, shell: Shell, script: Sequence[Token]) -> None:
        self.shell, self.script, self.at = shell, script, 0
        self.taken: list[tuple[bool, bool]] = []
        """Of every open condition: whether its branch is followed, and whether one was."""

    @property
    def active(self) -> bool:
        return all(now for now, _ in self.taken)

    def run(self) -> None:
        while self.at < len(self.script):
            token = self.script[self.at]
            if not isinstance(token, Word):
                self.at += 1
            elif not self._control(token):
                self._simple()

    def _control(self, token: Word) -> bool:
        """Whether the token was one of the shell's own words, which is then dealt with."""
        word = token.bare
        if word in ("if", "elif"):
            self.at += 1
            holds = self._condition(self._until_word("then"))
            if word == "if":
                self.taken.append((holds, holds))
            elif self.taken:
                _, before = self.taken.pop()
                self.taken.append((holds and not before, holds or before))
        elif word == "else" and self.taken:
            _, before = self.taken.pop()
            self.taken.append((not before, True))
            self.at += 1
        elif word == "fi":
            if self.taken:
                self.taken.pop()
            self.at += 1
        elif word == "for":
            self._loop(self._until_word("do"))
        elif word in ("while", "until"):
            self._until_word("do")
        elif word == "case":
            self._case()
        elif word in ("do", "done", "then", "esac", "{", "}", "!", "time", "exec", "nohup"):
            self.at += 1
        elif self._function(word):
            pass
        else:
            return False
        return True

    def _until_word(self, end: str) -> list[Token]:
        begin = self.at
        while self.at < len(self.script):
            token = self.script[self.at]
            self.at += 1
            if isinstance(token, Word) and token.bare == end:
                return list(self.script[begin : self.at - 1])
        raise AtollError(f"{self.shell.name}: a block has no {end!r}")

    def _loop(self, head: list[Token]) -> None:
        """A loop's body once, with the first value."""
        words = [w for token in head if isinstance(token, Word) for w in self.shell.expand(token)]
        if self.active and len(words) > 3 and words[2] == "in":
            self.shell.assign(words[1], False, words[3])

    def _condition(self, tested: list[Token]) -> bool:
        """Whether a test holds; one that only a shell could tell does not."""
        words = [w for token in tested if isinstance(token, Word) for w in self.shell.expand(token)]
        if not words or words[0] not in ("[", "[[", "test"):
            return False
        return holds([w for w in words[1:] if w not in ("]", "]]")])

    def _case(self) -> None:
        self.at += 1
        subject = "".join(
            w for token in self._until_word("in") if isinstance(token, Word)
            for w in self.shell.expand(token)
        )  # fmt: skip
        body = self._until_word("esac")
        patterns: list[str] = []
        commands: list[Token] = []
        reading, matched = True, False
        for token in [*body, Separator(";;", 0)]:
            if reading and isinstance(token, Word):
                patterns += self.shell.expand(token)
            elif isinstance(token, Separator) and reading and token.text == ")":
                reading = False
            elif isinstance(token, Separator) and token.text == ";;":
                known = UNKNOWN not in subject
                if not matched and known and any(fnmatchcase(subject, p) for p in patterns):
                    matched = True
                    if self.active:
                        self.shell.run(commands)
                patterns, commands, reading = [], [], True
            elif not reading:
                commands.append(token)

    def _function(self, word: str) -> bool:
        """A definition is kept until it is called."""
        rest = self.script[self.at + 1 : self.at + 3]
        brackets = len(rest) == 2 and all(
            isinstance(t, Separator) and t.text == s for t, s in zip(rest, "()", strict=True)
        )
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
        """One command: assignments before it, then its words."""
        shell, words, document = self.shell, [], None
        first = self.script[self.at]
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
        elif words[0] == "unset":
            for name in words[1:]:
                shell.forget(name)
        else:
            shell.commands.append(Command(tuple(words), first.line))
            shell.words += len(words)
            if shell.words > MOST_WORDS:
                raise AtollError(f"{shell.name}: more than {MOST_WORDS:,} words")

    def _assignment(self, token: Word) -> str:
        """The name that a word gives a value; nothing where it gives none."""
        kind, text = token.parts[0]
        found = _ASSIGNED.match(text) if kind == PLAIN else None
        if found is None:
            return ""
        name, append = found[1], bool(found[3])
        after = self.script[self.at] if self.at < len(self.script) else None
        rest = Word(((PLAIN, text[found.end() :]), *token.parts[1:]), token.line)
        is_array = (
            isinstance(after, Separator) and after.text == "(" and rest.parts == ((PLAIN, ""),)
        )
        items = self._array() if is_array else None
        if self.active and not found[2]:
            single = "".join(
                part if how == LITERAL else self.shell.text(part, keep_escapes=how == PLAIN)
                for how, part in rest.parts
            )
            self.shell.assign(name, append, single if items is None else items)
        return name

    def _array(self) -> list[str]:
        found: list[str] = []
        self.at += 1
        while self.at < len(self.script):
            token = self.script[self.at]
            self.at += 1
            if isinstance(token, Word):
                found += self.shell.expand(token)
            elif token.text == ")":
                return found
        raise AtollError(f"{self.shell.name}: an array is not closed")


def read_script(path: Path, environment: Mapping[str, str] | None = None) -> Script:
    """What a script runs; `environment` sets variables as a shell's would."""
    try:
        with path.open("rb") as file:
            data = file.read(4 * MOST_CHARACTERS + 4)  # bytes of a character
        text = data.decode()
    except UnicodeDecodeError:
        raise AtollError(f"{path}: not a text file") from None
    except OSError as error:
        raise AtollError(f"{path}: cannot be read ({error.strerror})") from None
    if UNKNOWN in text:
        raise AtollError(f"{path}: not a text file")
    return followed(text, str(path), path.parent, environment)


def followed(
    text: str, name: str, folder: Path, environment: Mapping[str, str] | None = None
) -> Script:
    """What a text of a script runs."""
    shell = Shell(name, folder, dict(environment or {}), given=dict(environment or {}))
    shell.run(list(tokens(text, name)))
    commands = tuple(inner for command in shell.commands for inner in _inner(command, shell))
    exported = {name: shell.value(name) or "" for name in shell.exported}
    unset = tuple(name for name in shell.unset if name.isidentifier() and name != "_")
    return Script(commands, exported, tuple(dict.fromkeys(shell.missing)), unset)


def _inner(command: Command, shell: Shell) -> list[Command]:
    """What `bash -c TEXT` runs, however it is wrapped; other commands as they are."""
    words = command.words
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
    return [command]


def _printed(command: str) -> str:
    """What a command prints, where it is known without running it."""
    return "." if _OWN_FOLDER.fullmatch(command.strip()[:200]) else UNKNOWN


def _split(text: str) -> list[str]:
    return text.split() if text.strip() else []


def _unquoted(text: str) -> str:
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _closing(text: str, begin: int) -> int:
    """Where the bracket that opens at `begin` closes."""
    opening = text[begin]
    closing, depth = {"{": "}", "(": ")"}[opening], 0
    for index in range(begin, len(text)):
        depth += (text[index] == opening) - (text[index] == closing)
        if depth == 0:
            return index
    return len(text) - 1
