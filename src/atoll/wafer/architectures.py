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
from atoll.wafer.search import Found, WaferSearch


@dataclass(frozen=True)
class Explored:
    """Solved wafers, best first; how many were ruled out, and by what."""

    solved: tuple[tuple[Wafer, Found], ...]
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
    soon: Callable[[Sequence[int]], None] = lambda numbers: None,
) -> Explored:
    """Solve as few wafers as the bounds allow; `thorough` solves again what the bound hangs on,
    `soon` is told which searches may be asked for next.

    Where it has to end early, the bounds of those that are left count.
    """
    bounds = [search.batch / search.ideal_step_s() for search in searches]
    order = sorted(range(len(searches)), key=lambda i: (-bounds[i], searches[i].wafer.cost_dollars))
    solved: list[tuple[Wafer, Found]] = []
    pruned = {"bound": 0, "memory": 0}
    reason: AtollError | None = None
    left_bound, stopped = 0.0, False
    for place, index in enumerate(order):
        search = searches[index]
        _report(progress, len(order) - place, len(order), solved, bounds[index])
        if _ruled_out(search.wafer, bounds[index], solved, front):
            pruned["bound"] += 1
            continue
        others = order[place + 1 : place + 3]
        soon([i for i in others if not _ruled_out(searches[i].wafer, bounds[i], solved, front)])
        try:
            found = search.whole()
        except InfeasibleError as error:
            reason = reason or error
            pruned["memory"] += 1
            continue
        except StoppedError:
            left_bound, stopped = bounds[index], True
            break
        solved.append((search.wafer, found))
    if not solved:
        if stopped:
            raise StoppedError
        raise InfeasibleError(f"space: no wafer of it holds the model; the first: {reason}")
    solved.sort(key=_fastest_first)
    if thorough is not None and not stopped:
        # The one with the highest bound: the gap hangs on it.
        _report(progress, 1, len(order), solved, 0.0)
        place = min(range(len(solved)), key=lambda i: solved[i][1].bound_s)
        wafer, found = solved[place]
        more = thorough(wafer).run([found.best])
        stopped = more.stopped
        solved[place] = wafer, replace(more, bound_s=max(more.bound_s, found.bound_s))
        solved.sort(key=_fastest_first)
    known = [searches[0].batch / found.bound_s for _, found in solved]
    return Explored(tuple(solved), pruned, max(left_bound, *known), stopped)


def _report(
    progress: Progress | None,
    left: int,
    total: int,
    solved: Sequence[tuple[Wafer, Found]],
    next_bound: float,
) -> None:
    """How far the space is searched: wafers left, the best of all and the bound on all.

    Wafers come with their bounds falling, so that the next one's holds for all that are left.
    """
    if progress is not None and solved:
        best = max(found.best.samples_per_s for _, found in solved)
        # A batch is the samples of a step.
        known = [f.best.samples_per_s * f.best.step_s / f.bound_s for _, f in solved]
        progress("wafers", left, total, best, max(best, next_bound, *known))


def _fastest_first(pair: tuple[Wafer, Found]) -> tuple[float, float]:
    wafer, found = pair
    return -found.best.samples_per_s, wafer.cost_dollars


def _ruled_out(
    wafer: Wafer, bound: float, solved: Sequence[tuple[Wafer, Found]], front: bool
) -> bool:
    for other, found in solved:
        if found.best.samples_per_s < bound:
            continue
        cheaper = (
            other.peak_power_W <= wafer.peak_power_W and other.cost_dollars <= wafer.cost_dollars
        )
        if not front or cheaper:
            return True
    return False


def pareto_rows(explored: Explored) -> list[Wafer]:
    """Wafers that no other beats in throughput, peak power and cost at once."""
    figures = [
        (-found.best.samples_per_s, wafer.peak_power_W, wafer.cost_dollars)
        for wafer, found in explored.solved
    ]

    def beaten(own: tuple[float, ...]) -> bool:
        """By another that is no worse in anything and better in something."""
        return any(
            other != own and all(a <= b for a, b in zip(other, own, strict=True))
            for other in figures
        )

    return [w for (w, _), own in zip(explored.solved, figures, strict=True) if not beaten(own)]
