"""A wafer search's or estimate's answer for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from atoll.hardware.wafer import Wafer
from atoll.placement.plan import Placement
from atoll.printing import console_for_output, print_bars
from atoll.step.certificate import stored_sentence
from atoll.units import counted, format_bytes, format_mfu, format_seconds
from atoll.wafer.answer.draw import offloaded
from atoll.wafer.answer.result import WaferResult, baseline_words, running_power_W
from atoll.wafer.estimate import WaferEstimate
from atoll.wafer.evaluate import Evaluation


def print_wafer_result(result: WaferResult) -> None:
    console = console_for_output()
    _print_mapping(console, result.wafer, result.best, result.placement, result.mfu)
    print_bars(console, result.placement.time_parts_s, result.placement.step_time_s)
    console.print(
        f"Replayed     pipeline event by event: {result.replay_difference:+.2%}"
        + (f"; links as queues: {result.detailed['difference']:+.2%}" if result.detailed else "")
    )
    _print_baselines(console, result)
    _print_faults(console, result)
    _print_designs(console, result)
    _print_worth(console, [row.to_dict() for row in result.explanation])
    console.print(f"Certificate  {result.certificate.sentence()}; {result.wall_time_s:.1f} s")
    _print_map(console, result.text_map())


def print_wafer_estimate(result: WaferEstimate) -> None:
    console = console_for_output()
    found = result.evaluation
    _print_mapping(console, result.wafer, found, result.placement, result.mfu)
    print_bars(console, result.placement.time_parts_s, found.step_s)
    console.print(f"Replayed     links as queues: {result.detailed['difference']:+.2%}")
    if not found.fits:
        console.print(
            f"Does not fit {format_bytes(found.memory_bytes)} a die are needed, "
            f"{format_bytes(result.wafer.memory_bytes)} are there"
        )
    _print_map(console, result.text_map())


def _print_mapping(
    console: Console, wafer: Wafer, best: Evaluation, placement: Placement, mfu: float
) -> None:
    mapping = best.mapping
    console.print(
        f"Wafer        {wafer.name}: {wafer.rows} x {wafer.columns} dies of "
        f"{wafer.core.peak_flops / 1e12:.0f} TFLOP/s, "
        f"{format_bytes(wafer.memory_bytes)}, links {wafer.link_Bps / 1e12:.2f} TB/s",
        markup=False,
    )
    console.print(
        f"             {wafer.site_mm2 * wafer.dies:,.0f} mm2, {wafer.peak_power_W / 1e3:.1f} kW "
        f"at peak, {wafer.cost_dollars:,.0f} dollars"
    )
    console.print(f"Model        {mapping.model}, batch {mapping.batch}, {mapping.sequence} tokens",
                  markup=False)  # fmt: skip
    console.print(
        f"Throughput   {best.samples_per_s:,.2f} samples/s, "
        f"{best.samples_per_s * mapping.sequence:,.0f} tokens/s, "
        f"MFU {format_mfu(mfu)}, {running_power_W(wafer, best) / 1e3:.1f} kW"
    )
    stage = mapping.stages[0]
    console.print(
        f"Mapping      {counted(placement.pipeline, 'stage')}, the first of "
        f"{stage.rectangle.width} x {stage.rectangle.height} dies ({stage.digits.describe()}), "
        f"microbatch {mapping.microbatch}, {counted(mapping.microbatches, 'round')}, schedule "
        f"{mapping.schedule}"
    )
    names = [unit.name for unit in mapping.blocks().units]
    codes = ", ".join(f"{n} {c}" for n, c in zip(names, stage.block.codes, strict=True))
    console.print(f"             stream {stage.block.stream}; {codes}", markup=False)
    console.print(f"Recompute    {placement.recompute}", markup=False)
    senders = [n for n in range(len(mapping.stages)) if offloaded(best, n)]
    if senders:
        console.print(f"Offload      {len(senders)} of {len(mapping.stages)} stages leave tensors "
                      "with others")  # fmt: skip
    worst = max(best.stages, key=lambda s: s.total_bytes)
    parts = ", ".join(f"{k} {format_bytes(v)}" for k, v in worst.memory_bytes.items() if v)
    console.print(f"Memory       {format_bytes(worst.total_bytes)} a die at most: {parts}")
    console.print(f"Step         {format_seconds(best.step_s)}")


def _print_map(console: Console, picture: str) -> None:
    console.print("Dies         stage and memory in use")
    for line in picture.splitlines():
        console.print(f"             {line}", markup=False)


def _print_baselines(console: Console, result: WaferResult) -> None:
    for number, (name, baseline) in enumerate(result.baselines.items()):
        words = baseline_words(baseline, result.best.samples_per_s)
        console.print(f"{'Beside' if number == 0 else '':<12} {name:<17}{words}", markup=False)
        if baseline is not None:
            console.print(f"{'':<12} {'':<17}{baseline.setting}", markup=False)


def _print_faults(console: Console, result: WaferResult) -> None:
    faults = result.faults
    if faults.get("samples"):
        console.print(
            f"Faults       {counted(faults['samples'], 'wafer')} with "
            f"{faults['dead_share']:.1%} dead dies: "
            f"median {faults['median_kept']:.1%} of the throughput, least "
            f"{faults['least_kept']:.1%}"
        )


def print_wafer_explanation(shown: Mapping[str, Any]) -> None:
    """What `atoll explain` says of a wafer's folder."""
    console = console_for_output()
    wafer = shown["wafer"]
    rows, columns = wafer["grid"]
    console.print(
        f"Wafer        {wafer['name']}: {rows} x {columns} dies, {wafer['peak_PFLOPs']:.3g} "
        "PFLOP/s",
        markup=False,
    )
    console.print(
        f"Throughput   {shown['model']}: {shown['samples_per_s']:,.2f} samples/s, MFU "
        f"{shown['mfu']:.1%}; a step of {format_seconds(shown['step_time_s'])} by cause:",
        markup=False,
    )
    print_bars(console, shown["time_parts_s"], shown["step_time_s"])
    slowest = shown["slowest_stage"]
    _, _, width, height = slowest["rectangle"]
    console.print(
        f"Pace         set by stage {slowest['stage']} of {shown['stages']}: {slowest['layers']} "
        f"layers on {width} x {height} dies, {format_seconds(slowest['load_s'])} a round"
    )
    parts = shown["memory_bytes"]
    console.print(
        f"Memory       {format_bytes(sum(parts.values()))} of "
        f"{format_bytes(shown['memory_bytes_per_die'])} a die at most: "
        + ", ".join(f"{name} {format_bytes(value)}" for name, value in parts.items() if value)
    )
    _print_worth(console, shown["explanation"])
    if shown["note"]:
        console.print(f"Note         {shown['note']}", markup=False)
    for number, other in enumerate(shown["runners_up"]):
        width, height = other["rectangle"]
        console.print(
            f"{'Runners-up' if number == 0 else '':<12} {other['slower_by']:.2%} slower: "
            f"{counted(other['stages'], 'stage')} of {width} x {height} dies, microbatch "
            f"{other['microbatch']}"
        )
    for number, (name, value) in enumerate(shown["baselines"].items()):
        ours = shown["samples_per_s"]
        words = "does not run" if value is None else f"{value:,.2f} samples/s ({ours / value:.2f}x)"
        console.print(f"{'Beside' if number == 0 else '':<12} {name:<17}{words}", markup=False)
    console.print(f"Proof        {stored_sentence(shown['certificate'])}")


def _print_worth(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    for number, row in enumerate(rows):
        per_area = row["gain_per_1000_mm2"]
        words = f"{row['gain']:+.2%}" + (
            "" if per_area is None else f", {per_area:+.2%} for 1,000 mm2 of the wafer"
        )
        label = "More of" if number == 0 else ""
        console.print(f"{label:<12} {row['resource']:<17}{row['change']}: {words}", markup=False)


def _print_designs(console: Console, result: WaferResult) -> None:
    if len(result.designs) < 2:
        return
    table = Table(box=None, pad_edge=False, header_style="")
    for name in ("wafer", "samples/s", "kW", "dollars"):
        table.add_column(name, justify="left" if name == "wafer" else "right")
    for row in result.designs[:10]:
        table.add_row(
            str(row["name"]), f"{row['samples_per_s']:.2f}", f"{row['peak_power_W'] / 1e3:.1f}",
            f"{row['cost_dollars']:,.0f}",
        )  # fmt: skip
    console.print(table)
