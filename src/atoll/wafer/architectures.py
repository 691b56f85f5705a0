"""Architecture and mapping together: a space of wafers, each with its best mapping.

A wafer's throughput is at most what work over dies at peak rates gives; that bound, with its power
and cost, which are known without any search, decides who is solved. For the best wafer alone: best
bound first, until no bound beats the best found. For the front of throughput, power and cost: every
wafer that no solved one beats in all three. Many wafers are solved with less effort each than one;
the one that the bound on all hangs on is then solved again with all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from atoll.driver import Progress
from atoll.errors import AtollError, InfeasibleError
from atoll.hardware.wafer import Wafer
from atoll.stopping import StoppedError
from atoll.wafer.search import SolvedWafer, WaferSearch


@dataclass(frozen=True)
class WaferExploration:
    """Solved wafers, best first; how many were ruled out, and by what."""

    solved: tuple[tuple[Wafer, SolvedWafer], ...]
    pruned: dict[str, int]
    bound_samples_per_s: float
    """No wafer of the space is faster."""
    stopped: bool = False
    """Whether some were not looked at, or not thoroughly, because the search had to end."""


def explore_wafers(
    searches: Sequence[WaferSearch],
    front: bool,
    thorough: Callable[[Wafer], WaferSearch] | None = None,
    progress: Progress | None = None,
    prefetch: Callable[[Sequence[int]], None] = lambda numbers: None,
) -> WaferExploration:
    """Solve as few wafers as the bounds allow; `thorough` solves again what the bound hangs on,
    `soon` is told which searches may be asked for next.

    Where it has to end early, the bounds of those that are left count.
    """
    bounds = [search.batch / search.ideal_step_s() for search in searches]
    order = sorted(range(len(searches)), key=lambda i: (-bounds[i], searches[i].wafer.cost_dollars))
    solved: list[tuple[Wafer, SolvedWafer]] = []
    pruned = {"bound": 0, "memory": 0}
    reason: AtollError | None = None
    left_bound, stopped = 0.0, False
    for position, index in enumerate(order):
        search = searches[index]
        _report(progress, len(order) - position, len(order), solved, bounds[index])
        if _ruled_out(search.wafer, bounds[index], solved, front):
            pruned["bound"] += 1
            continue
        next_indices = order[position + 1 : position + 3]
        prefetch([i for i in next_indices if not _ruled_out(searches[i].wafer, bounds[i], solved, front)])
        try:
            outcome = search.run_as_piece()
        except InfeasibleError as error:
            reason = reason or error
            pruned["memory"] += 1
            continue
        except StoppedError:
            left_bound, stopped = bounds[index], True
            break
        solved.append((search.wafer, outcome))
    if not solved:
        if stopped:
            raise StoppedError
        raise InfeasibleError(f"space: no wafer of it holds the model; the first: {reason}")
    solved.sort(key=_fastest_first)
    if thorough is not None and not stopped:
        # The one with the highest bound: the gap hangs on it.
        _report(progress, 1, len(order), solved, 0.0)
        position = min(range(len(solved)), key=lambda i: solved[i][1].bound_s)
        wafer, outcome = solved[position]
        refined = thorough(wafer).run([outcome.best])
        stopped = refined.stopped
        solved[position] = wafer, replace(refined, bound_s=max(refined.bound_s, outcome.bound_s))
        solved.sort(key=_fastest_first)
    bounds_per_s = [searches[0].batch / outcome.bound_s for _, outcome in solved]
    return WaferExploration(tuple(solved), pruned, max(left_bound, *bounds_per_s), stopped)


def _report(
    progress: Progress | None,
    left: int,
    total: int,
    solved: Sequence[tuple[Wafer, SolvedWafer]],
    next_bound: float,
) -> None:
    """How far the space is searched: wafers left, the best of all and the bound on all.

    Wafers come with their bounds falling, so that the next one's holds for all that are left.
    """
    if progress is not None and solved:
        best = max(outcome.best.samples_per_s for _, outcome in solved)
        # A batch is the samples of a step.
        bounds_per_s = [f.best.samples_per_s * f.best.step_s / f.bound_s for _, f in solved]
        progress("wafers", left, total, best, max(best, next_bound, *bounds_per_s))


def _fastest_first(pair: tuple[Wafer, SolvedWafer]) -> tuple[float, float]:
    wafer, outcome = pair
    return -outcome.best.samples_per_s, wafer.cost_dollars


def _ruled_out(
    wafer: Wafer, bound: float, solved: Sequence[tuple[Wafer, SolvedWafer]], front: bool
) -> bool:
    for rival, outcome in solved:
        if outcome.best.samples_per_s < bound:
            continue
        cheaper = (
            rival.peak_power_W <= wafer.peak_power_W and rival.cost_dollars <= wafer.cost_dollars
        )
        if not front or cheaper:
            return True
    return False


def pareto_rows(explored: WaferExploration) -> list[Wafer]:
    """Wafers that no other beats in throughput, peak power and cost at once."""
    figures = [
        (-outcome.best.samples_per_s, wafer.peak_power_W, wafer.cost_dollars)
        for wafer, outcome in explored.solved
    ]

    def beaten(candidate: tuple[float, ...]) -> bool:
        """By another that is no worse in anything and better in something."""
        return any(
            rival != candidate and all(a <= b for a, b in zip(rival, candidate, strict=True))
            for rival in figures
        )

    return [w for (w, _), candidate in zip(explored.solved, figures, strict=True) if not beaten(candidate)]
