"""A wafer search's or estimate's answer for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atoll.answers.wafer import Ablation, ResourceWorth, SlowerMapping, WaferExplanation
from atoll.base.units import counted, format_bytes, format_mfu, format_seconds
from atoll.printing.console import Output, plain_table, print_bars
from atoll.wafer.answer.draw import offloaded
from atoll.wafer.answer.result import WaferEstimate, WaferResult, baseline_words


def _say(label: str, *lines: str) -> None:
    """Print lines under one label."""
    console = Output()
    for number, line in enumerate(lines):
        console.print(f"{label if number == 0 else '':<12} {line}")


def print_wafer_result(result: WaferResult) -> None:
    _print_mapping(result.best_estimate)
    links = f"; links as queues: {result.detailed.difference:+.2%}"
    _say("Replayed", f"pipeline event by event: {result.replay_difference:+.2%}{links}")
    ours = result.best.samples_per_s
    baseline_lines = [
        line
        for name, baseline in result.baselines.items()
        for line in (
            f"{name:<17}{baseline_words(baseline, ours)}",
            *([] if baseline is None else [f"{'':<17}{baseline.setting}"]),
        )
    ]
    _say("Baselines", *baseline_lines)
    faults = result.faults
    if faults.samples:
        _say(
            "Faults",
            f"{counted(faults.samples, 'wafer')} with {faults.dead_share:.1%} dead dies: "
            f"median {faults.median_kept:.1%} of the throughput, least {faults.least_kept:.1%}",
        )
    _print_designs(result)
    _print_worth(result.explanation)
    if result.stopped:
        _say("Ended early", f"{result.stopped}: the best mapping so far")
    if result.left_out:
        _say("Left out", ", ".join(result.left_out))
    _say("Certificate", f"{result.certificate.sentence()}; {result.wall_time_s:.1f} s")
    _say("Space", f"10^{result.log10_mappings:.0f} mappings with stages of one shape")
    _say("Dies", "stage and memory in use", *result.text_map().splitlines())


def print_wafer_estimate(result: WaferEstimate) -> None:
    evaluation = result.evaluation
    _print_mapping(result)
    _say("Replayed", f"links as queues: {result.detailed.difference:+.2%}")
    if not evaluation.fits:
        _say(
            "Does not fit",
            f"{format_bytes(evaluation.memory_bytes)} per die are needed, "
            f"{format_bytes(result.wafer.memory_bytes)} are there",
        )
    _say("Dies", "stage and memory in use", *result.text_map().splitlines())


def _print_mapping(result: WaferEstimate) -> None:
    wafer, best, placement = result.wafer, result.evaluation, result.placement
    mapping, stage = best.mapping, best.mapping.stages[0]
    _say(
        "Wafer",
        f"{wafer.name}: {wafer.rows} x {wafer.columns} dies of "
        f"{wafer.core.peak_flops / 1e12:.0f} TFLOP/s, {format_bytes(wafer.memory_bytes)}, "
        f"links {wafer.link_Bps / 1e12:.2f} TB/s",
        f"{wafer.site_mm2 * wafer.dies:,.0f} mm2, {wafer.peak_power_W / 1e3:.1f} kW at peak, "
        f"{wafer.cost_dollars:,.0f} dollars",
    )
    _say("Model", f"{mapping.model}, batch {mapping.batch}, {mapping.sequence} tokens")
    _say(
        "Throughput",
        f"{best.samples_per_s:,.2f} samples/s, {best.samples_per_s * mapping.sequence:,.0f} "
        f"tokens/s, MFU {format_mfu(result.mfu)}, {result.power_W / 1e3:.1f} kW",
    )
    names = [unit.name for unit in mapping.blocks().units]
    codes = ", ".join(f"{n} {c}" for n, c in zip(names, stage.block.codes, strict=True))
    _say(
        "Mapping",
        f"{counted(placement.pipeline, 'stage')}, the first of {stage.rectangle.width} x "
        f"{stage.rectangle.height} dies ({stage.digits.describe()}), microbatch "
        f"{mapping.microbatch}, {counted(mapping.microbatches, 'microbatch')}, schedule "
        f"{mapping.schedule}",
        f"stream {stage.block.stream}; {codes}",
    )
    _say("Recompute", placement.recompute)
    senders = [n for n in range(len(mapping.stages)) if offloaded(best, n)]
    if senders:
        _say("Offload", f"{len(senders)} of {len(mapping.stages)} stages leave tensors with others")
    worst = max(best.stages, key=lambda s: s.total_bytes)
    most, parts = format_bytes(worst.total_bytes), _parts(worst.memory_bytes)
    _say("Memory", f"{most} per die at most: {parts}")
    _say("Step", format_seconds(best.step_s))
    print_bars(Output(), placement.time_parts_s, best.step_s)


def _parts(memory: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in memory.items() if size)


def print_wafer_explanation(shown: WaferExplanation) -> None:
    """Print the explanation of a wafer's answer."""
    wafer, ours = shown.wafer, shown.samples_per_s
    rows, columns = wafer.grid
    _say("Wafer", f"{wafer.name}: {rows} x {columns} dies, {wafer.peak_PFLOPs:.3g} PFLOP/s")
    _say(
        "Throughput",
        f"{shown.model}: {ours:,.2f} samples/s, MFU {shown.mfu:.1%}; a step of "
        f"{format_seconds(shown.step_time_s)} by cause:",
    )
    print_bars(Output(), shown.time_parts_s, shown.step_time_s)
    slowest, parts = shown.slowest_stage, shown.memory_bytes
    _, _, width, height = slowest.rectangle
    _say(
        "Pace",
        f"set by stage {slowest.stage} of {shown.stages}: {slowest.layers} layers on "
        f"{width} x {height} dies, {format_seconds(slowest.load_s)} per microbatch",
    )
    _say(
        "Memory",
        f"{format_bytes(sum(parts.values()))} of {format_bytes(shown.memory_bytes_per_die)} a "
        f"die at most: {_parts(parts)}",
    )
    _print_worth(shown.explanation)
    _say("Without", *map(_ablation_line, shown.ablations))
    if shown.note:
        _say("Note", shown.note)
    _say("Runners-up", *map(_runner_up_line, shown.runners_up))
    words = {
        name: "does not run" if value is None else f"{value:,.2f} samples/s ({ours / value:.2f}x)"
        for name, value in shown.baselines.items()
    }
    _say("Baselines", *(f"{name:<17}{rate}" for name, rate in words.items()))
    _say("Proof", shown.certificate.sentence)


