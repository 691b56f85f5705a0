"""Searches for people to read: compact tables in a terminal, plain text on a pipe."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, cast

from atoll.answers.designs import ShownParameter
from atoll.base.units import NOT_COUNTED, counted, format_bandwidth, format_bytes, format_seconds
from atoll.printing.console import Output, print_answer, print_bars, print_lines
from atoll.step.certificate import times

if TYPE_CHECKING:
    from atoll.answers.design import TablePlan
    from atoll.answers.designs import DesignsAnswer, Row, StoredDesign
    from atoll.answers.search import FrontAnswer
    from atoll.explore.answer.result import Design, SearchResult
    from atoll.explore.answer.scope import SearchScope
    from atoll.hardware.accelerator import Accelerator


def print_result(result: SearchResult, explain: bool = False) -> None:
    """Print the best chip, and the comparisons that were asked for."""
    best = result.best
    tight = any(best.out_of_memory(plan) is not None for plan in best.plans)
    more = f"searches more layouts on the chip{', also roomier ones' * tight}"
    following = (
        "--out DIR keeps the run for atoll explain and report, and DIR/chip.yaml for atoll plan, "
        f"which {more}"
    )
    if (folder := result.kept) is not None:
        plan = f"atoll plan --device {folder}/chip.yaml {more}"
        following = f"atoll explain {folder} says why, atoll report {folder} draws it, {plan}"
    print_answer(result, following, partial(_print_details, result) if explain else None)
    for words in () if result.ahead is None else result.ahead.words():
        print_lines([("Next chip", words)])
    if result.beside:
        _print_existing_devices(Output(), result)
    for against, front in result.pareto.items():
        _print_front(Output(), against, front, result.best.accelerator)


def _print_details(result: SearchResult) -> None:
    """Print the conditions of a search, the parts of the chip and the step, and baselines."""
    console, best, counts = Output(), result.best, result.certificate
    lines = [("Given", f"{result.given}; MFU: {NOT_COUNTED}")]
    if result.scope is not None:
        lines.append(("Space", "; ".join([result.scope.sentence(), *result.scope.notes])))
    pruned = ", ".join(f"{value:,} by {name}" for name, value in counts.ruled_out.items())
    words = f"{counts.evaluated:,} evaluated, ruled out: {pruned}; {result.wall_time_s:.1f} s"
    lines.append(("Searched", words))
    lines += [("Near", words) for words in result.plateau_lines()]
    lines += [("Alone", model_alone.words()) for model_alone in result.alone]
    print_lines(lines)
    if best.accelerator.template is not None:
        _print_silicon(best, result.scope)
    for plan in best.plans:
        placement = plan.placement
        worst = max(placement.stages, key=lambda stage: stage.total_memory_bytes)
        parts = ", ".join(
            f"{name} {format_bytes(value)}"
            for name, value in worst.memory_parts_bytes.items()
            if value
        )
        console.print(
            f"\n{plan.model}: {plan.power_W:.0f} W per chip, "
            f"{plan.energy_per_token_J * 1e3:.2f} mJ per token; memory: {parts}; "
            f"event simulation: {plan.replay_difference:+.2%}"
        )
        print_bars(console, placement.time_parts_s, placement.step_time_s)
    if result.baselines:
        console.print()
        _print_baselines(console, result)


def _print_silicon(best: Design, scope: SearchScope | None) -> None:
    """Print area, clock limit and running power of a chip of another template, by part."""
    from atoll.hardware.silicon.chip import area_parts, chip_template, peak_power_W, rated_power_W
    from atoll.hardware.silicon.physical import physical_memories

    chip = best.accelerator
    parts = {name.removesuffix("_mm2"): mm2 for name, mm2 in area_parts(chip).items()}
    lines = [("Area", _largest_first(parts, "mm2"))]
    if chip.hbm not in physical_memories():  # not stated by the line of the chip
        stacks = f"{chip.hbm.stacks} stacks of {chip.hbm.generation}, " * bool(chip.hbm.generation)
        lines.append(("HBM", f"{stacks}{format_bandwidth(chip.hbm.bandwidth_Bps)}"))
    clock = f"{chip.clock_Hz / 1e9:.4g} GHz"
    clocks = next(p.values for p in chip_template(chip).parameters if p.name == "clock_Hz")
    limit_W = None if scope is None else scope.max_power_W
    if scope is not None and scope.sustained is not None:
        waits = max(plan.power_wait for plan in best.plans)
        clock += f"; passes wait {waits:.1%} of their time for {scope.sustained.words()}"
    elif limit_W is not None and (faster := [hz for hz in clocks if hz > chip.clock_Hz]):
        more_W = peak_power_W(replace(chip, clock_Hz=min(faster)))
        if more_W > limit_W:
            clock += f" under the limit of {limit_W:g} W"
            clock += f" ({more_W:.0f} W at {min(faster) / 1e9:g} GHz)"
    lines.append(("Clock", f"{clock}; rated {rated_power_W(chip):.0f} W"))
    for plan in best.plans:
        step_s = plan.placement.step_time_s * plan.placement.devices
        watts = {name: joules / step_s for name, joules in plan.energy_parts_J.items()}
        lines.append(("Power", f"{_largest_first(watts, 'W')} per device"))
    print_lines(lines)


def _largest_first(parts: Mapping[str, float], unit: str) -> str:
    largest = sorted(parts.items(), key=lambda part: -part[1])
    return ", ".join(f"{name} {value:.0f}" for name, value in largest if value >= 0.5) + f" {unit}"


def _print_baselines(console: Output, result: SearchResult) -> None:
    plain = len(result.best.plans) == 1 and result.job.per is None
    unit = "samples/s" if plain else "score"
    remarks, rows = result.baseline_remarks, []
    for name, value in result.baselines.items():
        cells = ["does not fit"]
        if value is not None:
            shown = f"{value:,.1f}" if result.job.per is None else f"{value:.4g}"
            cells = [shown, times(result.score, value), remarks.get(name, "")]
        rows.append([name, *cells])
    console.table(("Baseline", unit, "speedup", *([""] if remarks else [])), rows, (0, 3))


def _print_existing_devices(console: Output, result: SearchResult) -> None:
    """Print the chip and existing devices at their best layouts, compared by the throughput of the
    first model.
    """
    from atoll.hardware.silicon.chip import chip_template, rated_power_W

    best, plan = result.best, result.best.plans[0]
    step_s, interval_s = plan.placement.step_time_s, result.step_time_interval_s
    samples = plan.samples_per_s * step_s

    def sizes(*values: float | None) -> list[str]:
        return ["" if value is None else f"{value:,.0f}" for value in values]

    def rates(rate: float, between_s: tuple[float, float] | None) -> tuple[str, str]:
        ends = [] if between_s is None else [samples / end for end in between_s[::-1]]
        return f"{rate:,.1f}", " to ".join(f"{end:,.{0 if end >= 100 else 1}f}" for end in ends)

    process_nm, watts = chip_template(best.accelerator).process_nm, rated_power_W(best.accelerator)
    chip = (f"{plan.mfu:.1%}", *sizes(process_nm, best.area_mm2, watts), "")
    rows = [("this chip", *rates(plan.samples_per_s, interval_s), "", "", *chip)]
    clocks = []
    for device in result.beside:
        rate, mfu, template_s = (
            device.throughput_samples_per_s, device.mfu, device.template_step_time_s
        )  # fmt: skip
        speeds = ("does not fit", "", "", "", "")
        if rate is not None and mfu is not None:
            same = "" if template_s is None else times(template_s, step_s)
            between_s = device.step_time_interval_s
            speeds = (
                *rates(rate, between_s), times(plan.samples_per_s, rate), same, f"{mfu:.1%}"
            )  # fmt: skip
        silicon = sizes(device.process_nm, device.area_mm2, device.power_W)
        rows.append((device.device, *speeds, *silicon, device.layout or ""))
        clock, nominal = device.template_clock_GHz, device.nominal_clock_GHz
        if clock is not None and nominal is not None and clock < nominal:
            clocks.append(f"{device.device} at {clock:.3g} of {nominal:.3g} GHz")
    heads = (
        "Device", "samples/s", "90% interval", "chip vs. it", "template", "MFU", "nm", "mm2",
        "rated W", "layout",
    )  # fmt: skip
    console.table(heads, rows, (0, -1))
    console.print(
        "chip vs. it: throughput of this chip over the device's; template: the same with the "
        "software and cost model of the chip for both"
        f"{' (' * bool(clocks)}{', '.join(clocks)}{')' * bool(clocks)}"
    )


def _print_front(console: Output, against: str, front: FrontAnswer, like: Accelerator) -> None:
    from atoll.hardware.silicon.chip import chip_template
    from atoll.hardware.silicon.systolic import HBM_PARAMETERS

    rows, proof = front.designs, front.proven_within
    words = "among evaluated designs"
    if proof is not None:  # rounded up
        words = f"proven within {math.ceil(proof * 1000.0 - 1e-6) / 10.0:g}%"
    size = counted(len(rows), "chip")
    print_lines([("Front", f"{size} of throughput against {against}, {words}")])
    speed = next(name for name in rows[0] if name.endswith("samples_per_s"))
    cost = next(name for name in rows[0] if name.endswith(against))
    parameters = (*chip_template(like).parameters, *HBM_PARAMETERS)
    varied = _differing(rows, [ShownParameter(**p.to_dict()) for p in parameters], _IN_FRONT)
    heads = (against, "tensor cores", "vector cores", "GLB MiB", *map(_title, varied), speed)
    cells = [
        (
            f"{row[cost]:.4g}",
            f"{row['tensor_cores']} x {row['width']}x{row['depth']}",
            f"{row['vector_cores']} x {row['vector_width']}",
            f"{row['glb_bytes'] / 2**20:g}",
            *(_parameter_text(row, parameter) for parameter in varied),
            f"{row[speed]:,.1f}",
        )
        for row in rows[:: max(1, len(rows) // 12)]
    ]
    console.table(heads, cells, ())


_IN_FRONT = ("tensor_cores", "width", "depth", "vector_cores", "vector_width", "glb_bytes")
"""Parameters that have a column in every table of chips."""


def _differing(
    rows: Sequence[Row], parameters: Sequence[ShownParameter], shown: Sequence[str]
) -> list[ShownParameter]:
    """Return the parameters that differ between the rows of a table and have no column yet; the
    bandwidth of HBM only where its capacity does not imply it.
    """

    def values(*names: str) -> int:
        return len({tuple(row[name] for name in names) for row in rows})

    implied = values("hbm_capacity_bytes") == values("hbm_capacity_bytes", "hbm_bandwidth_Bps")
    hidden = (*shown, "hbm_bandwidth_Bps") if implied else shown
    return [p for p in parameters if p.name not in hidden and values(p.name) > 1]


def _title(parameter: ShownParameter) -> str:
    label = parameter.label
    return label if label[:2].isupper() else label.lower()


def _parameter_text(row: Row, parameter: ShownParameter) -> str:
    return f"{float(str(row[parameter.name])) / parameter.per:g} {parameter.unit}".strip()


def print_designs(shown: DesignsAnswer) -> None:
    """A page of a run's store."""
    console = Output()
    status = shown.status
    gap = "" if status.gap is None else f", gap {status.gap:.2%}"
    noun, cells, left = _DESIGNS[shown.run]
    more = ""
    if shown.run == "search":
        more = f"{counted(status.evaluated, 'chip')} evaluated, {status.bounded:,} bounded, "
    console.print(
        f"{status.state}: {counted(shown.count, noun)}, {more}"
        f"best {status.score:,.1f}{gap}, {status.seconds:.0f} s"
    )
    if shown.designs:
        heads, *rows = cells(shown.designs, shown.parameters)
        console.table(heads, rows, left)
    else:
        later = status.state != "finished" and not shown.count
        console.print(f"No {noun} {'on record yet' if later else 'is asked for by these filters'}.")
    if shown.parquet is not None:
        written = counted(shown.parquet.rows, "design")
        console.print(f"{written} written to {shown.parquet.file}")


