"""A launch file judged: does it fit, how long is a step, and which layout would be better."""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import unified_diff
from functools import cached_property
from math import inf
from pathlib import Path

from atoll.answers.answer import Answered, made_of
from atoll.answers.validation import Arguments, Better, CheckAnswer, MeasuredRun
from atoll.errors import AtollError, InfeasibleError
from atoll.export import EXPORTERS, refusals
from atoll.launch.account import Launch
from atoll.launch.ask import check_replicas, fields_of, launched
from atoll.launch.measured import columns_of, measured_run
from atoll.questions import EstimateQuestion
from atoll.questions.devices import LengthQuestion
from atoll.questions.verbs import CheckQuestion
from atoll.stopping import Stop, StoppedError
from atoll.training.estimate import Estimate, estimate
from atoll.training.planner.plan import Plan, plan
from atoll.training.planner.search import UnusableError
from atoll.training.planner.space import Axes
from atoll.training.request import compiles_itself, layout_of, run_of
from atoll.validation.written_row import append_run

HOUR_S = 3600.0
FREED = ("megatron", "nemo")
HIDING = ("tp_comm", "grad_reduce", "param_gather", "p2p")
FUSED = ("te_loss",)
SLOWING = ("no_grad_fusion", "local")
"""Flags of Megatron-Core that a faster file would not say."""


@dataclass(frozen=True)
class Checked(Answered[CheckAnswer]):
    """What is said of a launch file: the estimate of its layout, and the plan of a better one.

    Examples:
        >>> import atoll
        >>> checked = atoll.check("pretrain.sh", device="h100")
        >>> checked.estimate.fits, checked.plan.export("megatron").save("better.sh").name
        (True, 'better.sh')
    """

    launch: Launch
    question: EstimateQuestion
    estimate: Estimate
    """Of the file's own layout."""
    plan: Plan | None
    """The proven best of the same job under the same software; None where there is none."""
    better: Better | None
    """None where no layout of the space is faster, or none fits."""
    why_not: str = ""
    measured: MeasuredRun | None = None
    with_other_flags: Better | None = None
    """The same where flags of the software may change, if that is faster still."""

    @property
    def _elsewhere(self) -> tuple[str, ...]:
        """Where the file's tool does not run: what was priced instead."""
        gpu, launch = self.estimate.run.gpu, self.launch
        if self.question.stack or not compiles_itself(gpu):
            return ()
        name = self.estimate.run.stack.name
        said = (
            f"{gpu.name} does not run {launch.software}: the file's layout as a program of {name}"
        )
        return (said,)

    @cached_property
    def answer(self) -> CheckAnswer:
        launch = self.launch
        return CheckAnswer(
            file=launch.file,
            software=launch.software,
            question=self.question.to_dict(),
            estimate=self.estimate.answer,
            arguments=made_of(Arguments, launch.arguments),
            better=self.better,
            notes=(*launch.notes, *self._elsewhere, *([self.why_not] if self.why_not else [])),
            measured=self.measured,
            with_other_flags=self.with_other_flags,
        )


def check(asked: CheckQuestion) -> Checked:
    """Read a launch file, price what it says, and look for a better layout."""
    launch = launched(asked.file, asked.asked())
    unknown = launch.arguments.not_understood
    if asked.strict and unknown:
        raise AtollError(f"{asked.file}: not understood: {', '.join(unknown)}")
    question = _question(asked, launch)
    run = run_of(question, launch.model)
    found = estimate(run, layout_of(run, question))
    measured, other_batch = measured_run(found, asked.log, asked.trace)
    if asked.append is not None:
        if measured is None:
            raise AtollError("append: nothing was measured; add --log or --trace")
        if other_batch:
            raise AtollError(f"append: {other_batch}")
        append_run(asked.append, Path(measured.file).name, found, columns_of(measured))
    if other_batch:
        launch = replace(launch, notes=(*launch.notes, other_batch))
    stop = Stop(asked.time_limit)
    better = _better(asked, launch, found, stop)
    freed = _freed(asked, launch, question, found, better[0], stop)
    return Checked(launch, question, found, *better, measured, freed)


