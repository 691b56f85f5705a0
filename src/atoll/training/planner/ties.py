"""Choice of the recommended layout among those near the fastest.

Layouts are ranked by what they are expected to take, or by a quantile: a step with uncertain parts
is expected to take longer than its estimate (`uncertainty`). The error of an estimate is far above
1 %, so a difference of 1 % is not significant: fewer software features and more free memory decide.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

from atoll.step.layout import ZERO_STAGES, Layout
from atoll.training.estimate import Estimate
from atoll.training.planner.search import LayoutSpace
from atoll.training.uncertainty import Spread, least_time_spread

MOST_TRIED = 200  # layouts whose memory is checked: that tie, and in a window of slower ones
WINDOWS = (0.05, 0.1, 0.2, 0.4)  # slowdowns up to which layouts with room are looked for, in turn
_POLICIES = {"none": 0, "full": 1, "selective": 1}  # others choose by operator


def complexity(layout: Layout) -> tuple[int, ...]:
    """Return a sort key: features in use, then parts of the model, then zero and hsdp."""
    sizes = layout.tp, layout.pp, layout.cp, layout.ep, layout.vpp, layout.hsdp
    features = sum(size > 1 for size in sizes) + (layout.etp != layout.tp) + bool(layout.blocks)
    features += layout.schedule not in ("1f1b", "interleaved")
    cuts = layout.model_ranks * layout.ep * layout.vpp
    return features + _POLICIES.get(layout.recompute, 2), cuts, layout.zero, layout.hsdp


def at_risk_s(estimate: Estimate, risk: str) -> float:
    """Return the step seconds that a layout is ranked by: "median" is its estimate, "mean" what it
    is expected to take, "p75" or "p90" what such a share of runs stays below.
    """
    return estimate.step.time_s * _factor(estimate.time_spread, risk)


def _factor(errors: Spread, risk: str) -> float:
    """Return the ratio of the seconds that layouts are ranked by to the estimated seconds."""
    if risk == "median":
        return math.exp(errors.bias)
    return errors.expected if risk == "mean" else errors.quantile(int(risk[1:]) / 100)


def least_at_risk(space: LayoutSpace, fastest: Estimate, risk: str) -> Estimate:
    """Return the layout with the least `at_risk_s`. Layouts that could not be better even with the
    narrowest distribution (`least_time_spread`) are skipped.
    """
    if risk == "median":
        return fastest
    least = {
        zero: _factor(least_time_spread(space.run, replace(fastest.layout, zero=zero)), risk)
        for zero in ZERO_STAGES
    }
    best, best_s = fastest, at_risk_s(fastest, risk)
    for row, name in space.within(best_s / min(least.values())):
        time_s = space.time_s[space.slot[row], name]  # rounded down
        if time_s * least[space.layout(row, name).zero] >= best_s:
            continue
        estimate = space.estimate(row, name)
        if estimate.fits and (time_s := at_risk_s(estimate, risk)) < best_s:
            best, best_s = estimate, time_s
    return best


def slowdown_for_room(estimate: Estimate) -> float:
    """Return the slowdown that is accepted for a layout that is not tight in memory: p / (1 - p),
    if this one runs out of memory with chance p, so that it takes 1 / (1 - p) attempts on average.
    """
    return min(1 / max(1 - estimate.out_of_memory, 1e-9) - 1, WINDOWS[-1])


def why_not(faster: Estimate, named: Estimate, ties: float) -> str:
    """Return the reason not to name a layout that is estimated faster than the named one: it may
    run out of memory, it ties and is less simple, or its parts are less certain.
    """
    simpler = complexity(named.layout) < complexity(faster.layout)
    tied = named.step.time_s <= faster.step.time_s * (1 + ties)
    if faster.tight and not named.tight and not (tied and simpler):
        return f"may run out of memory ({faster.out_of_memory:.0%} chance)"
    return "is less simple" if simpler else "is less certain"


def _fastest_with_room(
    space: LayoutSpace,
    leader: Estimate,
    tied: int,
    has_room: Callable[[tuple[int, int], float], bool],
) -> tuple[int, int] | None:
    """Return the fastest layout behind those that tie which is not tight in memory and not slower
    than `slowdown_for_room`. The windows widen in turn, since most layouts are far slower.
    """
    most, checked = max(slowdown_for_room(leader), WINDOWS[0]), tied
    for window in sorted({min(window, most) for window in WINDOWS}):
        slower = islice(space.within(leader.step.time_s * (1 + window)), checked, None)
        for at in islice(slower, MOST_TRIED):
            checked += 1
            if has_room(at, window):
                return at
    return None


def simplest(
    space: LayoutSpace, fastest: Estimate, ties: float, risk: str = "median"
) -> tuple[Estimate, int]:
    """Return the simplest layout that takes at most (1 + ties) times the best step, ranked by risk,
    preferably one that is not tight in memory, and the number of layouts that tie. If all of them
    are tight, return the fastest that is not, unless it is slower than `slowdown_for_room`.
    """
    leader = least_at_risk(space, fastest, risk)
    if not ties:
        return leader, 1
    most_s = leader.step.time_s if risk == "median" else at_risk_s(leader, risk)

    def ties_with_leader(at: tuple[int, int], more: float) -> bool:
        if not space.estimator.has_room(space.layout(*at)):
            return False
        return risk == "median" or at_risk_s(space.estimate(*at), risk) <= most_s * (1 + more)

    step_s = leader.step.time_s
    tied = [(space.layout(*at), at) for at in space.within(step_s * (1 + ties))]
    tied.sort(key=lambda pair: complexity(pair[0]))  # stable: faster layouts stay first
    simple = next((at for _, at in tied[:MOST_TRIED] if ties_with_leader(at, ties)), None)
    if simple is None:
        simple = _fastest_with_room(space, leader, len(tied), ties_with_leader)
    if simple is not None:
        return space.estimate(*simple), len(tied)
    if risk != "median":
        return leader, len(tied)
    tried = (space.estimate(*at) for _, at in tied[:MOST_TRIED])
    return next((estimate for estimate in tried if estimate.fits), leader), len(tied)