def _chips(rows: Sequence[Row], parameters: Sequence[ShownParameter]) -> Iterator[Sequence[str]]:
    from atoll.hardware.silicon.systolic import HBM_PARAMETERS, SYSTOLIC

    # Parameters that only another template has get extra columns.
    common = {parameter.name for parameter in (*SYSTOLIC.parameters, *HBM_PARAMETERS)}
    extra = [parameter for parameter in parameters if parameter.name not in common]
    columns = (*_IN_FRONT, "hbm_capacity_bytes", *(parameter.name for parameter in extra))
    extra += _differing(rows, parameters, columns)
    cores = ("tensor cores", "vector cores")
    titles = map(_title, extra)
    yield ("score", "mm2", "W", "mJ/token", *cores, "GLB", "HBM", *titles, "layout")
    for row in cast("Sequence[StoredDesign]", rows):
        yield (
            f"{row['score']:,.1f}",
            f"{row['area_mm2']:.1f}",
            f"{row['power_W']:.0f}",
            f"{row['energy_per_token_J'] * 1e3:.2f}",
            f"{row['tensor_cores']} x {row['width']}x{row['depth']}",
            f"{row['vector_cores']} x {row['vector_width']}",
            format_bytes(row["glb_bytes"]),
            format_bytes(row["hbm_capacity_bytes"]),
            *(_parameter_text(cast("Row", row), parameter) for parameter in extra),
            f"tp{row['tensor']} pp{row['pipeline']} dp{row['data']} mbs{row['microbatch']}",
        )


