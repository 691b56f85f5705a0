"""Estimates, plans and validations for people to read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from atoll.errors import AtollError
from atoll.printing.console import Output, print_error_table, print_skipped
from atoll.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from atoll.answers.layout import LaunchFile
    from atoll.answers.plan import PlanExplanation
    from atoll.answers.validation import Better, MeasuredRun, RunsValidation
    from atoll.launch.check import Checked
    from atoll.training.estimate import Estimate
    from atoll.training.mixed.plan import MixedPlan
    from atoll.training.planner.plan import Plan

BAR = 30
FEW_DIGITS = 3  # of times of mixtures, of which none was measured


def print_estimate(result: Estimate) -> None:
    console = Output()
    run, step, worst = result.run, result.step, result.worst
    whole = result.whole_run  # may be refused
    console.print(
        f"{run.model.name} on {run.devices} {run.gpu.name} ({run.network.name}, {run.stack.name}): "
        f"{result.layout}"
    )
    for note in result.notes:
        console.print(f"note: {note}")
    console.print(f"given: {run.given}")
    time, throughput, mfu = result.figures()
    console.print(f"step {time}, {throughput}, MFU {mfu}")
    console.print(result.sureness())
    if run.gpu.cap_W and (energy_J := result.energy_per_token_J):
        console.print(f"{result.power_W:.0f} W per device, {1e3 * energy_J:.3g} mJ per token")
    if whole is not None:
        for words in whole.sentences():
            console.print(words)
    seconds = partial(format_seconds, digits=result.digits)
    _print_parts(console, step.breakdown(), step.time_s, seconds)
    console.print(
        f"memory of stage {worst.stage}: {format_bytes(worst.allocated)} allocated, "
        f"{result.verdict()}"
    )
    _print_parts(console, worst.parts(), worst.allocated, format_bytes)
    for name, operators in result.rerun:
        again = ", ".join(operators) if operators else "nothing"
        console.print(f"recomputed in {name}: {again}")


def _print_parts(
    console: Output, parts: Mapping[str, float], whole: float, shown: Callable[[float], str]
) -> None:
    for name, value in sorted(parts.items(), key=lambda item: -item[1]):
        share = value / whole if whole else 0.0
        if share < 0.0005:
            continue
        bar = "█" * max(1, round(BAR * share))
        label = name.replace("_", " ")
        console.print(f"  {label:<21}{share:>6.1%}  {shown(value):>12}  {bar}")


def print_plan(result: Plan) -> None:
    console, best_s = Output(), result.best.step.time_s
    print_estimate(result.best)
    for words in filter(None, (result.choice(), result.proof(), result.to_try())):
        console.print(f"\n{words}")
    if result.excluded:
        console.print(result.left_out())
    console.print("runners-up:")
    for other in result.runners_up:
        console.print(f"  {other.step.time_s / best_s - 1:+6.1%}  {other.layout}")
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
        where = result.pods.runs[stage.pod].gpu
        console.print(
            f"  {stage.stage:>3} {where.name:<10} {format_bytes(stage.memory.needed):>9} of "
            f"{format_bytes(where.hbm_bytes)}: {words}; recompute {stage.recompute}"
        )
    for alone in result.alone:
        known_s = alone.step_time_s
        took = alone.reason if known_s is None else format_seconds(known_s, digits)
        layout = f", {alone.layout}" if alone.layout else ""
        console.print(f"alone, {alone.devices:,} {alone.device}: {took}{layout}")
    console.print(f"\n{result.proof()}")
    console.print(result.left_out())
    console.print("runners-up:")
    for other in result.runners_up:
        slower = other.time_s / best.time_s - 1
        console.print(f"  {slower:+6.1%}  {other.placed} ({other.words()})")


def print_plan_explanation(shown: PlanExplanation) -> None:
    console = Output()
    console.print(
        f"{shown.model} on {shown.devices} {shown.device}: {shown.layout}\n"
        f"step {format_seconds(shown.step_time_s)}, MFU {shown.mfu:.1%}; by cause:"
    )
    _print_parts(console, shown.breakdown_s, shown.step_time_s, format_seconds)
    console.print("why:")
    for reason in shown.reasons:
        console.print(f"  {reason.why}")
    for what, why in shown.left_out.items():
        console.print(f"  {what} end here: {why}")
    console.print("runners-up:")
    for other in shown.runners_up:
        before, after = (format_seconds(seconds) for seconds in other.part_s)
        part = other.part.replace("_", " ")
        console.print(
            f"  {other.slower:+6.1%}  {other.layout}, mostly {part} ({before} -> {after})"
        )
    proof = shown.certificate.sentence
    if shown.choice:
        console.print(f"named is {shown.choice}")
        proof = f"the fastest is {proof[0].lower()}{proof[1:]}"
    console.print(proof)


def print_runs(shown: RunsValidation) -> None:
    """Validation of whole runs or steps."""
    console = Output()
    console.print(f"{shown.predicted} of {shown.rows} rows predicted")
    print_skipped(console, shown.skipped)
    predicted = max(1, shown.predicted)
    if shown.rejected is not None:
        share = shown.rejected / predicted
        console.print(f"rejected as out of memory: {shown.rejected} ({share:.1%})")
        return
    groups = {"all": shown.step_time}
    for kind in ("source", "device", "grade", "feature"):
        for name, errors in getattr(shown, f"by_{kind}").items():
            groups[f"{kind} {name}"] = errors.step_time
    groups["peak memory"] = shown.memory
    print_error_table(console, "step time", groups)
    for what, told in (("step times", shown.step_time), ("peaks", shown.memory)):
        if told.coverage is not None:
            console.print(
                f"{what} inside of their 90 % intervals: {told.coverage:.1%} (half-width "
                f"{told.half_width:.1%} on average)"
            )
    accepted = shown.accepted or 0
    console.print(f"accepted as fitting memory: {accepted} ({accepted / predicted:.1%})")
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


def write_launch_file(made: LaunchFile, path: Path | None) -> None:
    """Write a launch file, and on standard error what its user must know."""
    usual = Path(made.file)
    if path is None and usual.exists() and usual.read_bytes() != made.text.encode():
        raise AtollError(
            f"export: {usual} exists and is left as it is; name the file with --export-to, "
            f"{usual} to overwrite it."
        )
    print(f"atoll: wrote {made.save(path or usual)}", file=sys.stderr)
    for note in made.notes:
        print(f"atoll: {note}", file=sys.stderr)


def _print_measured(console: Output, found: MeasuredRun) -> None:
    """A run's log or profile beside its estimate."""
    console.print(
        f"measured: step {format_seconds(found.step_time_s)} ({format_seconds(found.low_s)} to "
        f"{format_seconds(found.high_s)} over {found.steps} steps, {found.left_out} left out), "
        f"predicted {found.error:+.1%}"
    )
    if found.memory_bytes and found.memory_predicted_bytes:
        console.print(
            f"  memory {found.memory_counts} {format_bytes(found.memory_bytes)}, predicted "
            f"{format_bytes(found.memory_predicted_bytes)} ({found.memory_error or 0:+.1%})"
        )
    if found.slack:
        value, low, high = found.slack
        console.print(
            f"  such a site takes {value:.2f} times the estimate ({low:.2f} to {high:.2f}, 90 %)"
        )
    for part in found.parts:
        known = part.predicted_s
        beside = "" if known is None else f"  predicted {format_seconds(known):>9}"
        console.print(f"  {part.part:<22} {format_seconds(part.measured_s):>9}{beside}")


def print_checked(result: Checked) -> None:
    """The verdict on a launch file."""
    console = Output()
    found, better = result.launch.arguments, result.better
    total = len(found.used) + len(found.without_effect) + len(found.not_understood)
    console.print(
        f"{result.launch.file}: {result.launch.software}, {total} arguments, {len(found.used)} "
        f"used, {len(found.without_effect)} without effect on time or memory"
    )
    for name, value in found.not_understood.items():
        console.print(f"not understood: {f'{name} {value}'.strip()}")
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


def _print_better(console: Output, better: Better, name: str) -> None:
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