def _question(asked: CheckQuestion, launch: Launch) -> EstimateQuestion:
    """The layout as a question; the command's own words win over the file's."""
    own = (
        *("device", "devices", "batch", "sequence", "network", "stack", "headroom", "power_cap"),
        *(LengthQuestion.model_fields if asked.tokens is not None else ()),
    )
    said = fields_of(launch, {name: getattr(asked, name) for name in own})
    check_replicas(launch, said)
    return EstimateQuestion.of(**said).model_copy(update={"model": launch.model.name})


def _better(
    asked: CheckQuestion, launch: Launch, found: Estimate, stop: Stop
) -> tuple[Plan | None, Better | None, str]:
    """The best layout under the same software, what it saves, or why it is not named."""
    target, run = launch.software, found.run
    axes, usable = Axes(**EXPORTERS[target].values), refusals(target, run)
    try:
        best = plan(run, axes, usable=usable, target=target, stop=stop)
    except (UnusableError, InfeasibleError) as error:
        return None, None, str(error)
    except StoppedError:
        return None, None, "no other layout was priced within the time limit; add --time-limit"
    faster = best.best.step.time_s < found.step.time_s * (1 - asked.least)
    if found.fits and not faster:
        return best, None, f"no layout is more than {asked.least:.1%} faster: {best.proof()}"
    return best, _compared(asked, launch, found, best), ""


def _freed(
    asked: CheckQuestion,
    launch: Launch,
    question: EstimateQuestion,
    found: Estimate,
    best: Plan | None,
    stop: Stop,
) -> Better | None:
    """The best layout where everything may overlap that Megatron-Core can overlap, with its fused
    kernels: None where the file says so already, or where it saves no more than its own best.
    """
    if launch.software not in FREED or compiles_itself(found.run.gpu):
        return None
    said = (question.flags or "").split()
    flags = " ".join(dict.fromkeys([*(w for w in said if w not in SLOWING), *FUSED]))
    listed = [word for word in (question.overlap or "").split() if word != "no_grad_reduce"]
    overlap = " ".join(dict.fromkeys([*listed, *HIDING]))
    other = question.model_copy(update={"overlap": overlap, "flags": flags})
    run = run_of(other, launch.model)
    if run.stack == found.run.stack:
        return None
    axes, usable = Axes(**EXPORTERS[launch.software].values), refusals(launch.software, run)
    try:
        freed = plan(run, axes, usable=usable, target=launch.software, stop=stop)
    except (UnusableError, InfeasibleError, StoppedError):
        return None
    known_s = [e.step.time_s for e in (found, *([best.best] if best else [])) if e.fits]
    if freed.best.step.time_s >= min(known_s, default=inf) * (1 - asked.least):
        return None
    told = _compared(asked, launch, found, freed)
    return replace(told, flags=f"overlap {overlap}; flags {flags}")


def _compared(asked: CheckQuestion, launch: Launch, found: Estimate, best: Plan) -> Better:
    run = found.run
    saved_s = found.step.time_s - best.best.step.time_s if found.fits else None
    whole = found.whole_run
    steps = asked.steps or (whole.steps if whole else launch.steps)
    hours = None
    if steps is not None and saved_s is not None:
        hours = steps * saved_s * run.devices / HOUR_S
    return Better(
        layout=str(best.best.layout),
        step_time_s=best.best.step.time_s,
        saved_percent=None if saved_s is None else 100 * saved_s / found.step.time_s,
        saved_hours=hours,
        saved_usd=None if hours is None or asked.price is None else hours * asked.price,
        launch_file=_difference(launch.software, found, best.best),
        proof=best.proof(),
    )


def _difference(target: str, mine: Estimate, other: Estimate) -> str:
    """Lines that change between the launch files of two layouts."""
    texts = []
    for found in (mine, other):
        try:
            texts.append(found.export(target).text.splitlines())
        except AtollError as error:
            texts.append([f"# {error}"])
    name = f"{target} launch file"
    now, then = texts
    names = f"{name}, as now", f"{name}, better"
    return "\n".join(unified_diff(now, then, *names, n=0, lineterm=""))
