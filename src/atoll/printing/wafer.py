"""A wafer search's or estimate's answer for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

from atoll.answers.wafer import Ablation, ResourceWorth, SlowerMapping, WaferExplanation
from atoll.base.units import NOT_COUNTED, counted, format_bytes, format_seconds
from atoll.printing.console import Output, print_answer, print_bars, print_lines
from atoll.wafer.answer.draw import offloaded
from atoll.wafer.answer.result import WaferEstimate, WaferResult, baseline_words


def _say(label: str, *lines: str) -> None:
    """Print lines under one label."""
    print_lines((label if number == 0 else "", line) for number, line in enumerate(lines))


def print_wafer_result(result: WaferResult, explain: bool = False) -> None:
    """Print the best mapping, and the wafers and faults that were asked for."""
    following = "--out DIR keeps the run for atoll report, serve and explain"
    print_answer(result, following, partial(_print_details, result) if explain else None)
    if result.faults.samples:
        faults = result.faults
        _say(
            "Faults",
            f"{counted(faults.samples, 'wafer')} with {faults.dead_share:.1%} dead dies: "
            f"median {faults.median_kept:.1%} of the throughput, least {faults.least_kept:.1%}",
        )
    _print_designs(result)


def _print_details(result: WaferResult) -> None:
    """Print the mapping, its replay, baselines and what more of each resource is worth."""
    _print_mapping(result.best_estimate)
    _say("Replayed", f"pipeline event by event: {result.replay_difference:+.2%}")
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
    _print_worth(result.explanation)
    _say("Space", f"10^{result.log10_mappings:.0f} mappings with stages of one shape")
    _say("Searched", f"{result.wall_time_s:.1f} s")


def print_wafer_estimate(result: WaferEstimate, explain: bool = False) -> None:
    """Print what a mapping costs."""
    following = "atoll search --wafer WAFER finds the best mapping"
    print_answer(result, following, partial(_print_mapping, result) if explain else None)


def _print_mapping(result: WaferEstimate) -> None:
    """Print the codes of a mapping, where time and memory go, and the dies."""
    wafer, best, placement = result.wafer, result.evaluation, result.placement
    mapping, stage = best.mapping, best.mapping.stages[0]
    names = [unit.name for unit in mapping.blocks().units]
    codes = ", ".join(f"{n} {c}" for n, c in zip(names, stage.block.codes, strict=True))
    _say(
        "Dies",
        f"{format_bytes(wafer.memory_bytes)} each, links {wafer.link_Bps / 1e12:.2f} TB/s; "
        f"{wafer.site_mm2 * wafer.dies:,.0f} mm2 in all",
    )
    _say(
        "Mapping",
        f"{stage.digits.describe()}, {counted(mapping.microbatches, 'microbatch')}",
        f"stream {stage.block.stream}; {codes}",
    )
    senders = [n for n in range(len(mapping.stages)) if offloaded(best, n)]
    if senders:
        _say("Offload", f"{len(senders)} of {len(mapping.stages)} stages leave tensors with others")
    worst = max(best.stages, key=lambda s: s.total_bytes)
    _say("Memory", _parts(worst.memory_bytes))
    _say("Time", f"links as queues: {result.detailed.difference:+.2%}; MFU: {NOT_COUNTED}")
    print_bars(Output(), placement.time_parts_s, best.step_s)
    _say("Map", "stage and memory in use", *result.text_map().splitlines())


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
        more = "" if per_area is None else f", {per_area:+.2%} per 1,000 mm2 of the wafer"
        lines.append(f"{row.resource:<17}{row.change}: {row.gain:+.2%}{more}")
    _say("More of", *lines)


def _print_designs(result: WaferResult) -> None:
    if len(result.designs) < 2:
        return
    rows = [
        (r.name, f"{r.samples_per_s:.2f}", f"{r.peak_power_W / 1e3:.1f}", f"{r.cost_dollars:,.0f}")
        for r in result.designs[:10]
    ]
    Output().table(("wafer", "samples/s", "kW", "dollars"), rows)
