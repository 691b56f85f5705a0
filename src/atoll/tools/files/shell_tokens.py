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
PLAIN, QUOTED, LITERAL = "plain", "quoted", "literal"
"""Kinds of a word's parts: expanded and split, expanded, left as written."""

_BLANK = re.compile(r"(?:[ \t]|\\\n|#[^\n]*)+")
_HERE_DOCUMENT = re.compile(r"<<(?!<)[- \t]*")
_REDIRECTION = re.compile(r"(?=[<>]|[0-9&]>)[0-9<>&|]+[ \t]*(?=([\n;|&)]|$)?)")
_SEPARATOR = re.compile(r";;|&&|\|\||[;|&\n()]")
_PART = re.compile(
    r"(?P<plain>[^ \t\n;|&()<>'\"\\`$]+|`[^`]*`)|'(?P<literal>[^']*)'|\\(?P<escaped>[\s\S]?)"
    r"|(?P<open>['\"`$])"
)
_QUOTED_PART = re.compile(r"(?P<plain>[^\"\\`$]+|`[^`]*`)|\\(?P<escaped>[\s\S])|(?P<open>[\"\\`$])")
_VARIABLE = re.compile(r"\$(?:'(?P<literal>[^']*)'|\w+|[@*#?!$-])?")


@dataclass(frozen=True, slots=True)
class Word:
    """Text between blanks: (kind, text) of its parts."""

    parts: tuple[tuple[str, str], ...]

    @property
    def bare(self) -> str:
        """Text of a word without quotes, "" if it has quotes."""
        return self.parts[0][1] if len(self.parts) == 1 and self.parts[0][0] == PLAIN else ""


@dataclass(frozen=True, slots=True)
class Separator:
    """Operator that ends a command."""

    text: str


@dataclass(frozen=True, slots=True)
class Document:
    """Here-document of a command, between <<END and END."""

    text: str
    literal: bool
    """Whether its variables are not expanded."""


Token = Word | Separator | Document


def tokens(text: str, name: str) -> Iterator[Token]:
    """Yield words and separators of a script in order."""
    if len(text) > MOST_CHARACTERS:
        raise AtollError(f"{name}: longer than {MOST_CHARACTERS:,} characters, not a launch script")
    for number, token in enumerate(_Tokenizer(text, name).tokens()):
        if number > MOST_WORDS:
            raise AtollError(f"{name}: more than {MOST_WORDS:,} words, not a launch script")
        yield token


def closing_bracket(text: str, begin: int) -> int:
    """Return the index of the bracket that closes the one at `begin`, -1 if there is none."""
    brackets = {"{": r"\\.|[{}]", "(": r"\\.|[()]"}[text[begin]]
    depth = 0
    for match in re.compile(brackets, re.DOTALL).finditer(text, begin):
        depth += (match[0] in "{(") - (match[0] in "})")
        if depth == 0:
            return match.start()
    return -1


class _Tokenizer:
    def __init__(self, text: str, name: str) -> None:
        self.text, self.name = text.replace("\r\n", "\n"), name
        self.at = 0
        self.heredocs = 0  # where the here-documents of this line end

    def tokens(self) -> Iterator[Token]:
        while self.at < len(self.text):
            if self._take(_BLANK):
                continue
            if self._take(_HERE_DOCUMENT):
                yield self._heredoc()
            elif redirection := self._take(_REDIRECTION):
                if redirection[1] is None:
                    self._word()
            elif separator := self._take(_SEPARATOR):
                yield Separator(separator[0])
                if separator[0] == "\n" and self.heredocs:
                    self.at, self.heredocs = self.heredocs, 0
            else:
                yield self._word()

    def _take(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Return the match of a pattern here, and move past it."""
        match = pattern.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return match

    def _not_closed(self, begin: int) -> AtollError:
        line = self.text.count("\n", 0, begin) + 1
        return AtollError(f"{self.name}:{line}: a {self.text[begin]} is not closed")

    def _heredoc(self) -> Document:
        parts = self._word().parts
        end = re.escape("".join(text for _, text in parts))
        start = self.heredocs or self.text.find("\n", self.at) + 1 or len(self.text)
        closed = re.compile(rf"^[ \t]*{end}[ \t]*$", re.M).search(self.text, start)
        stop = closed.start() if closed else len(self.text)
        self.heredocs = min(closed.end() + 1, len(self.text)) if closed else stop
        return Document(self.text[start:stop], any(kind != PLAIN for kind, _ in parts))

    def _word(self) -> Word:
        parts: list[tuple[str, str]] = []
        while match := self._take(_PART):
            if match["plain"] is not None:
                parts.append((PLAIN, match["plain"]))
            elif match["literal"] is not None:
                parts.append((LITERAL, match["literal"]))
            elif match["escaped"] is not None:
                if match["escaped"] != "\n":
                    parts.append((LITERAL, match["escaped"]))
            elif match["open"] == '"':
                parts.append((QUOTED, self._double(match.start())))
            else:
                parts.append((PLAIN, self._dollar(match.start())))
        return Word(_merge_parts(parts))

    def _double(self, begin: int) -> str:
        """Return the text inside double quotes, with escapes kept for the expansion."""
        content = ""
        while match := self._take(_QUOTED_PART):
            if match["plain"] is not None:
                content += match["plain"]
            elif (escaped := match["escaped"]) is not None:
                kept = f"\\{escaped}" if escaped in '$`"\\' else f"\\\\{escaped}"
                content += "" if escaped == "\n" else kept
            elif match["open"] == '"':
                return content
            else:
                content += self._dollar(match.start())
        raise self._not_closed(begin)

    def _dollar(self, begin: int) -> str:
        """Return a complete "$name", "${...}", "$(...)" or "$((...))"."""
        if self.text[begin] != "$":
            raise self._not_closed(begin)
        if self.text[begin + 1 : begin + 2] in ("{", "("):
            end = closing_bracket(self.text, begin + 1)
            if end < 0:
                raise self._not_closed(begin + 1)
            self.at = end + 1
            return self.text[begin : self.at]
        self.at = begin
        match = self._take(_VARIABLE)
        assert match is not None
        return match[0] if match["literal"] is None else match["literal"]


def _merge_parts(parts: list[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Merge neighbouring plain parts."""
    merged: list[tuple[str, str]] = []
    for kind, texts in groupby(parts, key=itemgetter(0)):
        pieces = [text for _, text in texts]
        merged += [(kind, "".join(pieces))] if kind == PLAIN else [(kind, text) for text in pieces]
    return tuple(merged)
