"""Estimates, plans and validations for people to read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.base.errors import AtollError
from atoll.base.streams import say
from atoll.base.units import format_bytes, format_seconds
from atoll.printing.console import Output, bar, plain_table, print_error_table, print_skipped

if TYPE_CHECKING:
    from atoll.answers.layout import Interval, LaunchFile, Uncertainty
    from atoll.answers.plan import MeasureAnswer, PlanExplanation
    from atoll.answers.validation import BetterLayout, MeasuredRun, RunsValidation
    from atoll.launch.check import Checked
    from atoll.training.estimate import Estimate
    from atoll.training.mixed.plan import MixedPlan
    from atoll.training.planner.plan import Plan

BAR = 30
MOST_CAUSES = 3  # of the uncertainty
LEAST_SHARE = 0.01  # of the variance, of a cause that is shown
FEW_DIGITS = 3  # of times on mixed pods, none of which was measured


def print_estimate(result: Estimate) -> None:
    console = Output()
    run, step, worst = result.run, result.step, result.worst
    run_length = result.whole_run  # may be refused
    console.print(
        f"{run.model.name} on {run.devices} {run.gpu.name} ({run.network.name}, {run.software}): "
        f"{result.layout}"
    )
    for note in result.notes:
        console.print(f"note: {note}")
    console.print(f"given: {run.given}")
    time, throughput, mfu = result.figures()
    console.print(f"step {time}, {throughput}, MFU {mfu}")
    console.print(result.sureness())
    uncertainty, interval = result.uncertainty, result.interval.step_time_s
    causes = ", ".join(
        f"{cause.title} {cause.half_width:.0%}" for cause in uncertainty.causes[:MOST_CAUSES]
    )
    console.print(f"largest uncertainties (either way): {causes}")
    if uncertainty.narrowed:
        console.print(f"to narrow it, {uncertainty.narrowed[0].sentence(interval)}")
    if run.gpu.cap_W and (energy_J := result.energy_per_token_J):
        console.print(f"{result.power_W:.0f} W per device, {1e3 * energy_J:.3g} mJ per token")
    if run_length is not None:
        for words in run_length.sentences():
            console.print(words)
    seconds = partial(format_seconds, digits=result.digits)
    _print_parts(console, step.breakdown(), step.time_s, seconds)
    console.print(
        f"memory of stage {worst.stage}: {format_bytes(worst.allocated)} allocated, "
        f"{result.verdict()}"
    )
    _print_parts(console, worst.parts(), worst.allocated, format_bytes)
    for name, operators in result.rerun:
        operator_names = ", ".join(operators) if operators else "nothing"
        console.print(f"recomputed in {name}: {operator_names}")


def _print_parts(
    console: Output, parts: Mapping[str, float], total: float, formatted: Callable[[float], str]
) -> None:
    for name, value in sorted(parts.items(), key=lambda item: -item[1]):
        share = value / total if total else 0.0
        if share < 0.0005:
            continue
        label = name.replace("_", " ")
        words = f"  {label:<21}{share:>6.1%}  {formatted(value):>12}"
        console.print(f"{words}  {bar(share, BAR)}")


def print_plan(result: Plan) -> None:
    console, best_s = Output(), result.best.step.time_s
    print_estimate(result.best)
    for words in filter(None, (result.choice(), result.proof(), result.to_try())):
        console.print(f"\n{words}")
    if result.unrestricted is not None:
        console.print(f"\n{result.unrestricted.sentence()}")
    if result.excluded:
        console.print(result.left_out())
    console.print("runners-up:")
    mine, *chances = result.fastest_chances
    for runner_up, chance in zip(result.runners_up, chances, strict=True):
        slower = runner_up.step.time_s / best_s - 1
        console.print(f"  {slower:+6.1%}  {runner_up.layout} (fastest with {chance:.0%})")
    console.print(f"chance that the layout named is the fastest of these: {mine:.0%}")
    console.print("why:")
    for reason in result.reasons:
        console.print(f"  {reason.why}")
    for what, why in result.not_done.items():
        console.print(f"  {what} end here: {why}")


def print_mixed(result: MixedPlan) -> None:
    """A plan on several pods."""
    console, best = Output(), result.best
    run, digits = result.pods.runs[0], FEW_DIGITS
    console.print(f"{run.model.name} on {result.pods}: {best.placed}")
    for note in result.notes:
        console.print(f"note: {note}")
    console.print(f"given: {result.pods.given}")
    console.print(
        f"step {format_seconds(best.time_s, digits)}, {run.tokens / best.time_s:,.0f} tokens/s; "
        f"replayed pass by pass {best.replayed.difference:+.1%}"
    )
    for words in best.sentences():
        console.print(words)
    for unused in best.left_out:
        console.print(f"not used: {unused}")
    _print_parts(
        console, best.step.breakdown(), best.step.time_s, partial(format_seconds, digits=digits)
    )
    console.print("memory of each stage:")
    for stage in best.stages:
        parts = [(n, b) for n, b in stage.memory.parts().items() if b > 0.005 * stage.memory.needed]
        words = ", ".join(f"{name} {format_bytes(bytes_)}" for name, bytes_ in parts)
        gpu = result.pods.runs[stage.pod].gpu
        console.print(
            f"  {stage.stage:>3} {gpu.name:<10} {format_bytes(stage.memory.needed):>9} of "
            f"{format_bytes(gpu.hbm_bytes)}: {words}; recompute {stage.recompute}"
        )
    for alone in result.alone:
        step_s = alone.step_time_s
        took = alone.reason if step_s is None else format_seconds(step_s, digits)
        layout = f", {alone.layout}" if alone.layout else ""
        console.print(f"alone, {alone.devices:,} {alone.device}: {took}{layout}")
    console.print(f"\n{result.proof()}")
    console.print(result.left_out())
    console.print("runners-up:")
    for runner_up in result.runners_up:
        slower = runner_up.time_s / best.time_s - 1
        console.print(f"  {slower:+6.1%}  {runner_up.placed} ({runner_up.words()})")


def _print_uncertainty(console: Output, interval: Interval, uncertainty: Uncertainty) -> None:
    """Print the interval, the share of its causes, and what would narrow it."""
    console.print(
        f"{interval.sentence(FEW_DIGITS)}; share of the variance and half width by cause:"
    )
    for cause in uncertainty.causes:
        if cause.share >= LEAST_SHARE:
            words = f"  {cause.title:<46}{cause.share:>4.0%}  {cause.half_width:<5.0%}"
            console.print(f"{words}  {bar(cause.share, BAR)}")
    for option in uncertainty.narrowed:
        console.print(f"  {option.sentence(interval.step_time_s)}")


def print_plan_explanation(shown: PlanExplanation) -> None:
    console = Output()
    console.print(
        f"{shown.model} on {shown.devices} {shown.device}: {shown.layout}\n"
        f"step {format_seconds(shown.step_time_s)}, MFU {shown.mfu:.1%}; by cause:"
    )
    _print_parts(console, shown.breakdown_s, shown.step_time_s, format_seconds)
    if shown.uncertainty is not None:
        _print_uncertainty(console, shown.interval, shown.uncertainty)
    console.print("why:")
    for reason in shown.reasons:
        console.print(f"  {reason.why}")
    for what, why in shown.left_out.items():
        console.print(f"  {what} end here: {why}")
    console.print("runners-up:")
    for runner_up in shown.runners_up:
        before, after = (format_seconds(seconds) for seconds in runner_up.part_s)
        part = runner_up.part.replace("_", " ")
        console.print(
            f"  {runner_up.slower:+6.1%}  {runner_up.layout}, mostly {part} ({before} -> {after})"
        )
    proof = shown.certificate.sentence
    if shown.choice:
        console.print(f"named is {shown.choice}")
        proof = f"the fastest is {proof[0].lower()}{proof[1:]}"
    console.print(proof)


def print_measured(shown: MeasureAnswer) -> None:
    """Ranks of a layout, or with --dry-run the command that would measure them."""
    console = Output()
    for words in shown.commands:
        console.print(f"# jobs.jsonl, then: {words}")
    for job in shown.jobs:
        print(json.dumps(dict(job)))
    for rank in shown.ranks:
        console.print(f"rank {rank.rank} (stage {rank.stage}) of {shown.layout}: {rank.outcome}")
        if rank.error:
            console.print(f"  {rank.error}")
        for name, measured, predicted, show in (
            ("compute", rank.step_time_s, rank.predicted_step_time_s, format_seconds),
            ("allocated", rank.allocated_bytes, rank.predicted_allocated_bytes, format_bytes),
            ("reserved", rank.reserved_bytes, rank.predicted_reserved_bytes, format_bytes),
        ):
            if measured and predicted:
                error = predicted / measured - 1
                console.print(
                    f"  {name:<10} measured {show(measured)}, predicted {show(predicted)} "
                    f"({error:+.1%})"
                )
    if shown.ranks:
        console.print(f"rows added to {shown.rows}; atoll calibrate {shown.rows} --out site.yaml")


def print_runs(shown: RunsValidation) -> None:
    """Validation of whole runs or steps."""
    console = Output()
    console.print(f"{shown.predicted} of {shown.rows} rows predicted")
    print_skipped(console, shown.skipped)
    if shown.rejected is not None:
        share = shown.rejected_share or 0.0
        console.print(f"rejected as out of memory: {shown.rejected} ({share:.1%})")
    if shown.accepted is None:
        return
    groups = {"all": shown.step_time}
    for kind in ("source", "device", "grade", "feature"):
        for name, errors in getattr(shown, f"by_{kind}").items():
            groups[f"{kind} {name}"] = errors.step_time
    groups["peak memory"] = shown.memory
    if shown.reserved_memory.rows:
        groups["reserved memory"] = shown.reserved_memory
    print_error_table(console, "step time", groups)
    if shown.kernel_classes:
        table = plain_table("kernel class", "rows", "mean", "bias", left="kernel class")
        for name, errors in shown.kernel_classes.items():
            table.add_row(name, str(errors.rows), f"{errors.mean_ape:.1%}", f"{errors.bias:+.1%}")
        console.print(table)
    for what, overall in (("step times", shown.step_time), ("peaks", shown.memory)):
        if overall.coverage is not None:
            console.print(
                f"{what} inside of their 90 % intervals: {overall.coverage:.1%} (half-width "
                f"{overall.half_width:.1%} on average)"
            )
    share = shown.accepted_share or 0.0
    console.print(f"accepted as fitting memory: {shown.accepted} ({share:.1%})")
    regret = shown.regret
    if regret.groups:
        console.print(
            f"regret over {regret.groups} groups of layouts: mean {regret.mean:.1%}, "
            f"median {regret.median:.1%}"
        )
    console.print("worst rows:")
    for row in shown.worst:
        measured = "" if row.measured_s is None else format_seconds(row.measured_s)
        console.print(
            f"  {row.error:+7.1%}  {row.id}  {row.layout}  measured "
            f"{measured}, predicted {format_seconds(row.predicted_s)}"
        )


def write_launch_file(launch: LaunchFile, path: Path | None) -> None:
    """Write a launch file, and its notes to standard error."""
    usual = Path(launch.file)
    if path is None and usual.exists() and usual.read_bytes() != launch.text.encode():
        raise AtollError(
            f"export: {usual} exists and is left as it is; name the file with --export-to, "
            f"{usual} to overwrite it."
        )
    say(f"wrote {launch.save(path or usual)}")
    for note in launch.notes:
        say(note)


def _print_measured(console: Output, run: MeasuredRun) -> None:
    """Print a run's log or profile with its estimate."""
    console.print(
        f"measured: step {format_seconds(run.step_time_s)} ({format_seconds(run.low_s)} to "
        f"{format_seconds(run.high_s)} over {run.steps} steps, {run.left_out} left out), "
        f"predicted {run.error:+.1%}"
    )
    if run.memory_bytes and run.memory_predicted_bytes:
        console.print(
            f"  memory {run.memory_counts} {format_bytes(run.memory_bytes)}, predicted "
            f"{format_bytes(run.memory_predicted_bytes)} ({run.memory_error or 0:+.1%})"
        )
    if run.slack:
        value, low, high = run.slack
        console.print(
            f"  such a site takes {value:.2f} times the estimate ({low:.2f} to {high:.2f}, 90 %)"
        )
    for part in run.parts:
        value_s = part.predicted_s
        words = "" if value_s is None else f"  predicted {format_seconds(value_s):>9}"
        console.print(f"  {part.part:<22} {format_seconds(part.measured_s):>9}{words}")


