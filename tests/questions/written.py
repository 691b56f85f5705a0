"""What is written down of questions: tables of the docs, and stubs for editors.

`python tests/questions/written.py` writes both again: tables between `<!-- options: NAME -->` or
`<!-- columns: NAME -->` or `<!-- tools -->` and the next empty line, stubs beside the questions.
"""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

from pydantic.fields import FieldInfo

from atoll import questions
from atoll.base.registry import Registry
from atoll.questions import (
    COMMANDS,
    EstimateQuestion,
    LayoutQuestion,
    MappingQuestion,
    PlanQuestion,
    PodsQuestion,
    Question,
    RunQuestion,
    SearchQuestion,
    WaferQuestion,
    verbs,
)
from atoll.questions.question import Named, about, inside, scalars
from atoll.questions.texts import (
    choices,
    grouped,
    help_words,
    metavar,
    python_type,
    question_fields,
    spelled,
)
from atoll.tools.registry import TOOLS
from atoll.validation.tables import Column, columns

DOCS = Path(__file__).parents[2] / "docs"
STUB = Path(questions.__file__).with_name("keywords.pyi")
_TABLE = re.compile(r"(<!-- options: (\S+) -->\n)(?:.+\n)*")
_TOOLS = re.compile(r"(<!-- tools -->\n)(?:.+\n)*")
_COLUMNS = re.compile(r"(<!-- columns: (.+) -->\n)(?:.+\n)*")
KEYWORDS: dict[str, tuple[type[Question], ...]] = {
    "BenchFields": (verbs.BenchQuestion,),
    "CalibrateFields": (verbs.CalibrateQuestion,),
    "CheckFields": (verbs.CheckQuestion,),
    "ChipFields": (SearchQuestion,),
    "EstimateFields": (EstimateQuestion, MappingQuestion),
    "LayoutFields": (LayoutQuestion,),
    "MeasureFields": (verbs.MeasureQuestion,),
    "ModelsFields": (verbs.ModelsQuestion,),
    "PlaceFields": (verbs.PlaceQuestion,),
    "PlanFields": (PlanQuestion, PodsQuestion),
    "RunFields": (RunQuestion,),
    "SearchFields": (SearchQuestion, WaferQuestion),
    "ValidateFields": (verbs.ValidateQuestion,),
}
"""Types of Python's keywords."""


def names_of(info: FieldInfo) -> Named | None:
    """What lists a field's values, where something does."""
    parts = (*info.metadata, *inside(info.annotation))
    return next((part for part in parts if isinstance(part, Named) and part.names()), None)


def keyword_type(info: FieldInfo) -> str:
    """What Python may give for a field, as an annotation. Registries are open: plug-ins add names,
    and their objects stand for them.
    """
    named = names_of(info)
    if named is None:
        return python_type(info)
    kind = named.listed.kind if isinstance(named.listed, Registry) else None
    more = (["str"] if kind or named.loader else []) + ([kind.__name__] if kind else [])
    return python_type(info, " | ".join([choices(named.names()), *more]))


def stub() -> str:
    """The keywords of Python's functions, as editors and mypy read them."""
    lines = [
        "# Written by tests/questions/written.py from the questions.",
        "# fmt: off",
        "# ruff: noqa: E501",
        "from collections.abc import Mapping, Sequence",
        "from pathlib import Path",
        "from typing import Any, Literal, TypedDict",
        "",
    ]
    fields = [info for asked in KEYWORDS.values() for info in question_fields(*asked).values()]
    listed = [named.listed for info in fields if (named := names_of(info))]
    kinds = {registry.kind for registry in listed if isinstance(registry, Registry)}
    lines += sorted(f"from {kind.__module__} import {kind.__name__}" for kind in kinds)
    for name, asked in KEYWORDS.items():
        left_out = asked[0].positional
        lines += ["", f"class {name}(TypedDict, total=False):"]
        lines += [
            f"    {field}: {keyword_type(info)}"
            for field, info in question_fields(*asked).items()
            if field not in left_out
        ]
    return "\n".join(lines) + "\n"


def table(*asked: type[Question]) -> str:
    """The options of a command, for the docs."""
    rows = ["| option | what it says, its values and its default |", "|---|---|"]
    for group, fields in grouped(question_fields(*asked)).items():
        rows.append(f"| **{group}** | |")
        for name, info in fields.items():
            positional = name in asked[0].arguments
            value = "" if scalars(info) == {bool} else f" {metavar(info)}"
            shown = name.upper() if positional else f"{spelled(name)}{value}"
            shown = f"`{name}:` *file*" if about(info, "file_only") else f"`{shown}`"
            rows.append(f"| {shown} | {help_words(name, info, asked)} |")
    return "\n".join(rows) + "\n"


def tools_table() -> str:
    """The training tools, for the docs."""
    rows = [
        "| tool | version | trains | precisions | layouts | launch files | step times |",
        "|---|---|---|---|---|---|---|",
    ]
    errors = json.loads(
        (DOCS.parent / "benchmarks" / "tool_errors.json").read_text(encoding="utf-8")
    )
    for tool in TOOLS.values():
        reader = f"atoll.tools.{tool.name.replace('-', '_')}.read"
        folder = reader.rpartition(".")[0]
        read = bool(tool.write) or bool(find_spec(folder) and find_spec(reader))
        measured = errors.get(tool.name)
        priced = f"{measured['mean']:.0%} off, {measured['rows']} rows" if measured else "no rows"
        limits = "; ".join(
            f"{axis} {', '.join(map(str, values))}" for axis, values in tool.axes.items()
        )
        cells = (
            f"`{tool.name}`: {tool.title}",
            tool.versions,
            ", ".join(tool.methods),
            ", ".join(tool.precisions),
            limits or "all",
            ", ".join(("written",) * bool(tool.write) + ("read",) * read) or "none",
            priced,
        )
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def columns_table(name: str) -> str:
    """The columns of tables of measurements, for the docs."""
    groups: dict[Column, list[str]] = {}
    for column, declared in columns().items():
        if declared.table == name:
            groups.setdefault(declared, []).append(f"`{column}`")
    rows = ["| column | type | meaning |", "|---|---|---|"]
    for declared, names in groups.items():
        limits = f", {declared.low:g} to {declared.high:g}" if declared.type != "text" else ""
        limits = {"flag": ", 0 or 1"}.get(declared.type, limits)
        kind = {"whole": "integer", "decimal": "number"}.get(declared.type, declared.type)
        unit = f" {declared.unit}" if declared.unit else ""
        rows.append(f"| {', '.join(names)} | {kind}{limits}{unit} | {declared.means} |")
    return "\n".join(rows) + "\n"


def with_tables(text: str) -> str:
    """A page of the docs with its tables as they should be."""
    text = _COLUMNS.sub(lambda found: found[1] + columns_table(found[2]), text)
    text = _TOOLS.sub(lambda found: found[1] + tools_table(), text)
    return _TABLE.sub(lambda found: found[1] + table(*COMMANDS[found[2]]), text)


def main() -> None:
    STUB.write_text(stub(), encoding="utf-8")
    for page in DOCS.glob("*.md"):
        page.write_text(with_tables(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
