"""The latest answers of a server in full, which agents read by address."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field

from atoll.base.errors import AtollError
from atoll.commands.short_answers import ToolReply
from atoll.questions.question import Question, option

DETAILS = "details"
"""The tool that reads an address, for clients that read no resources."""
MOST_KEPT = 64
PAGE_CHARACTERS = 16_000


class DetailsQuestion(Question):
    """Read the full answer or the launch file of an earlier call, by its address."""

    uri: str = option("Address that an answer has under details or launch_file.", "Answer")
    key: str = option(
        "Part of the answer: names joined by dots, for example best.memory_bytes.", "Answer", ""
    )
    offset: Annotated[int, Field(ge=0)] = option("First character of the page.", "Answer", 0)


@dataclass(frozen=True, slots=True)
class DetailsPage:
    """A page of an answer."""

    content: str
    next_offset: int | None
    """First character of the next page, if there is one."""


class KeptAnswers:
    """The latest answers of a server in full, by address."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, tuple[str, str]] = OrderedDict()
        self._number = 0

    def add(self, reply: ToolReply) -> ToolReply:
        """Keep an answer and its launch file; return the reply with their addresses."""
        self._number += 1
        details, launch_file = f"atoll://answers/{self._number}", None
        self._texts[details] = ("application/json", reply.details)
        if reply.launch_file is not None:
            launch_file = f"{details}/launch-file"
            self._texts[launch_file] = ("text/plain", reply.launch_file)
        while len(self._texts) > MOST_KEPT:
            self._texts.popitem(last=False)
        return replace(reply, short=replace(reply.short, details=details, launch_file=launch_file))

    def addresses(self) -> list[tuple[str, str]]:
        """Return addresses and MIME types."""
        return [(uri, kind) for uri, (kind, _) in self._texts.items()]

    def read(self, uri: str) -> tuple[str, str]:
        """Return the MIME type and text of an address."""
        if uri not in self._texts:
            raise AtollError(f"uri: {uri!r} is not one of the latest {MOST_KEPT}; ask again")
        return self._texts[uri]

    def page(self, question: DetailsQuestion) -> DetailsPage:
        """Return a page of an address, or of the part of it under a key."""
        kind, text = self.read(question.uri)
        if question.key:
            if kind != "application/json":
                raise AtollError("key: a launch file has no parts; leave it out")
            text = json.dumps(_part(json.loads(text), question.key))
        end = question.offset + PAGE_CHARACTERS
        return DetailsPage(text[question.offset : end], end if end < len(text) else None)


def _part(value: Any, key: str) -> Any:
    for name in key.split("."):
        entries = enumerate(value) if isinstance(value, list) else ()
        pairs = value.items() if isinstance(value, dict) else entries
        parts = {str(n): part for n, part in pairs}
        if name not in parts:
            raise AtollError(f"key: no part {name!r}; there are: {', '.join(parts) or 'none'}")
        value = parts[name]
    return value