def print_checked(result: Checked) -> None:
    """The verdict on a launch file."""
    console = Output()
    arguments, better = result.launch.arguments, result.better
    total = sum(map(len, arguments.parts))
    console.print(
        f"{result.launch.file}: {result.launch.software}, {total} arguments, {len(arguments.used)} "
        f"used, {len(arguments.without_effect)} without effect on time or memory"
    )
    print_estimate(result.estimate)
    if result.measured is not None:
        _print_measured(console, result.measured)
    for note in result.launch.notes:
        console.print(f"note: {note}")
    if better is None:
        console.print(f"better: {result.why_not}")
    else:
        _print_better(console, better, "better")
        console.print(better.launch_file)
    if (freed := result.with_other_flags) is not None:
        _print_better(console, freed, f"with other flags ({freed.flags})")


def _print_better(console: Output, better: BetterLayout, name: str) -> None:
    step = f"{name}: {better.layout}, step {format_seconds(better.step_time_s)}"
    if better.saved_percent is None:
        console.print(f"{step}, fits; {better.proof}")
        return
    saved = [f"{better.saved_percent:.1f}% of a step"]
    if better.saved_hours is not None:
        saved.append(f"{better.saved_hours:,.0f} device-hours")
    if better.saved_usd is not None:
        saved.append(f"{better.saved_usd:,.0f} dollars")
    console.print(f"{step}, saves {', '.join(saved)}; {better.proof}")
