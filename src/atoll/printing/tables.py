"""Models, hardware, calibrations and validations of operators for people to read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from atoll.base.streams import say
from atoll.base.units import format_bytes, format_count, format_seconds, format_value
from atoll.printing.console import Output, print_error_table, print_lines, print_skipped, short

if TYPE_CHECKING:
    from atoll.answers.designs import CompareAnswer, SweepAnswer
    from atoll.answers.hardware import CatalogueAnswer, HardwareAnswer
    from atoll.answers.models import ModelAnswer, ModelsAnswer
    from atoll.answers.validation import (
        BenchAnswer,
        CalibrationAnswer,
        ChipsValidation,
        FiguresValidation,
        NodesValidation,
        OperatorsValidation,
        RunsFit,
        SiteCalibration,
    )


def print_models(shown: ModelsAnswer) -> None:
    columns = ("layers", "hidden", "heads", "sequence")
    rows = [
        (row.name, format_count(row.parameters), *(str(getattr(row, name)) for name in columns))
        for row in shown.models
    ]
    Output().table(("name", "parameters", *columns), rows)


def print_model(shown: ModelAnswer) -> None:
    console = Output()
    part = f" ({shown.part})" if shown.part else ""
    active = shown.active_parameters
    few = f", {active:,} of them active" if active < shown.parameters else ""
    console.print(
        f"{shown.name}{part}: {shown.parameters:,} parameters{few}; sequence {shown.sequence}, "
        f"microbatch {shown.microbatch}, tensor width {shown.tensor_parallel}"
    )
    heads = ("layer", "repeat", "parameters", "TFLOP fwd", "TFLOP bwd", "saved", "operators")
    rows = [
        (
            layer.name,
            str(layer.repeat),
            f"{layer.parameters:,}",
            f"{layer.flops_forward / 1e12:.3f}",
            f"{layer.flops_backward / 1e12:.3f}",
            format_bytes(layer.saved_bytes),
            str(len(layer.operators)),
        )
        for layer in shown.layers
    ]
    console.table(heads, rows)
    for words in shown.warnings:
        console.print(f"warning: {words}")


def print_hardware(shown: CatalogueAnswer | HardwareAnswer) -> None:
    """Print the fields of one entry, or the devices with their figures and all other names."""
    fields = {n: v for n, v in shown.to_dict().items() if n not in ("kind", "format")}
    if shown.kind == "catalogue":
        from atoll.hardware.device import load_device

        devices = [load_device(name) for name in shown.devices]
        rows = [
            (
                device.name,
                f"{device.peak_flops(device.half_dtype) / 1e12:,.0f}",
                f"{device.hbm_bytes / 2**30:.1f}",
                f"{device.hbm_Bps / 1e12:.2f}",
                "" if device.power_W is None else f"{device.power_W:,.0f}",
            )
            for device in devices
        ]
        console = Output()
        console.table(("device", "16-bit TFLOP/s", "memory GiB", "memory TB/s", "W"), rows)
        for kind, names in fields.items():
            if kind != "devices":
                console.print(f"{kind.replace('_', ' ')}: {', '.join(names)}")
        return
    print_fields(fields)
    if shown.kind == "hardware-network":
        say("--yaml prints its file, with every field")


def print_fields(shown: Mapping[str, JsonValue]) -> None:
    """Print one line per field with a value and per list item; numbers share one line."""
    console = Output()
    width = max(map(len, shown), default=0)
    for name, value in shown.items():
        if value is None:
            continue
        items: list[JsonValue] = value if isinstance(value, list) else [value]
        if all(isinstance(item, int | float) for item in items):
            items = [", ".join(map(short, items))]
        for item in items:
            text = short(item)
            if isinstance(item, Mapping):
                text = ", ".join(f"{key} {short(inner)}" for key, inner in item.items())
            console.print(f"{name:<{width}} {text}")


def print_calibration(shown: CalibrationAnswer) -> None:
    console = Output()
    console.print(f"{shown.device}: fitted on {shown.fitted} of {shown.rows} rows; on the others:")
    _print_errors(shown.held_out)
    if shown.out:
        console.print(f"written to {shown.out}")


def print_site(shown: SiteCalibration) -> None:
    """Print the fitted values of a site with their 90 % intervals."""
    console = Output()
    site = shown.site
    console.print(f"{site['name']}: {site.get('source', '')}")
    for step in shown.steps:
        parts = ", ".join(f"{kind} {format_seconds(s)}" for kind, s in step.kinds.items())
        print(
            f"step {format_seconds(step.time_s)}: {parts}; exposed communication "
            f"{format_seconds(step.exposed_s)}, waiting for the host "
            f"{format_seconds(step.host_gap_s)}, other gaps {format_seconds(step.other_gap_s)}"
        )
    for log in shown.collectives:
        bus, latency = log.bus_Bps, log.latency_s
        console.print(
            f"{log.collective} over {log.ranks} ranks of {log.nodes} nodes: bus "
            f"{f'{bus[1] / 1e9:.1f} GB/s' if bus else 'unknown'}, latency "
            f"{format_seconds(latency[1]) if latency else 'unknown'}"
        )
    if shown.runs is not None:
        _print_fit(console, shown.runs)
    rows = []
    for name, interval in _flat(site):
        formatted = partial(format_seconds, digits=3) if name.endswith("_s") else "{:.4g}".format
        value, low, high = map(formatted, interval)
        rows.append((name, value, f"{low} to {high}"))
    console.table(("parameter", "value", "90 % interval"), rows)
    for name in ("stack", "attention"):
        if name in site:
            console.print(f"{name}: {site[name]} fits best")
    if shown.out:
        console.print(f"written to {shown.out}; use it with --site")


def _print_fit(console: Output, fit: RunsFit) -> None:
    errors = fit.errors
    console.print(f"{fit.fitted} of {fit.rows} rows fitted")
    for reason in fit.skipped:
        console.print(f"  skipped: {reason}")
    alone = errors.left_out
    console.print(
        f"mean error of step times: {errors.before:.1%} as the catalogue has it, "
        f"{errors.after:.1%} fitted"
        + ("" if alone is None else f", {alone:.1%} each predicted from the others")
    )


def _flat(
    content: Mapping[str, JsonValue], prefix: str = ""
) -> Iterator[tuple[str, tuple[float, float, float]]]:
    """Yield (value, low, high) by path in a site's file."""
    for name, value in content.items():
        if isinstance(value, dict):
            if "low" in value:
                interval = [float(str(value[key])) for key in ("value", "low", "high")]
                yield prefix + name, (interval[0], interval[1], interval[2])
            else:
                yield from _flat(value, f"{prefix}{name} ")


