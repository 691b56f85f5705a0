"""Tokens of a shell script: quotes, comments, continued lines, separators.

A script is read, never run: the output of commands stays unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from atoll.base.errors import AtollError

MOST_CHARACTERS, MOST_WORDS = 200_000, 40_000
"""Limits per script, ten times what typical launch scripts have."""
UNKNOWN = "\x00"
"""Marks text that only running the script would produce."""
SEPARATORS = (";;", "&&", "||", ";", "|", "&", "\n", "(", ")")
PLAIN, QUOTED, LITERAL = "plain", "quoted", "literal"
"""Kinds of a word's parts: expanded and split, expanded, left as written."""


@dataclass(frozen=True, slots=True)
class Word:
    """Text between blanks: (kind, text) of its parts."""

    parts: tuple[tuple[str, str], ...]
    line: int

    @property
    def bare(self) -> str:
        """Text of a word without quotes, "" if it has quotes."""
        return self.parts[0][1] if len(self.parts) == 1 and self.parts[0][0] == PLAIN else ""


@dataclass(frozen=True, slots=True)
class Separator:
    """Operator that ends a command."""

    text: str
    line: int


@dataclass(frozen=True, slots=True)
class Document:
    """Here-document of a command, between <<END and END."""

    text: str
    literal: bool
    """Whether its variables are not expanded."""
    line: int


Token = Word | Separator | Document


def tokens(text: str, name: str) -> Iterator[Token]:
    """Yield words and separators of a script in order."""
    if len(text) > MOST_CHARACTERS:
        raise AtollError(f"{name}: longer than {MOST_CHARACTERS:,} characters, not a launch script")
    for number, token in enumerate(_Tokenizer(text, name).tokens()):
        if number > MOST_WORDS:
            raise AtollError(f"{name}: more than {MOST_WORDS:,} words, not a launch script")
        yield token


class _Tokenizer:
    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text.replace("\r\n", "\n"), name
        self.at, self.line = 0, 1
        self.heredocs = 0  # where the here-documents of this line end

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
            elif separator := next((s for s in SEPARATORS if self.text.startswith(s, self.at)), ""):
                yield Separator(separator, self.line)
                self._skip(len(separator))
            else:
                yield self._word()

    def _skip(self, count: int) -> None:
        self.line += self.text.count("\n", self.at, self.at + count)
        self.at += count

    def _skip_to_end_of_line(self) -> None:
        end = self.text.find("\n", self.at)
        self.at = len(self.text) if end < 0 else end

    def _is_redirection(self) -> bool:
        """Return whether "2>file" or "&>file" begins here."""
        pair = self.text[self.at : self.at + 2]
        return len(pair) == 2 and pair[1] == ">" and pair[0] in "0123456789&"

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
        start = self.heredocs or self.text.find("\n", self.at) + 1 or len(self.text)
        closed = re.compile(rf"^[ \t]*{end}[ \t]*$", re.M).search(self.text, start)
        stop = closed.start() if closed else len(self.text)
        self.heredocs = min(closed.end() + 1, len(self.text)) if closed else stop
        return Document(self.text[start:stop], any(k != PLAIN for k, _ in parts), self.line)

    def _skip_heredocs(self) -> None:
        if self.heredocs:
            self._skip(self.heredocs - self.at)
        self.heredocs = 0

    def _word(self) -> Word:
        parts: list[tuple[str, str]] = []
        start_line = self.line
        while self.at < len(self.text):
            char = self.text[self.at]
            if char in " \t\n;|&()<>":
                break
            if char == "'":
                parts.append((LITERAL, self._until("'", start_line)))
            elif char == '"':
                parts.append((QUOTED, self._double(start_line)))
            elif char == "\\":
                if not self.text.startswith("\\\n", self.at):
                    parts.append((LITERAL, self.text[self.at + 1 : self.at + 2]))
                self._skip(2)
            elif char == "`":
                parts.append((PLAIN, f"`{self._until('`', start_line)}`"))
            elif char == "$":
                parts.append((PLAIN, self._dollar(start_line)))
            else:
                parts.append((PLAIN, char))
                self._skip(1)
        return Word(_merge_parts(parts), start_line)

    def _until(self, end: str, start_line: int) -> str:
        """Return the text up to the closing quote and move past it."""
        close = self.text.find(end, self.at + 1)
        if close < 0:
            raise AtollError(f"{self.name}:{start_line}: a {end} is not closed")
        quoted = self.text[self.at + 1 : close]
        self._skip(close + 1 - self.at)
        return quoted

    def _double(self, start_line: int) -> str:
        """Return the text inside double quotes, with escapes kept for the expansion."""
        self._skip(1)
        content = ""
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self._skip(1)
                return content
            if char == "\\" and self.at + 1 < len(self.text):
                after = self.text[self.at + 1]
                content += (
                    "" if after == "\n" else f"\\{after}" if after in '$`"\\' else f"\\\\{after}"
                )
                self._skip(2)
            elif char == "$":
                content += self._dollar(start_line)
            elif char == "`":
                content += f"`{self._until('`', start_line)}`"
            else:
                content += char
                self._skip(1)
        raise AtollError(f'{self.name}:{start_line}: a " is not closed')

    def _dollar(self, start_line: int) -> str:
        """Return a complete "$name", "${...}", "$(...)" or "$((...))"."""
        begin = self.at
        self._skip(1)
        if self.at >= len(self.text):
            return "$"
        opening = self.text[self.at]
        closing = {"{": "}", "(": ")"}.get(opening)
        if closing is None:
            if opening == "'":  # an ANSI quote
                self._until("'", start_line)
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
        raise AtollError(f"{self.name}:{start_line}: a ${opening} is not closed")


def _merge_parts(parts: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Merge neighbouring plain parts."""
    merged: list[tuple[str, str]] = []
    for kind, texts in groupby(parts, key=itemgetter(0)):
        pieces = [text for _, text in texts]
        merged += [(kind, "".join(pieces))] if kind == PLAIN else [(kind, text) for text in pieces]
    return tuple(merged)
