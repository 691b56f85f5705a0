"""The best layout of a run, proven over the space that it states.

Branch and bound: every layout of every variant is bounded at once (arrays); those that cannot fit
or cannot beat what is known are never estimated; the others are, in the order of their bounds,
until the next bound is no better than the last of the plans to return.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from atoll.errors import AtollError, InfeasibleError
from atoll.notebook import answer_html
from atoll.training.bounds import (
    Figures,
    Floats,
    Table,
    figures,
    memory_bounds_bytes,
    time_bounds_s,
)
from atoll.training.estimate import Estimate, Estimator
from atoll.training.run import Run
from atoll.training.space import Axes, Block, block_of, variants
from atoll.units import format_bytes

RUNNERS_UP = 4
MOST_TRIED = 200  # layouts looked at for a sentence on why nothing fits
MOST_DOUBLINGS = 8  # of the devices, in search of a number that would do


@dataclass(frozen=True, slots=True)
class Certificate:
    """What was tried and what was ruled out, and how."""

    variants: int
    layouts: int
    too_large: int
    """Ruled out by the bound on memory."""
    too_slow: int
    """Ruled out by the bound on time."""
    estimated: int
    proven: bool
    bound_s: float
    """No layout of the space is faster than this, or than the plan itself if that is less."""
    bounded_per_s: float
    """Layouts bounded per second of bounding."""

    def sentence(self) -> str:
        return (
            f"proven best of {self.layouts:,} layouts in {self.variants} variants: "
            f"{self.too_large:,} cannot fit, {self.too_slow:,} cannot be faster, "
            f"{self.estimated:,} estimated"
        )

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True)
class Plan:
    """The best layout with its runners-up and the proof."""

    run: Run
    axes: Axes
    best: Estimate
    runners_up: tuple[Estimate, ...]
    certificate: Certificate

    def _repr_html_(self) -> str:
        others = [
            (str(e.layout), f"{e.step.time_s / self.best.step.time_s - 1:+.2%}")
            for e in self.runners_up
        ]
        return answer_html(*self.best.summary(), self.certificate.sentence(), others)

    def __str__(self) -> str:
        return f"{self.best}\n{self.certificate.sentence()}"

    def to_dict(self) -> dict[str, Any]:
        from atoll.training.explain import reasons
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
            "reasons": reasons(self),
            "replay": replay_estimate(self.best).to_dict(),
            "certificate": self.certificate.to_dict(),
        }


def plan(
    run: Run,
    axes: Axes | None = None,
    *,
    runners_up: int = RUNNERS_UP,
    progress: Callable[[str], None] | None = None,
) -> Plan:
    """The fastest layout that fits."""
    axes = axes or Axes()
    estimator = Estimator(run)
    blocks, table = _bounded(run, axes, estimator, progress)
    if table is None:
        raise _no_layout(run)
    return _search(run, axes, estimator, blocks, table, runners_up)


def _bounded(
    run: Run,
    axes: Axes,
    estimator: Estimator,
    progress: Callable[[str], None] | None = None,
) -> tuple[list[Block], Table | None]:
    """All layouts of the space, with what their bounds need; no table where there are none."""
    blocks: list[Block] = []
    known: list[Figures] = []
    for variant in variants(run, axes):
        block = block_of(run, axes, variant)
        if not len(block):
            continue
        if progress is not None:
            progress(f"pricing {variant}")
        blocks.append(block)
        known.append(figures(run, block, estimator.costs(variant.layout())))
    return blocks, Table(blocks, known) if blocks else None


def _search(
    run: Run,
    axes: Axes,
    estimator: Estimator,
    blocks: list[Block],
    table: Table,
    runners_up: int,
) -> Plan:
    begin = time.perf_counter()
    time_s = time_bounds_s(run, table)
    needed = memory_bounds_bytes(run, table)
    possible = np.flatnonzero(needed <= run.gpu.hbm_bytes)
    order = possible[np.lexsort((possible, time_s[possible]))]
    bounding_s = time.perf_counter() - begin
    found: list[Estimate] = []
    estimated = 0
    bound_s = float("inf")
    for at in order:
        if len(found) > runners_up and time_s[at] >= found[-1].step.time_s:
            bound_s = float(time_s[at])
            break
        estimate = estimator.estimate(blocks[table.owner[at]].layout(int(table.inside[at])))
        estimated += 1
        if estimate.fits:
            found.append(estimate)
            found.sort(key=lambda e: (e.step.time_s, str(e.layout)))
            del found[runners_up + 1 :]
    if not found:
        raise _nothing_fits(run, estimator, blocks, table, needed)
    certificate = Certificate(
        variants=len(blocks),
        layouts=len(table),
        too_large=len(table) - int(possible.size),
        too_slow=int(possible.size) - estimated,
        estimated=estimated,
        proven=True,
        bound_s=min(bound_s, found[0].step.time_s),
        bounded_per_s=len(table) / max(bounding_s, 1e-9),
    )
    return Plan(run, axes, found[0], tuple(found[1:]), certificate)


def _no_layout(run: Run) -> AtollError:
    return AtollError(
        f"{run.model.name} on {run.devices} devices with a global batch of {run.global_batch}: no "
        "layout divides devices, heads, layers and batch; change the number of devices or the "
        "batch, or allow more values"
    )


def _nothing_fits(
    run: Run,
    estimator: Estimator,
    blocks: list[Block],
    table: Table,
    needed: Floats,
) -> InfeasibleError:
    """Which part is too much in the layout that needs least, by how much, and what would fit."""
    candidates = np.argsort(needed, kind="stable")[:MOST_TRIED]
    tried = (
        estimator.estimate(blocks[table.owner[at]].layout(int(table.inside[at])))
        for at in candidates
    )
    nearest = min(tried, key=lambda e: e.worst.needed)
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
        estimator = Estimator(larger)
        blocks, table = _bounded(larger, axes, estimator)
        if table is None:
            continue
        needed = memory_bounds_bytes(larger, table)
        for at in np.argsort(needed, kind="stable")[:MOST_TRIED]:
            if needed[at] > run.gpu.hbm_bytes:
                break
            estimate = estimator.estimate(blocks[table.owner[at]].layout(int(table.inside[at])))
            if estimate.fits:
                return estimate
    return None
