"""What every command shares."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def print_json(value: dict[str, Any]) -> None:
    """One JSON object on standard output."""
    json.dump(value, sys.stdout, indent=1, allow_nan=False)
    sys.stdout.write("\n")


def options_given(context: typer.Context) -> list[str]:
    """Names of the options and arguments that stand on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source and source.name == "COMMANDLINE"]
