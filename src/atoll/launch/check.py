"""Check of a launch file: does it fit, how long is a step, which layout would be better."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, replace
from difflib import unified_diff
from functools import cached_property
from math import inf
from pathlib import Path

from atoll.answers.answer import AnsweredResult, build_from
from atoll.answers.validation import BetterLayout, CheckAnswer, CheckedArguments, MeasuredRun
from atoll.base.errors import AtollError, InfeasibleError, UnusableError
from atoll.base.stopping import Stop, StoppedError
from atoll.base.units import format_seconds
from atoll.export import refusals
from atoll.hardware.device import TemplateChip
from atoll.launch.ask import check_replicas, launched, question_fields
from atoll.launch.measured import doubts, measured_columns, measured_run
from atoll.questions import EstimateQuestion
from atoll.questions.devices import TIES, LengthQuestion
from atoll.questions.verbs import CheckQuestion
from atoll.tools.arguments import Launch
from atoll.training.estimate import Estimate, estimate
from atoll.training.planner.plan import Plan, plan
from atoll.training.planner.space import Axes
from atoll.training.request import compiles_itself, layout_from_question, run_from_question
from atoll.training.run import Run
from atoll.validation.append_run import append_run

HOUR_S = 3600.0
FREE_FLAG_SOFTWARE = ("megatron-lm", "nemo")
ALL_OVERLAPS = ("tp_comm", "grad_reduce", "param_gather", "p2p")
FUSED_FLAGS = ("te_loss",)
SLOW_FLAGS = ("no_grad_fusion", "local")
"""Flags of Megatron-Core that slow a run down."""
SHOWN_CHANGES = 6
"""Changes in a summary, if there are at least three more."""
_IMPORTANCE = (
    r"parallel[-_](size|degree)|autotp|^(tp|pp|cp|ep|dp)$",
    r"pipeline|virtual|stages|vpp|blocks",
    r"micro[-_]?batch|shard|fsdp|zero|distributed[-_]optimizer|^stage$",
    r"recompute|checkpointing",
)
"""Arguments that matter most in a layout, in this order."""
_COMMENTS = re.compile(r"^#.*$", re.MULTILINE)
_ARGUMENTS = re.compile(
    r"(?:^  (?=--)|'|^ *(?=\w+: ))((?:--)?[\w-]+)'?:? ?([^,{}\n]*)", re.MULTILINE
)
"""Arguments in scripts, in Python's dictionaries and in YAML, with their values."""


@dataclass(frozen=True)
class Checked(AnsweredResult[CheckAnswer]):
    """Result of checking a launch file: the estimate of its layout, and a better plan.

    Examples:
        >>> import atoll
        >>> checked = atoll.check("pretrain.sh", device="h100")
        >>> checked.estimate.fits, checked.plan.export("megatron").save("better.sh").name
        (True, 'better.sh')
    """

    launch: Launch
    question: EstimateQuestion
    estimate: Estimate
    """Estimate of the file's layout."""
    plan: Plan | None
    """The best plan of the same job under the same software, if there is one."""
    better: BetterLayout | None
    """None where no layout of the space is faster, or none fits."""
    why_not: str = ""
    measured: MeasuredRun | None = None
    with_other_flags: BetterLayout | None = None
    """A better layout with other software flags too, if it is faster still."""

    @property
    def _device_note(self) -> tuple[str, ...]:
        """Note on what was priced instead, where the device does not run the file's tool."""
        gpu, launch = self.estimate.run.gpu, self.launch
        if self.question.stack or not compiles_itself(gpu):
            return ()
        program = f"the file's layout as a program of {self.estimate.run.stack.name}"
        return (f"{gpu.name} does not run {launch.software}: {program}",)

    def summary(self) -> list[tuple[str, str]]:
        """Return the verdict in short: what the file costs, and a better layout.

        Returns:
            Lines as (label, text), in the order in which every answer has them.

        Examples:
            >>> import atoll
            >>> checked = atoll.check("pretrain.sh", device="h100")
            >>> [label for label, _ in checked.summary()][:4]
            ['File', 'Run', 'Step', 'Memory']
        """
        launch, arguments, measured = self.launch, self.launch.arguments, self.measured
        *lines, confidence = self.estimate.summary()
        notes = [("Note", note) for note in (*launch.notes, *self._device_note)]
        notes += [line for line in lines if line[0] == "Note"]
        words = f"{launch.file}: {launch.software}, {sum(map(len, arguments.parts))} arguments"
        unused = f"{len(arguments.without_effect)} without effect on time or memory"
        file = ("File", f"{words}, {len(arguments.used)} used, {unused}")
        lines = [*notes, file, *(line for line in lines if line[0] != "Note"), confidence]
        if measured is not None:
            range_words = f"{format_seconds(measured.low_s)} to {format_seconds(measured.high_s)}"
            words = f"{format_seconds(measured.step_time_s)} ({range_words} over {measured.steps}"
            side = "higher" if measured.error > 0 else "lower"
            off = f"the prediction is {abs(measured.error):.1%} {side}"
            lines.append(("Measured", f"{words} steps); {off}"))
        none_better = self.why_not.partition(";")[0].partition(": proven")[0]
        compared = measured is not None and not measured.other_job
        measured_s = measured.step_time_s if measured and compared else None
        if self.better is None:
            lines.append(("Better", none_better))
        else:
            lines.append(("Better", _saving(self.better, measured_s)))
            changes = self.better.changes
            count = SHOWN_CHANGES if len(changes) > SHOWN_CHANGES + 2 else len(changes)
            more = f", and {len(changes) - count} more (--explain)" if changes[count:] else ""
            words = f"{', '.join(changes[:count])}{more}"
            lines += [("Change", words)] if words else []
        if (freed := self.with_other_flags) is not None:
            words = ", ".join(freed.flag_arguments) or freed.flags
            lines.append(("Better", f"with other flags ({words}): {_saving(freed, measured_s)}"))
        return lines

    @cached_property
    def answer(self) -> CheckAnswer:
        launch = self.launch
        return build_from(
            CheckAnswer,
            self,
            launch,
            launch.arguments,
            question=self.question.to_dict(),
            estimate=self.estimate.answer,
            arguments=build_from(CheckedArguments, launch.arguments),
            notes=(*launch.notes, *self._device_note, *([self.why_not] if self.why_not else [])),
        )


