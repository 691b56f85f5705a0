"""The best layout of a run, proven over the space that it states (`search.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from atoll.errors import AtollError, InfeasibleError
from atoll.notebook import answer_html
from atoll.step.certificate import is_optimal, most_better, percent_at_most, relative_gap
from atoll.training.estimate import Estimate
from atoll.training.run import Run
from atoll.training.search import Found, Space, Usable
from atoll.training.space import Axes, excluded
from atoll.units import format_bytes

RUNNERS_UP = 4
TOLERANCE = 0.0  # the search goes on until nothing can be faster
MOST_TRIED = 200  # layouts looked at for a sentence on why nothing fits
MOST_DOUBLINGS = 8  # of the devices, in search of a number that would do


class UnusableError(AtollError):
    """Layouts fit, but what they are asked for can use none of them."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was tried and what was ruled out, and how."""

    variants: int
    layouts: int
    too_large: int
    """Ruled out by the bound on memory."""
    too_slow: int
    """Ruled out by the bound on time."""
    refused: int
    """Not usable by the target of an export; others of that kind may be among the too slow."""
    estimated: int
    score: float
    """Samples a second of the plan."""
    bound: float
    """Samples a second that no layout of the space exceeds."""
    tolerance: float
    bounded_per_s: float
    """Layouts bounded per second of bounding."""
    excluded: tuple[str, ...]
    """Values of the axes that the space leaves out."""
    target: str = ""
    """The space is restricted to what this target of exports can run."""

    @property
    def gap(self) -> float:
        """How far the plan may be from the best of its space."""
        return relative_gap(self.score, self.bound)

    @property
    def proven(self) -> bool:
        return is_optimal(self.gap, self.tolerance)

    @property
    def status(self) -> str:
        return "optimal" if self.proven else "gap"

    def sentence(self) -> str:
        space = f"{self.layouts:,} layouts in {self.variants} variants"
        if self.target:
            space += f", of those that {self.target} can run"
        verdict = f"proven best of {space}"
        if not self.proven:
            more = percent_at_most(most_better(self.gap))
            verdict = f"best known of {space}; another may be up to {more} better"
        counts = [
            f"{self.too_large:,} cannot fit",
            f"{self.too_slow:,} cannot be faster",
            *([f"{self.refused:,} cannot be run by {self.target}"] if self.target else []),
            f"{self.estimated:,} estimated",
        ]
        proof = f"gap {self.gap:.2%}, tolerance {self.tolerance:.2%}"
        return f"{verdict}: {', '.join(counts)} ({proof})"

    def left_out(self) -> str:
        """What the proof does not speak about, on one line."""
        return f"not tried: {'; '.join(self.excluded)}" if self.excluded else ""

    def to_dict(self) -> dict[str, Any]:
        shown = {name: getattr(self, name) for name in self.__slots__}
        return {
            **shown,
            "excluded": list(self.excluded),
            "status": self.status,
            "gap": self.gap,
            "most_better": most_better(self.gap),
            "proven": self.proven,
        }


@dataclass(frozen=True)
class Plan:
    """The best layout with its runners-up and the proof."""

    run: Run
    axes: Axes
    best: Estimate
    runners_up: tuple[Estimate, ...]
    certificate: Certificate
    space: Space = field(repr=False, compare=False)

    @cached_property
    def reasons(self) -> list[dict[str, str]]:
        from atoll.training.explain import reasons

        return reasons(self)

    def _repr_html_(self) -> str:
        others = [
            (str(e.layout), f"{e.step.time_s / self.best.step.time_s - 1:+.2%}")
            for e in self.runners_up
        ]
        return answer_html(*self.best.summary(), self.certificate.sentence(), others)

    def __str__(self) -> str:
        proof = self.certificate
        return "\n".join(filter(None, (str(self.best), proof.sentence(), proof.left_out())))

    def to_dict(self) -> dict[str, Any]:
        from atoll.training.replay import replay_estimate

        return {
            **self.best.to_dict(),
            "runners_up": [
                {
                    "layout": str(e.layout),
                    "step_time_s": e.step.time_s,
                    "slower": e.step.time_s / self.best.step.time_s - 1,
                }
                for e in self.runners_up
            ],
            "reasons": self.reasons,
            "replay": replay_estimate(self.best).to_dict(),
            "certificate": self.certificate.to_dict(),
        }


def plan(
    run: Run,
    axes: Axes | None = None,
    *,
    runners_up: int = RUNNERS_UP,
    usable: Usable | None = None,
    target: str = "",
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """The fastest layout that fits, of those that `usable` says nothing against (which are those
    that the target of an export can run).
    """
    axes = axes or Axes()
    space = Space(run, axes, usable=usable, progress=progress)
    found = space.search(runners_up + 1)
    if not found.best:
        if found.refused:
            raise UnusableError(
                f"{found.refusal} (so it is with all {found.refused:,} layouts that may fit)"
            )
        raise _nothing_fits(space)
    return Plan(run, axes, found.best[0], found.best[1:], _certificate(space, found, target), space)


def _certificate(space: Space, found: Found, target: str) -> Certificate:
    run, step_s = space.run, found.best[0].step.time_s
    return Certificate(
        variants=len(space.blocks),
        layouts=len(space),
        too_large=found.too_large,
        too_slow=found.too_slow,
        refused=found.refused,
        estimated=found.estimated,
        score=run.global_batch / step_s,
        bound=run.global_batch / min(found.bound_s, step_s),
        tolerance=TOLERANCE,
        bounded_per_s=space.bounded_per_s,
        excluded=excluded(run, space.axes),
        target=target,
    )


def _nothing_fits(space: Space) -> InfeasibleError:
    """Which part is too much in the layout that needs least, by how much, and what would fit."""
    run = space.run
    candidates = np.argsort(space.needed, kind="stable")[:MOST_TRIED]
    nearest = min((space.estimate(int(at)) for at in candidates), key=lambda e: e.worst.needed)
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
    axes = Axes(microbatch=(1,), zero=(1, 3), recompute=("full",))
    most = run.network.levels[-1].devices
    for doubling in range(MOST_DOUBLINGS):
        if run.devices << doubling > most:
            return None
        larger = replace(run, devices=run.devices << doubling)
        try:
            space = Space(larger, axes)
        except AtollError:  # nothing divides
            continue
        for at in np.argsort(space.needed, kind="stable")[:MOST_TRIED]:
            if space.needed[at] > run.gpu.hbm_bytes:
                break
            estimate = space.estimate(int(at))
            if estimate.fits:
                return estimate
    return None