def print_validation(shown: OperatorsValidation) -> None:
    console = Output()
    console.print(f"{shown.device}: {shown.predicted} of {shown.rows} rows predicted")
    print_skipped(console, shown.skipped)
    _print_errors(shown)


def _print_errors(shown: OperatorsValidation) -> None:
    groups = {"all": shown.step_time, **shown.by_kind}
    groups |= {"power": shown.power, "energy": shown.energy}
    print_error_table(Output(), "operators", groups)


def print_chips(shown: ChipsValidation) -> None:
    """Print errors of the physical model on published chips (family left out), then the parts."""
    console = Output()
    print(
        f"{shown.predicted} of {shown.rows} chips predicted; errors of those whose figure is "
        "published, each from the other families"
    )
    print_skipped(console, shown.skipped)
    groups = {
        "area": shown.area, "power": shown.power, "peak by construction": shown.peak,
        "area, fitted on all": shown.fitted.area, "power, fitted on all": shown.fitted.power,
        "area, as shipped": shown.shipped.area, "power, as shipped": shown.shipped.power,
    }  # fmt: skip
    groups |= {f"area, {name}": family.area for name, family in shown.families.items()}
    groups |= {f"power, {name}": family.power for name, family in shown.families.items()}
    print_error_table(console, "errors", groups)
    areas = [(chip.chip, chip.area_mm2, chip.area_parts_mm2) for chip in shown.chips]
    powers = [(chip.chip, chip.power_W, chip.power_parts_W) for chip in shown.chips]
    for unit, rows in (("mm2", areas), ("W", powers)):
        names = tuple(rows[0][2])
        cells = []
        for chip, figure, parts in rows:
            doubt = "" if figure.counts or figure.published is None else "?"
            errors = (figure.error(figure.left_out), figure.error(figure.fitted))
            shown_cells = (
                chip,
                "" if figure.published is None else f"{figure.published:.0f}{doubt}",
                f"{figure.left_out:.0f}",
                *("" if error is None else f"{error:+.0%}" for error in errors),
                *(f"{parts[name]:.0f}" for name in names),
            )
            cells.append(shown_cells)
        console.print()
        console.table(("chip", unit, "model", "error", "fitted", *names), cells)


