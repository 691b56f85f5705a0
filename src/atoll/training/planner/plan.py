"""The best layout of a run, with a proof over the searched space (`search.py`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING

from atoll.answers.answer import ExplainedResult
from atoll.answers.layout import (
    AxisReason,
    Exportable,
    LaunchFile,
    LayoutCandidate,
    UnrestrictedLayout,
    candidates_words,
)
from atoll.base.errors import AtollError, InfeasibleError, UnusableError
from atoll.base.notebook import answer_html, bar_text, summary_lines
from atoll.base.registry import import_named
from atoll.base.stopping import Stop, StoppedError
from atoll.base.units import counted, format_bytes, format_slower
from atoll.driver import Progress
from atoll.step.certificate import Certificate
from atoll.step.layout import Layout
from atoll.tools.launch_plan import make_plan
from atoll.tools.registry import ANY_LAYOUT, TOOLS
from atoll.tools.tool import UNRESTRICTED, Tool
from atoll.training.estimate import Estimate
from atoll.training.memory import stage_parameters
from atoll.training.planner.pieces import PlanPieces
from atoll.training.planner.search import FastestLayouts, LayoutRefusal, LayoutSpace
from atoll.training.planner.space import Axes, excluded
from atoll.training.planner.ties import at_risk_s, simplest, why_not
from atoll.training.run import Run
from atoll.training.uncertainty import error_fits, fastest_chances

if TYPE_CHECKING:
    import pandas as pd

    from atoll.answers.plan import PlanAnswer, PlanExplanation  # noqa: F401 (base class)


RUNNERS_UP = 4
TOLERANCE = 0.0  # the search continues until no layout can be faster
TOO_LARGE, TOO_SLOW, REFUSED = "memory", "time", "target"  # reasons to rule out layouts
LEAST_GAIN = 1e-3  # a runtime that gains less is not mentioned
MOST_CANDIDATES = 3  # most layouts to benchmark in addition to the best
SHOWN_CANDIDATES = 2  # of these in a summary
MOST_DOUBLINGS = 8  # device counts to try when nothing fits, each twice the previous one


@dataclass(frozen=True)
class Plan(Exportable, ExplainedResult["PlanAnswer", "PlanExplanation"]):
    """The best layout of a run with its runners-up and the proof.

    Examples:
        >>> import atoll
        >>> plan = atoll.plan("gpt2-xl", "h100", 8, batch=64, tp=[1, 2], pp=[1])
        >>> plan.best.layout.tp, plan.certificate.proven
        (1, True)
    """

    answer_builder = "atoll.training.planner.answer:plan_answer"
    run: Run
    axes: Axes
    best: Estimate
    """Recommended layout: the fastest, or the simplest of those that tie with it."""
    fastest: Estimate
    runners_up: tuple[Estimate, ...]
    certificate: Certificate
    excluded: tuple[str, ...]
    """Axis values that were not searched."""
    space: LayoutSpace = field(repr=False, compare=False)
    unseen: int = 0
    """Layouts not evaluated when the search stopped; one of them could be faster."""
    stopped: str = ""
    """Reason why the search stopped early; empty if it was completed."""
    ties: float = 0.0
    """Relative difference in step time below which a layout ties with the fastest."""
    tied: int = 1
    """Number of layouts that tie with the fastest, including it."""
    risk: str = "median"
    """What layouts are ranked by: median, mean or a quantile of the step time."""

    @property
    def tool(self) -> Tool:
        """Tool that runs the layouts."""
        return self.run.tool

    def to_dataframe(self) -> pd.DataFrame:
        """Return every estimated layout, fastest first.

        Returns:
            One row per layout: its step time, how much slower it is, and its axes.

        Examples:
            >>> import atoll
            >>> plan = atoll.plan("gpt2-xl", "h100", 8, batch=64, tp=[1, 5], pp=[1])
            >>> float(plan.to_dataframe()["slower"].iloc[0])
            0.0
        """
        import pandas as pd

        return pd.DataFrame(import_named("atoll.training.planner.answer:layout_rows")(self))

    def _launch_file(self, target: str) -> LaunchFile:
        return self.best.export(target)

    def choice(self) -> str:
        """Explain why the recommended layout is not the fastest.

        Returns:
            One sentence; empty if it is the fastest.

        Examples:
            >>> import atoll
            >>> plan = atoll.plan("gpt2-xl", "h100", 8, batch=64, tp=[1, 2], pp=[1], ties=0)
            >>> plan.choice()
            ''
        """
        if self.best.layout == self.fastest.layout:
            return ""
        faster = 1 - self.fastest.step.time_s / self.best.step.time_s
        why = why_not(self.fastest, self.best, self.ties)
        ranked_s = [at_risk_s(estimate, self.risk) for estimate in (self.best, self.fastest)]
        fastest = self.fastest.layout
        if self.risk != "median" and ranked_s[0] < ranked_s[1]:
            return (
                f"the fastest by the {self.risk} of its distribution; {fastest}, whose parts are "
                f"less certain, is estimated {faster:.2%} faster"
            )
        if faster > self.ties:
            return f"the fastest with room in memory; {fastest}, {faster:.2%} faster, {why}"
        return (
            f"the simplest of {self.tied:,} layouts within {100 * self.ties:.3g}% of the fastest, "
            f"{fastest}, which is {faster:.2%} faster and {why}"
        )

    @cached_property
    def fastest_chances(self) -> tuple[float, ...]:
        """Return the chance of the best layout and of each runner-up to be the fastest of them."""
        named = (self.best, *self.runners_up)
        return fastest_chances([e.step.time_s for e in named], [e.time_spread for e in named])

    @cached_property
    def alternatives(self) -> tuple[LayoutCandidate, ...]:
        """Return the few layouts that could be faster than the best when measured: their estimates
        differ by less than the usual model error between two layouts of one run.
        """
        return self._nearest(MOST_CANDIDATES)

    def _nearest(self, count: int) -> tuple[LayoutCandidate, ...]:
        """Return the fastest `count` layouts within the model error that run another program."""
        from atoll.training.planner.explain import faster_layouts

        best_s, error = self.best.step.time_s, error_fits().between_layouts.median
        timed = [(e.step.time_s, e.layout) for e in (self.fastest, *self.runners_up)]
        near = tuple(self._candidates(timed, error).values())[:count]
        # Others have to be faster than the slowest of these.
        limit_s = best_s * (1 + (near[-1].slower if len(near) == count else error))
        timed += faster_layouts(self.space, self.best.layout, limit_s)
        candidates = tuple(self._candidates(timed, error).values())[:count]
        has_room = self.space.estimator.has_room
        return tuple(replace(c, tight=not has_room(c.axes)) for c in candidates)

    def _candidates(
        self, timed: Sequence[tuple[float, Layout]], error: float
    ) -> dict[Layout, LayoutCandidate]:
        """Return layouts with other programs than the best, fastest first, by program."""
        candidates: dict[Layout, LayoutCandidate] = {}
        slowdowns = [(step_s / self.best.step.time_s - 1, layout) for step_s, layout in timed]
        for slower, layout in sorted(slowdowns, key=lambda pair: pair[0]):
            alike = replace(_program(layout), hsdp=1)  # hsdp is tuned afterwards
            if slower < error and alike != replace(_program(self.best.layout), hsdp=1):
                candidate = LayoutCandidate(layout=str(layout), axes=layout, slower=slower)
                candidates.setdefault(alike, candidate)
        return candidates

    def to_try(self) -> str:
        """Name the layouts to benchmark in addition to the best.

        Returns:
            One sentence; empty if no other layout is within the model error.

        Examples:
            >>> import atoll
            >>> plan = atoll.plan("gpt2-xl", "h100", 8, batch=64, tp=[1, 2], pp=[1])
            >>> plan.to_try()  # doctest: +ELLIPSIS
            '...; within the model error of ...: benchmark too'
        """
        return candidates_words(self.alternatives, error_fits().between_layouts.median)

    def proof(self) -> str:
        """State what is proven, and count the layouts by how they were ruled out.

        Returns:
            One sentence.

        Examples:
            >>> import atoll
            >>> plan = atoll.plan("gpt2-xl", "h100", 8, batch=64, tp=[1, 2], pp=[1])
            >>> plan.proof()  # doctest: +ELLIPSIS
            'proven ...'
        """
        of = "" if self.best.layout == self.fastest.layout else "the fastest is "
        tool = "" if self.tool.name == UNRESTRICTED else self.tool.name
        return of + proof_words(self.certificate, self.unseen, self.stopped, tool)

    def left_out(self) -> str:
        """State what the proof does not cover.

        Returns:
            One line; empty if all values of all axes were searched.

        Examples:
            >>> import atoll
            >>> plan = atoll.plan("gpt2-xl", "h100", 8, batch=64, tp=[1, 2], pp=[1])
            >>> plan.left_out()  # doctest: +ELLIPSIS
            'not searched: ...'
        """
        return f"not searched: {'; '.join(self.excluded)}" if self.excluded else ""

    @property
    def reasons(self) -> tuple[AxisReason, ...]:
        """Return, per axis, the slowdown of the best layout with another value."""
        return self._explained[0]

    @property
    def ended_early(self) -> bool:
        """Return whether a limit or Ctrl-C ended the search or the explanation early."""
        return bool(self.stopped or self.not_done)

    @property
    def not_done(self) -> dict[str, str]:
        """Return the parts that were not completed, each with the reason."""
        return {"reasons": why} if (why := self._explained[1]) else {}

    @cached_property
    def _explained(self) -> tuple[tuple[AxisReason, ...], str]:
        from atoll.training.planner.explain import reasons

        return reasons(self.space, self.best, self.ties)

    @cached_property
    def unrestricted(self) -> UnrestrictedLayout | None:
        """Return the fastest layout of a runtime that runs every layout, with what it saves; None
        if the tool runs one as fast, or if there was no time to look.
        """
        tool = self.tool
        if tool.name == UNRESTRICTED or self.stopped:
            return None
        axes_values = ((axis.name, getattr(self.axes, axis.name)) for axis in fields(self.axes))
        chosen = {name: values for name, values in axes_values if values != tool.axes.get(name)}
        faster_s = self.fastest.step.time_s * (1 - LEAST_GAIN)
        try:
            free, axes = replace(self.run, tool=ANY_LAYOUT), Axes(**chosen)
            pieces = PlanPieces(free, axes, self.space.estimator, faster_s)
            search = LayoutSpace(free, axes, pieces=pieces, stop=self.space.stop).search(1)
        except StoppedError:
            return None
        if search.stopped or not search.best or search.best[0].step.time_s >= faster_s:
            return None
        layout, step_s = search.best[0].layout, search.best[0].step.time_s
        return UnrestrictedLayout(
            layout=str(layout),
            axes=layout,
            step_time_s=step_s,
            saved=1 - step_s / self.fastest.step.time_s,
            through=_missing_abilities(tool, layout),
        )

    def summary(self) -> list[tuple[str, str]]:
        """Return the answer in short: the best layout, the proof, and layouts to benchmark too.

        Returns:
            Lines as (label, text), in the order in which every answer has them.

        Examples:
            >>> import atoll
            >>> plan = atoll.plan("gpt2-xl", "h100", 8, batch=64, tp=[1, 2], pp=[1])
            >>> [label for label, _ in plan.summary()]
            ['Run', 'Step', 'Memory', 'Confidence', 'Also try']
        """
        *lines, (label, accuracy) = self.best.summary()
        proof = self.certificate
        words = f"proven fastest of {proof.over}" if proof.proven else proof.sentence()
        if self.best.layout != self.fastest.layout:
            ratio = self.fastest.step.time_s / self.best.step.time_s
            why = why_not(self.fastest, self.best, self.ties)
            faster = format_slower(ratio - 1, 1)
            words = f"the fastest, {faster}, {why}; it is {words}"
        lines.append((label, f"{words}; {accuracy}"))
        near = self._nearest(SHOWN_CANDIDATES)
        words = candidates_words(near, error_fits().between_layouts.median)
        return [*lines, ("Also try", words)] if words else lines

    def _repr_html_(self) -> str:
        return answer_html(self.summary(), self.best.step.breakdown())

    def __str__(self) -> str:
        return "\n".join([*summary_lines(self.summary()), bar_text(self.best.step.breakdown())])


def proof_words(proof: Certificate, unseen: int, stopped: str, tool: str = "") -> str:
    """Return what is proven, with the layouts by how they were ruled out; `tool` refused some."""
    ruled_out, refused = proof.ruled_out, proof.ruled_out.get(REFUSED)
    counts = [
        f"{ruled_out[TOO_LARGE]:,} do not fit in memory",
        f"{ruled_out[TOO_SLOW]:,} are provably slower",
        f"{refused:,} cannot be run by {tool}" if tool and refused else "",
        f"{unseen:,} were not evaluated ({stopped})" if stopped else "",
        f"{proof.evaluated:,} were estimated in full",
    ]
    return f"{proof.sentence()}; {', '.join(filter(None, counts))}"


def _missing_abilities(tool: Tool, layout: Layout) -> str:
    """Return what a layout needs that the tool does not have, in words."""
    policy = "per operator" if layout.recompute == "optimal" else layout.recompute
    order = f"the pipeline order {layout.schedule}"
    words = {"recompute": f"recomputation {policy}", "schedule": order}
    missing = [
        words.get(axis, f"{axis} {getattr(layout, axis)}")
        for axis, values in tool.axes.items()
        if axis != "sp" and getattr(layout, axis) not in values
    ]
    if layout.pp == 1 or layout.schedule == "interleaved":  # which is 1f1b with several chunks
        missing = [part for part in missing if part != order]
    return ", ".join(missing) or f"a combination that {tool.title} does not run"


def _program(layout: Layout) -> Layout:
    """Return the layout without a ZeRO stage that divides nothing: the program is the same."""
    return replace(layout, zero=0) if layout.dp * layout.cp == 1 else layout


def plan(
    run: Run,
    axes: Axes | None = None,
    *,
    runners_up: int = RUNNERS_UP,
    usable: LayoutRefusal | None = None,
    progress: Progress | None = None,
    pieces: PlanPieces | None = None,
    stop: Stop | None = None,
    ties: float = 0.0,
    risk: str = "median",
) -> Plan:
    """Return a plan with the fastest layout that fits, or the simplest one within the relative
    difference `ties` of it, ranked by `risk`. `usable` returns why the run's tool cannot run one.
    """
    axes, stop = axes or Axes(), stop or Stop()
    space = LayoutSpace(run, axes, refusal_of=usable, progress=progress, pieces=pieces, stop=stop)
    try:
        fastest_layouts = space.search(runners_up + 1)
    except UnusableError as error:
        raise UnusableError(f"{error}; --tool none plans without a tool") from None
    if not fastest_layouts.best:
        if fastest_layouts.refused:
            refused = f"the {counted(fastest_layouts.refused, 'layout')} that fit"
            raise UnusableError(
                f"{fastest_layouts.refusal}; the tool runs none of {refused}: choose another "
                "--tool, or --tool none to plan without one"
            )
        raise _nothing_fits(space)
    fastest = fastest_layouts.best[0]
    best, tied = simplest(space, fastest, ties, risk)
    programs = {_program(best.layout): best}
    for runner_up in fastest_layouts.best:
        programs.setdefault(_program(runner_up.layout), runner_up)
    layouts = best, fastest, tuple(programs.values())[1 : runners_up + 1]
    proof, left_out = _certificate(space, fastest_layouts), excluded(run, axes)
    unseen = fastest_layouts.not_evaluated
    stopped = space.stop.reason if fastest_layouts.stopped else ""
    return Plan(run, axes, *layouts, proof, left_out, space, unseen, stopped, ties, tied, risk)


def _certificate(space: LayoutSpace, fastest_layouts: FastestLayouts) -> Certificate:
    batch, step_s = space.run.global_batch, fastest_layouts.best[0].step.time_s
    tool = space.run.tool
    over = counted(len(space), "layout")
    if tool.name != UNRESTRICTED:
        over += f" that {tool.name} can run"
    return Certificate(
        score=batch / step_s,
        bound=batch / min(fastest_layouts.bound_s, step_s),
        tolerance=TOLERANCE,
        items=len(space),
        kind="layout",
        evaluated=fastest_layouts.estimated,
        ruled_out={
            TOO_LARGE: fastest_layouts.too_large,
            TOO_SLOW: fastest_layouts.too_slow,
            REFUSED: fastest_layouts.refused,
        },
        subject=over,
        doubt="not all arguments are priced" if space.run.not_priced else "",
    )


def _nothing_fits(space: LayoutSpace) -> InfeasibleError:
    """Return an error with the largest part of the smallest layout, and a change that fits."""
    run = space.run
    nearest = space.smallest()
    parts = nearest.worst.parts()
    largest = max(parts, key=lambda name: parts[name])
    over = nearest.worst.needed - run.capacity_bytes
    least_devices = _least_devices(space)
    fitting = _nearest_fit(run, least_devices)
    if fitting is None and least_devices > run.devices:
        advice = f"use at least {least_devices:,} devices, over which its states alone would fit"
    elif fitting is None:
        advice = "use more devices, a smaller batch or a shorter sequence"
    elif fitting.run.devices == run.devices:
        others = [tool.name for tool in TOOLS.values() if _runs(tool, fitting)]
        limited = run.tool.name != UNRESTRICTED and not _runs(run.tool, fitting)
        way = f"add --tool {others[0]}" if limited and others else "allow its values"
        advice = f"{fitting.layout} does fit: {way}"
    else:
        advice = f"{fitting.run.devices} devices are enough, as {fitting.layout}"
    with_tool = "" if run.tool.name == UNRESTRICTED else f" with {run.tool.name}"
    return InfeasibleError(
        f"{run.model.name} does not fit {run.devices} {run.gpu.name}{with_tool}: the layout that "
        f"needs least ({nearest.layout}) takes {format_bytes(nearest.worst.needed)} of "
        f"{format_bytes(run.capacity_bytes)}, {format_bytes(over)} too much, most of it {largest} "
        f"({format_bytes(parts[largest])}); {advice}"
    )


def _runs(tool: Tool, estimate: Estimate) -> bool:
    """Return whether a tool that writes launch files has a run's method and layout."""
    run, layout = estimate.run, estimate.layout
    method = run.question.method if run.question else "pretrain"
    if tool.write is None or method not in tool.methods:
        return False
    launched = make_plan(run.model, layout, run.sequence, run.global_batch, precision=run.precision)
    return not any(tool.inabilities(launched))


