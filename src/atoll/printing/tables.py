"""Models, hardware, calibrations and validations of operators for people to read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from rich.console import Console

from atoll.printing.console import console_for_output, plain_table, print_error_table, short
from atoll.units import format_bytes, format_count, format_seconds


def print_models(rows: Sequence[Mapping[str, Any]]) -> None:
    table = plain_table(*rows[0], left="name")
    for row in rows:
        table.add_row(
            row["name"], format_count(row["parameters"]),
            *(str(row[name]) for name in row if name not in ("name", "parameters")),
        )  # fmt: skip
    console_for_output().print(table)


def print_model(shown: Mapping[str, Any]) -> None:
    console = console_for_output()
    part = f" ({shown['part']})" if shown["part"] else ""
    active = shown["active_parameters"]
    few = f", {active:,} of them active" if active < shown["parameters"] else ""
    console.print(
        f"{shown['name']}{part}: {shown['parameters']:,} parameters{few}; "
        f"sequence {shown['sequence']}, "
        f"microbatch {shown['microbatch']}, tensor width {shown['tensor_parallel']}",
        markup=False,
    )
    table = plain_table(
        "layer", "repeat", "parameters", "TFLOP fwd", "TFLOP bwd", "saved", "operators",
        left="layer",
    )  # fmt: skip
    for layer in shown["layers"]:
        table.add_row(
            layer["name"],
            str(layer["repeat"]),
            f"{layer['parameters']:,}",
            f"{layer['flops_forward'] / 1e12:.3f}",
            f"{layer['flops_backward'] / 1e12:.3f}",
            format_bytes(layer["saved_bytes"]),
            str(len(layer["operators"])),
        )
    console.print(table)
    for words in shown["warnings"]:
        console.print(f"warning: {words}", markup=False)


def print_hardware(shown: Mapping[str, Any]) -> None:
    console = console_for_output()
    for name, value in shown.items():
        if isinstance(value, Mapping):
            inner = ", ".join(f"{key} {short(item)}" for key, item in value.items())
            console.print(f"{name:<20} {inner}", markup=False)
        elif isinstance(value, list):
            for item in value:
                text = (
                    ", ".join(f"{key} {short(v)}" for key, v in item.items())
                    if isinstance(item, Mapping)
                    else str(item)
                )
                console.print(f"{name:<20} {text}", markup=False)
        else:
            console.print(f"{name:<20} {short(value)}", markup=False)


def print_calibration(shown: Mapping[str, Any]) -> None:
    console = console_for_output()
    console.print(
        f"{shown['device']}: fitted on {shown['fitted']} of {shown['rows']} rows; on the others:"
    )
    _print_errors(console, shown["held_out"])
    if shown.get("out"):
        console.print(f"written to {shown['out']}", markup=False)


def print_site(shown: Mapping[str, Any]) -> None:
    """What measurements tell of a site, each value with its 90 % interval."""
    console = console_for_output()
    site = shown["site"]
    console.print(f"{site['name']}: {site.get('source', '')}", markup=False)
    for step in shown.get("steps", ()):
        parts = ", ".join(f"{kind} {format_seconds(s)}" for kind, s in step["kinds"].items())
        console.print(
            f"step {format_seconds(step['time_s'])}: {parts}; exposed communication "
            f"{format_seconds(step['exposed_s'])}, waiting for the host "
            f"{format_seconds(step['host_gap_s'])}, other gaps "
            f"{format_seconds(step['other_gap_s'])}",
            markup=False,
            soft_wrap=True,
        )
    for log in shown.get("collectives", ()):
        bus, late = log["bus_Bps"], log["latency_s"]
        console.print(
            f"{log['collective']} over {log['ranks']} ranks of {log['nodes']} nodes: bus "
            f"{f'{bus[1] / 1e9:.1f} GB/s' if bus else 'unknown'}, latency "
            f"{format_seconds(late[1]) if late else 'unknown'}"
        )
    if "runs" in shown:
        _print_fit(console, shown["runs"])
    table = plain_table("parameter", "value", "90 % interval", left="parameter")
    for name, known in _flat(site):
        shown_as = partial(format_seconds, digits=3) if name.endswith("_s") else "{:.4g}".format
        value, low, high = (shown_as(known[key]) for key in ("value", "low", "high"))
        table.add_row(name, value, f"{low} to {high}")
    console.print(table)
    for name in ("stack", "attention"):
        if name in site:
            console.print(f"{name}: {site[name]} fits best", markup=False)
    if shown.get("out"):
        console.print(f"written to {shown['out']}; use it with --site", markup=False)


def _print_fit(console: Console, fit: Mapping[str, Any]) -> None:
    errors = fit["errors"]
    console.print(f"{fit['fitted']} of {fit['rows']} rows fitted")
    for reason in fit["skipped"]:
        console.print(f"  skipped: {reason}", markup=False)
    alone = errors["left_out"]
    console.print(
        f"mean error of step times: {errors['before']:.1%} as the catalogue has it, "
        f"{errors['after']:.1%} fitted"
        + ("" if alone is None else f", {alone:.1%} each predicted from the others")
    )


def _flat(told: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Mapping[str, float]]]:
    """Values with intervals, by their place in a site's file."""
    for name, value in told.items():
        if isinstance(value, Mapping):
            if "low" in value:
                yield above + name, value
            else:
                yield from _flat(value, f"{above}{name} ")


def print_validation(shown: Mapping[str, Any]) -> None:
    console = console_for_output()
    console.print(f"{shown['device']}: {shown['predicted']} of {shown['rows']} rows predicted")
    for reason, count in shown["skipped"].items():
        console.print(f"  skipped {count}: {reason}", markup=False)
    _print_errors(console, shown)


def _print_errors(console: Console, shown: Mapping[str, Any]) -> None:
    print_error_table(console, "operators", {"all": shown["step_time"], **shown["by_kind"]})