def _runner_up_line(mapping: SlowerMapping) -> str:
    width, height = mapping.rectangle
    return (
        f"{mapping.slower_by:.2%} slower: {counted(mapping.stages, 'stage')} of {width} x {height} "
        f"dies, microbatch {mapping.microbatch}"
    )


def _ablation_line(row: Ablation) -> str:
    worth_words = "nothing fits" if row.worth is None else f"the variable is worth {row.worth:+.2%}"
    return f"{row.variable:<18}{row.frozen}: {worth_words}"


def _print_worth(rows: Sequence[ResourceWorth]) -> None:
    lines = []
    for row in rows:
        per_area = row.gain_per_1000_mm2
        more = "" if per_area is None else f", {per_area:+.2%} for 1,000 mm2 of the wafer"
        lines.append(f"{row.resource:<17}{row.change}: {row.gain:+.2%}{more}")
    _say("More of", *lines)


def _print_designs(result: WaferResult) -> None:
    if len(result.designs) < 2:
        return
    table = plain_table("wafer", "samples/s", "kW", "dollars", left="wafer")
    for row in result.designs[:10]:
        table.add_row(
            row.name,
            f"{row.samples_per_s:.2f}",
            f"{row.peak_power_W / 1e3:.1f}",
            f"{row.cost_dollars:,.0f}",
        )
    Output().print(table)
