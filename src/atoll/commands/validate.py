"""Measured against predicted: `atoll calibrate` and `atoll validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atoll import printing
from atoll.commands.common import JsonFlag, print_json


def calibrate(
    data: Annotated[
        Path | None, typer.Argument(help="Timings of single operators (CSV); default: our H200's.")
    ] = None,
    gpu: Annotated[str, typer.Option(help="The device that was measured.")] = "h200",
    out: Annotated[Path | None, typer.Option(help="Write the calibration (YAML) here.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Fit the GPU operator model on measured timings; half of the rows are kept to judge it."""
    from atoll.api import calibrate as run

    shown = run(data, gpu=gpu, out=out)
    if as_json:
        print_json(shown)
    else:
        printing.print_calibration(shown)


def validate(
    data: Annotated[
        Path | None, typer.Option(help="Timings of single operators (CSV); default: our H200's.")
    ] = None,
    gpu: Annotated[str, typer.Option(help="The device that was measured.")] = "h200",
    as_json: JsonFlag = False,
) -> None:
    """Hold predicted operator times against measured ones: errors overall, by kind, worst rows."""
    from atoll.api import validate as run

    shown = run(data, gpu=gpu)
    if as_json:
        print_json(shown)
    else:
        printing.print_validation(shown)
