"""Short forms of answers for agents: at most 2 kB, with the addresses of the details."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

from pydantic import JsonValue

from atoll.answers.answer import adapter, dumped
from atoll.answers.designs import CompareAnswer, SweepAnswer
from atoll.base.errors import AtollError
from atoll.base.notebook import summary_lines
from atoll.base.registry import import_named
from atoll.base.units import format_value
from atoll.commands.plain import PRINTED

LONGEST = 2000
"""Bytes of an answer's text, and of its structured content."""
RESERVED_BYTES = 200
"""Bytes of the addresses and the names of an answer's parts."""
CUT = "... (the rest is under details)"
LEFT_OUT = ("low s", "high s", "device W", "J/token")
"""Columns of a sweep that only its details have."""
Row = dict[str, JsonValue]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortAnswer:
    """The short form of an answer."""

    summary: dict[str, str]
    """Sentences by label, as the command prints them."""
    figures: Row
    """Main figures, by quantity and unit, to five digits."""
    rows: tuple[Row, ...] = ()
    """Rows of a sweep, or what differs between runs."""
    rows_left_out: int = 0
    """Rows that only the details have."""
    details: str = ""
    """Address of the full answer, for resources/read or the tool `details`."""
    launch_file: str | None = None
    """Address of the launch file, where the tool can run the layout."""

    def to_dict(self) -> dict[str, Any]:
        """Return it as the structured content of a reply."""
        return dict(dumped(self))


@dataclass(frozen=True, slots=True)
class ToolReply:
    """A result in short and in full, and its launch file."""

    text: str
    short: ShortAnswer
    details: str
    launch_file: str | None


def short_schema() -> dict[str, Any]:
    """Return the JSON Schema of the structured content of a reply."""
    schema = adapter(ShortAnswer).json_schema(mode="serialization")
    return {**schema, "additionalProperties": False}


def reply_of(name: str, result: Any) -> ToolReply:
    """Return a tool's result in short and in full."""
    labelled = _summary(name, result)
    short = ShortAnswer(summary=_by_label(labelled), figures=_figures(result))
    short = _filled(short, _rows(result))
    lines = labelled[0][1].splitlines() if len(labelled) == 1 else summary_lines(labelled)
    lines += [", ".join(f"{n} {format_value(v)}" for n, v in row.items()) for row in short.rows]
    if short.rows_left_out:
        lines.append(CUT)
    details = json.dumps(result.to_dict(), allow_nan=False)
    return ToolReply("\n".join(lines), short, details, _launch_text(result))


def _summary(name: str, result: Any) -> list[tuple[str, str]]:
    kind = getattr(result, "kind", "")
    if kind == "models":
        return [("Models", ", ".join(model.name for model in result.models))]
    if kind == "catalogue":
        lists = {n: v for n, v in result.to_dict().items() if isinstance(v, list)}
        return [(n.replace("_", " "), ", ".join(v)) for n, v in lists.items()]
    if hasattr(result, "summary"):
        labelled: list[tuple[str, str]] = result.summary()
        return labelled
    with redirect_stdout(StringIO()) as shown:
        PRINTED[name](result)
    return [("Answer", "\n".join(_first(shown.getvalue().splitlines())))]


def _by_label(labelled: list[tuple[str, str]]) -> dict[str, str]:
    """Return the texts by label, those of equal labels together."""
    texts: dict[str, str] = {}
    for label, text in labelled:
        texts[label] = f"{texts[label]}; {text}" if label in texts else text
    return texts


def _first(lines: list[str]) -> list[str]:
    """Return the first lines that fit in a short answer, and a sign where some are cut."""
    kept: list[str] = []
    left = LONGEST - RESERVED_BYTES
    for line in map(str.rstrip, lines):
        left -= len(json.dumps(line))
        if left < 0:
            return [*kept, CUT]
        kept.append(line)
    return kept


def _figures(result: Any) -> Row:
    answer = getattr(result, "answer", result)
    with suppress(AtollError):
        result_figures = import_named("atoll.several.figures:result_figures")
        return _rounded(result_figures(getattr(answer, "estimate", answer)))
    return {}


def _rows(result: Any) -> Iterator[Row]:
    if isinstance(result, SweepAnswer):
        for line in result.lines():
            shown: Row = {n: v for n, v in line.items() if n not in LEFT_OUT and v != ""}
            yield _rounded(shown)
    if isinstance(result, CompareAnswer):
        for row in (*result.asked, *result.figures):
            if row.differs:
                values: Row = dict(zip(result.runs, row.values, strict=True))
                values["name"] = row.name
                yield _rounded(values)


def _rounded(row: Row) -> Row:
    return {n: float(f"{v:.5g}") if isinstance(v, float) else v for n, v in row.items()}


def _filled(short: ShortAnswer, rows: Iterator[Row]) -> ShortAnswer:
    """Return the short answer with as many rows as it has space for."""
    left = LONGEST - len(json.dumps(short.to_dict())) - RESERVED_BYTES
    kept: list[Row] = []
    for row in rows:
        left -= len(json.dumps(row)) + 2
        if left < 0:
            return replace(short, rows=tuple(kept), rows_left_out=1 + len([*rows]))
        kept.append(row)
    return replace(short, rows=tuple(kept))


def _launch_text(result: Any) -> str | None:
    """Return the launch file of an estimate or a plan, where its tool can run it."""
    tool = getattr(result, "tool", None)
    if tool is not None and tool.write is not None:
        with suppress(AtollError):
            text: str = result.export(tool.name).text
            return text
    return None
