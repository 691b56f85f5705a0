"""The best layout of a run, proven over the space that it states (`search.py`)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

from atoll.answers.answer import Pictured
from atoll.answers.plan import LaunchFile, PlanAnswer, PlanExplanation, Reason
from atoll.driver import Progress
from atoll.errors import AtollError, InfeasibleError
from atoll.notebook import answer_html
from atoll.step.certificate import Certificate
from atoll.stopping import Stop
from atoll.training.estimate import Estimate
from atoll.training.planner.pieces import Pieces
from atoll.training.planner.search import Found, Space, UnusableError, Usable
from atoll.training.planner.space import Axes, excluded
from atoll.training.run import Run
from atoll.units import counted, format_bytes

RUNNERS_UP = 4
TOLERANCE = 0.0  # the search goes on until nothing can be faster
TOO_LARGE, TOO_SLOW, REFUSED = "memory", "time", "target"  # what rules layouts out
MOST_DOUBLINGS = 8  # of the devices, in search of a number that would do


@dataclass(frozen=True)
class Plan(Pictured[PlanAnswer]):
    """The best layout with its runners-up and the proof.

    Example:
        >>> import atoll
        >>> plan = atoll.plan("gpt2-xl", "h100", 8, batch=64, tp=[1, 2], pp=[1])
        >>> plan.best.layout.tp, plan.certificate.proven
        (1, True)
    """

    run: Run
    axes: Axes
    best: Estimate
    runners_up: tuple[Estimate, ...]
    certificate: Certificate
    excluded: tuple[str, ...]
    """Values of the axes that the space leaves out."""
    target: str
    """The space is restricted to what this target of exports can run."""
    space: Space = field(repr=False, compare=False)
    unseen: int = 0
    """Layouts that may be faster, but were not estimated before the search had to end."""
    stopped: str = ""
    """Why it had to end before it was done, if it had."""

    def explain(self) -> PlanExplanation:
        """Why this layout: where its time goes, and what the others lack.

        Returns:
            The reasons as data; printed, they read as those of `atoll explain`.

        Example:
            >>> import atoll
            >>> plan = atoll.plan("gpt2-xl", "h100", 8, batch=64, tp=[1, 2], pp=[1])
            >>> print(plan.explain())  # doctest: +ELLIPSIS
            gpt2-xl on 8 h100: tp1 pp1 dp8 ...
        """
        return self.answer.explain()

    def export(self, target: str) -> LaunchFile:
        """The launch file of a training tool for the best layout.

        Args:
            target: megatron, torchtitan, deepspeed, nemo, or a plug-in's. `atoll.plan(...,
                export=target)` plans with layouts that it can run only.

        Returns:
            The file: `text`, `notes`, and `save` to write it.

        Raises:
            AtollError: The tool cannot run the layout, or is not known.

        Example:
            >>> import atoll
            >>> plan = atoll.plan("gpt2-xl", "h100", 8, batch=64, pp=[1], export="megatron")
            >>> plan.export("megatron").file
            'megatron.sh'
        """
        return self.best.export(target)

    def proof(self) -> str:
        """What is proven, and what was done with the layouts of the space.

        Returns:
            One sentence.

        Example:
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
        return f"{self.certificate.sentence()}; {', '.join(counts)}"

    def left_out(self) -> str:
        """What the proof does not speak about.

        Returns:
            One line; empty where all values of all axes were tried.

        Example:
            >>> import atoll
            >>> plan = atoll.plan("gpt2-xl", "h100", 8, batch=64, tp=[1, 2], pp=[1])
            >>> plan.left_out()  # doctest: +ELLIPSIS
            'not tried: ...'
        """
        return f"not tried: {'; '.join(self.excluded)}" if self.excluded else ""

    @property
    def reasons(self) -> tuple[Reason, ...]:
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
    def _explained(self) -> tuple[tuple[Reason, ...], str]:
        from atoll.training.planner.explain import reasons

        return reasons(self.space, self.best)

    def _repr_html_(self) -> str:
        others = [
            (str(e.layout), f"{e.step.time_s / self.best.step.time_s - 1:+.2%}")
            for e in self.runners_up
        ]
        return answer_html(*self.best.summary(), self.proof(), others)

    def __str__(self) -> str:
        return "\n".join(filter(None, (str(self.best), self.proof(), self.left_out())))


def plan(
    run: Run,
    axes: Axes | None = None,
    *,
    runners_up: int = RUNNERS_UP,
    usable: Usable | None = None,
    target: str = "",
    progress: Progress | None = None,
    pieces: Pieces | None = None,
    stop: Stop | None = None,
) -> Plan:
    """The fastest layout that fits, of those that `usable` says nothing against (which are those
    that the target of an export can run).
    """
    axes, stop = axes or Axes(), stop or Stop()
    space = Space(run, axes, usable=usable, progress=progress, pieces=pieces, stop=stop)
    found = space.search(runners_up + 1)
    if not found.best:
        if found.refused:
            raise UnusableError(
                f"{found.refusal} (so it is with all {found.refused:,} layouts that fit)"
            )
        raise _nothing_fits(space)
    return Plan(
        run,
        axes,
        found.best[0],
        found.best[1:],
        _certificate(space, found, target),
        excluded(run, axes),
        target,
        space,
        found.unseen,
        stop.reason if found.stopped else "",
    )


def _certificate(space: Space, found: Found, target: str) -> Certificate:
    batch, step_s = space.run.global_batch, found.best[0].step.time_s
    over = f"{counted(len(space), 'layout')}{f' that {target} can run' if target else ''}"
    return Certificate(
        score=batch / step_s,
        bound=batch / min(found.bound_s, step_s),
        tolerance=TOLERANCE,
        items=len(space),
        kind="layout",
        evaluated=found.estimated,
        ruled_out={
            TOO_LARGE: found.too_large,
            TOO_SLOW: found.too_slow,
            REFUSED: found.refused,
        },
        subject=over,
    )


def _nothing_fits(space: Space) -> InfeasibleError:
    """Which part is too much in the layout that needs least, by how much, and what would fit."""
    run = space.run
    nearest = space.smallest()
    parts = nearest.worst.parts()
    largest = max(parts, key=lambda name: parts[name])
    over = nearest.worst.needed - run.gpu.hbm_bytes
    fitting = _nearest_fit(run)
    if fitting is None:
        way_out = "use more devices, a smaller batch or a shorter sequence"
    elif fitting.run.devices == run.devices:
        way_out = f"{fitting.layout} does fit: allow its values"
    else:
        way_out = f"{fitting.run.devices} devices are enough, as {fitting.layout}"
    return InfeasibleError(
        f"{run.model.name} does not fit {run.devices} {run.gpu.name}: the layout that needs least "
        f"({nearest.layout}) takes {format_bytes(nearest.worst.needed)} of "
        f"{format_bytes(run.gpu.hbm_bytes)}, {format_bytes(over)} too much, most of it {largest} "
        f"({format_bytes(parts[largest])}); {way_out}"
    )


def _nearest_fit(run: Run) -> Estimate | None:
    """A layout that fits: of as many devices if any does, else of the next doubling that has one.

    Memory is least with microbatches of one sequence, everything divided and recomputed; only
    such layouts are looked at.
    """
    axes = Axes(microbatch=(1,), zero=(1, 3), hsdp=(1,), recompute=("full",))
    most = run.network.levels[-1].devices
    for doubling in range(MOST_DOUBLINGS):
        if run.devices << doubling > most:
            return None
        larger = replace(run, devices=run.devices << doubling)
        try:
            space = Space(larger, axes)
        except AtollError:  # nothing divides
            continue
        if (estimate := space.smallest()).fits:
            return estimate
    return None
