"""The command line: a thin layer over the library.

Answers go to standard output, progress and errors to standard error. A user's mistake is one
sentence and exit code 2.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from atoll import __version__, printing
from atoll.errors import AtollError

app = typer.Typer(
    name="atoll",
    help=(
        "Finds the accelerator, the schedule of each layer on it and the distribution of the "
        "training together, for the highest throughput, and proves how good the answer is."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


def main() -> None:
    """Entry point of the `atoll` command."""
    try:
        app()
    except AtollError as error:
        print(f"atoll: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except KeyboardInterrupt:
        print("atoll: interrupted", file=sys.stderr)
        sys.exit(130)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"atoll {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command()
def search(
    job: Annotated[
        Path | None, typer.Argument(help="A job file (YAML). Options override its fields.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Zoo name, config.json, folder or cached model id; repeatable."),
    ] = None,
    devices: Annotated[int | None, typer.Option(help="Number of devices.")] = None,
    batch: Annotated[int | None, typer.Option(help="Global batch in sequences.")] = None,
    sequence: Annotated[int | None, typer.Option(help="Sequence length in tokens.")] = None,
    microbatch: Annotated[
        list[int] | None, typer.Option(help="Microbatch sizes to try; repeatable.")
    ] = None,
    tensor: Annotated[
        list[int] | None, typer.Option(help="Tensor-parallel widths to try; repeatable.")
    ] = None,
    hbm: Annotated[
        list[str] | None, typer.Option(help='HBM capacities such as "80 GiB"; repeatable.')
    ] = None,
    recompute: Annotated[
        str | None, typer.Option(help="optimal (per operator), none or full.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="default (physically honest) or phaze (the seed's).")
    ] = None,
    space: Annotated[
        str | None, typer.Option(help="phaze (29,360 chips) or a space file (YAML).")
    ] = None,
    network: Annotated[str | None, typer.Option(help="Network name or file.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="adam or sgd.")] = None,
    objective: Annotated[
        str | None, typer.Option(help="For several models: mean, weighted or worst.")
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(help="exact (with proof) or phaze (the seed's stop rule).")
    ] = None,
    max_area: Annotated[str | None, typer.Option(help='Largest area, "280 mm2".')] = None,
    max_power: Annotated[str | None, typer.Option(help='Largest peak power, "250 W".')] = None,
    tolerance: Annotated[float | None, typer.Option(help="Gap that counts as optimal.")] = None,
    time_limit: Annotated[str | None, typer.Option(help='Stop after "10 min".')] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the sampling baselines.")] = None,
    pareto: Annotated[
        bool | None, typer.Option("--pareto", help="Also prove the front against area.")
    ] = None,
    no_baselines: Annotated[
        bool, typer.Option("--no-baselines", help="Leave the baselines out.")
    ] = False,
    as_json: JsonFlag = False,
    out: Annotated[
        Path | None, typer.Option(help="Write result.json and designs.csv to this folder.")
    ] = None,
) -> None:
    """Find the best chip, schedule and placement for a model, with proof.

    Without arguments: Llama-2 7B on 1,024 devices over the seed's 29,360 chips.
    """
    from atoll.api import search as run
    from atoll.explore.files import check_folder, write_result

    if out is not None:
        check_folder(out)
    with printing.progress(quiet=as_json) as show:
        result = run(
            job,
            models=model,
            devices=devices,
            global_batch=batch,
            sequence=sequence,
            microbatches=microbatch,
            tensor_widths=tensor,
            hbm=hbm,
            recompute=recompute,
            profile=profile,
            space=space,
            network=network,
            optimizer=optimizer,
            objective=objective,
            strategy=strategy,
            max_area=max_area,
            max_power=max_power,
            tolerance=tolerance,
            time_limit=time_limit,
            seed=seed,
            pareto=pareto,
            baselines=False if no_baselines else None,
            progress=show,
        )
    if out is not None:
        write_result(result, out)
    if as_json:
        _print_json(result.to_dict())
    else:
        printing.print_result(result)


@app.command()
def place(
    file: Annotated[Path, typer.Argument(help="Layer table (JSON): times, bytes and edges.")],
    profile: Annotated[str, typer.Option(help="Cost model of the table: phaze.")] = "phaze",
    as_json: JsonFlag = False,
) -> None:
    """Place your own layers on devices: the exact optimum for a table of layer costs."""
    from atoll.api import place as run

    plan = run(file, profile=profile)
    if as_json:
        _print_json(plan.to_dict())
    else:
        printing.print_table_plan(plan)


@app.command()
def models(
    name: Annotated[
        str | None, typer.Argument(help="Zoo name, config.json or folder; without: the zoo.")
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
            _print_json({"models": rows})
        else:
            printing.print_models(rows)
        return
    shown = describe_model(name, microbatch=microbatch, sequence=sequence, tensor=tensor)
    if as_json:
        _print_json(shown)
    else:
        printing.print_model(shown)


@app.command()
def hardware(
    name: Annotated[
        str | None, typer.Argument(help="Accelerator or network; without: the catalogue.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """List chips, networks and spaces, or show one: area, power, peak rates."""
    from atoll.api import describe_hardware

    shown = describe_hardware(name)
    if as_json:
        _print_json(shown)
    else:
        printing.print_hardware(shown)


@app.command()
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
        _print_json(shown)
    else:
        printing.print_calibration(shown)


@app.command()
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
        _print_json(shown)
    else:
        printing.print_validation(shown)


@app.command()
def explain(
    folder: Annotated[Path, typer.Argument(help="Folder that `atoll search --out` wrote.")],
    as_json: JsonFlag = False,
) -> None:
    """Say why this chip: where the time goes, what limits it, what the runner-up lacks."""
    from atoll.explore.files import read_result
    from atoll.explore.why import explain_result

    shown = explain_result(read_result(folder))
    if as_json:
        _print_json(shown)
    else:
        printing.print_explanation(shown)


def _print_json(value: dict[str, Any]) -> None:
    json.dump(value, sys.stdout, indent=1, allow_nan=False)
    sys.stdout.write("\n")
