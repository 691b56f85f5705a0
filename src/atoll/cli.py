"""The command line: a thin layer over the library.

Answers go to standard output, progress and errors to standard error. A user's mistake is one
sentence and exit code 2.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from atoll.commands.capture import capture
from atoll.commands.catalogue import hardware, models
from atoll.commands.designs import designs
from atoll.commands.place import place
from atoll.commands.report import report, trace
from atoll.commands.search import explain, search
from atoll.commands.serve import serve
from atoll.commands.training import estimate, plan
from atoll.commands.validate import calibrate, validate
from atoll.errors import AtollError
from atoll.identity import VERSION

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
        print(f"atoll {VERSION}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


# The order in which `atoll --help` lists them.
for _command in (
    search,
    explain,
    designs,
    serve,
    plan,
    estimate,
    report,
    trace,
    place,
    capture,
    models,
    hardware,
    calibrate,
    validate,
):
    app.command()(_command)
