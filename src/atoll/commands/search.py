"""Designing chips: `atoll search` and `atoll explain`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from atoll import printing
from atoll.commands.common import JsonFlag, answer
from atoll.errors import AtollError
from atoll.keywords import taken_by


def search(
    context: typer.Context,
    job: Annotated[
        Path | None, typer.Argument(help="A job file (YAML). Options override its fields.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Zoo name, config.json, captured model, cached id; repeatable."),
    ] = None,
    wafer: Annotated[
        str | None, typer.Option(help="A wafer instead of devices: catalogue name or file (YAML).")
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
    zero: Annotated[
        list[int] | None,
        typer.Option(help="ZeRO stages to try: 0, 1; repeatable. Default: both."),
    ] = None,
    hbm: Annotated[
        list[str] | None, typer.Option(help='HBM capacities such as "80 GiB"; repeatable.')
    ] = None,
    recompute: Annotated[
        str | None, typer.Option(help="optimal (per operator), none or full.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(help="default (physically honest) or phaze (as published).")
    ] = None,
    space: Annotated[
        str | None, typer.Option(help="phaze (29,360 chips) or a space file (YAML).")
    ] = None,
    network: Annotated[str | None, typer.Option(help="Network name or file.")] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="Its states: mixed, mixed16, mixed-both, bf16, fp32, sgd.")
    ] = None,
    objective: Annotated[
        str | None, typer.Option(help="For several models: mean, weighted or worst.")
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(help="exact (with proof), phaze (PHAZE's rule) or evolve.")
    ] = None,
    evaluations: Annotated[
        int | None, typer.Option(help="Designs that strategy evolve looks at.")
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
    beside: Annotated[
        str, typer.Option(help="Devices to plan for the same job: h100,b200,tpu-v5p or files.")
    ] = "",
    as_json: JsonFlag = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Keep everything in this folder; started again, the search continues."),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Write the step as a Chrome trace (Perfetto) to this file.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(help="Local processes; 0: this one alone. Default: as the work needs."),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="Dask: tcp://host:8786, or local:4 for a trial.")
    ] = None,
) -> None:
    """Find the best chip, schedule and placement for a model, with proof.

    Without arguments: Llama-2 7B on 1,024 devices over PHAZE's 29,360 chips. Ctrl-C prints
    the best design so far with its proven gap (exit code 130).
    """
    given = dict(locals())
    from atoll.explore.stop import Stop

    stop = Stop()  # before the other imports, which take seconds on a busy machine
    from atoll.api import search as run
    from atoll.report.trace import check_trace_path, search_trace, write_trace
    from atoll.wafer.job import is_wafer_job

    check_trace_path(trace)
    if wafer is not None or (job is not None and is_wafer_job(job)):
        from atoll.commands.wafer import search_wafer

        search_wafer(context, given)
        return
    with stop.on_interrupt(), printing.progress(quiet=as_json) as show:
        options = taken_by(
            run, given, model="models", batch="global_batch", microbatch="microbatches",
            tensor="tensor_widths",
        )  # fmt: skip
        options["beside"] = [name.strip() for name in beside.split(",") if name.strip()]
        result = run(
            **options, baselines=False if no_baselines else None, stop=stop, progress=show
        )
    if trace is not None:
        write_trace(search_trace(result.to_dict()), trace)
    answer(result, as_json, printing.print_result)
    if stop.interrupted:
        again = "" if out is None else "; the same command continues"
        print(f"atoll: interrupted{again}", file=sys.stderr)
        raise typer.Exit(128 + stop.signal)


def explain(
    folder: Annotated[Path, typer.Argument(help="Folder that `atoll search --out` wrote.")],
    as_json: JsonFlag = False,
) -> None:
    """Say why this answer: where the time goes, what limits it, what the runner-up lacks.

    On a wafer's folder also what more of each resource would be worth.
    """
    from atoll.explore.why import explain_result
    from atoll.report import open_folder

    source = open_folder(folder)
    if source.kind in ("plan", "estimate"):
        raise AtollError(
            f"{folder}: holds a training layout, whose reasons `atoll plan` prints with it; "
            "`atoll report` draws them."
        )
    show: Callable[[Mapping[str, Any]], None] = printing.print_explanation
    explained: Callable[[dict[str, Any]], dict[str, Any]] = explain_result
    if source.kind == "wafer":
        from atoll.wafer.answer.printing import print_wafer_explanation
        from atoll.wafer.answer.why import explain_wafer_result

        show, explained = print_wafer_explanation, explain_wafer_result
    with source.read_whole():
        shown = explained(source.content)
    answer(shown, as_json, show)