def _saving(better: BetterLayout, measured_s: float | None) -> str:
    """Return a better layout with its saving, a share of the predicted step, in words."""
    words = f"{better.layout}, step {format_seconds(better.step_time_s)}"
    if better.saved_percent is None:
        return f"{words}, fits"
    hours, usd = (
        f"{number:,.0f} {unit}" if number is not None and round(number) > 0 else ""
        for number, unit in ((better.saved_hours, "device-hours"), (better.saved_usd, "dollars"))
    )
    saved = f"{better.saved_percent:.1f}% of"
    if measured_s is None:
        return ", ".join(filter(None, (f"{words}, saves {saved} a step", hours, usd)))
    off = better.step_time_s / measured_s - 1
    side = "above" if off > 0 else "below"
    totals = ", ".join(filter(None, (hours, usd)))
    return (
        f"{words} ({abs(off):.1%} {side} the measured step), saves {saved} the predicted step"
        f"{f'; that share of the measured steps is {totals}' if totals else ''}"
    )


def check(question: CheckQuestion) -> Checked:
    """Read a launch file, estimate its layout, and search for a better one."""
    launch = launched(question.file, question.asked())
    not_priced = launch.arguments.not_priced
    if question.strict and not_priced:
        raise AtollError(f"{question.file}: not priced: {'; '.join(not_priced)}")
    layout_question = _question(question, launch)
    run = run_from_question(layout_question, launch.model, launch)
    current = estimate(run, layout_from_question(run, layout_question))
    measured = measured_run(current, question.log, question.trace)
    step_s = current.step.time_s
    if measured is not None:
        launch = replace(launch, notes=(*doubts(current, measured), *launch.notes))
        step_s = step_s if measured.other_job else measured.step_time_s
    if question.append is not None:
        if measured is None:
            raise AtollError("append: nothing was measured; add --log or --trace")
        if measured.other_job:
            raise AtollError(f"append: {measured.other_job}")
        append_run(question.append, Path(measured.file).name, current, measured_columns(measured))
    stop = Stop(question.time_limit)
    best, why_not = _best_layout(question, current, stop)
    better = flagged = None
    if best and not why_not:
        better = _comparison(question, launch, current, best, step_s)
    freed = _best_with_free_flags(question, launch, layout_question, current, best, stop)
    if freed:
        freed_plan, flags = freed
        names = _changes(
            launch.software, replace(freed_plan.best, run=current.run), freed_plan.best
        )
        flagged = replace(
            _comparison(question, launch, current, freed_plan, step_s),
            flags=flags,
            flag_arguments=tuple(name.removeprefix("add ") for name in names),
        )
    return Checked(launch, layout_question, current, best, better, why_not, measured, flagged)


def _question(question: CheckQuestion, launch: Launch) -> EstimateQuestion:
    """Return the file's layout as a question; options of the command win over the file."""
    names = ["device", "devices", "batch", "sequence", "network", "stack", "headroom", "power_cap"]
    names += LengthQuestion.model_fields if question.tokens is not None else ()
    fields = question_fields(launch, {name: getattr(question, name) for name in names})
    check_replicas(launch, fields)
    return EstimateQuestion.of(**fields).model_copy(update={"model": launch.model.name})


def _plan(run: Run, stop: Stop) -> Plan:
    """Return the best plan of what the run's tool can run, chosen as `atoll plan` chooses it."""
    axes, usable = Axes(**run.tool.axes), refusals(run)
    if isinstance(run.gpu, TemplateChip):
        return plan(run, axes, usable=usable, stop=stop)
    return plan(run, axes, usable=usable, stop=stop, ties=TIES, risk="mean")


