"""Co-search of architecture and mapping: a space of wafers, each with its best mapping.

The work of a step at peak rates bounds a wafer's throughput; that bound, the peak power and the
cost decide which wafers are solved. For the best wafer alone: highest bound first, until no bound
exceeds the best throughput. For the Pareto front of throughput, power and cost: every wafer that no
solved one dominates. Wafers of a space are solved with less effort than a single wafer; the one
that sets the overall bound is then solved again in full.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import le
from typing import NamedTuple

from atoll.base.errors import AtollError, InfeasibleError
from atoll.base.stopping import StoppedError
from atoll.driver import Progress
from atoll.hardware.wafer import Wafer
from atoll.wafer.search import SearchOutcome, WaferSearch


class SolvedWafer(NamedTuple):
    wafer: Wafer
    outcome: SearchOutcome


@dataclass(frozen=True)
class WaferExploration:
    """Solved wafers, best first, and how many were ruled out by cause."""

    solved: tuple[SolvedWafer, ...]
    pruned: dict[str, int]
    bound_samples_per_s: float
    """Upper bound over all wafers of the space."""
    stopped: bool = False
    """Whether the search ended before every wafer was examined in full."""


def explore_wafers(
    searches: Sequence[WaferSearch],
    front: bool,
    thorough: Callable[[Wafer], WaferSearch] | None = None,
    progress: Progress | None = None,
    prefetch: Callable[[Sequence[int]], None] = lambda numbers: None,
) -> WaferExploration:
    """Solve as few wafers as the bounds allow; `thorough` solves again the wafer that sets the
    bound, `prefetch` receives the indices of the searches likely to run next.

    If it ends early, the bound covers the wafers left.
    """
    bounds = [search.batch / search.ideal_step_s() for search in searches]
    order = sorted(range(len(searches)), key=lambda i: (-bounds[i], searches[i].wafer.cost_dollars))
    solved: list[SolvedWafer] = []
    pruned = {"bound": 0, "memory": 0}
    reason: AtollError | None = None
    left_bound, stopped = 0.0, False
    for position, index in enumerate(order):
        search = searches[index]
        _report(progress, len(order) - position, len(order), solved, bounds[index])
        if _ruled_out(search.wafer, bounds[index], solved, front):
            pruned["bound"] += 1
            continue
        coming = order[position + 1 : position + 3]
        prefetch([i for i in coming if not _ruled_out(searches[i].wafer, bounds[i], solved, front)])
        try:
            outcome = search.run_as_piece()
        except InfeasibleError as error:
            reason = reason or error
            pruned["memory"] += 1
            continue
        except StoppedError:
            left_bound, stopped = bounds[index], True
            break
        solved.append(SolvedWafer(search.wafer, outcome))
    if not solved:
        if stopped:
            raise StoppedError
        raise InfeasibleError(f"space: no wafer of it holds the model; the first: {reason}")
    solved.sort(key=_fastest_first)
    if thorough is not None and not stopped:
        # The wafer with the highest bound sets the gap.
        _report(progress, 1, len(order), solved, 0.0)
        position = min(range(len(solved)), key=lambda i: solved[i].outcome.bound_s)
        wafer, outcome = solved[position]
        refined = thorough(wafer).run([outcome.best])
        stopped = refined.stopped
        tightest = replace(refined, bound_s=max(refined.bound_s, outcome.bound_s))
        solved[position] = SolvedWafer(wafer, tightest)
        solved.sort(key=_fastest_first)
    bounds_per_s = [searches[0].batch / outcome.bound_s for _, outcome in solved]
    return WaferExploration(tuple(solved), pruned, max(left_bound, *bounds_per_s), stopped)


def _report(
    progress: Progress | None,
    left: int,
    total: int,
    solved: Sequence[SolvedWafer],
    next_bound: float,
) -> None:
    """Report wafers left, best throughput and bound (bounds fall from wafer to wafer)."""
    if progress is not None and solved:
        best = max(outcome.best.samples_per_s for _, outcome in solved)
        # A batch is the samples of a step.
        bounds_per_s = [s.best.samples_per_s * s.best.step_s / s.bound_s for _, s in solved]
        progress("wafers", left, total, best, max(best, next_bound, *bounds_per_s))


def _fastest_first(pair: SolvedWafer) -> tuple[float, float]:
    wafer, outcome = pair
    return -outcome.best.samples_per_s, wafer.cost_dollars


def _ruled_out(wafer: Wafer, bound: float, solved: Sequence[SolvedWafer], front: bool) -> bool:
    fast = [rival for rival, outcome in solved if outcome.best.samples_per_s >= bound]
    return any(
        not front
        or (rival.peak_power_W <= wafer.peak_power_W and rival.cost_dollars <= wafer.cost_dollars)
        for rival in fast
    )


def pareto_rows(explored: WaferExploration) -> list[SolvedWafer]:
    """Return the wafers on the Pareto front of throughput, peak power and cost."""
    figures = [
        (-outcome.best.samples_per_s, wafer.peak_power_W, wafer.cost_dollars)
        for wafer, outcome in explored.solved
    ]

    def beaten(candidate: tuple[float, ...]) -> bool:
        """Whether a rival is no worse in any figure and better in one."""
        return any(rival != candidate and all(map(le, rival, candidate)) for rival in figures)

    pairs = zip(explored.solved, figures, strict=True)
    return [solved for solved, candidate in pairs if not beaten(candidate)]
