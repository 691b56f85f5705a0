"""The best layout of a run, proven over the space that it states (`search.py`)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from atoll.answers.answer import DrawableResult, build_answer
from atoll.answers.layout import (
    AxisReason,
    Exportable,
    LaunchFile,
    LayoutCandidate,
    candidates_words,
)
from atoll.base.errors import AtollError, InfeasibleError
from atoll.base.notebook import answer_html
from atoll.base.registry import import_named
from atoll.base.stopping import Stop
from atoll.base.units import counted, format_bytes
from atoll.driver import Progress
from atoll.step.certificate import Certificate
from atoll.step.layout import Layout
from atoll.training.estimate import Estimate
from atoll.training.memory import stage_parameters
from atoll.training.planner.pieces import PlanPieces
from atoll.training.planner.search import FastestLayouts, LayoutRefusal, LayoutSpace, UnusableError
from atoll.training.planner.space import Axes, excluded
from atoll.training.run import Run

if TYPE_CHECKING:
    import pandas as pd

    from atoll.answers.plan import PlanAnswer, PlanExplanation

RUNNERS_UP = 4
TOLERANCE = 0.0  # the search goes on until nothing can be faster
TOO_LARGE, TOO_SLOW, REFUSED = "memory", "time", "target"  # what rules layouts out
MOST_CANDIDATES = 3  # layouts that must be tried beside the best
MOST_DOUBLINGS = 8  # of the devices, in search of a number that would do


@dataclass(frozen=True)
class Plan(Exportable, DrawableResult["PlanAnswer"]):
    """The best layout with its runners-up and the proof.

    Examples:
        >>> import atoll
        >>> plan = atoll.plan("gpt2-xl", "h100", 8, batch=64, tp=[1, 2], pp=[1])
        >>> plan.best.layout.tp, plan.certificate.proven
        (1, True)
    """

    run: Run
    axes: Axes
    best: Estimate
    """The layout that is named: the fastest, or the simplest of those that take as long."""
    fastest: Estimate
    runners_up: tuple[Estimate, ...]
    certificate: Certificate
    excluded: tuple[str, ...]
    """Values of the axes that the space leaves out."""
    target: str
    """The space is restricted to what this target of exports can run."""
    space: LayoutSpace = field(repr=False, compare=False)
    unseen: int = 0
    """Layouts that may be faster, but were not estimated before the search had to end."""
    stopped: str = ""
    """Why it had to end before it was done, if it had."""
    ties: float = 0.0
    """Of the fastest step: layouts that take so much longer count as equal to it."""
    tied: int = 1
    """How many these are."""

    def explain(self) -> PlanExplanation:
        """Why this layout: where its time goes, and what the others lack.

        Returns:
            The reasons as data; printed, they read as those of `atoll explain`.

        Examples:
            >>> import atoll
            >>> plan = atoll.plan("gpt2-xl", "h100", 8, batch=64, tp=[1, 2], pp=[1])
            >>> print(plan.explain())  # doctest: +ELLIPSIS
            gpt2-xl on 8 h100: tp1 pp1 dp8 ...
        """
        return self.answer.explain()

    def to_dataframe(self) -> pd.DataFrame:
        """Every layout that was estimated, the fastest first.

        Returns:
            One row per layout: its step, how much slower it is, its axes.

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
        """Why a layout is named that is not the fastest.

        Returns:
            One sentence; empty where it is the fastest.

        Examples:
            >>> import atoll
            >>> plan = atoll.plan("gpt2-xl", "h100", 8, batch=64, tp=[1, 2], pp=[1], ties=0)
            >>> plan.choice()
            ''
        """
        if self.best.layout == self.fastest.layout:
            return ""
        faster = 1 - self.fastest.step.time_s / self.best.step.time_s
        tight = ", which is tight in memory" if self.fastest.tight and not self.best.tight else ""
        return (
            f"the simplest of {self.tied:,} layouts within {100 * self.ties:.3g}% of the fastest, "
            f"{self.fastest.layout} ({faster:.2%} faster){tight}"
        )

    @cached_property
    def alternatives(self) -> tuple[LayoutCandidate, ...]:
        """The few layouts that may be faster than the best in truth: they are behind it by less
        than two layouts of one run usually differ from their estimates.
        """
        mine = self.best.step.time_s
        others = [(e.step.time_s / mine - 1, e.layout) for e in (self.fastest, *self.runners_up)]
        others += [(r.slower, r.axes) for r in self.reasons if r.slower is not None]
        near: dict[Layout, LayoutCandidate] = {}
        for slower, layout in sorted(others, key=lambda pair: pair[0]):
            alike = replace(layout, hsdp=1)  # replicas of what is sharded are tuned afterwards
            if alike != replace(self.best.layout, hsdp=1) and slower < self.best.accuracy.between:
                near.setdefault(
                    alike, LayoutCandidate(layout=str(layout), axes=layout, slower=slower)
                )
        return tuple(near.values())[:MOST_CANDIDATES]

    def to_try(self) -> str:
        """Which layouts a measurement should decide between.

        Returns:
            One sentence; empty where no other layout is near.

        Examples:
            >>> import atoll
            >>> plan = atoll.plan("gpt2-xl", "h100", 8, batch=64, tp=[1, 2], pp=[1])
            >>> plan.to_try()  # doctest: +ELLIPSIS
            'to be tried beside it: ...'
        """
        return candidates_words(self.alternatives, self.best.accuracy.between)

    def proof(self) -> str:
        """What is proven, and what was done with the layouts of the space.

        Returns:
            One sentence.

        Examples:
            >>> import atoll
            >>> plan = atoll.plan("gpt2-xl", "h100", 8, batch=64, tp=[1, 2], pp=[1])
            >>> plan.proof()  # doctest: +ELLIPSIS
            'proven ...'
        """
        ruled_out = self.certificate.ruled_out
        counts = [
            f"{ruled_out[TOO_LARGE]:,} cannot fit",
            f"{ruled_out[TOO_SLOW]:,} cannot be faster",
            *([f"{ruled_out[REFUSED]:,} cannot be run by {self.target}"] if self.target else []),
            *([f"{self.unseen:,} not looked at ({self.stopped})"] if self.stopped else []),
            f"{self.certificate.evaluated:,} written out",
        ]
        of = "" if self.best.layout == self.fastest.layout else "the fastest is "
        return f"{of}{self.certificate.sentence()}; {', '.join(counts)}"

    def left_out(self) -> str:
        """What the proof does not speak about.

        Returns:
            One line; empty where all values of all axes were tried.

        Examples:
            >>> import atoll
            >>> plan = atoll.plan("gpt2-xl", "h100", 8, batch=64, tp=[1, 2], pp=[1])
            >>> plan.left_out()  # doctest: +ELLIPSIS
            'not tried: ...'
        """
        return f"not tried: {'; '.join(self.excluded)}" if self.excluded else ""

    @property
    def reasons(self) -> tuple[AxisReason, ...]:
        """By axis, what the best layout with another value would cost."""
        return self._explained[0]

    @property
    def ended_early(self) -> bool:
        """Whether a limit or Ctrl-C came before the end."""
        return bool(self.stopped or self.not_done)

    @property
    def not_done(self) -> dict[str, str]:
        """What there was no time for, and why."""
        return {"reasons": why} if (why := self._explained[1]) else {}

    @cached_property
    def _explained(self) -> tuple[tuple[AxisReason, ...], str]:
        from atoll.training.planner.explain import reasons

        return reasons(self.space, self.best)

    def _repr_html_(self) -> str:
        others = [
            (str(e.layout), f"{e.step.time_s / self.best.step.time_s - 1:+.2%}")
            for e in self.runners_up
        ]
        return answer_html(*self.best.summary(), self.proof(), others)

    def __str__(self) -> str:
        words = str(self.best), self.choice(), self.proof(), self.left_out()
        return "\n".join(filter(None, words))