def print_nodes(shown: NodesValidation) -> None:
    console = Output()
    console.print(f"{shown.predicted} of {shown.rows} nodes predicted")
    print_skipped(console, shown.skipped)
    print_error_table(console, "errors", {"power": shown.power})
    rows = []
    for node in shown.nodes:
        watts = (f"{node.measured_W:.0f}", f"{node.predicted_W:.0f}", f"{node.error:+.1%}")
        rows.append((node.id, node.device, str(node.devices), node.workload, *watts))
    console.print()
    console.table(("node", "device", "devices", "workload", "W", "model", "error"), rows)


def print_figures(shown: FiguresValidation) -> None:
    """Print single figures with the model's predictions, by group."""
    console = Output()
    console.print(f"{shown.predicted} of {shown.rows} rows predicted")
    print_skipped(console, shown.skipped)
    print_error_table(console, "errors", shown.groups)
    rows = []
    for line in shown.figures:
        figures = (
            f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
            for value in (line.reference, line.predicted)
        )
        rows.append((line.id, line.group, *figures, line.unit, f"{line.error:+.1%}"))
    console.print()
    console.table(("figure", "group", "reference", "model", "unit", "error"), rows)


def print_bench(shown: BenchAnswer) -> None:
    """Predictors side by side."""
    console = Output()
    first = shown.predictors[0].name
    console.print(
        f"{shown.rows} rows; {shown.shared} that two predictors or more can express, "
        f"{shown.common} that all can"
    )
    for name, why in shown.missing.items():
        console.print(f"  without {name}: {why}")
    print_skipped(console, shown.unread)
    columns = (
        "rows", "step time", "median", "p90", f"{first}'s", "memory", "ran: fits", "oom: not",
        "regret", "rows/s",
    )  # fmt: skip
    for title, scores in (
        ("rows of its own", [(row, row.all) for row in shown.predictors]),
        ("rows of all", [(row, row.common) for row in shown.predictors]),
    ):
        rows = []
        for row, score in scores:
            time, verdicts = score.step_time, (score.accepted_share, score.rejected_share)
            shares = (time.mean_ape, time.median_ape, time.p90_ape, score.first.mean_ape)
            texts = map(_share, (*shares, score.memory.mean_ape, *verdicts, score.regret.mean))
            rows.append((row.name, str(score.rows), *texts, f"{row.per_second:.3g}"))
        console.table((title, *columns), rows)
    closer = []
    for kind, groups in shown.predictors[0].groups.items():
        rows = []
        for group in groups:
            by_name = {row.name: row.groups[kind][group] for row in shown.predictors}
            cells = []
            for name, score in by_name.items():
                theirs, ours = score.step_time.mean_ape, score.first.mean_ape
                cells.append(f"{_share(theirs)} of {score.step_time.rows}")
                if theirs is not None and ours is not None and theirs < ours:
                    errors = f"{name} {theirs:.1%}, {first} {ours:.1%}"
                    closer.append(f"{kind} {group}: {errors} ({score.step_time.rows} rows)")
            if any(score.step_time.rows for score in by_name.values()):
                rows.append((group, *cells))
        console.table((kind, *(row.name for row in shown.predictors)), rows)
    for line in closer:
        console.print(f"closer than {first}: {line}")
    for row in shown.predictors:
        for reason, count in row.refused.items():
            console.print(f"{row.name} cannot express {count}: {reason}")


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def print_sweep(shown: SweepAnswer, folder: Path | None = None) -> None:
    """Print one row per combination of values, the best one, and what draws them."""
    columns = [name for name in shown.columns if name not in ("low s", "high s", "problem")]
    rows = [[format_value(row[name]) for name in columns] for row in shown.lines()]
    texts = [i for i, name in enumerate(columns) if name == "layout"]
    Output().table(columns, rows, texts)
    following = "atoll report DIR" if folder is None else f"atoll report {folder}"
    kept = "--out DIR keeps these answers, " if folder is None else ""
    lines = [line for line in shown.summary() if line[0] != "Sweep"]
    print_lines([*lines, ("Next", f"{kept}{following} draws them")])


def print_compared(shown: CompareAnswer) -> None:
    """Print one column per run; differing rows are marked."""
    console = Output()
    for title, rows in (("asked", shown.asked), ("figures", shown.figures)):
        cells = [("*" if row.differs else "", row.name, *row.cells()) for row in rows]
        console.table(("", title, *shown.runs), cells, (1,))
    for note in shown.notes:
        console.print(f"Note: {note}")
