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

from atoll.errors import AtollError, InfeasibleError
from atoll.hardware.wafer import Wafer
from atoll.wafer.search import Found, Progress, WaferSearch


@dataclass(frozen=True)
class Explored:
    """Solved wafers, best first; how many were ruled out, and by what."""

    solved: tuple[tuple[Wafer, Found], ...]
    pruned: dict[str, int]
    bound_samples_per_s: float
    """No wafer of the space is faster."""


def explore_wafers(
    searches: Sequence[WaferSearch],
    front: bool,
    thorough: Callable[[Wafer], WaferSearch] | None = None,
    progress: Progress | None = None,
) -> Explored:
    """Solve as few wafers as the bounds allow; `thorough` solves again what the bound hangs on."""
    bounds = [search.batch / search.ideal_step_s() for search in searches]
    order = sorted(range(len(searches)), key=lambda i: (-bounds[i], searches[i].wafer.cost_dollars))
    solved: list[tuple[Wafer, Found]] = []
    pruned = {"bound": 0, "memory": 0}
    reason: AtollError | None = None
    for place, index in enumerate(order):
        search = searches[index]
        _report(progress, len(order) - place, len(order), solved, bounds[index])
        if _ruled_out(search.wafer, bounds[index], solved, front):
            pruned["bound"] += 1
            continue
        try:
            found = search.run()
        except InfeasibleError as error:
            reason = reason or error
            pruned["memory"] += 1
            continue
        solved.append((search.wafer, found))
    if not solved:
        raise InfeasibleError(f"space: no wafer of it holds the model; the first: {reason}")
    solved.sort(key=_fastest_first)
    if thorough is not None:
        # The one with the highest bound: the gap hangs on it.
        _report(progress, 1, len(order), solved, 0.0)
        place = min(range(len(solved)), key=lambda i: solved[i][1].bound_s)
        wafer, found = solved[place]
        more = thorough(wafer).run([found.best])
        solved[place] = wafer, replace(more, bound_s=max(more.bound_s, found.bound_s))
        solved.sort(key=_fastest_first)
    batch = searches[0].batch
    return Explored(tuple(solved), pruned, max(batch / found.bound_s for _, found in solved))


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
    chosen = []
    for wafer, found in explored.solved:
        beaten = any(
            other is not wafer
            and rival.best.samples_per_s >= found.best.samples_per_s
            and other.peak_power_W <= wafer.peak_power_W
            and other.cost_dollars <= wafer.cost_dollars
            and (
                rival.best.samples_per_s > found.best.samples_per_s
                or other.peak_power_W < wafer.peak_power_W
                or other.cost_dollars < wafer.cost_dollars
            )
            for other, rival in explored.solved
        )
        if not beaten:
            chosen.append(wafer)
    return chosen
