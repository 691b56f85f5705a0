"""Measured against predicted: `atoll calibrate` and `atoll validate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atoll import printing, printing_training
from atoll.commands.common import JsonFlag, answer, print_json


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
    answer(shown, as_json, printing.print_calibration)


def validate(
    data: Annotated[
        Path | None,
        typer.Option(
            help="Measured operators, steps or training runs (CSV); default: our H200's."
        ),
    ] = None,
    gpu: Annotated[str, typer.Option(help="The device of operators and steps.")] = "h200",
    expect: Annotated[
        str | None, typer.Option(help="oom: the file's runs went out of memory.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write one line a row, with prediction and error (CSV).")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Hold predictions against measurements: errors overall and by group, worst rows, regret."""
    from atoll.api import validate as run

    shown = run(data, gpu=gpu, expect=expect, out=out)
    if as_json:
        print_json(shown)
    elif "by_kind" in shown:
        printing.print_validation(shown)
        for name, steps in shown.get("steps", {}).items():
            print(f"\nwhole steps ({name}):")
            printing_training.print_runs(steps)
    else:
        printing_training.print_runs(shown)