@build_answer.register(Plan)
def _answer(plan: Plan) -> PlanAnswer:
    """Made, and its types imported, when it is asked for."""
    answer: PlanAnswer = import_named("atoll.training.planner.answer:plan_answer")(plan)
    return answer


def plan(
    run: Run,
    axes: Axes | None = None,
    *,
    runners_up: int = RUNNERS_UP,
    usable: LayoutRefusal | None = None,
    target: str = "",
    progress: Progress | None = None,
    pieces: PlanPieces | None = None,
    stop: Stop | None = None,
    ties: float = 0.0,
    last: Callable[[Plan], Plan] = lambda found: found,
) -> Plan:
    """The fastest layout that fits, of those that `usable` says nothing against (which are those
    that the target of an export can run), or the simplest that takes at most so much longer; as the
    `last` step leaves it, with all that searches in the space.
    """
    axes, stop = axes or Axes(), stop or Stop()
    space = LayoutSpace(run, axes, refusal_of=usable, progress=progress, pieces=pieces, stop=stop)
    try:
        return last(_planned(space, runners_up, target, ties))
    finally:
        space.close()


def _planned(space: LayoutSpace, runners_up: int, target: str, ties: float) -> Plan:
    from atoll.training.planner.ties import simplest

    run, axes = space.run, space.axes
    fastest_layouts = space.search(runners_up + 1)
    if not fastest_layouts.best:
        if fastest_layouts.refused:
            refused = f"all {fastest_layouts.refused:,} layouts that fit"
            raise UnusableError(f"{fastest_layouts.refusal} (so it is with {refused})")
        raise _nothing_fits(space)
    fastest = fastest_layouts.best[0]
    best, tied = simplest(space, fastest, ties) if ties else (fastest, 1)
    others = tuple(
        runner_up for runner_up in fastest_layouts.best if runner_up.layout != best.layout
    )
    return Plan(
        run,
        axes,
        best,
        fastest,
        others[:runners_up],
        _certificate(space, fastest_layouts, target),
        excluded(run, axes),
        target,
        space,
        fastest_layouts.not_evaluated,
        space.stop.reason if fastest_layouts.stopped else "",
        ties,
        tied,
    )


