"""Models, hardware, calibrations and validations of operators for people to read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from atoll.printing.console import console_for_output, plain_table, print_error_table, short
from atoll.units import format_bytes, format_count


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


def print_validation(shown: Mapping[str, Any]) -> None:
    console = console_for_output()
    console.print(f"{shown['device']}: {shown['predicted']} of {shown['rows']} rows predicted")
    for reason, count in shown["skipped"].items():
        console.print(f"  skipped {count}: {reason}", markup=False)
    _print_errors(console, shown)


def _print_errors(console: Console, shown: Mapping[str, Any]) -> None:
    print_error_table(console, "operators", {"all": shown["step_time"], **shown["by_kind"]})
