"""Runs on devices that exist: `atoll estimate` and `atoll plan`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll import printing_training
from atoll.commands.common import JsonFlag, answer
from atoll.errors import AtollError
from atoll.keywords import taken_by

if TYPE_CHECKING:
    from atoll.training.estimate import Estimate
    from atoll.training.plan import Plan

Model = Annotated[str, typer.Option(help="Zoo name, config.json, folder or cached model id.")]
Device = Annotated[str, typer.Option(help="Device of the catalogue (h100, a100-80...) or a file.")]
Devices = Annotated[int, typer.Option(help="Number of devices.")]
Batch = Annotated[int, typer.Option("--global-batch", help="Sequences in a step.")]
Sequence = Annotated[
    int | None, typer.Option("--seq", help="Tokens in a sequence; default: the model's.")
]
Network = Annotated[
    str | None, typer.Option(help="Network of the catalogue or a file; default: the device's.")
]
Stack = Annotated[
    str | None,
    typer.Option(
        help="Software: megatron, nemo, fsdp, modular, compiled, eager, xla... Default: the "
        "device's (megatron; TPUs: xla; chips of the template: chip)."
    ),
]
States = Annotated[
    str, typer.Option(help="Bytes of states: mixed (fp32 gradients), mixed16, bf16, fp32.")
]
Precision = Annotated[str | None, typer.Option(help="bf16, fp16 or fp8; default: the device's.")]
Attention = Annotated[str, typer.Option(help="flash, flash2, flash1 or unfused.")]
Imbalance = Annotated[float, typer.Option(help="Tokens of the busiest expert over the mean.")]
Target = Annotated[
    str | None,
    typer.Option(
        "--export",
        help="Write a launch file: megatron, torchtitan, deepspeed or nemo; "
        "a plan then has only layouts that it can run.",
    ),
]
ExportTo = Annotated[Path | None, typer.Option(help="Where to write the launch file.")]
Out = Annotated[
    Path | None, typer.Option(help="Keep it in this folder, for atoll report and atoll trace.")
]
Trace = Annotated[
    Path | None, typer.Option(help="Write the step as a Chrome trace (Perfetto) to this file.")
]


def estimate(
    context: typer.Context,
    job: Annotated[
        Path | None, typer.Argument(help="A wafer job file with a mapping or a layout (YAML).")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Zoo name, config.json, folder or cached model id.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Device of the catalogue (h100, a100-80...) or a file.")
    ] = None,
    wafer: Annotated[
        str | None, typer.Option(help="A wafer instead of devices: catalogue name or file (YAML).")
    ] = None,
    mapping: Annotated[
        Path | None, typer.Option(help="For a wafer: mapping.json of `atoll search --out`.")
    ] = None,
    devices: Devices = 1,
    global_batch: Batch = 1,
    seq: Sequence = None,
    tp: Annotated[int, typer.Option(help="Tensor parallel degree.")] = 1,
    pp: Annotated[int, typer.Option(help="Pipeline stages.")] = 1,
    cp: Annotated[int, typer.Option(help="Context parallel degree.")] = 1,
    ep: Annotated[int, typer.Option(help="Expert parallel degree.")] = 1,
    etp: Annotated[
        int | None, typer.Option(help="Tensor width of the experts; default: tp.")
    ] = None,
    dp: Annotated[int | None, typer.Option(help="Data parallel degree; default: the rest.")] = None,
    vpp: Annotated[int, typer.Option(help="Model chunks a stage (interleaving).")] = 1,
    microbatch: Annotated[int, typer.Option(help="Sequences in a microbatch.")] = 1,
    sp: Annotated[
        bool | None, typer.Option("--sp/--no-sp", help="Sequence parallelism; default: with tp.")
    ] = None,
    zero: Annotated[int, typer.Option(help="ZeRO stage 0 to 3 (3: fully sharded).")] = 1,
    hsdp: Annotated[
        int, typer.Option(help="Replicas of the group that ZeRO divides over (hybrid sharding).")
    ] = 1,
    recompute: Annotated[
        str, typer.Option(help="none, selective, alternate, full or optimal.")
    ] = "none",
    schedule: Annotated[
        str | None,
        typer.Option(help="1f1b, interleaved, gpipe, zb-h1, zb-h2, zb-v or dualpipe."),
    ] = None,
    network: Network = None,
    stack: Stack = None,
    states: States = "mixed",
    precision: Precision = None,
    attention: Attention = "flash",
    imbalance: Imbalance = 1.0,
    export: Target = None,
    export_to: ExportTo = None,
    out: Out = None,
    trace: Trace = None,
    as_json: JsonFlag = False,
) -> None:
    """What one layout costs: step time, MFU, memory, and where they go.

    Example: atoll estimate --model llama3-70b --device h100 --devices 512 --tp 8 --pp 4
    --global-batch 1024 --seq 8192 --recompute selective

    On a wafer: atoll estimate --wafer default --mapping runs/mine/mapping.json, or a job file.
    """
    given = dict(locals())
    from atoll.api import estimate as run

    if job is not None or wafer is not None or mapping is not None:
        from atoll.commands.wafer import estimate_wafer

        estimate_wafer(context, given)
        return
    if model is None or device is None:
        missing = "--model" if model is None else "--device"
        raise AtollError(f"estimate: {missing} is missing; or give a wafer job file.")
    _check_files(out, trace, export)
    result = run(**taken_by(run, given, seq="sequence"))
    _write_files(result, out, trace)
    answer(result, as_json, printing_training.print_estimate)
    if export is not None:  # last: a target may refuse the layout
        printing_training.write_launch_file(result, export, export_to)


def plan(
    model: Model,
    device: Device,
    devices: Devices,
    global_batch: Batch,
    seq: Sequence = None,
    tp: Annotated[list[int] | None, typer.Option(help="Values to try; repeatable.")] = None,
    pp: Annotated[list[int] | None, typer.Option(help="Values to try; repeatable.")] = None,
    cp: Annotated[list[int] | None, typer.Option(help="Values to try; repeatable.")] = None,
    ep: Annotated[list[int] | None, typer.Option(help="Values to try; repeatable.")] = None,
    etp: Annotated[list[int] | None, typer.Option(help="Values to try; default: tp.")] = None,
    vpp: Annotated[list[int] | None, typer.Option(help="Values to try; repeatable.")] = None,
    microbatch: Annotated[
        list[int] | None, typer.Option(help="Values to try; default 1, 2, 4, 8.")
    ] = None,
    zero: Annotated[list[int] | None, typer.Option(help="Values to try; default 0 to 3.")] = None,
    hsdp: Annotated[
        list[int] | None,
        typer.Option(help="Replicas of the group that ZeRO divides; values to try; default 1."),
    ] = None,
    recompute: Annotated[
        list[str] | None,
        typer.Option(help="Values to try; default none, selective, full, optimal."),
    ] = None,
    schedule: Annotated[
        list[str] | None,
        typer.Option(help="Of pipelines; values to try; default 1f1b (and interleaved)."),
    ] = None,
    network: Network = None,
    stack: Stack = None,
    states: States = "mixed",
    precision: Precision = None,
    attention: Attention = "flash",
    imbalance: Imbalance = 1.0,
    export: Target = None,
    export_to: ExportTo = None,
    out: Out = None,
    trace: Trace = None,
    as_json: JsonFlag = False,
) -> None:
    """The fastest layout that fits, proven over all layouts of the space, with the runners-up.

    Example: atoll plan --model gpt3-175b --device h100 --devices 1024 --global-batch 2048
    """
    options = dict(locals())
    from atoll.api import plan as run
    from atoll.training.plan import UnusableError

    given = taken_by(run, options, seq="sequence")
    _check_files(out, trace, export)
    with printing_training.progress(quiet=as_json) as show:
        refused = None
        try:
            result = run(**given, progress=show)
        except UnusableError as error:  # the plan is worth having without a launch file
            refused, result = error, run(**given | {"export": None}, progress=show)
    _write_files(result, out, trace)
    answer(result, as_json, printing_training.print_plan)
    if refused is not None:
        raise refused
    if export is not None:
        printing_training.write_launch_file(result.best, export, export_to)


def _check_files(out: Path | None, trace: Path | None, target: str | None) -> None:
    """Refuse, before any work, what could not be written in the end. The modules that write take
    longer to import than a plan.
    """
    if target is not None:
        from atoll.export import check_target

        check_target(target)
    if out is not None:
        from atoll.explore.files import check_folder

        check_folder(out)
    if trace is not None:
        from atoll.report.trace import check_trace_path

        check_trace_path(trace)


def _write_files(result: Plan | Estimate, out: Path | None, trace: Path | None) -> None:
    if out is not None:
        from atoll.report.plan_file import write_plan

        write_plan(result, out)
    if trace is not None:
        from atoll.report.plan_file import plan_record
        from atoll.report.trace import plan_trace, write_trace

        write_trace(plan_trace(plan_record(result)), trace)
