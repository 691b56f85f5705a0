"""Choice of the simplest among the layouts that tie with the fastest.

The error of an estimate is far above 1 % (`accuracy`), so a difference of 1 % is not significant.
Fewer software features and more free memory decide instead.
"""

from __future__ import annotations

from itertools import islice

from atoll.step.layout import Layout
from atoll.training.estimate import Estimate
from atoll.training.planner.search import LayoutSpace

MOST_TRIED = 100  # tied layouts whose memory is checked
ROOM = 0.03  # slowdown that is accepted for a layout that is not tight in memory
_POLICIES = {"none": 0, "full": 1, "selective": 1}  # others choose by operator


def complexity(layout: Layout) -> tuple[int, ...]:
    """Return a sort key of complexity: number of features in use, then the number of parts of the
    model, then zero and hsdp.
    """
    features = (
        layout.tp > 1,
        layout.pp > 1,
        layout.cp > 1,
        layout.ep > 1,
        layout.etp != layout.tp,
        layout.vpp > 1,
        layout.hsdp > 1,
        layout.schedule not in ("1f1b", "interleaved"),
        bool(layout.blocks),
    )
    cuts = layout.model_ranks * layout.ep * layout.vpp
    return sum(features) + _POLICIES.get(layout.recompute, 2), cuts, layout.zero, layout.hsdp


def simplest(space: LayoutSpace, fastest: Estimate, ties: float) -> tuple[Estimate, int]:
    """Return the simplest layout that takes at most (1 + ties) times the fastest step, preferably
    one that is not tight in memory, and the number of layouts that tie. If all of them are tight,
    return the fastest that is not, if it takes at most (1 + ROOM) times the fastest step.
    """
    tied = [(space.layout(*at), at) for at in space.within(fastest.step.time_s * (1 + ties))]
    tied.sort(key=lambda pair: complexity(pair[0]))  # stable: faster layouts stay first
    has_room = space.estimator.has_room
    simple = next((at for layout, at in tied[:MOST_TRIED] if has_room(layout)), None)
    if simple is None:
        slower = islice(space.within(fastest.step.time_s * (1 + ROOM)), len(tied), MOST_TRIED)
        simple = next((at for at in slower if has_room(space.layout(*at))), None)
    if simple is not None:
        return space.estimate(*simple), len(tied)
    tried = (space.estimate(*at) for _, at in tied[:MOST_TRIED])
    return next((estimate for estimate in tried if estimate.fits), fastest), len(tied)