def _best_layout(question: CheckQuestion, current: Estimate, stop: Stop) -> tuple[Plan | None, str]:
    """Return the best plan under the same software, or why none is better."""
    try:
        best = _plan(current.run, stop)
    except (UnusableError, InfeasibleError) as error:
        return None, str(error)
    except StoppedError:
        return None, "no other layout was priced within the time limit; add --time-limit"
    faster = best.best.step.time_s < current.step.time_s * (1 - question.least)
    if current.fits and not faster:
        tight = best.fastest.step.time_s < current.step.time_s * (1 - question.least)
        words = "no layout with room in memory" if tight else "no layout"
        return best, f"{words} is more than {question.least:.1%} faster: {best.proof()}"
    return best, ""


def _best_with_free_flags(
    question: CheckQuestion,
    launch: Launch,
    layout_question: EstimateQuestion,
    current: Estimate,
    best: Plan | None,
    stop: Stop,
) -> tuple[Plan, str] | None:
    """Return the best plan with all overlaps and fused kernels of Megatron-Core, and the options
    that ask for them; None if the file has them already, or if they save nothing beyond the best
    layout without them.
    """
    if launch.software not in FREE_FLAG_SOFTWARE or compiles_itself(current.run.gpu):
        return None
    file_flags = (layout_question.flags or "").split()
    flags = " ".join(dict.fromkeys([*(w for w in file_flags if w not in SLOW_FLAGS), *FUSED_FLAGS]))
    overlaps = [w for w in (layout_question.overlap or "").split() if w != "no_grad_reduce"]
    overlap = " ".join(dict.fromkeys([*overlaps, *ALL_OVERLAPS]))
    freed_question = layout_question.model_copy(update={"overlap": overlap, "flags": flags})
    run = run_from_question(freed_question, launch.model, launch)
    if run.stack == current.run.stack:
        return None
    try:
        freed = _plan(run, stop)
    except (UnusableError, InfeasibleError, StoppedError):
        return None
    times_s = [e.step.time_s for e in (current, *([best.best] if best else [])) if e.fits]
    if freed.best.step.time_s >= min(times_s, default=inf) * (1 - question.least):
        return None
    return freed, f"--overlap {overlap.replace(' ', ',')} --flags {flags.replace(' ', ',')}"


def _comparison(
    question: CheckQuestion, launch: Launch, current: Estimate, best: Plan, step_s: float
) -> BetterLayout:
    """Return a better layout; its share of the predicted step is saved of a step of `step_s`."""
    run = current.run
    saved = 1 - best.best.step.time_s / current.step.time_s if current.fits else None
    run_length = current.whole_run
    steps = question.steps or (run_length.steps if run_length else launch.steps)
    hours = None
    if steps is not None and saved is not None:
        hours = steps * saved * step_s * run.devices / HOUR_S
    return BetterLayout(
        layout=str(best.best.layout),
        step_time_s=best.best.step.time_s,
        saved_percent=None if saved is None else 100 * saved,
        saved_hours=hours,
        saved_usd=None if hours is None or question.price is None else hours * question.price,
        launch_file=_difference(launch.software, current, best.best),
        proof=best.proof(),
        changes=_changes(launch.software, current, best.best),
    )


def _exported(target: str, estimate: Estimate) -> str:
    """Return the text of a layout's launch file, or why the target cannot run it."""
    try:
        return estimate.export(target).text
    except AtollError as error:
        return f"# {error}"


def _difference(target: str, current: Estimate, better: Estimate) -> str:
    """Return the lines that differ between the launch files of two layouts."""
    now, then = (_exported(target, estimate).splitlines() for estimate in (current, better))
    names = f"{target} launch file, as now", f"{target} launch file, better"
    return "\n".join(unified_diff(now, then, *names, n=0, lineterm=""))


def _changes(target: str, current: Estimate, better: Estimate) -> tuple[str, ...]:
    """Return how the arguments of one launch file become those of another."""
    texts = [_exported(target, estimate) for estimate in (current, better)]
    now, then = (dict(_ARGUMENTS.findall(_COMMENTS.sub("", text))) for text in texts)
    if not now:  # its writer refuses the layout
        now, then = asdict(current.layout), asdict(better.layout)
    changed = [name for name in {**now, **then} if now.get(name) != then.get(name)]
    changed.sort(key=_importance)
    return tuple(
        f"drop {name}" if name not in then
        else f"add {name} {then[name]}".strip() if name not in now
        else f"{name} {now[name]} -> {then[name]}"
        for name in changed
    )  # fmt: skip


def _importance(name: str) -> int:
    """Return the place of an argument among the changes."""
    ranks = (i for i, pattern in enumerate(_IMPORTANCE) if re.search(pattern, name))
    return next(ranks, len(_IMPORTANCE))
