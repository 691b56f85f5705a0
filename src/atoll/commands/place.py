"""Placing a table of layers: `atoll place`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atoll import printing
from atoll.commands.common import JsonFlag, answer


def place(
    file: Annotated[Path, typer.Argument(help="Layer table (JSON): times, bytes and edges.")],
    profile: Annotated[str, typer.Option(help="Cost model of the table: phaze.")] = "phaze",
    as_json: JsonFlag = False,
) -> None:
    """Place your own layers on devices: the exact optimum for a table of layer costs."""
    from atoll.api import place as run

    plan = run(file, profile=profile)
    answer(plan, as_json, printing.print_table_plan)
