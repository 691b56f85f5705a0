"""Words of a shell script: quotes, comments, continued lines, separators.

A script is read, never run: what only a shell could tell (the output of a command) stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from atoll.errors import AtollError

MOST_CHARACTERS, MOST_WORDS = 200_000, 40_000
"""Of one script; those that people write have a tenth."""
UNKNOWN = "\x00"
"""Stands for what only a shell could tell."""
SEPARATORS = (";;", "&&", "||", ";", "|", "&", "\n", "(", ")")
PLAIN, QUOTED, LITERAL = "plain", "quoted", "literal"
"""Parts of a word: expanded and split, expanded, as they are."""


@dataclass(frozen=True, slots=True)
class Word:
    """What stands between blanks: its parts, each with how it was quoted."""

    parts: tuple[tuple[str, str], ...]
    line: int

    @property
    def bare(self) -> str:
        """The text of a word without quotes; nothing where there are some."""
        return self.parts[0][1] if len(self.parts) == 1 and self.parts[0][0] == PLAIN else ""


@dataclass(frozen=True, slots=True)
class Separator:
    """What ends a command."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Document:
    """What a command is handed between <<END and END."""

    text: str
    literal: bool
    """Whether its variables stay as they are."""
    line: int


Token = Word | Separator | Document


def tokens(text: str, name: str) -> Iterator[Token]:
    """Words and separators of a script, in order."""
    if len(text) > MOST_CHARACTERS:
        raise AtollError(f"{name}: longer than {MOST_CHARACTERS:,} characters, not a launch script")
    for number, token in enumerate(_Reader(text, name).tokens()):
        if number > MOST_WORDS:
            raise AtollError(f"{name}: more than {MOST_WORDS:,} words, not a launch script")
        yield token


class _Reader:
    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text.replace("\r\n", "\n"), name
        self.at, self.line = 0, 1
        self.heredocs = 0  # where the documents of this line end

    def tokens(self) -> Iterator[Token]:
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == "\\" and self.text.startswith("\\\n", self.at):
                self._skip(2)
            elif char in " \t":
                self._skip(1)
            elif char == "#":
                self._skip_to_end_of_line()
            elif char == "\n":
                yield Separator("\n", self.line)
                self._skip(1)
                self._skip_heredocs()
            elif char == "<" and self.text.startswith("<<", self.at):
                if (document := self._heredoc()) is not None:
                    yield document
            elif char in "<>" or self._is_redirection():
                self._redirection()
            elif found := next((s for s in SEPARATORS if self.text.startswith(s, self.at)), ""):
                yield Separator(found, self.line)
                self._skip(len(found))
            else:
                yield self._word()

    def _skip(self, count: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + count)
        self.at += count

    def _skip_to_end_of_line(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _is_redirection(self) -> bool:
        """ "2>file" and "&>file"."""
        rest = self.text[self.at : self.at + 2]
        return len(rest) == 2 and rest[1] == ">" and rest[0] in "0123456789&"

    def _redirection(self) -> None:
        while self.at < len(self.text) and self.text[self.at] in "0123456789<>&|":
            self._skip(1)
        while self.at < len(self.text) and self.text[self.at] in " \t":
            self._skip(1)
        if self.at < len(self.text) and self.text[self.at] not in "\n;|&)":
            self._word()

    def _heredoc(self) -> Document | None:
        if self.text.startswith("<<<", self.at):
            self._redirection()
            return None
        self._skip(2)
        while self.at < len(self.text) and self.text[self.at] in "- \t":
            self._skip(1)
        parts = self._word().parts
        end = re.escape("".join(text for _, text in parts))
        ahead = self.heredocs or self.text.find("\n", self.at) + 1 or len(self.text)
        closed = re.compile(rf"^[ \t]*{end}[ \t]*$", re.M).search(self.text, ahead)
        upto = closed.start() if closed else len(self.text)
        self.heredocs = min(closed.end() + 1, len(self.text)) if closed else upto
        return Document(self.text[ahead:upto], any(k != PLAIN for k, _ in parts), self.line)

    def _skip_heredocs(self) -> None:
        if self.heredocs:
            self._skip(self.heredocs - self.at)
        self.heredocs = 0

    def _word(self) -> Word:
        parts: list[tuple[str, str]] = []
        begun = self.line
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\n;|&()<>":
                break
            if char == "'":
                parts.append((LITERAL, self._until("'", begun)))
            elif char == '"':
                parts.append((QUOTED, self._double(begun)))
            elif char == "\\":
                if not self.text.startswith("\\\n", self.at):
                    parts.append((LITERAL, self.text[self.at + 1 : self.at + 2]))
                self._skip(2)
            elif char == "`":
                parts.append((PLAIN, f"`{self._until('`', begun)}`"))
            elif char == "$":
                parts.append((PLAIN, self._dollar(begun)))
            else:
                parts.append((PLAIN, char))
                self._skip(1)
        return Word(_joined(parts), begun)

    def _until(self, end: str, begun: int) -> str:
        """What stands between two of the same quotes."""
        close = self.text.find(end, self.at + 1)
        if close < 0:
            raise AtollError(f"{self.name}:{begun}: a {end} is not closed")
        found = self.text[self.at + 1 : close]
        self._skip(close + 1 - self.at)
        return found

    def _double(self, begun: int) -> str:
        """The inside of double quotes; escapes are kept for what they escape."""
        self._skip(1)
        found = ""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self._skip(1)
                return found
            if char == "\\" and self.at + 1 < len(self.text):
                after = self.text[self.at + 1]
                found += (
                    "" if after == "\n" else f"\\{after}" if after in '$`"\\' else f"\\\\{after}"
                )
                self._skip(2)
            elif char == "$":
                found += self._dollar(begun)
            elif char == "`":
                found += f"`{self._until('`', begun)}`"
            else:
                found += char
                self._skip(1)
        raise AtollError(f'{self.name}:{begun}: a " is not closed')

    def _dollar(self, begun: int) -> str:
        """ "$name", "${...}", "$(...)" or "$((...))", whole."""
        begin = self.at
        self._skip(1)
        if self.at >= len(self.text):
            return "$"
        opening = self.text[self.at]
        closing = {"{": "}", "(": ")"}.get(opening)
        if closing is None:
            if opening == "'":  # an ANSI quote
                self._until("'", begun)
                return self.text[begin + 2 : self.at - 1]
            while self.at < len(self.text) and (
                self.text[self.at].isalnum() or self.text[self.at] == "_"
            ):
                self._skip(1)
            if self.at == begin + 1 and self.text[self.at] in "@*#?!-$":
                self._skip(1)
            return self.text[begin : self.at]
        depth = 0
        while self.at < len(self.text):
            char = self.text[self.at]
            depth += (char == opening) - (char == closing)
            self._skip(2 if char == "\\" else 1)
            if depth == 0:
                return self.text[begin : self.at]
        raise AtollError(f"{self.name}:{begun}: a ${opening} is not closed")


def _joined(parts: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Neighbours that are quoted alike as one part."""
    found: list[tuple[str, str]] = []
    for kind, texts in groupby(parts, key=itemgetter(0)):
        each = [text for _, text in texts]
        found += [(kind, "".join(each))] if kind == PLAIN else [(kind, text) for text in each]
    return tuple(found)
