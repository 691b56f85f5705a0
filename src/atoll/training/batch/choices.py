"""Choices of recomputation: the fastest of each stage that fits, and estimates with it."""

from __future__ import annotations

import numpy as np

from atoll.base.arrays import Floats, Ints
from atoll.training.batch.cost_arrays import StagePasses, StateMemory
from atoll.training.batch.path_bounds import step_bound_s
from atoll.training.batch.sums import SAME, Sums, map_arrays

SLACK = 1e-8  # relative excess of memory that may be rounding


def figures(
    sums: Sums, memory: StateMemory | None = None, limit_s: float | None = None, named: int = 0
) -> tuple[Floats, Floats, Ints]:
    """Return seconds and bytes per row and choice, and the choice of each stage.

    The last column is for the fastest choice of each stage that fits, or one choice for all
    stages if that is faster. With a limit, seconds are infinite where it does not fit, and may
    be minus a lower bound where they reach the limit or, after the first `named` choices, the
    last column.
    """
    memory = memory or sums.state_memory()
    states, passes = memory.states, sums.passes(memory)
    picks = _fastest(sums, passes)
    mixed = sums.picked(passes, picks)
    needed = np.append(
        sums.max_over_stages(passes.bytes), sums.max_over_stages(mixed.bytes), axis=1
    )
    capacity = sums.run.capacity_bytes
    bound_s = np.zeros_like(needed)
    wanted = np.ones_like(needed, dtype=np.bool_)
    if limit_s is not None:
        fits = needed <= capacity * (1 + SLACK)
        both = [step_bound_s(sums, states, choice_passes) for choice_passes in (passes, mixed)]
        bound_s = np.where(fits, np.concatenate(both, axis=1), np.inf) * (1 - SLACK)
        wanted = fits & (bound_s < limit_s)
    mixed_s = sums.step_s(states, mixed, wanted[:, -1:])
    if limit_s is not None:
        wanted[:, named:-1] &= bound_s[:, named:-1] < mixed_s
    time_s = np.append(sums.step_s(states, passes, wanted[:, :-1]), mixed_s, axis=1)
    fitting_s = np.where(needed[:, :-1] <= capacity, time_s[:, :-1], np.inf)
    fastest = fitting_s.argmin(axis=1)
    better = np.flatnonzero(fitting_s[np.arange(len(fastest)), fastest] < time_s[:, -1])
    time_s[better, -1] = time_s[better, fastest[better]]
    needed[better, -1] = needed[better, fastest[better]]
    stages = np.isin(sums.row, better)
    picks[stages] = fastest[sums.row[stages]]
    if limit_s is not None:
        left_s = np.where(wanted, np.inf, bound_s)
        left_s[:, -1] = left_s.min(axis=1)
        time_s = np.where((left_s < time_s) & np.isfinite(left_s), -left_s, time_s)
    return time_s, needed, picks


def bounds(sums: Sums) -> tuple[Floats, Floats, Ints]:
    """Return the same with lower bounds on the seconds, and without choices by stage."""
    memory, pipelines = sums.state_memory(), sums.distinct_pipelines()
    passes = pipelines[0].passes(pipelines[0].state_memory())
    time_s = np.zeros((len(sums.rows), sums.tables.bounds.size + 1))
    for least in (True, False):
        columns = np.flatnonzero(sums.tables.bounds == least)
        if columns.size:
            chosen = map_arrays(passes, lambda values, at: values[:, at], columns, columns)
            time_s[:, columns] = step_bound_s(
                sums, memory.states, chosen, least=least, pipelines=pipelines
            )
    needed = np.zeros_like(time_s)
    needed[:, :-1] = sums.max_over_stages(memory.bytes)
    return time_s, needed, np.zeros(0, dtype=np.int64)


def best_choices(
    sums: Sums, limit_s: float, memory: StateMemory | None = None
) -> tuple[Floats, Ints]:
    """Return each row's seconds with its best choices (infinite if none fits), and these."""
    time_s, needed, picks = figures(sums, memory, limit_s)
    fits = (needed[:, -1] <= sums.run.capacity_bytes) & (time_s[:, -1] >= 0)
    return np.where(fits, time_s[:, -1], np.inf), picks


def _fastest(sums: Sums, passes: StagePasses) -> Ints:
    """Return per stage the first of the fastest choices that fit, or the smallest choice."""
    fits = passes.bytes <= sums.run.capacity_bytes
    fitting_s = np.where(fits, passes.total_s, np.inf)
    first = (fitting_s <= fitting_s.min(axis=1, keepdims=True) * (1 + SAME)).argmax(axis=1)
    return np.asarray(np.where(fits.any(axis=1), first, passes.bytes.argmin(axis=1)))