def _certificate(space: LayoutSpace, fastest_layouts: FastestLayouts, target: str) -> Certificate:
    batch, step_s = space.run.global_batch, fastest_layouts.best[0].step.time_s
    over = f"{counted(len(space), 'layout')}{f' that {target} can run' if target else ''}"
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
    )


def _nothing_fits(space: LayoutSpace) -> InfeasibleError:
    """Which part is too much in the layout that needs least, by how much, and what would fit."""
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
        advice = f"{fitting.layout} does fit: allow its values"
    else:
        advice = f"{fitting.run.devices} devices are enough, as {fitting.layout}"
    return InfeasibleError(
        f"{run.model.name} does not fit {run.devices} {run.gpu.name}: the layout that needs least "
        f"({nearest.layout}) takes {format_bytes(nearest.worst.needed)} of "
        f"{format_bytes(run.capacity_bytes)}, {format_bytes(over)} too much, most of it {largest} "
        f"({format_bytes(parts[largest])}); {advice}"
    )


def _least_devices(space: LayoutSpace) -> int:
    """Return how many devices hold the weights and optimizer states, divided over all of them."""
    run, layout = space.run, Layout()
    costs = space.estimator.costs(layout)
    layers = [(cost, cost.repeat) for cost in costs]
    trained, stored = stage_parameters(run, layers, space.estimator.shared(layout, costs))
    states_bytes = run.states.weight * sum(stored) + run.states.optimizer * sum(trained)
    return math.ceil(states_bytes / run.capacity_bytes)


def _nearest_fit(run: Run, least_devices: int) -> Estimate | None:
    """Return a layout that fits: of as many devices if any does, else of the next doubling that has
    one. Fewer than the `least_devices` need no look.

    Memory is least with microbatches of one sequence, everything divided and recomputed; only
    such layouts are looked at.
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