def _least_devices(space: LayoutSpace) -> int:
    """Return how many devices hold the weights and optimizer states, divided over all of them."""
    run, layout = space.run, Layout()
    costs = space.estimator.costs(layout)
    layers = [(cost, cost.repeat) for cost in costs]
    trained, stored = stage_parameters(run, layers, space.estimator.shared(layout, costs))
    states_bytes = run.states.weight * sum(stored) + run.states.optimizer * sum(trained)
    return math.ceil(states_bytes / run.capacity_bytes)


def _nearest_fit(run: Run, least_devices: int) -> Estimate | None:
    """Return a layout that fits, on the same number of devices or the first doubling that has one;
    device counts below `least_devices` are skipped. Only layouts with the least memory are tried:
    microbatches of one sequence, ZeRO and full recomputation.
    """
    axes = Axes(microbatch=(1,), zero=(1, 3), hsdp=(1,), recompute=("full",))
    most = run.network.levels[-1].devices
    for doubling in range(MOST_DOUBLINGS):
        devices = run.devices << doubling
        if devices > most:
            return None
        if devices < least_devices:
            continue
        larger = replace(run, devices=devices)
        try:
            space = LayoutSpace(larger, axes)
        except AtollError:  # nothing divides
            continue
        if (estimate := space.smallest()).fits:
            return estimate
    return None