def _wafers(rows: Sequence[Row], _: Sequence[ShownParameter]) -> Iterator[Sequence[str]]:
    yield ("score", "mm2", "W", "dies", "stages", "microbatch", "wafer")
    for row in rows:
        texts = (str(row[name]) for name in ("dies", "stages", "microbatch", "name"))
        yield f"{row['score']:,.1f}", f"{row['area_mm2']:,.0f}", f"{row['power_W']:,.0f}", *texts


def _layouts(rows: Sequence[Row], _: Sequence[ShownParameter]) -> Iterator[Sequence[str]]:
    yield ("score", "step", "layout")
    for row in rows:
        seconds = format_seconds(float(str(row["step_time_s"])))
        yield f"{row['score']:,.1f}", seconds, str(row["layout"])


_DESIGNS = {
    "search": ("design", _chips, ()),
    "wafer": ("wafer", _wafers, (-1,)),
    "plan": ("layout", _layouts, (-1,)),
}
"""By kind of run: noun of its rows, the function that yields heads and rows of their table, and its
left-aligned columns.
"""


def print_table_plan(plan: TablePlan) -> None:
    console = Output()
    if plan.time_per_batch_s is None:
        console.print("Infeasible: no placement fits in memory and devices.")
        return
    console.print(
        f"{format_seconds(plan.time_per_batch_s)} per batch: "
        f"tp{plan.tensor_parallel} pp{len(plan.stages)} "
        f"dp{plan.data_parallel}"
    )
    rows = []
    for number, stage in enumerate(plan.stages):
        nodes = stage.nodes
        span = f"{nodes[0]}..{nodes[-1]}" if len(nodes) > 1 else f"{nodes[0]}"
        needs = str(stage.devices), format_seconds(stage.load_s), format_bytes(stage.memory_bytes)
        rows.append((str(number), span, *needs))
    console.table(("stage", "layers", "devices", "load", "memory"), rows, ())
