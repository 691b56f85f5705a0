"""What Atoll knows: `atoll models` and `atoll hardware`."""

from __future__ import annotations

from typing import Annotated

import typer

from atoll import printing
from atoll.commands.common import JsonFlag, answer, print_json


def models(
    name: Annotated[
        str | None, typer.Argument(help="Zoo name, config.json or model file; without: the zoo.")
    ] = None,
    microbatch: Annotated[int, typer.Option(help="Sequences in a microbatch.")] = 1,
    sequence: Annotated[int | None, typer.Option(help="Sequence length in tokens.")] = None,
    tensor: Annotated[int, typer.Option(help="Tensor-parallel width.")] = 1,
    as_json: JsonFlag = False,
) -> None:
    """List the models, or show one: parameters, layers, operators."""
    from atoll.api import describe_model, list_models

    if name is None:
        rows = list_models()
        if as_json:
            print_json({"models": rows})
        else:
            printing.print_models(rows)
        return
    shown = describe_model(name, microbatch=microbatch, sequence=sequence, tensor=tensor)
    answer(shown, as_json, printing.print_model)


def hardware(
    name: Annotated[
        str | None,
        typer.Argument(
            help="Device, accelerator, network, space or wafer, or a file of one (YAML); "
            "without: the catalogue."
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List devices, chips, networks, spaces and wafers, or show one: area, power, peak rates."""
    from atoll.api import describe_hardware

    shown = describe_hardware(name)
    answer(shown, as_json, printing.print_hardware)
