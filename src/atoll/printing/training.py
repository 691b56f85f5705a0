"""Estimates, plans and validations for people to read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from atoll.base.errors import AtollError
from atoll.base.streams import say
from atoll.base.units import NOT_COUNTED, format_bytes, format_seconds
from atoll.printing.console import (
    Output,
    bar,
    print_answer,
    print_error_table,
    print_lines,
    print_skipped,
)
from atoll.questions.texts import spelled

if TYPE_CHECKING:
    from atoll.answers.layout import Interval, LaunchFile, Uncertainty
    from atoll.answers.plan import MeasureAnswer, PlanExplanation
    from atoll.answers.validation import RunsValidation
    from atoll.launch.check import Checked
    from atoll.questions import PlanQuestion
    from atoll.questions.verbs import CheckQuestion
    from atoll.training.estimate import Estimate
    from atoll.training.mixed.plan import MixedPlan
    from atoll.training.planner.plan import Plan

BAR = 30
LEAST_SHARE = 0.01  # of the variance, of a cause that is shown
MOST_BETTER = 1000
"""Numbers of names of better launch files that are tried."""
FEW_DIGITS = 3  # of times on mixed pods, none of which was measured


def print_estimate(result: Estimate, explain: bool = False) -> None:
    """Print what a layout costs."""
    following = "atoll plan finds a faster layout"
    if not result.fits:
        following = "atoll plan finds a layout that fits"
    elif result.tool.write is not None:
        following = f"--launch-file . writes {result.tool.name}'s launch file, {following}"
    print_answer(result, following, partial(_print_details, result) if explain else None)


def _print_details(result: Estimate) -> None:
    """Print the conditions of an estimate, where time and memory go, and its uncertainty."""
    console, step, worst = Output(), result.step, result.worst
    uncertainty, run_length = result.uncertainty, result.whole_run
    lines = [("Given", f"{result.run.given}; MFU: {NOT_COUNTED}")]
    if result.run.gpu.cap_W and (energy_J := result.energy_per_token_J):
        words = f"{result.power_W:.0f} W per device, {1e3 * energy_J:.3g} mJ per token"
        lines.append(("Power", words))
    if run_length is not None:
        lines.append(("Failures", run_length.failure_sentence()))
    print_lines(lines)
    console.print("\nTime of a step:")
    seconds = partial(format_seconds, digits=result.digits)
    _print_parts(console, step.breakdown(), step.time_s, seconds)
    console.print(f"\nMemory of stage {worst.stage}, {format_bytes(worst.allocated)} allocated:")
    _print_parts(console, worst.parts(), worst.allocated, format_bytes)
    for name, operators in result.rerun:
        operator_names = ", ".join(operators) if operators else "nothing"
        console.print(f"  recomputed in {name}: {operator_names}")
    console.print()
    _print_uncertainty(console, result.interval, uncertainty)


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


def print_plan(result: Plan, question: PlanQuestion, explain: bool = False) -> None:
    """Print the best layout, and what the question did not ask for yet."""
    folder = question.out
    if result.tool.write is not None and question.launch_file is None and not question.export:
        following = f"--launch-file . writes {result.tool.name}'s launch file"
    elif folder is None:
        following = "--out DIR keeps the plan for atoll report"
    else:
        following = f"atoll report {folder} draws it, atoll explain {folder} says why"
    print_answer(result, following, partial(_print_plan_details, result) if explain else None)


def _print_plan_details(result: Plan) -> None:
    """Print the details of the best layout, the alternatives, and why each axis has its value."""
    console, best_s = Output(), result.best.step.time_s
    _print_details(result.best)
    console.print(f"\nProof: {result.proof()}")
    if result.excluded:
        console.print(result.left_out())
    if result.unrestricted is not None:
        console.print(result.unrestricted.sentence())
    mine, *chances = result.fastest_chances
    console.print(
        f"\nOther layouts, step time compared with the named layout (fastest with {mine:.0%}):"
    )
    for runner_up, chance in zip(result.runners_up, chances, strict=True):
        slower = runner_up.step.time_s / best_s - 1
        words = f"{'tight, ' * runner_up.tight}fastest with {chance:.0%}"
        console.print(f"  {slower:+6.1%}  {runner_up.layout} ({words})")
    console.print("\nWhy:")
    for reason in result.reasons:
        console.print(f"  {reason.why}")
    for what, why in result.not_done.items():
        console.print(f"  {what} end here: {why}")


def print_mixed(result: MixedPlan, explain: bool = False) -> None:
    """Print a plan on several pods."""
    following = f"--launch-file . writes {result.tool.name}'s launch file"
    print_answer(result, following, partial(_print_mixed_details, result) if explain else None)


def _print_mixed_details(result: MixedPlan) -> None:
    console, best, digits = Output(), result.best, FEW_DIGITS
    print_lines([("Given", result.pods.given)])
    console.print(f"replayed pass by pass {best.replayed.difference:+.1%}")
    for words in best.sentences():
        console.print(words)
    console.print("\nTime of a step:")
    _print_parts(
        console, best.step.breakdown(), best.step.time_s, partial(format_seconds, digits=digits)
    )
    console.print("\nMemory of each stage:")
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
    console.print(f"\nProof: {result.proof()}\n{result.left_out()}\n\nOther layouts:")
    for runner_up in result.runners_up:
        slower = runner_up.time_s / best.time_s - 1
        console.print(f"  {slower:+6.1%}  {runner_up.placed} ({runner_up.words()})")


def _print_uncertainty(console: Output, interval: Interval, uncertainty: Uncertainty) -> None:
    """Print the interval, the share of its causes, and what would narrow it."""
    words = "its causes, each with its share and its own half width"
    console.print(f"Uncertainty ({interval.sentence(FEW_DIGITS)}): {words}:")
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
    console.print("other layouts, step time compared with the named layout:")
    for runner_up in shown.runners_up:
        before, after = (format_seconds(seconds) for seconds in runner_up.part_s)
        part = runner_up.part.replace("_", " ")
        console.print(
            f"  {runner_up.slower:+6.1%}  {runner_up.layout}, mostly {part} ({before} -> {after})"
        )
    proof = shown.certificate.sentence
    if shown.choice:
        console.print(f"the plan names {shown.choice}")
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
        rows = [
            (name, str(errors.rows), f"{errors.mean_ape:.1%}", f"{errors.bias:+.1%}")
            for name, errors in shown.kernel_classes.items()
        ]
        console.table(("kernel class", "rows", "mean", "bias"), rows)
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
    """Write a launch file, and its notes to standard error; in a folder it replaces no other."""
    folder = path or Path()
    usual = folder / launch.file
    if folder.is_dir() and usual.exists() and usual.read_bytes() != launch.text.encode():
        raise AtollError(
            f"launch_file: {usual} exists and is left as it is; --launch-file {usual} overwrites "
            "it, another name keeps both."
        )
    say(f"wrote {launch.save(folder)}")
    for note in launch.notes:
        say(note)


def _free_place(estimate: Estimate) -> Path:
    """Return the working folder if it has no launch file of the tool, else a name that is free."""
    try:
        usual = Path(estimate.export(estimate.run.tool.name).file)
    except AtollError:
        return Path()
    if not usual.exists():
        return Path()
    names = (f"better{number}{usual.suffix}" for number in ("", *range(2, MOST_BETTER)))
    return next((path for path in map(Path, names) if not path.exists()), Path())


def print_checked(result: Checked, question: CheckQuestion, explain: bool = False) -> None:
    """Print the verdict on a launch file, and the command that writes a better one."""
    names = ("device", "devices", "model", "batch", "sequence", "network", "vocab")
    values = {name: getattr(question, name) for name in names}
    said = [f"{spelled(n)} {quote(str(v))}" for n, v in values.items() if v is not None]
    asked = " ".join([f"--from {quote(result.launch.file)}", *said])
    place = _free_place(result.estimate)
    following = f"atoll plan {asked} --launch-file {place} writes a better file"
    freed = result.with_other_flags
    if freed is not None:
        following += f", with {freed.flags} the one with other flags"
    if result.estimate.run.tool.write is None:
        following = f"change the file as said; atoll plan {asked} names other layouts too"
    if result.better is None and not result.estimate.fits:
        asked = asked.replace(f" --devices {values['devices']}", "")
        following = f"atoll plan {asked} with more --devices or another --tool finds what fits"
    elif result.better is None and freed is not None:
        following = f"atoll plan {asked} {freed.flags} --launch-file {place} writes the better file"
    elif result.better is None and result.measured is None:
        following = "--log FILE compares the file with its run"
    elif result.better is None:
        following = "atoll calibrate fits estimates to your runs"
    print_answer(result, following, partial(_print_check_details, result) if explain else None)


def _print_check_details(result: Checked) -> None:
    """Print the details of the file's layout, its measured run, and the lines to change."""
    console, run, better = Output(), result.measured, result.better
    _print_details(result.estimate)
    if run is not None and run.memory_bytes and run.memory_predicted_bytes:
        console.print(
            f"\nMeasured: memory {run.memory_counts} {format_bytes(run.memory_bytes)}, predicted "
            f"{format_bytes(run.memory_predicted_bytes)} ({run.memory_error or 0:+.1%})"
        )
        if run.memory_counts == "reserved":
            console.print("  reserved: with blocks kept for reuse, which the run does not need")
    if run is not None and run.slack:
        value, low, high = run.slack
        console.print(
            f"  such a site takes {value:.2f} times the estimate ({low:.2f} to {high:.2f}, 90 %)"
        )
    for part in () if run is None else run.parts:
        value_s = part.predicted_s
        words = "" if value_s is None else f"  predicted {format_seconds(value_s):>9}"
        console.print(f"  {part.part:<22} {format_seconds(part.measured_s):>9}{words}")
    if better is not None:
        console.print(f"\nProof: {better.proof}")
        print(better.launch_file)
    if (freed := result.with_other_flags) is not None:
        console.print(f"\nWith other flags: {', '.join(freed.changes)}")
